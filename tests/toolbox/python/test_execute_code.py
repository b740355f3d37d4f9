"""Python code in an interpreter of its own."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from halter import Agent, ToolContext, ToolOutcome, tool
from halter.cancel import abandoned
from halter.models import Image, Text, ToolCall
from halter.testing import Moment, ScriptedModel, Stop, ToolCalls
from halter.toolbox.python.execute_code import Code
from halter.toolbox.terminal.terminal import Terminal
from halter.tools.resources import SessionResources
from tests.support.allowing import allow
from tests.support.batches import Probe
from tests.support.leftovers import leaves_nothing
from tests.support.processes import is_alive, wait_dead
from tests.support.stopped_calls import BEFORE_THE_END, GIVES_BACK, IN_THE_MIDDLE, REASONS, kept_by, patient
from tests.support.time_limits import call_limited
from tests.support.waiting import wait_until

# Never ends, and never hears an interrupt; and yet gives other processes their turn.
DEAF = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on')\nwhile True:\n    time.sleep(60)"


def calls_in(path: Path, *tools: Any, **options: Any) -> ToolCalls:
    grace = options.pop("grace", 0.2)
    return ToolCalls(*patient(Code(path, tools, grace=grace, **options).tools), approve=allow)


def run(calls: ToolCalls, code: str, **arguments: Any) -> ToolOutcome:
    return calls.call("execute_code", code=code, **arguments)


def calls_with(*codes: str) -> list[ToolCall]:
    return [ToolCall(str(n), "execute_code", json.dumps({"code": code})) for n, code in enumerate(codes)]


def text_of(outcome: ToolOutcome) -> str:
    if isinstance(outcome.content, str):
        return outcome.content
    return "".join(part.text for part in outcome.content if isinstance(part, Text))


def test_code_is_run_as_an_interpreter_would(tmp_path: Path) -> None:
    """What is printed comes back in order, then the last value; variables, imports and functions stay."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        outcome = run(calls, "import sys\nprint('a')\nprint('b', file=sys.stderr)\nx = 20\nx + 1")
        assert (outcome.status, outcome.content) == ("completed", "a\nb\n21\n")
        assert run(calls, "def f(y): return x * y").content == ""
        assert run(calls, "f(2)").content == "40\n"
        assert run(calls, "_ + 1").content == "41\n"
        assert run(calls, "None").content == ""
        assert run(calls, "").content == ""
        assert run(calls, "import os; os.getcwd()").content == f"{str(tmp_path)!r}\n"
        assert run(calls, "import sys; sys.stdin.read()").content == "''\n"


def test_code_cannot_break_its_interpreter_by_names(tmp_path: Path) -> None:
    """Code may use any name, also those that the interpreter itself is made of."""
    with calls_in(tmp_path) as calls:
        run(calls, "queue = json = os = signal = wire = main = uninterrupted = 1")
        assert run(calls, "queue + json").content == "2\n"
        (tmp_path / "code.py").write_text("value = 7")
        assert run(calls, "import code; code.value").content == "7\n"
        assert (
            run(calls, "import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A").content == "True\n"
        )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('so far')\n1/0", "ZeroDivisionError: division by zero"),
        ("def f():\n    raise ValueError('no')\nprint('so far')\nf()", "ValueError: no"),
        ("print('so far')\nexit(3)", "exit(3)"),
        ("print('so far')\nraise ExceptionGroup('two', [ValueError(1), TypeError(2)])", "ExceptionGroup"),
    ],
)
def test_errors_are_told_cleanly(tmp_path: Path, code: str, words: str) -> None:
    """An error fails the call with its words, and its traceback shows the code and nothing of ours."""
    with calls_in(tmp_path) as calls:
        outcome = run(calls, code)
        assert outcome.status == "failed"
        assert words in outcome.detail
        assert text_of(outcome).startswith("so far\n")
        assert "interpreter.py" not in text_of(outcome)
        assert run(calls, "'on'").content == "'on'\n"
        broken = run(calls, "x = (")
        assert "SyntaxError" in broken.detail
        assert text_of(broken).startswith('  File "<code')


