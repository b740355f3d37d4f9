"""What went wrong elsewhere with the history after a stop. Each docstring says what happened to whom."""

from __future__ import annotations

import threading

from halter import ToolContext, tool
from halter.models import AssistantMessage, ToolMessage, UserMessage
from halter.testing import DeafTool, Gate
from tests.support.background import RunningTurn
from tests.support.hooked_store import HookedStore, store_with
from tests.support.sessions import AT_MOST, agent_of, call, data_of, model_of, said, session_of, wait_for
from tests.support.valid_history import judge, judge_session


@tool
def look() -> str:
    """Look."""
    return "seen"


def test_calls_without_results_after_a_stop() -> None:
    """After a stop the calls had no results, and the provider answered 400 for ever; whole results were lost, too."""
    started = threading.Event()

    @tool
    def slow(ctx: ToolContext) -> str:
        token = ctx.token
        started.set()
        token.sleep(AT_MOST)
        return "x"

    with session_of([call("look", "a"), call("slow", "b")], "ok", tools=[look, slow]) as session:
        with session.subscribe() as listener:
            running = RunningTurn(session)
            wait_for(listener, "tool.finished")
            assert started.wait(AT_MOST)
            session.interrupt()
            running.end()
        results = [message for message in session.history if isinstance(message, ToolMessage)]
        assert results[0].text == "seen"
        assert "was stopped" in results[1].text
        assert session.run("and?").status == "done"
        judge_session(session, model_of(session).requests)


def test_a_message_raced_with_an_interrupt_and_came_between_call_and_result() -> None:
    """A message that came with an interrupt was put between a call and its result, which every provider refuses."""
    for kind in ("request.finished", "tool.started", "tool.finished"):
        store = HookedStore()
        with agent_of([call("look", "a"), call("look", "b")], "ok", "ok", tools=[look]).session(store=store) as session:
            store.once(kind, lambda: session.interrupt("stop that"))
            session.run("x")
            session.run()
            judge_session(session, model_of(session).requests)
            assert [text.splitlines()[-1] for text in said(session.history)] == ["x", "stop that"]


def test_what_was_on_the_screen_was_not_in_the_history() -> None:
    """The text that a user had read was gone after the stop, and the prompt too, when no answer had come yet."""
    gates = [Gate(), Gate()]
    with session_of(["You can ", "read this", gates[0]], [gates[1]], "ok") as session, session.subscribe() as listener:
        shown = ""
        running = RunningTurn(session, "first")
        gates[0].wait_reached()
        session.interrupt()
        running.end()
        while (event := listener.get_nowait()) is not None:
            shown += getattr(event.data, "text", "") if event.kind == "text.delta" else ""
        assert session.history[-1] == AssistantMessage(shown)
        running = RunningTurn(session, "second")
        gates[1].wait_reached()
        session.interrupt()
        running.end()
        last = session.history[-1]
        assert isinstance(last, UserMessage)
        assert last.text.endswith("second")


def test_recovery_answered_one_call_and_ran_the_others_again() -> None:
    """After a crash only the first open call was answered, and the rest of the batch was run a second time."""
    ran: list[str] = []
    started = threading.Semaphore(0)

    @tool
    def pay(ctx: ToolContext) -> str:
        token = ctx.token
        ran.append(ctx.call_id)
        started.release()
        token.sleep(AT_MOST)
        return "paid"

    with session_of([call("pay", each) for each in "abc"], tools=[pay]) as session:
        running = RunningTurn(session)
        for _ in "abc":
            assert started.acquire(timeout=AT_MOST)
        store = store_with(session.events())
        session.interrupt()
        running.end()
    ran.clear()
    with agent_of("ok", "ok", tools=[pay]).session(session.id, store) as again:
        assert [each.outcome.status for each in data_of(again, "tool.finished")] == ["abandoned"] * 3
        judge(again.history)
        again.run()
        again.run("and?")
        assert ran == []


def test_two_results_for_one_call() -> None:
    """A late result was added beside the one that said "stopped": two for one call id, refused by the provider."""
    with DeafTool("late") as deaf:
        with (
            session_of(call("deaf"), "ok", tools=[tool(name="deaf")(deaf)]) as session,
            session.subscribe() as listener,
        ):
            running = RunningTurn(session)
            assert deaf.started.wait(AT_MOST)
            session.interrupt()
            running.end()
            deaf.release()
            wait_for(listener, "tool.finished_late")
            session.run("and?")
            assert len(data_of(session, "tool.finished")) == 1
            assert len([message for message in session.history if isinstance(message, ToolMessage)]) == 1
            judge_session(session, model_of(session).requests)


def test_the_model_was_told_skipped_and_the_file_was_written() -> None:
    """A tool that could not be stopped wrote its file, and the model had been told that it was skipped."""
    with DeafTool("a.txt was written") as deaf:
        with (
            session_of(call("deaf"), "ok", tools=[tool(name="deaf")(deaf)]) as session,
            session.subscribe() as listener,
        ):
            running = RunningTurn(session)
            assert deaf.started.wait(AT_MOST)
            session.stop()
            turn = running.end()
            result = session.history[-1]
            assert isinstance(result, ToolMessage)
            assert "may still have effects" in result.text
            assert "not started" not in result.text
            assert turn.outcomes[0].may_go_on
            deaf.release()
            wait_for(listener, "tool.finished_late")
            assert not turn.outcomes[0].may_go_on
            session.run("and?")
            assert "a.txt was written" in said(session.history)[-1]
