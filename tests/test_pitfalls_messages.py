"""What went wrong elsewhere with messages and stops, where it takes a whole session to show it.

Each docstring says what happened to whom; see test_pitfalls.py for the rest.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from halter import Agent, CancellationToken, SessionBusy, ToolContext, tool
from halter.models import Audio, Backoff, Finished, Image, OpenAIModel, Text, UserMessage
from halter.models.errors import ContextTooLong, ProviderError
from halter.stores import MemoryStore
from halter.testing import DeafTool, FakeProvider, Gate, ScriptedModel, hang_before_first_byte
from tests.support.background import Background, RunningTurn
from tests.support.hooked_store import HookedStore, store_with
from tests.support.looped import looped
from tests.support.sessions import AT_MOST, agent_of, call, data_of, kinds, model_of, said, session_of, wait_for
from tests.support.valid_history import judge_session


def words(messages: Any) -> list[str]:
    return [text.splitlines()[-1] for text in said(messages)]


# -- stopping ------------------------------------------------------------------------------------------------------


def test_an_abort_before_the_first_byte_closed_nothing() -> None:
    """A user's stop came back fast, but the server went on for minutes, as the abort looked at the wrong transport."""
    with FakeProvider(hang_before_first_byte()) as provider:
        model = OpenAIModel("m", base_url=provider.openai_url, api_key="k")
        with Agent(model).session() as session:
            running = RunningTurn(session)
            provider.wait_for_request()
            session.stop()
            provider.wait_for_close()
            assert running.end().status == "interrupted"
            assert len(provider.requests) == 1


def test_a_stop_took_seven_seconds() -> None:
    """A wait that looked at a flag every 5 s and then granted 3 s made people wait: here it is told, and short."""
    with DeafTool() as deaf, session_of(call("deaf"), tools=[tool(name="deaf")(deaf)]) as session:
        running = RunningTurn(session)
        assert deaf.started.wait(AT_MOST)
        session.stop()
        running.end()
        after = data_of(session, "turn.finished")[0].after
        assert after is not None
        assert after < 5.0


def test_a_tool_in_the_queue_started_after_the_stop() -> None:
    """A tool that waited for another's lock was started after its user had said stop."""
    ran: list[str] = []
    started = threading.Event()

    @tool(exclusive=True, grace=AT_MOST)
    def alone(ctx: ToolContext) -> str:
        ran.append(ctx.call_id)
        token = ctx.token
        started.set()
        token.sleep(AT_MOST)
        return "x"

    with session_of([call("alone", "a"), call("alone", "b")], tools=[alone]) as session:
        running = RunningTurn(session)
        assert started.wait(AT_MOST)
        session.stop()
        turn = running.end()
        assert [outcome.status for outcome in turn.outcomes] == ["cancelled", "not_started"]
        assert ran == ["a"]


def test_a_call_that_was_read_from_the_stream_was_launched_after_the_stop() -> None:
    """A call that had been parsed when Ctrl+C came was run all the same."""
    ran: list[str] = []

    @tool
    def act() -> str:
        ran.append("x")
        return "x"

    gate = Gate()
    store = HookedStore()
    script = [[call("act"), gate], call("act")]
    with agent_of(*script, tools=[act]).session(store=store) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.interrupt()
        running.end()
        store.once("request.finished", session.interrupt)  # and when the answer was whole
        turn = session.run("again")
        assert [outcome.status for outcome in turn.outcomes] == ["not_started"]
        assert ran == []


def test_deaf_tools_filled_the_pool_and_the_next_session_could_not_start() -> None:
    """Six sessions with deaf tools took all shared threads, and nobody else could even begin."""
    with DeafTool() as deaf:
        deaf_tool = tool(name="deaf")(deaf)
        sessions = [session_of([call("deaf", str(n)) for n in range(5)], tools=[deaf_tool]) for _ in range(8)]
        running = [RunningTurn(session) for session in sessions]
        for session in sessions:
            with session.subscribe() as listener:
                while kinds(session.events()).count("tool.started") < 5:
                    assert listener.get(AT_MOST) is not None
            session.interrupt()
        assert {each.end().status for each in running} == {"interrupted"}

        @tool
        def quick() -> str:
            return "quick"

        with session_of(call("quick"), "ok", tools=[quick]) as another:
            assert another.run("x").outcomes[0].content == "quick"


