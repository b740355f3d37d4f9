"""Every law with checkpoints of files by Git: stopped at any point of a checkpoint or a rollback, the tree is whole."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halter import Agent, CancellationToken, Cancelled, Session, Turn, tool
from halter.models import ToolCall
from halter.stores import MemoryStore
from halter.testing import ScriptedModel, interrupt_everywhere
from halter.toolbox import Checkpoints
from tests.support.sessions import kinds
from tests.support.stopped_turn import check_log, check_messages, nothing_is_left
from tests.support.valid_history import judge
from tests.support.waiting import wait_until

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="Git is not installed")
pytestmark = needs_git

STEER = "otherwise, please"
OLD: dict[str, str | None] = {"a": "old", "deep/b": "old", "made": None}
NEW: dict[str, str | None] = {"a": "new", "deep/b": None, "made": "new"}
# What a checkpoint in a turn consists of, and what a rollback does. The processes are stopped by their own tests.
OF_TURN = (
    "session/turn_files.py",
    "checkpoints/git_snapshots.py",
    "in Checkpoints.before_call",
    "in ShadowRepository.snapshot",
    "in ShadowRepository._snapshot",
)
OF_RESTORE = ("checkpoints/restore.py", "in Checkpoints.restore", "in Draft.commit")
STOPS: dict[str, Callable[[Session], object]] = {
    "stop": lambda session: session.stop(),
    "steer": lambda session: session.steer(STEER),
    "interrupt": lambda session: session.interrupt(STEER),
    "close": lambda session: session.close(timeout=0),
}


class Workspace:
    """A folder with a few files, and its checkpoints."""

    def __init__(self, place: Path) -> None:
        self.root = place / "workspace"
        self.data = place / "data"
        self.root.mkdir()
        self.put(OLD)
        self.checkpoints = Checkpoints(self.root, folder=self.data, timeout=60.0)

    def put(self, state: dict[str, str | None]) -> None:
        for name, text in state.items():
            path = self.root / name
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)

    @property
    def state(self) -> dict[str, str | None]:
        return {name: path.read_text() if (path := self.root / name).is_file() else None for name in OLD}

    def check_whole(self) -> None:
        """Each file is old or new, and nothing else is there."""
        for name, text in self.state.items():
            assert text in (OLD[name], NEW[name]), name
        found = {
            str(Path(folder, name).relative_to(self.root)) for folder, _, names in os.walk(self.root) for name in names
        }
        assert found <= set(OLD)

    def check_repository(self) -> None:
        """No index or draft of a checkpoint that was stopped is left."""
        left = [path.name for path in self.data.glob("*/git/*") if path.name.startswith(("index-", "draft-"))]
        assert not left


@pytest.fixture
def workspace(directory: Path) -> Workspace:
    return Workspace(directory)


def agent_in(workspace: Workspace) -> Agent:
    @tool
    def change() -> str:
        """Change the files."""
        workspace.put(NEW)
        return "changed"

    return Agent(
        ScriptedModel(ToolCall("c1", "change"), *["Done."] * 9),
        workspace.checkpoints.watch([change], changing=lambda _: True),
    )


def is_of(parts: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda place: any(part in place for part in parts)


@pytest.mark.parametrize("name", STOPS)
def test_a_turn_with_a_checkpoint_is_stopped_anywhere(name: str, workspace: Workspace) -> None:
    """Laws 1 to 6: nothing starts after the stop, the log says what happened, and what was changed can be undone."""
    numbers = itertools.count()

    async def scenario(token: CancellationToken) -> None:
        workspace.put(OLD)
        store = MemoryStore()
        agent = agent_in(workspace)
        identity = f"s{next(numbers)}"
        session = agent.session(identity, store)
        registration = token.on_cancel(lambda: STOPS[name](session))
        try:
            turn = await session.arun("Go.")
        except BaseException:
            if name != "close":
                raise
            turn = None
        registration()
        if name == "close":
            await session.aclose()
            session = agent.session(identity, store)
        await check_turn(session, turn)

    async def check_turn(session: Session, turn: Turn | None) -> None:
        workspace.check_whole()
        events = check_messages(session)
        check_log(events)
        judge(session.history)
        outcomes = [event.data.outcome.status for event in events if event.kind == "tool.finished"]  # type: ignore[union-attr]
        assert workspace.state == (NEW if outcomes == ["completed"] else OLD)
        if "turn.finished" in kinds(events):
            receipt = await session.arollback(files=True)
            assert receipt.files is not None
            assert not receipt.files.kept
            assert workspace.state == OLD
        session.release()
        turn = await session.arun("And now?")
        assert turn.status == "done", (turn, turn.error)
        await session.aclose()

    report = interrupt_everywhere(scenario, check=nothing_is_left, repeat=1, only=is_of(OF_TURN))
    workspace.check_repository()
    assert len(report.points) > 20
    assert len(report.missed) < len(report.points) / 5


def test_a_rollback_is_stopped_anywhere(workspace: Workspace) -> None:
    """Laws 2, 3 and 6: each file is old or new, none is half, and the next rollback completes it and can be undone."""
    kept = workspace.checkpoints
    kept.before_call("s", "t", [])
    workspace.put(NEW)
    kept.end_turn("s", "t")

    def scenario(token: CancellationToken) -> None:
        workspace.put(NEW)
        with token.bind():
            kept.restore("s", "t")

    def check() -> None:
        workspace.check_whole()
        assert kept.restore("s", "t").kept == {}
        assert workspace.state == OLD

    report = interrupt_everywhere(scenario, check=check, repeat=1, only=is_of(OF_RESTORE))
    assert len(report.points) > 30
    workspace.put(NEW)
    assert kept.restore("s", "t").kept == {}
    assert kept.undo_restore("s").kept == {}
    assert workspace.state == NEW
    workspace.check_repository()


def test_a_stop_in_a_checkpoint_is_prompt(workspace: Workspace) -> None:
    """Law 1: Git waits for a pipe that nobody writes; the stop is back at once, its processes end, nothing started."""
    os.mkfifo(workspace.root / ".gitignore")

    async def main() -> float:
        session = agent_in(workspace).session()
        task = asyncio.ensure_future(session.arun("Go."))
        await asyncio.to_thread(wait_until, lambda: any(git_processes(workspace.root)))
        at = time.monotonic()
        await session.astop()
        turn = await task
        taken = time.monotonic() - at
        assert (turn.status, [outcome.status for outcome in turn.outcomes]) == ("interrupted", ["not_started"])
        await session.aclose()
        return taken

    assert asyncio.run(main()) < 5.0
    wait_until(lambda: not any(git_processes(workspace.root)))
    assert workspace.state == OLD


def git_processes(root: Path) -> Iterator[str]:
    """The Git processes that work in a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == "git" and (process / "cwd").readlink() == root:
                yield process.name
        except OSError:
            continue


def test_a_checkpoint_under_a_cancelled_token_leaks_nothing(workspace: Workspace) -> None:
    """Law 4: the stop of one checkpoint is not seen by the next one of another session."""
    token = CancellationToken()
    token.cancel("stop")
    with token.bind(), pytest.raises(Cancelled):
        workspace.checkpoints.before_call("one", "t", [])
    assert not workspace.checkpoints.before_call("two", "t", []).note
    workspace.check_repository()
