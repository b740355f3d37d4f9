"""Splits long texts into messages. While a text only grows, all pieces but the last stay the same."""

from __future__ import annotations

from typing import Final

__all__ = ["size", "split"]

_MIN_FILL: Final = 0.5  # of a message, to cut at the end of a line or word


def size(text: str) -> int:
    """The length of a text in UTF-16 units, as chat platforms count."""
    return len(text) + sum(char > "\uffff" for char in text)


def split(text: str, max_length: int) -> list[str]:
    """Split a text into pieces of at most *max_length* units: between lines, between words, or anywhere."""
    pieces = []
    rest = text.strip()
    while rest:
        limit = _fitting(rest, max_length)
        if limit == len(rest):
            pieces.append(rest)
            break
        cut = _cut(rest, limit)
        pieces.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return pieces


def _fitting(text: str, max_length: int) -> int:
    """How many characters fit."""
    head = text[:max_length]
    over = size(head) - max_length
    while over > 0:
        head = head[:-1] if over == 1 else head[: -((over + 1) // 2)]
        over = size(head) - max_length
    return len(head)


def _cut(text: str, limit: int) -> int:
    """Where to cut: at the end of the last line or word within the first *limit* characters."""
    start = int(limit * _MIN_FILL)
    for mark in ("\n", " "):
        cut = text.rfind(mark, start, limit + 1)
        if cut > 0:
            return cut
    return limit
