"""Reads logs: the events after a number, where a log ends, and the list of all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.stores.base import SessionInfo
from halter.stores.nats.commits import events_of, info_of, is_merged, is_part, last_of, starts_log
from halter.stores.nats.names import session_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from halter.events import Event
    from halter.stores.nats.names import Names
    from halter.stores.nats.streams import Stored, Stream

__all__ = ["LogReader"]

_PAUSE: Final = 0.1  # seconds, for a replica to catch up
_FEW: Final = 512  # events of a log that are read rather than searched
_MAX_HINTS: Final = 10_000  # logs of which a place is remembered


class _Commit(NamedTuple):
    """A commit, from one message or several."""

    body: bytes
    last: int  # the number of the log's last event then
    sequence: int
    starts_log: bool  # what is before it counts as removed


class LogReader:
    """Reads the logs of a stream. Everything here runs on the loop of the connection."""

    def __init__(self, stream: Stream, names: Names) -> None:
        self._stream = stream
        self._names = names
        self._places: dict[str, tuple[int, int]] = {}  # of a log: after this event, from this sequence on

    async def last_number(self, session: str) -> int:
        """The number of a log's last event; 0 if there is no such log."""
        end = await self._stream.last(self._names.log(session))
        return last_of(end.headers) if end is not None else 0

    async def sessions(self) -> list[SessionInfo]:
        """All sessions, the most recently used first."""
        found = []
        for end in await self._stream.last_of_all(self._names.logs, headers_only=True):
            created, updated, waiting = info_of(end.headers)
            events = last_of(end.headers)
            if events:
                session = session_of(end.subject.rpartition(".")[2])
                found.append(SessionInfo(session, created, updated, events, waiting))
        return sorted(found, key=lambda info: info.updated_at, reverse=True)

    async def read(self, session: str, after: int, limit: int | None, without: Collection[str]) -> list[Event]:
        """The events with higher numbers than *after*, without these kinds."""
        subject = self._names.log(session)
        end = await self._stream.last(subject)
        if end is None or last_of(end.headers) <= after or limit == 0:
            return []
        sequence = await self._find(session, after, end.sequence) if after and last_of(end.headers) > _FEW else 1
        events: list[Event] = []
        known, place = after, sequence  # the events after *known* begin at *place*
        async for commit in self._commits(subject, sequence, end, limit):
            if commit.starts_log:
                events = []
            events += events_of(session, commit.body, after, without)
            if limit is not None and len(events) >= limit:
                break
            known, place = commit.last, commit.sequence + 1
        self._remember(session, known, place)
        return events if limit is None else events[:limit]

    async def bodies(self, session: str, after: int) -> tuple[list[bytes], int]:
        """The bodies of a log's commits after a sequence, and the sequence of the last one."""
        subject = self._names.log(session)
        found: list[bytes] = []
        end = await self._stream.last(subject)
        if end is None or end.sequence <= after:
            return found, after
        async for commit in self._commits(subject, after + 1, end, None):
            if commit.starts_log:
                found = []
            found.append(commit.body)
            after = commit.sequence  # also of one that was committed after we began to read
        return found, after

    async def _commits(
        self, subject: str, sequence: int, end: Stored, page_size: int | None
    ) -> AsyncGenerator[_Commit, None]:
        """The commits of a log, each in one piece: from a sequence on to what was its end.

        If the log is merged meanwhile, its commits are found behind that end, and all of them are yielded.
        """
        parts: list[bytes] = []
        is_start = is_merged_now = False
        last = 0
        while sequence <= end.sequence or (is_merged_now and last < last_of(end.headers)):
            page = await self._stream.read(subject, sequence, page_size)
            if not page:  # a replica that is behind the leader has answered
                await asyncio.sleep(_PAUSE)
            for message in page:
                sequence = message.sequence + 1
                if starts_log(message.headers):
                    parts, is_start = [], True
                    is_merged_now = is_merged(message.headers)
                parts.append(message.body)
                if is_part(message.headers)[1]:
                    last = last_of(message.headers)
                    yield _Commit(b"".join(parts), last, message.sequence, is_start)
                    parts, is_start = [], False

    def _remember(self, session: str, after: int, sequence: int) -> None:
        """Remember where the events after a number begin: readers go on there.

        Also right after the log was erased: what is then written with a higher number is behind that place, too.
        """
        self._places.pop(session, None)
        self._places[session] = after, sequence
        if len(self._places) > _MAX_HINTS:
            del self._places[next(iter(self._places))]

    async def _find(self, session: str, after: int, last: int) -> int:
        """A sequence from which on the events with a higher number than *after* are found."""
        number, place = self._places.get(session, (0, 1))
        if 0 <= after - number <= _FEW:
            return place
        low, high = (place, last) if number < after else (1, min(place, last))
        subject = self._names.log(session)
        while low < high:
            middle = (low + high) // 2
            found = await self._stream.next(subject, middle)
            if found is None or last_of(found.headers) > after:
                high = middle
            else:
                low = found.sequence + 1
        return low
