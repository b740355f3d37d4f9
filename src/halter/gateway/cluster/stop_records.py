"""Stops that did not reach their node, in a bucket.

The node finds them there when it can be reached again, or the next node does, before it runs anything in the session.
A record names the last event that the log had. It does not hold messages accepted later, and does not stop a turn that
has only such messages. A session has one record: a second stop is merged with the one that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import nats.errors
import nats.js.errors
from msgspec import Struct, structs
from nats.js.api import KeyValueConfig, StorageType

from halter.cancel.loop_bridge import end_tasks
from halter.errors import StoreError
from halter.stores.nats.names import session_of, token_of
from halter.stores.nats.requests import ANSWER_SECONDS, retry_unanswered
from halter.stores.nats.schema import open_bucket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.client import Client
    from nats.js.kv import KeyValue

    from halter.stores.nats.store import NATSStore

__all__ = ["StopRecord", "StopRecords"]

_log = logging.getLogger(__name__)
_PAUSE: Final = 2.0  # seconds until a watch that broke begins again
_DAY: Final = 86_400.0
_MAX_WRITES: Final = 10  # attempts, while other nodes write the same record


class StopRecord(Struct, frozen=True):
    """A stop of a session, as it was asked for when the log ended with event *last*."""

    id: str
    last: int
    scope: Literal["turn", "all"]
    reason: str
    detail: str
    turn: str = ""  # stop only this one

    def merged(self, earlier: StopRecord) -> StopRecord:
        """One stop that does what this one and an earlier one do."""
        wider = structs.replace(
            self,
            last=max(self.last, earlier.last),
            scope="all" if "all" in (self.scope, earlier.scope) else "turn",
            turn=self.turn if self.turn == earlier.turn else "",
        )
        # A node that was also asked directly for this stop must not take the wider one for done.
        return self if wider == self else structs.replace(wider, id=secrets.token_hex(8))


class StopRecords:
    """The bucket. Everything here runs on the loop of the connection."""

    def __init__(self, client: Client, store: NATSStore) -> None:
        self._js = client.jetstream(timeout=ANSWER_SECONDS)
        self._store = store
        self._bucket: KeyValue
        self._watching: asyncio.Task[None] | None = None

    async def start(self, carry_out: Callable[[str, StopRecord], Awaitable[bool]]) -> None:
        """Have *carry_out* called with each record of a session; True if that is done and the record can go."""
        name = self._store.names.stops
        config = KeyValueConfig(name, storage=StorageType.FILE, replicas=self._store.replicas, direct=False, ttl=_DAY)
        self._bucket = await retry_unanswered(lambda: open_bucket(self._js, config), self._store.patience)
        self._watching = asyncio.create_task(self._watch(carry_out))

    async def close(self) -> None:
        """Take no more."""
        if self._watching is not None:
            await end_tasks([self._watching])

    async def write(self, session: str, record: StopRecord) -> None:
        """Keep a stop durably, with the one that waits for the session already. Raises an error of `nats`."""
        for _ in range(_MAX_WRITES - 1):
            with contextlib.suppress(nats.js.errors.KeyWrongLastSequenceError):  # another node has changed it
                return await self._write_merged(session, record)
        return await self._write_merged(session, record)

    async def _write_merged(self, session: str, record: StopRecord) -> None:
        entry = await self._entry(session)
        if entry is None:
            await self._bucket.create(token_of(session), msgspec.json.encode(record))
        else:
            merged = record.merged(_decode(entry))
            await self._bucket.update(token_of(session), msgspec.json.encode(merged), last=entry.revision)

    async def find(self, session: str) -> StopRecord | None:
        """The stop that waits for a session. Raises an error of `nats`."""
        entry = await self._entry(session)
        return _decode(entry) if entry is not None else None

    async def _entry(self, session: str) -> KeyValue.Entry | None:
        try:
            return await self._bucket.get(token_of(session))
        except nats.js.errors.NotFoundError:
            return None

    async def remove(self, session: str, record: StopRecord) -> None:
        """Remove a record that was carried out, unless there is a newer one. Bounded; else it expires."""
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            entry = await self._entry(session)
            if entry is not None and _decode(entry).id == record.id:
                await self._bucket.delete(token_of(session), last=entry.revision)

    async def _watch(self, carry_out: Callable[[str, StopRecord], Awaitable[bool]]) -> None:
        """Watch the bucket. A boundary: what fails is logged, and a new watch begins with all records again."""
        while True:
            try:
                watcher = await self._bucket.watchall(ignore_deletes=True)
                try:
                    async for entry in watcher:
                        if entry is not None and entry.value:
                            session = session_of(entry.key)
                            record = _decode(entry)
                            if await carry_out(session, record):
                                await self.remove(session, record)
                finally:
                    with contextlib.suppress(nats.errors.Error, OSError):
                        await watcher.stop()  # type: ignore[no-untyped-call]
            except (nats.errors.Error, StoreError, OSError, TimeoutError) as error:
                _log.warning("stops cannot be watched for; trying again: %s", str(error) or type(error).__name__)
            except Exception:  # noqa: BLE001
                _log.exception("watching for stops failed; trying again")
            await asyncio.sleep(_PAUSE)


def _decode(entry: KeyValue.Entry) -> StopRecord:
    return msgspec.json.decode(entry.value or b"", type=StopRecord)
