"""What a session's events mean to somebody who watches: what runs now, what is asked, and what is to be said of it.

It only hears and remembers. What has been finished is put into `shown`, once, in order; the rest is how things stand.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from halter.cli.chat import words
from halter.cli.chat.blocks import Answer, Block
from halter.cli.chat.words import Said
from halter.events import (
    ChildFinished,
    ChildStarted,
    Event,
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    QuestionAnswered,
    QuestionAsked,
    TurnFinished,
    TurnRolledBack,
    TurnStarted,
    TurnStopping,
)
from halter.models.model import ReasoningDelta, TextDelta, Usage
from halter.models.progress import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
from halter.tools.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ToolCancelling,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    ToolStarted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.tools.outcome import ToolOutcome

__all__ = ["Call", "Prompt", "Shown", "View"]

Shown: TypeAlias = Said | Block
_MANY: Final = 1000  # messages that are remembered for what they said


class Call:
    """A call that runs."""

    __slots__ = ("arguments", "began", "is_cancelling", "name", "progress")

    def __init__(self, name: str, arguments: str, began: float) -> None:
        self.name = name
        self.arguments = arguments
        self.began = began
        self.progress = ""
        self.is_cancelling = False


class Prompt(NamedTuple):
    """Something that a person is asked: to allow a call, or for an answer."""

    id: str
    text: str
    choices: list[str] | None = None
    is_approval: bool = False


class _Letter(NamedTuple):
    text: str
    accepted_at: float


class View:
    """How a session stands, by its events."""

    def __init__(self) -> None:
        self.shown: list[Shown] = []
        self.answer = Answer()
        self.calls: dict[str, Call] = {}
        self.prompts: dict[str, Prompt] = {}  # the oldest first
        self.turn = ""  # the running one
        self.began = 0.0
        self.stopping: TurnStopping | None = None
        self.is_waiting = False  # for the first word of a request
        self.is_thinking = False
        self.tokens = 0
        self.last_turn = ""
        self.last_texts: list[str] = []  # what began the last turn, and steered it
        self._letters: collections.OrderedDict[str, _Letter] = collections.OrderedDict()
        self._broken: list[str] = []
        self._outcomes: list[ToolOutcome] = []
        self._hear: dict[type, Callable[[Any, Event], None]] = {
            MessageAccepted: self._accepted,
            MessageEdited: self._edited,
            MessageApplied: self._applied,
            TurnStarted: self._turn_started,
            TurnStopping: self._turn_stopping,
            TurnFinished: self._turn_finished,
            TurnRolledBack: self._rolled_back,
            RequestStarted: self._request_started,
            TextDelta: self._text,
            ReasoningDelta: self._reasoning,
            RequestRetry: self._retry,
            RequestCancelled: self._request_ended,
            RequestFinished: self._request_ended,
            ToolStarted: self._tool_started,
            ToolProgress: self._tool_progress,
            ToolCancelling: self._tool_cancelling,
            ToolFinished: self._tool_finished,
            ToolFinishedLate: self._tool_late,
            ApprovalAsked: self._approval_asked,
            ApprovalAnswered: self._approval_answered,
            QuestionAsked: self._question_asked,
            QuestionAnswered: self._question_answered,
            ChildStarted: self._child_started,
            ChildFinished: self._child_finished,
        }

    def take(self, event: Event) -> None:
        """Hear of one event."""
        hear = self._hear.get(type(event.data))
        if hear is not None:
            hear(event.data, event)

    def take_shown(self) -> list[Shown]:
        """What has come to stay since the last time."""
        self.shown += self.answer.take_finished()
        shown, self.shown = self.shown, []
        return shown

    @property
    def prompt(self) -> Prompt | None:
        """The oldest question that is open."""
        return next(iter(self.prompts.values()), None)

    @property
    def state(self) -> str:
        """What goes on, in a word or two."""
        if not self.turn:
            return "ready"
        if self.stopping is not None:
            return "stopping"
        if self.prompts:
            return "asks you"
        if self.calls:
            return f"running {words.count(len(self.calls), 'tool')}"
        if self.is_thinking:
            return "thinking"
        return "waiting for the model" if self.is_waiting else "answering"

    def say(self, text: str, tone: str = "dim", lead: str = "") -> None:
        """Have something said, behind what has been heard so far."""
        self._end_answer()
        self.shown.append(Said(text, tone, lead))

    # -- messages and turns ------------------------------------------------------------------------------------------

    def _accepted(self, data: MessageAccepted, event: Event) -> None:
        self._letters[data.id] = _Letter(data.message.text, event.time)
        while len(self._letters) > _MANY:
            self._letters.popitem(last=False)

    def know(self, message_id: str, text: str, accepted_at: float) -> None:
        """Know a message that was accepted before there was anybody to hear."""
        self._letters[message_id] = _Letter(text, accepted_at)

    def _edited(self, data: MessageEdited, event: Event) -> None:
        self._letters[data.id] = _Letter(data.message.text, event.time)

    def _applied(self, data: MessageApplied, event: Event) -> None:
        letter = self._letters.pop(data.id, None)
        text = letter.text if letter is not None else "(a message)"
        self._end_answer()
        self.shown.append(words.of_user(text))
        if data.question:
            self.say("it answered the question", lead="↳ ")
            return
        if event.turn != self.last_turn:
            self.last_turn, self.last_texts = event.turn, []
        self.last_texts.append(text)
        if data.mode == "steer":
            took = event.time - letter.accepted_at if letter is not None else None
            self.shown.append(words.of_steer(self._broken, took))
            self._broken = []

    def _turn_started(self, _data: TurnStarted, event: Event) -> None:
        self.turn, self.began, self.stopping = event.turn, event.time, None
        self._outcomes, self._broken = [], []
        self.is_waiting = True

    def _turn_stopping(self, data: TurnStopping, _event: Event) -> None:
        self.stopping = data

    def _turn_finished(self, data: TurnFinished, _event: Event) -> None:
        self._end_answer()
        said = words.of_turn(data, self._outcomes)
        if said is not None:
            self.shown.append(said)
        self.turn, self.stopping, self.is_waiting, self.is_thinking = "", None, False, False
        self.calls.clear()
        for prompt in self.prompts.values():
            self.say(f"withdrawn: {prompt.text}", lead="? ")
        self.prompts.clear()

    def _rolled_back(self, _data: TurnRolledBack, _event: Event) -> None:
        self.say("the turn was taken out of the conversation", lead="↶ ")

    # -- requests ----------------------------------------------------------------------------------------------------

    def _request_started(self, _data: RequestStarted, _event: Event) -> None:
        self._end_answer()
        self.is_waiting, self.is_thinking = True, False

    def _text(self, data: TextDelta, _event: Event) -> None:
        self.is_waiting = self.is_thinking = False
        self.answer.add(data.text)

    def _reasoning(self, _data: ReasoningDelta, _event: Event) -> None:
        self.is_thinking = True

    def _retry(self, data: RequestRetry, _event: Event) -> None:
        again = "the answer begins again" if data.superseded else "trying again"
        self.say(f"{data.error}; {again} ({data.model}, attempt {data.attempt})", "warn", "! ")

    def _request_ended(self, data: RequestCancelled | RequestFinished, _event: Event) -> None:
        self._end_answer()
        self.is_waiting = self.is_thinking = False
        if isinstance(data, RequestCancelled) and data.reason == "steer":
            self._broken.append("the answer")
        if data.answer is not None:
            self.tokens += _tokens(data.answer.usage)

    def _end_answer(self) -> None:
        self.shown += self.answer.end()

    # -- calls -------------------------------------------------------------------------------------------------------

    def _tool_started(self, data: ToolStarted, event: Event) -> None:
        self._end_answer()
        self.calls[data.call_id] = Call(data.name, words.brief(data.arguments), event.time)

    def _tool_progress(self, data: ToolProgress, _event: Event) -> None:
        call = self.calls.get(data.call_id)
        if call is not None:
            call.progress = data.text

    def _tool_cancelling(self, data: ToolCancelling, _event: Event) -> None:
        call = self.calls.get(data.call_id)
        if call is not None:
            call.is_cancelling = True

    def _tool_finished(self, data: ToolFinished, _event: Event) -> None:
        call = self.calls.pop(data.outcome.call_id, None)
        self._outcomes.append(data.outcome)
        if data.outcome.reason == "steer" and data.outcome.status != "not_started":
            self._broken.append(data.outcome.name)
        self._end_answer()
        self.shown.append(words.of_outcome(data, call.arguments if call is not None else ""))

    def _tool_late(self, data: ToolFinishedLate, _event: Event) -> None:
        self._end_answer()
        self.shown.append(words.of_late_end(data.outcome))

    # -- questions and other agents ----------------------------------------------------------------------------------

    def _approval_asked(self, data: ApprovalAsked, _event: Event) -> None:
        request = data.request
        arguments = ", ".join(f"{name}={value!r}" for name, value in request.arguments.items())
        text = f"Allow {request.tool}({arguments})? {request.reason}"
        self.prompts[request.id] = Prompt(request.id, text, is_approval=True)

    def _approval_answered(self, data: ApprovalAnswered, _event: Event) -> None:
        prompt = self.prompts.pop(data.request_id, None)
        if prompt is None:
            return  # the policy has answered it, and nobody was asked
        how = "allowed" if data.granted else "denied"
        self.say(f"{prompt.text} · {how} ({data.note})", "good" if data.granted else "warn", "? ")

    def _question_asked(self, data: QuestionAsked, _event: Event) -> None:
        self.prompts[data.id] = Prompt(data.id, data.question, data.choices)

    def _question_answered(self, data: QuestionAnswered, _event: Event) -> None:
        prompt = self.prompts.pop(data.id, None)
        if prompt is not None:
            self.say(f"{prompt.text}{' · withdrawn' if data.withdrawn else ''}", "dim", "? ")

    def _child_started(self, data: ChildStarted, _event: Event) -> None:
        self.say(f"{data.agent} has begun with its part", lead="⑂ ")

    def _child_finished(self, data: ChildFinished, _event: Event) -> None:
        why = f" ({data.reason})" if data.reason else ""
        self.say(f"the other agent's part is {data.status}{why}", lead="⑂ ")


def _tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens
