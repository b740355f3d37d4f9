"""One session's log, the state that follows from it, and the view for readers.

Every change to a session is an event. A command, run by the store's writer, reads the state and decides what to
write; each event is applied to the state when it is written to the transaction. Once the events are durable, the view
is replaced and the subscribers get them. So everything that is visible is durable, and what could not be written did
not happen.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from halter.cancel.one_shot_event import OneShotEvent
from halter.errors import SessionClosed
from halter.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ChildFinished,
    ContextCompacted,
    Event,
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
    QuestionAnswered,
    QuestionAsked,
    SessionChanged,
    SummaryDiscarded,
    TurnFinished,
)
from halter.models.types import Usage
from halter.session.history import History
from halter.session.history_view import HistoryView
from halter.session.inbox import WaitingMessages
from halter.session.subscription import Subscription
from halter.stores.command import Command
from halter.stores.writer import writer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from halter.events import EventData
    from halter.session.inbox import InboxMessage
    from halter.session.turn_control import TurnControl
    from halter.stores.base import Lease, Store
    from halter.tools.approval import ApprovalRequest

__all__ = ["EventLog", "SessionSnapshot", "Transaction", "closed_error"]

R = TypeVar("R")
_NONE: Final[frozenset[str]] = frozenset()

# Kinds of events that are not needed to restore the state, unless the log ends in the middle of an answer.
_TRANSIENT_KINDS: Final = ("text.delta", "reasoning.delta", "tool.progress", "tool.cancelling")
# Kinds of events that determine the text that an open request has shown.
_REQUEST_KINDS: Final = ("request.started", "text.delta")
_MESSAGE_EVENTS: Final = frozenset(
    {MessageAccepted, MessageApplied, MessageEdited, MessageHeld, MessageReleased, MessageRemoved}
)
_SUMMARY_EVENTS: Final = frozenset({ContextCompacted, SummaryDiscarded})


class SessionState:
    """The state that follows from the log. Only the writer uses it."""

    __slots__ = ("allowed", "chosen", "history", "inbox", "last", "questions", "usage")

    def __init__(self) -> None:
        self.chosen = SessionChanged()  # the title and the model that somebody has chosen
        self.allowed: tuple[ApprovalRequest, ...] = ()  # requests that the user has allowed for the whole session
        self.inbox = WaitingMessages()
        self.history = History()
        self.questions: dict[str, tuple[str, ApprovalAsked | QuestionAsked]] = {}  # the open ones, with their turns
        self.last = 0  # the number of the newest event
        self.usage = Usage(cost=0.0)  # of the turns that have ended, and of compactions between turns

    def apply(self, event: Event) -> None:
        """Apply the next event of the log."""
        self.last = event.seq
        data: Any = event.data
        kind = type(data)
        if kind in _MESSAGE_EVENTS:
            self._apply_message(event, data)
            return
        self._apply_choice(data)
        if kind is QuestionAsked:
            self.questions[data.id] = (event.turn, data)
        elif kind is ApprovalAsked:
            self.questions[data.request.id] = (event.turn, data)
        elif kind is QuestionAnswered:
            self.questions.pop(data.id, None)
        elif kind is ApprovalAnswered:
            _, asked = self.questions.pop(data.request_id, (None, None))
            if data.scope != "once" and isinstance(asked, ApprovalAsked):
                self.allowed = (*self.allowed, asked.request)
        elif kind is TurnFinished:
            self.inbox.demote_steers("the turn it was meant for had already ended")
            self.usage += data.usage
        elif kind is ChildFinished and not self.history.is_open(event.turn):
            self.usage += data.usage  # of a child in the background, which its turn has not waited for
        elif kind in _SUMMARY_EVENTS and not event.turn:  # else it is part of the turn's usage
            self.usage += data.usage
        self.history.apply(event)

    def _apply_choice(self, data: Any) -> None:
        if type(data) is SessionChanged:
            self.chosen = SessionChanged(data.title or self.chosen.title, data.model or self.chosen.model)

    def _apply_message(self, event: Event, data: Any) -> None:
        if type(data) is MessageApplied and not data.question and self.inbox.is_waiting(data.id):
            self.history.add_user(event.turn, self.inbox.take(data.id))
        turn = self.history.turn
        self.inbox.apply(event, turn.id if turn is not None else "")


class SessionSnapshot:
    """An immutable snapshot of a session: only what is durable. Any thread may read it, at any time."""

    __slots__ = ("_settled", "allowed", "chosen", "history", "inbox", "last", "questions", "usage")

    def __init__(self, state: SessionState) -> None:
        self.allowed = state.allowed
        self.chosen = state.chosen
        self.inbox: tuple[InboxMessage, ...] = state.inbox.publish()
        self.history = HistoryView(state.history)
        self.questions = tuple(asked for _, asked in state.questions.values()) if state.questions else ()
        self.last = state.last
        self.usage = state.usage
        self._settled = state.inbox.settled

    def find(self, message_id: str) -> InboxMessage | None:
        """The message with this id, in any state."""
        for message in self.inbox:
            if message.id == message_id:
                return message
        return self._settled.get(message_id)

    def applied_in(self, turn_id: str) -> list[InboxMessage]:
        """The messages that a turn has applied. Searches all messages that were ever posted."""
        return [message for message in list(self._settled.values()) if message.turn_id == turn_id]


class Transaction:
    """What a command works with: it reads the state, writes events, and adds effects for when they are durable."""

    __slots__ = ("_log", "_now", "effects", "events", "is_durable", "shows", "state")

    def __init__(self, log: EventLog, state: SessionState) -> None:
        self.state = state
        self.is_durable = False  # set by the writer once the events are in the store
        self.events: list[Event] = []
        self.shows: list[Callable[[], object]] = []
        self.effects: list[Callable[[], object]] = []
        self._log = log
        self._now = time.time()

    @property
    def inbox(self) -> WaitingMessages:
        """The waiting messages."""
        return self.state.inbox

    @property
    def history(self) -> History:
        """The conversation."""
        return self.state.history

    @property
    def child_questions(self) -> frozenset[str]:
        """The open questions of children, which withdraw them themselves."""
        return self._log.child_questions

    @property
    def running(self) -> TurnControl | None:
        """The turn that is open and runs in this process; None once its end is decided."""
        control = self._log.control
        if control is None or control.is_over or not self.history.is_open(control.turn.id):
            return None
        return control

    @property
    def waiting(self) -> int:
        """How many messages are waiting."""
        return len(self.state.inbox)

    def write(self, turn: str, *data: EventData) -> None:
        """Write events and apply them to the state. All are checked before the first one is written."""
        self.state.history.check(data)
        for each in data:
            event = Event(self.state.last + 1, self._now, self._log.id, turn, each)
            self.events.append(event)
            self.state.apply(event)

    def show(self, show: Callable[[], object]) -> None:
        """Call *show* in the writer's thread once the events are durable, together with the view that is replaced.

        It only shows what is durable: readers are woken, nothing is cancelled, and calling it again does nothing.
        """
        self.shows.append(show)

    def after_commit(self, effect: Callable[[], object]) -> None:
        """Call *effect* in the writer's thread once the events are durable and shown. It must be quick."""
        self.effects.append(effect)


