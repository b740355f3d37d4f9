"""What Tab completes: the name of a command, or a file after an @."""

from __future__ import annotations

from halter.cli.chat.input_line.file_references import Completion, complete_reference
from halter.cli.chat.slash_commands import COMMANDS

__all__ = ["common_prefix", "complete"]


def complete(before: str, *, deep: bool = False) -> Completion | None:
    """The possible completions of the text before the cursor; None if there is nothing to complete."""
    if before.startswith("/") and not any(each.isspace() for each in before):
        return Completion(0, [f"/{name}" for name in COMMANDS if name.startswith(before[1:])])
    return complete_reference(before, deep=deep)


def common_prefix(words: list[str]) -> str:
    """The longest common prefix of words."""
    first, last = min(words), max(words)
    same = 0
    while same < len(first) and first[same] == last[same]:
        same += 1
    return first[:same]
