"""The tokens that ``bench/token.py`` compares, and how one makes, checks and links each of them.

``child`` is what its users write to get a piece of work that is cancelled with another and can be
cancelled alone. autogen's token has no children, but a callback links two; pydantic_ai's has the runs
that it was given to, and they leave it when they finish. An anyio or trio scope has a child where
one is entered inside another, and 10,000 at once only in 10,000 tasks, which it then also wakes.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from typing import Any

from bench.samples import Contender, ScopeContender
from halter.cancel import CancellationToken


class Naive:
    """What one writes in five minutes: an event, a lock and a list."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._children: list[Naive] = []

    def child(self) -> Naive:
        new = Naive()
        with self._lock:
            self._children.append(new)
        if self._event.is_set():
            new.cancel()
        return new

    def cancel(self) -> None:
        with self._lock:
            self._event.set()
            children = list(self._children)
        for child in children:
            child.cancel()

    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def raise_if_cancelled(self) -> None:
        if self._event.is_set():
            raise RuntimeError


class Slot:
    """The floor of a check: an object with one slot."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False


def contenders() -> tuple[list[Contender], list[str]]:
    """All that are installed, and what is missing."""
    found = [
        Contender(
            "halter",
            CancellationToken,
            check="token.is_cancelled",
            raise_if="token.raise_if_cancelled()",
            child=CancellationToken.child,
        ),
        Contender("an object with a slot", Slot, check="token.is_cancelled"),
        Contender("asyncio.Event", asyncio.Event, check="token.is_set()"),
        Contender("threading.Event", threading.Event, check="token.is_set()"),
        Contender(
            "naive: Event + Lock + list",
            Naive,
            check="token.is_cancelled()",
            raise_if="token.raise_if_cancelled()",
            child=Naive.child,
        ),
    ]
    missing = []
    for package, build in (("autogen_core", _autogen), ("pydantic_ai", _pydantic), ("anyio", _anyio), ("trio", _trio)):
        try:
            found.append(build())
        except ImportError as exc:
            missing.append(f"{package} ({exc})")
    return found, missing


def _autogen() -> Contender:
    make = importlib.import_module("autogen_core").CancellationToken

    def link(token: Any) -> Any:
        new = make()
        token.add_callback(new.cancel)
        return new

    return Contender("autogen_core (callback)", make, check="token.is_cancelled()", child=link)


def _pydantic() -> Contender:
    module = importlib.import_module("pydantic_ai._cancel")
    make_run = module.RunCancellation

    def attach(token: Any) -> Any:
        new = make_run()
        new.attach_token(token)
        return new

    return Contender(
        "pydantic_ai (run)", module.CancellationToken, check="token.cancelled", child=attach, leave=make_run.finish
    )


def _anyio() -> Contender:
    library = importlib.import_module("anyio")
    importlib.import_module("anyio.lowlevel")
    return ScopeContender("anyio.CancelScope", library, library.create_task_group)


def _trio() -> Contender:
    library = importlib.import_module("trio")
    return ScopeContender("trio.CancelScope", library, library.open_nursery)
