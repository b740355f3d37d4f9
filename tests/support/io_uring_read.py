"""Opens and reads a file by io_uring, which does its work outside of the calling system calls. Standard library only.

python io_uring_read.py PATH
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys

_SETUP, _ENTER = 425, 426
_OPENAT = 18
_AT_FDCWD = -100
_SQES = 0x10000000


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    parameters = ctypes.create_string_buffer(120)
    ring = libc.syscall(_SETUP, 1, parameters)
    if ring < 0:
        sys.exit(f"no io_uring: {os.strerror(ctypes.get_errno())}")
    # struct io_uring_params: 10 words, then the offsets of both rings.
    entries, cq_entries = struct.unpack_from("II", parameters, 0)
    sq = struct.unpack_from("8I", parameters, 40)  # head, tail, mask, entries, flags, dropped, array, reserved
    cq = struct.unpack_from("6I", parameters, 80)  # head, tail, mask, entries, overflow, cqes
    size = max(sq[6] + entries * 4, cq[5] + cq_entries * 16)
    rings = mmap.mmap(ring, size, flags=mmap.MAP_SHARED)
    requests = mmap.mmap(ring, entries * 64, flags=mmap.MAP_SHARED, offset=_SQES)
    path = ctypes.create_string_buffer(os.fsencode(sys.argv[1]))
    # opcode, flags, priority, descriptor, offset, address, mode, open flags, user data
    requests[0:40] = struct.pack("BBHiQQIIQ", _OPENAT, 0, 0, _AT_FDCWD, 0, ctypes.addressof(path), 0, os.O_RDONLY, 1)
    rings[sq[6] : sq[6] + 4] = struct.pack("I", 0)
    rings[sq[1] : sq[1] + 4] = struct.pack("I", 1)
    if libc.syscall(_ENTER, ring, 1, 1, 1, None, 0) < 0:
        sys.exit(f"io_uring_enter: {os.strerror(ctypes.get_errno())}")
    _, result, _ = struct.unpack_from("QiI", rings, cq[5])
    if result < 0:
        sys.exit(f"opened by io_uring: {os.strerror(-result)}")
    print(os.read(result, 100).decode())


if __name__ == "__main__":
    main()
