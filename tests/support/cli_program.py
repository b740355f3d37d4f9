"""Running the program as a user does: in a process of its own, against a provider that follows a script."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from halter.events import Event
from halter.stores import SQLiteStore
from halter.testing import FakeProvider
from tests.support.waiting import wait_until

WAIT = 60.0
_OURS = ("HALTER_", "OPENAI_", "ANTHROPIC_", "OLLAMA_", "NO_COLOR", "XDG_")


class Ended(NamedTuple):
    """How the program ended, and what it has written. What a slow exit says is left out of *err*."""

    code: int
    out: str
    err: str


def without_slow_exit(said: str) -> str:
    """What a program has said, without what it waits for at its end: on a busy machine any exit can be slow."""
    return "".join(
        line for line in said.splitlines(keepends=True) if not line.startswith("Shutting down: waiting for ")
    )


class Home:
    """A home of Halter's, and the environment that leads to it."""

    def __init__(self, path: Path, provider: FakeProvider | None = None) -> None:
        self.path = path
        self.launcher: list[str] = []  # a command that becomes the program
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        self.env |= {"HALTER_HOME": str(path), "PYTHONPATH": str(path)}
        self.env["PATH"] = f"{Path(sys.executable).parent}:{self.env['PATH']}"  # its hints name this `python`
        if provider is not None:
            self.env |= {
                "OPENAI_BASE_URL": provider.openai_url,
                "OPENAI_API_KEY": "any",
                "HALTER_MODEL": "openai:test",
            }

    def run(self, *args: str, stdin: str | None = None, **env: str) -> Ended:
        """Run it to its end."""
        with self.start(*args, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL, **env) as program:
            out, err = program.communicate(stdin.encode() if stdin is not None else None, timeout=WAIT)
        return Ended(program.returncode, out.decode(), without_slow_exit(err.decode()))

    @contextlib.contextmanager
    def start(self, *args: str, stdin: int = subprocess.DEVNULL, **env: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start it; whatever is left of it at the end of the block is killed."""
        program = subprocess.Popen(
            [*self.launcher, sys.executable, "-m", "halter", *args],
            env=self.env | env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with ending(program):
            yield program

    def events(self, session: str | None = None) -> list[Event]:
        """The log of a session, or of the only one."""
        with SQLiteStore(self.path / "sessions.db") as store:
            names = [session] if session else [info.id for info in store.sessions()]
            return store.read(names[0]) if names else []

    def wait_until_sealed(self) -> None:
        """Wait until the last turn in the store is over."""

        def is_sealed() -> bool:
            events = self.events() if (self.path / "sessions.db").exists() else []
            return bool(events) and events[-1].kind == "turn.finished"

        wait_until(is_sealed, WAIT)

    def write_module(self, text: str) -> str:
        """Write a module with tools in it; gives its name."""
        (self.path / "mytools.py").write_text(text)
        return "mytools"


@contextlib.contextmanager
def ending(program: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave nothing of a program behind."""
    try:
        yield
    finally:
        program.kill()
        for pipe in (program.stdin, program.stdout, program.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        program.wait(WAIT)


def end(program: subprocess.Popen[bytes], *signals: int) -> Ended:
    """Send it signals, and wait for its end."""
    for number in signals:
        program.send_signal(number)
    out, err = program.communicate(timeout=WAIT)
    return Ended(program.returncode, out.decode(), without_slow_exit(err.decode()))


def read_until(file: int, wanted: bytes) -> bytes:
    """Read from a descriptor until something has come."""
    data = b""
    while wanted not in data:
        assert select.select([file], [], [], WAIT)[0], f"{wanted!r} did not come: {data!r}"
        piece = os.read(file, 4096)
        assert piece, f"it ended before {wanted!r} came: {data!r}"
        data += piece
    return data


def wait_until_it_hears(program: subprocess.Popen[bytes], number: signal.Signals = signal.SIGHUP) -> None:
    """Wait until a program has a handler for a signal: this one is the last to get it."""

    def hears() -> bool:
        status = Path(f"/proc/{program.pid}/status").read_text()
        capture_output = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(capture_output.split()[1], 16) >> (number - 1) & 1)

    wait_until(hears, WAIT)


# Makes the terminal on its standard input its own, so that Ctrl+C comes as a signal, and becomes the program.
_BECOME = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class OnTerminal:
    """The program on a terminal of its own, of which the test has the other end."""

    def __init__(self, home: Home, *args: str, **env: str) -> None:
        self.file, theirs = pty.openpty()
        python = sys.executable
        self.program = subprocess.Popen(
            [*home.launcher, python, "-c", _BECOME, python, "-m", "halter", *args],
            env=home.env | {"TERM": "xterm"} | env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.kill()
        self.program.wait(WAIT)
        os.close(self.file)

    def read_until(self, wanted: bytes) -> None:
        self.shown += read_until(self.file, wanted)

    def type(self, keys: bytes) -> None:
        os.write(self.file, keys)

    def end(self) -> int:
        """Read to the end; gives the exit code."""
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            while select.select([self.file], [], [], WAIT)[0] and (piece := os.read(self.file, 4096)):
                self.shown += piece
        return self.program.wait(WAIT)
