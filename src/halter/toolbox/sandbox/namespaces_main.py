"""The program that makes the namespaces of a sandbox, and ends as soon as its parent has opened them.

    python -I -S namespaces_main.py < request

The request is JSON in one line: `pinned`, `read_only` and `hidden` are lists of paths, and `network` says whether to
keep the network. Only a process with one thread may make a user namespace, so this is a program of its own. There this
user has the right to mount, and what it mounts is seen only by the processes of the sandbox. It uses the standard
library alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_CLONE_NEWNS = 0x00020000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MS_RDONLY = 0x1
_MS_NOSUID = 0x2
_MS_NODEV = 0x4
_MS_NOEXEC = 0x8
_MS_REMOUNT = 0x20
_MS_NOATIME = 0x400
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_MS_RELATIME = 0x200000
# The flags of a mount that an unprivileged user may not take away, and how statvfs() names them.
_KEPT_FLAGS = {
    os.ST_NOSUID: _MS_NOSUID,
    os.ST_NODEV: _MS_NODEV,
    os.ST_NOEXEC: _MS_NOEXEC,
    os.ST_NOATIME: _MS_NOATIME,
    os.ST_RELATIME: _MS_RELATIME,
}
_SIOCSIFFLAGS = 0x8914
_IFF_UP_AND_RUNNING = 0x41

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    has_terminals = enter(json.loads(sys.stdin.readline()))
    sys.stdout.write("ready\n" if has_terminals else "ready, without terminals\n")
    sys.stdout.flush()
    sys.stdin.read()  # until the parent has opened the namespaces


def enter(request: dict[str, Any]) -> bool:
    """Make the namespaces, and be in them. Only for a process with one thread. Raises `OSError`.

    Returns whether they have terminals of their own.
    """
    flags = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWIPC | (0 if request["network"] else _CLONE_NEWNET)
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.unshare(flags), "make a user namespace")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    for path in request["pinned"]:
        _mount(path, path, None, _MS_BIND | _MS_REC)  # the place of a mount can be neither moved nor removed
    for path in request["read_only"]:
        _make_read_only(path)
    for path in request["hidden"]:
        _hide(path)
    if not request["network"]:
        _start_loopback()
    return _make_own_terminals()


def _make_read_only(path: str) -> None:
    if not os.path.exists(path):  # noqa: PTH110  (pathlib is slow to import)
        return
    _mount(path, path, None, _MS_BIND | _MS_REC)
    has = os.statvfs(path).f_flag
    kept = sum(flag for name, flag in _KEPT_FLAGS.items() if has & name)
    _mount(None, path, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | kept)


def _hide(path: str) -> None:
    """Put something empty in its place."""
    try:
        if os.path.isdir(path):  # noqa: PTH112
            _mount("tmpfs", path, "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "size=4k,mode=0555")
        elif os.path.exists(path):  # noqa: PTH110
            _mount("/dev/null", path, None, _MS_BIND)
    except FileNotFoundError:
        pass  # removed meanwhile, as sockets are


def _make_own_terminals() -> bool:
    """Put terminals of its own in the place of the user's, to which a process could write. False: it has none."""
    try:
        _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
        _mount("/dev/pts/ptmx", "/dev/ptmx", None, _MS_BIND)
    except OSError:
        return False
    return True


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", _IFF_UP_AND_RUNNING, b""))


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    _check(_libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(text)


def _check(result: int, action: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot {action}: {os.strerror(error)}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(str(error))
