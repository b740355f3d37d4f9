"""Functions that the tests run in worker processes, which import them by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from halter import checkpoint, current_token


def add(a: int, b: int = 1) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


def fail() -> None:
    raise KeyError("missing")


class Stubborn(Exception):
    """An exception that cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail_stubbornly() -> None:
    raise Stubborn(1, 2)


def lambda_back() -> object:
    return lambda: None


def leave(code: int) -> None:
    os._exit(code)


def die_by_signal(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def _tell(ready: str, *pids: int) -> None:
    """Write the file whole: a process that is killed meanwhile leaves no empty one."""
    part = Path(f"{ready}.part")
    part.write_text(" ".join(map(str, pids)))
    part.replace(ready)


def spin(ready: str) -> None:
    _tell(ready, os.getpid())
    while True:
        pass


def obey(ready: str) -> None:
    _tell(ready, os.getpid())
    while True:
        checkpoint()
        current_token().sleep(30)


def obey_with(ready: str, answer: str) -> str:
    _tell(ready, os.getpid())
    current_token().wait(30)
    return answer + (current_token().reason or "") + current_token().detail


def deaf_with_child(ready: str) -> None:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    _tell(ready, os.getpid(), child.pid)
    child.wait()


def deadline() -> float | None:
    return current_token().deadline


def say() -> None:
    print("said in the worker")


def close_output() -> None:
    sys.stdout.close()
