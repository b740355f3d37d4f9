"""An answer as it streams, split into Markdown blocks: finished ones, and the unfinished tail.

A block is a paragraph, an item of a list, a table, a heading or a piece of code: the smallest piece that later text
cannot change. markdown-it finds them. All but the last are finished: further lines can only change that one. A block
that is too long to be drawn while the user types is cut.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

__all__ = ["Block", "MarkdownBlocks", "markdown_parser"]

_MAX_CODE_LINES: Final = 30  # in one block
_MAX_CHARACTERS: Final = 4000  # in one block


class Block(NamedTuple):
    """One piece of an answer. What `continues` belongs to the block before."""

    kind: Literal["text", "heading", "code"]
    text: str
    language: str = ""
    continues: bool = False


class MarkdownBlocks:
    """The text of one answer."""

    def __init__(self) -> None:
        self._rest = ""  # of a line that has not ended
        self._lines: list[str] = []  # whole lines that belong to no finished block
        self._size = 0  # of these lines
        self._is_parsed = True  # these lines are one block
        self._fence: Token | None = None  # that block, if it is code: the first of these lines opens it
        self._continues = False  # that block was cut: its beginning is finished
        self._finished: list[Block] = []

    def add(self, text: str) -> None:
        """Add text."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._add_line(line)
        if len(self._rest) > _MAX_CHARACTERS:
            # A very long line is cut between two words, or anywhere.
            cut = self._rest.rfind(" ", 1) + 1 or len(self._rest)
            line, self._rest = self._rest[:cut], self._rest[cut:]
            self._add_line(line)

    def take_finished(self) -> list[Block]:
        """The blocks that were finished since the last call."""
        self._parse()
        finished, self._finished = self._finished, []
        return finished

    def end(self) -> list[Block]:
        """Finish the open block; returns all blocks that were not taken before."""
        rest, self._rest = self._rest, ""
        if rest:
            self._add_line(rest)
        self._parse()
        if self._fence is not None:
            self._finish_code(self._fence, is_closed=True)
        else:
            self._finish_text(self._lines)
        self._fence = None
        self._keep([])
        return self.take_finished()

    @property
    def tail(self) -> Block | None:
        """The unfinished block; None if there is none."""
        self._parse()
        lines = [*self._lines, self._rest] if self._rest else self._lines
        if self._fence is not None:
            return Block("code", "\n".join(lines[1:]), _language(self._fence), self._continues)
        return Block("text", "\n".join(lines), "", self._continues) if any(lines) else None

    def _add_line(self, line: str) -> None:
        self._lines.append(line.rstrip("\r"))
        self._size += len(line)
        self._is_parsed = False
        if self._size > _MAX_CHARACTERS:
            self._parse()

    def _keep(self, lines: list[str]) -> None:
        self._lines = lines
        self._size = sum(map(len, lines))

    def _parse(self) -> None:
        """Finish what further lines cannot change, and what is too long to be kept."""
        while not self._is_parsed:
            self._is_parsed = True
            tokens = _block_tokens(self._lines)
            done = self._finish_closed(tokens)
            if self._fence is not None:
                opening, *code = self._lines[done:]
                finished = self._finish_code(self._fence, is_closed=False)
                self._is_parsed = not finished
                self._keep([opening, *code[finished:]])
                continue
            while done < len(self._lines) and not self._lines[done].strip():
                done += 1
            self._keep(self._lines[done:])
            if self._size > _MAX_CHARACTERS:
                self._cut([(-token.level, token.map[0] - done) for token in tokens if token.map])

    def _finish_closed(self, tokens: list[Token]) -> int:
        """Finish all blocks but an open one at the end; returns the number of lines before that."""
        self._fence = None
        done = 0
        blocks = [(at, token.map) for at, token in enumerate(tokens) if token.map and _is_block(token)]
        for at, (start, end) in blocks:
            block, is_last = tokens[at], at == blocks[-1][0]
            if tokens[at - 1].type == "list_item_close":
                self._continues = True
            if block.type == "fence":
                self._finish_text(self._lines[done:start])
                if is_last and end - start == 1 + block.content.count("\n"):  # no line closes it
                    self._fence = block
                    return start
                self._finish_code(block, is_closed=True)
            elif block.type == "heading_open":
                self._finish_text(self._lines[done:start])
                self._finished.append(Block("heading", tokens[at + 1].content))
            elif is_last and block.type != "hr":
                return done
            else:
                self._finish_text(self._lines[done:end])
            done = end
        return done

    def _finish_text(self, lines: list[str]) -> None:
        text = "\n".join(lines).strip("\n")
        if text.strip():
            self._finished.append(Block("text", text, "", self._continues))
            self._continues = False

    def _finish_code(self, fence: Token, *, is_closed: bool) -> int:
        """Finish code piece by piece, and the rest if it has ended or is too long; returns the number of lines."""
        *lines, _ = fence.content.split("\n")
        done = 0
        while done < len(lines):
            piece = lines[done : done + _MAX_CODE_LINES]
            if len(piece) < _MAX_CODE_LINES and not is_closed and sum(map(len, piece)) <= _MAX_CHARACTERS:
                break
            self._finished.append(Block("code", "\n".join(piece), _language(fence), self._continues))
            self._continues = True
            done += len(piece)
        if is_closed:
            self._continues = False
        return done

    def _cut(self, starts: list[tuple[int, int]]) -> None:
        """Finish most of a block that is too long: up to its last item, or what begins last in that; or all of it.

        *starts* are the lines in which its parts begin, each with how deep that part is, negative.
        """
        _, start = max((each for each in starts if each[1] > 0), default=(0, 0))
        self._finish_text(self._lines[: start or None])
        self._continues = start > 0
        self._is_parsed = not self._continues
        self._keep(self._lines[start:] if start else [])


def _block_tokens(lines: list[str]) -> list[Token]:
    parser = markdown_parser()
    return parser.block.parse("\n".join([*lines, ""]), parser, {}, []) or []


@functools.cache
def markdown_parser() -> MarkdownIt:
    """The parser of answers. What rich does not draw is text: HTML, and definitions of links. Images become links."""
    from markdown_it import MarkdownIt  # takes as long as the rest of the start, and is not needed for it

    parser = MarkdownIt("commonmark", {"html": False})
    return parser.enable(["table", "strikethrough"]).disable(["reference", "image"])


def _is_block(token: Token) -> bool:
    if token.level:
        return token.level == 1 and token.type == "list_item_open"
    return token.type not in ("bullet_list_open", "ordered_list_open")


def _language(fence: Token) -> str:
    return fence.info.split()[0] if fence.info.strip() else ""
