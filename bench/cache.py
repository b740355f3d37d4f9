"""How many bytes of each request the provider has read before: what it can take from its cache.

    python bench/cache.py [TURNS]

A session talks over each API to a server on this machine: turns with a tool call, one that is stopped in the middle,
one that is steered, a request that fails and is made again. Counted is what the model reads, in the order in which
providers read it (tools, instructions, conversation) and without cache marks, from the first byte to the first one that
differs from the request before. No provider is asked: what a real one takes from its cache is in `Usage.cached_tokens`.

Goal: each request begins with the whole one before it; only the punctuation that closed it may differ.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import asyncio
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.measure import Goals, print_table
from halter import Agent, tool
from halter.models import AnthropicModel, Backoff, GeminiModel, OpenAIModel, OpenAIResponsesModel, ToolCall
from halter.testing import FakeProvider, answer, hang_mid_stream, status, tool_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.models.http.wire import HTTPModel

TURNS = 20
CLOSING = 3
"""Bytes that close the last message of a request, where the next one goes on: `"},` or `]},`."""
INSTRUCTIONS = "You look things up, and answer in one sentence. " * 20
WIRES: dict[str, Callable[[str], HTTPModel]] = {
    "OpenAI, chat completions": lambda url: OpenAIModel("m", base_url=f"{url}/v1", api_key="k"),
    "OpenAI, responses": lambda url: OpenAIResponsesModel("m", base_url=f"{url}/v1", api_key="k"),
    "Anthropic": lambda url: AnthropicModel("m", base_url=url, api_key="k"),
    "Gemini": lambda url: GeminiModel("m", base_url=url, api_key="k"),
}


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: " + "what is known about it. " * 40


def prompt(body: dict[str, Any]) -> str:
    """What the model reads of a request, in the order in which providers read it, without cache marks."""
    keys = ("tools", "system", "systemInstruction", "instructions", "messages", "input", "contents")
    return "".join(_flat(_without_marks(body[key])) for key in keys if key in body)


def _flat(value: object) -> str:
    """JSON; a list without its brackets, since a longer one goes on where it ended."""
    return ",".join(json.dumps(each) for each in value) + "," if isinstance(value, list) else json.dumps(value)


def _without_marks(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_marks(each) for key, each in value.items() if key != "cache_control"}
    return [_without_marks(each) for each in value] if isinstance(value, list) else value


def shared_bytes(bodies: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """For each request but the first: bytes of the one before, of this one, and of what both begin with."""
    texts = [prompt(body) for body in bodies]
    return [(len(one), len(other), _common(one, other)) for one, other in pairwise(texts)]


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginnings."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


async def talk(make: Callable[[str], HTTPModel], turns: int) -> list[dict[str, Any]]:
    """Talk for some turns; returns the bodies of the requests."""
    async with FakeProvider() as provider:
        agent = Agent(make(provider.url), [look_up], INSTRUCTIONS)
        agent.backoff = Backoff(base=0.001)
        with agent.session() as session:
            for turn in range(turns):
                call = ToolCall(f"c{turn}", "look_up", json.dumps({"word": f"word {turn}"}))
                begun = len(provider.requests)
                kind = turn % 4
                if kind == 0:
                    provider.script(tool_calls([call], text="Let me see."), answer("This is it. " * 10))
                elif kind == 1:
                    provider.script(status(500), answer("After all. " * 10))
                else:
                    provider.script(hang_mid_stream(2), answer("Then so. " * 10))
                task = asyncio.ensure_future(session.arun(f"Question {turn}. " * 5))
                if kind > 1:
                    await provider.await_pieces(2, request=begun + 1)
                    await (session.astop() if kind == 2 else session.apost("Shorter.", mode="steer"))
                await task
                if kind == 2:
                    await session.arun("Go on.")
        return [request.body for request in provider.requests]


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    goals = Goals()
    rows = []
    for name, make in WIRES.items():
        pairs = shared_bytes(asyncio.run(talk(make, turns)))
        sent, shared = sum(new for _, new, _ in pairs), sum(same for _, _, same in pairs)
        lost = max(old - same for old, _, same in pairs)
        rows.append([name, f"{len(pairs) + 1}", f"{sent:,}", f"{shared:,}", f"{shared / sent:.1%}", f"{lost}"])
        goals.check(f"{name}: each request begins with the one before", is_met=lost <= CLOSING)
    print_table(
        f"Bytes that requests share with the one before, {turns} turns",
        ["", "requests", "bytes sent", "shared", "share", "most lost"],
        rows,
    )
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
