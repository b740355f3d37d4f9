"""The system prompt of an agent that works in a folder.

    agent = Agent("openai:gpt-5", toolbox.default("."), toolbox.Instructions("You are a careful engineer.", "."))

The parts have a fixed order, and what changes least comes first: the caller's text, where the agent is, how it may be
interrupted, AGENTS.md, skills, notes, the day. A session makes it once and keeps it, so the beginning of all its
requests is the same and can be cached by the provider.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.toolbox.instructions.instruction_files import InstructionFile, read_instruction_files

if TYPE_CHECKING:
    from halter.toolbox.instructions.skills import Skills
    from halter.toolbox.memory import Memory
    from halter.toolbox.sandbox.policy import Mode

__all__ = ["Instructions", "Prompt"]

_log = logging.getLogger(__name__)
_MAX_NOTES: Final = 4_000  # bytes of notes
_MAX_PROBLEMS: Final = 10  # that are named in the prompt
_SANDBOX: Final = {
    "workspace": "Commands and code run in a sandbox: they can write only the workspace and $TMPDIR, they cannot read "
    "secrets, and they have no network except a loopback of their own. The user can allow more.",
    "read-only": "Commands and code run in a sandbox: they can write only $TMPDIR, not the workspace, they cannot read "
    "secrets, and they have no network except a loopback of their own. The user can allow more.",
    "off": "Commands and code run without a sandbox: they can do whatever the user can. Be careful.",
}
_SKILLS: Final = "# Skills\nRead a skill with read_skill before you begin a task that it is for."
_INTERRUPTION: Final = """# Interruption
The user can send a message or stop you at any moment, also while a tool runs.
- A message that arrives while you work is new guidance. Follow it, and go on with what is still wanted.
- A result that says a call was stopped may be incomplete. What the call had done by then remains done.
- A result that says a call did not end in time or may still have effects: check what it did before you repeat it.
- A call that was not started had no effects.
- Background jobs go on when a turn is stopped. They end with the session.
- After a stop, do not resume the stopped work by yourself: do what the user says next."""


class Prompt(NamedTuple):
    """The text of a prompt, and what it was made from."""

    text: str
    files: list[InstructionFile]
    problems: list[str]


class Instructions:
    """Makes the prompt: `instructions()` reads the files and returns the text. Blocks; sessions call it in a thread.

    *text* comes first. *sandbox* is the mode of the tools' sandbox; None says nothing about commands. *skills* are
    listed, and need their tool `read_skill`. The newest notes of *memory* are included.
    """

    def __init__(
        self,
        text: str = "",
        workspace: str | os.PathLike[str] = ".",
        *,
        sandbox: Mode | None = "workspace",
        skills: Skills | None = None,
        memory: Memory | None = None,
    ) -> None:
        if sandbox is not None and sandbox not in _SANDBOX:
            raise ValueError(f"sandbox must be one of {', '.join(map(repr, _SANDBOX))}, or None; not {sandbox!r}")
        self.text = text
        """The part that the user wrote."""
        self._workspace = Path(workspace).expanduser().absolute()
        self._sandbox = sandbox
        self._skills = skills
        self._memory = memory

    def __call__(self) -> str:
        prompt = self.read()
        for problem in prompt.problems:
            _log.warning("instructions: %s", problem)
        return prompt.text

    def read(self) -> Prompt:
        """Read the files and make the prompt. A file that cannot be read is a line in it, and in the problems."""
        files = read_instruction_files(self._workspace)
        problems = [f"{each.path} is left out: {each.problem}" for each in files if each.problem]
        skills, skill_problems = ("", []) if self._skills is None else self._skills.listed()
        notes, note_problems = self._notes()
        # One line each, even if the name of a file contains line ends.
        problems = [" ".join(each.split()) for each in (*problems, *skill_problems, *note_problems)]
        parts = [
            self.text.strip(),
            self._environment(),
            _INTERRUPTION,
            _files_part(files),
            f"{_SKILLS}\n{skills}" if skills else "",
            notes,
            _problems_part(problems),
            time.strftime("Today is %A, %Y-%m-%d."),
        ]
        return Prompt("\n\n".join(part for part in parts if part), files, problems)

    def _environment(self) -> str:
        lines = ["# Where you are", f"Workspace: {self._workspace.resolve()}"]
        lines.append(f"Platform: {platform.system()} {platform.release()}, {platform.machine()}")
        if self._sandbox is not None:
            lines.append(_SANDBOX[self._sandbox])
        return "\n".join(lines)

    def _notes(self) -> tuple[str, list[str]]:
        if self._memory is None:
            return "", []
        try:
            notes = self._memory.newest(_MAX_NOTES)
        except OSError as error:
            return "", [f"the notes cannot be read: {error.strerror or error}"]
        return (f"# Your notes from earlier sessions, the newest first\n{notes}" if notes else ""), []


def _problems_part(problems: list[str]) -> str:
    shown = [f"[{each}]" for each in problems[:_MAX_PROBLEMS]]
    more = len(problems) - len(shown)
    return "\n".join([*shown, f"[{more} more files cannot be used.]"] if more else shown)


def _files_part(files: list[InstructionFile]) -> str:
    texts = [f"## {each.path}\n{each.text}" for each in files if each.text]
    if not texts:
        return ""
    intro = "The files below are from the workspace and the folders above it. Where they differ, the last one counts."
    return "\n\n".join([f"# Project instructions\n{intro}", *texts])
