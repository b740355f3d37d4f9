"""Many different tools in one turn, stopped at random times, again and again: nothing is left, and nothing grows.

A turn has thirty-two calls: commands that end, that escape, that resist and that stay in the background, code, files,
pages that never come, a browser, functions that listen and functions that do not. Turn follows turn without a pause, so
what a stop leaves to be ended behind it has to be ended as fast as it comes. Set HALTER_EVERY_POINT for 500 turns.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import secrets
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from halter import Agent, Session, ToolContext, tool, toolbox
from halter.cancel import abandoned
from halter.cancel.processes import proc_table, registry
from halter.cancel.threads import pool
from halter.models import ToolCall
from halter.testing import ScriptedModel
from halter.toolbox.browser.chromium import NAMES
from tests.support.allowing import allow
from tests.support.leftovers import children, idle_workers
from tests.support.processes import is_alive, open_descriptors
from tests.support.slow_server import SlowServer
from tests.support.turn_scenarios import EVERY_POINT
from tests.support.waiting import wait_until

TURNS = 500 if EVERY_POINT in os.environ else 40
WARM_UP = 20
OF_A_SESSION = 20
LONGEST = 0.15  # seconds from the start of a turn to its stop
# What resists is killed after a second of grace and is dead within another; the rest is for a machine that is busy.
ALL_GONE = 10.0


@tool
async def slow() -> str:
    """Wait for long."""
    await asyncio.sleep(30)
    return "never"


@tool
def deaf() -> str:
    """Listen to nobody for a moment."""
    threading.Event().wait(0.005)
    return "heard nothing"


@tool
def listening(ctx: ToolContext) -> str:
    """Wait for long, and for the stop."""
    ctx.token.sleep(30)
    return "never"


@tool(isolate=True)
def far_away() -> str:
    """Sleep in another process, which is killed."""
    time.sleep(30)
    return "never"


def no_workers() -> bool:
    """End the threads that wait for work, again and again: one that still helps with a stop becomes idle later."""
    pool.retire_threads()
    return not [each for each in threading.enumerate() if each.name.startswith("halter-worker")]


class Figures(NamedTuple):
    """What a program that works for months must not have more and more of."""

    descriptors: int
    threads: int
    objects: int
    kilobytes: int

    @classmethod
    def now(cls) -> Figures:
        wait_until(no_workers, ALL_GONE)
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        kilobytes = pages * os.sysconf("SC_PAGESIZE") // 1024
        return cls(open_descriptors(), threading.active_count(), len(gc.get_objects()), kilobytes)


class Crowd:
    """An agent with all these tools, and what its calls have come to."""

    def __init__(self, folder: Path, temporary: Path, server: SlowServer, mark: str) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        (self.workspace / "text.txt").write_text("a needle\n" * 100)
        self._server = server
        self.mark = mark.encode()
        self._folder = os.fsencode(temporary)
        self._chance = random.Random(7)
        self._has_browser = any(map(shutil.which, NAMES))
        host = f"127.0.0.1:{server.port}"
        tools: list[Any] = [*toolbox.Terminal(self.workspace).tools, *toolbox.Files(self.workspace).tools]
        tools += [*toolbox.Code(self.workspace).tools, *toolbox.Todo().tools]
        tools += toolbox.Web(net=toolbox.Net(allow=[host])).tools
        if self._has_browser:
            tools += toolbox.Browser(allow_private=[host]).tools
        self._tools = [*tools, slow, deaf, listening, far_away]
        self._page = server.page("/page", "<title>A page</title><p>of some words</p>")
        self._nowhere = server.url + "/hang"
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.failures: list[str] = []
        self.most_waiting = 0

    def calls(self) -> list[ToolCall]:
        calls: list[tuple[int, str, dict[str, Any]]] = [
            (3, "terminal", {"command": "echo one; sleep 0.02; echo two"}),
            (4, "terminal", {"command": "(setsid sleep 30 &) ; sleep 30"}),
            (1, "terminal", {"command": "trap '' TERM; sleep 30 & wait; sleep 30"}),
            (1, "terminal", {"command": "sleep 30", "background": True}),
            (2, "search_files", {"pattern": "needle"}),
            (3, "read_file", {"path": "text.txt"}),
            (2, "write_file", {"path": "out.txt", "content": "x"}),
            (2, "todo", {"add": ["something"]}),
            (2, "web_extract", {"urls": [self._page, self._nowhere]}),
            (2, "execute_code", {"code": "import time; print('there'); time.sleep(30)"}),
            (2, "slow", {}),
            (3, "deaf", {}),
            (2, "listening", {}),
            (1, "far_away", {}),
        ]
        pages = [self._page, self._nowhere]
        calls += [(1, "browser_navigate", {"url": url}) for url in pages] if self._has_browser else [(2, "slow", {})]
        made = [(name, json.dumps(arguments)) for count, name, arguments in calls for _ in range(count)]
        assert len(made) == 32
        self._chance.shuffle(made)
        return [ToolCall(str(number), *each) for number, each in enumerate(made)]

    def stop_again_and_again(self, turns: int) -> None:
        for _ in range(turns // OF_A_SESSION):
            asyncio.run(self._some_turns())
            # What the server remembers is its own, and would look as if we kept it.
            self._server.wait(lambda seen: all(each.end for each in seen))
            self._server.requests.clear()

    async def _some_turns(self) -> None:
        agent = Agent(ScriptedModel(*[self.calls() for _ in range(OF_A_SESSION)]), self._tools, approve=allow)
        async with agent.session() as session:
            for _ in range(OF_A_SESSION):
                await self._one_turn(session)

    async def _one_turn(self, session: Session) -> None:
        running = asyncio.ensure_future(session.arun("Do it all."))
        await asyncio.sleep(self._chance.uniform(0, LONGEST))  # at a random time: that is what is tried here
        session.stop()
        turn: Any = await running
        assert turn.reason == "stop"
        assert len(turn.outcomes) in (0, 32)
        self.outcomes.update((outcome.name, outcome.status) for outcome in turn.outcomes)
        self.failures += [
            f"{outcome.name}: {outcome.detail}"
            for outcome in turn.outcomes
            if outcome.status in ("failed", "denied") and "it was stopped (stop) before anybody" not in outcome.detail
        ]
        self.most_waiting = max(self.most_waiting, len(registry.roots()))

    def left(self) -> dict[int, str]:
        """Whoever is left of all that was started, but for workers that wait for the next call; 0 is a thread."""
        marked = proc_table.scan().marked.get(self.mark, [])
        everybody = {*children(), *registry.roots(), *self._named(), *filter(is_alive, marked)} - idle_workers()
        left = {pid: proc_table.read(f"/proc/{pid}/cmdline").decode() for pid in everybody}
        return left | ({0: "an abandoned call"} if abandoned else {})

    def is_gone(self) -> bool:
        return not self.left()

    def _named(self) -> set[int]:
        """Those whose command line speaks of our folder; a browser does not inherit our environment."""
        return {pid for pid in proc_table.scan().processes if self._folder in proc_table.read(f"/proc/{pid}/cmdline")}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files whose name is short: Chromium has a socket there."""
    with tempfile.TemporaryDirectory(prefix="many-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def crowd(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    mark = f"HALTER_MANY_{secrets.token_hex(8)}"
    monkeypatch.setenv(mark, "1")
    with SlowServer() as server:
        crowd = Crowd(tmp_path, temporary, server, mark)
        yield crowd
        server.wait(lambda seen: all(each.end for each in seen))


@pytest.mark.alone
def test_stops_at_random_times_leave_nothing(crowd: Crowd, temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Thirty-two tools of many kinds, stopped at random: every call has its outcome, and nobody is left behind."""
    crowd.stop_again_and_again(WARM_UP)
    wait_until(crowd.is_gone, ALL_GONE)
    before = Figures.now()
    start = time.monotonic()
    crowd.stop_again_and_again(TURNS)
    waiting = len(registry.roots())
    end = time.monotonic()
    wait_until(crowd.is_gone, ALL_GONE)
    gone = time.monotonic()
    after = Figures.now()
    print(f"{TURNS} turns in {end - start:.1f} s; {waiting} families left, at most {crowd.most_waiting}")
    print(f"all gone {gone - end:.2f} s later; {before} became {after}")
    print(dict(crowd.outcomes))
    assert after.descriptors <= before.descriptors + 3
    assert after.threads <= before.threads
    assert after.objects <= before.objects + 400
    assert after.kilobytes <= before.kilobytes + 16_000
    wait_until(lambda: not list(temporary.iterdir()), ALL_GONE)  # removed after the processes that use them
    assert {path.name for path in crowd.workspace.iterdir()} <= {"text.txt", "out.txt"}
    assert crowd.failures == []
    assert not [record for record in caplog.records if record.name == "asyncio" and record.levelname == "ERROR"]
