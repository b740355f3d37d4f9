"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take SIGINT as a program in the foreground does: a shell has what it runs in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
