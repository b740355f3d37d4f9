"""What is left of a command on another machine, as the programs that we send there see it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from halter.toolbox.remote.command_script import REMAINING
from halter.toolbox.remote.interpreter_supervisor import remaining

MARK = "HALTER_TEST_OF_EXEC"
NO_SESSION = -1
# Becomes the same program again and again.
AGAIN = f"import os, sys; os.execve(sys.executable, [sys.executable, '-S', *sys.orig_argv[2:]], {{'{MARK}': '1'}})"
COUNT = """
mark=$1 pid= group= n=0 missed=0
while [ "$n" -lt 30 ]; do n=$((n+1)); [ "$(members)" = "$2" ] || missed=$((missed+1)); done
echo "$missed"
"""


@contextlib.contextmanager
def always_in_exec() -> Iterator[int]:
    command = [sys.executable, "-S", "-c", AGAIN]
    with subprocess.Popen(command, env={MARK: "1"}, start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def output_of(*command: str) -> tuple[str, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_script_sees_a_process_that_becomes_another_program(shell: str) -> None:
    """In the middle of an exec it has no environment: the machine said that all was gone, and a process lived on."""
    with always_in_exec() as pid:
        assert output_of(shell, "-c", REMAINING + COUNT, "halter", MARK, str(pid)) == ("0\n", "")


def test_the_supervisor_sees_it_too() -> None:
    """It was not found in the middle of its exec, and so outlived the call that had started it."""
    with always_in_exec() as pid:
        looks = [remaining(NO_SESSION, MARK) for _ in range(150)]
    assert all(found == [pid] or not are_all_known for found, are_all_known in looks)
    assert [pid] in [found for found, _ in looks]


def test_nobody_is_left_where_nobody_is() -> None:
    """Other processes and kernel threads are not taken for ones in the middle of an exec for ever."""
    script = REMAINING + "mark=$1 pid= group=; members; echo done"
    assert output_of("sh", "-c", script, "halter", MARK) == ("done\n", "")
