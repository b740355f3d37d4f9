"""An MCP server that is a child process of ours: it ends with its connection, and with us, however we end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from typing import TYPE_CHECKING, Any, Final, TextIO

from halter.cancel import families, threads
from halter.cancel.family import Family
from halter.cancel.table import children_of_thread
from halter.toolbox.guard import Guard, watching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from halter.toolbox.mcp_link import Life

_TAIL: Final = 2_000  # bytes of stderr that are kept, to be told when the server fails
_POLITE: Final = 1.0  # seconds that it has to end by itself, once its stdin is closed
_GRACE: Final = 0.5  # seconds between TERM and KILL


class Stdio:
    """A command that speaks MCP on its standard input and output.

    Of our environment it is given what the SDK takes for harmless (PATH, HOME, USER and their like), *env*, and the
    variables that *inherit* names. Secrets are not passed on unless they are named.
    """

    def __init__(
        self, command: str, args: Sequence[str], env: Mapping[str, str], inherit: Sequence[str], cwd: str | None
    ) -> None:
        self._command = command
        self._args = list(args)
        self._env = {name: os.environ[name] for name in inherit if name in os.environ} | dict(env)
        self._cwd = cwd
        self._said = bytearray()
        self._is_gone = threading.Event()
        self._is_gone.set()

    def __str__(self) -> str:
        return f"the MCP server {self._command!r}"  # its arguments may hold a key

    @contextlib.asynccontextmanager
    async def open(self, life: Life) -> AsyncIterator[Any]:
        """Start it; gives the streams to it."""
        from mcp import StdioServerParameters, stdio_client  # noqa: PLC0415  (heavy, and optional)

        mark = f"HALTER_FAMILY_{secrets.token_hex(8)}"
        parameters = StdioServerParameters(
            command=self._command, args=self._args, env={**self._env, mark: "1"}, cwd=self._cwd
        )
        care = _Care(self._is_gone, mark)
        try:
            thread = threading.get_native_id()
            others = set(children_of_thread(thread))
            with self._listening() as errors:
                async with stdio_client(parameters, errlog=errors) as streams:
                    errors.close()  # the server has its own
                    born = set(children_of_thread(thread)) - others
                    care.begin(born)
                    with watching(born, life.die):
                        try:
                            yield streams
                        finally:
                            # Its stdin is closed behind this. It may end by itself, but not take for ever.
                            asyncio.get_running_loop().call_later(_POLITE, care.hurry)
        finally:
            care.end()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[TextIO]:
        """A file for stderr, of which the last words are kept."""
        self._said.clear()
        loop = asyncio.get_running_loop()
        ear, mouth = os.pipe()
        os.set_blocking(ear, False)

        def hear() -> None:
            piece = b""
            with contextlib.suppress(BlockingIOError):
                piece = os.read(ear, 65536)
                if not piece:
                    loop.remove_reader(ear)
            self._said.extend(piece)
            del self._said[:-_TAIL]

        loop.add_reader(ear, hear)
        file = os.fdopen(mouth, "w")
        try:
            yield file
        finally:
            file.close()
            hear()
            loop.remove_reader(ear)
            os.close(ear)

    def last_words(self) -> str:
        return self._said.decode(errors="replace").strip()

    def wait_gone(self, timeout: float) -> bool:
        return self._is_gone.wait(timeout)


class _Care:
    """The family of one started server, from its start to the proof that it is gone."""

    def __init__(self, is_gone: threading.Event, mark: str) -> None:
        is_gone.clear()
        self._is_gone = is_gone
        self._mark = mark.encode()
        self._guard = Guard(mark)
        self._family = Family([self._guard.pid], cookie=self._mark, reap=self._guard.poll)
        families.add(self._family)

    def begin(self, born: set[int]) -> None:
        """It was started: from now on its children are known as such, too."""
        known, self._family = (
            self._family,
            Family([self._guard.pid, *born], cookie=self._mark, reap=self._guard.poll),
        )
        families.add(self._family)
        families.remove(known)

    def hurry(self) -> None:
        """It has not ended by itself: make it. The SDK notices when it is gone."""
        threads.submit(self._stop)

    def _stop(self) -> None:
        if not self._is_gone.is_set():
            families.stop(self._family, _GRACE)

    def end(self) -> None:
        """Make sure that nobody is left, in a thread that takes its time."""
        threads.submit(self._finish)

    def _finish(self) -> None:
        self._stop()
        self._guard.close()
        self._is_gone.set()
