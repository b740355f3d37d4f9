"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take signals as a program in the foreground does: a shell and `nohup` start programs that ignore some of them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
