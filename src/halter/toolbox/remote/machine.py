"""A machine that tools work on: what it has to be able to do, whatever it is and however it is reached.

A `Machine` says where it is and how to reach it; it does nothing by itself, and any number of sessions may share it.
Each session opens a `MachineConnection`, which is closed with the session, and runs commands through it. Each command
runs in a process group of its own, and a stop ends that group and the processes that have left it;
`RemoteProcess.survivors` are the processes that are left according to the machine itself.

All methods may be called from any thread. Only those that take a token wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from halter.cancel.token import NEVER, CancellationToken
from halter.toolbox.terminal.job_process import JobProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


__all__ = ["Machine", "MachineConnection", "MachineError", "RemoteCommand", "RemoteProcess", "ScriptResult"]

_STOP_WAIT: Final = 0.1  # seconds that the machine has to answer at a stop; less than the grace of the tools
_RECONNECT_WAIT: Final = 12.0  # seconds for asking a machine again whose connection was lost


class MachineError(Exception):
    """The machine cannot be reached, refused the login, or cannot do what was asked."""


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """A command for the shell of the machine."""

    text: str
    directory: str = ""  # empty: the directory after logging in
    env: Mapping[str, str] = field(default_factory=dict)
    takes_input: bool = False
    supervises_itself: bool = False  # it reads the control channel itself, and ends with it: see `send_line()`
    grace: float = 1.0  # seconds between TERM and KILL, should the connection be lost


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """The result of a script."""

    code: int
    output: bytes
    error: str


class Machine(Protocol):
    """A machine."""

    name: str
    directory: str

    def open(self) -> MachineConnection:
        """A new connection. It connects when it is first used."""
        ...


class MachineConnection(Protocol):
    """A session's connection to a machine."""

    def start(self, command: RemoteCommand, on_output: Callable[[bytes], object]) -> RemoteProcess:
        """Run a command; *on_output* is called with its output, in any thread."""
        ...

    def run(
        self, script: str, *args: str, token: CancellationToken, data: bytes = b"", timeout: float | None = None
    ) -> ScriptResult:
        """Run a script of ours that ends by itself when its input ends, and wait for it. A stop raises `Cancelled`."""
        ...

    def close(self) -> None:
        """End what runs, and the connection. Bounded, and safe at any time."""
        ...


class RemoteProcess(JobProcess):
    """One command on a machine. What it leaves running is ended with it."""

    def settle(self, token: CancellationToken, grace: float) -> None:
        """Wait for the machine's report of its end; once *token* is cancelled, only for a short time."""
        if self.was_stopped and token.is_cancelled:
            self.wait(lambda: self.is_settled, NEVER, _STOP_WAIT)
        elif self.was_stopped:
            self.wait(lambda: self.is_settled, token, grace * 2 + _RECONNECT_WAIT)
        if self.is_lost and not token.is_cancelled:
            self.wait_over(token, _RECONNECT_WAIT)

    def send_line(self, line: bytes) -> None:
        """Send a line to a command that supervises itself. Lines keep their order. Does not wait."""
        raise NotImplementedError
