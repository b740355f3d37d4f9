"""Turns that change files, and their rollback."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from halter import Agent, ToolContext, current_token, tool
from halter.errors import SessionBusy, SessionClosed
from halter.events import ToolProgress, TurnRolledBack
from halter.models.types import ToolCall
from halter.session import turn_files
from halter.stores import SQLiteStore, Store
from halter.testing import Gate, ScriptedModel
from halter.toolbox.files.checkpoints.checkpoints import Checkpoints
from halter.toolbox.files.checkpoints.records import TurnRecord
from halter.tools.file_history import CheckpointState, FileDiff, RestoredFiles
from halter.tools.tool import Tool
from tests.support.background import Background, RunningTurn
from tests.support.looped import looped
from tests.support.paused_writer import WriterPaused
from tests.support.sessions import AT_MOST


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "a.txt").write_text("old\n")
    return folder


@pytest.fixture
def checkpoints(root: Path, tmp_path: Path) -> Checkpoints:
    return Checkpoints(root, folder=tmp_path / "data")


def writing(root: Path, checkpoints: Checkpoints) -> list[Tool[..., Any]]:
    """A tool that writes a file by itself, as a command would."""

    @tool
    def write(name: str, text: str) -> str:
        """Write."""
        (root / name).write_text(text)
        return "written"

    return checkpoints.watch([write], changing=lambda _: True)


def call(name: str, text: str, number: int = 1) -> ToolCall:
    return ToolCall(f"c{number}", "write", f'{{"name": "{name}", "text": "{text}"}}')


def files_of(receipt_files: RestoredFiles | None) -> RestoredFiles:
    assert receipt_files is not None
    return receipt_files


def test_a_turn_is_rolled_back_with_its_files(root: Path, checkpoints: Checkpoints) -> None:
    """What a turn changed and created is as before, and the turn is out of the history."""
    model = ScriptedModel([call("a.txt", "new"), call("b.txt", "made", 2)], "Done.")
    with Agent(model, writing(root, checkpoints)).session() as session:
        session.run("Go.")
        assert (root / "a.txt").read_text() == "new"
        receipt = session.rollback(files=True)
        assert files_of(receipt.files).restored == ["a.txt", "b.txt"]
        assert (root / "a.txt").read_text() == "old\n"
        assert not (root / "b.txt").exists()
        assert session.history == []
        [event] = [each.data for each in session.events() if isinstance(each.data, TurnRolledBack)]
        assert event.restored == ["a.txt", "b.txt"]


def test_a_rollback_waits_for_the_files_at_the_end_of_its_turn(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment there was neither a running turn nor an end to wait for, and the end counted as unknown."""
    keeping, ending = threading.Event(), turn_files._Ending

    class SlowCheckpoints(Checkpoints):
        def _finish(self, session: str, record: TurnRecord) -> None:
            keeping.set()
            time.sleep(0.2)
            super()._finish(session, record)

    def begin(session: str, turn: turn_files.TurnFiles) -> turn_files._Ending:
        begun = ending(session, turn)
        assert keeping.wait(30)
        time.sleep(0.1)
        return begun

    monkeypatch.setattr(turn_files, "_Ending", begin)
    tools = writing(root, SlowCheckpoints(root, folder=tmp_path / "data"))
    with Agent(ScriptedModel(call("a.txt", "new"), "Done."), tools).session() as session:
        running = RunningTurn(session)
        assert keeping.wait(30)
        assert files_of(session.rollback(files=True).files) == RestoredFiles(["a.txt"])
        assert running.end().status == "done"


def test_a_running_turn_is_stopped_and_rolled_back_with_its_files(root: Path, checkpoints: Checkpoints) -> None:
    """A rollback with files ends the turn first, so that nothing writes while files are restored."""
    gate = Gate()
    model = ScriptedModel(call("a.txt", "new"), ["Done", gate])
    with Agent(model, writing(root, checkpoints)).session() as session:
        running = RunningTurn(session)
        gate.wait_reached()
        receipt = session.rollback(files=True)
        assert running.end().status == "interrupted"
        assert receipt.stopped
        assert not session.is_running
        assert files_of(receipt.files) == RestoredFiles(["a.txt"])
        assert session.history == []
        assert (root / "a.txt").read_text() == "old\n"


@pytest.mark.parametrize("files", [False, True])
def test_a_rollback_that_expects_another_turn_does_nothing(files: bool, root: Path, checkpoints: Checkpoints) -> None:
    """Neither a running turn is stopped by it, nor the last one removed, nor a file restored."""
    gate = Gate()
    model = ScriptedModel(call("a.txt", "new"), "Done.", ["More", gate])
    with Agent(model, writing(root, checkpoints)).session() as session:
        first = session.run("Go.").id
        assert session.rollback(files=files, expect_turn="other").note == "turn other is not the last one any more"
        running = RunningTurn(session)
        gate.wait_reached()
        receipt = session.rollback(files=files, expect_turn=first)
        assert (receipt.stopped, receipt.note) == (False, f"turn {first} is not the last one any more")
        gate.open()
        second = running.end()
        assert second.status == "done"
        assert not any(isinstance(each.data, TurnRolledBack) for each in session.events())
        assert (root / "a.txt").read_text() == "new"
        assert session.rollback(files=files, expect_turn=second.id).note == ""
        assert session.rollback(files=files, expect_turn=first).note == ""
        assert (root / "a.txt").read_text() == ("old\n" if files else "new")


