"""The provider of the soak: replies by chance, most of them good, and a strict judge of every request."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING

from bench.soak_tools import NAMES
from halter.models import ToolCall
from halter.testing import (
    FakeProvider,
    answer,
    drop,
    hang_before_first_byte,
    hang_mid_stream,
    raw,
    slow_stream,
    status,
    tool_calls,
)
from tests.support.valid_history import judge_anthropic, judge_openai

if TYPE_CHECKING:
    from halter.testing import ScriptedReply, SeenRequest

_WITHOUT = {"asks", "asks_blocking", "fails", "delegates"}  # arguments
_SECONDS = (0.0, 0.0, 0.01, 0.05, 0.3, 1.0)


class SoakProvider:
    """A `FakeProvider` that both wires can use. `refused` has what a strict provider would not have taken."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._seen: Counter[str] = Counter()  # what was asked, and how often: a retry gets another reply
        self._lock = threading.Lock()
        self.requests = 0
        self.refused: list[str] = []
        self.is_kind = False  # then it only answers, and at once
        self.server = FakeProvider(default=self._reply)

    def _reply(self, request: SeenRequest) -> ScriptedReply:
        with self._lock:
            self.requests += 1
            messages = request.body["messages"]
            request.body |= {"messages": [], "tools": []}  # the server keeps every request
            try:
                _judge(messages, is_openai="chat/completions" in request.path)
            except AssertionError as error:
                self.refused.append(f"a request that providers refuse: {error}\n{json.dumps(messages)[-3000:]}")
            if self.is_kind:
                return answer("All right.")
            last = str(messages[-1])
            self._seen[last] += 1
            chance = random.Random(f"{self._seed} {self._seen[last]} {last}")
            has_results = "tool_result" in last or messages[-1]["role"] == "tool"
            return _draw(chance, tools=0.25 if has_results else 0.5)


def _draw(chance: random.Random, tools: float) -> ScriptedReply:
    if chance.random() < tools:
        calls = [_call(chance) for _ in range(chance.choice((1, 1, 1, 2, 3, 5)))]
        return tool_calls(calls, text=chance.choice(("", "Let me see. ")))
    return chance.choices(
        [
            answer("A short answer.", reasoning=chance.choice(("", "Let me think."))),
            answer("A longer answer, in many words. " * 4, interval=0.005),
            slow_stream(0.02, chunks=chance.randrange(5, 60)),
            answer("After a while.", delay=chance.choice((0.05, 0.5))),
            answer("Cut at the limit of its length, in the mid", finish="length"),
            hang_before_first_byte(),
            hang_mid_stream(chance.randrange(1, 4)),
            drop(chance.randrange(4)),
            status(429, retry_after=0.05),
            status(500),
            status(400),
            raw(b"data: {broken\n\n", b"\xff\xfe\x00"),
            raw(b"<html>not what you think</html>", content_type="text/html"),
            answer(" \n "),
        ],
        weights=(30, 15, 15, 8, 3, 3, 3, 4, 5, 3, 1, 2, 1, 2),
    )[0]


def _call(chance: random.Random) -> ToolCall:
    """Models use identifiers again, invent tools, and write what is not JSON."""
    name = chance.choices([chance.choice(NAMES), "unknown", "functions.deaf"], weights=(30, 1, 1))[0]
    arguments = "{}" if name in _WITHOUT else json.dumps({"seconds": chance.choice(_SECONDS)})
    written = chance.choices([arguments, "{not json"], weights=(30, 1))[0]
    return ToolCall(f"call_{chance.randrange(4)}", name, written)


def _judge(messages: list[dict[str, object]], *, is_openai: bool) -> None:
    assert messages[-1]["role"] in {"user", "tool"}, f"the last message is the model's own: {messages[-1]}"
    if is_openai:
        judge_openai(messages)
    else:
        judge_anthropic(messages)