def test_output_is_bounded_and_reported(tmp_path: Path) -> None:
    """A flood is cut in the middle, and what is printed is told while the code runs."""
    with calls_in(tmp_path, limit=1000) as calls:
        text = text_of(run(calls, "print('first')\nfor n in range(100000): print(n)\nprint('last')"))
        assert text.startswith("first\n0\n")
        assert text.endswith("99999\nlast\n")
        assert "bytes left out" in text
        outcome = calls.call_stopped(
            Stop(report="two"), "execute_code", code="print('two')\nimport time; time.sleep(60)"
        )
        assert outcome.status == "partial"
        assert "".join(calls.reports).strip() == "two"


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("moment", BEFORE_THE_END)
@pytest.mark.parametrize("busy", ["while True: pass", "import time; time.sleep(60)"])
def test_a_stop_interrupts_and_variables_stay(tmp_path: Path, reason: str, moment: Moment, busy: str) -> None:
    """Whenever the stop comes, what was printed is given back; code that is interrupted leaves its variables."""
    with leaves_nothing(), calls_in(tmp_path, grace=5) as calls:
        run(calls, "kept = 1")
        stop = Stop(reason, moment, report="on")
        outcome = calls.call_stopped(stop, "execute_code", code=f"print('on')\n{busy}")
        assert outcome.status in GIVES_BACK[moment]
        assert outcome.reason == reason
        if moment in IN_THE_MIDDLE:
            assert text_of(outcome).startswith("on")
        assert run(calls, "kept").content == "1\n"


@pytest.mark.parametrize("reason", REASONS)
def test_a_stop_at_the_very_end(tmp_path: Path, reason: str) -> None:
    """A stop that races with the end of the code is never carried over to the next."""
    with leaves_nothing(), calls_in(tmp_path, grace=5) as calls:
        for number in range(10):
            mark = tmp_path / f"{reason}{number}"
            code = f"print('said')\nopen({str(mark)!r}, 'w').close()"
            outcome = calls.call_stopped(Stop(reason, wait=lambda: wait_until(mark.exists)), "execute_code", code=code)
            assert outcome.status in {"completed", "partial"}
            if outcome.status == "completed":
                assert text_of(outcome) == "said\n"
            assert run(calls, f"{number}").content == f"{number}\n"


@pytest.mark.parametrize("reason", REASONS)
def test_deaf_code_is_killed(tmp_path: Path, reason: str) -> None:
    """Code that does not hear its interrupt dies with its interpreter; the next call gets a new one and is told."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        pid = int(text_of(run(calls, "kept = 1\nimport os; os.getpid()")))
        outcome = calls.call_stopped(Stop(reason, report="on"), "execute_code", code=DEAF)
        assert outcome.status == "partial"
        assert text_of(outcome).startswith("on\n[interrupted, but it has not ended yet")
        wait_dead(pid)
        fresh = run(calls, "'kept' in globals()")
        assert "was killed; this is a new one" in text_of(fresh)
        assert text_of(fresh).endswith("False\n")
        assert run(calls, "2").content == "2\n"


def test_what_interrupted_code_has_started_is_ended(tmp_path: Path) -> None:
    """The interpreter stays, and its children do not: not even those that moved to a session of their own."""
    start = "import subprocess, time\np = subprocess.Popen(['setsid', 'sleep', '60'])"
    code = f"{start}\nprint(f'pid {{p.pid}} on')\ntime.sleep(60)"
    with leaves_nothing(), calls_in(tmp_path, grace=5) as calls:
        outcome = calls.call_stopped(Stop(report=" on"), "execute_code", code=code)
        pid = int(text_of(outcome).split()[1])
        assert run(calls, "p.wait() != 0").content == "True\n"
        assert not is_alive(pid)


def test_code_has_its_time(tmp_path: Path) -> None:
    """Code that takes too long is interrupted, and fails with what it had printed."""
    with leaves_nothing(), calls_in(tmp_path, grace=5) as calls:
        run(calls, "kept = 1")  # starts the interpreter, which takes its time as well
        code = "print('on')\nimport time; time.sleep(60)"
        outcome, limit = call_limited(
            lambda seconds: run(calls, code, timeout=seconds), lambda got: "on\n" in text_of(got)
        )
        assert outcome.status == "failed"
        assert f"took longer than {limit}" in outcome.detail
        assert run(calls, "kept").content == "1\n"


@pytest.mark.parametrize(("code", "words"), [("os._exit(3)", "exit code 3"), ("os.kill(os.getpid(), 9)", "SIGKILL")])
def test_an_interpreter_that_dies(tmp_path: Path, code: str, words: str) -> None:
    """Code that takes its interpreter with it fails and says so, and so does the next call."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        outcome = run(calls, f"import os\nprint('said')\n{code}")
        assert outcome.status == "failed"
        assert words in outcome.detail
        assert outcome.content == "said\n"
        assert "this is a new one" in text_of(run(calls, "1"))
        assert run(calls, "1").content == "1\n"


