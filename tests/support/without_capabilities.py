"""Root may read and write every file. Tests of permissions run in a thread that may do only what the mode says."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522


def without_capabilities(work: Callable[[], T]) -> T:
    """Call *work* in a thread without the capabilities of root. What it starts has none either."""
    if os.geteuid() != 0:
        return work()
    assert sys.platform == "linux", "run the tests as an ordinary user here"
    result: Future[T] = Future()

    def run() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            assert libc.capset(struct.pack("<Ii", _CAPABILITY_VERSION, 0), bytes(24)) == 0
            result.set_result(work())
        except BaseException as error:  # raised in the thread that waits
            result.set_exception(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return result.result()
