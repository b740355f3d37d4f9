"""The conversation as it is sent to models: a projection of the log that is valid for every provider at any time.

These rules of the providers hold between any two events:

- Each call in a message of the assistant has exactly one result, directly after that message, in the order of the
  calls. While calls run, readers see a placeholder for each missing result. `check()` refuses, before anything is
  written, a second result for a call, and anything between a message and its results.
- The id of a call is never used twice, even if the model does so (`halter.models.sanitize`).
- No message is empty, and a conversation that is sent ends with a message of the user or with results.

Besides the results of calls, the model is told about a stop by one short line in brackets, as the first part of the
user's next message. In the same way it is told, once, when an abandoned call has ended, at the start of the next turn;
and what the user had answered to a question, if the call that asked was stopped before it could return the answer.
Why a typed answer was rejected is a message of the user of its own, behind that answer.

After a compaction (`compaction.prefix`) a note stands for the beginning of the conversation in what is sent. All
messages are kept: rolling back a turn that a compaction covers undoes that compaction, and later ones.

Only the writer changes a history. Readers get a `HistoryView` (`history_view`). The parts that it shares with the
history are only appended to, or replaced as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from halter.events import (
    ChildFinished,
    ContextCompacted,
    EventData,
    MessageApplied,
    OutputRejected,
    QuestionAnswered,
    QuestionAsked,
    RequestCancelled,
    RequestFinished,
    RequestStarted,
    SummaryDiscarded,
    ToolFinished,
    ToolFinishedLate,
    ToolStarted,
    TurnFinished,
    TurnRolledBack,
    TurnStarted,
    TurnStatus,
    TurnStopping,
)
from halter.models.answer import AnswerBuilder
from halter.models.estimate import complete_usage
from halter.models.sanitize import clean_text
from halter.models.types import AssistantMessage, Message, ModelRequest, TextDelta, ToolMessage, Usage, UserMessage
from halter.session.compaction.prefix import CompactedPrefix
from halter.session.history_view import CONTINUE, with_notes
from halter.session.open_calls import NO_CALLS, OpenCalls
from halter.tools.outcome import ToolOutcome, because

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from halter.events import Event
    from halter.session.history_view import HistoryView

__all__ = ["History", "PastTurn"]

_NONE: Final[frozenset[str]] = frozenset()
_ANSWERED: Final = "The user answered a tool's question: {}"
_AFTER_RESULTS: Final = frozenset({MessageApplied, RequestStarted, ContextCompacted})


class PastTurn(msgspec.Struct, frozen=True, gc=False):
    """A turn, as recorded in the log."""

    id: str
    status: TurnStatus = "running"
    reason: str = ""
    detail: str = ""
    error: str = ""
    text: str = ""
    usage: Usage = Usage(cost=0.0)  # of its requests and children that have ended
    stopping: TurnStopping | None = None
    notes: tuple[str, ...] = ()  # what the model was told when it started


class _OpenRequest:
    """The open request and its answer so far."""

    __slots__ = ("answer", "seq", "started")

    def __init__(self, seq: int, started: RequestStarted) -> None:
        self.seq = seq
        self.started = started
        self.answer = AnswerBuilder(started.model)


class History:
    """The conversation, built from the events in the order of the log."""

    __slots__ = (
        "_asking",
        "_calls",
        "_entries",
        "_ids",
        "_is_cut",
        "_late",
        "_measured",
        "_opening",
        "_past",
        "_prefixes",
        "_request",
        "_rolled_back",
        "last",
        "turn",
    )

    def __init__(self) -> None:
        self.turn: PastTurn | None = None  # the open turn
        self.last: PastTurn | None = None  # the newest finished turn that is part of the conversation
        self._past: list[PastTurn] = []  # the turns before `last` that are part of it
        self._entries: list[tuple[str, Message]] = []
        self._prefixes: list[CompactedPrefix] = []  # the compactions; the newest one counts
        self._measured = (0, 0)  # messages at the end of the last answer, and the tokens that the provider counted
        self._calls = NO_CALLS
        self._request: _OpenRequest | None = None
        self._ids: dict[str, None] = {}  # of all calls; an empty set takes more memory
        self._opening: tuple[str, ...] = ()  # notes for the user's next message
        self._late: tuple[tuple[str, str], ...] = ()  # (turn of the call, note for the start of the next turn)
        self._rolled_back = _NONE
        self._asking = _NONE  # ids of the open questions of calls
        self._is_cut = False  # the last message is an answer that was cut off

    @property
    def prefix(self) -> CompactedPrefix | None:
        """The newest compaction, if any."""
        return self._prefixes[-1] if self._prefixes else None

    @property
    def can_continue(self) -> bool:
        """Whether the last turn was not completed, so that it can be continued."""
        return self.last is not None and self.last.status != "done"

    @property
    def open_request(self) -> int:
        """The number of the event that started the open request; 0 if there is none."""
        return self._request.seq if self._request is not None else 0

    @property
    def call_ids(self) -> Container[str]:
        """The ids of all calls."""
        return self._ids

    def is_open(self, turn: str) -> bool:
        """Whether this turn is open."""
        return self.turn is not None and self.turn.id == turn

    def was_rolled_back(self, turn: str) -> bool:
        """Whether a turn was taken out of the history."""
        return turn in self._rolled_back

    # -- what may be written -----------------------------------------------------------------------------------------

    def check(self, data: Iterable[EventData]) -> None:
        """Refuse events that would make the history invalid. That would be a bug in Halter."""
        answered: set[str] = set()
        for each in data:
            kind = type(each)  # isinstance costs more, and a stop waits for this
            if kind is ToolFinished:
                call = each.outcome.call_id  # type: ignore[union-attr]
                if call in answered or not self._calls.is_open(call):
                    raise AssertionError(f"call {call!r} already has its result, or was never asked for")
                answered.add(call)
            elif kind is MessageApplied and each.question:  # type: ignore[union-attr]
                continue  # it goes to a tool, not into the conversation
            elif kind in _AFTER_RESULTS and len(answered) < self._calls.missing:
                raise AssertionError(f"{kind.__name__} while calls have no results yet")

    def is_same_context(self, view: HistoryView) -> bool:
        """Whether the conversation is still the one of *view*, and ends where it can be compacted."""
        known, now = view.prefix, self.prefix
        is_same = known.record == now.record if known is not None and now is not None else known is now
        return is_same and view.count == len(self._entries) and not self._calls.missing

    def is_open_call(self, call: str) -> bool:
        """Whether a call has no result yet."""
        return self._calls.is_open(call)

    # -- applying events ---------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Apply one event of the log. The user's messages come by `add_user()`, since their text is in the inbox."""
        data = event.data
        kind = type(data)
        if kind is TextDelta:
            if self._request is not None:
                self._request.answer.take(data)  # type: ignore[arg-type]
            return
        handle: Callable[[History, Event, EventData], None] | None = _HANDLERS.get(kind)
        if handle is not None:
            handle(self, event, data)

    def add_user(self, turn: str, message: UserMessage) -> None:
        """Add a message of the user, after the notes for the model."""
        self._entries.append((turn, with_notes(self._opening, message)))
        self._opening = ()
        self._is_cut = False

    def _start_turn(self, event: Event, data: TurnStarted) -> None:
        self._opening += tuple(note for _, note in self._late)
        self._late = ()
        self.turn = PastTurn(event.turn, notes=self._opening)
        self._request = None
        if data.continues and (self._opening or not self._ends_with_results()):
            self.add_user(event.turn, UserMessage.of(CONTINUE))

    def _ends_with_results(self) -> bool:
        return bool(self._entries) and isinstance(self._entries[-1][1], ToolMessage | UserMessage)

    def _note_stop(self, _: Event, data: TurnStopping) -> None:
        if self.turn is not None:
            self.turn = replace(self.turn, stopping=data)

    def _finish_turn(self, event: Event, data: TurnFinished) -> None:
        open_turn = self.turn if self.turn is not None else PastTurn(event.turn)
        past = replace(
            open_turn, status=data.status, reason=data.reason, detail=data.detail, error=data.error, usage=data.usage
        )
        self.turn = None
        self._request = None
        if self.last is not None:
            self._past.append(self.last)
        self.last = past
        if past.status == "interrupted" and past.reason != "pause":
            self._opening += (f"The previous turn was stopped {because(past.reason)} before it was done.",)
        elif past.status == "failed":
            self._opening += ("The previous turn ended early, because of an error or a limit.",)

    def _roll_back(self, event: Event, _: TurnRolledBack) -> None:
        turn = event.turn
        self._entries = [entry for entry in self._entries if entry[0] != turn]
        self._past = [past for past in self._past if past.id != turn]
        self._late = tuple(late for late in self._late if late[0] != turn)
        self._rolled_back |= {turn}
        self._is_cut = False
        self._measured = (0, 0)
        while self._prefixes and self._prefixes[-1].record.upto > len(self._entries):
            self._prefixes.pop()  # it covers messages of this turn, which were the last ones
        if self.last is not None and self.last.id == turn:
            # The notes that it began with are gone with it, so they are given again. Notes about it are dropped.
            self._opening = self.last.notes
            self.last = self._past.pop() if self._past else None

    def _start_request(self, event: Event, data: RequestStarted) -> None:
        if self._is_cut:  # `request_messages` had this message at its end
            self.add_user(event.turn, UserMessage.of(CONTINUE))
        if self._request is None or data.attempt == 1:
            self._request = _OpenRequest(event.seq, data)
        self._request.started = data
        self._request.answer.start_attempt(data.model, data.attempt)

    def _end_request(self, event: Event, data: RequestFinished | RequestCancelled) -> None:
        self._request = None
        answer = data.answer
        if answer is None:
            return
        if self.turn is not None:
            self.turn = replace(self.turn, text=answer.text or self.turn.text, usage=self.turn.usage + answer.usage)
        if not (answer.text or answer.calls):
            return
        if answer.usage.input_tokens and not answer.usage.is_estimated:
            self._measured = (len(self._entries) + 1, answer.usage.input_tokens + answer.usage.output_tokens)
        message = answer.message
        if answer.status == "partial":
            # Partial reasoning has no signature, and providers that sign reasoning accept it complete or not at all.
            message = AssistantMessage(answer.text, answer.calls)
        self._entries.append((event.turn, message))
        self._ids.update(dict.fromkeys(call.id for call in answer.calls))
        self._calls = OpenCalls(event.turn, {call.id: call for call in answer.calls}) if answer.calls else NO_CALLS
        if isinstance(data, RequestCancelled) and data.reason == "steer" and answer.text:
            self._opening += ("Your answer was cut off here.",)
            self._is_cut = True

    def _end_child(self, event: Event, data: ChildFinished) -> None:
        if self.turn is not None and self.turn.id == event.turn:
            self.turn = replace(self.turn, usage=self.turn.usage + data.usage)

    def _reject_output(self, event: Event, data: OutputRejected) -> None:
        self.add_user(event.turn, UserMessage.of(data.message))

    def _start_call(self, _: Event, data: ToolStarted) -> None:
        if self._calls.is_open(data.call_id):
            self._calls = replace(self._calls, started=self._calls.started | {data.call_id})

    def _end_call(self, _: Event, data: ToolFinished) -> None:
        outcome, calls = data.outcome, self._calls
        if not calls.is_open(outcome.call_id):
            return  # check() keeps these out of the log
        calls = replace(
            calls,
            results={**calls.results, outcome.call_id: outcome.to_message()},
            is_broken=calls.is_broken or outcome.status != "completed",
        )
        if calls.missing:
            self._calls = calls
            return
        self._calls = NO_CALLS
        self._opening += tuple(_ANSWERED.format(text) for text in calls.unreported())
        self._entries += [(calls.turn, message) for message in calls.messages()]

    def _end_call_late(self, event: Event, data: ToolFinishedLate) -> None:
        note = data.outcome.late_note()
        if note and event.turn not in self._rolled_back:
            self._late += ((event.turn, note),)

    def _start_question(self, _: Event, data: QuestionAsked) -> None:
        if self._calls is not NO_CALLS:
            self._asking |= {data.id}

    def _end_question(self, _: Event, data: QuestionAnswered) -> None:
        is_of_call = data.id in self._asking
        self._asking -= {data.id}
        if data.withdrawn or not is_of_call:
            return
        text = clean_text(str(data.value)) or "(a message without text)"
        if self._calls is not NO_CALLS:
            self._calls = replace(self._calls, answered=(*self._calls.answered, text))
        else:  # the call was stopped, and its result written, just before
            self._opening += (_ANSWERED.format(text),)

    def _compact(self, event: Event, data: ContextCompacted) -> None:
        self._count_summary(event, data)
        self._prefixes.append(CompactedPrefix.of(data, self._entries))
        self._measured = (0, 0)

    def _count_summary(self, event: Event, data: ContextCompacted | SummaryDiscarded) -> None:
        if self.turn is not None and event.turn:
            self.turn = replace(self.turn, usage=self.turn.usage + data.usage)

    # -- sealing -----------------------------------------------------------------------------------------------------

    def closing(self, reason: str, detail: str, now: float) -> list[EventData]:
        """The events that must precede the end of the open turn: the text so far, and a result for every open call.

        A call that had started is reported as abandoned, since its effects are unknown; any other as not started.
        """
        closing: list[EventData] = []
        request = self._request
        if request is not None:
            started, answer = request.started, request.answer.answer()
            # What the provider may have said is lost. Nor is the rest of the request known here.
            sent = ModelRequest([message for _, message in self._entries])
            answer = replace(answer, usage=complete_usage(sent, answer))
            closing.append(RequestCancelled(started.model, started.attempt, reason, detail, answer))
        for call in self._calls.without_result():
            is_started = call.id in self._calls.started
            outcome = ToolOutcome(
                call_id=call.id,
                name=call.name,
                status="abandoned" if is_started else "not_started",
                reason=reason,
                detail=detail,
                ended_at=now,
                stop_steps=["abandoned"] if is_started else [],
            )
            closing.append(ToolFinished(outcome))
        return closing


# By class: every event goes through here, and isinstance costs more.
_HANDLERS: Final[dict[type, Any]] = {
    TurnStarted: History._start_turn,
    TurnStopping: History._note_stop,
    TurnFinished: History._finish_turn,
    TurnRolledBack: History._roll_back,
    RequestStarted: History._start_request,
    RequestFinished: History._end_request,
    RequestCancelled: History._end_request,
    OutputRejected: History._reject_output,
    ChildFinished: History._end_child,
    ToolStarted: History._start_call,
    ToolFinished: History._end_call,
    ToolFinishedLate: History._end_call_late,
    QuestionAsked: History._start_question,
    QuestionAnswered: History._end_question,
    ContextCompacted: History._compact,
    SummaryDiscarded: History._count_summary,
}
