"""Text of any size, line by line, in bounded memory; and what to say of what is no text."""

from __future__ import annotations

import codecs
import io
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from halter.cancel.context import checkpoint
from halter.models.model import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LineIndex", "Readable", "Reader", "is_binary", "show"]

_CHUNK: Final = 1 << 18
_MOST_LINE: Final = 2_000  # characters of one line
_MOST_TEXT: Final = 80_000  # characters of one call
_MOST_COUNTED: Final = 32_000_000  # bytes of a file whose lines are counted to the end
_MOST_IMAGE: Final = 5_000_000
_MOST_UTF16: Final = 4_000_000
_BLOCK: Final = 100  # lines that are given together
_SNIFFED: Final = 8_192
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Readable(Protocol):
    """An open file."""

    def read(self, size: int, /) -> bytes | None: ...
    def seek(self, offset: int, /) -> object: ...


class LineIndex(Protocol):
    """Who knows where the lines of a file are, so that it need not be read for that."""

    def count(self) -> int:
        """How many there are."""
        ...

    def offset(self, line: int) -> int:
        """Where that line begins, or the end of the file."""
        ...


def show(
    file: Readable, path: str, size: int, start: int, count: int, index: LineIndex | None = None
) -> Iterator[str | Image]:
    """Give *count* lines of a text file from line *start* on, numbered; or the picture that it is."""
    head = file.read(32) or b""
    file.seek(0)
    media_type = _image_type(head)
    if not media_type:
        yield from Reader(file, path, size, index).blocks(start, count)
    elif size > _MOST_IMAGE:
        msg = f"{path} is a picture of {size:,} bytes; at most {_MOST_IMAGE:,} can be shown"
        raise ValueError(msg)
    else:
        yield Image(file.read(_MOST_IMAGE) or b"", media_type=media_type)


def _image_type(head: bytes) -> str:
    """The media type of a picture that models can see, by its first bytes; else nothing."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else ""


def is_binary(head: bytes) -> bool:
    """Whether a file that begins like this is no text: it has null bytes."""
    return b"\0" in head[:_SNIFFED]


class _Line(NamedTuple):
    number: int
    data: bytes  # as much of it as may be shown
    length: int  # of all of it, in bytes


class Reader:
    """One text file. *file* is unbuffered and binary."""

    def __init__(self, file: Readable, path: str, size: int, index: LineIndex | None = None) -> None:
        self._file: Readable = file
        self._index = index
        self._path = path
        self._size = size
        self._notes: list[str] = []
        self._shown = 0  # characters
        self._is_full = False
        self._passed = 0  # lines of the whole file, once its end was reached

    def blocks(self, start: int, count: int) -> Iterator[str]:
        """Give *count* lines from line *start*, numbered, some at a time; then what else there is to say."""
        self._look()
        block: list[str] = []
        last = start - 1
        for line in self._lines(start):
            if last - start + 1 >= count or self._is_full:
                yield from _joined(block)
                yield from self._rest(start, last)
                return
            text = self._text(line)
            last = line.number
            block.append(text)
            if len(block) >= _BLOCK:
                yield from _joined(block)
                block = []
        yield from _joined(block)
        if last >= start > 1:
            self._notes.append(f"lines {start:,} to {last:,}: the end of the file")
        elif last < start and start > max(self._passed, 1):
            msg = f"{self._path} has only {self._passed:,} lines; line {start:,} is behind its end"
            raise ValueError(msg)
        elif last < start:
            self._notes.append("the file is empty")
        yield from self._said()

    def _look(self) -> None:
        """Look at the beginning: refuse what is no text, and drop a mark of its encoding."""
        head = self._file.read(_SNIFFED) or b""
        if head.startswith(_UTF16) and self._size <= _MOST_UTF16:
            self._file.seek(0)
            text = (self._file.read(_MOST_UTF16) or b"").decode("utf-16", errors="replace")
            self._file, self._index = io.BytesIO(text.encode(errors="replace")), None
            self._notes.append("the file is UTF-16")
        elif is_binary(head):
            msg = f"{self._path} is a binary file of {self._size:,} bytes; it cannot be read as text"
            raise ValueError(msg)
        elif head.startswith(codecs.BOM_UTF8):
            self._file.seek(len(codecs.BOM_UTF8))
            self._notes.append("the file begins with a byte order mark")
        else:
            self._file.seek(0)

    def _chunks(self) -> Iterator[bytes]:
        while chunk := self._file.read(_CHUNK):
            checkpoint()
            yield chunk

    def _lines(self, start: int) -> Iterator[_Line]:
        """The lines from *start* on. Those before are counted, and of none is more kept than can be shown."""
        number = 1
        kept, length = b"", 0
        if self._index is not None and start > 1:
            offset = self._index.offset(start)
            if offset >= self._size:
                self._passed = self._index.count()
                return
            self._file.seek(offset)
            number = start
        for chunk in self._chunks():
            at = 0
            if number < start:
                passed = chunk.count(b"\n")
                if number + passed < start:
                    number += passed
                    length = 0 if chunk.endswith(b"\n") else 1
                    continue
                for _ in range(start - number):
                    at = chunk.index(b"\n", at) + 1
                number = start
                kept, length = b"", 0
            while (end := chunk.find(b"\n", at)) >= 0:
                kept += chunk[at : min(end, at + _MOST_LINE * 4)]
                yield _Line(number, kept[: _MOST_LINE * 4], length + end - at)
                number, at, kept, length = number + 1, end + 1, b"", 0
            if len(kept) < _MOST_LINE * 4:
                kept += chunk[at : at + _MOST_LINE * 4]
            length += len(chunk) - at
        if length and number >= start:
            yield _Line(number, kept[: _MOST_LINE * 4], length)
        self._passed = number if length else number - 1

    def _text(self, line: _Line) -> str:
        """A line as it is shown."""
        data = line.data.removesuffix(b"\r") if line.length == len(line.data) else line.data
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(data, line.length <= len(line.data))
        except UnicodeDecodeError:
            text = data.decode("latin-1")
            note = "some of it is not UTF-8 and is shown as Latin-1"
            if note not in self._notes:
                self._notes.append(note)
        if len(text) > _MOST_LINE or line.length > len(line.data):
            text = f"{text[:_MOST_LINE]} [... this line has {line.length:,} bytes]"
        text = f"{line.number:>6}\t{text}"
        self._shown += len(text) + 1
        self._is_full = self._shown >= _MOST_TEXT
        return text

    def _rest(self, start: int, last: int) -> Iterator[str]:
        """Tell what was left out; a huge file is not read to its end for that."""
        if self._size > _MOST_COUNTED:
            self._notes.append(self._cut_note(start, last, f"more, in a file of {self._size:,} bytes"))
        elif self._index is not None:
            self._notes.append(self._cut_note(start, last, f"{self._index.count():,}"))
        else:
            self._file.seek(0)
            number, ends_open = 0, False
            for chunk in self._chunks():
                number += chunk.count(b"\n")
                ends_open = not chunk.endswith(b"\n")
            self._notes.append(self._cut_note(start, last, f"{number + ends_open:,}"))
        yield from self._said()

    def _cut_note(self, start: int, last: int, total: str) -> str:
        why = f"more than {_MOST_TEXT:,} characters; " if self._is_full else ""
        return f"{why}lines {start:,} to {last:,} of {total}; go on with start={last + 1}"

    def _said(self) -> Iterator[str]:
        if self._notes:
            yield f"[{'; '.join(self._notes)}]"


def _joined(lines: list[str]) -> Iterator[str]:
    if lines:
        yield "\n".join(lines)
