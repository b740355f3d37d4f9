"""Typed answers in a turn: checked, given back, and None unless the turn is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halter import Agent, CancellationToken, Session, ToolContext, TurnFailed, tool
from halter.errors import InvalidOutput
from halter.models import AssistantMessage, Finished, UserMessage
from halter.stores import SQLiteStore
from halter.testing import FakeProvider, Gate, ScriptedModel, answer, hang_mid_stream, interrupt_everywhere, tool_calls
from tests.support.background import RunningTurn
from tests.support.hooked_store import store_with
from tests.support.output_types import City, Point
from tests.support.sessions import agent_of, call, data_of, kinds, model_of, said, session_of
from tests.support.valid_history import judge_session
from tests.support.wires import WIRES, model_for

RIGHT = '{"name": "Bonn", "people": 3}'
WRONG = '{"name": "Bonn"}'
BONN = City("Bonn", 3)


@tool
def look() -> str:
    """Look."""
    return "seen"


def typed(*script: Any, **options: Any) -> Session:
    return session_of(*script, output=City, **options)


def test_a_typed_answer() -> None:
    """`turn.output` is of the type, and `turn.text` is still the text; the schema goes with each request."""
    with typed([RIGHT[:9], RIGHT[9:]]) as session:
        turn = session.run("x").raise_for_error()
        assert (turn.output, turn.text) == (BONN, RIGHT)
        assert [data.text for data in data_of(session, "text.delta")] == [RIGHT[:9], RIGHT[9:]]
        (request,) = model_of(session).requests
        assert request.output is not None
        assert request.output.name == "City"


def test_without_a_type_the_output_is_the_text() -> None:
    """An agent without `output` asks for no form, and its output is what it said."""
    with session_of("hello") as session:
        assert session.run("x").output == "hello"
        assert model_of(session).requests[0].output is None


def test_a_wrong_answer_goes_back_to_the_model() -> None:
    """The error is a message of the conversation, behind the wrong answer, and the next answer counts."""
    with typed(WRONG, RIGHT) as session:
        turn = session.run("x")
        assert (turn.status, turn.output, turn.text) == ("done", BONN, RIGHT)
        _, wrong, told, right = session.history
        assert (wrong, right) == (AssistantMessage(WRONG), AssistantMessage(RIGHT))
        assert isinstance(told, UserMessage)
        assert "missing required field `people`" in told.text
        (rejected,) = data_of(session, "output.rejected")
        assert (rejected.message, rejected.retries_left) == (told.text, 0)
        assert model_of(session).requests[1].messages[-1] == told
        judge_session(session)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_wrong_answers_end_the_turn(retries: int) -> None:
    """After `output_retries` the turn fails with a reason of its own, and the last answer is still its text."""
    with typed(*[WRONG] * 5, RIGHT, output_retries=retries) as session:
        turn = session.run("x")
        assert (turn.status, turn.reason, turn.output, turn.text) == ("failed", "invalid_output", None, WRONG)
        assert "missing required field `people`" in turn.detail
        assert isinstance(turn.error, InvalidOutput)
        with pytest.raises(TurnFailed):
            turn.raise_for_error()
        assert len(model_of(session).requests) == 1 + retries
        judge_session(session)


def test_retries_count_as_steps() -> None:
    """A retry is a request like others: the limit of steps ends it."""
    with typed(WRONG, RIGHT, max_steps=1, output_retries=5) as session:
        assert session.run("x").reason == "step_limit"
        assert session.run().output == BONN


def test_an_empty_answer_is_a_wrong_one() -> None:
    """A model that says nothing is told so."""
    with typed([Finished("stop")], RIGHT) as session:
        assert session.run("x").output == BONN
        assert "it is empty" in data_of(session, "output.rejected")[0].message
        judge_session(session)


@pytest.mark.parametrize("reason", ["refusal", "content_filter"])
def test_a_refusal_is_told_as_such(reason: Any) -> None:
    """A refusal is not taken for a wrong answer: nothing is asked again, and the reason says what it was."""
    with typed(["I would rather not.", Finished(reason, detail="policy 7")]) as session:
        turn = session.run("x")
        assert (turn.status, turn.reason, turn.output) == ("failed", reason, None)
        assert turn.detail.endswith("policy 7")
        assert turn.text == "I would rather not."


def test_a_cut_off_answer_is_told_as_such() -> None:
    """An answer that was cut off at the output limit is not asked for again, even if it looks complete."""
    with typed([RIGHT, Finished("length")]) as session:
        turn = session.run("x")
        assert (turn.status, turn.reason, turn.output) == ("failed", "output_limit", None)


def test_tools_come_before_the_answer() -> None:
    """Calls are run as ever, and what is said beside them is not checked."""
    with typed(["Let me see.", call("look")], WRONG, [call("look", "c2")], RIGHT, tools=[look]) as session:
        turn = session.run("x")
        assert turn.output == BONN
        assert [outcome.status for outcome in turn.outcomes] == ["completed"] * 2
        judge_session(session)


def test_a_steer_asks_for_another_answer() -> None:
    """A steer during the answer ends it: what had come is kept, and the answer after it counts, with all retries."""
    gate = Gate()
    with typed(WRONG, ['{"name": ', gate], WRONG, RIGHT) as session:
        running = RunningTurn(session, "x")
        gate.wait_reached()
        session.steer("No, Bonn.")
        turn = running.end()
        assert (turn.status, turn.output) == ("done", BONN)
        assert [data.retries_left for data in data_of(session, "output.rejected")] == [0, 0]
        judge_session(session)


def test_a_steer_that_comes_with_the_answer_wins() -> None:
    """A valid answer is not the output if a steer was waiting: the turn goes on, and ends with the next one."""
    stop: list[Any] = []

    class Steering(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            async for event in super().stream(request):
                if isinstance(event, Finished) and not stop:
                    stop.append(session.steer("another one"))
                yield event

    session = Agent(Steering(RIGHT, '{"name": "Ulm", "people": 4}'), output=City).session()
    with session:
        turn = session.run("x")
        assert turn.output == City("Ulm", 4)


def test_a_stop_leaves_no_output() -> None:
    """Complete JSON is no output as long as the model has not finished; and the next turn has its own."""
    gate = Gate()
    with typed([RIGHT, gate], RIGHT) as session:
        running = RunningTurn(session, "x")
        gate.wait_reached()
        session.stop()
        turn = running.end()
        assert (turn.status, turn.output, turn.text) == ("interrupted", None, RIGHT)
        assert session.run("again").output == BONN
        judge_session(session)


def test_a_pause_after_a_wrong_answer() -> None:
    """`stop(when="step")` pauses before the retry; run() goes on with the error as the last message."""
    session = typed(WRONG, RIGHT)
    with session:
        model = model_of(session)
        stream = model.stream

        def pausing(request: Any) -> Any:
            session.stop("step")
            return stream(request)

        model.stream = pausing  # type: ignore[method-assign]
        assert session.run("x").reason == "pause"
        model.stream = stream  # type: ignore[method-assign]
        assert session.run().output == BONN
        assert "missing required field" in model.requests[1].messages[-1].text
        judge_session(session)


def test_a_child_has_a_typed_answer() -> None:
    """A delegated agent's turn has the output, for the tool that delegated."""
    child = agent_of(WRONG, '{"x": 1, "y": 2}', output=Point)
    points: list[Any] = []

    @tool
    async def hand_over(ctx: ToolContext) -> str:
        turn = await ctx.delegate(child, "your part")
        points.append(turn.output)
        return "done"

    with typed(call("hand_over"), RIGHT, tools=[hand_over]) as session:
        assert session.run("x").output == BONN
        assert points == [Point(1.0, 2.0)]


