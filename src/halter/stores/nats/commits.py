"""Commits as messages of a log: headers, bodies, parts, and events again.

The headers of a log's last message describe the end of the log: the number of its last event, when it was written, and
how many messages wait. So that much is known without reading the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from halter.events import Event, kind_of
from halter.stores.nats.streams import Append
from halter.stores.refusals import out_of_order
from halter.stores.rows import from_body, to_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from halter.stores.base import Lease, Write
    from halter.stores.nats.node import Node
    from halter.stores.nats.streams import Stored

__all__ = [
    "NO_EVENTS",
    "HeldLog",
    "commit_of",
    "events_of",
    "generation_of",
    "headers_of",
    "info_of",
    "is_part",
    "last_of",
    "to_messages",
]

_COMMIT: Final = "Halter-Commit"
_GENERATION: Final = "Halter-Generation"
_LAST: Final = "Halter-Last"  # the number of the log's last event, with this message
_INFO: Final = "Halter-Info"  # when the log began and when it was last written, and how many messages are waiting
_PART: Final = "Halter-Part"  # "2/3", where the body was too large for one message
_ROOM: Final = 4_096  # bytes of a message that are not its body
NO_EVENTS: Final = b"[]"  # the body of a commit that only moves the log's last sequence

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[int, float, str, str, str]]).decode


class HeldLog:
    """The log of a session that this store has the lease of: where it ends."""

    __slots__ = ("created_at", "last", "node", "revision", "sequence", "updated_at", "waiting")

    def __init__(self, node: Node, revision: int) -> None:
        self.node = node
        self.revision = revision  # of the key in the bucket
        self.sequence = 0  # of the log's last message
        self.last = 0  # the number of its last event
        self.created_at = 0.0
        self.updated_at = 0.0
        self.waiting = 0

    def set_end(self, end: Stored) -> None:
        """Set the end of the log from its last message."""
        self.sequence = end.sequence
        self.last = last_of(end.headers)
        self.created_at, self.updated_at, self.waiting = info_of(end.headers)

    def after(self, write: Write) -> HeldLog:
        """The log after a write, except for its sequence. Raises `WriteRefused`."""
        lease, events, waiting = write
        if (events[0].seq, events[-1].seq) != (self.last + 1, self.last + len(events)):
            raise out_of_order(lease, events[0].seq, self.last)
        new = HeldLog(self.node, self.revision)
        new.last = events[-1].seq
        new.created_at = self.created_at or events[0].time
        new.updated_at = events[-1].time
        new.waiting = waiting
        return new


def headers_of(lease: Lease, held: HeldLog, commit: str) -> dict[str, str]:
    """The headers of a message after which the log is *held*."""
    return {
        _COMMIT: commit,
        _GENERATION: str(lease.generation),
        _LAST: str(held.last),
        _INFO: f"{held.created_at!r} {held.updated_at!r} {held.waiting}",
    }


def last_of(headers: Mapping[str, str]) -> int:
    """The number of the log's last event; 0 for a message with which the log was erased."""
    return int(headers[_LAST])


def info_of(headers: Mapping[str, str]) -> tuple[float, float, int]:
    """When the log began, when it was last written, and how many messages wait."""
    created, updated, waiting = headers[_INFO].split()
    return float(created), float(updated), int(waiting)


def commit_of(headers: Mapping[str, str]) -> str:
    """The id of the commit that a message is part of."""
    return headers.get(_COMMIT, "")


def generation_of(headers: Mapping[str, str]) -> int:
    """The generation of the lease with which a message was written."""
    return int(headers[_GENERATION])


def is_part(headers: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether the body is only a part, and whether it is the last one."""
    number, _, of = headers.get(_PART, "1/1").partition("/")
    return of != "1", number == of


def to_messages(subject: str, write: Write, headers: dict[str, str], max_payload: int) -> list[Append]:
    """A write as messages: one, or several if it is too large. Raises `NotStorable`."""
    body = _encode(to_rows(write))
    size = max(max_payload - _ROOM, 1)
    if len(body) <= size:
        return [Append(subject, body, headers, None)]
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return [
        Append(subject, part, headers | {_PART: f"{number}/{len(parts)}"}, None) for number, part in enumerate(parts, 1)
    ]


def events_of(session: str, body: bytes, after: int = 0, without: Collection[str] = ()) -> list[Event]:
    """The events of one commit with higher numbers than *after*, without these kinds."""
    found: list[Event] = []
    for last, at, turn, kind, text in _decode(body) if body else ():
        data = from_body(session, last, kind, text)
        for seq, each in enumerate(data, last - len(data) + 1):
            if seq > after and not (without and kind_of(each) in without):
                found.append(Event(seq, at, session, turn, each))
    return found
