"""Law 1, prompt, with a database that somebody else has locked: only what has to be written waits, and nobody else.

The heartbeat proves that nothing in the event loop waits for the lock: a wait would be one gap of seconds, or a gap for
each event that is written. How long a beat takes on a busy machine is the machine's; so time that the thread was ready
and had no processor is not counted, and the beats of as many seconds without a lock say what else is usual.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halter import Agent, Session
from halter.models import Finished, ModelEvent, ModelRequest, TextDelta
from halter.stores import MemoryStore, SQLiteStore
from tests.support.looped import looped
from tests.support.stopped_turn import check_log

SECONDS = 3.0
STALL = 0.02
HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
"""


class Talkative:
    """A model that says a word every few milliseconds, without end, and notes when its stream was closed."""

    name = "talkative"

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def stream(self, _: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            while True:
                yield TextDelta("word ")
                await asyncio.sleep(0.005)
            yield Finished("stop")
        finally:
            self.closed.set()


class Heartbeat:
    """Measures for how long the loop did not come round, but for the time in which it had no processor."""

    def __init__(self) -> None:
        self.gaps: list[float] = []

    async def run(self, seconds: float) -> None:
        file = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        end = time.monotonic() + seconds
        then, waited = time.monotonic(), self._waited(file)
        while then < end:
            await asyncio.sleep(0.002)
            now, waited_now = time.monotonic(), self._waited(file)
            self.gaps.append(now - then - 0.002 - (waited_now - waited))
            then, waited = now, waited_now

    def _waited(self, file: str) -> float:
        """For how many seconds this thread has been ready to run while others ran."""
        with open(file) as opened:
            return int(opened.read().split()[1]) / 1e9

    @property
    def stalls(self) -> int:
        return sum(gap > STALL for gap in self.gaps)


class Lock:
    """Another process that has the write lock of a database."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "locked\n"

    def free(self) -> None:
        out, _ = self._process.communicate("\n", timeout=10)
        assert out == "free\n"


@pytest.mark.alone
@looped
async def test_a_locked_database_stalls_nothing_but_its_own_writes(tmp_path: Path) -> None:
    """For 3 s the loop runs on; stops take hold at once; others are not delayed; and then all is written."""
    path = tmp_path / "store.db"
    with SQLiteStore(path) as store, SQLiteStore(tmp_path / "other.db") as other_store:
        models = [Talkative() for _ in range(3)]
        stopped, held, goes_on = (Agent(model).session(name, store) for name, model in zip("abc", models, strict=True))
        tasks = [asyncio.ensure_future(session.arun("go")) for session in (stopped, held, goes_on)]
        await asyncio.gather(*(said_something(session) for session in (stopped, held, goes_on)))
        before = Heartbeat()
        await before.run(SECONDS)
        await held.apost("for later")

        lock = await asyncio.to_thread(Lock, path)
        heartbeat = Heartbeat()
        beating = asyncio.ensure_future(heartbeat.run(SECONDS))
        assert stopped.stop().stopped  # it blocks for nothing: nothing waits that would have to be held
        assert stopped.cancel_token.is_cancelled
        holding = asyncio.ensure_future(held.astop())
        await asyncio.gather(models[0].closed.wait(), models[1].closed.wait())
        for name, each in (("memory", MemoryStore()), ("file", other_store)):
            await turns_and_stops(name, each)
        assert not beating.done(), "all of that took as long as the lock"
        await beating
        assert not any(task.done() for task in tasks), "nothing is said to be over before it is durable"
        assert not holding.done()
        await asyncio.to_thread(lock.free)

        turns = await asyncio.gather(*tasks[:2])
        assert [(turn.status, turn.reason) for turn in turns] == [("interrupted", "stop")] * 2
        receipt = await holding
        assert (receipt.stopped, receipt.note) == (True, "")
        assert [message.state for message in held.inbox] == ["held"]
        assert goes_on.is_running
        await goes_on.astop()
        assert (await tasks[2]).status == "interrupted"
        for session in (stopped, held, goes_on):
            check_log(await asyncio.to_thread(session.events))
            await session.aclose()
    assert max(heartbeat.gaps) < SECONDS / 3
    assert heartbeat.stalls <= before.stalls + 2, (heartbeat.stalls, before.stalls, max(heartbeat.gaps))


async def said_something(session: Session) -> None:
    with session.subscribe(only=[TextDelta]) as words:
        async for _ in words:
            return


async def turns_and_stops(name: str, store: MemoryStore | SQLiteStore) -> None:
    """Run turns in a session of another store, and stop each."""
    for number in range(3):
        model = Talkative()
        async with await asyncio.to_thread(Agent(model).session, f"{name}{number}", store) as session:
            task = asyncio.ensure_future(session.arun("go"))
            await said_something(session)
            assert (await session.astop()).stopped
            assert (await task).status == "interrupted"
