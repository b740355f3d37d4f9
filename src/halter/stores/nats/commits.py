"""Commits as messages of a log: headers, bodies, parts, and events again.

The headers of a log's last message describe the end of the log: the number of its last event, when it was written, how
many messages wait, and how many commits the log has. So that much is known without reading the log.

The commits of a long log are merged into a few large ones. The first of these says that the log begins with it: what is
before it counts as removed.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from halter.events import Event, kind_of
from halter.stores.nats.streams import Append
from halter.stores.refusals import out_of_order
from halter.stores.rows import from_body, to_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

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
    "is_merged",
    "is_part",
    "last_of",
    "merged_messages",
    "starts_log",
    "to_messages",
]

_COMMIT: Final = "Halter-Commit"
_GENERATION: Final = "Halter-Generation"
_LAST: Final = "Halter-Last"  # the number of the log's last event, with this message
_INFO: Final = "Halter-Info"  # when the log began and when it was last written, and how many messages are waiting
_COUNT: Final = "Halter-Count"  # how many commits the log has, with this one
_MERGED: Final = "Halter-Merged"  # "first" or "next": this one replaces older ones
_PART: Final = "Halter-Part"  # "2/3", where the body was too large for one message
_ROOM: Final = 4_096  # bytes of a message that are not its body
_MERGED_SIZE: Final = 256 * 1024  # characters of a merged commit: few messages, and readers of a page get little more
NO_EVENTS: Final = b"[]"  # the body of a commit that only moves the log's last sequence

_encode = msgspec.json.Encoder().encode
_Row: TypeAlias = tuple[int, float, str, str, str]  # as `to_rows()` makes them
_decode = msgspec.json.Decoder(list[_Row]).decode


class HeldLog:
    """The log of a session that this store has the lease of: where it ends."""

    __slots__ = ("count", "created_at", "last", "node", "revision", "sequence", "updated_at", "waiting", "writing")

    def __init__(self, node: Node, revision: int) -> None:
        self.node = node
        self.revision = revision  # of the key in the bucket
        self.sequence = 0  # of the log's last message
        self.last = 0  # the number of its last event
        self.created_at = 0.0
        self.updated_at = 0.0
        self.waiting = 0
        self.count = 0  # of commits
        self.writing = asyncio.Lock()  # for appends, where others append to this log as well

    def at_start(self) -> HeldLog:
        """The same lease, at the beginning of the log."""
        new = HeldLog(self.node, self.revision)
        new.writing = self.writing
        return new

    def set_end(self, end: Stored) -> None:
        """Set the end of the log from its last message."""
        self.sequence = end.sequence
        self.last = last_of(end.headers)
        self.created_at, self.updated_at, self.waiting = info_of(end.headers)
        self.count = int(end.headers.get(_COUNT, "0"))

    def after(self, write: Write) -> HeldLog:
        """The log after a write, except for its sequence. Raises `WriteRefused`."""
        lease, events, waiting = write
        if (events[0].seq, events[-1].seq) != (self.last + 1, self.last + len(events)):
            raise out_of_order(lease, events[0].seq, self.last)
        new = self.at_start()
        new.last = events[-1].seq
        new.created_at = self.created_at or events[0].time
        new.updated_at = events[-1].time
        new.waiting = waiting
        new.count = self.count + 1
        return new


def headers_of(lease: Lease, held: HeldLog, commit: str) -> dict[str, str]:
    """The headers of a message after which the log is *held*."""
    return {
        _COMMIT: commit,
        _GENERATION: str(lease.generation),
        _LAST: str(held.last),
        _INFO: f"{held.created_at!r} {held.updated_at!r} {held.waiting}",
        _COUNT: str(held.count),
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


def is_merged(headers: Mapping[str, str]) -> bool:
    """Whether a message only repeats what the log had before, in a commit that replaces others."""
    return _MERGED in headers


def starts_log(headers: Mapping[str, str]) -> bool:
    """Whether the log begins with this message: what is before it was erased, or merged into this and the next ones."""
    is_first = headers.get(_MERGED) == "first" and headers.get(_PART, "1/1").startswith("1/")
    return is_first or last_of(headers) == 0


def to_messages(subject: str, write: Write, headers: dict[str, str], max_payload: int) -> list[Append]:
    """A write as messages: one, or several if it is too large. Raises `NotStorable`."""
    return _in_parts(subject, _encode(to_rows(write)), headers, max_payload)


def merged_messages(
    subject: str, lease: Lease, held: HeldLog, bodies: Iterable[bytes], max_payload: int
) -> tuple[list[Append], HeldLog]:
    """All commits of a log as a few large ones, and what is held once they are written, but for the sequence."""
    after = held.at_start()
    after.created_at, after.updated_at, after.waiting = held.created_at, held.updated_at, held.waiting
    commit = secrets.token_hex(8)
    messages: list[Append] = []
    for rows in _merged(bodies):
        after.last = rows[-1][0]
        after.count += 1
        headers = headers_of(lease, after, commit) | {_MERGED: "next" if messages else "first"}
        messages += _in_parts(subject, _encode(rows), headers, max_payload)
    if messages:
        messages[0] = messages[0]._replace(expected=held.sequence)
    return messages, after


def _merged(bodies: Iterable[bytes]) -> Iterator[list[_Row]]:
    rows: list[_Row] = []
    size = 0
    for body in bodies:
        for row in _decode(body) if body else ():
            if rows and size + len(row[-1]) > _MERGED_SIZE:
                yield rows
                rows, size = [], 0
            rows.append(row)
            size += len(row[-1])
    if rows:
        yield rows


def _in_parts(subject: str, body: bytes, headers: dict[str, str], max_payload: int) -> list[Append]:
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
