"""The result of a tool as content for a model: text, or parts with images and audio; never larger than a limit.

A text that is too long keeps its beginning and its end, and says in between how much was left out.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from halter.models.types import Audio, Image, Part, Text

if TYPE_CHECKING:
    from collections.abc import Iterable

Content: TypeAlias = str | list[Part]
Piece: TypeAlias = str | Part

MAX_CHARACTERS: Final = 100_000
# A limit must leave room for the note about what was left out.
_MIN_LIMIT: Final = 100


def render(value: object, limit: int = MAX_CHARACTERS) -> Content:
    """Turn what a tool returned into content.

    Text and parts stay as they are; None is empty; what `msgspec` or pydantic can encode becomes JSON; anything else is
    its `str()`. Bytes are text if they are UTF-8, else only their number is given.
    """
    pieces = Pieces(limit)
    pieces.add(value)
    return pieces.content()


def bound(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Shorten *text* to at most *limit* characters, with a note about what was left out."""
    bounded = _Bounded(limit)
    bounded.add(text)
    return bounded.text()


def error_text(error: BaseException) -> str:
    """The type and message of an error, with bounded length. A boundary: its own `__str__` may fail."""
    name = type(error).__name__
    try:
        words = str(error)
    except Exception as failure:  # noqa: BLE001  (a foreign __str__ may raise anything)
        words = f"(it cannot be shown: {type(failure).__name__})"
    return bound(_clean(f"{name}: {words}" if words else name))


class Pieces:
    """What a tool yields, in bounded memory.

    Each piece begins on a new line. The yields of a generator are added as they come, so ``content()`` is the partial
    result at any time.
    """

    def __init__(self, limit: int = MAX_CHARACTERS) -> None:
        self._all = _Bounded(limit)  # the whole text, for when it must be shortened
        self._parts: list[Part] = []  # texts and media in order; the texts are dropped once there is too much
        self._is_new_line = True

    def add(self, value: object) -> None:
        """Add what was yielded or returned; None adds nothing."""
        self.extend(pieces_of(value))

    def extend(self, pieces: Iterable[Piece]) -> None:
        """Add pieces. Unlike add() it runs only our own code, so it may be called with a lock held."""
        for piece in pieces:
            if isinstance(piece, str):
                self._add_text(piece)
            else:
                self._parts.append(piece)

    def _add_text(self, text: str) -> None:
        if not text:
            return
        is_after_text = bool(self._parts) and isinstance(self._parts[-1], Text)
        if not self._is_new_line:
            self._all.add("\n")
            if is_after_text:
                self._parts.append(Text("\n"))
        self._is_new_line = text.endswith("\n")
        self._all.add(text)
        if self._all.is_complete:
            self._parts.append(Text(text))
        else:
            self._parts = [part for part in self._parts if not isinstance(part, Text)]

    def content(self) -> Content:
        """All pieces so far: a text, or parts if there are images or audio among them."""
        if all(isinstance(part, Text) for part in self._parts):
            return self._all.text()
        if not self._all.is_complete:
            return [Text(self._all.text()), *self._parts]
        merged: list[Part] = []
        for is_text, run in itertools.groupby(self._parts, lambda part: isinstance(part, Text)):
            parts = list(run)
            merged += [Text("".join(part.text for part in parts if isinstance(part, Text)))] if is_text else parts
        return merged


class _Bounded:
    """A text of which no more is kept than will be shown."""

    def __init__(self, limit: int) -> None:
        if limit < _MIN_LIMIT:
            raise ValueError(
                f"a limit below {_MIN_LIMIT} characters leaves no room for the note about what was left out: {limit}"
            )
        self._limit = limit
        self._head: list[str] = []
        self._head_length = 0
        self._tail: collections.deque[str] = collections.deque()
        self._tail_length = 0
        self._length = 0

    @property
    def is_complete(self) -> bool:
        return self._length <= self._limit

    def add(self, text: str) -> None:
        self._length += len(text)
        room = self._limit - self._head_length
        if room > 0:
            self._head.append(text[:room])
            self._head_length += len(self._head[-1])
            text = text[room:]
        if not text:
            return
        self._tail.append(text[-self._limit :])
        self._tail_length += len(self._tail[-1])
        while self._tail_length - len(self._tail[0]) >= self._limit:
            self._tail_length -= len(self._tail.popleft())

    def text(self) -> str:
        head = "".join(self._head)
        if self.is_complete:
            return head
        # The note gets longer with the number in it: reserve space for the longest one possible.
        longest = len(_notice(self._length))
        kept = self._limit - longest
        first, last = kept - kept // 2, kept // 2
        end = (head + "".join(self._tail))[-last:]
        return head[:first] + _notice(self._length - kept) + end


def _notice(left_out: int) -> str:
    return f"\n[... {left_out:,} characters left out ...]\n"


def pieces_of(value: object) -> list[Piece]:
    """One value as texts and parts. This may run the value's own code, and so take any time."""
    if isinstance(value, Text):
        return [_clean(value.text)]
    if isinstance(value, (Image, Audio)):
        return [value]
    if isinstance(value, (list, tuple)) and any(isinstance(item, (Text, Image, Audio)) for item in value):
        return [piece for item in value for piece in pieces_of(item)]
    return [_clean(_text_of(value))]


def _text_of(value: object) -> str:
    """A value as text. A boundary: an object that cannot be shown is described, and does not fail the call."""
    if value is None:
        return ""
    if isinstance(value, str):
        return str.__str__(value)  # not str(): that of a str Enum is its name
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return _text_of_bytes(bytes(value))
        return _json_or_str(value)
    except Exception as error:  # noqa: BLE001  (foreign __str__ and friends may raise anything)
        return f"(a {type(value).__qualname__} that cannot be shown: {type(error).__name__})"


def _text_of_bytes(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"({len(data):,} bytes that are not text)"


def plain_value(value: object) -> Any:
    """A value as JSON has it, for logs and wires. A boundary: what cannot be written becomes a text about it."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_encode_foreign))
    except Exception:  # noqa: BLE001  (foreign code may raise anything)
        return _clean(_text_of(value))


def _encode_foreign(value: object) -> object:
    """Encode what msgspec does not know: a pydantic model as its fields, a path as such, anything else as its text."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value)


def _json_or_str(value: object) -> str:
    def foreign(item: object) -> object:
        is_plain = callable(getattr(item, "model_dump", None)) or isinstance(item, os.PathLike)
        if item is value and not is_plain:
            raise _NotPlain
        return _encode_foreign(item)

    try:
        plain = msgspec.to_builtins(value, enc_hook=foreign, str_keys=True)
        return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
    except (_NotPlain, TypeError, UnicodeEncodeError):
        return str(value)


class _NotPlain(Exception):
    """The value itself has a type without a JSON form."""


def _clean(text: str) -> str:
    """Escape lone surrogates, as in file names that are not UTF-8: they cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def close_unused(value: object) -> None:
    """Close a coroutine that will not be awaited, or Python would warn about it."""
    if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()
