"""What the chat costs whoever sits in front of it: CPU time until the line is there, and the wait for a key's echo.

    python bench/chat.py [--keys 200]

How it is measured. The program runs in a pseudo-terminal, against a provider in a process of its own, with the default
tools. For the start a key is typed as soon as the prompt is on the screen, and the program is ended when the key is
there, too; what the system says it took of the processor is printed, beside the same until everything is loaded, and a
bare interpreter. For the echo, keys that occur nowhere else are typed at random moments, one at a time, and the clock
runs from the write of a key until it comes back: while nothing happens; while 32 tools run, each telling of its
progress twenty times a second; while a command writes 1 MB a second; while an answer streams 200 blocks a second; and,
beside them in the same run, from a program of three lines that only sends back what it reads: what the machine itself
takes. Who may (root) runs all of it with a higher priority, so that other work on a shared machine counts for less.

Goals: under 150 ms of CPU until the prompt shows what is typed, and 95 of 100 keys back within 10 ms.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import contextlib
import fcntl
import os
import pty
import random
import select
import signal
import statistics
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

from bench.measure import Goals, percentile, print_table

_STARTS = 7
_TOOLS = 32
_START_MS = 150
_ECHO_MS = 10
_WAIT = 30.0
_BASE = "a bare echo"
# Two lines of keys, in turn: a line that is cleared and begun again in one picture shows nothing if it begins the same.
_KEYS = ("αβγδεζηθικλμνξπρσςτυφχψω", "бвгджзийклмнптуфцчшщъыэю")
_MODULE = '''
import asyncio
from halter import ToolContext, tool

@tool
async def work(number: int, ctx: ToolContext) -> str:
    """Work."""
    step = 0
    while True:
        step += 1
        ctx.report(f"step {step} of call {number}")
        await asyncio.sleep(0.05)
'''
# 10 kB a hundred times a second.
_COMMAND = f'{sys.executable} -uc \'import time\nwhile True: print(99 * (100 * "o" + "\\n")); time.sleep(0.01)\''
_PROVIDER = """
import json, sys
from halter.models import ToolCall
from halter.testing import FakeProvider, slow_stream, tool_calls

def reply(request):
    text = str(request.body["messages"][-1]["content"])
    if "command" in text:
        return tool_calls([ToolCall("1", "terminal", json.dumps({"command": COMMAND}))])
    if "tools" in text:
        return tool_calls([ToolCall(str(n), "work", json.dumps({"number": n})) for n in range(TOOLS)])
    return slow_stream(0.005, text="some **words** of an answer.\\n\\n")

with FakeProvider(default=reply) as provider:
    print(provider.openai_url, flush=True)
    sys.stdin.read()
""".replace("TOOLS", str(_TOOLS)).replace("COMMAND", repr(_COMMAND))


_BARE = """
import os, tty
tty.setraw(0)
os.write(1, b"ready")
while data := os.read(0, 100):
    os.write(1, data)
