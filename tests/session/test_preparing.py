"""Messages that are accepted before they are whole, such as a recording that is being transcribed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from halter import Session, ToolContext, tool
from halter.models import Audio, UserMessage
from halter.stores import SQLiteStore
from halter.testing import Gate
from tests.support.background import Background, RunningTurn
from tests.support.looped import looped
from tests.support.sessions import (
    AT_MOST,
    agent_of,
    call,
    data_of,
    kinds,
    model_of,
    next_event,
    said,
    session_of,
    wait_for,
)
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until

SOUND = Audio(b"sound", "audio/ogg")


def last_lines(session: Session) -> list[str]:
    """What the user said, without what the model is told about it."""
    return [text.splitlines()[-1] for text in said(session.history)]


@looped
async def test_those_behind_it_wait_for_it_and_the_order_is_kept() -> None:
    """A text that comes behind a recording waits for its transcript; then both are applied, in their order."""
    async with session_of("both heard") as session:
        serving = asyncio.ensure_future(session.serve())
        with session.subscribe() as listener:
            voice = session.post(SOUND, id="voice", preparing="transcribing")
            text = session.post("and this")
            assert (session.inbox[0].id, session.inbox[0].preparing) == ("voice", "transcribing")
            assert not session.inbox.ready()
            await asyncio.sleep(0)
            assert not session.is_running
            assert session.prepared("voice", "what was said", note="heard well")
            await next_event(listener, "turn.finished")
        assert last_lines(session) == ["what was said", "and this"]
        assert (voice.state, text.state) == ("applied", "applied")
        assert data_of(session, "message.edited")[0].note == "heard well"
        await session.aclose()
        await serving


def test_a_voice_steer_breaks_the_step_when_it_is_whole_and_not_before() -> None:
    """While it is transcribed the answer goes on; as soon as it is whole it acts exactly as a typed steer."""
    gate = Gate()
    with session_of(["I will paint it ", gate, "red."], "Blue it is.") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        receipt = session.post(SOUND, "steer", preparing="transcribing")
        assert session.turn is not None
        assert session._log.control is not None
        assert not session._log.control.step.is_cancelled
        assert session.prepared(receipt.id, "blue, please")
        turn = running.end()
        assert (turn.status, turn.text) == ("done", "Blue it is.")
        assert (receipt.mode, receipt.state, receipt.turn_id) == ("steer", "applied", turn.id)
        assert last_lines(session) == ["begin", "blue, please"]
        judge_session(session, model_of(session).requests)


@pytest.mark.parametrize("mode", ["interrupt", "rollback"])
def test_a_voice_interrupt_stops_the_turn_when_it_is_whole(mode: str) -> None:
    """A recording that is to stop the turn does so as soon as it is whole, and is the next turn's."""
    gate = Gate()
    with session_of(["a long ", gate], "another") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        receipt = session.post(SOUND, mode, preparing="transcribing")  # type: ignore[arg-type]
        assert not session.cancel_token.is_cancelled
        assert session.prepared(receipt.id, "something else")
        assert (running.end().reason, receipt.stopped) == (mode, True)
        assert session.run().text == "another"
        assert last_lines(session)[-1] == "something else"


def test_a_steer_behind_it_breaks_the_step_at_once_and_keeps_its_place() -> None:
    """A typed steer does not let the model go on without it: the turn waits for the one before it, and has both."""
    gate = Gate()
    with session_of(["one ", gate], "done") as session, session.subscribe() as listener:
        running = RunningTurn(session)
        gate.wait_reached()
        voice = session.post(SOUND, "steer", preparing="transcribing")
        session.steer("second")
        wait_for(listener, "message.accepted", 3)
        assert session.turn is not None
        wait_until(lambda: model_of(session).streams[0].state in ("closed", "cancelled"))
        assert session.prepared(voice.id, "first")
        assert running.end().status == "done"
        assert last_lines(session) == ["begin", "first", "second"]
        assert len(model_of(session).requests) == 2
        judge_session(session, model_of(session).requests)


