"""`!command` in the chat: a command of the user, on the user's own terminal, with its output recorded.

The command has a pseudo-terminal, which is connected to the real one while it runs: editors and pagers work, and Ctrl+C
goes to the command. It runs as the user and without a sandbox, because only the user can start it. If the chat is
closed meanwhile, the command gets SIGHUP.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import tty
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.loop_bridge import run_in_thread
from halter.views.text import strip_controls

if TYPE_CHECKING:
    from halter.cli.chat.screen.terminal import TerminalDevice

__all__ = ["CommandResult", "UserCommandRun", "command_text"]

_READ_SIZE: Final = 65_536  # bytes
_MAX_RECORDED: Final = 200_000  # bytes: the last ones
_HANGUP_TIMEOUT: Final = 1.0  # seconds for a command to end after SIGHUP, and after SIGKILL
_MAX_TEXT: Final = 20_000  # characters that are added to the conversation
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# Makes the terminal on standard input the controlling one, so that Ctrl+C reaches the command, and runs the shell.
_SHELL_STARTER: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], [sys.argv[1], '-c', sys.argv[2]])"
)


class CommandResult(NamedTuple):
    """A command that has ended."""

    command: str
    output: str
    code: int


class UserCommandRun:
    """A command on the terminal, which nobody else may use meanwhile."""

    def __init__(self, command: str, terminal: TerminalDevice) -> None:
        """Start it. In an event loop."""
        self._command = command
        self._terminal = terminal
        self._recorded = bytearray()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._file, theirs = pty.openpty()
        os.set_blocking(self._file, False)  # keys that a command does not read must not block the chat
        self.resize()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-ISc", _SHELL_STARTER, os.environ.get("SHELL") or "/bin/sh", command],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._file)
            raise
        finally:
            os.close(theirs)

    def resize(self) -> None:
        """Set its terminal to the size of the real one."""
        size = self._terminal.size()
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    async def run(self) -> CommandResult:
        """Wait for its end. If this is cancelled, the command is hung up."""
        before = termios.tcgetattr(self._terminal.input)
        tty.setraw(self._terminal.input, termios.TCSANOW)  # keeps what was typed meanwhile
        self._loop.add_reader(self._file, self._on_output)
        self._loop.add_reader(self._terminal.input, self._on_key)
        try:
            await self._ended
        finally:
            self._loop.remove_reader(self._terminal.input)
            self._loop.remove_reader(self._file)
            os.close(self._file)  # hangs up, if it has not ended
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._terminal.input, termios.TCSADRAIN, before)
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGHUP)
        await self._reap()
        return CommandResult(self._command, _clean(bytes(self._recorded)), self._code)

    def hang_up(self) -> None:
        """End it: its terminal is closed."""
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def _code(self) -> int:
        code = self._process.poll()
        return -signal.SIGKILL if code is None else code  # None: it was killed, and has not ended yet

    async def _reap(self) -> None:
        """Wait for the shell: it has closed its terminal, or was hung up. One that ignores that is killed."""
        if self._process.poll() is not None:
            return
        try:
            await run_in_thread(lambda: self._process.wait(_HANGUP_TIMEOUT))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await run_in_thread(lambda: self._process.wait(_HANGUP_TIMEOUT))

    def _on_output(self) -> None:
        try:
            piece = os.read(self._file, _READ_SIZE)
        except OSError:  # Linux says so when the last process has closed it
            piece = b""
        if not piece:
            self.hang_up()
            return
        self._recorded += piece
        del self._recorded[:-_MAX_RECORDED]
        self._terminal.write(piece)

    def _on_key(self) -> None:
        try:
            keys = os.read(self._terminal.input, _READ_SIZE)
        except OSError:
            keys = b""
        if not keys:  # the terminal is gone
            self.hang_up()
            return
        with contextlib.suppress(OSError):
            os.write(self._file, keys)


def _clean(recorded: bytes) -> str:
    """The output as plain text: without colours, and of a line that was overwritten the last version."""
    text = _SEQUENCE.sub("", recorded.decode("utf-8", "replace")).replace("\r\n", "\n")
    lines = [line.rpartition("\r")[2] for line in text.split("\n")]
    return strip_controls("\n".join(lines)).strip("\n")


def command_text(ran: CommandResult) -> str:
    """The text that is added to the conversation."""
    output = ran.output
    if len(output) > _MAX_TEXT:
        output = f"[… {len(output) - _MAX_TEXT:,} characters left out]\n{output[-_MAX_TEXT:]}"
    ending = f"exit code {ran.code}" if ran.code >= 0 else f"ended by {signal.Signals(-ran.code).name}"
    return f"I ran `{ran.command}`:\n\n{output}\n[{ending}]"