def test_a_fork_of_the_interpreter_does_not_speak_for_it(tmp_path: Path) -> None:
    """A forked child that comes to the end of the code just ends."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        assert run(calls, "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'on'").status == "completed"
        assert run(calls, "'still on'").content == "'still on'\n"


def test_code_calls_other_tools(tmp_path: Path) -> None:
    """The agent's tools are functions for the code; what they refuse or fail with is an error there."""

    @tool
    async def greet(name: str, times: int = 1) -> str:
        """Greet."""
        return f"hello {name}" * times

    @tool
    def fail() -> None:
        """Fail."""
        raise LookupError("not there")

    @tool
    def paint() -> list[Any]:
        """Paint."""
        return ["a picture:", Image(b"\x89PNG1")]

    with leaves_nothing(), calls_in(tmp_path, greet, fail, paint, *Terminal(tmp_path).tools) as calls:
        assert run(calls, "tools.greet(name='you', times=2)").content == "'hello youhello you'\n"
        assert "LookupError: not there" in run(calls, "tools.fail()").detail
        assert "times" in run(calls, "tools.greet(name='you', times='x')").detail
        assert "no tool named 'nosuch'" in run(calls, "tools.nosuch()").detail
        assert run(calls, "tools.terminal(command='echo hi')").content == repr("hi\n[exit code 0]") + "\n"
        assert run(calls, "try:\n    tools.fail()\nexcept ToolError as e:\n    print('caught')").content == "caught\n"
        shown = run(calls, "show(tools.paint()[1])")
        assert shown.content == [Image(b"\x89PNG1")]
        assert "fail, greet, paint, process, terminal" in text_of(run(calls, "tools"))


def test_a_tool_that_code_calls_asks_for_approval(tmp_path: Path) -> None:
    """An approval inside of code is asked for as for a call of the model's own, and obeyed."""
    asked: list[str] = []

    async def yes(request: Any) -> bool:
        asked.append(request.tool)
        return "rm -r" not in request.reason or len(asked) > 3

    (tmp_path / "x").mkdir()
    code = Code(tmp_path, Terminal(tmp_path).tools)
    with ToolCalls(*code.tools, approve="ask", ask_approval=yes) as calls:
        assert "not allowed" in run(calls, "tools.terminal(command='rm -rf x')").detail
        assert run(calls, "tools.terminal(command='rm -rf x')").status == "completed"
        assert asked == ["execute_code", "terminal"] * 2
        assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("reason", REASONS)
