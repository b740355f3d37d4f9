"""What a tool can do through its context, from a thread and from a task."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from halter import CancellationToken, Cancelled, ToolContext, current_token, run_blocking_async
from tests.support.looped import looped


def context(token: CancellationToken, **options: Any) -> ToolContext:
    options.setdefault("is_async", False)
    return ToolContext(token, call_id="c1", session_id="s1", **options)


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def shout(question: str, choices: list[str] | None) -> str:
    return f"{question}! {choices}"


@pytest.fixture
def token() -> Iterator[CancellationToken]:
    token = CancellationToken()
    yield token
    token.cancel("test over")


def test_what_it_says_of_the_call(token: CancellationToken) -> None:
    """A tool knows which call it is, and of which session."""
    made = context(token)
    assert (made.call_id, made.session_id) == ("c1", "s1")


def test_reading_the_token_marks_the_context_as_used(token: CancellationToken) -> None:
    """A call that reads its token gets a grace period after a stop; one that only reports does not."""
    made = context(token, report=lambda _text, _is_diff: None)
    made.report("x")
    assert not made.was_used
    assert made.token is token
    assert made.was_used


def test_reports_until_the_call_is_over(token: CancellationToken) -> None:
    """Progress is reported while the call runs; reports of a thread that was left behind are dropped."""
    said: list[tuple[str, bool]] = []
    made = context(token, report=lambda text, is_diff: said.append((text, is_diff)))
    made.report("half")
    made.report("-a\n+b\n", is_diff=True)
    made.detach()
    made.report("late")
    assert said == [("half", False), ("-a\n+b\n", True)]
    context(token).report("to nobody")


@looped
async def test_asking_from_a_task(token: CancellationToken) -> None:
    """In an async tool a question is awaited."""
    made = context(token, is_async=True, ask=shout)
    assert await made.ask("who", ["me", "you"]) == "who! ['me', 'you']"
    assert made.was_used


@looped
async def test_asking_from_a_thread(token: CancellationToken) -> None:
    """In a plain tool a question blocks its thread, and only that."""
    made = context(token, loop=asyncio.get_running_loop(), ask=shout)
    assert await run_blocking_async(made.ask, "who", token=token) == "who! None"
    assert await run_blocking_async(made.ask, "who", ("a",), token=token) == "who! ['a']"


@looped
async def test_delegating(token: CancellationToken) -> None:
    """Another agent's work is awaited, or waited for, in the same way."""

    async def work(agent: object, text: str, _token: CancellationToken) -> tuple[object, str]:
        return agent, text

    loop = asyncio.get_running_loop()
    assert await context(token, is_async=True, delegate=work).delegate(1, "go") == (1, "go")
    made = context(token, loop=loop, delegate=work)
    assert await run_blocking_async(made.delegate, 1, "go", token=token) == (1, "go")


@pytest.mark.parametrize("is_async", [True, False])
@looped
async def test_a_stop_brings_back_what_the_other_agent_has(token: CancellationToken, is_async: bool) -> None:
    """Delegated work that is stopped ends by itself, and its partial answer is returned, not thrown away."""

    async def work(_agent: object, _text: str, below: CancellationToken) -> str:
        token.cancel("stop")
        await below.wait_async()
        await asyncio.sleep(0)
        return "so far"

    made = context(token, is_async=is_async, loop=asyncio.get_running_loop(), delegate=work)
    if is_async:
        with contextlib.suppress(Cancelled):
            async with token.scope():
                assert await made.delegate(1, "go") == "so far"
                return
        pytest.fail("the stop came before the answer")
    assert await asyncio.to_thread(made.delegate, 1, "go") == "so far"


@pytest.mark.parametrize("is_async", [True, False])
@looped
async def test_errors_of_the_engine_reach_the_tool(token: CancellationToken, is_async: bool) -> None:
    """What goes wrong with a question is raised where it was asked."""

    async def fail(*_: Any) -> Any:
        raise KeyError("lost")

    made = context(token, is_async=is_async, loop=asyncio.get_running_loop(), ask=fail)
    with pytest.raises(KeyError, match="lost"):
        await (made.ask("who") if is_async else run_blocking_async(made.ask, "who", token=token))


