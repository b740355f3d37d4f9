"""The state of a session as it is shown to users, computed from its events: one reducer for every interface.

    display = SessionDisplay()
    for event in session.events():
        display.apply(event)
    display.state           # "idle", "running", "needs you" or "stopping"
    display.turns[-1].text  # the answer so far

`apply()` returns the item that the event has added or changed, so that a face can draw just that. The page has the same
reducer in JavaScript (`gateway/web/session_view.js`); both pass `tests/views/fixture.json`.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from halter.events import EventData
from halter.models.types import Audio, Usage
from halter.views.items import (
    CallItem,
    ChildItem,
    CompactionItem,
    Item,
    MessageItem,
    Question,
    QueuedMessage,
    ReasoningItem,
    RetryItem,
    TextItem,
    TurnDisplay,
)

if TYPE_CHECKING:
    from halter.events import (
        ChildFinished,
        ChildProgress,
        ChildStarted,
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
        SessionCreated,
        SummaryDiscarded,
        TurnFinished,
        TurnRolledBack,
        TurnStarted,
        TurnStopping,
    )
    from halter.events.requests import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
    from halter.events.tools import (
        ApprovalAnswered,
        ApprovalAsked,
        ToolCancelling,
        ToolFinished,
        ToolFinishedLate,
        ToolProgress,
        ToolStarted,
    )
    from halter.models.answer import Answer
    from halter.models.types import ReasoningDelta, TextDelta, UserMessage
    from halter.session.inbox import InboxMessage
    from halter.tools.outcome import ToolOutcome

__all__ = ["SessionDisplay", "Shown", "State"]

State: TypeAlias = Literal["idle", "running", "needs you", "stopping"]
Shown: TypeAlias = TurnDisplay | Item | QueuedMessage | None
_Handler: TypeAlias = Callable[[Any, Any, float], Shown]
_EXIT: Final = re.compile(r"\[(?:exit code (\d+)|was ended by (\w+))")
_MAX_PROGRESS: Final = 20_000  # characters of a call's progress; the latest are kept


class SessionDisplay:
    """The state of a session. Only `apply()` changes it. Keeps the last *max_turns* turns, or all."""

    def __init__(self, max_turns: int | None = None) -> None:
        self.seq = 0
        self.agent = ""
        self.title = ""  # the text of the first message, or the title that a user has chosen
        self.turns: collections.deque[TurnDisplay] = collections.deque(maxlen=max_turns)
        self.running: TurnDisplay | None = None
        self.queue: dict[str, QueuedMessage] = {}
        self.questions: dict[str, Question] = {}  # that are open, the oldest first
        self._past_usage = Usage()  # of all turns but the running one
        # An event "turn.started" is handled by `_on_turn_started()`, and so on.
        self._handlers: dict[type, _Handler | None] = {
            kind: getattr(self, f"_on_{str(kind.__struct_config__.tag).replace('.', '_')}", None)
            for kind in EventData.__args__
        }

    @property
    def state(self) -> State:
        """The state in one word."""
        if self.running is not None and self.running.stop is not None:
            return "stopping"
        if self.questions:
            return "needs you"
        return "running" if self.running is not None else "idle"

    @property
    def usage(self) -> Usage:
        """The tokens of all turns."""
        return self._past_usage + self.running.usage if self.running is not None else self._past_usage

    @property
    def question(self) -> Question | None:
        """The oldest open question."""
        return next(iter(self.questions.values()), None)

    def apply(self, event: Event) -> Shown:
        """Apply one event; return what it has added or changed, if anything. Earlier events are ignored."""
        handler = self._handlers[type(event.data)]
        if handler is None or event.seq <= self.seq:
            return None
        self.seq = event.seq
        turn = self._turn(event)
        if turn is not None and turn.id == event.turn:
            turn.spans.apply(event)
        return handler(turn, event.data, event.time)

    def expect(self, message: InboxMessage) -> None:
        """Add a message that was accepted before the first event that is applied."""
        queued = QueuedMessage(message.id, message.text, message.mode, message.accepted_at)
        queued.state = "held" if message.state == "held" else "accepted"
        queued.preparing = message.preparing
        self.queue[message.id] = queued

    def _turn(self, event: Event) -> TurnDisplay | None:
        """The turn of an event. Events of background children have none, and are shown with the last turn."""
        last = self.turns[-1] if self.turns else None
        if not event.turn:
            return last
        if last is not None and last.id == event.turn:
            return last
        known = next((turn for turn in self.turns if turn.id == event.turn), None)
        if known is None and not event.kind.startswith(("message.", "session.")):
            known = TurnDisplay(event.turn, event.time, event.session)
            self.turns.append(known)
        return known

    # -- messages ----------------------------------------------------------------------------------------------------

    def _on_session_created(self, _turn: TurnDisplay | None, data: SessionCreated, _at: float) -> None:
        self.agent = data.agent

    def _on_session_changed(self, _turn: TurnDisplay | None, data: SessionChanged, _at: float) -> None:
        self.title = data.title or self.title

    def _on_message_accepted(self, _turn: TurnDisplay | None, data: MessageAccepted, at: float) -> QueuedMessage:
        message = QueuedMessage(data.id, data.message.text, data.mode, at, note=data.note, preparing=data.preparing)
        message.is_voice = bool(data.preparing) or _has_audio(data.message)
        self.title = self.title or message.text
        self.queue[data.id] = message
        return message

    def _on_message_edited(self, _turn: TurnDisplay | None, data: MessageEdited, at: float) -> QueuedMessage:
        message = self.queue.get(data.id)
        if message is None:  # accepted before the first event that was applied
            message = self.queue[data.id] = QueuedMessage(data.id, "", "queue", at)
        if data.prepared:
            message.prepared_seq, message.is_voice = self.seq, True
        message.text, message.preparing = data.message.text, ""
        message.note = data.note or message.note
        self.title = self.title or message.text
        return message

    def _on_message_held(self, _turn: TurnDisplay | None, data: MessageHeld, _at: float) -> QueuedMessage | None:
        message = self.queue.get(data.id)
        if message is not None:
            message.state = "held"
        return message

    def _on_message_released(
        self, _turn: TurnDisplay | None, data: MessageReleased, _at: float
    ) -> QueuedMessage | None:
        message = self.queue.get(data.id)
        if message is not None:
            message.state = "accepted"
        return message

    def _on_message_removed(self, _turn: TurnDisplay | None, data: MessageRemoved, _at: float) -> MessageItem | None:
        """A voice message that only said a stop phrase is removed as soon as it has its text; it is shown anyway."""
        message = self.queue.pop(data.id, None)
        if message is None or message.prepared_seq != self.seq - 1 or not self.turns:
            return None
        item = MessageItem(message.id, message.text, "stop", message.note, is_voice=True)
        self.turns[-1].items.append(item)
        return item

    def _on_message_applied(self, turn: TurnDisplay | None, data: MessageApplied, at: float) -> MessageItem | None:
        message = self.queue.pop(data.id, None)
        if message is None or turn is None:
            return None
        waited = at - message.accepted_at
        item = MessageItem(data.id, message.text, data.mode, data.note or message.note, message.is_voice, waited)
        item.question = data.question
        if data.question:
            asked = next((each for each in turn.items if isinstance(each, Question) and each.id == data.question), None)
            if asked is not None:
                asked.said = message.text
            return item
        turn.end_text()
        if data.mode == "steer":
            item.interrupted, turn.interrupted = turn.interrupted, []
        turn.items.append(item)
        return item

    # -- turns -------------------------------------------------------------------------------------------------------

    def _on_turn_started(self, turn: TurnDisplay, data: TurnStarted, at: float) -> TurnDisplay:
        turn.model, turn.started, turn.phase = data.model, at, "waiting"
        self.running = turn
        return turn

    def _on_turn_stopping(self, turn: TurnDisplay, data: TurnStopping, _at: float) -> TurnDisplay:
        turn.stop = turn.stop or data
        return turn

    def _on_turn_finished(self, turn: TurnDisplay, data: TurnFinished, at: float) -> TurnDisplay:
        turn.end_text()
        turn.status, turn.reason, turn.detail, turn.error = data.status, data.reason, data.detail, data.error
        turn.after, turn.ended, turn.usage, turn.phase = data.after, at, data.usage, ""
        if data.reason == "crash":
            turn.ended = turn.spans.last_seen or turn.started
        for call in turn.calls.values():
            if not call.is_finished:
                call.state = "not_started"
        for question in list(self.questions.values()):
            if question in turn.items or any(call.approval is question for call in turn.calls.values()):
                question.state = "withdrawn"
                del self.questions[question.id]
        self._past_usage += data.usage
        if self.running is turn:
            self.running = None
        return turn

    def _on_turn_rolled_back(self, turn: TurnDisplay, _data: TurnRolledBack, _at: float) -> TurnDisplay:
        turn.is_rolled_back = True
        return turn

    # -- requests ----------------------------------------------------------------------------------------------------

    def _on_request_started(self, turn: TurnDisplay, _data: RequestStarted, _at: float) -> TurnDisplay:
        turn.phase = "waiting"
        return turn

    def _on_text_delta(self, turn: TurnDisplay, data: TextDelta, _at: float) -> TextItem:
        if turn.failed_text is not None:
            turn.failed_text.is_superseded = True
            turn.failed_text = None
        turn.phase = ""
        if turn.open_text is None:
            turn.open_text = TextItem()
            turn.items.append(turn.open_text)
        turn.open_text.chunks.append(data.text)
        return turn.open_text

    def _on_reasoning_delta(self, turn: TurnDisplay, data: ReasoningDelta, _at: float) -> ReasoningItem:
        turn.phase = "thinking"
        if turn.open_reasoning is None:
            turn.open_reasoning = ReasoningItem()
            turn.items.append(turn.open_reasoning)
        turn.open_reasoning.chunks.append(data.text)
        return turn.open_reasoning

    def _on_request_retry(self, turn: TurnDisplay, data: RequestRetry, _at: float) -> RetryItem:
        turn.failed_text = turn.open_text
        turn.end_text()
        turn.phase = "waiting"
        item = RetryItem(data.error, data.model, data.attempt, data.delay, had_text=bool(data.superseded))
        turn.items.append(item)
        return item

    def _on_request_cancelled(self, turn: TurnDisplay, data: RequestCancelled, _at: float) -> TurnDisplay:
        if data.reason == "steer":
            turn.interrupted.append("the answer")
        return _end_request(turn, data.answer)

    def _on_request_finished(self, turn: TurnDisplay, data: RequestFinished, _at: float) -> TurnDisplay:
        for call in data.answer.calls if data.answer is not None else ():
            turn.calls.pop(call.id, None)  # providers may use an id again
            self._call(turn, call.id, call.name).arguments = call.arguments
        return _end_request(turn, data.answer)

    def _on_context_compacted(
        self, turn: TurnDisplay | None, data: ContextCompacted, _at: float
    ) -> CompactionItem | None:
        if turn is None:
            return None
        turn.end_text()
        self._count_summary(turn, data.usage)
        item = CompactionItem(data.how, data.before, data.after)
        turn.items.append(item)
        return item

    def _on_context_summary_discarded(
        self, turn: TurnDisplay | None, data: SummaryDiscarded, _at: float
    ) -> TurnDisplay | None:
        if turn is not None:
            self._count_summary(turn, data.usage)
        return turn

    def _count_summary(self, turn: TurnDisplay, usage: Usage) -> None:
        if turn is self.running:
            turn.usage += usage
        else:
            self._past_usage += usage

    # -- calls -------------------------------------------------------------------------------------------------------

    @staticmethod
    def _call(turn: TurnDisplay, call_id: str, name: str) -> CallItem:
        call = turn.calls.get(call_id)
        if call is None:
            call = turn.calls[call_id] = CallItem(call_id, name)
            turn.items.append(call)
        return call

    def _on_tool_started(self, turn: TurnDisplay, data: ToolStarted, at: float) -> CallItem:
        call = self._call(turn, data.call_id, data.name)
        call.state, call.started, call.arguments = "running", at, data.arguments
        return call

    def _on_tool_progress(self, turn: TurnDisplay, data: ToolProgress, _at: float) -> CallItem:
        call = self._call(turn, data.call_id, data.name)
        if data.is_diff:
            call.diff += data.text
            return call
        between = "" if not call.progress or call.progress.endswith("\n") else "\n"
        call.progress = f"{call.progress}{between}{data.text}"[-_MAX_PROGRESS:]
        return call

    def _on_tool_cancelling(self, turn: TurnDisplay, data: ToolCancelling, _at: float) -> CallItem:
        call = self._call(turn, data.call_id, data.name)
        call.state, call.reason = "stopping", data.reason
        return call

    def _on_tool_finished(self, turn: TurnDisplay, data: ToolFinished, _at: float) -> CallItem:
        outcome = data.outcome
        call = self._call(turn, outcome.call_id, outcome.name)
        call.state, call.reason, call.detail = outcome.status, outcome.reason or "", outcome.detail
        call.started = outcome.started_at if outcome.started_at is not None else call.started
        call.ended, call.after, call.late, call.outcome = outcome.ended_at, data.after, outcome.late, outcome
        call.exit_code = _exit_code(outcome)
        if outcome.reason == "steer" and outcome.status != "not_started":
            turn.interrupted.append(outcome.name)
        return call

    def _on_tool_finished_late(self, turn: TurnDisplay, data: ToolFinishedLate, _at: float) -> CallItem:
        call = self._call(turn, data.outcome.call_id, data.outcome.name)
        call.late = data.outcome.late
        return call

    # -- questions and children --------------------------------------------------------------------------------------

    def _on_approval_asked(self, turn: TurnDisplay | None, data: ApprovalAsked, _at: float) -> Question:
        request = data.request
        question = Question(request.id, "approval", request.reason, tool=request.tool, arguments=request.arguments)
        question.prefixes, question.covers = request.prefixes, request.covers
        self.questions[request.id] = question
        if turn is not None:
            call = self._call(turn, request.call_id, request.tool)
            call.approval, call.state = question, "needs approval"
        return question

    def _on_approval_answered(self, _turn: TurnDisplay, data: ApprovalAnswered, _at: float) -> Question | None:
        question = self._settle(data.request_id, "granted" if data.granted else "denied", data.granted, data.note)
        for call in (call for turn in self.turns for call in turn.calls.values()):
            if question is not None and call.approval is question and call.state == "needs approval":
                call.state = "planned"
        return question

    def _on_question_asked(self, turn: TurnDisplay | None, data: QuestionAsked, _at: float) -> Question:
        question = Question(data.id, "question", data.question, data.choices)
        if turn is not None:
            turn.items.append(question)
        self.questions[data.id] = question
        return question

    def _on_question_answered(self, _turn: TurnDisplay | None, data: QuestionAnswered, _at: float) -> Question | None:
        return self._settle(data.id, "withdrawn" if data.withdrawn else "answered", data.value)

    def _settle(
        self,
        question_id: str,
        state: Literal["granted", "denied", "answered", "withdrawn"],
        value: object,
        note: str = "",
    ) -> Question | None:
        question = self.questions.pop(question_id, None)
        if question is not None:
            question.state, question.value, question.note = state, value, note
        return question

    def _on_child_started(self, turn: TurnDisplay | None, data: ChildStarted, _at: float) -> ChildItem | None:
        if turn is None:
            return None
        item = turn.children[data.session] = ChildItem(data.session, data.agent, data.task)
        turn.items.append(item)
        return item

    def _on_child_progress(self, turn: TurnDisplay | None, data: ChildProgress, _at: float) -> ChildItem | None:
        item = turn.children.get(data.session) if turn is not None else None
        if item is not None:
            item.calls, item.tool, item.arguments = item.calls + 1, data.tool, data.arguments
        return item

    def _on_child_finished(self, _turn: TurnDisplay | None, data: ChildFinished, _at: float) -> ChildItem | None:
        found = (turn.children[data.session] for turn in reversed(self.turns) if data.session in turn.children)
        item = next(found, None)
        if item is not None:
            item.state, item.reason = data.status, data.reason
        return item


def _end_request(turn: TurnDisplay, answer: Answer | None) -> TurnDisplay:
    turn.end_text()
    turn.phase, turn.failed_text = "", None
    if answer is not None:
        turn.usage += answer.usage
    return turn


def _exit_code(outcome: ToolOutcome) -> int | str | None:
    """How a command ended: the last line of the result of the tool `terminal` says so."""
    if outcome.name != "terminal" or not isinstance(outcome.content, str):
        return None
    found = _EXIT.match(outcome.content.rpartition("\n")[2])
    if found is None:
        return None
    return int(found[1]) if found[1] else found[2]


def _has_audio(message: UserMessage) -> bool:
    return any(isinstance(part, Audio) for part in message.parts)
