"""What clients can do to a session: the same for HTTP, WebSockets and chat platforms."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from halter.cancel.loop_bridge import run_in_thread
from halter.errors import CheckpointFailed, SessionBusy
from halter.events import ApprovalAsked
from halter.gateway.http.auth import check_scope
from halter.gateway.http.errors import Problem
from halter.gateway.http.schemas import view_inbox_message, view_receipt
from halter.gateway.http.session_schemas import CompactionView, ContextView, SessionBody
from halter.gateway.sessions.branching import before_turn, opening_message, with_text
from halter.gateway.sessions.limits import LimitExceeded, per_minute
from halter.gateway.sessions.stops import Stops
from halter.gateway.sessions.views import view_session
from halter.models.types import Text
from halter.tools.approval import read_approval

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence

    from halter.gateway.http.keys import Key
    from halter.gateway.http.schemas import (
        EditBody,
        InboxMessageView,
        MessageBody,
        MessageForm,
        ReceiptView,
        RollbackBody,
    )
    from halter.gateway.http.session_schemas import BranchBody, RetryBody, SessionEditBody, SessionView
    from halter.gateway.sessions.live_session import LiveSession
    from halter.gateway.sessions.registry import SessionRegistry
    from halter.gateway.sessions.spoken_replies import SpokenReplies
    from halter.gateway.token_bucket import TokenBucket
    from halter.models.types import Audio, Part
    from halter.session.inbox import InboxMessage, Receipt
    from halter.tools.approval import ApprovalRequest
    from halter.tools.file_history import FileDiff, RestoredFiles

__all__ = ["Commands", "KeepPrefixes"]

_PLATFORMS: Final = ("telegram",)  # reserved even while none is set up: it may be later
T = TypeVar("T")
KeepPrefixes: TypeAlias = "Callable[[Sequence[tuple[str, ...]]], object]"
"""Saves prefixes of commands that run without asking. Raises `OSError` or `ValueError` if it cannot."""


class Commands:
    """Messages, answers and changes. `stops` has the stops."""

    def __init__(
        self,
        registry: SessionRegistry,
        speech: SpokenReplies,
        reserved: Collection[str] = (),
        keep_prefixes: KeepPrefixes | None = None,
    ) -> None:
        """*reserved* are the names of chat platforms: only they may create the sessions of their chats.

        *keep_prefixes* saves what an admin allows permanently; without it nothing can be allowed permanently.
        """
        self.stops = Stops(registry)
        self._registry = registry
        self._speech = speech
        self._keep_prefixes = keep_prefixes
        self._reserved = tuple(f"{name}-" for name in {*reserved, *_PLATFORMS})
        self._messages: dict[str, TokenBucket] = {}  # of keys
        self._sessions: dict[str, TokenBucket] = {}

    async def create(self, key: Key, body: SessionBody) -> tuple[SessionView, bool]:
        """Create a session, or find it; True if it is new."""
        name = body.id or ""
        if name.startswith(self._reserved) and not (key.scope == "admin" and await self._registry.exists(name)):
            # The name of such a session is the address of a chat, to which the bot would write.
            msg = f"session names that start with {name.partition('-')[0]}- belong to a chat platform"
            raise Problem(422, msg, field="id", kind="field")
        allowance = self._sessions.get(key.id)
        if allowance is None:
            allowance = self._sessions[key.id] = per_minute(self._registry.limits.key_sessions)
        wait = allowance.delay()
        if wait:
            msg = "this key creates too many sessions per minute"
            raise LimitExceeded(msg, "sessions", wait)
        allowance.take()
        live, is_new = await self._registry.create(body.id, body.agent, key.id)
        if not key.may_use(live.owner):
            raise Problem(409, f"the name {name!r} is taken", field="id", kind="conflict")
        return view_session(live), is_new

    async def message(self, live: LiveSession, key: Key, body: MessageBody) -> ReceiptView:
        """Accept a message, or raise `Problem`. It is durable when this returns."""
        post = live.session.apost(body.text, body.mode, body.id, body.expect_turn)
        return await self._accept(live, key, body.id, post)

    async def message_with_media(
        self, live: LiveSession, key: Key, form: MessageForm, parts: list[Part]
    ) -> ReceiptView:
        """Accept a message with images or recordings, which are transcribed, or raise `Problem`."""
        content = [form.text, *parts]
        post = self._registry.voice_messages.post(live.session, content, form.mode, form.id, form.expect_turn)
        return await self._accept(live, key, form.id, post)

    async def _accept(
        self, live: LiveSession, key: Key, message: str | None, post: Coroutine[Any, Any, Receipt]
    ) -> ReceiptView:
        """Check the limits, and post a message."""
        try:
            self._check(live, key, message)
        except BaseException:
            post.close()
            raise
        with self._reserved_turn(live, key):
            return await self._post(live, post)

    @contextlib.contextmanager
    def _reserved_turn(self, live: LiveSession, key: Key) -> Iterator[None]:
        """Count the turn that a message may start, as others are accepted meanwhile."""
        if live not in self._registry.busy:
            live.key = key.id
            self._registry.busy.add(live)
        live.accepting += 1
        try:
            yield
        finally:
            live.accepting -= 1
            if not live.is_busy:
                self._registry.busy.discard(live)

    async def _post(self, live: LiveSession, post: Coroutine[Any, Any, Receipt]) -> ReceiptView:
        try:
            return view_receipt(live.session.id, await post)
        except ValueError as error:
            raise _empty() from error

    def _check(self, live: LiveSession, key: Key, message: str | None) -> None:
        if message is not None and live.session.inbox.find(message) is not None:
            return  # it was accepted before
        limits = self._registry.limits
        if len(live.session.inbox) >= limits.inbox:
            msg = f"{limits.inbox} messages are queued in this session"
            raise LimitExceeded(msg, "inbox")
        self.admit(live, key)

    def admit(self, live: LiveSession | None, key: Key) -> None:
        """Count a message that may start a turn of the session, which may be about to be created.

        Raises `Problem` if a limit is reached.
        """
        registry = self._registry
        if registry.is_draining:
            raise Problem(503, "the gateway is shutting down: nothing was accepted", kind="draining", retry_after=5.0)
        registry.check_turns(live, key.id)
        of_key = self._messages.get(key.id)
        if of_key is None:
            of_key = self._messages[key.id] = per_minute(registry.limits.key_messages)
        allowances = [("this key", of_key)] if live is None else [("this session", live.messages), ("this key", of_key)]
        for owner, allowance in allowances:
            wait = allowance.delay()
            if wait:
                msg = f"too many messages per minute for {owner}"
                raise LimitExceeded(msg, "messages", wait)
        for _, allowance in allowances:
            allowance.take()

    async def rollback(self, live: LiveSession, body: RollbackBody) -> ReceiptView:
        """Remove the running or the last turn from the history, and with `files` its file changes."""
        roll_back = functools.partial(live.session.rollback, files=body.files, expect_turn=body.expect_turn)
        receipt = await _with_files(roll_back)
        if receipt.note and body.expect_turn is not None:
            raise Problem(409, receipt.note, field="expect_turn", kind="conflict")
        return view_receipt(live.session.id, receipt)

    async def undo_rollback(self, live: LiveSession) -> RestoredFiles:
        """Redo the file changes that the last rollback has reverted."""
        return await _with_files(live.session.undo_rollback)

    async def changes(self, live: LiveSession, *, whole: bool = False) -> FileDiff:
        """The file changes of the running or the last turn, or with *whole* of all turns of the session."""
        return await _with_files(lambda: live.session.file_changes(whole=whole))

    async def read(self, live: LiveSession) -> SessionView:
        """A loaded session, with the size of its context, which is counted in a thread."""
        view = view_session(live)
        used = await run_in_thread(lambda: live.session.context)
        view.context = ContextView(tokens=used.tokens, window=used.window)
        return view

    async def change(self, live: LiveSession, body: SessionEditBody) -> None:
        """Rename a session, or choose another model for its next turns."""
        model = self._registry.models.get(body.model) if body.model is not None else None
        if body.model is not None and model is None:
            msg = f"there is no model {body.model!r}; known: {', '.join(self._registry.models)}"
            raise Problem(422, msg, field="model", kind="field")
        title = " ".join((body.title or "").split())
        if title or model is not None:
            await run_in_thread(lambda: live.session.record_change(title, body.model or ""))
        if title:
            live.title = title
        if model is not None:
            live.session.use_model(model)

    async def compact(self, live: LiveSession) -> CompactionView:
        """Compact the conversation before the next request. A session of the gateway is always served."""
        await live.session.acompact()
        used = await run_in_thread(lambda: live.session.context)
        return CompactionView(scheduled=True, tokens=used.tokens)

    async def retry(self, live: LiveSession, key: Key, body: RetryBody) -> ReceiptView:
        """Remove the last turn, and send the message that began it again, with another text if there is one.

        A turn that begins meanwhile stays: only the turn of that message is rolled back.
        """
        session = live.session
        turn = body.expect_turn or (session.turn.id if session.turn is not None else "")
        message = await run_in_thread(lambda: opening_message(session.events(), turn)) if turn else None
        if message is None:
            raise Problem(409, "there is no turn to retry", kind="conflict")
        self._check(live, key, None)  # not after the rollback: then a refusal would lose the turn and its message
        with self._reserved_turn(live, key):
            receipt = await _with_files(lambda: session.rollback(files=body.files, expect_turn=turn))
            if receipt.note:
                raise Problem(409, receipt.note, field="expect_turn", kind="conflict")
            return await self._post(live, session.apost(with_text(message, body.text), "queue"))

    async def branch(self, live: LiveSession, key: Key, body: BranchBody) -> SessionView:
        """Create a session from the conversation before a turn, and send that turn's message there."""
        source = live.session
        events = await run_in_thread(source.events)
        if body.turn is not None and not any(event.turn == body.turn for event in events):
            raise Problem(404, f"there is no turn {body.turn!r}", field="turn", kind="no-turn")
        message = None if body.turn is None else opening_message(events, body.turn)
        if message is not None:
            self.admit(None, key)
        title = f"{live.title} (branch)" if live.title else ""
        created, is_new = await self.create(key, SessionBody(id=body.id, agent=live.agent))
        if not is_new:
            raise Problem(409, f"session {body.id!r} already exists", field="id", kind="conflict")
        made = await self._registry.fill(created.id, before_turn(events, body.turn), title)
        if message is not None:
            with self._reserved_turn(made, key):
                await self._post(made, made.session.apost(with_text(message, body.text), "queue"))
        return view_session(made)

    async def answer(
        self, live: LiveSession, key: Key, request: str, value: object, is_from_agent: Callable[[], Awaitable[bool]]
    ) -> None:
        """Answer an approval or a question. Approvals need a scope of their own; processes of agents may not answer."""
        approvals = (each.request for each in live.session.questions if isinstance(each, ApprovalAsked))
        approval = next((each for each in approvals if each.id == request), None)
        if approval is not None:
            check_scope(key, "approve")
            if await is_from_agent():
                msg = "a process that an agent started may not answer an approval"
                raise Problem(403, msg, kind="agents-process")
            if read_approval(value).scope == "always":
                await self._allow_always(key, approval)
        if not await run_in_thread(lambda: live.session.answer(request, value, by=key.title)):
            msg = f"there is no open question {request!r}"
            raise Problem(404, msg, field="request", kind="not-asked")

    async def _allow_always(self, key: Key, approval: ApprovalRequest) -> None:
        """Save the prefixes of an approval. That changes the settings of the machine, so only admins may."""
        check_scope(key, "admin")
        keep = self._keep_prefixes
        if keep is None or not approval.prefixes:
            msg = 'this cannot be allowed permanently: answer true, "session" or false'
            raise Problem(422, msg, field="value", kind="field")
        try:
            await run_in_thread(lambda: keep(approval.prefixes))
        except (OSError, ValueError) as error:
            raise Problem(409, str(error), kind="not-kept") from error

    async def speak(self, live: LiveSession) -> Audio:
        """The last answer as speech."""
        return await self._speech.speak(live.session)

    async def erase(self, live: LiveSession) -> None:
        """Stop and delete a session."""
        await self._registry.erase(live)

    async def edit(self, live: LiveSession, message: str, body: EditBody) -> InboxMessageView:
        """Change the text of a queued message, or release it if it is held. Its other parts stay."""
        pending = self._waiting(live, message)
        inbox = live.session.inbox
        if body.text is not None and pending.message is not None:
            others = [part for part in pending.message.parts if not isinstance(part, Text)]
            try:
                content: list[str | Part] = [body.text, *others]
                done = await run_in_thread(lambda: inbox.edit(message, content))
            except ValueError as error:
                raise Problem(422, "the text is empty", field="text", kind="field") from error
            pending = inbox.find(message) or pending
            if not done and pending.preparing:
                raise Problem(409, f"it cannot be changed while {pending.preparing}", kind="preparing")
            if not done:
                raise _too_late(pending)
        if body.state is not None:
            self._registry.check_turns(live, live.key)
            await run_in_thread(lambda: live.session.release(message))
        return view_inbox_message(inbox.find(message) or pending)

    async def remove(self, live: LiveSession, message: str) -> InboxMessageView:
        """Remove a message that is still queued."""
        seen = view_inbox_message(self._waiting(live, message))
        inbox = live.session.inbox
        is_done = await run_in_thread(lambda: inbox.remove(message))
        pending = inbox.find(message)
        assert pending is not None
        if not is_done:
            raise _too_late(pending)
        seen.state = pending.state
        return seen

    @staticmethod
    def _waiting(live: LiveSession, message: str) -> InboxMessage:
        pending = live.session.inbox.find(message)
        if pending is None:
            raise Problem(404, f"there is no message {message!r}", field="message", kind="no-message")
        if pending.state not in ("accepted", "held"):
            raise _too_late(pending)
        return pending


async def _with_files(work: Callable[[], T]) -> T:
    """Run something that reads or restores files."""
    try:
        return await run_in_thread(work)
    except (CheckpointFailed, SessionBusy) as error:
        raise Problem(409, str(error), kind="conflict") from error


def _empty() -> Problem:
    return Problem(422, "the text is empty", field="text", kind="field")


def _too_late(pending: InboxMessage) -> Problem:
    return Problem(409, f"the message is {pending.state} and no longer queued", field="message", kind="too-late")
