"""A node: one process with sessions, as a key in a bucket. It is alive while it renews its key.

The key expires on the server `lease_seconds` after it was last written. The node measures with its own clock from the
moment before it sends a renewal, which is earlier than the server writes it. When that is nearly `lease_seconds` ago,
the node stops its turns, before anybody else can take its sessions: `lost` is cancelled. So no tool of an old owner
runs beside one of the next owner, as long as the process runs. A process that was suspended for longer finds out when
it continues; what it writes then is refused by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING, Final

import nats.errors

from halter.cancel.loop_bridge import end_tasks
from halter.cancel.token import CancellationToken

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

__all__ = ["Node", "process_name"]

_log = logging.getLogger(__name__)
_RENEWALS: Final = 4  # in the time that a lease lasts
_MARGIN: Final = 0.2  # of that time: for stopping the turns


def process_name() -> str:
    """A name that no other process has, as a token of a subject."""
    host = "".join(each if each.isalnum() and each.isascii() else "_" for each in socket.gethostname())
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


class Node:
    """A process, for as long as it keeps its key. Afterwards it needs a new node."""

    def __init__(self, node_id: str, bucket: KeyValue, lease_seconds: float) -> None:
        self.id = node_id
        self.lost = CancellationToken(name="node")
        self._bucket = bucket
        self._seconds = lease_seconds
        self._until = 0.0
        self._renewing: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether nobody else can have taken its sessions yet."""
        return not self.lost.is_cancelled and time.monotonic() < self._until

    async def start(self) -> None:
        """Write the key for the first time. Raises an error of `nats`."""
        await self._renew()
        self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing())

    async def end(self) -> None:
        """Remove the key: the sessions of this node are free."""
        if self._renewing is not None:
            await end_tasks([self._renewing])
        if self.is_alive:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                await self._bucket.delete(self.id)
        self.lost.cancel("shutdown", detail="the store was closed")

    async def _renew(self) -> None:
        asked = time.monotonic()
        body = {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
        await self._bucket.put(self.id, json.dumps(body).encode())
        self._until = asked + self._seconds * (1 - _MARGIN)

    async def _keep_renewing(self) -> None:
        pause = self._seconds / _RENEWALS
        while True:
            await asyncio.sleep(min(pause, max(0.0, self._until - time.monotonic())))
            if not self.is_alive:
                break
            try:
                async with asyncio.timeout(max(0.0, self._until - time.monotonic())):
                    await self._renew()
            except (nats.errors.Error, OSError) as error:  # TimeoutError is an OSError
                _log.warning("this node could not renew its lease: %s", str(error) or type(error).__name__)
                pause = self._seconds / _RENEWALS / 4  # soon again
            else:
                pause = self._seconds / _RENEWALS
        _log.error("this node has lost its sessions: NATS could not be reached for %g s", self._seconds)
        self.lost.cancel("lease_lost", detail="the connection to NATS was lost for too long")
