"""What the guardian process costs, and how soon everything is dead after a kill -9.

    python bench/guardian.py [--rounds 20]

The cost: the first `run_process` of a program, which starts the guardian beside its command, and later ones, which only
note their tree in the table; with the guardian and without, turn about, each in a fresh interpreter. Then the table
alone, and the memory of the guardian. The kill: a program with ten commands, two of which ignore TERM and left their
session; from SIGKILL to the end of the last of them, and of the guardian.

Goal: all dead within one second.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import json
import os
import select
import signal
import subprocess
import time
import timeit
from pathlib import Path

from bench.measure import Goals, interleave, percentile, print_table
from halter.cancel.processes import guardian

_GOAL = 1000.0  # milliseconds
_COST = """
import json, sys, time
from halter import run_process_blocking
from halter.cancel.processes import guardian
if sys.argv[1] == "without":
    guardian._IS_POSSIBLE = False
def once():
    start = time.perf_counter()
    run_process_blocking(["true"])
    return (time.perf_counter() - start) * 1000
first = once()
print(json.dumps([first, min(once() for _ in range(30))]))
"""
_VICTIM = """
import asyncio, os, sys
from halter import run_process
from halter.testing import deaf_process
async def main():
    def say(piece):
        os.write(1, piece)
    await asyncio.gather(
        *(run_process("echo $$; exec sleep 60", on_output=say) for _ in range(8)),
        *(run_process(deaf_process(escape=True), on_output=say) for _ in range(2)),
    )
asyncio.run(main())
"""
_LINES = 8 + 2


def first_and_later(how: str) -> tuple[float, float]:
    ended = subprocess.run([sys.executable, "-c", _COST, how], capture_output=True, check=True)
    first, later = json.loads(ended.stdout)
    return first, later


def kill() -> tuple[float, float]:
    """Give the milliseconds from SIGKILL to the end of the last process, and of the guardian."""
    program = subprocess.Popen([sys.executable, "-c", _VICTIM], stdout=subprocess.PIPE)
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(_LINES)]
    pids = [int(word) for line in lines for word in line.split() if word.isdigit()]
    while len(found := guardians_of(program.pid)) != 1:  # it forks as it starts: a look can miss both, or see both
        time.sleep(0.01)
    [watcher] = found
    ends = {pid: os.pidfd_open(pid) for pid in [*pids, watcher]}
    start = time.perf_counter()
    program.send_signal(signal.SIGKILL)
    took = {pid: (wait(end), (time.perf_counter() - start) * 1000)[1] for pid, end in ends.items()}
    program.wait()
    program.stdout.close()
    return max(took[pid] for pid in pids), took[watcher]


def wait(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(10_000):
        sys.exit("a process is still there 10 s after its program was killed")
    os.close(descriptor)


def guardians_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(pid).encode() in words and any(word.endswith(b"guardian_main.py") for word in words):
            found.append(int(path.parent.name))
    return found


def memory_of(pid: int) -> tuple[int, int]:
    """Give the kilobytes of a process: all, and those that no other process shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    return sizes["Rss:"], sizes["Private_Clean:"] + sizes["Private_Dirty:"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    firsts: dict[str, list[float]] = {"with": [], "without": []}

    def sample(how: str) -> float:
        first, later = first_and_later(how)
        firsts[how].append(first)
        return later

    later = interleave(rounds, {how: (lambda how=how: sample(how)) for how in firsts})
    print_table(
        f"a command, ms, medians of {rounds} programs",
        ["", "first of the program", "later, at best"],
        [
            [f"{how} a guardian", f"{percentile(firsts[how], 50):.1f}", f"{percentile(later[how], 50):.2f}"]
            for how in firsts
        ],
    )
    count, names = 20_000, {"watch": guardian.watch_tree}
    seconds = timeit.timeit("watch(1, 2, b'HALTER_TREE_x', leads_session=True)()", number=count, globals=names)
    print(f"  noting a tree in the table and erasing it: {seconds / count * 1e6:.2f} µs")
    while not (own := guardians_of(os.getpid())):
        pass
    whole, private = memory_of(own[-1])
    print(f"  memory of the guardian: {whole / 1024:.1f} MB, of which {private / 1024:.1f} MB are not shared\n")
    kills = [kill() for _ in range(rounds)]
    print_table(
        f"ten commands, two of them deaf with an escapee: from kill -9 to their end, ms, {rounds} rounds",
        ["", "median", "worst"],
        [
            [name, f"{percentile(values, 50):.0f}", f"{max(values):.0f}"]
            for name, values in (("last process", [row[0] for row in kills]), ("guardian", [row[1] for row in kills]))
        ],
    )
    goals = Goals()
    worst = max(row[0] for row in kills)
    goals.check(f"all dead after {worst:.0f} ms, goal {_GOAL:g} ms", is_met=worst < _GOAL)
    sys.exit(goals.exit_code)


if __name__ == "__main__":
    main()