def test_a_back_off_ignored_the_stop() -> None:
    """A stop during the wait before a retry was heard only when the wait was over."""
    agent = agent_of(ProviderError("busy", status=503))
    agent.backoff = Backoff(base=30.0, cap=30.0)
    with agent.session() as session, session.subscribe() as listener:
        running = RunningTurn(session)
        wait_for(listener, "request.retry")
        session.interrupt()
        assert running.end().status == "interrupted"
        assert len(model_of(session).requests) == 1


def test_a_stop_during_start_up_was_lost() -> None:
    """A stop that came before the first await of a turn found nothing to cancel, and the turn ran on."""
    store = HookedStore()
    with agent_of("never").session(store=store) as session:
        store.once("turn.started", session.interrupt)
        assert session.run("x").status == "interrupted"
        assert model_of(session).requests == []


def test_a_sub_agent_that_was_attached_late_missed_the_stop() -> None:
    """A child that was made just after the stop had been handed to all children ran on in the background."""
    child = agent_of("never")
    started, ended = threading.Event(), threading.Event()

    @tool
    def hand_over(ctx: ToolContext) -> str:
        token = ctx.token
        started.set()
        token.wait(AT_MOST)
        try:
            return str(ctx.delegate(child, "x").status)
        finally:
            ended.set()

    with session_of(call("hand_over"), tools=[hand_over]) as session:
        running = RunningTurn(session)
        assert started.wait(AT_MOST)
        session.interrupt()
        running.end()
        assert ended.wait(AT_MOST)
        assert isinstance(child.model, ScriptedModel)
        assert child.model.requests == []


def test_a_stop_of_one_killed_the_others() -> None:
    """A stop that was meant for one conversation killed six agents in the background."""
    gates = [Gate() for _ in range(6)]
    background = [session_of(["x", gate]) for gate in gates]
    running = [RunningTurn(session) for session in background]
    for gate in gates:
        gate.wait_reached()
    with session_of() as session:
        session.stop()
        session.interrupt()
    assert all(each.is_running for each in background)
    for gate in gates:
        gate.open()
    assert {each.end().status for each in running} == {"done"}


def test_cancelled_was_shown_while_the_model_went_on() -> None:
    """A screen said "cancelled" and the model went on for half an hour: it is said when the stream is closed."""
    gate = Gate()
    store = HookedStore()
    states: list[str] = []
    with agent_of(["x", gate]).session(store=store) as session:
        store.once("request.cancelled", lambda: states.append(model_of(session).streams[0].state))
        running = RunningTurn(session)
        gate.wait_reached()
        session.interrupt()
        running.end()
    assert states in (["cancelled"], ["closed"])


# -- messages ------------------------------------------------------------------------------------------------------


def test_the_turn_ended_just_before_the_interrupt_was_seen() -> None:
    """A user's interrupt at the end of a turn was dropped with its text, and the flag it left aborted the next turn."""
    store = HookedStore()
    receipts: list[Any] = []
    with agent_of("one", "two").session(store=store) as session:
        store.once("turn.finished", lambda: receipts.append(session.interrupt("wait, also this")))
        assert session.run("x").status == "done"
        assert (receipts[0].stopped, receipts[0].state) == (False, "accepted")
        assert session.run().text == "two"
        assert words(session.history) == ["x", "wait, also this"]


@pytest.mark.parametrize("how", ["interrupt", "steer"])
def test_an_idle_agent_swallowed_the_message(how: str) -> None:
    """Interrupting an idle agent swallowed the next message; steering one returned True and was never used."""
    with session_of("one", "two") as session:
        session.interrupt()
        receipt = getattr(session, how)("use me")
        assert (receipt.mode, receipt.state) == ("queue", "accepted")
        assert session.run().status == "done"
        assert session.run("next").status == "done"
        assert said(session.history) == ["use me", "next"]


