"""What a turn costs after 10, 100, 1,000 and 10,000 earlier turns, on a context window of 8,192 tokens.

    python bench/context.py [--turns 10000] [--sample 60]

The model runs in this process: it writes the body of each request as OpenAI's API wants it, and answers in one piece.
Bare is that alone, with the very same messages. What is printed is the time of a turn, of bare, and the difference: the
log, the inbox, the history; medians over *sample* turns from there on, a part of which compact. The goals: what is
beyond bare stays flat, and the body does not grow beyond the window. A session without compaction is there to compare.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import gc
import os
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from bench.measure import Goals, print_table
from halter import Agent
from halter.models import Finished, ModelEvent, ModelRequest, OpenAIModel, TextDelta, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from halter.session.session import Session

_WINDOW = 8_192
_BYTES_PER_TOKEN = 4
_NOTE = "## Goal\nTo ask questions.\n## Decisions\nnone\n## Files\nnone\n## Open points\nnone"
_ANSWER = "An answer of a line or so, from a model that has not much to say. " * 3
_MOST = 2.0  # times what is beyond bare after ten turns
_WITHOUT = 1_000  # turns of the session without compaction


class Writer:
    """A model that writes the body of a request, counts its tokens, and answers."""

    name = "writer"
    context_window = _WINDOW

    def __init__(self) -> None:
        self._wire = OpenAIModel("writer", api_key="none")
        self.size = 0  # bytes of the last body

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.size = len(msgspec.json.encode(self._wire.body(request)))
        yield TextDelta(_NOTE if request.instructions else _ANSWER)
        yield Usage(self.size // _BYTES_PER_TOKEN, len(_ANSWER) // _BYTES_PER_TOKEN)
        yield Finished("stop")


class Sample(NamedTuple):
    """Milliseconds of a turn and of bare, of one beyond the other, and the largest body in bytes."""

    turn: float
    bare: float
    beyond: float
    body: int


async def sample(session: Session, model: Writer, turns: int) -> Sample:
    """Take some turns, and what each has sent once more, bare."""
    ours: list[float] = []
    bare: list[float] = []
    body = 0
    for number in range(turns):
        gc.collect(0)
        start = time.perf_counter()
        await session.arun(f"Question number {number:06}, which is of some length, too.")
        ours.append((time.perf_counter() - start) * 1e3)
        body = max(body, model.size)
        request = ModelRequest(session.history[:-1])
        start = time.perf_counter()
        async for _ in model.stream(request):
            pass
        bare.append((time.perf_counter() - start) * 1e3)
    beyond = [one - other for one, other in zip(ours, bare, strict=True)]
    return Sample(statistics.median(ours), statistics.median(bare), statistics.median(beyond), body)


async def measure(at: list[int], turns: int, **options: object) -> list[Sample]:
    """Take samples after these numbers of turns, in one session."""
    model = Writer()
    samples = []
    async with Agent(model, **options).session() as session:  # type: ignore[arg-type]
        taken = 0
        for number in at:
            while taken < number:
                taken += 1
                await session.arun(f"Question number {taken:06}, which is of some length, too.")
            samples.append(await sample(session, model, turns))
            taken += turns
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=60)
    options = parser.parse_args()
    at = [number for number in (10, 100, 1_000, 10_000) if number <= options.turns]
    without = [number for number in at if number <= _WITHOUT]
    load = os.getloadavg()[0]

    async def both() -> tuple[list[Sample], list[Sample]]:
        return await measure(at, options.sample), await measure(without, options.sample, compaction=None)

    compacted, whole = asyncio.run(both())
    rows = [
        [f"{name}, after {number:,}", *(f"{each:.2f}" for each in taken[:3]), f"{taken.body / 1024:.0f} kB"]
        for name, numbers, samples in (("compacted", at, compacted), ("compaction=None", without, whole))
        for number, taken in zip(numbers, samples, strict=True)
    ]
    print_table(
        f"A turn after so many others, in ms: medians of {options.sample}; Python {sys.version.split()[0]}",
        ["", "turn", "bare", "beyond bare", "largest body"],
        rows,
    )
    goals = Goals()
    for number, each in zip(at[1:], compacted[1:], strict=True):
        goals.at_most(f"beyond bare after {number:,} turns", each.beyond / compacted[0].beyond, _MOST)
    body = max(each.body for each in compacted)
    goals.at_most("the largest body, of the window", body / (_WINDOW * _BYTES_PER_TOKEN), 1.0)
    print(f"\nOn {os.cpu_count()} cores; load {load:.1f} before and {os.getloadavg()[0]:.1f} after.")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