@looped
async def test_a_stop_ends_a_question_in_a_task(token: CancellationToken) -> None:
    """A stop is heard while a question is open, and the question is withdrawn."""
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def ask(*_: Any) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()

    made = context(token, is_async=True, ask=ask)
    task = asyncio.create_task(made.ask("who"))
    await asked.wait()
    threading.Thread(target=token.cancel, args=("interrupt",)).start()
    with pytest.raises(Cancelled) as caught:
        await task
    assert caught.value.belongs_to(token)
    assert withdrawn.is_set()


@looped
async def test_a_stop_ends_a_question_in_a_thread(token: CancellationToken) -> None:
    """A thread that waits for an answer is free at once when its call is stopped, and the question is withdrawn."""
    asked, withdrawn = asyncio.Event(), asyncio.Event()
    left: list[BaseException] = []
    is_left = threading.Event()

    async def ask(*_: Any) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()

    made = context(token, loop=asyncio.get_running_loop(), ask=ask)

    def plain_tool() -> None:
        try:
            made.ask("who")
        except BaseException as exc:
            left.append(exc)
            is_left.set()
            raise

    task = asyncio.create_task(run_blocking_async(plain_tool, token=token))
    await asked.wait()
    token.cancel("interrupt")
    with pytest.raises(Cancelled):
        await task
    await withdrawn.wait()
    assert is_left.wait(10)
    assert isinstance(left[0], Cancelled)
    assert left[0].belongs_to(token)
    assert left[0].reason == "interrupt"


@looped
async def test_the_thread_s_own_token_ends_a_question(token: CancellationToken) -> None:
    """A thread whose waiter went away is free too, though nobody has stopped the call itself."""
    asked = asyncio.Event()
    seen: list[CancellationToken] = []
    is_left = threading.Event()

    async def ask(*_: Any) -> Any:
        asked.set()
        await never()

    made = context(token, loop=asyncio.get_running_loop(), ask=ask)

    def plain_tool() -> None:
        seen.append(current_token())
        try:
            made.ask("who")
        except Cancelled:
            is_left.set()
            raise

    task = asyncio.create_task(run_blocking_async(plain_tool, token=token))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_left.wait(10)
    assert seen[0].reason == "external"
    assert not token.is_cancelled


@pytest.mark.parametrize("is_async", [True, False])
@looped
async def test_no_question_after_the_stop(is_async: bool) -> None:
    """A call that was stopped asks nothing any more."""
    token = CancellationToken()
    asked: list[Any] = []

    async def ask(question: str, _: Any) -> Any:
        asked.append(question)

    made = context(token, is_async=is_async, loop=asyncio.get_running_loop(), ask=ask)
    token.cancel("stop")
    with pytest.raises(Cancelled):
        await (made.ask("who") if is_async else asyncio.to_thread(made.ask, "who"))
    await asyncio.sleep(0)
    assert asked == []


@looped
async def test_no_question_after_the_end(token: CancellationToken) -> None:
    """A call that is over asks nothing any more either, and is told why."""
    made = context(token, is_async=True, ask=shout)
    made.detach()
    with pytest.raises(RuntimeError, match="c1 is over"):
        await made.ask("who")


@looped
async def test_blocking_the_loop_is_refused(token: CancellationToken) -> None:
    """A plain tool's question in the loop's own thread would wait for itself: an error says so instead."""
    made = context(token, loop=asyncio.get_running_loop(), ask=shout)
    with pytest.raises(RuntimeError, match="async def"):
        made.ask("who")
    with pytest.raises(RuntimeError, match="async def"):
        context(token, ask=shout).ask("who")


def test_nobody_to_ask(token: CancellationToken) -> None:
    """Without anybody to ask, asking is an error that says so."""
    with pytest.raises(RuntimeError, match="nobody can be asked"):
        context(token).ask("who")
    with pytest.raises(RuntimeError, match="outside of a session"):
        context(token).delegate(None, "go")


