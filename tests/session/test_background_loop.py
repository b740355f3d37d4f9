"""Halter's own event loop, and the end of the process: quick, whatever runs."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncGenerator

import pytest

from halter import Agent
from halter.models import ModelEvent, ModelRequest
from halter.session import background_loop
from halter.testing import Gate, ScriptedModel
from tests.support.background import RunningTurn
from tests.support.processes import run_python
from tests.support.sessions import session_of

QUICK = 5.0  # seconds; less than any of the waits that it is about


def end_of(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a program that prints "ends" when it is about to end. The time counts from there: a start may be slow."""
    command = [sys.executable, "-c", textwrap.dedent(code), *args]
    # Unbuffered: communicate() does not see what a buffer has taken beyond the line.
    with subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        try:
            said = program.stdout.readline()
            out, err = program.communicate(timeout=QUICK)
        finally:
            program.kill()
    assert said == b"ends\n", err.decode()
    return subprocess.CompletedProcess(command, program.returncode, out.decode(), err.decode())


def test_the_engine_is_one_thread_for_all() -> None:
    """All run() of the process share one daemon thread, which is started by the first."""
    with session_of("a") as one, session_of("b") as other:
        one.run("x")
        other.run("x")
    threads = [thread for thread in threading.enumerate() if thread.name == "halter-loop"]
    assert len(threads) == 1
    assert threads[0].daemon


def test_importing_starts_nothing() -> None:
    """Making an agent and a session starts no thread; the first run() does."""
    ended = run_python(
        """
        import threading
        from halter import Agent
        from halter.testing import ScriptedModel
        session = Agent(ScriptedModel("ok")).session()
        session.post("x")
        print(threading.active_count())
        session.run()
        print(threading.active_count())
        """
    )
    assert ended.stdout.split() == ["1", "2"], ended.stderr


def test_run_carries_context_variables_over() -> None:
    """What is set where run() is called is seen by the coroutine that it runs."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")

    async def read() -> tuple[str, str]:
        return variable.get(), threading.current_thread().name

    variable.set("something")
    assert background_loop.run(read, lambda _: None) == ("something", "halter-loop")


def test_what_a_coroutine_raises_comes_out_of_run() -> None:
    """An error in the engine's loop is raised where run() was called."""

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        background_loop.run(fail, lambda _: None)


@pytest.mark.parametrize("place", ["instructions", "model"])
def test_code_that_exits_ends_its_own_turn_only(place: str) -> None:
    """One sys.exit() in a user's instructions= or model ended the loop, and every later run() hung for ever."""

    def leave(*_: object) -> str:
        raise SystemExit("enough")

    class LeavingModel(ScriptedModel):
        def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            leave(request)
            return super().stream(request)

    agent = Agent(LeavingModel("x")) if place == "model" else Agent(ScriptedModel("x"), instructions=leave)
    session = agent.session()
    with pytest.raises(SystemExit, match="enough"):
        RunningTurn(session).result()
    assert session.turn is not None
    assert session.turn.status == "failed"
    with session_of("a") as other:
        assert RunningTurn(other).end().text == "a"


EXIT_PROGRAM = """
    import asyncio, sys, threading, time
    from halter import Agent, tool
    from halter.session import background_loop
    from halter.testing import Gate, ScriptedModel
    from halter.models import ToolCall

    background_loop._SECONDS_AT_EXIT = 2.0  # for a busy machine
    started = threading.Semaphore(0)

    @tool
    def deaf() -> None:
        started.release()
        time.sleep(600)

    @tool
    async def swallows() -> None:
        started.release()
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass

    which = sys.argv[1]
    gate = Gate()
    script = {
        "streaming": ["words ", gate],
        "deaf": [ToolCall(str(n), "deaf") for n in range(20)],
        "swallows": [ToolCall("a", "swallows")],
    }[which]
    session = Agent(ScriptedModel(script), tools=[deaf, swallows]).session()
    threading.Thread(target=session.run, args=("x",), daemon=True).start()
    if which == "streaming":
        gate.wait_reached()
    else:
        for _ in script:
            started.acquire()

    import atexit
    @atexit.register
    def last():
        print("last words")
    print("ends", flush=True)
"""


