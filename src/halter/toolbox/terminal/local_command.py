"""A shell command on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from halter.toolbox.terminal.child_process import ChildProcess, ExtraPipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halter.cancel.token import CancellationToken
    from halter.toolbox.sandbox.sandbox import Sandbox

# Seconds to wait after a stop for the output from before it: a millisecond is enough, unless the machine is very busy.
_OUTPUT_WAIT: Final = 0.025
# Seconds to wait after that for the end of the command: most have ended by then.
_EXIT_WAIT: Final = 0.01
# Runs the command and reports its last directory. If the command calls `exec`, nothing is reported.
_SCRIPT: Final = 'trap "pwd -P >/dev/fd/$HALTER_DIRECTORY" EXIT 2>/dev/null; unset HALTER_DIRECTORY; eval "$1"'


class LocalCommand(ChildProcess):
    """A command, and the directory that it has changed to."""

    def __init__(
        self,
        shell: str,
        command: str,
        directory: str,
        env: Mapping[str, str],
        on_output: Callable[[bytes], object],
        *,
        background: bool,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._reported = bytearray()
        if background:
            argv = [shell, "-c", command]
            super().__init__(argv, cwd=directory, env=env, on_output=on_output, takes_input=True, sandbox=sandbox)
            return
        ours, theirs = os.pipe()
        pipe = ExtraPipe(ours, theirs, self._reported.extend)
        argv = [shell, "-c", _SCRIPT, shell, command]
        env = {**env, "HALTER_DIRECTORY": str(theirs)}
        super().__init__(argv, cwd=directory, env=env, on_output=on_output, extra=pipe, sandbox=sandbox)

    @property
    def directory(self) -> str:
        """The directory that the command was in when it ended; "" if that is not known."""
        reported = os.fsdecode(bytes(self._reported)).removesuffix("\n")
        return reported if reported and Path(reported).is_dir() else ""

    def settle(self, token: CancellationToken, grace: float) -> None:  # noqa: ARG002  (it has its grace from stop())
        """After stop(): wait for the end; if *token* is cancelled, only for a moment."""
        if not self.was_stopped:
            return
        if not token.is_cancelled:
            self.wait_over(token)
        self.wait(lambda: self.is_drained or self.is_over, timeout=_OUTPUT_WAIT)
        self.wait_over(timeout=_EXIT_WAIT)