def test_a_stop_ends_the_wait_for_a_steer_that_is_being_prepared() -> None:
    """Whoever waits for a transcript is stopped as anything else, and the messages are held."""
    gate = Gate()
    with session_of(["one ", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        voice = session.post(SOUND, "steer", preparing="transcribing")
        text = session.steer("second")
        assert session.stop().stopped
        assert running.end().status == "interrupted"
        assert (voice.state, text.state) == ("held", "held")
        assert session.prepared(voice.id, "first")
        assert voice.state == "held"
        assert [letter.text for letter in session.inbox] == ["first", "second"]
        assert len(model_of(session).requests) == 1


def test_an_interrupt_while_it_is_waited_for_leaves_the_loop_free() -> None:
    """Whoever serves waits for the next message: it never came to wait, and nothing else ran in its loop any more."""
    gate = Gate()
    with session_of(["one ", gate], "done") as session, session.subscribe() as listener:
        serving = Background(lambda: asyncio.run(session.serve()))
        session.queue("begin")
        gate.wait_reached()
        voice = session.post(SOUND, "steer", preparing="transcribing")
        session.steer("second")
        wait_until(lambda: "" in session._log._watched)  # the turn waits for the transcript
        control = session._log.control
        assert control is not None
        assert session.interrupt().stopped
        wait_for(listener, "turn.finished")
        answers = threading.Event()
        control.loop.call_soon_threadsafe(answers.set)
        assert answers.wait(AT_MOST)
        session.prepared(voice.id, "first")
        wait_for(listener, "turn.finished")
        assert last_lines(session) == ["begin", "first", "second"]
        session.close()
        serving.result()


def test_it_answers_an_open_question_as_a_text_does() -> None:
    """A recording is the answer to a clarifying question, once it is whole."""

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.ask("Which colour?"))

    with session_of(call("ask"), "ok", tools=[ask]) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        wait_for(listener, "question.asked")
        voice = session.post(SOUND, "steer", preparing="transcribing")
        assert session.prepared(voice.id, "blue")
        assert [outcome.content for outcome in running.end().outcomes] == ["blue"]
        assert voice.state == "applied"


def test_one_that_is_removed_lets_those_behind_it_go_on() -> None:
    """Its transcript comes too late then, and goes nowhere; it can not be edited either while it is made."""
    with session_of("ok") as session:
        voice = session.post(SOUND, preparing="transcribing")
        session.post("behind")
        assert not session.inbox.edit(voice.id, "typed instead")
        assert session.inbox.remove(voice.id)
        assert session.run().status == "done"
        assert not session.prepared(voice.id, "too late")
        assert not session.prepared("unknown", "nothing")
        assert last_lines(session) == ["behind"]


@looped
async def test_whoever_serves_goes_on_when_one_is_removed_or_held() -> None:
    """Nobody has to say something more before the messages behind it are answered."""
    async with session_of("one", "two") as session:
        serving = asyncio.ensure_future(session.serve())
        with session.subscribe() as listener:
            removed = session.post(SOUND, preparing="transcribing")
            session.post("behind the one that is removed")
            await asyncio.sleep(0)
            assert session.inbox.remove(removed.id)
            await next_event(listener, "turn.finished")
            held = session.post(SOUND, preparing="transcribing")
            session.post("behind the one that is held")
            await asyncio.sleep(0)
            session.stop(said_in=held.id)
            await next_event(listener, "turn.finished")
        assert held.state == "held"
        assert len(said(session.history)) == 2
        await session.aclose()
        await serving


def test_one_whose_turn_ends_meanwhile_is_the_next_turns() -> None:
    """A steer that is still being transcribed when its turn ends becomes an ordinary message, and says so."""
    gate = Gate()
    with session_of([gate, "one"], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        voice = session.post(SOUND, "steer", preparing="transcribing")
        gate.open()
        running.end()
        assert session.prepared(voice.id, "late")
        assert (voice.mode, bool(voice.note)) == ("queue", True)
        assert session.run().text == "two"
        assert last_lines(session) == ["begin", "late"]


def test_the_same_id_again_gives_the_same_receipt() -> None:
    """A client that sends its recording again has it once."""
    with session_of("ok") as session:
        first = session.post(SOUND, id="v", preparing="transcribing")
        assert session.post(SOUND, id="v", preparing="transcribing").message == first.message
        assert kinds(session.events()) == ["message.accepted"]
        session.prepared("v", "said")


def test_after_a_crash_it_goes_on_with_its_sound_and_a_note(tmp_path: Path) -> None:
    """The program ended in the middle of the transcription: the message is there, whole, with the recording itself."""
    path = tmp_path / "s.db"
    store = SQLiteStore(path)
    session = agent_of("ok").session("s", store)
    session.post(["listen:", SOUND], "queue", preparing="transcribing")
    session.close()
    store.close()
    with agent_of("ok").session("s", SQLiteStore(path)) as again:
        (letter,) = again.inbox
        assert (letter.preparing, letter.note) == ("", "the program ended while it was transcribing")
        assert again.run().status == "done"
        (message,) = (each for each in again.history if isinstance(each, UserMessage))
        assert SOUND in message.parts


def test_many_that_become_whole_in_any_order_are_applied_in_theirs() -> None:
    """Transcripts come back as they like, from many threads; the conversation has the order of the speech."""
    with session_of("ok") as session:
        ids = [session.post(SOUND, preparing="transcribing").id for _ in range(20)]
        threads = [threading.Thread(target=session.prepared, args=(each, f"said {n}")) for n, each in enumerate(ids)]
        for thread in reversed(threads):
            thread.start()
        for thread in threads:
            thread.join(AT_MOST)
        session.run()
        assert last_lines(session) == [f"said {n}" for n in range(20)]


def test_one_that_turns_out_to_be_an_order_leaves_the_inbox() -> None:
    """What it said is told, it goes to no model, and those behind it go on."""
    with session_of("ok") as session:
        voice = session.post(SOUND, preparing="transcribing")
        session.post("behind")
        assert session.prepared(voice.id, "stop", "nothing was running", is_done=True)
        assert (voice.state, voice.note) == ("removed", "nothing was running")
        (edited,) = data_of(session, "message.edited")
        assert (edited.message.text, edited.prepared) == ("stop", "transcribing")
        assert session.run().status == "done"
        assert last_lines(session) == ["behind"]
        assert not session.prepared(voice.id, "again", is_done=True)


@looped
async def test_a_stop_that_a_message_says_has_the_place_of_that_message() -> None:
    """What came before it is held, as by any stop; what came behind it is newer, and goes on as soon as that is so."""
    gate = Gate()
    async with session_of(["one ", gate], "newer") as session:
        serving = asyncio.ensure_future(session.serve())
        with session.subscribe() as listener:
            session.post("begin")
            await gate.await_reached()
            before = session.post("before")
            voice = session.post(SOUND, preparing="transcribing")
            behind = session.post("behind")
            assert session.stop(said_in=voice.id).stopped
            await next_event(listener, "turn.finished")
            assert voice.stopped
            assert (before.state, voice.state) == ("held", "held")
            await next_event(listener, "turn.finished")
        assert behind.state == "applied"
        assert session.prepared(voice.id, "stop, and look again")
        assert [letter.text for letter in session.inbox] == ["before", "stop, and look again"]
        await session.aclose()
        await serving


def test_a_stop_that_a_message_says_hurts_nothing_when_nothing_runs() -> None:
    """Its receipt says that nothing was stopped, and the message behind it is answered."""
    with session_of("ok") as session:
        voice = session.post(SOUND, preparing="transcribing")
        behind = session.post("behind")
        assert not session.stop(said_in=voice.id).stopped
        assert session.prepared(voice.id, "stop", is_done=True)
        assert (voice.stopped, voice.state, behind.state) == (False, "removed", "accepted")
        assert session.run().text == "ok"


def test_whoever_goes_on_preparing_finds_it_as_it_was(tmp_path: Path) -> None:
    """After a crash a message still waits for its content if the program says that it prepares such messages."""
    path = tmp_path / "s.db"
    with SQLiteStore(path) as store, agent_of("ok").session("s", store) as session:
        session.post(SOUND, id="v", preparing="transcribing")
        session.post(SOUND, id="w", preparing="painting")
    with SQLiteStore(path) as store, agent_of("ok").session("s", store, prepares=["transcribing"]) as again:
        assert [(letter.id, letter.preparing) for letter in again.inbox] == [("v", "transcribing"), ("w", "")]
        assert not again.inbox.ready()
        assert again.prepared("v", "what was said")
        assert again.run().status == "done"
        assert said(again.history)[0] == "what was said"


@looped
async def test_a_burst_of_voice_interrupts_stops_turn_after_turn() -> None:
    """A recording that is transcribed only when the next turn runs interrupts that one, as a text would."""
    first, second = Gate(), Gate()
    async with agent_of(["A ", first], ["B ", second], "C").session() as session, asyncio.TaskGroup() as tasks:
        tasks.create_task(session.serve())
        session.queue("start")
        await first.await_reached()
        red = session.post(Audio(b"1", "audio/ogg"), "interrupt", "v1", preparing="transcribing")
        green = session.post(Audio(b"2", "audio/ogg"), "interrupt", "v2", preparing="transcribing")
        with session.subscribe() as listener:
            session.prepared("v1", "use red")
            await second.await_reached()
            assert session.prepared("v2", "no, green")
            await next_event(listener, "turn.finished")
            await next_event(listener, "turn.finished")
            await next_event(listener, "turn.finished")
        assert (red.stopped, green.stopped) == (True, True)
        assert (green.state, green.mode) == ("applied", "interrupt")
        turns = data_of(session, "turn.finished")
        assert [(turn.status, turn.reason) for turn in turns] == [("interrupted", "interrupt")] * 2 + [("done", "")]
        assert [text[-9:] for text in said(session.history)] == ["start", "]\nuse red", "no, green"]
        await session.aclose()
