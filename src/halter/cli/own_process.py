"""Protects our own process from the processes that its tools start. Called by programs, before they start a thread.

- Our keys leave the environment for the memory of this process.
- What `/proc/PID/environ` shows is the environment as it was at the start: values that look like secrets are
  overwritten there. Those that are not ours stay in `os.environ`.
- Other processes of this user can read neither its memory nor its descriptors (`PR_SET_DUMPABLE`). It leaves no core
  dump.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import Final

from halter._own_keys import take_from_environment
from halter._secrets import is_secret

__all__ = ["protect_own_process"]

_PR_SET_DUMPABLE: Final = 4
_ENV_START, _ENV_END = 47, 48  # of the fields of /proc/PID/stat behind the name


def protect_own_process() -> None:
    """Do all of it, as far as the system allows. The program runs without it too, so nothing is raised."""
    secret_names = [name for name, value in os.environ.items() if is_secret(name, value)]
    take_from_environment()
    if not sys.platform.startswith("linux"):
        return
    for name in secret_names:
        if name in os.environ:
            os.environ[name] = os.environ[name]  # the C library keeps a copy, instead of a pointer to the old place
    with contextlib.suppress(OSError):  # no /proc
        _overwrite({os.fsencode(name) for name in secret_names})
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _overwrite(names: set[bytes]) -> None:
    """Overwrite the values of these variables in the environment that the kernel has put into our memory."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0") if start else ():
        name, equals, value = entry.partition(b"=")
        if name in names and equals:
            ctypes.memset(at + len(name) + 1, 0, len(value))
        at += len(entry) + 1