class EventLog:
    """The log of one session, owned by this process."""

    __slots__ = (
        "_is_loaded",
        "_state",
        "_subscriptions",
        "_watched",
        "child_questions",
        "compaction_requested",
        "control",
        "id",
        "is_closed",
        "lease",
        "stopped_by",
        "store",
        "view",
        "writer",
    )

    def __init__(self, session: str, store: Store, lease: Lease) -> None:
        """Load the state from the store. In the thread that opens the session, since a log may be long."""
        self.id = session
        self.store = store
        self.lease = lease
        self.writer = writer_of(store)
        self.is_closed = False
        self.control: TurnControl | None = None  # of the running turn; set by the task that runs it
        self.child_questions: frozenset[str] = _NONE  # of children, which may outlive the turn in which they ask
        self.stopped_by: set[str] | tuple[()] = ()  # ids of messages that have stopped a turn
        self.compaction_requested = False  # by `compact()` while a turn was running: done before the next request
        self._subscriptions: dict[Subscription, None] = {}  # changed by single operations, from any thread
        self._watched: dict[str, OneShotEvent] = {}
        self._state = _load(store, session)
        self._is_loaded = True
        self.view = SessionSnapshot(self._state)

    # -- commands: from any thread -----------------------------------------------------------------------------------

    def command(
        self, decide: Callable[[Transaction], R], on_error: Callable[[Exception], object] | None = None
    ) -> Command[R]:
        """Make a command from a decision."""
        return Command(self, decide, on_error)

    def run(self, decide: Callable[[Transaction], R]) -> R:
        """Run a decision and block until it is durable. Raises `StoreError` if it could not be written."""
        return self.writer.run(self.command(decide))

    async def run_async(self, decide: Callable[[Transaction], R]) -> R:
        """Run a decision and wait, without blocking the loop, until it is durable."""
        return await self.writer.run_async(self.command(decide))

    def submit(
        self, decide: Callable[[Transaction], R], on_error: Callable[[Exception], object] | None = None
    ) -> Command[R]:
        """Submit a decision without waiting for it. *on_error* is called if it could not be written."""
        return self.writer.submit(self.command(decide, on_error))

    def wait(self, command: Command[R], *, in_handler: R) -> R:
        """Block until a command is durable. A signal handler that has interrupted the writer gets *in_handler*."""
        return in_handler if self.writer.is_interrupted_here else self.writer.wait(command)

    def note_stopped_by(self, message_id: str, stopped: bool) -> None:  # noqa: FBT001
        """Record, for its receipt, that a message has stopped a turn."""
        if stopped:
            self.stopped_by = {*self.stopped_by, message_id}

    # -- for the writer ----------------------------------------------------------------------------------------------

    def begin(self) -> Transaction:
        """Begin a transaction. The state is loaded again first if a commit has failed."""
        if self.is_closed:
            raise closed_error(self.id)
        if not self._is_loaded:
            self._state = _load(self.store, self.id)
            if self._state.last > self.view.last:  # a commit was written, though its answer was lost
                self.publish(self.store.read(self.id, self.view.last))
            self._is_loaded = True
        return Transaction(self, self._state)

    def discard(self) -> None:
        """Mark the state as ahead of the store: it is loaded again before the next transaction."""
        self._is_loaded = False

    def publish(self, events: list[Event]) -> None:
        """Replace the view and pass the events to the subscribers: they are durable now."""
        self.view = SessionSnapshot(self._state)
        if self._watched:
            self._wake_watchers(events)
        for subscription in tuple(self._subscriptions):
            subscription.put(events)

    def _wake_watchers(self, events: Iterable[Event]) -> None:
        for event in events:
            if type(event.data) in _MESSAGE_EVENTS:
                for key in (event.data.id, ""):  # type: ignore[union-attr]
                    watcher = self._watched.pop(key, None)
                    if watcher is not None:
                        watcher.set()

    # -- readers -----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> TurnControl | None:
        """The running turn; None until its start is durable, and again once it has ended."""
        control, turn = self.control, self.view.history.turn
        if control is None or turn is None or turn.id != control.turn.id or control.turn.ended.is_set:
            return None
        return control

    def watch(self, message_id: str = "") -> OneShotEvent:
        """A one-shot event: set when this message (or, without an id, any message) changes, or the log is closed.

        Others wait for the same event, so only the log sets it.
        """
        return self._watched.setdefault(message_id, OneShotEvent())

    def subscribe(
        self, max_queued: int, only: Collection[type] = (), on_events: Callable[[list[Event]], object] | None = None
    ) -> Subscription:
        """Subscribe to all events from now on, or to some classes of them."""
        subscription = Subscription(self._unsubscribe, self.view.last, max_queued, only, on_events)
        self._subscriptions[subscription] = None
        if self.is_closed:  # checked after registering; close() sets it before it ends the subscriptions
            subscription.end()
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    def close(self) -> None:
        """Refuse further commands. Called by the writer, after the last event."""
        self.is_closed = True
        for subscription in list(self._subscriptions):
            subscription.end()
        for watcher in list(self._watched.values()):
            watcher.set()


def closed_error(session: str) -> SessionClosed:
    """The error of a call that needs an open session."""
    return SessionClosed(f"session {session!r} is closed; open it again with agent.session({session!r}, store)")


def _load(store: Store, session: str) -> SessionState:
    """Load the state from the store."""
    state = SessionState()
    for event in store.read(session, without=_TRANSIENT_KINDS):
        state.apply(event)
    request = state.history.open_request
    behind = store.read(session, request - 1 if request else state.last)
    for event in behind:
        # The log ends while a model was answering, so the text that was shown is only in its deltas. The whole request
        # is applied again, because it matters to which attempt a piece of text belongs.
        if request and event.kind in _REQUEST_KINDS:
            state.history.apply(event)
        state.last = max(state.last, event.seq)
    state.inbox.publish()
    return state
