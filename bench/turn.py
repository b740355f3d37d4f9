"""What a turn costs beyond its request: 500 one-answer turns of one session, beside bare aiohttp with the same bodies.

    python bench/turn.py [--turns 500] [--rounds 3]

The server is a `FakeProvider` in a process of its own. In each round a fresh session of each store goes through all
turns, its history growing by two messages with each; before or after each turn, turn about, bare aiohttp posts the
very body that the turn sends, ready made, and reads the answer to its end. What is printed is ours minus bare's, of
wall time and of the client's CPU time: writing the body, reading the stream, the log, the inbox, the history and the
store.

Flatness is the median of that over the last 50 turns of a session by the median over its first 50. Both have to send,
and the server to read, a body that grows; so bare's own growth is beside it.

Goals: under 0.7 ms for each turn with `MemoryStore`, under 2 ms with `SQLiteStore`, by the medians of wall time.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import contextlib
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
import msgspec

from bench.measure import Goals, print_table
from bench.server import Server
from bench.sqlite import has_sqlite, open_sqlite
from halter import Agent
from halter.models import ModelRequest, OpenAIModel, UserMessage
from halter.stores import MemoryStore
from halter.testing import answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from halter.session.session import Session
    from halter.stores import Store

_MEMORY = "MemoryStore"
_SQLITE = "SQLiteStore"
_GOALS = {_MEMORY: 0.7, _SQLITE: 2.0}  # milliseconds
_BARE = "bare aiohttp"
_MODEL = "turns"
_ANSWER = "An answer of a line or so, as it comes in a few pieces from a model that has not much to say."
_AT_AN_END = 50
_WARM_UP = 20


class Took(NamedTuple):
    """Milliseconds of one turn."""

    wall: float
    cpu: float


async def timed(work: Callable[[], Awaitable[object]]) -> Took:
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return Took((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3)


class Bench:
    """One server, one client, and a session for each store."""

    def __init__(self, server: Server, client: aiohttp.ClientSession) -> None:
        self._model = OpenAIModel(_MODEL, base_url=server.url, api_key="none")
        self._agent = Agent(self._model)
        self._client = client

    async def round(self, stores: dict[str, Store], turns: int) -> dict[str, list[Took]]:
        """Take all turns of one session for each store, and bare's in between."""
        taken: dict[str, list[Took]] = {name: [] for name in (_BARE, *stores)}
        sessions = {name: self._agent.session(store=store) for name, store in stores.items()}
        names = list(taken)
        for number in range(turns):
            text = f"Question number {number:04}, which is of some length, too."
            body = self._body(next(iter(sessions.values())), text)
            works: dict[str, Callable[[], Awaitable[object]]] = {
                name: (lambda session=session, text=text: session.arun(text)) for name, session in sessions.items()
            }
            works[_BARE] = lambda body=body: self._post(body)
            gc.collect(0)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                taken[name].append(await timed(works[name]))
        for session in sessions.values():
            if session.turn is None or session.turn.text != _ANSWER or len(session.history) != 2 * turns:
                msg = f"the session did not get its answers: {session!r}, {session.turn!r}"
                raise SystemExit(msg)
            session.close()
        return taken

    def _body(self, session: Session, text: str) -> bytes:
        """Make the body that a turn with *text* is going to send."""
        return msgspec.json.encode(self._model.body(ModelRequest([*session.history, UserMessage.of(text)])))

    async def _post(self, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        async with self._client.post(self._model.url(), data=body, headers=headers) as response:
            async for _ in response.content:
                pass


async def measure(turns: int, rounds: int) -> list[dict[str, list[Took]]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server({_MODEL: answer(_ANSWER)}))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        async with aiohttp.ClientSession() as client:
            bench = Bench(server, client)

            def open_stores(number: int) -> dict[str, Store]:
                stores: dict[str, Store] = {_MEMORY: MemoryStore()}
                if has_sqlite():
                    stores[_SQLITE] = open_sqlite(folder / f"{number}.db")
                return stores

            await bench.round(open_stores(-1), _WARM_UP)
            return [await bench.round(open_stores(number), turns) for number in range(rounds)]


def beyond(rounds: list[dict[str, list[Took]]], name: str, what: str, part: slice) -> float:
    """The median of ours minus bare's over a part of the turns; of bare's own if that is the name."""
    return statistics.median(
        getattr(took, what) - (getattr(bare, what) if name != _BARE else 0.0)
        for taken in rounds
        for took, bare in zip(taken[name][part], taken[_BARE][part], strict=True)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rounds = asyncio.run(measure(options.turns, options.rounds))
    rows, all_beyond = [], {}
    everything, first, last = slice(None), slice(_AT_AN_END), slice(-_AT_AN_END, None)
    for name in rounds[0]:
        all_beyond[name] = beyond(rounds, name, "wall", everything)
        flat = [beyond(rounds, name, "wall", part) for part in (first, last)]
        rows.append(
            [
                name if name == _BARE else f"{name}, beyond bare",
                f"{all_beyond[name]:.2f}",
                f"{beyond(rounds, name, 'cpu', everything):.2f}",
                *(f"{each:.2f}" for each in flat),
                f"{flat[1] / flat[0]:.2f}x",
            ]
        )
    print_table(
        f"{options.rounds} times {options.turns} turns, in ms: medians; Python {sys.version.split()[0]}, interleaved",
        ["", "wall", "CPU", f"first {_AT_AN_END}", f"last {_AT_AN_END}", "flatness"],
        rows,
    )
    goals = Goals()
    for name, goal in _GOALS.items():
        if name in all_beyond:
            goals.at_most(f"{name}: a turn beyond bare", all_beyond[name], goal, " ms")
        else:
            print(f"  {name} was NOT RUN: halter.stores.sqlite.store is not there.")
    print(f"\nOn {os.cpu_count()} cores; load {load:.1f} before and {os.getloadavg()[0]:.1f} after.")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