def test_without_changes_only_the_conversation_is_rolled_back(root: Path, checkpoints: Checkpoints) -> None:
    """A turn that has changed no files is rolled back as before; without a turn the receipt says so."""
    with Agent(ScriptedModel("Hello."), writing(root, checkpoints)).session() as session:
        assert session.rollback(files=True).note == "there is no turn to roll back"
        session.run("Hi.")
        assert session.file_changes().files == []
        assert files_of(session.rollback(files=True).files) == RestoredFiles()
        assert session.history == []


def test_the_diff_comes_first_and_the_rollback_can_be_undone(root: Path, checkpoints: Checkpoints) -> None:
    """The diff shows what would be restored; after the rollback the files can be brought back."""
    with Agent(ScriptedModel(call("a.txt", "new"), "Done."), writing(root, checkpoints)).session() as session:
        session.run("Go.")
        assert [(each.path, each.change) for each in session.file_changes().files] == [("a.txt", "changed")]
        session.rollback(files=True)
        assert session.undo_rollback().restored == ["a.txt"]
        assert (root / "a.txt").read_text() == "new"
        assert session.history == []


@looped
async def test_in_an_event_loop_it_is_awaited(root: Path, checkpoints: Checkpoints) -> None:
    """`arollback()` does not block the loop of the turn; `rollback(files=True)` there says what to do."""
    gate = Gate()
    model = ScriptedModel(call("a.txt", "new"), ["Done", gate])
    async with Agent(model, writing(root, checkpoints)).session() as session:
        turn = asyncio.ensure_future(session.arun("Go."))
        await asyncio.to_thread(gate.wait_reached)
        with pytest.raises(RuntimeError, match="arollback"):
            session.rollback(files=True)
        receipt = await session.arollback(files=True)
        assert files_of(receipt.files).restored == ["a.txt"]
        assert (await turn).status == "interrupted"


class History:
    """A file history that does what a test wants."""

    def __init__(self, note: str = "") -> None:
        self.seen: list[tuple[str, str]] = []
        self.entered, self.leave = threading.Event(), threading.Event()
        self.waits_in = ""
        self._note = note

    def before_call(self, session: str, turn: str, paths: Sequence[str]) -> CheckpointState:
        self._do("before", session)
        return CheckpointState(is_complete=True, note=self._note)

    def end_turn(self, session: str, turn: str) -> None:
        self._do("end", session)

    def tidy(self) -> None:
        pass

    def diff(self, session: str, *turns: str) -> FileDiff:
        return FileDiff()

    def restore(self, session: str, turn: str) -> RestoredFiles:
        self._do("restore", session)
        return RestoredFiles()

    def undo_restore(self, session: str) -> RestoredFiles:
        return RestoredFiles()

    def _do(self, what: str, session: str) -> None:
        if what == self.waits_in:
            self.entered.set()
            while not self.leave.wait(0.005):
                current_token().raise_if_cancelled()
        self.seen.append((what, session))


def doing(history: History, name: str = "work") -> Tool[..., Any]:
    @tool(name=name)
    def work() -> str:
        """Work."""
        history.seen.append(("call", ""))
        return "done"

    work.file_history = history
    return work


def test_the_calls_of_a_batch_wait_for_one_checkpoint() -> None:
    """No call that may change files starts before the checkpoint, and there is one for all calls of a turn."""
    history = History()
    history.waits_in = "before"
    calls = [ToolCall(f"c{number}", "work", "{}") for number in range(3)]
    with Agent(ScriptedModel(calls, calls[:1], "Done."), [doing(history)]).session("s") as session:
        running = RunningTurn(session)
        history.entered.wait()
        assert history.seen == []
        history.leave.set()
        running.end()
    assert history.seen == [("before", "s"), *[("call", "")] * 4, ("end", "s")]


def test_a_stop_during_the_checkpoint_is_prompt_and_starts_nothing() -> None:
    """The call was not started, and the turn ends at once."""
    history = History()
    history.waits_in = "before"
    with Agent(ScriptedModel(ToolCall("c", "work", "{}")), [doing(history)]).session() as session:
        running = RunningTurn(session)
        history.entered.wait()
        session.stop()
        assert [each.status for each in running.end().outcomes] == ["not_started"]
        assert ("call", "") not in history.seen


