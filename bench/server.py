"""A `FakeProvider` in a process of its own, so that it takes no time from the client.

`time.monotonic()` is one clock for both.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halter.testing import FakeProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from halter.testing import ScriptedReply

_AT_MOST = 30.0


class Server:
    """Answers each request by its model's name; tells when one has got as far as it gets, and when it was closed."""

    def __init__(self, replies: Mapping[str, ScriptedReply]) -> None:
        os.environ["NO_PROXY"] = "127.0.0.1"
        self._pipe, theirs = Pipe()
        with theirs:
            # Not by multiprocessing, which would import the main script again.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.server", str(theirs.fileno())],
                cwd=Path(__file__).resolve().parents[1],
                pass_fds=[theirs.fileno()],
            )
        self._pipe.send(dict(replies))
        self.url: str = self._receive()
        self._number = 0

    def expect(self) -> Callable[[], object]:
        """Count one more request, and give what waits until the server has answered as much of it as it will."""
        self._number += 1
        return lambda: self._ask("reached")

    def closed_at(self) -> float:
        """Wait until the server has seen the newest request's connection end, and tell when that was."""
        return float(self._ask("closed"))

    def _ask(self, what: str) -> Any:
        self._pipe.send((what, self._number))
        return self._receive()

    def _receive(self) -> Any:
        if not self._pipe.poll(_AT_MOST):
            msg = f"the server has not answered within {_AT_MOST:g} s"
            raise SystemExit(msg)
        return self._pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()
        self._process.wait(5)


def _serve(pipe: Connection) -> None:
    replies: dict[str, ScriptedReply] = pipe.recv()
    with FakeProvider(default=lambda request: replies[request.body["model"]]) as provider:
        pipe.send(provider.openai_url)
        while True:
            what, number = pipe.recv()
            request = provider.wait_for_request(number)
            if what == "reached":
                if replies[request.body["model"]].chunks:
                    provider.wait_for_pieces(3, number)
                pipe.send(number)
                continue
            connection = provider.connections[request.connection - 1]
            while connection.closed is None:
                provider.wait_for_close(len(provider.closes) or 1)
                time.sleep(0.0005)
            pipe.send(connection.closed)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionResetError):  # the client has gone
        _serve(Connection(int(sys.argv[1])))
