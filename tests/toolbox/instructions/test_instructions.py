"""The system prompt of an agent that works in a folder."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from halter.toolbox import Instructions, Memory, Skills
from halter.toolbox.sandbox.policy import Mode


def test_the_parts_and_their_order(tmp_path: Path) -> None:
    """What changes least comes first, so that the beginning can be cached; the day is last."""
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    (tmp_path / ".agents/skills/pdf").mkdir(parents=True)
    (tmp_path / ".agents/skills/pdf/SKILL.md").write_text("---\ndescription: Read PDF files.\n---\n")
    memory = Memory(tmp_path / "memory.md")
    memory.memory("add", "The user is called Ada.")
    prompt = Instructions("Be brief.", tmp_path, skills=Skills(tmp_path, user=tmp_path / "none"), memory=memory)()
    order = [
        "Be brief.",
        f"Workspace: {tmp_path}",
        "Platform: ",
        "in a sandbox: they can write only the workspace",
        "stop you at any moment",
        f"{tmp_path}/AGENTS.md\nUse tabs.",
        "- pdf: Read PDF files.",
        "- The user is called Ada.",
        time.strftime("%Y-%m-%d"),
    ]
    places = [prompt.find(words) for words in order]
    assert -1 not in places, prompt
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("mode", "words"), [("read-only", "write only $TMPDIR"), ("off", "without a sandbox"), (None, "")]
)
def test_the_sandbox_is_named_if_there_are_commands(tmp_path: Path, mode: Mode | None, words: str) -> None:
    """An agent without commands is not told what they may do."""
    prompt = Instructions("", tmp_path, sandbox=mode)()
    assert words in prompt
    assert ("Commands" in prompt) is (mode is not None)
    with pytest.raises(ValueError, match=r"must be one of 'workspace', .* not 'all'"):
        Instructions("", tmp_path, sandbox="all")  # type: ignore[arg-type]


def test_a_problem_is_told_and_not_fatal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In one line: to the model, which can tell the user, and in the log."""
    (tmp_path / "AGENTS.md").write_bytes(b"\xff")
    (tmp_path / "memory.md").mkdir()
    instructions = Instructions("Be brief.", tmp_path, memory=Memory(tmp_path / "memory.md"))
    with caplog.at_level(logging.WARNING):
        prompt = instructions()
    assert f"[{tmp_path}/AGENTS.md is left out: it is not UTF-8]" in prompt
    assert "[the notes cannot be read: Is a directory]" in prompt
    assert len(caplog.records) == 2
    assert instructions.read().problems == [record.getMessage().partition(": ")[2] for record in caplog.records]


def test_names_of_files_add_no_lines_of_their_own(tmp_path: Path) -> None:
    """Problems are one line each, however a folder is called, and the prompt has only some of them."""
    for number in range(12):
        folder = tmp_path / f"user/{number}\n# Heading"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text("no front matter")
    prompt = Instructions("", tmp_path, skills=Skills(tmp_path, user=tmp_path / "user")).read()
    assert len(prompt.problems) == 12
    assert "\n# Heading" not in prompt.text
    assert prompt.text.count("it has no description") == 10
    assert "[2 more files cannot be used.]" in prompt.text


def test_notes_have_a_budget(tmp_path: Path) -> None:
    """The newest come first, and the rest is counted; the tool `memory` reads all of them."""
    memory = Memory(tmp_path / "memory.md")
    for number in range(5):
        memory.memory("add", f"note {number} é")
    line = len("- note 0 é\n".encode())
    assert memory.newest(line * 5) == "- note 4 é\n- note 3 é\n- note 2 é\n- note 1 é\n- note 0 é"
    rest = 'more notes are left out; memory with action "read" shows all.]'
    assert memory.newest(line * 3 - 1) == f"- note 4 é\n- note 3 é\n[3 {rest}"
    assert memory.newest(3) == f"[5 {rest}"
    assert Memory(tmp_path / "none.md").newest(100) == ""
