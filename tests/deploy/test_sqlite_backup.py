"""A backup of a SQLite file, as the page about deployment describes it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from halter import Agent
from halter.stores import SQLiteStore
from halter.testing import ScriptedModel

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "deployment.md"


def test_sessions_are_restored_from_the_copy(tmp_path: Path) -> None:
    """The command of the page copies a file that is in use; the copy has everything, and its sessions continue."""
    [command] = re.findall(r"^    (python3 -c .*)$", PAGE.read_text(), re.MULTILINE)
    agent = Agent(ScriptedModel("One.", "Two."))
    with SQLiteStore(tmp_path / "sessions.db") as store:
        session = agent.session("s", store)  # it stays open
        session.run("First.")
        command = command.replace("python3", sys.executable, 1)
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)
        kept = store.read("s")
        session.queue("Too late for the copy.")
        session.close()
    restored = tmp_path / "restored"
    restored.mkdir()
    (tmp_path / "backup.db").rename(restored / "sessions.db")
    with SQLiteStore(restored / "sessions.db") as store:
        assert store.read("s") == kept
        with agent.session("s", store) as session:
            assert session.run("Go on.").text == "Two."
