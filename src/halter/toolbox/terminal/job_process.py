"""A process that a job runs in: a child of ours, or one on another machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from halter.cancel.token import NEVER
from halter.toolbox.terminal.change_signal import ChangeSignal

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken


class JobProcess:
    """The state of a process and its descendants. May be used from any thread."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.returncode: int | None = None
        self.error: Exception | None = None  # why it could not be started or watched
        self.left: int | None = None  # how many descendants were running when it exited; None until that is known
        self.survivors: list[int] | None = None  # those that a stop could not end; None: not known
        self.is_over = False  # it and its descendants have ended, and all output is there
        self.is_lost = False  # the connection to it broke
        self.was_stopped = False
        self.began_in = ""  # the directory
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self.changes = ChangeSignal()
        self.wait = self.changes.wait

    @property
    def has_exited(self) -> bool:
        """Whether the process itself has ended, and its output is there."""
        return self.is_over

    @property
    def is_gone(self) -> bool:
        """Whether it is known that no descendant is left."""
        return self.survivors == []

    @property
    def is_settled(self) -> bool:
        """Whether there is no reason to wait for a foreground command any longer."""
        return self.is_over or self.is_lost or self.left is not None

    @property
    def accepts_input(self) -> bool:
        raise NotImplementedError

    @property
    def directory(self) -> str:
        """The directory that a command was in when it ended; "" if that is not known."""
        return ""

    def explain(self, output: str) -> str:  # noqa: ARG002
        """A note for the model if restrictions may have caused the failure of a command with this *output*."""
        return ""

    def wait_over(self, token: CancellationToken = NEVER, timeout: float | None = None) -> bool:
        """Block until it is over."""
        return self.wait(lambda: self.is_over, token, timeout)

    def stop(self, grace: float) -> None:
        """End it and its descendants: TERM, then KILL after *grace* seconds. Returns at once."""
        raise NotImplementedError

    def settle(self, token: CancellationToken, grace: float) -> None:
        """Wait for the details of its end; once *token* is cancelled, only for a short time."""
        raise NotImplementedError

    def send(self, data: bytes, *, ends: bool = False, token: CancellationToken = NEVER) -> None:
        """Write to its input. With *ends*, the input ends after that."""
        raise NotImplementedError
