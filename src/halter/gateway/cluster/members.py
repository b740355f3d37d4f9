"""The nodes of a cluster: who is alive, and who has gone.

Each node renews a key in a bucket. A key that is deleted, or was not renewed for the time that leases last, is that of
a node that has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import nats.errors
import nats.js.errors

from halter.cancel.loop_bridge import end_tasks, run_in_thread
from halter.errors import StoreError
from halter.stores.nats.names import process_of
from halter.stores.nats.requests import ANSWER_SECONDS, retry_unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nats.aio.client import Client
    from nats.js.kv import KeyValue

    from halter.stores.nats.store import NATSStore

__all__ = ["Members"]

_log = logging.getLogger(__name__)
_PAUSE: Final = 2.0  # seconds until a watch that broke begins again
_LATE: Final = 0.2  # seconds more than a lease lasts


class Members:
    """The nodes. Everything here runs on the loop of the connection."""

    def __init__(self, client: Client, store: NATSStore, on_gone: Callable[[str], None]) -> None:
        """*on_gone* is called with each node that has gone."""
        self._js = client.jetstream(timeout=ANSWER_SECONDS)
        self._store = store
        self._on_gone = on_gone
        self._bucket: KeyValue
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Become a node, and watch the others. Raises an error of `nats`, or `StoreError`."""
        await run_in_thread(self._store.join)
        self._bucket = await retry_unanswered(lambda: self._js.key_value(self._store.names.nodes), self._store.patience)
        for node in await run_in_thread(self._store.nodes):  # the watch reports them only a moment later
            self._renewed(node)
        self._do(self._watch())

    async def close(self) -> None:
        """Stop watching."""
        for timer in self._timers.values():
            timer.cancel()
        await end_tasks(self._tasks)

    def others(self) -> list[str]:
        """The other processes that are alive, as far as it is known."""
        return sorted({process_of(node) for node in self._timers} - {self._store.process})

    def join_again(self) -> None:
        """Become a node again, if this one was lost."""
        self._do(self._join())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self) -> None:
        try:
            await run_in_thread(self._store.join)
        except StoreError as error:  # the next session that is opened here tries again
            _log.warning("this node could not join the cluster again: %s", error)

    async def _watch(self) -> None:
        """Watch the bucket. A boundary: a broken watch is begun again."""
        while True:
            try:
                watcher = await self._bucket.watchall()
                try:
                    async for entry in watcher:
                        if entry is not None and entry.operation is None:
                            self._renewed(entry.key)
                        elif entry is not None:
                            self._gone(entry.key)
                finally:
                    with contextlib.suppress(nats.errors.Error, OSError):
                        await watcher.stop()  # type: ignore[no-untyped-call]
            except (nats.errors.Error, OSError, TimeoutError) as error:
                _log.warning("the nodes cannot be watched; trying again: %s", str(error) or type(error).__name__)
            except Exception:  # noqa: BLE001
                _log.exception("watching the nodes failed; trying again")
            await asyncio.sleep(_PAUSE)

    def _renewed(self, node: str) -> None:
        self._schedule_check(node, self._store.lease_seconds + _LATE)

    def _schedule_check(self, node: str, seconds: float) -> None:
        timer = self._timers.get(node)
        if timer is not None:
            timer.cancel()
        self._timers[node] = asyncio.get_running_loop().call_later(seconds, self._on_late, node)

    def _on_late(self, node: str) -> None:
        self._do(self._check(node))

    async def _check(self, node: str) -> None:
        """Check whether the key of a node that was not renewed in time still exists on the servers."""
        try:
            await self._bucket.get(node)
        except nats.js.errors.NotFoundError:
            self._gone(node)
        except (nats.errors.Error, OSError, TimeoutError):
            self._renewed(node)  # not known: check again later
        else:
            if node in self._timers:  # the servers may delete it a little later, or its renewal is on its way to us
                self._schedule_check(node, _LATE)

    def _gone(self, node: str) -> None:
        timer = self._timers.pop(node, None)
        if timer is not None:
            timer.cancel()
            if process_of(node) != self._store.process:
                self._on_gone(node)
