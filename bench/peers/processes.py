"""The processes of a run: a driver, the provider, and the `sleep` processes that tools have started."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Driver", "Provider", "count_sleeps", "end_sleeps"]

HERE = Path(__file__).parent


class Provider:
    """The fake provider, asked by lines of JSON."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "provider_main.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url = json.loads(self._process.stdout.readline())["url"]
        self.first = 0  # requests before this one belong to earlier scenarios

    def _ask(self, **command: object) -> dict:
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def requests(self) -> list[dict]:
        return self._ask(do="requests", first=self.first)["requests"]

    def wait_request(self, n: int, timeout: float) -> float | None:
        """Wait for the nth request of this scenario, and return when it came."""
        return self._ask(do="wait_requests", n=self.first + n, timeout=timeout)["received"]

    def begin(self) -> None:
        self.first += len(self.requests())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(20)


class Driver:
    """A driver's process, and what it has said so far."""

    def __init__(self, python: Path, script: Path, environment: dict[str, str], log: Path) -> None:
        self._log = log.open("ab")
        # A group of its own, so that a system which signals its group does not signal us.
        self._process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=environment["PEERS_STORE"],
            env=environment,
            start_new_session=True,
        )
        self.events: list[dict] = []
        self._new: queue.Queue[dict | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._new.put(json.loads(line))
        self._new.put(None)

    def do(self, do: str, **fields: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            self._process.stdin.flush()

    def wait(self, matches: Callable[[dict], bool], timeout: float) -> dict | None:
        """Wait for an event, and keep all that came before it; None after the timeout, or if the process has ended."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                event = self._new.get(timeout=left)
            except queue.Empty:
                return None
            if event is None:
                self._new.put(None)
                return None
            self.events.append(event)
            if matches(event):
                return event
        return None

    def wait_for(self, name: str, timeout: float) -> dict | None:
        return self.wait(lambda event: event["event"] == name, timeout)

    def turn(self, text: str, timeout: float) -> dict | None:
        """Run a turn to its end."""
        self.do("run", text=text)
        return self.wait_for("ended", timeout)

    def text(self, before: float = float("inf")) -> str:
        return "".join(each["text"] for each in self.events if each["event"] == "text" and each["at"] < before)

    def exit(self, timeout: float) -> float | None:
        """Ask it to leave, and return how long that took; None if it had to be killed."""
        start = time.monotonic()
        self.do("exit")
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self._close()
        return time.monotonic() - start

    def kill(self) -> None:
        """End it, if it still runs."""
        self._process.kill()
        self._process.wait(20)
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._log.close()


def _sleeps(argument: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes() == b"sleep\0%s\0" % argument.encode():
                    found.append(int(entry.name))
    return found


def count_sleeps(argument: str) -> int:
    return len(_sleeps(argument))


def end_sleeps(argument: str) -> None:
    """End what a scenario has left behind. The argument is this scenario's alone."""
    for pid in _sleeps(argument):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
