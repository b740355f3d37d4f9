"""Sessions and what is around them: foreign cancellations, tokens, loops, threads and signals."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from halter import (
    CancellationToken,
    Turn,
    current_token,
    tool,
)
from halter.testing import Gate
from tests.support.background import Background, RunningTurn
from tests.support.looped import looped
from tests.support.processes import run_python
from tests.support.sessions import AT_MOST, call, data_of, kinds, model_of, said, session_of
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until

# -- from outside: cancellation, tokens, loops and threads ---------------------------------------------------------


@looped
async def test_wait_for_raises_timeout_and_the_turn_is_sealed() -> None:
    """asyncio.wait_for(session.arun()) raises TimeoutError, the turn is sealed as stopped from outside, text kept."""
    async with session_of(["half ", Gate()], "more") as session:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.arun("x"), 0.5)
        turn = session.turn
        assert turn is not None
        assert (turn.status, turn.reason) == ("interrupted", "external")
        assert kinds(session.events())[-1] == "turn.finished"
        assert not session.is_running
        judge_session(session)
        assert (await session.arun("y")).status == "done"


@looped
async def test_a_cancelled_task_with_running_tools_is_sealed() -> None:
    """Task.cancel() while tools run raises CancelledError; every call has its outcome in the log first."""
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    async with session_of([call("wait", "a"), call("wait", "b")], "more", tools=[wait]) as session:
        task = asyncio.create_task(session.arun("x"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [each.outcome.status for each in data_of(session, "tool.finished")] == ["cancelled", "cancelled"]
        assert session.turn is not None
        assert (session.turn.status, session.turn.reason) == ("interrupted", "external")
        judge_session(session)
        assert (await session.arun()).text == "more"


@looped
async def test_a_task_that_is_cancelled_before_it_starts_touches_nothing() -> None:
    """A task of arun() that is cancelled before its first step accepts nothing, and leaves the session free."""
    async with session_of("one") as session:
        task = asyncio.create_task(session.arun("x"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.events() == []
        assert (await session.arun("y")).status == "done"


@looped
async def test_a_cancelled_turn_of_a_task_group_does_not_hurt_its_sibling() -> None:
    """One session that is interrupted in a TaskGroup returns its turn; the other one runs to its end."""
    gate, other_gate = Gate(), Gate()
    one, other = session_of(["one", gate]), session_of(["other", other_gate])
    async with one, other, asyncio.TaskGroup() as group:
        first, second = group.create_task(one.arun("x")), group.create_task(other.arun("x"))
        await gate.await_reached()
        await other_gate.await_reached()
        one.interrupt()
        assert (await first).status == "interrupted"
        other_gate.open()
        assert (await second).status == "done"


@looped
async def test_run_inside_of_somebody_elses_running_loop() -> None:
    """run() works in a thread whose own loop is running: it blocks that loop, and the turn is on Halter's."""
    threads: list[str] = []

    @tool
    async def where() -> str:
        threads.append(threading.current_thread().name)
        return "there"

    with session_of(call("where"), "ok", tools=[where]) as session:
        assert session.run("x").status == "done"
    assert [name.rstrip("0123456789") for name in threads] == ["halter-tools-"]


def test_run_stops_with_the_token_that_is_bound_where_it_was_called() -> None:
    """run() in a thread with a bound token returns its interrupted turn when that token is cancelled."""
    gate = Gate()
    token = CancellationToken()

    def work() -> Turn:
        with token.bind():
            return session.run("x")

    with session_of(["one", gate], "two") as session:
        running = Background(work)
        gate.wait_reached()
        token.cancel("timeout", detail="5 s")
        turn = running.result()
        assert (turn.status, turn.reason, turn.detail, turn.text) == ("interrupted", "timeout", "5 s", "one")
        assert data_of(session, "turn.stopping")[0].reason == "timeout"
        assert session.run().text == "two"


def test_run_under_a_cancelled_token_asks_nobody() -> None:
    """run() under a token that is cancelled already gives an interrupted turn, and no request was made."""
    token = CancellationToken()
    token.cancel("interrupt")
    with session_of("one") as session:
        with token.bind():
            turn = session.run("x")
        assert (turn.status, turn.reason) == ("interrupted", "interrupt")
        assert model_of(session).requests == []
        assert said(session.history) == ["x"]
        assert session.run().text == "one"


def test_tools_of_a_turn_see_a_token_below_the_turns() -> None:
    """current_token() inside a tool is cancelled with the turn."""
    tokens: list[CancellationToken] = []

    @tool(grace=AT_MOST)
    def listen() -> str:
        token = current_token()
        tokens.append(token)
        assert token.wait(AT_MOST)
        return "stopped"

    with session_of(call("listen"), tools=[listen]) as session:
        running = RunningTurn(session)
        wait_until(lambda: tokens)
        session.interrupt()
        turn = running.end()
        assert tokens[0].reason == "interrupt"
        assert turn.outcomes[0].status in ("partial", "cancelled")