def test_a_second_interrupt_overwrote_the_first() -> None:
    """One slot for a message: the second interrupt took the first one's place, and queued texts were glued together."""
    gate = Gate()
    with session_of(["one", gate], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        for text in ("a", "b"):
            session.queue(text)
        for text in ("c", "d"):
            session.interrupt(text)
        running.end()
        session.run()
        assert words(session.history) == ["begin", "a", "b", "c", "d"]
        assert len([message for message in session.history if isinstance(message, UserMessage)]) == 5


@pytest.mark.parametrize("part", [Image(b"png"), Audio(b"wav")], ids=["image", "voice"])
@pytest.mark.parametrize("mode", ["queue", "steer", "interrupt"])
def test_a_picture_or_a_voice_message_was_lost(part: Any, mode: Any) -> None:
    """A message that was not text vanished during a run, because the code that kept it joined strings."""
    gate = Gate()
    with session_of(["one", gate], "two", "three") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.post([part, "see?"], mode)
        gate.open()
        if running.end().text != "two":
            session.run()
        sent = [
            message.parts for message in model_of(session).requests[-1].messages if isinstance(message, UserMessage)
        ]
        assert [each for parts in sent for each in parts if each in (part, Text("see?"))] == [part, Text("see?")]


@pytest.mark.parametrize(
    "end",
    [Finished("length"), ProviderError("no", status=400), ContextTooLong("too long"), Finished("content_filter")],
    ids=["output limit", "error", "context", "filter"],
)
def test_a_steer_was_lost_at_the_end_of_a_turn(end: Any) -> None:
    """A steer that was waiting when a turn came to a limit, an error or a clean-up was gone."""
    store = HookedStore()
    with agent_of(["one", end], "two").session(store=store) as session:
        store.once("request.finished", lambda: session.steer("and this"))
        if session.run("x").text != "two":
            session.run()
        assert words(session.history) == ["x", "and this"]
        assert len(session.inbox) == 0
        judge_session(session, model_of(session).requests)


def test_a_steer_was_glued_into_a_tools_result() -> None:
    """The model ignored guidance that came inside a tool's result; it comes as the user's own message."""
    started = threading.Event()

    @tool
    def slow(ctx: ToolContext) -> str:
        token = ctx.token
        started.set()
        token.sleep(AT_MOST)
        return "x"

    with session_of(call("slow"), "ok", tools=[slow]) as session:
        running = RunningTurn(session)
        assert started.wait(AT_MOST)
        session.steer("rather blue")
        running.end()
        last = model_of(session).requests[-1].messages[-1]
        assert last == UserMessage.of("rather blue")
        assert "rather blue" not in str(session.history[2])


def test_a_steer_waited_for_the_slowest_tool() -> None:
    """A steer was read 35 s later, when the slowest tool of the batch was done; it breaks them instead."""
    started = threading.Semaphore(0)

    @tool(grace=AT_MOST)
    async def slow() -> str:
        started.release()
        await asyncio.sleep(600)
        return "x"

    with session_of([call("slow", "a"), call("slow", "b")], "ok", tools=[slow]) as session:
        running = RunningTurn(session)
        assert started.acquire(timeout=AT_MOST)
        assert started.acquire(timeout=AT_MOST)
        session.steer("enough")
        turn = running.end()
        assert (turn.status, [outcome.status for outcome in turn.outcomes]) == ("done", ["cancelled", "cancelled"])


def test_replies_were_dropped_because_no_run_was_active() -> None:
    """Between "is a run active?" and "steer it" the run ended: 136 replies were lost in a day."""
    with session_of(*["ok"] * 400) as session:
        receipts: list[Any] = []
        over = threading.Event()

        def reply() -> None:
            while not over.wait(0.0002):
                receipts.append(session.steer("reply"))

        background = Background(reply)
        while len(receipts) < 60:
            session.run("x")
        over.set()
        background.result()
        if len(session.inbox):
            session.run()
        assert {receipt.state for receipt in receipts} == {"applied"}
        applied = [each.id for each in data_of(session, "message.applied")]
        assert len(applied) == len(set(applied))


def test_a_steer_that_was_sent_again_ran_twice() -> None:
    """A client whose request timed out sent its steer again, and the agent did it twice."""
    gate = Gate()
    with session_of(["one", gate], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        first = session.post("once", "steer", id="s1")
        again = session.post("once", "steer", id="s1")
        running.end()
        assert first.id == again.id
        assert session.post("once", "steer", id="s1").state == "applied"
        assert words(session.history) == ["begin", "once"]
        assert len(session.inbox) == 0


def test_a_restart_discarded_what_it_had_acknowledged() -> None:
    """A restart dropped a message that its sender had a receipt for, and a marker it left bounced others for days."""
    gate = Gate()
    with session_of(["one", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.post("acknowledged", id="m")
        store = store_with(session.events())
        session.interrupt()
        running.end()
    with agent_of("two", "three").session(session.id, store) as again:
        assert again.post("acknowledged", id="m").state == "accepted"
        assert again.run().text == "two"
        assert again.run("and on").text == "three"
        assert words(again.history) == ["begin", "acknowledged", "and on"]


def test_the_mode_was_silently_changed() -> None:
    """A client asked for an interrupt and got a queued message, and nobody told it."""
    with session_of("one") as session:
        for mode in ("interrupt", "steer", "rollback"):
            receipt = session.post("x", mode)
            assert receipt.mode == "queue"
            assert "no turn was running" in receipt.note
        assert [each.mode for each in data_of(session, "message.accepted")] == ["queue"] * 3


def test_send_blocked_while_a_tool_ran() -> None:
    """post() waited for the lock that a running tool's turn was holding."""
    with DeafTool() as deaf, session_of(call("deaf"), tools=[tool(name="deaf")(deaf)]) as session:
        running = RunningTurn(session)
        assert deaf.started.wait(AT_MOST)
        # Every one of these returns while the tool is deaf; the bound is Background's.
        receipt = Background(lambda: session.post("x")).result()
        Background(lambda: session.inbox.edit(receipt.id, "y")).result()
        assert Background(lambda: len(session.history)).result() > 0
        assert Background(lambda: session.stop().stopped).result()
        assert running.end().status == "interrupted"


# -- asyncio and threads -------------------------------------------------------------------------------------------


def test_a_late_worker_polled_the_next_runs_token() -> None:
    """A worker that looked its token up through the conversation saw None, or the next run's, and never stopped."""
    seen: list[CancellationToken] = []
    started, go, ended = threading.Event(), threading.Event(), threading.Event()
    gate = Gate()

    @tool
    def worker() -> str:
        token = session.cancel_token  # looked up once, when the work starts
        seen.append(token)
        started.set()
        go.wait(AT_MOST)
        seen.append(session.cancel_token)
        if token.is_cancelled:
            ended.set()
        return "x"

    with session_of(call("worker"), ["two", gate], tools=[worker]) as session:
        running = RunningTurn(session)
        assert started.wait(AT_MOST)
        first = session.cancel_token
        session.interrupt()
        running.end()
        assert session.cancel_token is first  # never None
        running = RunningTurn(session, "next")
        gate.wait_reached()
        go.set()
        assert ended.wait(AT_MOST)
        assert seen[0] is first
        assert seen[1] is session.cancel_token
        assert not seen[1].is_cancelled
        gate.open()
        assert running.end().status == "done"


@looped
async def test_wait_for_never_raised_timeout_error() -> None:
    """The framework swallowed the cancellation of its caller, who waited for ever."""
    started = asyncio.Event()

    @tool
    async def slow() -> str:
        started.set()
        await asyncio.sleep(600)
        return "x"

    async with session_of(call("slow"), "ok", tools=[slow]) as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                task = asyncio.ensure_future(started.wait())
                task.add_done_callback(lambda _: limit.reschedule(asyncio.get_running_loop().time()))
                await session.arun("x")
        assert session.turn is not None
        assert (session.turn.status, session.turn.reason) == ("interrupted", "external")
        judge_session(session)


def test_two_runs_on_one_conversation() -> None:
    """Of two runs on one conversation an interrupt stopped only the newer: there are no two."""
    gate = Gate()
    store = MemoryStore()
    with agent_of(["one", gate]).session("s", store) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        with pytest.raises(SessionBusy):
            session.run("second")
        session.interrupt()
        assert running.end().status == "interrupted"
        assert not session.is_running
