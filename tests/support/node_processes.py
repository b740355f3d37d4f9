"""Nodes of a cluster as processes, which a test kills or suspends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from tests.support.gateway_client import OWN, Client

_ROOT = Path(__file__).parents[2]


class NodeProcess:
    """One node, from its start to its end. Use it in an `async with` block."""

    def __init__(
        self,
        servers: str,
        prefix: str,
        *,
        lease_seconds: float = 10.0,
        patience: float = 5.0,
        replicas: int = 1,
        provider: str = "",
    ) -> None:
        self._arguments = [servers, prefix, str(lease_seconds), str(patience), str(replicas), provider]
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.node_program",
            *self._arguments,
            cwd=_ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.url = (await self._process.stdout.readline()).decode().strip()
        assert self.url, "the node did not start"

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """Wait for its end; gives the exit code."""
        assert self._process is not None
        return await self._process.wait()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of this node."""
        headers = {"Authorization": f"Bearer {OWN}"}
        async with aiohttp.ClientSession(self.url, headers=headers, read_bufsize=1 << 24) as http:
            yield Client(http)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
            await self._process.wait()
