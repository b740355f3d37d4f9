"""A soak: many threads say everything at random to many sessions of one SQLite file, in a process that is killed.

The process (`bench/soak_worker.py`) posts in all modes, edits, removes, stops, releases, rolls back, answers, prepares
voice messages, closes and opens again, with tools of every kind and a provider that stalls, drops, answers 429 and
garbage. It is ended by kill -9 at random, and started again on the same file. This process knows only what was
acknowledged over a pipe (`bench/soak_oracle.py`), and reads the log at the end: every acknowledged message was applied
exactly once, waits, or was removed; every answer is there; the history was valid at every point; each call has one
result; no turn is open; and there is no traceback and no LeaseLost in the output.

    bench/soak.py --seconds 600 --seed 7

The seed reproduces what is said, what is answered and when the process is killed; not how threads meet. Exits with 1
if anything was violated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

from bench.measure import print_table
from bench.soak_oracle import Oracle
from bench.soak_provider import SoakProvider

_LIFE = (2.0, 12.0)  # seconds until a process is ended
_SILENT = 30.0  # seconds without a report that a process may take
_END = 60.0  # seconds to its end, when it is asked to
_BAD = re.compile(r"Traceback|LeaseLost|never retrieved|Exception ignored|Fatal Python error|RuntimeError")


class Life:
    """One process: from its start to its end."""

    def __init__(self, number: int, folder: Path, url: str, options: argparse.Namespace, oracle: Oracle) -> None:
        self._oracle = oracle
        self._output = folder / f"output-{number}.txt"
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._rest = b""
        self._last = time.monotonic()
        root = str(Path(__file__).resolve().parent.parent)
        command = [sys.executable, "-m", "bench.soak_worker", f"--pipe={writer}", f"--life={number}", f"--url={url}"]
        command += [f"--path={folder / 'soak.db'}", f"--seed={options.seed}-{number}"]
        command += [f"--sessions={options.sessions}", f"--threads={options.threads}"]
        paths = [root, os.environ.get("PYTHONPATH", "")]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[writer],
                cwd=root,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
        os.close(writer)

    def listen(self, seconds: float, chance: random.Random | None = None) -> bool:
        """Take reports for so long, and send a signal now and then; False if the process has ended or is stuck."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            select.select([self._reader], [], [], min(0.2, max(0.0, end - time.monotonic())))
            self._take()
            if self.process.poll() is not None:
                return False
            if time.monotonic() - self._last > _SILENT:
                self._oracle.violations.append(f"the process says nothing; see {self._output}")
                self.process.send_signal(signal.SIGUSR1)
                time.sleep(1.0)
                return False
            if chance is not None and self._oracle.counts["ready"] and chance.random() < 0.1:
                self.process.send_signal(signal.SIGUSR2)
        return True

    def _take(self) -> None:
        while True:
            try:
                piece = os.read(self._reader, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                return
            self._last = time.monotonic()
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                self._oracle.take(json.loads(line))

    def kill(self) -> None:
        self.process.kill()
        self._close()

    def end(self, word: str) -> None:
        """Ask it to end, and see that it does."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()
        if self.listen(_END):
            self._oracle.violations.append(f"the process did not end within {_END} s; see {self._output}")
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1.0)
            self.process.kill()
        self._close()
        if self.process.returncode:
            self._oracle.violations.append(f"the process ended with {self.process.returncode}; see {self._output}")

    def _close(self) -> None:
        self.process.wait()
        self._take()  # what it wrote is still there
        os.close(self._reader)
        assert self.process.stdin is not None
        self.process.stdin.close()
        text = self._output.read_text(errors="replace")
        found = _BAD.search(text)
        if found:
            context = text[max(0, found.start() - 1500) : found.end() + 1500]
            self._oracle.violations.append(f"in {self._output}: {context}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--folder", help="where the file and the output stay; by default they go if all is well")
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(exist_ok=True)
    print(f"seed {options.seed}, {options.seconds:g} s, in {folder}", flush=True)
    oracle, ends = Oracle(), Counter[str]()
    provider = SoakProvider(options.seed)
    start = time.monotonic()
    with provider.server:
        _live(options, folder, provider, oracle, ends)
    oracle.violations += provider.refused
    took = time.monotonic() - start
    oracle.judge(str(folder / "soak.db"))
    _print(oracle, ends, provider.requests, took)
    _print_violations(oracle.violations)
    print(f"{len(oracle.violations)} violations, seed {options.seed}")
    if not oracle.violations and not options.folder:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    return 1 if oracle.violations else 0


def _live(
    options: argparse.Namespace, folder: Path, provider: SoakProvider, oracle: Oracle, ends: Counter[str]
) -> None:
    """Process after process, until the time is over; the last one applies all that waits."""
    chance = random.Random(f"{options.seed} lives")
    end = time.monotonic() + options.seconds
    number = 0
    while True:
        number += 1
        oracle.counts["ready"] = 0
        life = Life(number, folder, provider.server.url, options, oracle)
        seconds = chance.uniform(*_LIFE)
        is_last = time.monotonic() + seconds > end
        signals = random.Random(f"{options.seed} signals {number}")
        is_alive = life.listen(min(seconds, max(1.0, end - time.monotonic())), signals)
        if not is_alive:
            life.kill()
            oracle.violations.append(f"the process ended by itself: {life.process.returncode}")
            ends["by itself"] += 1
        elif is_last:
            provider.is_kind = True
            life.end("settle")
            ends["asked, after all was applied"] += 1
            return
        elif chance.random() < 0.75:
            life.kill()
            ends["kill -9"] += 1
        else:
            life.end("end")
            ends["asked"] += 1
        if oracle.violations and is_last:
            return


def _print_violations(violations: list[str]) -> None:
    """Print the first of each kind, and how many there are."""
    kinds: dict[str, list[str]] = {}
    for violation in violations:
        kinds.setdefault(re.sub(r"\w*\d[-\w]*", "N", violation)[:50], []).append(violation)
    for alike in kinds.values():
        print(f"VIOLATION, {len(alike)} of this kind: {alike[0]}\n")


def _print(oracle: Oracle, ends: Counter[str], requests: int, took: float) -> None:
    counts = oracle.counts

    def several(*kinds: str) -> str:
        return " ".join(f"{counts[kind]:,}" for kind in kinds)

    rows = [
        ["messages acknowledged", several("accepted")],
        ["applied, removed, waiting", several("log applied", "log removed", "log waiting")],
        ["edits, removals, answers", several("edited", "removed", "answered")],
        ["turns, stops, rollbacks", several("turn.started", "turn.stopping", "turn.rolled_back")],
        ["calls, of them late", several("tool.finished", "tool.finished_late")],
        ["requests", f"{requests:,}"],
        ["ends of processes", ", ".join(f"{name}: {count}" for name, count in ends.items())],
    ]
    print_table(f"Soak of {took:.0f} s", ["", "count"], rows)


if __name__ == "__main__":
    sys.exit(main())