def test_a_loop_that_ends_ends_the_wait(token: CancellationToken) -> None:
    """A thread that waits for a loop which cancels all its tasks and ends is told so, and is not left waiting."""
    ends: list[BaseException] = []

    def wait_for_answer(made: ToolContext) -> None:
        try:
            made.ask("who")
        except BaseException as exc:
            ends.append(exc)

    async def engine() -> threading.Thread:
        asked = asyncio.Event()

        async def ask(*_: Any) -> Any:
            asked.set()
            await never()

        made = context(token, loop=asyncio.get_running_loop(), ask=ask)
        thread = threading.Thread(target=wait_for_answer, args=(made,))
        thread.start()
        await asked.wait()
        return thread

    thread = asyncio.run(engine())  # it cancels what is left in the loop
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(ends[0], RuntimeError)
    assert "there will be no answer" in str(ends[0])


@pytest.mark.parametrize("how", ["ask", "delegate"])
def test_a_closed_loop_ends_the_wait(token: CancellationToken, how: str) -> None:
    """Was a defect: a program that closed its loop in the middle left the tool's thread waiting for ever."""
    ends: list[BaseException] = []
    asked = asyncio.Event()

    async def hang(*_: Any) -> Any:
        asked.set()
        await never()

    def wait_for_answer(made: ToolContext) -> None:
        try:
            made.ask("who") if how == "ask" else made.delegate(None, "go")
        except BaseException as exc:
            ends.append(exc)

    loop = asyncio.new_event_loop()
    made = context(token, loop=loop, ask=hang, delegate=hang)
    thread = threading.Thread(target=wait_for_answer, args=(made,), daemon=True)
    thread.start()
    loop.run_until_complete(asked.wait())
    loop.close()  # no asyncio.run(): as in embedders and notebooks
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(ends[0], RuntimeError)
    assert "there will be no answer" in str(ends[0])


@pytest.mark.parametrize("is_stopped", [True, False])
@looped
async def test_the_end_of_a_call_ends_its_waits(token: CancellationToken, is_stopped: bool) -> None:
    """A thread that waits for another agent which does not end is let go when its call is given up."""
    started = asyncio.Event()
    cancelled = asyncio.Event()

    async def hang(*_: Any) -> Any:
        started.set()
        try:
            await never()
        finally:
            cancelled.set()

    made = context(token, loop=asyncio.get_running_loop(), delegate=hang)
    thread = asyncio.create_task(asyncio.to_thread(made.delegate, None, "go"))
    await started.wait()
    if is_stopped:
        token.cancel("stop")
    made.detach()
    with pytest.raises(Cancelled if is_stopped else RuntimeError):
        await thread
    await cancelled.wait()


class OwnLoop:
    """A loop of a tool's own, beside the session's."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    async def run(self, work: Any) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@looped
async def test_an_async_tool_in_a_loop_of_its_own_asks_the_session(token: CancellationToken) -> None:
    """What it asks for runs in the session's loop; answers, errors and a stop reach it in its own."""
    here, own = asyncio.get_running_loop(), OwnLoop()

    async def ask(question: str, _: Any) -> str:
        if question == "fail":
            raise KeyError("lost")
        if question == "hang":
            here.call_soon(token.cancel, "stop")
            await never()
        return f"in the session's loop: {asyncio.get_running_loop() is here}"

    async def delegate(_agent: Any, _text: str, below: CancellationToken) -> str:
        stopped.cancel("stop")
        await below.wait_async()
        return "so far"

    async def delegate_in_scope() -> Any:
        async with stopped.scope():
            return await context(stopped, is_async=True, loop=here, delegate=delegate).delegate(None, "go")

    stopped = CancellationToken()
    made = context(token, is_async=True, loop=here, ask=ask)
    try:
        assert await own.run(made.ask("who")) == "in the session's loop: True"
        with pytest.raises(KeyError, match="lost"):
            await own.run(made.ask("fail"))
        with pytest.raises(Cancelled):
            await own.run(made.ask("hang"))
        assert await own.run(delegate_in_scope()) == "so far"
    finally:
        own.end()
