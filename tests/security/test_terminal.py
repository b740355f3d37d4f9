"""The terminal in a sandbox: commands are restricted, and stop as fast and as completely as without one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from halter import Agent, toolbox
from halter.models import ToolCall
from halter.testing import ScriptedModel
from halter.toolbox.sandbox.sandbox import Sandbox
from tests.support.processes import is_alive
from tests.support.waiting import wait_until


def run(workspace: Path, command: str) -> str:
    """The result of one command in a sandbox."""
    sandbox = Sandbox(workspace)
    arguments = f'{{"command": {command!r}}}'.replace("'", '"')
    model = ScriptedModel([ToolCall("1", "terminal", arguments)], "done")
    with Agent(model, toolbox.Terminal(workspace, sandbox=sandbox).tools).session() as session:
        turn = session.run("go")
    sandbox.close()
    return str(turn.outcomes[0].content)


def test_a_command_writes_the_workspace_and_keeps_its_directory(tmp_path: Path) -> None:
    """What a command is for works as without a sandbox."""
    (tmp_path / "inner").mkdir()
    result = run(tmp_path, "echo text > file && cat file && cd inner")
    assert result == f"text\n[exit code 0; now in {tmp_path / 'inner'}]"
    assert (tmp_path / "file").read_text() == "text\n"


def test_a_command_that_leaves_the_workspace_is_told_why_it_failed(tmp_path: Path) -> None:
    """The result names the sandbox, so that neither the model nor a person looks for the cause elsewhere."""
    (tmp_path / "workspace").mkdir()
    result = run(tmp_path / "workspace", "echo x > ../outside")
    assert "exit code 1" in result
    assert "it lets commands write only" in result
    assert not (tmp_path / "outside").exists()


def test_a_stop_leaves_no_process(tmp_path: Path) -> None:
    """Processes that left the group and ignore TERM are found and ended, in a sandbox too."""
    sandbox = Sandbox(tmp_path)
    script = "trap '' TERM; setsid sh -c 'trap \\\"\\\" TERM; echo $$ > far; sleep 300' & echo $$ > near; sleep 300"
    model = ScriptedModel([ToolCall("1", "terminal", f'{{"command": "{script}"}}')], "done")
    with Agent(model, toolbox.Terminal(tmp_path, sandbox=sandbox, grace=0.2).tools).session() as session:
        thread = threading.Thread(target=session.run, args=("go",))
        thread.start()
        files = [tmp_path / "near", tmp_path / "far"]
        wait_until(lambda: all(file.exists() and file.read_text().strip() for file in files))
        pids = [int(file.read_text()) for file in files]
        assert all(is_alive(pid) for pid in pids)
        stopped = time.monotonic()
        session.stop()
        thread.join(30)
        assert time.monotonic() - stopped < 5
        wait_until(lambda: not any(is_alive(pid) for pid in pids))
        assert session.turn is not None
        assert session.turn.status == "interrupted"
    sandbox.close()


@pytest.mark.parametrize("mode", ["off", "everything"])
def test_a_mode_that_restricts_nothing_is_no_sandbox(tmp_path: Path, mode: str) -> None:
    """The caller leaves it out instead, so that nobody believes to have one."""
    with pytest.raises(ValueError, match="workspace"):
        Sandbox(tmp_path, mode)  # type: ignore[arg-type]