def test_a_stop_reaches_the_tools_that_code_calls(tmp_path: Path, reason: str) -> None:
    """A tool that runs for the code is stopped with it, and the interpreter goes on."""
    seen: list[str | None] = []

    @tool
    def wait(ctx: ToolContext) -> None:
        """Wait."""
        ctx.report("waiting")
        ctx.token.wait(60)
        seen.append(ctx.token.reason)

    with leaves_nothing(), calls_in(tmp_path, wait, grace=5) as calls:
        outcome = calls.call_stopped(Stop(reason, report="waiting"), "execute_code", code="kept = 1\ntools.wait()")
        assert outcome.status == "partial"
        # Whichever the code hears of first: its own interrupt, or the end of the tool that it waits for.
        text = text_of(outcome)
        assert "while it waited for wait" in text or "wait: This call was stopped" in text
        assert run(calls, "kept").content == "1\n"
        wait_until(lambda: seen == [reason])
    wait_until(lambda: len(abandoned) == 0)


def test_calls_take_turns(tmp_path: Path) -> None:
    """Two calls at once run one after the other; a stop of the one that waits lets it go at once."""
    code = Code(tmp_path)

    async def main() -> None:
        codes = [f"x = {n}; import time; time.sleep(0.01); x" for n in range(5)]
        resources = SessionResources()
        probe = Probe(*code.tools, calls=calls_with(*codes), resources=resources, approve=allow)
        assert [outcome.content for outcome in await probe.run()] == [f"{n}\n" for n in range(5)]
        calls = calls_with("time.sleep(60)", "time.sleep(60)")
        probe = Probe(*patient(code.tools), calls=calls, resources=resources, approve=allow)
        waiting = resources.keep(code._make_kernel)._changes._listeners
        outcomes = await probe.stopped_when(lambda: len(waiting) == 2)
        assert sorted(outcome.status for outcome in outcomes) == ["cancelled", "partial"]
        resources.close()

    with leaves_nothing():
        asyncio.run(asyncio.wait_for(main(), 60))


FAKE_PYPLOT = """
class Figure:
    def savefig(self, buffer, format):
        buffer.write(b'\\x89PNGfigure')
open_figures = {}
def plot(*args):
    open_figures[len(open_figures) + 1] = Figure()
def get_fignums(): return list(open_figures)
def figure(number): return open_figures[number]
def close(figure):
    for number, each in list(open_figures.items()):
        if each is figure: del open_figures[number]
"""


def test_figures_come_back_as_pictures(tmp_path: Path) -> None:
    """Figures that are open at the end are shown once and closed; so are other things that know how to be a picture."""
    package = tmp_path / "matplotlib"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "pyplot.py").write_text(FAKE_PYPLOT)
    with leaves_nothing(), calls_in(tmp_path) as calls:
        outcome = run(calls, "import matplotlib.pyplot as plt\nplt.plot(1)\nprint('drawn')")
        assert outcome.content == [Text("drawn\n"), Image(b"\x89PNGfigure")]
        assert run(calls, "1").content == "1\n"
        thing = "class Thing:\n    def _repr_png_(self): return b'\\x89PNGthing'\nThing()"
        assert run(calls, thing).content == [Image(b"\x89PNGthing")]
        jpeg = Image(b"\xff\xd8\xff", media_type="image/jpeg")
        assert run(calls, "show(b'\\xff\\xd8\\xff')").content == [jpeg]
        assert "expects an image" in run(calls, "show(3)").detail
        many = run(calls, "for _ in range(20): show(b'\\x89PNG')")
        assert isinstance(many.content, list)
        assert "4 more images left out" in text_of(many)