def test_run_on_the_engines_own_loop_refuses_and_names_the_cure() -> None:
    """run() in a coroutine on Halter's own loop would wait for itself: it refuses, and names arun()."""
    inner = session_of("inner")

    @tool(approval=True)
    def guarded() -> None: ...

    async def approve(_: Any) -> str:
        return inner.run("x").text

    with session_of(call("guarded"), "ok", tools=[guarded], approve=approve) as session, inner:
        turn = session.run("x")
        assert turn.outcomes[0].status == "denied"
        assert "arun" in turn.outcomes[0].detail
        assert inner.events() == []


def test_an_async_tool_may_run_another_session() -> None:
    """run() inside an async tool blocks its tool loop; the inner turn, async tools included, is done all the same."""

    @tool
    async def quick() -> str:
        return "quick"

    inner = session_of(call("quick"), "inner", tools=[quick])

    @tool
    async def nest() -> str:
        return inner.run("x").text

    with session_of(call("nest"), "ok", tools=[nest]) as session, inner:
        assert session.run("x").outcomes[0].content == "inner"


@looped
async def test_with_a_tool_loop_an_async_tool_that_blocks_delays_no_stop() -> None:
    """In the program's own loop it blocks the turn; `use_tool_loop()` moves it to another one, and it is abandoned."""
    blocked, goes_on = threading.Event(), threading.Event()

    @tool
    async def block() -> str:
        """Block."""
        blocked.set()
        goes_on.wait()
        return "too late"

    with session_of(call("block"), tools=[block]) as session:
        session.use_tool_loop()
        stopper = threading.Thread(target=lambda: (blocked.wait(), session.stop()))
        stopper.start()
        turn = await session.arun("go")
        assert (turn.status, turn.reason) == ("interrupted", "stop")
        assert [outcome.status for outcome in turn.outcomes] == ["abandoned"]
        goes_on.set()
        stopper.join()


def test_a_plain_tool_may_run_another_session() -> None:
    """run() inside a plain tool works, and the inner turn is stopped with the outer one."""
    gate = Gate()
    inner = session_of(["inner", gate])

    @tool
    def nest() -> str:
        turn = inner.run("x")
        return f"{turn.status} {turn.reason}"

    with session_of(call("nest"), tools=[nest]) as session, inner:
        running = RunningTurn(session)
        gate.wait_reached()
        session.interrupt()
        running.end()
        wait_until(lambda: not inner.is_running)
        assert inner.turn is not None
        assert (inner.turn.status, inner.turn.reason) == ("interrupted", "interrupt")


@looped
async def test_every_command_may_come_from_another_loop_and_another_thread() -> None:
    """post, steer, stop, inbox and history work from a thread with a loop of its own while the turn runs here."""
    gate = Gate()
    async with session_of(["one", gate], ["two", gate], "three") as session:
        task = asyncio.create_task(session.arun("x"))
        await gate.await_reached()

        async def elsewhere() -> list[Any]:
            kept = session.post("later")
            gone = session.post("gone")
            session.inbox.edit(kept.id, "much later")
            session.inbox.remove(gone.id)
            receipt = session.interrupt()
            await receipt.settled_async()
            return [session.is_running, kept.state, gone.state, said(session.history)]

        found = await asyncio.to_thread(asyncio.run, elsewhere())
        assert found == [False, "accepted", "removed", ["x"]]
        assert (await task).status == "interrupted"
        gate.open()
        assert (await session.arun()).text == "two"
        assert said(session.history)[-1].endswith("much later")


def test_a_keyboard_interrupt_in_run_stops_the_turn_and_comes_out() -> None:
    """Ctrl+C in run() raises KeyboardInterrupt after the turn was sealed with what it had; then the session goes on."""
    ended = run_python(
        """
        import os, signal, threading
        from halter import Agent
        from halter.testing import Gate, ScriptedModel

        gate = Gate()
        session = Agent(ScriptedModel(["half ", gate], "whole")).session()

        def interrupt():
            gate.wait_reached()
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        try:
            session.run("x")
        except KeyboardInterrupt:
            turn = session.turn
            print(turn.status, turn.reason, turn.detail, turn.text, session.is_running)
        print(session.run().text)
        """
    )
    assert ended.stdout.splitlines() == ["interrupted interrupt KeyboardInterrupt half  False", "whole"], ended.stderr


