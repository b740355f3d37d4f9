"""What starting costs: CPU time of a fresh interpreter that imports Halter, beside one that does not.

Backs "importing costs less than 60 ms and does nothing": no thread, no socket, no file but modules, no process, no
output. That it does nothing holds for the modules of sessions, stores and models, too, which `import halter` does not
import before they are used; what their first use costs is printed beside it. Exits with 1 if that is not so.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import functools
import os
import subprocess
import tempfile

from bench.measure import Goals, median, print_table

_ROUNDS = 25
_LIMIT_MS = 60
_BARE = "python -c pass"
_PROGRAMS = {
    _BARE: "pass",
    "import asyncio": "import asyncio",
    "import halter": "import halter",
    "import halter.cancel": "import halter.cancel",
    "from halter import run_blocking": "from halter import run_blocking",
    "from halter import run_process": "from halter import run_process",
    "from halter import Agent, Session": "from halter import Agent, Session",
    "from halter.models import OpenAIModel": "from halter.models import OpenAIModel",
    "run_process(['true'])": "import asyncio, halter; asyncio.run(halter.run_process(['true']))",
    "asyncio's create_subprocess_exec('true')": """
import asyncio
async def main(): await (await asyncio.create_subprocess_exec('true')).wait()
asyncio.run(main())
""",
}

# Prints what an import did that it should not have done, one line each.
_WATCH = """
import os, sys
import importlib, encodings.utf_8
seen = []
def hook(event, args):
    if event == "open" or event.startswith(("socket.", "subprocess.", "os.", "_thread.", "shutil.", "tempfile.")):
        seen.append((event, args))
sys.addaudithook(hook)
importlib.import_module(sys.argv[1])
found = list(seen)
import threading
for event, args in found:
    is_module = event == "open" and str(args[0]).endswith((".py", ".pyc", ".so")) and args[1] in ("r", "rb")
    if not is_module and event != "os.listdir":  # which is how modules are found
        print(event, args)
if threading.active_count() != 1 or (os.path.isdir("/proc/self/task") and len(os.listdir("/proc/self/task")) != 1):
    print("threads", threading.enumerate())
"""


def environment() -> dict[str, str]:
    """Ours, but bytecode is cached as it is for users."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def cpu_seconds(code: str) -> float:
    process = subprocess.Popen([sys.executable, "-c", code], env=environment(), cwd=tempfile.gettempdir())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        msg = f"exit code {process.returncode} of {code!r}"
        raise RuntimeError(msg)
    return usage.ru_utime + usage.ru_stime


def run(*arguments: str) -> str:
    """All that a fresh interpreter prints, to either stream."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(),
        cwd=tempfile.gettempdir(),
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


def main() -> int:
    for code in _PROGRAMS.values():
        cpu_seconds(code)  # writes the bytecode
    took = median(_ROUNDS, {name: functools.partial(cpu_seconds, code) for name, code in _PROGRAMS.items()})
    bare = took[_BARE]
    print_table(
        f"CPU time of a fresh process, Python {sys.version.split()[0]}: medians of {_ROUNDS} interleaved rounds",
        ["", "ms", "beyond bare, ms"],
        [[name, f"{seconds * 1e3:.1f}", f"{(seconds - bare) * 1e3:+.1f}"] for name, seconds in took.items()],
    )
    goals = Goals()
    goals.at_most("import halter, beyond bare", (took["import halter"] - bare) * 1e3, _LIMIT_MS, " ms")
    goals.at_most("import halter.cancel, beyond bare", (took["import halter.cancel"] - bare) * 1e3, _LIMIT_MS, " ms")
    for module in (
        "halter",
        "halter.cancel",
        "halter.session.session",
        "halter.stores.memory",
        "halter.models.openai.chat",
    ):
        printed = run("-c", f"import {module}")
        goals.check(f"import {module} prints nothing{': ' if printed else ''}{printed}", is_met=not printed)
        done = run("-c", _WATCH, module)
        goals.check(
            f"import {module} starts no thread, opens no socket and no file but modules{done and ': '}{done}",
            is_met=not done,
        )
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
