"""The conversation as models are told of it: a projection of the log that can be sent to any provider at any instant.

The rules that providers have, and that hold here between any two events:

- Each call of an assistant's message has exactly one result, right behind that message, in the order of the calls.
  While calls run, whoever reads the history finds a placeholder for their results. `check()` refuses, before anything
  is written, a second result for one call, and anything else between a message and its results.
- The identifiers of calls are never used twice, even if the model does so: `with_fresh_ids()`.
- No message is empty, and a conversation that is to be sent ends with the user's word or with results.

What the model is told about stops, beside the results of the calls: one short line in brackets, as the first part of
the next message of the user. The same for a call that was abandoned and has ended since: at the start of the next turn,
once. And for what the user has answered to a question of a call that was stopped before it could pass that on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from halter.events import (
    EventData,
    MessageApplied,
    TurnFinished,
    TurnRolledBack,
    TurnStarted,
    TurnStatus,
    TurnStopping,
)
from halter.models.answer import Answer
from halter.models.model import (
    AssistantMessage,
    Message,
    Part,
    Text,
    TextDelta,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from halter.models.progress import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
from halter.tools.events import ToolFinished, ToolFinishedLate, ToolStarted
from halter.tools.outcome import ToolOutcome, because

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halter.events import Event

__all__ = ["History", "PastTurn"]

_RUNNING: Final = "This call is still running."
_GO_ON: Final = "Go on from where you were."
_AFTER_RESULTS: Final = frozenset({MessageApplied, RequestStarted})
_OF_TURNS: Final = frozenset({TurnStarted, TurnStopping, TurnFinished, TurnRolledBack})


class PastTurn(msgspec.Struct):
    """What the log says of a turn."""

    id: str
    status: TurnStatus = "running"
    reason: str = ""
    detail: str = ""
    error: str = ""
    text: str = ""
    usage: Usage = Usage()
    stopping: TurnStopping | None = None
    notes: list[str] = []  # what it was told at its start


class History:
    """Takes events in the order of the log. One writer at a time.

    Reading is safe from any thread and from a signal handler, also in the middle of a change: what is shown is replaced
    as a whole, when the change is done.
    """

    __slots__ = ("_batch", "_entries", "_ids", "_late", "_opening", "_past", "_shown", "_words", "last", "turn")

    def __init__(self) -> None:
        self.turn: PastTurn | None = None  # the one that is open
        self.last: PastTurn | None = None  # the newest that is finished and part of the conversation
        self._past: list[PastTurn] = []  # those before it that are, too
        self._entries: list[tuple[str, Message]] = []
        self._batch = _NO_CALLS
        self._shown = (self._entries, 0, self._batch)  # the entries, how many of them, and what follows them
        self._ids: dict[str, None] = {}  # those of all calls; a set takes more room while it is empty
        self._words = _Words()
        self._opening: list[str] = []  # notes for the next message of the user
        self._late: list[str] = []  # notes for the start of the next turn

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, valid as it stands."""
        entries, count, batch = self._shown
        return [message for _, message in entries[:count]] + batch.results()

    @property
    def text(self) -> str:
        """The words of the answer that is just being given, or of the last one in the open or the last turn."""
        turn = self.turn or self.last
        return self._words.text or (turn.text if turn is not None else "")

    @property
    def can_go_on(self) -> bool:
        """Whether the last turn was broken off, so that there is something to go on with."""
        return self.last is not None and self.last.status != "done"

    @property
    def open_request(self) -> int:
        """The number of the event with which the request began that has not ended; 0 if there is none."""
        return self._words.seq if self._words.request is not None else 0

    def is_open(self, turn: str) -> bool:
        """Whether this turn runs, as far as the log knows."""
        return self.turn is not None and self.turn.id == turn

    # -- what may be appended ----------------------------------------------------------------------------------------

    def ends_with(self, turn: str) -> bool:
        """Whether this turn is the newest that is finished and part of the conversation."""
        return self.last is not None and self.last.id == turn

    def check(self, data: Iterable[EventData]) -> None:
        """Refuse what would make the history invalid: a defect of ours, found before it is written."""
        answered: set[str] = set()
        for each in data:  # told apart by class, here and below: isinstance costs more, and a stop waits for this
            if type(each) is ToolFinished:
                call = each.outcome.call_id
                if call in answered or not self._batch.is_open(call):
                    msg = f"call {call!r} has its result already, or was never asked for"
                    raise AssertionError(msg)
                answered.add(call)
            elif type(each) is MessageApplied and each.question:
                continue  # it goes to a tool, and is no message of its own
            elif type(each) in _AFTER_RESULTS and len(answered) < self._batch.missing:
                msg = f"{type(each).__name__} while calls have no results yet"
                raise AssertionError(msg)

    def with_fresh_ids(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """The same calls, with new identifiers for those that are empty or were used before."""
        here: set[str] = set()
        fresh = []
        for call in calls:
            name, number = call.id, 1
            while not name or name in here or name in self._ids:
                number += 1
                name = f"{call.id or 'call'}-{number}"
            here.add(name)
            fresh.append(call if name == call.id else ToolCall(name, call.name, call.arguments))
        return fresh

    # -- taking events -----------------------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Add one event of the log. Messages of the user come by `add_user()`, for their text is in the inbox."""
        data = event.data
        if type(data) in _OF_TURNS:
            self._take_turn(event.turn, data)
        elif type(data) is TextDelta:
            self._words.add(data.text)
        elif type(data) is RequestStarted:
            self._words.start(event.seq, data)
        elif type(data) is RequestRetry:
            self._words.is_superseded = True
        elif type(data) is RequestFinished or type(data) is RequestCancelled:
            self._end_request(event.turn, data)
        else:
            self._take_tool(data)
        self._show()

    def _show(self) -> None:
        self._shown = (self._entries, len(self._entries), self._batch)

    def _take_tool(self, data: EventData) -> None:
        if type(data) is ToolStarted:
            if self._batch.is_open(data.call_id):
                self._batch.started.add(data.call_id)
        elif type(data) is ToolFinished:
            self._end_call(data.outcome)
        elif type(data) is ToolFinishedLate:
            self._late += filter(None, [data.outcome.late_note()])

    def _take_turn(self, turn: str, data: EventData) -> None:
        if type(data) is TurnStarted:
            self._start_turn(turn, data)
        elif type(data) is TurnStopping:
            if self.turn is not None:
                self.turn.stopping = data
        elif type(data) is TurnFinished:
            self._finish_turn(turn, data)
        else:
            self._roll_back(turn)

    def add_user(self, turn: str, message: UserMessage) -> None:
        """Add a message of the user, behind what the model has to be told."""
        notes: list[Part] = [Text(f"[{note}]") for note in self._opening]
        self._opening = []
        self._entries.append((turn, UserMessage([*notes, *message.parts])))
        self._show()

    def add_answer(self, message: UserMessage) -> None:
        """Note what the user has answered to the question of a call that runs; its result will tell the model."""
        if self._batch is not _NO_CALLS:
            self._batch.heard.append(message.text or "(a message without text)")

    def _start_turn(self, turn: str, data: TurnStarted) -> None:
        self._opening += self._late
        self.turn = PastTurn(turn, notes=list(self._opening))
        self._words = _Words()
        self._late = []
        if data.continues and (self._opening or not self._ends_with_results()):
            self.add_user(turn, UserMessage.of(_GO_ON))

    def _ends_with_results(self) -> bool:
        return bool(self._entries) and isinstance(self._entries[-1][1], ToolMessage | UserMessage)

    def _finish_turn(self, turn: str, data: TurnFinished) -> None:
        past = self.turn if self.turn is not None else PastTurn(turn)
        past.status, past.reason, past.detail = data.status, data.reason, data.detail
        past.error, past.usage = data.error, data.usage
        self.turn = None
        if self.last is not None:
            self._past.append(self.last)
        self.last = past
        if past.status == "interrupted" and past.reason != "pause":
            self._opening.append(f"The previous turn was stopped {because(past.reason)} before it was done.")
        elif past.status == "failed":
            self._opening.append("The previous turn ended early, because of an error or a limit.")

    def _roll_back(self, turn: str) -> None:
        self._entries = [entry for entry in self._entries if entry[0] != turn]
        self._past = [past for past in self._past if past.id != turn]
        if self.last is not None and self.last.id == turn:
            # What it was told is gone with it and is told again. What was to be said about itself is not.
            self._opening = self.last.notes
            self.last = self._past.pop() if self._past else None

    def _end_request(self, turn: str, data: RequestFinished | RequestCancelled) -> None:
        self._words = _Words()
        answer = data.answer
        if answer is None or not (answer.text or answer.calls):
            return
        if self.turn is not None and answer.text:
            self.turn.text = answer.text
        message = answer.message
        if answer.status == "partial":
            # Half a thought has no signature, and those who sign want it whole or not at all.
            message = AssistantMessage(answer.text, answer.calls)
        self._entries.append((turn, message))
        self._ids.update(dict.fromkeys(call.id for call in answer.calls))
        self._batch = _Batch(turn, answer.calls) if answer.calls else _NO_CALLS
        if isinstance(data, RequestCancelled) and data.reason == "steer" and answer.text:
            self._opening.append("Your answer was cut off here by this message.")

    def _end_call(self, outcome: ToolOutcome) -> None:
        batch = self._batch
        if not batch.is_open(outcome.call_id):
            return  # check() lets none of these into the log
        batch.answers[outcome.call_id] = outcome.to_message()
        batch.is_broken = batch.is_broken or outcome.status != "completed"
        if not batch.missing:
            self._batch = _NO_CALLS
            self._opening += [f"The user had answered a question of a tool: {text}" for text in batch.untold()]
            self._entries += [(batch.turn, message) for message in batch.results()]

    # -- sealing -----------------------------------------------------------------------------------------------------

    def closing(self, reason: str, detail: str, now: float) -> list[EventData]:
        """What has to be written before the open turn can be finished: the words so far, and a result for every call.

        A call that had started is abandoned: nobody knows what it did. One that had not, was not started.
        """
        closing: list[EventData] = []
        words = self._words
        if words.request is not None:
            request = words.request
            answer = Answer(text=words.text, model=request.model, attempts=request.attempt)
            closing.append(RequestCancelled(request.model, request.attempt, reason, detail, answer))
        for call in self._batch.open_calls():
            started = call.id in self._batch.started
            outcome = ToolOutcome(
                call_id=call.id,
                name=call.name,
                status="abandoned" if started else "not_started",
                reason=reason,
                detail=detail,
                ended_at=now,
                rungs=["abandoned"] if started else [],
            )
            closing.append(ToolFinished(outcome))
        return closing


class _Batch:
    """The calls of the newest message of the assistant that are not all answered yet."""

    __slots__ = ("answers", "calls", "heard", "is_broken", "started", "turn")

    def __init__(self, turn: str = "", calls: Sequence[ToolCall] = ()) -> None:
        self.turn = turn
        self.calls = {call.id: call for call in calls}
        self.answers: dict[str, ToolMessage] = {}
        self.started: set[str] = set()
        self.heard: list[str] = []  # what the user has answered to the questions of these calls, by messages
        self.is_broken = False  # one of them did not come to its own end

    @property
    def missing(self) -> int:
        return len(self.calls) - len(self.answers)

    def untold(self) -> list[str]:
        """What the user has answered, and no result tells: the call that has asked was stopped before it could."""
        if not self.is_broken:
            return []
        results = [message.text for message in self.answers.values()]
        return [text for text in self.heard if not any(text in result for result in results)]

    def is_open(self, call: str) -> bool:
        return call in self.calls and call not in self.answers

    def open_calls(self) -> list[ToolCall]:
        return [call for call in self.calls.values() if call.id not in self.answers]

    def results(self) -> list[Message]:
        return [self.answers.get(call.id) or ToolMessage.of(call, _RUNNING) for call in self.calls.values()]


_NO_CALLS: Final = _Batch()  # shared, and never changed: only open calls are


class _Words:
    """What the open request has said so far."""

    __slots__ = ("_pieces", "is_superseded", "request", "seq")

    def __init__(self) -> None:
        self.request: RequestStarted | None = None
        self.seq = 0
        self.is_superseded = False  # a retry was announced: the next word replaces what there is
        self._pieces: list[str] = []

    def start(self, seq: int, request: RequestStarted) -> None:
        """Begin an attempt; the first one begins the request."""
        if request.attempt == 1:
            self._pieces = []
            self.is_superseded = False
            self.seq = seq
        self.request = request

    def add(self, text: str) -> None:
        if self.is_superseded:
            self._pieces = []
            self.is_superseded = False
        self._pieces.append(text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)
