"""How soon a stop of a remote command gives control back, and how soon the command is dead on its machine.

A real SSH server on loopback, whose commands are real processes. Three commands: one that ends when it is told; one
that ignores TERM, leaves its session and has children; and one whose connection is cut in the moment of the stop, so
that the machine has to end it by itself. Two pieces of code: one that is interrupted, so that only what it has started
is ended, and one that does not listen, so that its interpreter is killed. Beside them the floor: a command that does
nothing, from its call to its result.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import asyncio
import contextlib
import json
import os
import select
import tempfile
import threading
import time
from pathlib import Path

from bench.measure import Goals, percentile, print_table
from halter import CancellationToken
from halter.models import ToolCall
from halter.toolbox.remote.remote import Remote
from halter.toolbox.remote.ssh import SSHMachine
from halter.tools import collect_tools
from halter.tools.resources import SessionResources
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.ssh_server import PASSWORD, USER, SSHServer

_ROUNDS = 20
_GRACE = 0.3
_EASY = "echo $$ >pids; echo half; sleep 1000"
_HARD = "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo $! $$ >pids; echo half; while :; do sleep 1; done"
_LISTENING = """
import os, subprocess, time
other = subprocess.Popen(["setsid", "sleep", "1000"])
print("half")
with open("pids", "w") as file: file.write(f"{other.pid}")
time.sleep(1000)
"""
_DEAF = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{_LISTENING}"


class Bench:
    def __init__(self, server: SSHServer, resources: SessionResources) -> None:
        self._server = server
        self._keeper = resources
        self._pids = server.home / "pids"
        machine = SSHMachine(
            "127.0.0.1",
            port=server.port,
            username=USER,
            password=PASSWORD,
            client_keys=(),
            known_hosts=server.known_hosts,
        )
        self._tools = collect_tools(Remote(machine, grace=_GRACE).tools)

    async def _run(self, token: CancellationToken, **arguments: str):
        name = "execute_code" if "code" in arguments else "terminal"
        call = ToolCall("c", name, json.dumps(arguments))
        around = BatchEnvironment(self._tools, resources=self._keeper, approve=lambda _: True)
        (outcome,) = await Batch([call], around, token=token).run()
        return outcome

    def nothing(self) -> float:
        start = time.perf_counter()
        outcome = asyncio.run(self._run(CancellationToken(), command="true"))
        assert outcome.status == "completed", outcome
        return (time.perf_counter() - start) * 1000

    def stop(self, *, cut: bool = False, **arguments: str) -> tuple[float, float]:
        """Milliseconds until control is back, and until everybody is dead."""
        self._pids.unlink(missing_ok=True)
        token = CancellationToken()
        stopped: list[float] = []
        watched: list[int] = []

        def stop() -> None:
            while not (pids := self._pids.read_text().split() if self._pids.exists() else []):
                time.sleep(0.001)
            time.sleep(0.02)
            with contextlib.suppress(ProcessLookupError):
                watched.extend(os.pidfd_open(int(pid)) for pid in pids)
            stopped.append(time.perf_counter())
            if cut:
                self._server.drop()
            token.cancel("stop")

        async def main() -> float:
            thread = threading.Thread(target=stop)
            thread.start()
            outcome = await self._run(token, **arguments)
            back = time.perf_counter()
            assert outcome.status == "partial", outcome
            assert "half" in str(outcome.content), outcome
            return back

        control = asyncio.run(main()) - stopped[0]
        for descriptor in watched:
            assert select.select([descriptor], [], [], 10)[0], "it is alive ten seconds after the stop"
            os.close(descriptor)
        return control * 1000, (time.perf_counter() - stopped[0]) * 1000


def main() -> int:
    resources = SessionResources()
    with tempfile.TemporaryDirectory() as home, SSHServer(Path(home)) as server:
        bench = Bench(server, resources)
        bench.nothing()
        figures: dict[str, list[float]] = {}
        for _ in range(_ROUNDS):
            rows = {
                "a command that listens": bench.stop(command=_EASY),
                "one that ignores TERM and has left its session": bench.stop(command=_HARD),
                "code that listens, and what it has started": bench.stop(code=_LISTENING),
                "code that does not": bench.stop(code=_DEAF),
                "a command whose connection is cut as well": bench.stop(command=_HARD, cut=True),
            }
            for name, (control, dead) in rows.items():
                figures.setdefault(f"{name}: control back", []).append(control)
                figures.setdefault(f"{name}: dead", []).append(dead)
            bench.nothing()  # connects again
            figures.setdefault("  floor: a command that does nothing, whole call", []).append(bench.nothing())
        resources.close()
    table = [(name, f"{percentile(ms, 50):.1f}", f"{percentile(ms, 99):.1f}") for name, ms in figures.items()]
    print_table(f"From the stop, {_ROUNDS} rounds, grace {_GRACE * 1000:g} ms", ["", "p50, ms", "p99, ms"], table)
    goals = Goals()
    for name, ms in figures.items():
        if name.endswith("control back"):
            goals.at_most(f"{name}, p99", percentile(ms, 99), 250, " ms")
        elif name.endswith("dead"):
            goals.at_most(f"{name}, p99", percentile(ms, 99), (2 * _GRACE + 2) * 1000, " ms")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
