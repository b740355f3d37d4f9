"""Writes logs: commits of several sessions as one atomic batch, each with the sequence that its log must end with.

A commit that was not answered is tried again, for a while. Trying again is safe: if the first try was written, the
second is refused, and the last message of the log then has the commit's own id.

A commit that was given up without an answer may still be on its way to the servers. Before its sessions are read or
written again, a message without events is appended to each of their logs. Then the commit is written already, or the
server refuses it whenever it arrives. So what is read then stays true, and the end of the log is known again.

Reading a log costs mostly by the message, not by the event. So the commits of a long log are merged into a few large
ones when its session is opened, while it is used: one atomic batch writes them, and then the older messages are purged.
Between the two, readers find both, and the first merged message says that the log begins there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING, Final

import nats.errors

from halter.cancel.loop_bridge import end_tasks
from halter.errors import NotStorable, StoreError
from halter.stores.nats.commits import (
    NO_EVENTS,
    HeldLog,
    commit_of,
    generation_of,
    headers_of,
    merged_messages,
    to_messages,
)
from halter.stores.nats.requests import retry_unanswered
from halter.stores.nats.streams import MAX_MESSAGES, Append, StreamRefused, WrongSequence
from halter.stores.refusals import lease_lost, out_of_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.client import Client

    from halter.stores.base import Lease, Write
    from halter.stores.nats.log_reader import LogReader
    from halter.stores.nats.names import Names
    from halter.stores.nats.streams import Stream

__all__ = ["LogWriter"]

_log = logging.getLogger(__name__)

_MERGE_READ_SECONDS: Final = 60.0
MERGE_COMMITS: Final = 500  # a log with more commits is merged when it is opened
_MERGE_BYTES: Final = 64 * 1024 * 1024  # a larger log is not merged: writing it again would cost more than it saves
_SOON: Final = 0.01  # seconds until a message that is being written can be read


class LogWriter:
    """Writes the logs of the sessions that this process has. Everything here runs on the loop of the connection."""

    def __init__(self, client: Client, stream: Stream, reader: LogReader, names: Names, patience: float) -> None:
        self.held: dict[Lease, HeldLog] = {}
        self._client = client
        self._stream = stream
        self._reader = reader
        self._names = names
        self._patience = patience  # for a commit that is not answered
        self._unanswered: set[Lease] = set()  # those with a commit that may still be on its way
        self._merging: dict[Lease, asyncio.Task[None]] = {}

    async def begin(self, lease: Lease, held: HeldLog) -> bool:
        """Begin to write a log: the server refuses older owners from now on. False if the lease was taken away."""
        if not await self._fence(lease, held, b""):
            return False
        self.held[lease] = held
        if held.count > MERGE_COMMITS:
            task = self._merging[lease] = asyncio.create_task(self._merge(lease, held.writing))
            task.add_done_callback(lambda _: self._merging.pop(lease, None))
        return True

    async def close(self) -> None:
        """End the merges."""
        await end_tasks(self._merging.values())

    async def _fence(self, lease: Lease, held: HeldLog, body: bytes) -> bool:
        """Append a message without events; False if the lease was taken away.

        After it the server refuses whatever was sent before, by older owners or by this one.
        """
        subject = self._names.log(lease.session)
        while True:
            end = await self._stream.last(subject)
            if end is not None:
                if generation_of(end.headers) > lease.generation:
                    return False
                held.set_end(end)
            held.count += 1
            message = Append(subject, body, headers_of(lease, held, secrets.token_hex(8)), held.sequence)
            with contextlib.suppress(WrongSequence):  # what was sent before is being written just now
                held.sequence = await self._stream.append([message])
                return True
            await asyncio.sleep(_SOON)

    async def settle_session(self, session: str) -> None:
        """Decide for good whether the unanswered commits of a session were written, and set where its log ends."""
        for lease in [each for each in self._unanswered if each.session == session]:
            held = self.held.get(lease)
            if held is None:
                self._unanswered.discard(lease)
                continue
            async with held.writing:
                await self._settle(lease)

    async def _settle(self, lease: Lease) -> None:
        """The same for one lease, whose lock the caller has."""
        if lease not in self._unanswered:
            return
        held = self.held.get(lease)
        if held is None or not held.node.is_alive:
            pass  # the next owner's fence does it
        elif not await self._fence(lease, held, NO_EVENTS):
            self.held.pop(lease, None)
        self._unanswered.discard(lease)

    async def _merge(self, lease: Lease, writing: asyncio.Lock) -> None:
        """Merge the commits of a log. A boundary: if that fails, the log stays as it is, and the next owner tries."""
        subject = self._names.log(lease.session)
        try:
            async with asyncio.timeout(_MERGE_READ_SECONDS):
                bodies, sequence = await self._reader.bodies(lease.session, 0)
            async with writing, asyncio.timeout(self._patience):  # commits of this session wait for it
                more, _ = await self._reader.bodies(lease.session, sequence)  # what was committed meanwhile
                bodies += more
                held = self._own(lease)
                is_other_log = held.writing is not writing  # it was erased meanwhile
                if is_other_log or lease in self._unanswered or sum(map(len, bodies)) > _MERGE_BYTES:
                    return
                messages, after = merged_messages(subject, lease, held, bodies, self._client.max_payload)
                if len(messages) > MAX_MESSAGES:  # the servers allow small messages only
                    return
                after.sequence = await self._append_merged(lease, messages)
                if lease in self.held:
                    self.held[lease] = after
            await self._stream.purge(subject, before=after.sequence - len(messages) + 1)
        except Exception as error:  # noqa: BLE001
            _log.info("the log of session %s was not merged: %s", lease.session, str(error) or type(error).__name__)

    async def _append_merged(self, lease: Lease, messages: list[Append]) -> int:
        try:
            return await self._stream.append(messages)
        except (WrongSequence, StreamRefused):
            raise
        except BaseException:
            self._unanswered.add(lease)
            raise

    def _own(self, lease: Lease) -> HeldLog:
        held = self.held.get(lease)
        if held is None or not held.node.is_alive:
            raise lease_lost(lease)
        return held

    async def commit(self, writes: Sequence[Write]) -> None:
        """Append the events of several sessions: all of them or none. Raises as the store does."""
        async with contextlib.AsyncExitStack() as locks:
            for lease in dict.fromkeys(write.lease for write in writes):
                if lease in self._merging or lease in self._unanswered:  # else nobody else appends to this log
                    await locks.enter_async_context(self._own(lease).writing)
            await self._commit(writes)

    async def _commit(self, writes: Sequence[Write]) -> None:
        commit = secrets.token_hex(8)
        messages: list[Append] = []
        ends: dict[Lease, tuple[HeldLog, int]] = {}  # each log after the commit, and its last message in the batch
        for write in writes:
            await self._settle(write.lease)
            held = self._own(write.lease)
            before, _ = ends.get(write.lease, (held, 0))
            after = before.after(write)
            subject = self._names.log(write.lease.session)
            parts = to_messages(subject, write, headers_of(write.lease, after, commit), self._client.max_payload)
            if before is held:
                parts[0] = parts[0]._replace(expected=held.sequence)
            messages += parts
            ends[write.lease] = after, len(messages)
        if len(messages) > MAX_MESSAGES:
            raise NotStorable("it is too much for one commit; nothing was written", writes[0].lease.session)
        last = await self._append_with_retries(messages, commit, writes)
        for lease, (after, number) in ends.items():
            after.sequence = last - len(messages) + number
            self.held[lease] = after

    async def _append_with_retries(self, messages: list[Append], commit: str, writes: Sequence[Write]) -> int:
        """Append, again and again if there is no answer; note it if one of the tries may still be on its way."""
        is_answered = True

        async def append() -> int:
            nonlocal is_answered
            try:
                return await self._append(messages, commit, writes)
            except (nats.errors.Error, OSError, asyncio.CancelledError):
                is_answered = False
                raise

        try:
            return await retry_unanswered(append, self._patience)
        except BaseException:
            if not is_answered:
                self._unanswered |= {write.lease for write in writes}
            raise

    async def _append(self, messages: list[Append], commit: str, writes: Sequence[Write]) -> int:
        """Append; gives the last sequence. Raises `WriteRefused` if one of the writes is at fault."""
        first = messages[0]
        try:
            return await self._stream.append(messages)
        except WrongSequence:
            end = await self._stream.last(first.subject)
            if end is not None and commit_of(end.headers) == commit:  # an earlier try was written after all
                place = max(number for number, each in enumerate(messages, 1) if each.subject == first.subject)
                return end.sequence - place + len(messages)
            await self._blame(writes)
            raise StoreError("a log was changed by another process at the same time; try again") from None

    async def _blame(self, writes: Sequence[Write]) -> None:
        """Raise the error of the write whose log was changed, after setting where that log ends now."""
        for lease, events, _ in writes:
            held = self._own(lease)
            end = await self._stream.last(self._names.log(lease.session))
            if end is None or end.sequence == held.sequence:
                continue
            # A higher generation in the log is another owner's fence. Never set the end from it: our next write would
            # then expect that message, and the server would accept it.
            if generation_of(end.headers) > lease.generation:
                del self.held[lease]
                raise lease_lost(lease)
            held.set_end(end)
            raise out_of_order(lease, events[0].seq, held.last)

    async def erase(self, lease: Lease) -> None:
        """Delete the log of a session."""
        async with self._own(lease).writing:
            await self._settle(lease)
            await self._erase(lease)

    async def _erase(self, lease: Lease) -> None:
        held = self._own(lease)
        empty = HeldLog(held.node, held.revision)
        empty.sequence = held.sequence
        subject = self._names.log(lease.session)
        try:
            message = Append(subject, b"", headers_of(lease, empty, secrets.token_hex(8)), held.sequence)
            empty.sequence = await self._stream.append([message])
        except WrongSequence:
            raise lease_lost(lease) from None
        self.held[lease] = empty
        await self._stream.purge(subject, before=empty.sequence)  # what is before such a message counts as erased
