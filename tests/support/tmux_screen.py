"""The chat in tmux, a terminal that wraps its rows again when it becomes narrower, and joins them when it is wide."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.support.cli_program import Home
from tests.support.waiting import wait_until


class TmuxScreen:
    """A running chat in a tmux server of its own."""

    def __init__(self, home: Home, folder: Path, *args: str, rows: int = 30, columns: int = 100) -> None:
        self._socket = str(folder / "tmux.sock")
        program = shlex.join([*home.launcher, sys.executable, "-m", "halter", *args])
        env = home.env | {"LC_ALL": "C.UTF-8"}
        size = ["-x", str(columns), "-y", str(rows)]
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", "new-session", "-d", *size, program]
        subprocess.run(command, env=env, check=True, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tmux("kill-server")

    def tmux(self, *args: str) -> str:
        """Run a command of tmux."""
        command = ["tmux", "-S", self._socket, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout

    def type(self, keys: str) -> None:
        self.tmux("send-keys", "-l", keys)

    def send(self, text: str) -> None:
        """Type a line, and Enter once it is there."""
        self.type(text)
        self.wait_for(f"> {text}")
        self.press("Enter")

    def press(self, key: str) -> None:
        """Press a key that has a name: Enter, Escape."""
        self.tmux("send-keys", key)

    def resize(self, *sizes: tuple[int, int]) -> None:
        """Resize it to one size after the other, in a burst however busy the machine is."""
        commands = [["resize-window", "-x", str(columns), "-y", str(rows), ";"] for rows, columns in sizes]
        self.tmux(*itertools.chain.from_iterable(commands))

    @property
    def display(self) -> list[str]:
        """The lines of the screen as it is now."""
        return self.tmux("capture-pane", "-p").splitlines()

    @property
    def text(self) -> str:
        """What has scrolled away, and the screen."""
        return self.tmux("capture-pane", "-p", "-S", "-")

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until the screen is as it should be."""
        wait_until(condition)

    def wait_for(self, *wanted: str) -> None:
        """Wait until all of these are to be seen, on the screen or above."""
        self.wait(lambda: all(each in self.text for each in wanted))
