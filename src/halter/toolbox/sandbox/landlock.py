"""Landlock, Linux's sandbox for unprivileged programs, by system call.

`landlock_restrict_self` restricts the calling thread and every process that this thread starts. So a short-lived thread
restricts itself, starts the process and ends: the process is in the sandbox, and ours is not. There is no launcher and
no `preexec_fn`, which is not safe in a program with threads.

Rules only allow. A right that is given for a folder holds for everything below it and cannot be taken away there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

T = TypeVar("T")

# The same numbers on all architectures that have Landlock, but for Alpha.
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_PR_SET_NO_NEW_PRIVS: Final = 38
_RULE_PATH_BENEATH: Final = 1
_RULE_PORT: Final = 2
_CAPABILITY_VERSION: Final = 0x20080522

_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_TRUNCATE: Final = 1 << 14
_IOCTL_DEV: Final = 1 << 15
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_CONNECT_TCP: Final = 1 << 1
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 3

# How many access rights each version of the interface knows. A kernel refuses those that it does not know.
_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 4: 15}
_ALL_RIGHTS: Final = 16
FIRST_USABLE: Final = 2  # before it, no file can be moved from one folder to another
_FIRST_WITH_TCP: Final = 4
_FIRST_WITH_SCOPES: Final = 6


def abi() -> int:
    """The version of the kernel's Landlock interface; 0 if there is none, or it is switched off."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, 0, 1)))


class Ruleset:
    """What the processes of a sandbox may do with files, and whether they may make TCP connections."""

    def __init__(
        self, readable: Iterable[Path], writable: Iterable[Path], *, tcp: bool, ports: Iterable[int] = ()
    ) -> None:
        """Paths that do not exist are left out. Without *tcp*, only *ports* can be connected to."""
        version = abi()
        if version < FIRST_USABLE:
            raise OSError("this kernel has no Landlock, or one in which files cannot be moved between folders")
        self._all = (1 << _RIGHTS.get(version, _ALL_RIGHTS)) - 1
        attributes = struct.pack("<Q", self._all)
        if version >= _FIRST_WITH_TCP:
            attributes += struct.pack("<Q", 0 if tcp else _CONNECT_TCP)
        if version >= _FIRST_WITH_SCOPES:
            attributes += struct.pack("<Q", _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
        self._descriptor = _call(_CREATE_RULESET, attributes, len(attributes), 0)
        try:
            for path in readable:
                self._allow(path, _READ)
            for path in writable:
                self._allow(path, self._all)
            if version >= _FIRST_WITH_TCP and not tcp:
                for port in ports:
                    _call(_ADD_RULE, self._descriptor, _RULE_PORT, struct.pack("<QQ", _CONNECT_TCP, port), 0)
        except BaseException:
            self.close()
            raise

    def _allow(self, path: Path, rights: int) -> None:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # it does not exist, or we may not access it: neither may a process that we start
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights &= _FILE_RIGHTS
            _call(
                _ADD_RULE, self._descriptor, _RULE_PATH_BENEATH, struct.pack("<Qi", rights & self._all, descriptor), 0
            )
        finally:
            os.close(descriptor)

    def run(self, work: Callable[[], T], *, keep_capabilities: bool = False) -> T:
        """Call *work* in a thread that is restricted for good, and ends after it. Blocks until then.

        It has no capabilities unless it keeps them: with them, root can bypass much of Landlock.
        """
        results: list[T] = []
        errors: list[BaseException] = []

        def restrict_and_run() -> None:
            try:
                self.restrict_this_thread(keep_capabilities=keep_capabilities)
                results.append(work())
            except BaseException as error:  # noqa: BLE001  (raised in the thread that waits)
                errors.append(error)

        # Not one of the pool's threads, which are used again.
        thread = threading.Thread(target=restrict_and_run, name="halter-sandbox", daemon=True)
        thread.start()
        thread.join()
        if errors:
            try:
                raise errors[0]
            finally:
                errors.clear()  # the exception refers to this frame
        return results[0]

    def restrict_this_thread(self, *, keep_capabilities: bool) -> None:
        """Restrict the calling thread and what it starts, for good."""
        if _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs could not be set for this thread")
        _call(_RESTRICT_SELF, self._descriptor, 0)
        if not keep_capabilities:
            _drop_capabilities()

    def close(self) -> None:
        """Release the rules. Processes that were started with them keep them."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def _drop_capabilities() -> None:
    """Give up the privileges of root, in this thread. Without new privileges no program can give them back."""
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    if _libc().capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "the thread could not give up its capabilities")


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc().syscall(number, *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock refused a rule: {os.strerror(error)}")
    return result
