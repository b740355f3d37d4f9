"""What an idle session costs in memory: 10,000 of them, each taken through one turn against a `FakeProvider`.

    python bench/idle.py [--sessions 10000]

How it is counted. The sessions of an agent are made one after the other and kept. Counted is what is there afterwards
and was not before, by `tracemalloc` (what Python asked for) and, in an interpreter of its own without tracing, by the
resident set (what the system gave, with the allocator's waste). From that the history's own size is taken off, counted
in the same way: a fresh copy of each session's messages. It is what was said, and would be kept by anybody.

Where the log is kept is the store's affair. `SQLiteStore` keeps it in a file; what is left in memory is the session.
`MemoryStore` keeps all of it beside the history, every word of the stream as an event of its own; its line is printed,
and not judged.

Goal: under 5 KB each beyond their history, with `SQLiteStore`.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import gc
import json
import os
import subprocess
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.measure import Goals, print_table
from bench.server import Server
from bench.sqlite import has_sqlite, open_sqlite
from halter import Agent
from halter.models import OpenAIModel
from halter.models.types import Message
from halter.stores import MemoryStore
from halter.testing import answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.session.session import Session
    from halter.stores import Store

_GOAL = 5 * 1024
_WARM_UP = 50
_MEMORY = "MemoryStore"
_SQLITE = "SQLiteStore"
_ANSWER = "An answer of a line or so, as it comes in a few pieces from a model that has not much to say."


def resident() -> int:
    """Bytes of this process in memory, as the system counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def traced() -> int:
    return tracemalloc.get_traced_memory()[0]


async def count(store: Store, sessions: int, size: Callable[[], int]) -> tuple[float, float]:
    """Bytes for each session, and for a copy of its history."""
    with Server({"idle": answer(_ANSWER)}) as server:
        agent = Agent(OpenAIModel("idle", base_url=server.url, api_key="none"))

        async def open_one(number: int) -> Session:
            session = agent.session(store=store)
            await session.arun(f"Question number {number:06}, which is of some length, too.")
            return session

        for number in range(_WARM_UP):
            await open_one(number)
        kept: list[Session | None] = [None] * sessions
        gc.collect()
        before = size()
        for number in range(sessions):
            kept[number] = await open_one(number)
        gc.collect()
        each = (size() - before) / sessions
        copies: list[list[Message] | None] = [None] * sessions
        encoded = [msgspec.msgpack.encode(session.history) for session in kept if session is not None]
        decoder = msgspec.msgpack.Decoder(list[Message])
        gc.collect()
        before = size()
        for number in range(sessions):
            copies[number] = decoder.decode(encoded[number])
        return each, (size() - before) / sessions


def child(store_name: str, way: str, sessions: int) -> None:
    """Count in this interpreter, and print the two figures."""
    with tempfile.TemporaryDirectory() as folder:
        stores: dict[str, Callable[[], Store]] = {
            _MEMORY: MemoryStore,
            _SQLITE: lambda: open_sqlite(Path(folder) / "idle.db"),
        }
        store = stores[store_name]()
        if way == "traced":
            tracemalloc.start()
        print(json.dumps(asyncio.run(count(store, sessions, traced if way == "traced" else resident))))
        store.close()


def count_apart(store: str, way: str, sessions: int) -> tuple[float, float]:
    """Count in a fresh interpreter."""
    options = ["--child", store, way, "--sessions", str(sessions)]
    done = subprocess.run([sys.executable, __file__, *options], check=True, stdout=subprocess.PIPE, text=True)
    each, history = json.loads(done.stdout)
    return each, history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child, options.sessions)
        return 0
    stores = [_MEMORY]
    if has_sqlite():
        stores.append(_SQLITE)
    goals = Goals()
    rows, beyond = [], {}
    for store in stores:
        for way in ("traced", "resident"):
            each, history = count_apart(store, way, options.sessions)
            beyond[store, way] = each - history
            rows.append([f"{store}: {way}", f"{each:,.0f}", f"{history:,.0f}", f"{each - history:,.0f}"])
    print_table(
        f"Bytes for each of {options.sessions:,} idle sessions, Python {sys.version.split()[0]}",
        ["", "session", "its history", "beyond it"],
        rows,
    )
    if _SQLITE in stores:
        for way in ("traced", "resident"):
            goals.at_most(f"{_SQLITE}, {way}: beyond the history", beyond[_SQLITE, way] / 1024, _GOAL / 1024, " KB")
    else:
        print(f"  {_SQLITE} was NOT RUN: halter.stores.sqlite.store is not there.")
    print(f"\nOn {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the end.")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