"""


class Chat:
    """The program in a pseudo-terminal, or another one."""

    def __init__(self, env: dict[str, str], *command: str) -> None:
        self.file, theirs = pty.openpty()
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.program = subprocess.Popen(
            [sys.executable, *(command or ("-m", "halter"))],
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, wanted: str) -> None:
        """Read until something has come."""
        end = time.monotonic() + _WAIT
        seen = b""
        while wanted.encode() not in seen:
            if not select.select([self.file], [], [], max(0.0, end - time.monotonic()))[0]:
                msg = f"{wanted!r} did not come: {seen[-2000:]!r}"
                raise TimeoutError(msg)
            seen = seen[-100:] + os.read(self.file, 65536)

    def drain(self, seconds: float) -> None:
        """Read what comes for a while."""
        end = time.monotonic() + seconds
        while select.select([self.file], [], [], max(0.0, end - time.monotonic()))[0]:
            os.read(self.file, 65536)

    def type(self, keys: str) -> None:
        os.write(self.file, keys.encode())

    def end(self) -> float:
        """End it; gives the seconds of CPU that it took."""
        self.program.send_signal(signal.SIGKILL)
        _, status, usage = os.wait4(self.program.pid, 0)
        self.program.returncode = os.waitstatus_to_exitcode(status)
        os.close(self.file)
        return usage.ru_utime + usage.ru_stime


def prompt_cpu(env: dict[str, str]) -> float:
    chat = Chat(env)
    chat.read_until("starting")
    chat.type(_KEYS[0][0])
    chat.read_until(_KEYS[0][0])
    return chat.end()


def start_cpu(env: dict[str, str]) -> float:
    chat = Chat(env)
    chat.read_until("idle")
    return chat.end()


def bare_cpu(env: dict[str, str]) -> float:
    process = subprocess.Popen([sys.executable, "-c", "pass"], env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def echoes(chat: Chat, keys: int, chance: random.Random) -> list[float]:
    """Seconds from key to echo, one for each key."""
    took = []
    for number in range(keys):
        row, at = divmod(number, len(_KEYS[0]))
        key = _KEYS[row % 2][at]
        if not at:
            chat.type("\x15")  # an empty line again
        chat.drain(chance.uniform(0.02, 0.06))
        start = time.perf_counter()
        chat.type(key)
        chat.read_until(key)
        took.append(time.perf_counter() - start)
    return took


@contextlib.contextmanager
def provider() -> object:
    process = subprocess.Popen([sys.executable, "-c", _PROVIDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process.stdout.readline().decode().strip()
    finally:
        process.stdin.close()
        process.wait(_WAIT)


def environment(home: Path, url: str) -> dict[str, str]:
    """Ours, but bytecode is cached as it is for users, and nothing of the user's own is used."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HALTER_", "OPENAI_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    (home / "benchtools.py").write_text(_MODULE)
    return kept | {
        "HALTER_HOME": str(home),
        "PYTHONPATH": str(home),
        "HALTER_MODEL": "openai:test",
        "HALTER_TOOLS": "default,benchtools:work",
        "HALTER_APPROVE": "auto",
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "any",
        "TERM": "xterm-256color",
    }


def measure_echo(env: dict[str, str], keys: int) -> dict[str, list[float]]:
    chance = random.Random(1)
    took = {}
    states = {
        _BASE: "",
        "nothing happens": "",
        f"{_TOOLS} tools run": "tools",
        "a command writes 1 MB/s": "command",
        "an answer streams": "stream",
    }
    signs = {"tools": "of call", "command": "oooo", "stream": "words"}
    for state, text in states.items():
        chat = Chat(env, "-c", _BARE) if state == _BASE else Chat(env)
        chat.read_until("ready" if state == _BASE else "idle")
        chat.drain(1.0)
        if text:
            chat.type(f"{text}\r")
            chat.read_until(signs[text])
            chat.drain(0.5)
        took[state] = echoes(chat, keys, chance)
        chat.end()
    return took


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=200)
    options = parser.parse_args()
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)  # what else the machine does is not measured
    with tempfile.TemporaryDirectory() as folder, provider() as url:
        env = environment(Path(folder), url)
        start_cpu(env)  # writes the bytecode
        starts = [(prompt_cpu(env), start_cpu(env), bare_cpu(env)) for _ in range(_STARTS)]
        took = measure_echo(env, options.keys)
    prompt, start, bare = (statistics.median(values) * 1e3 for values in zip(*starts, strict=True))
    print_table(
        f"CPU time of a fresh process, ms: medians of {_STARTS}",
        ["", "ms"],
        [
            ["halter, until its prompt shows what is typed", f"{prompt:.0f}"],
            ["halter, until all is loaded", f"{start:.0f}"],
            ["python -c pass", f"{bare:.0f}"],
        ],
    )
    print_table(
        f"From key to echo, ms: {options.keys} keys each",
        ["", "median", "95 %", "most"],
        [
            [state, *(f"{value * 1e3:.1f}" for value in (statistics.median(each), percentile(each, 95), max(each)))]
            for state, each in took.items()
        ],
    )
    goals = Goals()
    goals.at_most("CPU from start to prompt", prompt, _START_MS, " ms")
    for state, each in list(took.items())[1:]:
        goals.at_most(f"95 of 100 keys, {state}", percentile(each, 95) * 1e3, _ECHO_MS, " ms")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
