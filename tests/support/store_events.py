"""Helpers of the tests of the stores: short ways to make and write events, and programs that use a store elsewhere."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

from halter.events import Event, EventData, MessageAccepted
from halter.models.types import TextDelta, UserMessage
from halter.stores import Lease, Store, Write


def event(data: EventData, session: str = "s", turn: str = "t1") -> Event:
    return Event(0, time.time(), session, turn, data)


def says(text: str, session: str = "s") -> Event:
    return event(TextDelta(text), session)


def accepted(id: str, text: str = "hello", session: str = "s") -> Event:  # noqa: A002  (it is the event's)
    return event(MessageAccepted(id, "queue", UserMessage.of(text)), session, turn="")


def numbered(first: int, *events: Event) -> list[Event]:
    for seq, each in enumerate(events, first):
        each.seq = seq
    return list(events)


def append(store: Store, lease: Lease, *events: Event, waiting: int = 0) -> list[Event]:
    """Number events behind the last one of their session, and commit them."""
    made = numbered(len(store.read(lease.session)) + 1, *events)
    store.commit([Write(lease, made, waiting)])
    return made


def waiting(store: Store, session: str = "s") -> int:
    """How many messages wait in a session, as the list of sessions tells."""
    return next(info.waiting for info in store.sessions() if info.id == session)


def texts(store: Store, session: str = "s") -> list[str]:
    return [entry.data.text for entry in store.read(session) if isinstance(entry.data, TextDelta)]


def numbers(store: Store, session: str = "s") -> list[int]:
    return [entry.seq for entry in store.read(session)]


PRELUDE = """
import os, sys
from halter.errors import *
from halter.events import *
from halter.models.types import TextDelta, UserMessage
from halter.stores import SQLiteStore, Write
from tests.support.store_events import accepted, append, event, numbered, numbers, says, texts
path = sys.argv[1]
"""


@contextmanager
def program(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A process of its own; it is killed at the end, if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-u", "-c", PRELUDE + textwrap.dedent(code), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """What the program says next; it is waited for."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def output(code: str, *args: object) -> str:
    """All that a program says, to its end, which must be a good one."""
    with program(code, *args) as process:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        return said.strip()
