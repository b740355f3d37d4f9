"""Steers: a message goes into the running turn, breaks its step, and is never lost."""

from __future__ import annotations

import asyncio
import functools
import threading

import pytest

from halter import Agent, Session, ToolContext, tool
from halter.models import AssistantMessage, Finished, OpenAIModel, UserMessage
from halter.models.errors import ContextTooLong, ModelError, ProviderError
from halter.testing import DeafTool, FakeProvider, Gate, answer, hang_mid_stream
from tests.support.background import RunningTurn
from tests.support.hooked_store import HookedStore
from tests.support.looped import looped
from tests.support.paused_writer import WriterPaused
from tests.support.sessions import AT_MOST, agent_of, call, data_of, kinds, model_of, said, session_of
from tests.support.valid_history import judge, judge_session


def last_words(session: Session) -> list[str]:
    """What the user said, without what the model is told about it."""
    return [text.splitlines()[-1] for text in said(session.history)]


# -- while the model speaks ----------------------------------------------------------------------------------------


def test_a_steer_while_streaming_keeps_the_words_and_goes_on_in_the_same_turn() -> None:
    """What the model had said stays, the steer follows as the user's word, and the same turn answers it."""
    gate = Gate()
    with session_of(["I will paint it ", gate, "red."], "Blue it is.") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        receipt = session.steer("blue, please")
        turn = running.end()
        assert (turn.status, turn.text) == ("done", "Blue it is.")
        assert (receipt.mode, receipt.state, receipt.turn_id) == ("steer", "applied", turn.id)
        assert len(data_of(session, "turn.started")) == 1
        _, cut, steer, last = session.history
        assert cut == AssistantMessage("I will paint it ")
        assert isinstance(steer, UserMessage)
        assert steer.parts[-1].text == "blue, please"  # type: ignore[union-attr]
        assert "cut off" in steer.text
        assert last == AssistantMessage("Blue it is.")
        assert model_of(session).streams[0].state in ("cancelled", "closed")
        assert data_of(session, "request.cancelled")[0].reason == "steer"
        assert not turn.token.is_cancelled
        judge_session(session, model_of(session).requests)


def test_a_steer_closes_the_connection_to_the_provider() -> None:
    """The server sees its client go at the steer, and the next request has the words so far and the steer."""
    with FakeProvider(hang_mid_stream(text="some words "), answer("better")) as provider:
        model = OpenAIModel("m", base_url=provider.openai_url, api_key="k")
        with Agent(model).session() as session:
            listener = session.subscribe()
            running = RunningTurn(session)
            while (event := listener.get(AT_MOST)) is not None and event.kind != "text.delta":
                pass
            session.steer("other way")
            provider.wait_for_close()
            assert running.end().text == "better"
            roles = [message["role"] for message in provider.requests[1].body["messages"]]
            assert roles == ["user", "assistant", "user"]
            assert "other way" in provider.requests[1].body["messages"][-1]["content"]
            judge_session(session)


def test_a_steer_before_the_first_word_leaves_no_empty_message() -> None:
    """A request that is broken off before it said anything leaves nothing behind: two words of the user in a row."""
    gate = Gate()
    with session_of([gate], "ok") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.steer("and quickly")
        assert running.end().text == "ok"
        assert said(session.history) == ["begin", "and quickly"]
        judge_session(session, model_of(session).requests)


