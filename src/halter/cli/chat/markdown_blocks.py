"""An answer as it comes, split into Markdown blocks: finished ones, and the unfinished tail.

A block is a paragraph, a list, a table, a heading or a piece of code: what can be drawn once and for all. It is
finished when the next one begins. What never ends is cut, so that no block is longer than can be drawn while somebody
types.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

__all__ = ["Block", "MarkdownBlocks"]

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$")
_HEADING: Final = re.compile(r"^ {0,3}#{1,6}(\s|$)")
_ITEM: Final = re.compile(r"^ {0,3}([-*+]|\d{1,9}[.)])\s")
_MOST_LINES: Final = 30  # of code in one block
_MOST: Final = 4000  # characters in one block


class Block(NamedTuple):
    """One piece of an answer. Code that `continues` belongs to the block before."""

    kind: Literal["text", "heading", "code"]
    text: str
    language: str = ""
    continues: bool = False


class MarkdownBlocks:
    """The text of one answer."""

    def __init__(self) -> None:
        self._rest = ""  # of a line that has not ended
        self._lines: list[str] = []  # whole lines of the block that is open
        self._size = 0
        self._fence = ""  # the mark that ends the code, in the middle of it
        self._language = ""
        self._continues = False
        self._finished: list[Block] = []

    def add(self, text: str) -> None:
        """Add text."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > _MOST:
            # A very long line is cut between two words, or anywhere.
            cut = self._rest.rfind(" ", 1) + 1 or len(self._rest)
            line, self._rest = self._rest[:cut], self._rest[cut:]
            self._take(line)

    def take_finished(self) -> list[Block]:
        """The blocks that were finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def end(self) -> list[Block]:
        """Finish the open block; returns all blocks that were not taken before."""
        rest, self._rest = self._rest, ""
        if rest:
            self._take(rest)
        self._close()
        self._fence, self._continues = "", False
        return self.take_finished()

    @property
    def tail(self) -> Block | None:
        """The unfinished block; None if there is none."""
        lines = [*self._lines, self._rest] if self._rest else self._lines
        if not any(lines) and not self._fence:
            return None
        return Block("code" if self._fence else "text", "\n".join(lines), self._language, self._continues)

    def _take(self, line: str) -> None:
        if self._fence:
            self._take_code(line)
            return
        fence = _FENCE.match(line)
        if fence is not None:
            self._close()
            self._fence, self._language = fence[1], fence[2]
        elif _HEADING.match(line):
            self._close()
            self._finished.append(Block("heading", line.strip().strip("#").strip()))
        elif not line.strip():
            if self._lines:
                self._lines.append("")
        else:
            if self._lines and not self._lines[-1] and not self._goes_on(line):
                self._close()
            self._add(line)

    def _goes_on(self, line: str) -> bool:
        """Whether a line behind an empty one is still part of a list that is open."""
        return bool(_ITEM.match(self._lines[0])) and (line.startswith(("  ", "\t")) or bool(_ITEM.match(line)))

    def _take_code(self, line: str) -> None:
        mark = line.strip()
        if mark.startswith(self._fence) and not mark.strip(self._fence[0]):
            self._close()
            self._fence, self._continues = "", False
            return
        self._lines.append(line)
        if len(self._lines) >= _MOST_LINES:
            self._close()
            self._continues = True

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._size > _MOST:
            self._close()

    def _close(self) -> None:
        lines, self._lines, self._size = self._lines, [], 0
        if self._fence:
            if lines:
                self._finished.append(Block("code", "\n".join(lines), self._language, self._continues))
        elif any(lines):
            self._finished.append(Block("text", "\n".join(lines).strip("\n")))
