"""How long a stop of `terminal`, `process` and `execute_code` takes: from cancel() in another thread to the outcome.

    python bench/toolbox_shell.py [--runs 100] [--sandbox workspace|off]

Each call runs in a batch, as the product runs it, and is in the middle of its work before the clock starts:

- a command that ignores TERM and has a double-forked grandchild, as deaf, in another session
- a wait for a background job
- code in `while True: pass`, in `time.sleep`, and in a C function that does not look for signals for about a second

All take turns within a round. Processes of the first are looked at afterwards, until they are dead.

Goal: control back within 50 ms at the 99th percentile, and no process alive 3 s after the stop.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import gc
import json
import os
import select
import shlex
import statistics
import tempfile
import threading
import time

from bench.measure import Goals, percentile, print_table
from halter import CancellationToken
from halter.events.tools import ToolProgress
from halter.models import ToolCall
from halter.testing import deaf_process
from halter.toolbox.python.execute_code import Code
from halter.toolbox.sandbox.sandbox import Sandbox
from halter.toolbox.terminal.terminal import Terminal
from halter.tools import collect_tools
from halter.tools.resources import SessionResources
from halter.tools.run.batch import Batch, BatchEnvironment

_SETTLE = 0.01  # seconds in which a call gets from saying that it is there to its loop or system call
_DEAD_WITHIN = 3.0
_DEAF = shlex.join(deaf_process(escape=True))
# The sum takes about a second or two, and sum() never looks whether a signal has come.
_CODES = {
    "code: while True: pass": "print('ready')\nwhile True: pass",
    "code: time.sleep": "print('ready')\nimport time; time.sleep(60)",
    "code: deaf C for a second": "print('ready')\nsum(range(6 * 10**7))",
}


class Stage:
    """One session's worth of calls."""

    def __init__(self, folder, sandbox):
        self.terminal = Terminal(folder, grace=0.2, sandbox=sandbox)
        self.code = Code(folder, sandbox=sandbox)
        self.resources = SessionResources()
        self.tools = collect_tools([*self.terminal.tools, *self.code.tools])

    async def call(self, name, arguments, *, ready=None):
        """Make a call; stop it once *ready* is reported, or is true. Returns seconds and the outcome."""
        token = CancellationToken()
        moment = []

        def stop():
            while callable(ready) and not ready():
                time.sleep(0.001)
            time.sleep(_SETTLE)
            moment.append(time.perf_counter())
            token.cancel("interrupt")

        def listen(event):
            is_there = isinstance(ready, str) and isinstance(event, ToolProgress) and ready in event.text
            if (is_there or callable(ready)) and not thread.ident:
                thread.start()

        thread = threading.Thread(target=stop)
        around = BatchEnvironment(self.tools, resources=self.resources, listener=listen, approve=lambda _: True)
        [outcome] = await Batch([ToolCall("1", name, json.dumps(arguments))], around, token=token).run()
        back = time.perf_counter()
        if thread.ident:
            thread.join()
        return (back - moment[0] if moment else None), outcome


def dead_after(outcome):
    """Seconds until the processes that the outcome names are dead, from now."""
    start = time.perf_counter()
    for pid in str(outcome.content).split("ready ", 1)[1].split()[:2]:
        try:
            descriptor = os.pidfd_open(int(pid))
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        is_dead = poll.poll(10_000)
        os.close(descriptor)
        if not is_dead:
            return float("inf")
    return time.perf_counter() - start


async def measure(runs, stage):
    back = {"terminal: deaf, with an escapee": [], "process: wait": [], **{name: [] for name in _CODES}}
    dead = []
    await stage.call("terminal", {"command": "sleep 600", "background": True})
    jobs = stage.resources.keep(stage.terminal._make_jobs)

    def waits():
        return jobs.get(1).process.changes._listeners

    for number in range(runs + 2):  # the first two warm up
        gc.collect()
        gc.disable()
        seconds, outcome = await stage.call("terminal", {"command": _DEAF}, ready="ready")
        assert outcome.status == "partial", outcome
        samples = [seconds]
        death = seconds + await asyncio.to_thread(dead_after, outcome)
        seconds, outcome = await stage.call("process", {"action": "wait", "job": 1}, ready=waits)
        assert outcome.status == "partial", outcome
        samples.append(seconds)
        for code in _CODES.values():
            seconds, outcome = await stage.call("execute_code", {"code": code, "timeout": 60}, ready="ready")
            assert outcome.status == "partial", outcome
            assert seconds is not None
            samples.append(seconds)
        gc.enable()
        if number > 1:
            dead.append(death)
            for name, sample in zip(back, samples, strict=True):
                back[name].append(sample)
    return back, dead


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--sandbox", choices=["workspace", "off"], default="workspace")
    options = parser.parse_args()
    runs = max(options.runs, 50)
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, None if options.sandbox == "off" else Sandbox(folder))
        try:
            back, dead = asyncio.run(measure(runs, stage))
        finally:
            stage.resources.close()
    rows = [
        [name, *(f"{1000 * value:.1f}" for value in (statistics.median(taken), percentile(taken, 99), max(taken)))]
        for name, taken in [*back.items(), ("terminal: all dead", dead)]
    ]
    print_table(f"Control back after a stop, ms, {runs} runs each", ["call", "median", "p99", "worst"], rows)
    goals = Goals()
    for name, taken in back.items():
        goals.at_most(f"{name}, p99", 1000 * percentile(taken, 99), 50, " ms")
    goals.at_most("all processes dead", max(dead), _DEAD_WITHIN, " s")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
