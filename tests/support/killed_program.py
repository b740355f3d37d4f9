"""A process that dies by kill -9 in the middle of a turn: again and again, each time at another point.

Run as a program, it has everything imported and no threads, and forks a child for each line that it reads: a database
and a point. The child runs the turn in that database, and dies at that point. Without a point, it tells all of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from halter import CancellationToken
from halter.events import Event
from halter.stores import SQLiteStore
from halter.testing import interrupt_at, points_of
from halter.testing.everywhere import point_named
from tests.support.stopped_turn import FIRST, Judge

BEFORE = "remember this"


def a_turn_in(database: str) -> object:
    """Make a scenario: a message in the inbox, then a turn with everything; what is seen is told to the parent."""

    async def scenario(token: CancellationToken) -> None:
        with SQLiteStore(database) as store:
            session = Judge("crash", store=store, without="isolated").session
            token.on_cancel(lambda: os.kill(os.getpid(), signal.SIGKILL))
            tell("accepted", session.queue(BEFORE).id)
            with session.subscribe() as listener:
                watching = asyncio.ensure_future(watch(listener))
                await session.arun(FIRST)
            await watching
            await session.aclose()

    return scenario


async def watch(listener: object) -> None:
    async for event in listener:  # type: ignore[attr-defined]
        tell_event(event)


def tell_event(event: Event) -> None:
    if event.kind == "text.delta":
        tell("saw", event.data.text)  # type: ignore[union-attr]
    elif event.kind == "tool.started":
        tell("started", event.data.call_id)  # type: ignore[union-attr]


def tell(what: str, text: str) -> None:
    os.write(1, f"{what} {text}\n".encode())


def child(line: str) -> None:
    database, _, name = line.partition("\t")
    if name:
        interrupt_at(a_turn_in(database), point_named(name))  # type: ignore[arg-type]
    else:
        for point in points_of(a_turn_in(database)):  # type: ignore[arg-type]
            tell("point", str(point))


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(line.rstrip("\n"))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        tell("end", str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
