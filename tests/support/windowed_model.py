"""A model with a small context: it refuses what is longer, as providers do, and can write notes and remember facts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable

import msgspec

from halter.models import (
    ContextTooLong,
    Finished,
    Message,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolCallDone,
    ToolCallStarted,
    ToolMessage,
    Usage,
    UserMessage,
)
from tests.support.valid_history import judge_request

STEPS = re.compile(r"in (\d+) steps")
FACT = re.compile(r"fact-\d+ is \w+")
_CHARACTERS_PER_TOKEN = 4


class WindowedModel:
    """Calls `look` as often as the user's message has that word, and "in N steps" one after the other.

    Otherwise it tells the facts that it can see. `write_note` makes the note from the prompt for it; what it raises is
    the error of that request.
    """

    max_retries = 0

    def __init__(
        self,
        window: int = 8192,
        *,
        context_window: int | None = None,
        write_note: Callable[[str], str] | None = None,
        counts: bool = True,
        calls: int = 0,
    ) -> None:
        self.name = "windowed"
        self.context_window = context_window
        self.requests: list[ModelRequest] = []
        self.notes: list[ModelRequest] = []
        self.refused = 0
        self.complaint = f"This model's maximum context length is {window} tokens"
        self.read = 0  # tokens, of all requests
        self.calls = calls  # made so far: their ids
        self.steps = self._now = 0
        self._window = window
        self._write_note = write_note or keep_facts
        self._counts = counts

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        judge_request(request)
        is_note = request.instructions.startswith("You write the note")
        (self.notes if is_note else self.requests).append(request)
        size = tokens_of(request)
        self.read += size
        if size > self._window:
            self.refused += 1
            raise ContextTooLong(self.complaint, status=400)
        last = request.messages[-1]
        if is_note:
            yield TextDelta(self._write_note(last.text))
        elif wanted := self._wanted(last):
            for index in range(wanted):
                self.calls += 1
                call = ToolCall(f"call-{self.calls}", "look", f'{{"number": {self.calls}}}')
                yield ToolCallStarted(index, call.id, call.name)
                yield ToolCallDone(index, call)
        elif isinstance(last, ToolMessage):
            yield TextDelta("I have looked.")
        else:
            yield TextDelta(", ".join(sorted(set(FACT.findall(text_of(request))))) or "I know nothing.")
        if self._counts:
            yield Usage(input_tokens=size, output_tokens=20)
        yield Finished("stop")

    def _wanted(self, last: Message) -> int:
        """How many calls to make now."""
        if isinstance(last, UserMessage):
            found = STEPS.search(last.text)
            self.steps = int(found.group(1)) if found else 1
            self._now = last.text.count("look")
        self.steps -= 1
        return self._now if self.steps >= 0 else 0


def keep_facts(prompt: str) -> str:
    """A note with the facts of the conversation and of the earlier note."""
    facts = "\n".join(sorted(set(FACT.findall(prompt))))
    return f"## Goal\nTo look at things.\n## Decisions\n{facts}\n## Files\nnone\n## Open points\nnone"


def tokens_of(request: ModelRequest) -> int:
    """How this model counts: differently from our estimate, as real ones do."""
    return len(msgspec.json.encode(request)) // _CHARACTERS_PER_TOKEN


def text_of(request: ModelRequest) -> str:
    return msgspec.json.encode(request.messages).decode()