def test_a_keyboard_interrupt_in_asyncio_run_seals_the_turn() -> None:
    """Ctrl+C in asyncio.run(session.arun()) raises KeyboardInterrupt as always, and the turn is sealed."""
    ended = run_python(
        """
        import asyncio, os, signal, threading
        from halter import Agent
        from halter.testing import Gate, ScriptedModel

        gate = Gate()
        session = Agent(ScriptedModel(["half ", gate])).session()

        def interrupt():
            gate.wait_reached()
            os.kill(os.getpid(), signal.SIGINT)

        async def main():
            # A signal that comes just before the loop begins to wait does not wake it: Python looks at it afterwards.
            asyncio.get_running_loop().call_later(0.1, lambda: None)
            asyncio.get_running_loop().call_later(1.0, lambda: None)
            await session.arun("x")

        threading.Thread(target=interrupt, daemon=True).start()
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print(session.turn.status, session.turn.reason, session.events()[-1].kind)
        """
    )
    assert ended.stdout.split() == ["interrupted", "external", "turn.finished"], ended.stderr


SIGNALS = """
    import signal, sys, threading
    from halter import Agent
    from halter.stores import MemoryStore
    from halter.session.log import EventLog
    from halter.testing import Gate, ScriptedModel

    store = MemoryStore()
    gate = Gate()
    session = Agent(ScriptedModel(["one", gate], *["next"] * 10)).session("s", store)
    listener = session.subscribe(1_000_000)
    mode = sys.argv[1]
    posted = []
    is_over = False

    def handler(number, frame):
        if not is_over:
            posted.append(session.interrupt(f"signal {len(posted)}") if mode == "interrupt" else session.stop())
            signal.setitimer(signal.ITIMER_REAL, 0.0005)  # once each: faster ones would nest

    running = threading.Thread(target=session.run, args=("begin",), daemon=True)
    running.start()
    gate.wait_reached()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    mine = []
    while len(posted) < 300:
        mine.append(session.post(f"main {len(mine)}"))
        [letter.id for letter in session.inbox][-1:]
        len(session.history)
        if len(mine) % 10 == 0:
            session.inbox.remove(mine[-1].id)
        if len(mine) > 2000:
            for each in mine:
                session.inbox.remove(each.id)
            mine = []
    signal.setitimer(signal.ITIMER_REAL, 0)
    is_over = True
    gate.open()
    running.join(10)
    assert not running.is_alive()
    states = {each.state for each in posted}
    assert states <= {"accepted", "applied", "held"}, states
    waiting = [letter.id for letter in session.inbox]
    loaded = EventLog("s", store, None).view
    assert waiting == [each.id for each in loaded.inbox], "the memory is not what the log says"
    numbers = [letter.number for letter in session.inbox]
    assert numbers == sorted(numbers)
    applied = [e.data.id for e in session.events() if e.kind == "message.applied"]
    assert len(applied) == len(set(applied))
    for each in [*posted, *mine]:
        if each.id:
            assert (each.id in waiting) == (each.state in ("accepted", "held")), each
            assert (each.id in applied) == (each.state == "applied"), each
    told = []
    while (event := listener.get_nowait()) is not None:
        told.append(event.seq)
    assert told == list(range(1, len(session.events()) + 1)), "listeners are told in order, and of all"
    session.release()
    session.run()
    assert len(session.inbox) == 0
    print("ok")
"""


@pytest.mark.parametrize("mode", ["interrupt", "stop"])
def test_a_signal_handler_may_stop_while_its_thread_is_posting(mode: str) -> None:
    """A handler that interrupts post() and stops or interrupts neither deadlocks nor loses or reorders anything."""
    ended = run_python(SIGNALS, mode)
    assert ended.stdout == "ok\n", ended.stderr


def test_a_signal_handler_may_stop_a_turn_of_its_own_thread() -> None:
    """A real signal handler that stops the turn that asyncio.run() runs in this very thread works at any instant."""
    ended = run_python(
        """
        import asyncio, signal
        from halter import Agent
        from halter.testing import ScriptedModel

        words = ["word "] * 20_000
        session = Agent(ScriptedModel(*[words] * 30)).session()
        receipts = []

        def handler(number, frame):
            receipts.append(session.stop(reason="alarm"))

        signal.signal(signal.SIGALRM, handler)

        async def main():
            for n in range(30):
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0007 * n)
                turn = await session.arun("x")
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert turn.reason == "alarm" or turn.status == "done", turn
                assert not session.is_running
                session.release()

        asyncio.run(asyncio.wait_for(main(), 20))
        assert sum(receipt.stopped for receipt in receipts) >= 20, receipts
        finished = [e.data for e in session.events() if e.kind == "turn.finished"]
        assert len(finished) == 30
        assert sum(e.status == "interrupted" for e in finished) == sum(receipt.stopped for receipt in receipts)
        print("ok")
        """
    )
    assert ended.stdout == "ok\n", ended.stderr
