"""One piece of everything that the core can stop, under one token; what the laws are tried on."""

from __future__ import annotations

import asyncio
import subprocess
import threading

from halter import (
    CancellationToken,
    Cancelled,
    ProcessResult,
    current_token,
    run_blocking_async,
    run_isolated_async,
    run_process,
)


def listen() -> str:
    current_token().wait(0.002)
    return "listened"


def wait_for_a_child() -> int:
    return subprocess.Popen(["sleep", "0.01"]).wait()


def count(number: int) -> int:
    return number + 1


async def all_kinds_of_work(token: CancellationToken) -> dict[str, object]:
    """Run them side by side; returns what became of each: its value, or Cancelled."""
    works = {
        "task": sleep_in_scope(token),
        "listening thread": run_blocking_async(listen, token=token, grace=0.1),
        "deaf thread with a child": run_blocking_async(wait_for_a_child, token=token),
        "process": run_process("echo one; sleep 0.01; echo two", token=token, grace=0.1),
        "isolated": run_isolated_async(count, 1, token=token),
    }
    ends = await asyncio.gather(*(work_or_cancelled(work, token) for work in works.values()))
    return dict(zip(works, ends, strict=True))


async def sleep_in_scope(token: CancellationToken) -> str:
    async with token.child("task").scope():
        await asyncio.sleep(0.002)
        return "slept"


async def work_or_cancelled(work: object, token: CancellationToken) -> object:
    try:
        return await work
    except Cancelled as exc:
        assert exc.belongs_to(token)
        return exc


WHOLE: dict[str, object] = {
    "task": "slept",
    "listening thread": "listened",
    "deaf thread with a child": 0,
    "process": ProcessResult(0, b"one\ntwo\n", b""),
    "isolated": 2,
}


def is_whole_or_cancelled(what: str, end: object) -> bool:
    if isinstance(end, ProcessResult) and end.cancelled:
        return b"one\ntwo\n".startswith(end.stdout)
    return isinstance(end, Cancelled) or end == WHOLE[what]


def thread_names() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate())
