"""A real SSH server on loopback, whose commands are real processes of the local shell; its connections can be cut."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

import asyncssh

USER = "tester"
PASSWORD = "open sesame"
AT_MOST = 30.0


class SSHServer:
    """Serves from its own thread, with HOME in *home*. Like `sshd`, it ends no process when a connection breaks."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = 0
        self.commands: list[str] = []
        self.known_hosts = home / "known_hosts"
        self._transports: set[asyncssh.SSHServerConnection] = set()
        self._starting: set[asyncio.Future[Any]] = set()  # processes that are being started, or ended right afterwards
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._refuses = False
        self.path = os.environ["PATH"]  # where commands are found
        self._temporary = tempfile.TemporaryDirectory(prefix="ssh-server-", ignore_cleanup_errors=True)
        self.temporary = Path(self._temporary.name)  # TMPDIR of the commands: /tmp is everybody's
        self.is_silent = False  # what clients say is not heard any more, and nobody notices
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(AT_MOST)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(AT_MOST)
        self._temporary.cleanup()

    @property
    def connections(self) -> int:
        return len(self._transports)

    def drop(self, *, for_good: bool = False) -> None:
        """Cut all connections, without a word. With *for_good* new ones are cut as well."""
        self._refuses = for_good
        done = threading.Event()

        def cut() -> None:
            for connection in list(self._transports):
                transport: Any = connection._transport
                if transport is not None:  # it may be gone already, and be forgotten in the next iteration
                    transport.abort()
            done.set()

        self._loop.call_soon_threadsafe(cut)
        assert done.wait(AT_MOST)

    def welcome(self) -> None:
        """Take connections again."""
        self._refuses = False

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._loop.call_soon(self._ready.set)
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _start(self) -> None:
        key = asyncssh.generate_private_key("ssh-ed25519")
        self._server = await asyncssh.create_server(
            lambda: _Door(self),
            "127.0.0.1",
            0,
            server_host_keys=[key],
            process_factory=self._serve,
            encoding=None,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        public = key.export_public_key().decode().strip()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {public}\n")

    async def _end(self) -> None:
        self._server.close()
        for connection in list(self._transports):
            connection.abort()
        async with asyncio.timeout(AT_MOST):
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                if self._starting:
                    await asyncio.wait(set(self._starting))
                    continue
                for task in others:
                    task.cancel()
                await asyncio.wait(others)
        for _ in range(2):
            await asyncio.sleep(0)  # transports that were aborted are closed in the next iteration

    async def _serve(self, process: Any) -> None:
        """Run one command, as sshd does: pipes, and a session of its own."""
        self.commands.append(process.command)
        child = await self._start_child(process.command)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        feeding = asyncio.ensure_future(_feed(process.stdin, child.stdin, self))
        try:
            await asyncio.gather(_pass(child.stdout, process.stdout), _pass(child.stderr, process.stderr))
            process.exit(await child.wait())
        finally:
            feeding.cancel()
            child.stdin.close()
            transport: Any = child._transport  # type: ignore[attr-defined]
            for number in (1, 2):  # sshd closes its ends of the pipes when the client is gone
                pipe = transport.get_pipe_transport(number)
                if pipe is not None:
                    pipe.close()
            await asyncio.shield(child.wait())

    async def _start_child(self, command: str) -> asyncio.subprocess.Process:
        """Start it in a task of its own: if a start is cancelled, asyncio may lose the process and its pipes."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                command,
                cwd=self.home,
                env={"PATH": self.path, "HOME": str(self.home), "TMPDIR": str(self.temporary)},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )
        self._hold(starting)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._hold(asyncio.ensure_future(_end_child(starting)))
            raise

    def _hold(self, work: asyncio.Future[Any]) -> None:
        self._starting.add(work)
        work.add_done_callback(self._starting.discard)

    def allow(self, connection: Any) -> None:
        self._transports.add(connection)
        if self._refuses:
            connection.abort()

    def forget(self, connection: Any) -> None:
        self._transports.discard(connection)


class _Door(asyncssh.SSHServer):
    def __init__(self, server: SSHServer) -> None:
        self._server = server
        self._connection: Any = None

    def connection_made(self, conn: Any) -> None:
        self._connection = conn
        self._server.allow(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == (USER, PASSWORD)


async def _end_child(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    child = await starting
    transport: Any = child._transport  # type: ignore[attr-defined]
    transport.close()
    await child.wait()


async def _feed(source: Any, target: asyncio.StreamWriter, server: SSHServer) -> None:
    try:
        while data := await source.read(65536):
            target.write(b"" if server.is_silent else data)
            await target.drain()
    except (OSError, asyncssh.Error):
        pass
    finally:
        target.close()


async def _pass(source: asyncio.StreamReader, target: Any) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except (OSError, asyncssh.Error):
        pass
