"""Every family that this process is answerable for, so that none outlives it."""

from __future__ import annotations

import atexit
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.family import Family
from halter.cancel.fork import after_fork

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
# At exit a family gets this long to end by itself before it is killed.
EXIT_GRACE: Final = 0.2
_live: Final[dict[Family, bool]] = {}
_sources: Final[list[Callable[[], Family]]] = []


def add(family: Family) -> None:
    _live[family] = True


def remove(family: Family) -> None:
    _live.pop(family, None)


def roots() -> set[int]:
    """The processes that somebody here started and looks after."""
    return {pid for family in list(_live) for pid in family.roots}


def stop(family: Family, grace: float) -> list[int]:
    """End a family; blocks until that is done. Should the program end meanwhile, its exit takes over.

    Returns the numbers of those who are still there, which is as good as always none.
    """
    add(family)
    survivors = family.stop(grace)
    _report(survivors)
    remove(family)
    return survivors


def add_source(source: Callable[[], Family]) -> None:
    """Have *source* asked, when all are ended, for processes that are not known here yet."""
    _sources.append(source)


def stop_all(grace: float) -> None:
    """End all families, in this one thread: at exit no other can be started."""
    families = list(_live)
    everybody = Family.of_families([*families, *(source() for source in _sources)])
    if everybody.may_have_members():
        _report(everybody.stop(grace))
    for family in families:
        remove(family)


def _report(survivors: list[int]) -> None:
    if survivors:
        _log.error("these processes are still there after being killed: %s", survivors)


atexit.register(stop_all, EXIT_GRACE)
after_fork(_live.clear)  # they are the parent's to end
