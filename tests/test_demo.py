"""The demo, run as a stranger runs it."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from halter.demo.cases import CASES

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="what a process started is found in /proc")


@pytest.fixture
def mark() -> str:
    """A variable for the environment, by which all that is started under it can be found."""
    return f"HALTER_TEST_{secrets.token_hex(8)}"


def start(mark: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "halter", *args],
        env=os.environ | {mark: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def alive(mark: str) -> list[str]:
    """The command lines of the processes that have *mark* in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
    return found


@linux_only
def test_demo(mark: str) -> None:
    """One stop ends every act, the program exits with 0 and in plain text, and nothing it started is alive."""
    with start(mark, "demo") as demo:
        output, errors = demo.communicate(timeout=60)
    assert demo.returncode == 0, output + errors
    assert re.fullmatch(r"(Shutting down: .*\n)?", errors), "nothing but what a slow exit says"
    assert "\x1b" not in output
    for title in CASES:
        row = re.search(rf"^{re.escape(title)}  .*  +\d+\.\d ms  +(\d+\.\d ms|not yet)$", output, re.MULTILINE)
        assert row is not None, f"no row for {title!r} in:\n{output}"
    assert output.count("not yet") == 1, "only the thread in time.sleep cannot be stopped"
    assert "No process that was started here is still alive" in output
    assert alive(mark) == []


@linux_only
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_demo_is_itself_stopped(mark: str, number: signal.Signals, code: int) -> None:
    """A signal in the middle of the demo ends it with the code of that signal, and nothing is left alive."""
    with start(mark, "demo") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("    at work: "):
                break
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == code, errors
    assert "Traceback" not in errors
    assert errors.startswith(f"Shutting down ({number.name})")
    assert alive(mark) == []


def test_help(mark: str) -> None:
    """The option --help says what halter can do, and that without a command it is a chat."""
    with start(mark, "--help") as halter:
        output, errors = halter.communicate(timeout=60)
    assert halter.returncode == 0
    assert errors == ""
    assert "demo" in output
    assert "a chat" in output


def test_version(mark: str) -> None:
    """The option --version prints one line with its name and version."""
    with start(mark, "--version") as halter:
        output, _ = halter.communicate(timeout=60)
    assert halter.returncode == 0
    assert re.fullmatch(r"halter \S.*\n", output)