def test_the_real_matplotlib(tmp_path: Path) -> None:
    """With matplotlib installed, a plot is a PNG."""
    pytest.importorskip("matplotlib")
    with leaves_nothing(), calls_in(tmp_path) as calls:
        content = run(calls, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nNone").content
        picture = content[-1]
        assert isinstance(picture, Image)
        assert (picture.data or b"").startswith(b"\x89PNG")


def test_threads_print_and_ask_between_calls(tmp_path: Path) -> None:
    """What a thread prints between two calls is shown with the next; a tool that it calls then is refused."""

    @tool
    def ping() -> str:
        """Ping."""
        return "pong"

    go = tmp_path / "go"
    code = f"""
import os, threading, time
done = threading.Event()
def later():
    while not os.path.exists({str(go)!r}): time.sleep(0.01)
    try: print(tools.ping())
    except ToolError as error: print(error)
    done.set()
threading.Thread(target=later, daemon=True).start()
"""
    with calls_in(tmp_path, ping) as calls:
        run(calls, code)
        go.touch()
        kernel = kept_by(calls)
        wait_until(lambda: kernel._output.size)
        assert "only while a call of execute_code runs" in text_of(run(calls, "done.wait(30)"))


def test_code_that_destroys_needs_approval(tmp_path: Path) -> None:
    """Code that deletes a tree is not run without a yes."""
    with ToolCalls(*Code(tmp_path).tools) as calls:
        outcome = run(calls, "import shutil; shutil.rmtree('x')")
        assert outcome.status == "denied"
        assert "rmtree" in outcome.detail


def test_secrets_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code does not see keys of ours, unless they were named."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("MY_TOKEN", "t-2")
    with calls_in(tmp_path, pass_env=["MY_TOKEN"]) as calls:
        code = "import os; os.environ.get('OPENAI_API_KEY'), os.environ.get('MY_TOKEN')"
        assert run(calls, code).content == "(None, 't-2')\n"


def test_the_interpreter_ends_with_its_session(tmp_path: Path) -> None:
    """It survives a stopped turn with its variables, and not its session; nor does what it left running."""
    start = "import os, subprocess; p = subprocess.Popen(['sleep', '60']); print(os.getpid(), p.pid)"
    model = ScriptedModel(
        ToolCall("1", "execute_code", f'{{"code": "{start}"}}'),
        ToolCall("2", "execute_code", '{"code": "import time; time.sleep(60)"}'),
        ToolCall("3", "execute_code", '{"code": "p.pid"}'),
        "done",
    )
    with Agent(model, Code(tmp_path, grace=5).tools, approve=allow).session() as session:

        def stop() -> None:
            wait_until(lambda: sum(type(event.data).__name__ == "ToolStarted" for event in session.events()) == 2)
            session.stop()

        threading.Thread(target=stop).start()
        turn = session.run("go")
        assert turn.status == "interrupted"
        pids = [int(pid) for pid in re.findall(r"\d+", str(turn.outcomes[0].content))]
        turn = session.run("go on")
        assert str(turn.outcomes[0].content).strip() == str(pids[1])
        assert is_alive(pids[0])
    for pid in pids:
        wait_dead(pid)


def test_a_closed_session_runs_nothing(tmp_path: Path) -> None:
    """After the end of the session, code is refused."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        run(calls, "1")
        kernel = kept_by(calls)
        kernel.close()
        assert "session is closed" in run(calls, "1").detail


def test_a_result_of_a_tool_that_is_too_large_is_an_error(tmp_path: Path) -> None:
    """The code was never told, and waited for the answer until its time was up."""

    @tool
    def big() -> list[Image]:
        """A large image."""
        return [Image(b"\x89PNG\r\n\x1a\n" + bytes(13_000_000), media_type="image/png")]

    with calls_in(tmp_path, big) as calls:
        outcome = run(calls, "tools.big()", timeout=120)
        assert "its result is too large to pass on" in outcome.detail


def test_code_that_closes_stderr_keeps_its_variables(tmp_path: Path) -> None:
    """Its next error could not be printed, and that ended the interpreter."""
    with calls_in(tmp_path) as calls:
        run(calls, "x = 1\nimport sys\nsys.stderr = open('/dev/null', 'w')\nsys.stderr.close()")
        assert "ZeroDivisionError" in run(calls, "1 / 0").detail
        assert run(calls, "x").content == "1\n"
