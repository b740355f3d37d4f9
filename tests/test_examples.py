"""Every example runs as it stands, and does what it says."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
MAX_LINES = 60

PRINTED = {
    "blocking_sdk": ["interrupted by stop; the call is ", "control was back at once"],
    "budget": ["failed: cost_limit, after 3 files and $0.06", "the session has cost $0.12"],
    "deadlines": ["timed_out | The search took too long.", "interrupted timeout | Let me think."],
    "gateway_http_api": ["One, two, three", "stopped: True", "interrupted stop"],
    "mcp_tools": ["tools: price", "halter: 12 EUR", "It is 12 EUR."],
    "partial_results": ["the call is partial and has ", "I have read three pages."],
    "steering": ["the message was applied as steer", "UserMessage: [Your answer was cut off here.]"],
    "sub_agents": ["asked: historian", "asked: geographer", "Lyon: founded in 43 BC, on the Rhône."],
    "testing_your_agent": ["stopped at ", "all passed"],
    "typed_answers": ["bug, urgent: It does not stop.", "2 requests"],
}


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}


def test_there_are_twelve_short_programs() -> None:
    """Twelve, each of at most sixty lines, each in the list of the folder's README."""
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    assert len(PROGRAMS) == 12
    for program in PROGRAMS:
        assert len(program.read_text("utf-8").splitlines()) <= MAX_LINES, program.name
        assert f"`{program.name}`" in listed


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_is_about(name: str, tmp_path: Path) -> None:
    """It ends by itself, without a traceback, and prints what its docstring promises."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    said = done.stdout.decode()
    assert done.returncode == 0, said
    assert "Traceback" not in said, said
    for words in PRINTED[name]:
        assert words in said, said
    assert "stopped at 0 points" not in said


def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path: Path) -> None:
    """Ctrl+C in the middle of an answer ends it; the next line is answered; Ctrl+C at the prompt leaves."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "ctrl_c.py")],
        cwd=tmp_path,
        env=environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        read_until(ours, b"> ")
        os.write(ours, b"Tell me a story.\n")
        read_until(ours, b"stormy night")
        program.send_signal(signal.SIGINT)
        read_until(ours, b"(interrupted: stop)")
        read_until(ours, b"> ")
        os.write(ours, b"Then stop.\n")
        read_until(ours, b"As you wish.")
        read_until(ours, b"> ")
        while program.poll() is None:  # input() misses a signal that comes between its prompt and its read
            program.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(5)
        assert program.returncode == 0
    finally:
        program.kill()
        program.wait()
        os.close(ours)


def read_until(descriptor: int, words: bytes) -> None:
    """Read what a program prints, byte by byte so that nothing behind it is lost; the test's timeout bounds it."""
    said = b""
    while words not in said:
        said += os.read(descriptor, 1)


def test_the_stop_button_of_the_web_application(tmp_path: Path) -> None:
    """While one request streams an answer, another stops it; the next question is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        os.set_inheritable(listening.fileno(), True)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        serve = ["-m", "uvicorn", "fastapi_stop_button:app", "--fd", str(listening.fileno()), "--log-level", "error"]
        program = subprocess.Popen(
            [sys.executable, *serve], cwd=EXAMPLES, env=environment(), pass_fds=[listening.fileno()]
        )
        try:
            with post(f"{url}/ask/anna?text=Tell+me+a+story") as answer:
                assert json.loads(answer.readline()) == {"text": "Once upon a time "}
                with post(f"{url}/stop/anna") as stopped:
                    assert json.load(stopped) == {"stopped": True}
                assert json.loads(answer.readline()) == {"status": "interrupted", "reason": "stop"}
            with post(f"{url}/ask/anna?text=Hello") as answer:
                assert json.loads(answer.readline()) == {"text": "I am listening."}
            with post(f"{url}/stop/nobody") as stopped:
                assert json.load(stopped) == {"stopped": False}
        finally:
            program.terminate()
            program.wait(60)


def post(url: str) -> urllib.request.http.client.HTTPResponse:  # type: ignore[name-defined]
    request = urllib.request.Request(url, method="POST")
    response: urllib.request.http.client.HTTPResponse = urllib.request.urlopen(request, timeout=60)  # type: ignore[name-defined]
    return response
