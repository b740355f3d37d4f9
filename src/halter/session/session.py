"""One conversation: an inbox, a log, and at most one running turn.

Any thread may call any method; `stop()` and `interrupt()` may also be called from a signal handler. Methods cancel
tokens and submit commands to the store's writer, which alone changes the session. Only one task at a time runs turns:
the one that holds the permit.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import secrets
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal

from halter.cancel.loop_bridge import running_loop
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER, CancellationToken
from halter.events import SessionChanged, SessionCreated
from halter.session import background_loop, closing, delivery, running, serving, stopping, turn_files
from halter.session.children import NO_PARENT, ParentTurn
from halter.session.compaction import between_turns
from halter.session.compaction.compactor import ContextUsage, context_usage
from halter.session.delivery import Post
from halter.session.inbox import Inbox, Receipt, to_message
from halter.session.instructions import SessionInstructions
from halter.session.log import EventLog, closed_error
from halter.session.questions import Questions
from halter.session.stopping import TurnStop
from halter.session.turn import Turn
from halter.session.turn_files import SessionFiles
from halter.stores.memory import MemoryStore
from halter.stores.writer import writer_of
from halter.tools.resources import SessionResources

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator
    from typing import Self

    from halter.agent import Agent
    from halter.events import ApprovalAsked, ContextCompacted, Event, EventData, Mode, QuestionAsked
    from halter.models.types import Message, Model, Usage
    from halter.session.inbox import Content
    from halter.session.log import Transaction
    from halter.session.subscription import Subscription
    from halter.stores.base import Lease, Store
    from halter.tools.file_history import FileDiff, RestoredFiles

__all__ = ["Session"]

_log = logging.getLogger(__name__)
_MAX_QUEUED: Final = 10_000  # how many events a subscriber may be behind


class Session:
    """One conversation with an agent. Made by `agent.session()`; close it, or use it in a `with` block."""

    __slots__ = (
        "__weakref__",
        "_closed",
        "_files",
        "_has_tool_loop",
        "_instructions",
        "_log",
        "_parent",
        "_permit",
        "_questions",
        "_release_lease",
        "_resources",
        "_turn",
        "agent",
        "deps",
        "id",
        "inbox",
        "token",
    )

    def __init__(
        self,
        agent: Agent,
        id: str | None = None,  # noqa: A002  (the contract's word)
        store: Store | None = None,
        *,
        deps: Any = None,
        prepares: Collection[str] = (),
        parent: ParentTurn = NO_PARENT,
    ) -> None:
        self.id = id or secrets.token_hex(8)
        self.agent = agent
        self.deps = deps
        store = MemoryStore() if store is None else store
        writer = writer_of(store)
        leases: list[Lease] = []
        # Made before the lease is acquired: Ctrl+C may come while the writer acquires it. The store's own finalizer
        # releases everything at the end of the process.
        self._release_lease = weakref.finalize(self, closing.submit_release, store, leases)
        self._release_lease.atexit = False
        name = self.id
        try:
            writer.run(writer.job(lambda: leases.append(store.acquire(name))))
            expiry = store.expiry(leases[0])
            above = parent.token
            self.token = above.child("session") if expiry is NEVER else CancellationToken.any_of(above, expiry)
            self._log = EventLog(name, store, leases[0])
            self._log.run(lambda tx: delivery.take_over(tx, prepares))
        except BaseException:
            self._release_lease()
            raise
        self.inbox = Inbox(self._log)
        """The waiting messages, in order; `remove(id)` and `edit(id, text)` change them."""
        self._questions = Questions(self._log, parent.questions)
        self._instructions = SessionInstructions(agent.instructions)
        self._resources = SessionResources()
        self._files = SessionFiles(self.id, parent.files)
        self._parent = parent
        self._permit = [True]  # popped by run(), arun(), stream() or serve()
        self._turn: Turn | None = None  # the last one that ran here, or that `turn` has returned
        self._closed = False
        self._has_tool_loop = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self.is_running else "idle"
        return f"<Session {self.id} ({state}), {len(self.inbox)} waiting>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def turn(self) -> Turn | None:
        """The running turn, or the last one that is part of the conversation."""
        control = self._log.running
        if control is not None:
            return control.turn
        past, kept = self._log.view.history.turn or self._log.view.history.last, self._turn
        if past is None:
            return None
        if kept is None or kept.id != past.id:
            kept = self._turn = Turn.from_log(past, self.agent.output_type)
        return kept

    @property
    def is_running(self) -> bool:
        """Whether a turn is running."""
        return self._log.running is not None

    @property
    def text(self) -> str:
        """The newest answer of the running or the last turn; while the model is answering, the text so far."""
        return self._log.view.history.text

    @property
    def cancel_token(self) -> CancellationToken:
        """The token of the running or the last turn. It stays that turn's, also after the next one has begun."""
        control = self._log.control
        turn = control.turn if control is not None else self._turn or self.turn
        return turn.token if turn is not None else NEVER

    @property
    def history(self) -> list[Message]:
        """The conversation, as the next request would send it."""
        return self._log.view.history.messages

    @property
    def full_history(self) -> list[Message]:
        """The whole conversation, also the part for which a note is sent since a compaction."""
        return self._log.view.history.all_messages

    @property
    def context(self) -> ContextUsage:
        """How full the model's context is: `tokens` of the next request, about, and the `window` if it is known."""
        return context_usage(self.agent, self._instructions.known, self._log.view.history)

    @property
    def usage(self) -> Usage:
        """The tokens and the cost of all turns, of sub-agents and of turns that were rolled back included."""
        view = self._log.view
        return view.usage if view.history.turn is None else view.usage + view.history.turn.usage

    @property
    def questions(self) -> tuple[ApprovalAsked | QuestionAsked, ...]:
        """The open questions and approvals, the oldest first; `answer()` answers them."""
        return self._log.view.questions

    @property
    def has_resources(self) -> bool:
        """Whether its tools keep resources in it, such as a browser or a job, which end when it is closed."""
        return bool(self._resources)

    @property
    def last_event(self) -> int:
        """The number of the newest event."""
        return self._log.view.last

    def events(self, after: int = 0) -> list[Event]:
        """The events with higher numbers than *after*. Reads the store: do not call it in an event loop."""
        return self._log.store.read(self.id, after)

    def subscribe(
        self,
        max_queued: int = _MAX_QUEUED,
        *,
        only: Collection[type[EventData]] = (),
        on_events: Callable[[list[Event]], object] | None = None,
    ) -> Subscription:
        """Subscribe to all events from now on: read them with `async for`, or with `get()` in a thread.

        Use it in a `with` block. *only* selects events by their classes. A subscriber that is more than *max_queued*
        events behind gets a `subscription.missed` instead of the rest, which `events()` has. With *on_events* nothing
        is queued: the function is called with each batch of events, in the writer's thread, and with an empty list at
        the end. It has to be quick.
        """
        return self._log.subscribe(max_queued, only, on_events)

    # -- turns -------------------------------------------------------------------------------------------------------

    def run(self, text: Content | None = None) -> Turn:
        """Run one turn on Halter's own event loop. Blocks until it is over; returns it also if it was interrupted."""
        if running_loop() is not None:
            _log.warning("session.run() blocks the event loop that runs in this thread; use `await session.arun()`")
        return background_loop.run_for_caller("run", lambda: self.arun(text))

    async def arun(self, text: Content | None = None) -> Turn:
        """Run one turn in this event loop, on everything in the inbox, with *text* as the last message.

        Without any message, continues a turn that was interrupted; if there is none, raises `NothingToDo`.
        """
        with running.permit(self):
            return await running.run_turn(self, text)

    async def stream(self, text: Content | None = None) -> AsyncGenerator[Event, None]:
        """Run one turn as `arun()` does, and yield its events. Leaving early stops the turn (reason "disconnect")."""
        with running.permit(self):
            async with contextlib.aclosing(serving.stream(self, text)) as events:
                async for event in events:
                    yield event

    def stream_sync(self, text: Content | None = None) -> Generator[Event, None, None]:
        """Run one turn on Halter's own event loop, as `run()` does, and yield its events to this thread.

        Leaving the loop early stops the turn (reason "disconnect").
        """
        return serving.stream_sync(self, text)

    async def serve(self) -> None:
        """Run turn after turn, as messages arrive, until `close()`.

        Errors of the store are retried; raises `LeaseLost` if another process has the session.
        """
        with running.permit(self):
            await serving.serve(self)

    def compact(self) -> ContextCompacted | None:
        """Compact as `acompact()` does. Blocks until it is done."""
        return background_loop.run_for_caller("compact", self.acompact)

    async def acompact(self) -> ContextCompacted | None:
        """Replace the older part of the conversation by a summary in what is sent to the model. The log keeps all.

        Returns the event, or None if there was nothing to do, or a stop came first: then nothing has changed. If a turn
        is running, or the session is served, it is done before the next request, and this returns None at once.
        """
        return await between_turns.compact(self)

    # -- messages ----------------------------------------------------------------------------------------------------

    def post(
        self,
        text: Content,
        mode: Mode = "queue",
        id: str | None = None,  # noqa: A002  (the contract's word)
        expect_turn: str | None = None,
        *,
        preparing: str = "",
    ) -> Receipt:
        """Put a message into the inbox, durably, and do what its mode says.

        "queue": for the next turn. "steer": into this turn, ending its step. "interrupt": stop this turn, and start the
        next one with the message. "rollback": like "interrupt", and take this turn out of the history. If no turn is
        running, or not the expected one, every mode means the next turn, and the receipt says so. Posting the same *id*
        again returns the same receipt.

        While a tool waits for the answer to a question, a message of mode "steer" is that answer.

        *preparing* marks a message that is not complete yet, such as a recording that is being transcribed. It is
        durable and keeps its place, and later messages wait for it. It does what its mode says once `prepared()` has
        set its content. The caller must call `prepared()` in any case.
        """
        post = Post.of(text, mode, id, expect_turn, preparing)
        command = self._log.submit(lambda tx: delivery.accept(self, tx, post))
        return post.receipt(self._log, self._log.wait(command, in_handler=None))

    async def apost(
        self,
        text: Content,
        mode: Mode = "queue",
        id: str | None = None,  # noqa: A002  (the contract's word)
        expect_turn: str | None = None,
        *,
        preparing: str = "",
    ) -> Receipt:
        """Post a message as `post()` does, without blocking the event loop."""
        post = Post.of(text, mode, id, expect_turn, preparing)
        return post.receipt(self._log, await self._log.run_async(lambda tx: delivery.accept(self, tx, post)))

    def prepared(self, id: str, content: Content, note: str = "", *, is_done: bool = False) -> bool:  # noqa: A002
        """Set the content of a message that was posted with `preparing`, and do what its mode says.

        Returns False if the message was removed meanwhile. A held message stays held. *is_done* is for a message that
        turned out to be a command and has been carried out: it leaves the inbox at the same moment.
        """
        message = to_message(content)
        return self._log.run(lambda tx: delivery.prepared(self, tx, id, message, note, is_done=is_done))

    async def aprepared(self, id: str, content: Content, note: str = "", *, is_done: bool = False) -> bool:  # noqa: A002
        """Set the content of a message as `prepared()` does, without blocking the event loop."""
        message = to_message(content)
        return await self._log.run_async(lambda tx: delivery.prepared(self, tx, id, message, note, is_done=is_done))

    def queue(self, text: Content) -> Receipt:
        """Post a message for the next turn."""
        return self.post(text, "queue")

    def steer(self, text: Content) -> Receipt:
        """Put a message into the running turn, ending its step."""
        return self.post(text, "steer")

    def interrupt(
        self, text: Content | None = None, *, reason: str = "interrupt", detail: str = "", by: str = "interrupt()"
    ) -> Receipt:
        """Stop the running turn; *text* starts the next one.

        Without a text, *reason*, *detail* and *by* are recorded, and a signal handler may call it.
        """
        if text is not None:
            return self.post(text, "interrupt")
        return stopping.interrupt(self, reason, detail, by)

    def stop(
        self,
        when: Literal["now", "step"] = "now",
        *,
        scope: Literal["turn", "all"] = "turn",
        reason: str = "stop",
        detail: str = "",
        said_in: str = "",
    ) -> Receipt:
        """Stop the running turn, and hold the messages in the inbox. A signal handler may call it.

        `when="step"` stops after the running step, and interrupts nothing. Work in the background belongs to the
        session and continues; `scope="all"` stops it too. If a message asked for the stop, *said_in* is its id: then
        that message and those before it are held, and later ones are not.
        """
        stop = TurnStop(self, when, scope, reason, detail, said_in)
        self._log.writer.wake()
        return stop.wait()

    def astop(
        self,
        when: Literal["now", "step"] = "now",
        *,
        scope: Literal["turn", "all"] = "turn",
        reason: str = "stop",
        detail: str = "",
        said_in: str = "",
    ) -> Coroutine[Any, Any, Receipt]:
        """Stop as `stop()` does, without blocking the event loop: `await session.astop()`.

        The call itself stops; what it returns waits until the hold is durable. So several sessions are stopped without
        waiting for each other: call it for all, and then await all.
        """
        stop = TurnStop(self, when, scope, reason, detail, said_in)
        self._log.writer.wake_in_loop()
        return stop.wait_async()

    def rollback(self, *, files: bool = False, expect_turn: str | None = None) -> Receipt:
        """Take the running turn, or if there is none the last one, out of the history. The log keeps it.

        With *expect_turn*, only if it is that turn; else nothing is done, and `receipt.note` says so.

        With *files*, the files that the turn has changed are restored first, where nobody else has changed them since;
        `receipt.files` says which. That blocks until it is done, and `undo_rollback()` undoes it.
        """
        if files:
            return turn_files.roll_back(self, expect_turn)
        return stopping.roll_back(self, expect_turn)

    async def arollback(self, *, files: bool = False, expect_turn: str | None = None) -> Receipt:
        """Roll back as `rollback()` does, without blocking the event loop."""
        return await run_blocking_async(lambda: self.rollback(files=files, expect_turn=expect_turn))

    def undo_rollback(self) -> RestoredFiles:
        """Bring back the files that the last `rollback(files=True)` has restored, where nobody has changed them since.

        The turn stays out of the history. Blocks; calling it again undoes it.
        """
        return turn_files.undo_rollback(self)

    def file_changes(self, *, whole: bool = False) -> FileDiff:
        """What the running or the last turn has changed in files, and what a rollback would restore. Blocks.

        With *whole*, what all turns have changed, from the beginning of the session on.
        """
        return turn_files.file_changes(self, whole=whole)

    def release(self, id: str | None = None) -> int:  # noqa: A002  (the contract's word)
        """Release held messages: all, or one. Returns how many."""
        return self._log.run(lambda tx: delivery.release(tx, id))

    def answer(self, request_id: str, value: Any, *, by: str = "") -> bool:
        """Answer an approval or a question; False if it is not open.

        An approval takes True or "yes" for this call, "session" for what is like it in this session, "always" for the
        prefixes of commands that the request offers, False, "no" or {"deny": "why"}. Any other text denies, and the
        model reads it. "always" is recorded as for this session; to keep it for others is the caller's business.
        """
        return self._log.run(lambda tx: self._questions.answer(tx, request_id, value, by))

    def receipt(self, id: str) -> Receipt:  # noqa: A002  (the contract's word)
        """The receipt of a message that was posted earlier."""
        return Receipt(self._log, id)

    def use_tool_loop(self) -> None:
        """Run async tools on a separate event loop, as `run()` does, so that one that blocks does not delay this loop.

        Such tools cannot use objects that are bound to the loop in which the turns run.
        """
        self._has_tool_loop = True

    def record_created(self, agent: str, owner: str = "", workspace: str = "") -> bool:
        """Record that a new session was created for *agent*, by *owner*; False if the session is not new."""

        def decide(tx: Transaction) -> bool:
            if tx.state.last:
                return False
            tx.write("", SessionCreated(agent, owner, workspace))
            return True

        return self._log.run(decide)

    def record_change(self, title: str = "", model: str = "") -> None:
        """Record another title, or the name of the model that is used from the next turn on; see `use_model()`."""
        self._log.run(lambda tx: tx.write("", SessionChanged(title, model)))

    def use_model(self, model: Model) -> None:
        """Ask another model from the next turn on. The agent itself stays as it is."""
        self.agent = copy.copy(self.agent)
        self.agent.model = model

    @property
    def chosen(self) -> SessionChanged:
        """The title and the model that somebody has chosen for this session; empty where nobody has."""
        return self._log.view.chosen

    def cancel_call(self, call_id: str, reason: str = "stop") -> bool:
        """Stop one call. The turn continues. False if there is no such call, or it had ended."""
        control = self._log.running
        batch = control.batch if control is not None else None
        return batch is not None and batch.cancel_call(call_id, reason)

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self, timeout: float = 5.0) -> None:
        """Stop the running turn and release the session, within *timeout* seconds. Waiting messages stay in the store.

        In the event loop in which the turn runs, this cannot wait for the turn: use `await session.aclose()` there.
        """
        closing.close(self, timeout)

    async def aclose(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109  (as its twin)
        """Close as `close()` does, without blocking the loop."""
        await closing.aclose(self, timeout)

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error(self.id)
