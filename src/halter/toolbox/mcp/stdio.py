"""An MCP server in a child process: it ends with its connection, and with this process, however that ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from halter._own_keys import read_key
from halter.cancel.processes import guardian, registry
from halter.cancel.processes.proc_table import children_of_thread
from halter.cancel.processes.tree import ProcessTree, new_cookie
from halter.cancel.threads import pool
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.toolbox.process_exit import watching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from halter.toolbox.mcp.connection import ConnectionState
    from halter.toolbox.sandbox.sandbox import Sandbox

_log = logging.getLogger(__name__)
THREAD: Final = "halter-mcp"  # the thread of all connections
_TAIL: Final = 2_000  # bytes of stderr that are kept for error messages
_EXIT_TIMEOUT: Final = 1.0  # seconds that it has to end by itself, once its stdin is closed
_GRACE: Final = 0.5  # seconds between TERM and KILL


class Stdio:
    """A command that speaks MCP on its standard input and output.

    Its environment has the variables that the SDK considers harmless (PATH, HOME, USER and so on), *env*, and the
    variables named by *inherit*. Secrets are not passed on unless they are named.
    """

    def __init__(
        self,
        command: str,
        args: Sequence[str],
        env: Mapping[str, str],
        inherit: Sequence[str],
        cwd: str | None,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._command = command
        self._args = list(args)
        self._env = {name: read_key(name) for name in inherit if name in os.environ or read_key(name)} | dict(env)
        self._cwd = cwd
        self._sandbox = sandbox
        self._stderr = bytearray()
        self._processes: list[_ServerProcess] = []  # of the connections so far, until they have ended

    def __str__(self) -> str:
        return f"the MCP server {self._command!r}"  # its arguments may hold a key

    @contextlib.asynccontextmanager
    async def open(self, state: ConnectionState) -> AsyncIterator[Any]:
        """Start it; yields its streams."""
        from mcp import StdioServerParameters, stdio_client

        logging.getLogger("mcp.client.stdio").addFilter(_without_tracebacks)
        cookie = new_cookie()
        argv, env = [self._command, *self._args], self._env
        if self._sandbox is not None:
            argv = await run_blocking_async(self._sandbox.command, argv, token=NEVER)  # bounded; it starts a process
            env = self._sandbox.environment | env
        await guardian.started()  # so that a `kill -9` leaves nobody alive from now on
        parameters = StdioServerParameters(
            command=argv[0],
            args=argv[1:],
            env={**env, **guardian.environment(), cookie: "1"},
            cwd=self._cwd,
            encoding_error_handler="replace",  # one bad byte must not end the connection
        )
        self._processes = [each for each in self._processes if not each.has_ended.is_set()]
        process = _ServerProcess(cookie)
        self._processes.append(process)
        try:
            thread = threading.get_native_id()
            others = set(children_of_thread(thread))
            with self._reading_stderr() as errors:
                async with stdio_client(parameters, errlog=errors) as streams:
                    errors.close()  # the server has its own
                    pids = set(children_of_thread(thread)) - others
                    process.started(pids)
                    with watching(pids, state.on_death):
                        try:
                            yield streams
                        finally:
                            # Its stdin is closed after this. It may end by itself, within a time limit.
                            asyncio.get_running_loop().call_later(_EXIT_TIMEOUT, process.stop)
        finally:
            process.finish()

    @contextlib.contextmanager
    def _reading_stderr(self) -> Iterator[TextIO]:
        """A file for stderr; its last bytes are kept."""
        self._stderr.clear()
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)

        def read() -> None:
            piece = b""
            with contextlib.suppress(BlockingIOError):
                piece = os.read(reading, 65536)
                if not piece:
                    loop.remove_reader(reading)
            self._stderr.extend(piece)
            del self._stderr[:-_TAIL]

        loop.add_reader(reading, read)
        file = os.fdopen(writing, "w")
        try:
            yield file
        finally:
            file.close()
            read()
            loop.remove_reader(reading)
            os.close(reading)

    def stderr_tail(self) -> str:
        return self._stderr.decode(errors="replace").strip()

    def wait_ended(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        return all(each.has_ended.wait(max(end - time.monotonic(), 0)) for each in list(self._processes))


def _without_tracebacks(record: logging.LogRecord) -> bool:
    """Log a line that is not a message briefly: many launchers print some, and the SDK logs a traceback for each."""
    if record.threadName != THREAD or record.exc_info is None:
        return True
    _log.debug("a line on the server's stdout is not a message: %s", record.exc_info[1])
    return False


class _ServerProcess:
    """The processes of one started server, until it is verified that none is left."""

    def __init__(self, cookie: str) -> None:
        self.has_ended = threading.Event()
        self._cookie = cookie.encode()
        self._tree = ProcessTree((), cookie=self._cookie)
        registry.add(self._tree)

    def started(self, pids: set[int]) -> None:
        """It was started, as these processes."""
        known, self._tree = (
            self._tree,
            ProcessTree(pids, cookie=self._cookie),
        )
        registry.add(self._tree)
        registry.remove(known)

    def stop(self) -> None:
        """Kill it, in a thread, if it has not ended by itself. The SDK notices when it is gone."""
        pool.submit(self._stop)

    def _stop(self) -> None:
        if not self.has_ended.is_set():
            registry.stop(self._tree, _GRACE)

    def finish(self) -> None:
        """Make sure that no process is left, in a thread."""
        pool.submit(self._finish)

    def _finish(self) -> None:
        self._stop()
        self.has_ended.set()