@pytest.mark.parametrize("which", ["streaming", "deaf", "swallows"])
def test_the_interpreter_ends_quickly_with_a_running_turn(which: str) -> None:
    """A program that ends in the middle of a turn is gone at once, also with tools that never listen."""
    ended = end_of(EXIT_PROGRAM, which)
    assert ended.returncode == 0
    assert ended.stdout.split("\n")[0] == "last words"
    # A coroutine that swallows its cancellation is a defect of that tool, and asyncio says so.
    assert ended.stderr == "" or which == "swallows"


def test_a_turn_that_runs_at_the_exit_is_sealed_as_a_shutdown() -> None:
    """The end of the process stops the turn with reason "shutdown", and there is time to write that down."""
    ended = end_of(
        """
        import atexit, threading
        from halter import Agent
        from halter.session import background_loop
        from halter.testing import Gate, ScriptedModel

        background_loop._SECONDS_AT_EXIT = 2.0  # for a busy machine
        gate = Gate()
        session = Agent(ScriptedModel(["half ", gate])).session()

        @atexit.register  # before the engine's, so it runs after it
        def last():
            turn = session.turn
            print(turn.status, turn.reason, turn.text, session.events()[-1].kind)

        threading.Thread(target=session.run, args=("x",), daemon=True).start()
        gate.wait_reached()
        print("ends", flush=True)
        """
    )
    assert ended.stdout.split() == ["interrupted", "shutdown", "half", "turn.finished"], ended.stderr


def test_sys_exit_in_the_middle_of_a_stream_is_quick() -> None:
    """sys.exit() inside asyncio.run(), with a turn in a task, ends the program with its code and seals the turn."""
    ended = end_of(
        """
        import asyncio, sys
        from halter import Agent
        from halter.testing import Gate, ScriptedModel

        session = Agent(ScriptedModel(["half ", Gate()])).session()

        async def main():
            task = asyncio.create_task(session.arun("x"))
            while not session.events() or session.events()[-1].kind != "text.delta":
                await asyncio.sleep(0)
            print("ends", flush=True)
            sys.exit(3)

        try:
            asyncio.run(main())
        finally:
            print(session.turn.status, session.turn.reason)
        """
    )
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.split() == ["interrupted", "external"]


FORK_PROGRAM = """
    import os, sys, threading
    from halter import Agent
    from halter.testing import Gate, ScriptedModel

    gate = Gate()
    parent = Agent(ScriptedModel(["one ", gate, "two"])).session()
    result = []
    running = threading.Thread(target=lambda: result.append(parent.run("x")), daemon=True)
    running.start()
    gate.wait_reached()
    child = os.fork()
    if child == 0:
        turn = Agent(ScriptedModel("in the child")).session().run("y")
        print(turn.text, flush=True)
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
    gate.open()
    running.join(10)
    print(result[0].status, result[0].text)
"""


def test_a_forked_child_has_an_engine_of_its_own() -> None:
    """After a fork in the middle of a turn the child can run sessions and exit; the parent's turn is not touched."""
    ended = run_python(FORK_PROGRAM)
    assert ended.stdout.splitlines() == ["in the child", "7", "done one two"], ended.stderr


def test_a_keyboard_interrupt_with_a_deaf_tool_gives_control_back() -> None:
    """Ctrl+C in run() with a tool that never listens: the program ends as interrupted programs do, and quickly."""
    code = """
        import sys, time
        from halter import Agent, tool
        from halter.models import ToolCall
        from halter.testing import ScriptedModel

        @tool
        def deaf() -> None:
            print("deaf", flush=True)
            time.sleep(600)

        Agent(ScriptedModel(ToolCall("a", "deaf")), tools=[deaf]).session().run("x")
        """
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "deaf\n"
        os.kill(program.pid, 2)
        _, errors = program.communicate(timeout=QUICK)
    assert program.returncode in (-2, 130), errors
    assert errors.splitlines()[-1] == "KeyboardInterrupt"


def test_a_turn_can_be_waited_for_by_a_loop_that_is_not_its_own() -> None:
    """receipt.settled_async() in another loop comes back when the turn on the engine's loop has ended."""
    gate = Gate()
    with session_of(["one ", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()

        async def elsewhere() -> bool:
            receipt = session.interrupt()
            await asyncio.wait_for(receipt.settled_async(), QUICK)
            return session.is_running

        assert asyncio.run(elsewhere()) is False
        assert running.end().status == "interrupted"
