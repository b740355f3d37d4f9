"""Long texts in pieces that fit into messages. A text that only grows keeps all of its pieces but the last."""

from __future__ import annotations

from typing import Final

__all__ = ["size", "split"]

_ENOUGH: Final = 0.5  # of a message has to be filled before a cut at a line's or a word's end is worth it


def size(text: str) -> int:
    """The length of a text in UTF-16 units, as chat platforms count."""
    return len(text) + sum(char > "\uffff" for char in text)


def split(text: str, longest: int) -> list[str]:
    """Cut a text into pieces of at most *longest* units: between lines, or words, or if need be anywhere."""
    pieces = []
    rest = text.strip()
    while rest:
        most = _most(rest, longest)
        if most == len(rest):
            pieces.append(rest)
            break
        cut = _cut(rest, most)
        pieces.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return pieces


def _most(text: str, longest: int) -> int:
    """How many characters fit."""
    head = text[:longest]
    over = size(head) - longest
    while over > 0:
        head = head[:-1] if over == 1 else head[: -((over + 1) // 2)]
        over = size(head) - longest
    return len(head)


def _cut(text: str, most: int) -> int:
    """Where to cut, behind the last line or word of the first *most* characters."""
    least = int(most * _ENOUGH)
    for mark in ("\n", " "):
        place = text.rfind(mark, least, most + 1)
        if place > 0:
            return place
    return most
