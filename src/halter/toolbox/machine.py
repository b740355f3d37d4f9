"""A machine that tools work on: what it has to be able to do, whatever it is and however it is reached.

A `Machine` is a place and how to get there; it does nothing by itself, and any number of sessions may share it. Each
opens a `Link` of its own, which is closed with the session. Through a link commands are run. Each runs in a process
group of its own, and a stop ends that group and whoever has left it; `Running.survivors` says what the machine itself
answered when it was asked who is left.

All methods may be called from any thread. None of them waits, but those that take a token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from halter.cancel.token import NEVER, CancellationToken
from halter.toolbox.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halter.toolbox.output import Progress

__all__ = ["Command", "Link", "Machine", "MachineError", "Running", "Said"]


class MachineError(Exception):
    """The machine cannot be reached, does not let us in, or cannot do what was asked."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be run, by the machine's shell."""

    text: str
    directory: str = ""  # where: empty means where one is after logging in
    env: Mapping[str, str] = field(default_factory=dict)
    takes_input: bool = False
    keeps_watch: bool = False  # it reads its lifeline itself, and ends when that does: see `Running.say()`
    grace: float = 1.0  # seconds between TERM and KILL, should the connection be lost


@dataclass(frozen=True, slots=True)
class Said:
    """How a short script has ended."""

    code: int
    output: bytes
    error: str


class Machine(Protocol):
    """Somewhere to work."""

    name: str
    directory: str

    def open(self) -> Link:
        """A way to it, of one's own. Nothing is done before it is used."""
        ...


class Link(Protocol):
    """The way to a machine."""

    def start(self, command: Command, on_output: Callable[[bytes], object]) -> Running:
        """Run a command; *on_output* gets what it says, in whatever thread."""
        ...

    def run(
        self, script: str, *args: str, token: CancellationToken, data: bytes = b"", timeout: float | None = None
    ) -> Said:
        """Run a script of ours that ends by itself when its input ends, and wait for it. A stop raises `Cancelled`."""
        ...

    def close(self) -> None:
        """End what runs, and the connection. Bounded, and safe at any time."""
        ...


class Running:
    """One command on a machine, as far as we know: what a job stands on."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.returncode: int | None = None
        self.error: Exception | None = None  # why it could not be started
        self.is_lost = False  # the connection broke while it ran
        self.was_stopped = False
        self.is_over = False  # nothing more will come
        self.survivors: list[int] | None = None  # whom the machine found when it was asked; None if it was not
        self.left: Final = None  # nobody: what a command leaves running is ended with it
        self.began_in = ""  # the directory
        self.directory = ""  # the one that it has gone to
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self.changes = Changes()

    @property
    def has_exited(self) -> bool:
        """Whether it has ended, and all that it said has come."""
        return self.is_over

    @property
    def is_gone(self) -> bool:
        """Whether the machine has said that nobody of it is left."""
        return self.survivors == []

    @property
    def accepts_input(self) -> bool:
        raise NotImplementedError

    def wait(
        self,
        condition: Callable[[], object],
        token: CancellationToken = NEVER,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> bool:
        """Block until *condition* holds, the token is cancelled or the time is over; True if it holds."""
        return self.changes.wait(condition, token, timeout, progress)

    def wait_over(self, token: CancellationToken = NEVER, timeout: float | None = None) -> bool:
        """Block until it is over, the token is cancelled or the time is over; True if it is over."""
        return self.wait(lambda: self.is_over, token, timeout)

    def stop(self, grace: float) -> None:
        """Have it ended: TERM, and KILL after *grace* seconds. Returns at once."""
        raise NotImplementedError

    def send(self, data: bytes, *, ends: bool = False, token: CancellationToken = NEVER) -> None:
        """Have it read *data*, and wait until it was passed on. With *ends*, nothing more will come."""
        raise NotImplementedError

    def say(self, line: bytes) -> None:
        """Send a line to a command that keeps watch, behind those that were sent before. Does not wait."""
        raise NotImplementedError
