"""Which processes were started for a tool."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from halter import CancellationToken
from halter.cancel import run_process_blocking
from halter.cancel.processes.origin import is_started_for_tool, tool_processes
from halter.cancel.processes.proc_table import HAS_PROC
from tests.support.processes import run_python

pytestmark = pytest.mark.skipif(not HAS_PROC, reason="needs Linux, which lists processes in /proc")


def test_processes_of_tools_are_recognized_and_others_are_not() -> None:
    """The command of a tool and its child in a session of its own are; this process and a child of its own are not."""
    program = "import os, subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True); print(os.getpid())"
    token = CancellationToken()
    pids: list[int] = []
    started = threading.Event()

    def on_output(piece: bytes) -> None:
        pids.append(int(piece))
        started.set()

    command = [sys.executable, "-u", "-c", f"{program}; import time; time.sleep(60)"]
    options = {"token": token, "on_output": on_output}
    thread = threading.Thread(target=run_process_blocking, args=(command,), kwargs=options)
    thread.start()
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            assert started.wait(30)
            found = tool_processes()
            assert set(pids) < found  # and the child of it
            assert other.pid not in found
            assert not is_started_for_tool()
        finally:
            other.kill()
            token.cancel()
            thread.join()


@pytest.mark.parametrize("environment", ["None", "{}"])
def test_a_process_knows_that_it_was_started_for_a_tool(environment: str) -> None:
    """By its own environment; or, if that was cleared, by the environment of the process that started it."""
    inner = "from halter.cancel.processes.origin import is_started_for_tool as ask; print(ask())"
    program = f"""
        import sys
        from halter.cancel import run_process_blocking
        outer = "import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], env={environment})"
        print(run_process_blocking([sys.executable, "-c", outer]).stdout.decode().strip())
    """
    result = run_python(program)
    assert result.stdout == "True\n", result.stderr
