"""Processes as the tests start them, wait for them and count what they leave."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
from typing import Any


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and only waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False


def wait_dead(pid: int, seconds: float = 30.0) -> None:
    """Wait for the end of any process, ours or not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(seconds * 1000), f"process {pid} is still alive after {seconds} s"
    finally:
        os.close(descriptor)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def open_files() -> list[str]:
    """The files that this process has open. What watches processes looks into /proc, now and then."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(
        each
        for each in found
        if each.startswith("/") and not each.startswith(("/dev", "/proc", "/sys", "/memfd:halter-guardian"))
    )


def run_python(code: str, *args: str, timeout: float = 30.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of its own and return how it ended and what it said."""
    ended: subprocess.CompletedProcess[str] = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )
    return ended
