"""What holds for all tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

import pytest

_DATA = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Take signals as a program in the foreground does: a shell and `nohup` start programs that ignore some of them.

    What tests store is kept out of this user's data folder.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.stash[_DATA] = os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="halter-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what tests have stored."""
    shutil.rmtree(config.stash[_DATA], ignore_errors=True)