def test_half_written_calls_are_not_run_after_a_steer() -> None:
    """A call that was written when the steer came is neither started nor in the history."""
    gate = Gate()
    ran: list[str] = []

    @tool
    def act() -> str:
        ran.append("ran")
        return "x"

    with session_of(["I act. ", call("act"), gate], "ok", tools=[act]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.steer("do not")
        turn = running.end()
        assert ran == []
        assert turn.outcomes == []
        assert session.history[1] == AssistantMessage("I act. ")
        judge_session(session, model_of(session).requests)


def test_several_steers_keep_their_order_and_their_boundaries() -> None:
    """Three steers are three messages of the user, in the order in which they came."""
    gate = Gate()
    with session_of(["one ", gate], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        with WriterPaused(session) as writer:  # so that all three are there before the turn can look
            steers = [writer.start(functools.partial(session.steer, text)) for text in ("a", "b", "c")]
        receipts = [each.result() for each in steers]
        turn = running.end()
        assert {receipt.turn_id for receipt in receipts} == {turn.id}
        assert last_words(session) == ["begin", "a", "b", "c"]
        judge_session(session, model_of(session).requests)


def test_steer_after_steer_each_breaks_its_step() -> None:
    """A second steer breaks the step that the first one has begun."""
    gates = [Gate(), Gate()]
    with session_of(["one ", gates[0]], ["two ", gates[1]], "three") as session:
        running = RunningTurn(session)
        gates[0].wait_reached()
        session.steer("a")
        gates[1].wait_reached()
        session.steer("b")
        assert running.end().text == "three"
        assert last_words(session) == ["begin", "a", "b"]
        assert len(data_of(session, "request.cancelled")) == 2
        judge_session(session, model_of(session).requests)


# -- while tools run -----------------------------------------------------------------------------------------------


def test_a_steer_breaks_tools_that_listen_and_keeps_what_they_have() -> None:
    """A tool that yields hands back what it has at the steer, and the model reads why it was stopped."""
    started = threading.Event()

    @tool(grace=AT_MOST)
    def pages(ctx: ToolContext) -> object:
        yield "page 1"
        started.set()
        ctx.token.wait(AT_MOST)
        yield "page 2"

    with session_of(call("pages"), "ok", tools=[pages]) as session:
        running = RunningTurn(session)
        assert started.wait(AT_MOST)
        session.steer("enough")
        turn = running.end()
        assert turn.status == "done"
        assert [(o.status, o.reason) for o in turn.outcomes] == [("partial", "steer")]
        assert "page 1" in str(turn.outcomes[0].content)
        assert "new guidance" in session.history[2].text
        assert last_words(session) == ["begin", "enough"]
        judge_session(session, model_of(session).requests)


def test_a_steer_does_not_wait_for_a_deaf_tool() -> None:
    """A deaf tool is abandoned at the steer; the turn goes on, and its late result is told in the next turn only."""
    with DeafTool("late result") as deaf:
        model_gate = Gate()
        deaf_tool = tool(name="deaf")(deaf)
        with session_of(call("deaf"), ["ok", model_gate], "next", tools=[deaf_tool]) as session:
            listener = session.subscribe()
            running = RunningTurn(session)
            assert deaf.started.wait(AT_MOST)
            session.steer("go on without")
            model_gate.wait_reached()
            deaf.release()
            while (event := listener.get(AT_MOST)) is not None and event.kind != "tool.finished_late":
                pass
            model_gate.open()
            turn = running.end()
            assert [o.status for o in turn.outcomes] == ["abandoned"]
            assert not any("late result" in text for text in said(session.history))
            session.run("and now?")
            assert "late result" in said(session.history)[-1]
            judge_session(session, model_of(session).requests)


def test_a_tool_that_must_finish_is_not_broken() -> None:
    """on_steer="finish" protects a tool: it ends whole, its sibling is broken, and then the steer is applied."""
    started = threading.Semaphore(0)
    go = threading.Event()

    @tool(on_steer="finish")
    def write() -> str:
        started.release()
        assert go.wait(AT_MOST)
        return "written"

    broken = threading.Event()

    @tool(grace=AT_MOST)
    def read(ctx: ToolContext) -> str:
        token = ctx.token  # from here on it listens
        started.release()
        token.wait(AT_MOST)
        broken.set()
        return "half"

    with session_of([call("write", "w"), call("read", "r")], "ok", tools=[write, read]) as session:
        running = RunningTurn(session)
        assert started.acquire(timeout=AT_MOST)
        assert started.acquire(timeout=AT_MOST)
        receipt = session.steer("careful")
        assert broken.wait(AT_MOST)
        assert receipt.state == "accepted"
        go.set()
        turn = running.end()
        assert [o.status for o in turn.outcomes] == ["completed", "partial"]
        assert turn.outcomes[0].content == "written"
        assert kinds(session.events()).index("tool.finished") < kinds(session.events()).index("text.delta")
        assert last_words(session) == ["begin", "careful"]
        judge_session(session, model_of(session).requests)


def test_a_stop_breaks_also_a_tool_that_must_finish() -> None:
    """on_steer="finish" protects from steers, not from a stop."""
    started = threading.Event()

    @tool(on_steer="finish", grace=AT_MOST)
    def write(ctx: ToolContext) -> str:
        token = ctx.token
        started.set()
        token.sleep(AT_MOST)
        return "written"

    with session_of(call("write"), tools=[write]) as session:
        running = RunningTurn(session)
        assert started.wait(AT_MOST)
        session.steer("careful")
        session.stop()
        turn = running.end()
        assert (turn.status, turn.outcomes[0].status) == ("interrupted", "cancelled")
        assert [letter.text for letter in session.inbox] == ["careful"]
        judge_session(session)


def test_a_steer_between_the_answer_and_its_calls_starts_none_of_them() -> None:
    """A steer that comes as the answer is whole starts no call, not even one that must not be broken."""
    ran: list[str] = []

    @tool(on_steer="finish")
    def act() -> str:
        ran.append("act")
        return "x"

    store = HookedStore()
    with agent_of(call("act"), "ok", tools=[act]).session(store=store) as session:
        store.once("request.finished", lambda: session.steer("wait"))
        turn = session.run("begin")
        assert ran == []
        assert [(o.status, o.reason) for o in turn.outcomes] == [("not_started", "steer")]
        assert last_words(session) == ["begin", "wait"]
        judge_session(session, model_of(session).requests)


# -- when it is not for this turn ----------------------------------------------------------------------------------


def test_a_steer_of_an_idle_session_is_queued_and_says_so() -> None:
    """Steering when nothing runs is an ordinary message for the next turn, and the receipt tells that."""
    with session_of("ok") as session:
        receipt = session.steer("x")
        assert (receipt.mode, receipt.state) == ("queue", "accepted")
        assert "no turn was running" in receipt.note
        assert session.run().status == "done"
        assert receipt.state == "applied"
        assert data_of(session, "message.applied")[0].note == receipt.note


def test_a_steer_at_the_very_end_is_applied_once_in_one_of_the_two_turns() -> None:
    """A steer that comes with the last word goes into this turn; one that comes with its end waits for the next."""
    store = HookedStore()
    with agent_of("one", "two", "three").session(store=store) as session:
        store.once("text.delta", lambda: session.steer("in time"))
        turn = session.run("begin")
        assert turn.text == "two"
        assert last_words(session) == ["begin", "in time"]
        receipts = []
        store.once("turn.finished", lambda: receipts.append(session.steer("too late")))
        session.run("again")
        assert receipts[0].mode == "queue"
        assert [letter.text for letter in session.inbox] == ["too late"]
        judge_session(session)


@looped
async def test_steers_that_race_with_the_end_are_never_lost() -> None:
    """Of steers that come at any instant of short turns, each is applied exactly once."""
    async with session_of(*[["a ", "b ", "c"]] * 3000) as session:
        posted: list[str] = []
        over = threading.Event()

        def pester() -> None:
            while not over.wait(0.0003):
                posted.append(session.steer(f"steer {len(posted)}").id)

        thread = threading.Thread(target=pester)
        thread.start()
        while len(posted) < 100:
            await session.arun("turn")
        over.set()
        thread.join(AT_MOST)
        if len(session.inbox):
            await session.arun()
        applied = [each.id for each in data_of(session, "message.applied")]
        assert [each for each in applied if each in set(posted)] == posted
        judge(session.history)


def test_a_steer_for_another_turn_is_queued_and_says_so() -> None:
    """A steer that names the turn it is for does not hit another one."""
    gates = [Gate(), Gate()]
    with session_of(["one", gates[0]], ["two", gates[1]], "three") as session:
        running = RunningTurn(session)
        gates[0].wait_reached()
        assert session.turn is not None
        first = session.turn.id
        hit = session.post("a", "steer", expect_turn=first)
        assert hit.mode == "steer"
        gates[1].wait_reached()
        for mode in ("steer", "interrupt", "rollback"):
            missed = session.post(mode, mode, expect_turn="another")
            assert (missed.mode, missed.stopped) == ("queue", False)
            assert "another was over" in missed.note
        gates[1].open()
        turn = running.end()
        assert (turn.id, turn.status, turn.text) == (first, "done", "two")
        assert [letter.text for letter in session.inbox] == ["steer", "interrupt", "rollback"]
        assert session.run().text == "three"
        late = session.post("b", "rollback", expect_turn=first)
        assert late.mode == "queue"
        assert len(session.history) > 0  # and the last turn is not taken back, for it is another


def test_a_steer_while_the_turn_is_being_stopped_waits_for_the_next() -> None:
    """A steer that comes after the stop does not hold it up: it is for the next turn, and the receipt says so."""
    started, go = threading.Event(), threading.Event()

    @tool(grace=5)
    def slow(ctx: ToolContext) -> str:
        token = ctx.token
        started.set()
        token.wait(AT_MOST)
        assert go.wait(AT_MOST)
        return "x"

    with session_of(call("slow"), "ok", tools=[slow]) as session:
        running = RunningTurn(session)
        assert started.wait(AT_MOST)
        session.interrupt()
        receipt = session.steer("too late")
        assert receipt.mode == "queue"
        assert "stopped" in receipt.note
        go.set()
        assert running.end().status == "interrupted"
        assert session.run().status == "done"
        assert last_words(session) == ["begin", "too late"]
        judge_session(session, model_of(session).requests)


# -- it survives every end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ProviderError("no", status=400), ContextTooLong("too long"), RuntimeError("a defect")], ids=repr
)
def test_a_steer_survives_a_turn_that_fails(error: Exception) -> None:
    """A turn that ends with an error, while a steer waits, leaves the steer for the next turn."""
    gate = Gate()
    store = HookedStore()
    with agent_of(["one ", gate, error], "two").session(store=store) as session:
        receipts = []
        # As late as can be: the failure is known, and written with the end of the turn.
        store.once("turn.finished", lambda: receipts.append(session.steer("and this?")))
        running = RunningTurn(session)
        gate.wait_reached()
        gate.open()
        turn = running.end()
        assert turn.status == "failed"
        assert isinstance(turn.error, ModelError | RuntimeError)
        assert (receipts[0].mode, receipts[0].state) == ("queue", "accepted")
        assert receipts[0].note
        assert session.run().text == "two"
        assert last_words(session) == ["begin", "and this?"]
        judge_session(session, model_of(session).requests)


def test_a_steer_at_the_output_limit_is_answered() -> None:
    """A steer that waits when the answer comes to its limit is answered in the same turn."""
    store = HookedStore()
    with agent_of(["Once upon", Finished("length")], "Short it is.").session(store=store) as session:
        store.once("text.delta", lambda: session.steer("keep it short"))
        turn = session.run("tell")
        assert (turn.status, turn.text) == ("done", "Short it is.")
        assert last_words(session) == ["tell", "keep it short"]
        judge_session(session, model_of(session).requests)


def test_a_steer_at_the_step_limit_is_answered() -> None:
    """A steer that waits when the turn comes to its limit of steps gives it new steps."""

    @tool
    def look() -> str:
        return "x"

    store = HookedStore()
    agent = agent_of(call("look", "a"), call("look", "b"), "ok", tools=[look], max_steps=2)
    with agent.session(store=store) as session:
        model = model_of(session)

        def at_second(written: list[str]) -> None:
            if "tool.finished" in written and len(model.requests) == 2:
                store.after = lambda _: None
                session.steer("stop looking")

        store.after = at_second
        turn = session.run("look")
        assert (turn.status, turn.text) == ("done", "ok")
        assert last_words(session) == ["look", "stop looking"]


def test_a_steer_survives_an_interrupt() -> None:
    """A steer that an interrupt overtakes waits for the next turn."""
    gate = Gate()
    with session_of(["one ", gate], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        with WriterPaused(session) as writer:
            steer = writer.start(lambda: session.steer("and this?"))
            interrupt = writer.start(lambda: session.interrupt("that first"))
        receipt = steer.result()
        interrupt.result()
        assert running.end().status == "interrupted"
        assert receipt.mode == "queue"
        assert session.run().text == "two"
        assert last_words(session) == ["begin", "and this?", "that first"]


@looped
async def test_a_steer_survives_a_foreign_cancellation() -> None:
    """A steer that waits when the turn's task is cancelled waits on, for the next turn."""
    gate = Gate()
    async with session_of(["one ", gate], "two") as session:
        task = asyncio.create_task(session.arun("begin"))
        await gate.await_reached()
        session.steer("and this?")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [letter.mode for letter in session.inbox] == ["queue"]
        assert (await session.arun()).text == "two"
        assert last_words(session) == ["begin", "and this?"]


def test_a_steer_that_a_stop_holds_waits_until_it_is_released() -> None:
    """stop() holds a steer that was not applied yet like any other message."""
    gate = Gate()
    with session_of(["one ", gate], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        with WriterPaused(session) as writer:
            steer = writer.start(lambda: session.steer("and this?"))
            session.stop()
        receipt = steer.result()
        assert running.end().status == "interrupted"
        assert (receipt.state, receipt.mode) == ("held", "queue")
        session.release()
        assert session.run().text == "two"
        assert last_words(session) == ["begin", "and this?"]
