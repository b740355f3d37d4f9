"""What a test has left running: after each test of a module that imports `nothing_is_left`, or after a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from halter.cancel import abandoned
from halter.cancel.isolation import worker_process
from halter.cancel.processes import guardian, registry
from tests.support.processes import is_alive, open_descriptors
from tests.support.waiting import wait_until


def children() -> set[int]:
    """The living processes that this one has started."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(int(pid) for pid in listing.read_text().split())
        except OSError:  # that thread has ended meanwhile
            continue
    return {pid for pid in found if is_alive(pid)}


def idle_workers() -> set[int]:
    """Those that are kept for the next call."""
    return {each._process.pid for idle in list(worker_process._pools) for each in list(idle.workers)}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whatever a test stopped: no thread is stuck, no process works on, no lookup or server thread is there."""
    yield
    wait_until(lambda: len(abandoned) == 0)
    wait_until(lambda: children() <= idle_workers())
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "halter-aside"])


@contextmanager
def leaves_nothing() -> Iterator[None]:
    """Check that a block leaves no process, descriptor or unsettled process tree behind."""
    guardian.ensure()  # it starts with the first process, and stays
    roots, descriptors = registry.roots(), open_descriptors()
    yield
    wait_until(lambda: registry.roots() <= roots)
    wait_until(lambda: open_descriptors() <= descriptors)
