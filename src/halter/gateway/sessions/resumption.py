"""Opens sessions that have work to do although no client asks for them: after a restart, or when a node has gone."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from halter.cancel.loop_bridge import run_in_thread
from halter.errors import SessionOwned, StoreError
from halter.gateway.http.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from halter.gateway.sessions.registry import SessionRegistry

__all__ = ["Resumption"]

_log = logging.getLogger(__name__)


class Resumption:
    """Opens sessions in the background, within the limit of turns."""

    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry
        self._tasks: set[asyncio.Task[None]] = set()

    def resume(self, find_more: Callable[[], Awaitable[Collection[str]]] | None = None) -> None:
        """Resume what an earlier gateway process has accepted: open each session with queued messages.

        With *find_more*, the sessions that it returns are opened too. `cancel()` also ends the search for them.
        """
        self._start(find_more, with_queued=True)

    def open_soon(self, session_ids: Collection[str]) -> None:
        """Open sessions that no node has any more."""

        async def find() -> Collection[str]:
            return session_ids

        self._start(find, with_queued=False)

    def cancel(self) -> None:
        """Open no more sessions until a client asks for one."""
        for task in self._tasks:
            task.cancel()

    def _start(self, find: Callable[[], Awaitable[Collection[str]]] | None, *, with_queued: bool) -> None:
        if self._registry.is_draining:
            return
        task = asyncio.create_task(self._open_all(find, with_queued=with_queued))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_all(self, find: Callable[[], Awaitable[Collection[str]]] | None, *, with_queued: bool) -> None:
        """Open the sessions. A boundary: if they cannot be found, that is logged."""
        try:
            found = dict.fromkeys(await find() if find is not None else ())
            infos = await run_in_thread(self._registry.store.sessions) if with_queued else []
        except StoreError as error:
            _log.warning("sessions with queued messages could not be found: %s", error)
            return
        except Exception:  # noqa: BLE001
            _log.exception("finding sessions with queued messages failed")
            return
        found |= {info.id: None for info in infos if info.waiting}
        for session_id in found:
            if "/" not in session_id:  # child sessions are part of their parent
                await self._wait_for_room()
                await self._open(session_id)

    async def _wait_for_room(self) -> None:
        registry = self._registry
        while len(registry.busy) >= registry.limits.turns:
            registry.turn_ended.clear()
            await registry.turn_ended.wait()

    async def _open(self, session_id: str) -> None:
        """Open a session. A boundary: one that cannot be opened is logged and skipped."""
        try:
            async with self._registry.lease(session_id):
                pass
        except SessionOwned as error:
            _log.info("%s", error, extra={"session": session_id})
        except (Problem, StoreError) as error:
            _log.warning("%s", error, extra={"session": session_id})
        except Exception:  # noqa: BLE001
            _log.exception("resuming the session failed", extra={"session": session_id})
