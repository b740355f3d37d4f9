"""All process trees that this process has to end, so that none outlives it. The guardian gets a copy."""

from __future__ import annotations

import atexit
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.fork import after_fork
from halter.cancel.processes import guardian
from halter.cancel.processes.tree import ProcessTree

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
# Seconds that a tree has to end by itself at exit, before it is killed.
EXIT_GRACE: Final = 0.2
_live: Final[
    dict[ProcessTree, Callable[[], None]]
] = {}  # with the function that erases the tree from the guardian's table
_sources: Final[list[Callable[[], ProcessTree]]] = []


def add(tree: ProcessTree) -> None:
    if tree not in _live:
        _live[tree] = tree.watch()


def remove(tree: ProcessTree) -> None:
    erase = _live.pop(tree, None)
    if erase is not None:
        erase()


def roots() -> set[int]:
    """The root processes of all trees: each has an owner here that ends it."""
    return {pid for tree in list(_live) for pid in tree.roots}


def trees() -> list[ProcessTree]:
    """All trees, with those of functions that are running."""
    found = [source() for source in _sources]  # these leave out what is registered, so they come first
    return [*_live, *found]


def stop(tree: ProcessTree, grace: float) -> list[int]:
    """End a tree; blocks until that is done. If the program exits meanwhile, the exit ends it.

    Returns the ids of processes that are still there, nearly always none. Their tree stays registered: the exit tries
    once more, and reports what is left behind.
    """
    add(tree)
    survivors = tree.stop(grace)
    _report(survivors)
    if not survivors:
        remove(tree)
    return survivors


def add_source(source: Callable[[], ProcessTree]) -> None:
    """Have stop_all() also end the tree that *source* returns then."""
    _sources.append(source)


def stop_all(grace: float) -> list[int]:
    """End all trees, in this thread: at exit no other thread can be started. Returns the processes still there."""
    registered = list(_live)
    union = ProcessTree.union_of(trees())
    survivors = union.stop(grace) if union.may_have_members() else []
    _report(survivors)
    for tree in registered:
        remove(tree)
    return survivors


def _report(survivors: list[int]) -> None:
    if survivors:
        _log.error("these processes are still running after SIGKILL: %s", survivors)


def _at_exit() -> None:
    stop_all(EXIT_GRACE)
    guardian.dismiss()


atexit.register(_at_exit)
after_fork(_live.clear)  # they belong to the parent
