"""Which processes were started for a tool: by this process, or by another that uses Halter.

They have a cookie in their environment, or descend from one that has, or belong to a process tree of ours. One that
clears its environment and leaves its parent, its session and its control group is not recognized.
"""

from __future__ import annotations

import os
from typing import Final

from halter.cancel.processes import registry
from halter.cancel.processes.proc_table import HAS_PROC, read, scan, status_of
from halter.cancel.processes.tree import COOKIE, ProcessTree

__all__ = ["is_started_for_tool", "tool_processes"]

_COOKIE: Final = COOKIE.encode()


def tool_processes() -> set[int]:
    """All living processes that were started for a tool. Blocks for a scan of the process table. Linux only."""
    if not HAS_PROC:
        return set()
    table = scan()
    own = {name.encode() for name in os.environ}  # if we were started for a tool, those beside us do not count
    marked = [
        pid for cookie, pids in table.marked.items() if cookie.startswith(_COOKIE) and cookie not in own for pid in pids
    ]
    ours = ProcessTree.union_of(registry.trees()).members()
    return table.descendants([*marked, *ours])


def is_started_for_tool() -> bool:
    """Whether this process, or one that it descends from, was started for a tool."""
    if any(name.startswith(COOKIE) for name in os.environ):  # our own entry in /proc may be closed to us
        return True
    pid = os.getppid()
    while pid:
        if _COOKIE in read(f"/proc/{pid}/environ"):
            return True
        status = status_of(pid)
        pid = 0 if status is None else status.parent
    return False