def test_a_missing_checkpoint_is_said_once() -> None:
    """The turn goes on without one, and the session says so once."""
    history = History(note="no checkpoint of the files: too large")
    script: list[Any] = [ToolCall("c1", "work", "{}"), "Done.", ToolCall("c2", "work", "{}"), "Done."]
    with Agent(ScriptedModel(*script), [doing(history)]).session() as session:
        session.run("Go.")
        session.run("Again.")
        notes = [each.data.text for each in session.events() if isinstance(each.data, ToolProgress)]
    assert notes == ["[no checkpoint of the files: too large]\n"]


def test_no_turn_begins_while_files_are_restored() -> None:
    """A message that comes meanwhile is answered afterwards, and a second restore is refused."""
    history = History()
    history.waits_in = "restore"
    with Agent(ScriptedModel(ToolCall("c", "work", "{}"), "One.", "Two."), [doing(history)]).session() as session:
        session.run("Go.")
        rolling = Background(lambda: session.rollback(files=True))
        history.entered.wait()
        with pytest.raises(SessionBusy):
            session.rollback(files=True)
        next_turn = RunningTurn(session)
        assert not session.is_running
        history.leave.set()
        rolling.result()
        assert next_turn.end().text == "Two."
        assert len(session.history) == 2


def test_a_rollback_is_not_undone_while_a_turn_is_starting() -> None:
    """Was a defect: undo_rollback() restored files while a turn that was just beginning changed them."""
    with Agent(ScriptedModel("One.", "Two."), [doing(History())]).session() as session:
        session.run("Go.")
        with WriterPaused(session) as paused:
            running = paused.start(lambda: session.run("Again."))
            assert not session.is_running
            with pytest.raises(SessionBusy, match="stop it first"):
                session.undo_rollback()
        assert running.result().text == "Two."
        assert session.undo_rollback().restored == []


def test_a_rollback_with_files_of_the_last_turn_ends_a_compaction(store: Store) -> None:
    """Was a defect: while compact() ran, the last turn was said not to be the last one any more."""
    asked, go = threading.Event(), threading.Event()

    def slow() -> str:
        asked.set()
        go.wait(AT_MOST)
        return "be short"

    with Agent(ScriptedModel("One."), [doing(History())]).session("s", store) as session:
        last = session.run("Go.").id
    with Agent(ScriptedModel(), [doing(History())], instructions=slow).session("s", store) as session:
        compacting = Background(session.compact)
        assert asked.wait(AT_MOST)
        receipt = session.rollback(files=True, expect_turn=last)
        go.set()
        assert receipt.note == ""
        assert session.history == []
        assert compacting.result() is None


def test_closing_the_session_stops_a_restore() -> None:
    """A restore ends with its session, and the turn is still in the history."""
    history = History()
    history.waits_in = "restore"
    session = Agent(ScriptedModel(ToolCall("c", "work", "{}"), "One."), [doing(history)]).session()
    session.run("Go.")
    rolling = Background(lambda: session.rollback(files=True))
    history.entered.wait()
    session.close()
    with pytest.raises(SessionClosed, match="roll back again"):
        rolling.result()
    assert len(session.history) == 4


def test_what_a_child_changes_is_its_parents(root: Path, checkpoints: Checkpoints) -> None:
    """A sub-agent's changes are rolled back with the turn that has started it."""
    child = Agent(ScriptedModel(call("a.txt", "new"), "Done."), writing(root, checkpoints), name="child")

    @tool
    def delegate(ctx: ToolContext) -> str:
        """Delegate."""
        return str(ctx.delegate(child, "Write.").text)

    tools: list[Tool[..., Any]] = [delegate, *writing(root, checkpoints)]
    with Agent(ScriptedModel(ToolCall("c", "delegate", "{}"), "Done."), tools).session() as session:
        session.run("Go.")
        assert (root / "a.txt").read_text() == "new"
        assert files_of(session.rollback(files=True).files).restored == ["a.txt"]


KILLED = """
import os, signal, sys
from halter import Agent
from halter.stores import SQLiteStore
from halter.testing import ScriptedModel
from halter.toolbox import Checkpoints

class Killed(Checkpoints):
    def restore(self, session, turn):
        super().restore(session, turn)
        os.kill(os.getpid(), signal.SIGKILL)

root, data, store = sys.argv[1:]
from tests.session.test_turn_files import call, writing, Path
agent = Agent(ScriptedModel(call("a.txt", "new"), "Done."), writing(Path(root), Killed(root, folder=data)))
session = agent.session("s", SQLiteStore(store))
session.run("Go.")
session.rollback(files=True)
"""


def test_a_process_that_dies_between_files_and_history_is_completed_by_another_rollback(
    root: Path, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """The files are restored and the turn is still in the history; rolling back again takes it out, and no other."""
    store = str(tmp_path / "s.db")
    done = subprocess.run([sys.executable, "-c", KILLED, str(root), str(tmp_path / "data"), store], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (root / "a.txt").read_text() == "old\n"
    with SQLiteStore(store) as opened:
        session = Agent(ScriptedModel(), writing(root, checkpoints)).session("s", opened)
        assert len(session.history) == 4
        assert files_of(session.rollback(files=True).files).kept == {}
        assert session.history == []
        session.close()
