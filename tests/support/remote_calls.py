"""Calls of the tools for another machine, over a real SSH connection, for their tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halter import ToolOutcome
from halter.models import ToolCall
from halter.testing import Stop, ToolCalls
from halter.toolbox.remote.remote import Remote
from halter.toolbox.remote.ssh import SSHMachine
from halter.tools.approval import Policy
from halter.tools.resources import SessionResources
from tests.support.allowing import allow
from tests.support.processes import wait_dead
from tests.support.ssh_server import PASSWORD, USER, SSHServer
from tests.support.stopped_calls import is_over, patient
from tests.support.waiting import wait_until

# Each writes two process ids and says "half"; each tries to get away in another way.
COMMANDS = {
    "plain": "sleep 1000 & echo $! $$ >pids; echo half; wait",
    "ignores TERM": "trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & echo $! $$ >pids; echo half; wait",
    "new session": "setsid sleep 1000 & echo $! $$ >pids; echo half; wait",
    "double fork": "(setsid sh -c 'echo $$ >>pids; exec sleep 1000' &) ; echo $$ >>pids; echo half; sleep 1000",
    "own group": "env -i bash -mc 'sleep 1000 & echo $! $$ >>pids; wait' & echo half; wait",
    "python": 'python3 -c \'import os; print(os.getpid(), os.getppid(), file=open("pids", "w")); print("half", '
    "flush=True); import time; time.sleep(1000)'; true",
}


def machine_of(server: SSHServer, **options: Any) -> SSHMachine:
    given: dict[str, Any] = {"username": USER, "password": PASSWORD, "client_keys": (), "port": server.port}
    return SSHMachine("127.0.0.1", **(given | {"known_hosts": server.known_hosts} | options))


def remote_of(server: SSHServer, **options: Any) -> Remote:
    return Remote(machine_of(server), grace=0.3, **options)


def ask(name: str, call_id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


class Work:
    """Calls on one machine, one after the other, as one session would make them."""

    def __init__(self, server: SSHServer | Remote, resources: SessionResources, **options: Any) -> None:
        remote = server if isinstance(server, Remote) else remote_of(server, **options)
        self.tools = patient(remote.tools)
        self.calls = ToolCalls()
        self._resources = resources
        self.approve: Policy = allow

    def __call__(self, name: str, stop: Stop | None = None, **arguments: Any) -> ToolOutcome:
        self.calls = ToolCalls(*self.tools, resources=self._resources, approve=self.approve)
        return self.calls.call_stopped(stop, name, **arguments)

    def text(self, name: str, **arguments: Any) -> str:
        outcome = self(name, **arguments)
        assert outcome.status == "completed", outcome
        return str(outcome.content)

    def stopped(self, name: str, when: Callable[[], object], reason: str = "stop", **arguments: Any) -> ToolOutcome:
        """Stop a call as soon as *when* holds, or when it has ended."""
        stop = Stop(reason, wait=lambda: wait_until(lambda: when() or is_over(self.calls)))
        return self(name, stop, **arguments)


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def wait_for_pids(path: Path, count: int) -> Callable[[], bool]:
    return lambda: len(pids_in(path)) == count


def judge_dead(path: Path) -> None:
    pids = pids_in(path)
    assert pids
    for pid in pids:
        wait_dead(pid)


def leftovers(server: SSHServer) -> list[str]:
    """Find what the wrapper itself leaves: its temporary directories and drafts.

    It goes on for a moment when its connection has ended, so this waits until it has tidied up.
    """

    def found() -> list[str]:
        return [str(path) for path in (*server.home.glob(".halter.*"), *server.temporary.glob("halter.*"))]

    with contextlib.suppress(AssertionError):
        wait_until(lambda: not found())
    return found()
