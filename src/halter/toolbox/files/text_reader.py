"""Reads text files of any size, line by line, in bounded memory."""

from __future__ import annotations

import codecs
import io
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from halter.cancel.context import checkpoint
from halter.models.image_types import image_type
from halter.models.types import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LineIndex", "OpenFile", "TextReader", "is_binary", "show"]

_CHUNK: Final = 1 << 18  # bytes
_MAX_LINE: Final = 2_000  # characters of one line
_MAX_TEXT: Final = 80_000  # characters of one call
_MAX_COUNTED: Final = 32_000_000  # bytes of a file whose lines are counted to the end
_MAX_IMAGE: Final = 5_000_000  # bytes
_MAX_UTF16: Final = 4_000_000  # bytes
_BLOCK: Final = 100  # lines that are yielded together
_HEAD: Final = 8_192  # bytes that are checked for the encoding
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class LineIndex(Protocol):
    """An index of the lines of a file, so that the file need not be read to find a line."""

    def count(self) -> int:
        """The number of lines."""
        ...

    def offset(self, line: int) -> int:
        """Where that line begins, or the end of the file."""
        ...


class OpenFile(Protocol):
    """An open binary file."""

    @property
    def size(self) -> int: ...
    @property
    def line_index(self) -> LineIndex | None: ...
    def read(self, size: int, /) -> bytes | None: ...
    def seek(self, offset: int, /) -> object: ...
    def close(self) -> None: ...


def show(file: OpenFile, path: str, start: int, count: int) -> Iterator[str | Image]:
    """Yield *count* lines of a text file from line *start* on, numbered; or the image that it is."""
    head = file.read(32) or b""
    file.seek(0)
    media_type = image_type(head)
    if not media_type:
        yield from TextReader(file, path).blocks(start, count)
    elif file.size > _MAX_IMAGE:
        raise ValueError(f"{path} is an image of {file.size:,} bytes; the limit is {_MAX_IMAGE:,}")
    else:
        yield Image(file.read(_MAX_IMAGE) or b"", media_type=media_type)


def is_binary(head: bytes) -> bool:
    """Whether a file that begins like this is binary: it has null bytes."""
    return b"\0" in head[:_HEAD]


class _Line(NamedTuple):
    number: int
    data: bytes  # as much of it as may be shown
    length: int  # of all of it, in bytes


class TextReader:
    """One text file. *file* is unbuffered and binary."""

    def __init__(self, file: OpenFile, path: str) -> None:
        self._file: OpenFile | io.BytesIO = file
        self._index = file.line_index
        self._path = path
        self._size = file.size
        self._notes: list[str] = []
        self._shown = 0  # characters
        self._is_full = False
        self._line_count = 0  # lines of the whole file, once its end was reached

    def blocks(self, start: int, count: int) -> Iterator[str]:
        """Yield *count* lines from line *start* on, numbered, some at a time; then notes."""
        self._check_encoding()
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
        elif last < start and start > max(self._line_count, 1):
            raise ValueError(f"{self._path} has only {self._line_count:,} lines; there is no line {start:,}")
        elif last < start:
            self._notes.append("the file is empty")
        yield from self._notes_text()

    def _check_encoding(self) -> None:
        """Check the beginning: refuse what is not text, and skip a byte order mark."""
        head = self._file.read(_HEAD) or b""
        if head.startswith(_UTF16) and self._size <= _MAX_UTF16:
            self._file.seek(0)
            text = (self._file.read(_MAX_UTF16) or b"").decode("utf-16", errors="replace")
            self._file, self._index = io.BytesIO(text.encode(errors="replace")), None
            self._notes.append("the file is UTF-16")
        elif is_binary(head):
            raise ValueError(f"{self._path} is a binary file of {self._size:,} bytes; it cannot be read as text")
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
                self._line_count = self._index.count()
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
                kept += chunk[at : min(end, at + _MAX_LINE * 4)]
                yield _Line(number, kept[: _MAX_LINE * 4], length + end - at)
                number, at, kept, length = number + 1, end + 1, b"", 0
            if len(kept) < _MAX_LINE * 4:
                kept += chunk[at : at + _MAX_LINE * 4]
            length += len(chunk) - at
        if length and number >= start:
            yield _Line(number, kept[: _MAX_LINE * 4], length)
        self._line_count = number if length else number - 1

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
        if len(text) > _MAX_LINE or line.length > len(line.data):
            text = f"{text[:_MAX_LINE]} [... this line has {line.length:,} bytes]"
        text = f"{line.number:>6}\t{text}"
        self._shown += len(text) + 1
        self._is_full = self._shown >= _MAX_TEXT
        return text

    def _rest(self, start: int, last: int) -> Iterator[str]:
        """Note what was left out; a huge file is not read to its end for that."""
        if self._size > _MAX_COUNTED:
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
        yield from self._notes_text()

    def _cut_note(self, start: int, last: int, total: str) -> str:
        why = f"more than {_MAX_TEXT:,} characters; " if self._is_full else ""
        return f"{why}lines {start:,} to {last:,} of {total}; continue with start={last + 1}"

    def _notes_text(self) -> Iterator[str]:
        if self._notes:
            yield f"[{'; '.join(self._notes)}]"


def _joined(lines: list[str]) -> Iterator[str]:
    if lines:
        yield "\n".join(lines)