def test_a_crash_after_any_event() -> None:
    """For every beginning of the log: the error is told if it is in it, and the turn can be continued to its output."""
    with typed(WRONG, RIGHT) as session:
        session.run("x")
        log = session.events()
    for length in range(log[-1].seq):
        beginning = log[:length]
        with agent_of(RIGHT, output=City).session(session.id, store_with(beginning)) as again:
            assert again.turn is None or (again.turn.reason, again.turn.output) == ("crash", None)
            turn = again.run(None if "message.applied" in kinds(beginning) else "x")
            assert turn.output == BONN
            told = any("missing required field" in text for text in said(model_of(again).requests[0].messages))
            assert told == ("output.rejected" in kinds(beginning))
            judge_session(again)


def test_the_output_survives_a_reload(tmp_path: Path) -> None:
    """It is read again from the text, with the type that the agent has then; None if that is another one."""
    with SQLiteStore(tmp_path / "s.db") as store:
        with agent_of(WRONG, RIGHT, output=City).session("s", store) as session:
            session.run("x")
        for kind, output in ((City, BONN), (Point, None), (str, RIGHT)):
            with agent_of(output=kind).session("s", store) as session:
                assert session.turn is not None
                assert session.turn.output == output
                assert kinds(session.events()).count("output.rejected") == 1


@pytest.mark.parametrize("wire", WIRES)
def test_typed_answers_over_the_wire(wire: str) -> None:
    """With tools, a wrong answer, a steer and a stop in between, on each wire."""
    script = [
        tool_calls([call("look")]),
        answer(WRONG),
        answer(RIGHT),
        hang_mid_stream(2, text=RIGHT),
        answer('{"name": "Ulm", "people": 4}'),
        hang_mid_stream(2, text=RIGHT),
        answer(RIGHT),
    ]
    with FakeProvider(*script) as provider, Agent(model_for(wire, provider), [look], output=City).session() as session:
        assert session.run("x").output == BONN
        running = RunningTurn(session, "again")
        provider.wait_for_pieces(2, request=4)
        session.steer("Ulm")
        assert running.end().output == City("Ulm", 4)
        running = RunningTurn(session, "again")
        provider.wait_for_pieces(2, request=6)
        session.stop()
        stopped = running.end()
        assert (stopped.status, stopped.output) == ("interrupted", None)
        assert session.run().output == BONN
        judge_session(session)


# The rest of a turn is stopped everywhere in tests/laws.
PLACES = ("session/output", "session/turn_runner", "tools/schema/output")


@pytest.mark.parametrize("how", ["stop", "steer"])
def test_stopped_everywhere(how: str) -> None:
    """Wherever it is stopped: no output unless done, a valid history, and the next turn has its answer."""

    async def scenario(token: CancellationToken) -> None:
        with typed(WRONG, [call("look")], *[RIGHT] * 4, tools=[look]) as session:
            registration = token.on_cancel(lambda: session.steer("now") if how == "steer" else session.stop())
            turn = await session.arun("x")
            registration()
            assert turn.output == (BONN if turn.status == "done" else None)
            assert turn.status == "done" or (how != "steer" and turn.status == "interrupted")
            judge_session(session)
            session.release()
            following = await session.arun("next")
            assert following.output == BONN
            judge_session(session)

    report = interrupt_everywhere(
        scenario, repeat=1, only=lambda place: place.removeprefix("halter/").startswith(PLACES)
    )
    assert len(report.points) > 50


def test_options_that_cannot_be_meant_are_refused() -> None:
    """A type without a schema, and fewer than no retries."""
    with pytest.raises(TypeError, match="cannot be described as JSON"):
        Agent(ScriptedModel(), output=object)
    with pytest.raises(ValueError, match="output_retries must be zero or more"):
        Agent(ScriptedModel(), output=int, output_retries=-1)
