"""Voice messages on their way into a session: in order, once, and never lost. What is said in them is scripted here."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from halter.errors import SessionClosed
from halter.events import MessageEdited
from halter.models import Audio, Image, Text, UserMessage
from halter.stores import MemoryStore, SQLiteStore
from halter.testing import Gate
from halter.views.stop_phrases import StopPhrases
from halter.voice.voice_messages import TRANSCRIBING, VoiceMessages, echo
from tests.support.hooked_store import HookedStore
from tests.support.looped import looped
from tests.support.processes import run_python
from tests.support.scripted_transcriber import ScriptedTranscriber, sound
from tests.support.sessions import agent_of, data_of, kinds, model_of, said
from tests.support.voice_sessions import done, echoes, heard, serving, until

STOPS = ("stop", "never mind")


@looped
async def test_a_recording_is_safe_first_and_its_words_are_the_message() -> None:
    """The receipt comes at once, the inbox shows what is being done, and the model gets words and no sound."""
    gate = Gate()
    voice_messages = VoiceMessages(ScriptedTranscriber(gate=gate))
    async with serving("ok") as session:
        receipt = await voice_messages.post(session, sound("gate", "take the", "blue one"), id="v")
        await gate.await_reached()
        assert (receipt.state, session.inbox[0].preparing) == ("accepted", TRANSCRIBING)
        gate.open()
        await until(session, "turn.finished")
        assert receipt.state == "applied"
        assert said(session.history) == ["take the blue one"]
        assert echoes(session) == ['🎙️ "take the blue one"']
        (accepted,) = data_of(session, "message.accepted")
        assert accepted.message.parts == [sound("gate", "take the", "blue one")]
        (message,) = model_of(session).requests[0].messages
        assert message == UserMessage.of("take the blue one")


@looped
async def test_the_same_id_is_transcribed_once() -> None:
    """A client that sends its recording again, and again when it is done, gets the same receipt."""
    gate = Gate()
    transcriber = ScriptedTranscriber(gate=gate)
    voice_messages = VoiceMessages(transcriber)
    async with serving("ok") as session:
        sent = [await voice_messages.post(session, sound("gate", "once"), id="v") for _ in range(3)]
        await gate.await_reached()
        gate.open()
        await until(session, "turn.finished")
        sent.append(await voice_messages.post(session, sound("gate", "once"), id="v"))
        assert {receipt.id for receipt in sent} == {"v"}
        assert transcriber.began == ["gate|once"]
        assert echoes(session) == ['🎙️ "once"']


@looped
async def test_parts_keep_their_places() -> None:
    """A message of texts, pictures and recordings has words where the recordings were."""
    voice_messages = VoiceMessages(ScriptedTranscriber())
    picture = Image(b"png")
    async with serving("ok") as session:
        await voice_messages.post(session, ["look:", sound("one"), picture, sound("two"), sound("fail")])
        await until(session, "turn.finished")
        (message,) = (each for each in session.history if isinstance(each, UserMessage))
        assert message.parts == [
            Text("look:"),
            Text("one"),
            picture,
            Text("two"),
            Text("[A voice message that could not be transcribed: the pen broke.]"),
        ]


@looped
async def test_a_message_without_a_recording_is_posted() -> None:
    """Whoever hands over all messages needs no case of its own for texts, and an empty one is refused as ever."""
    transcriber = ScriptedTranscriber()
    async with serving("ok") as session:
        receipt = await VoiceMessages(transcriber).post(session, "typed")
        await until(session, "turn.finished")
        assert (receipt.state, transcriber.began) == ("applied", [])
        with pytest.raises(ValueError, match="not empty"):
            await VoiceMessages(transcriber).post(session, "")


@looped
async def test_what_fails_in_the_middle_keeps_what_was_heard() -> None:
    """The model gets the words that there are, and is told that there were more, and the receipt says why."""
    voice_messages = VoiceMessages(ScriptedTranscriber())
    async with serving("ok") as session:
        receipt = await voice_messages.post(session, sound("the first half", "fail"))
        await until(session, "turn.finished")
        rest = "[The rest of this voice message could not be transcribed: the pen broke.]"
        assert said(session.history) == [f"the first half {rest}"]
        assert receipt.note == "not transcribed: the pen broke"


@looped
async def test_sessions_take_turns() -> None:
    """A session with many recordings does not keep the one of another session waiting behind all of them."""
    gate = Gate()
    transcriber = ScriptedTranscriber(gate=gate)
    voice_messages = VoiceMessages(transcriber, max_parallel=1)
    async with serving("ok", "ok", "ok", "ok", "ok") as noisy, serving("ok") as other:
        for number in range(4):
            await voice_messages.post(noisy, sound("gate", f"noisy {number}"))
        await voice_messages.post(other, sound("other"))
        await gate.await_reached()
        gate.open()
        await until(noisy, "message.edited", lambda data: data.message.text == "noisy 3")
        assert transcriber.began == ["gate|noisy 0", "gate|noisy 1", "other", "gate|noisy 2", "gate|noisy 3"]


@looped
async def test_the_texts_of_a_burst_come_in_order() -> None:
    """Of two recordings that are transcribed at once, the second was understood first; its echo came first, too."""
    gate = Gate()
    transcriber = ScriptedTranscriber(gate=gate)
    voice_messages = VoiceMessages(transcriber, max_parallel=2)
    async with serving("ok", "ok", "ok") as session, serving("ok") as other:
        await voice_messages.post(session, sound("gate", "first"))
        await voice_messages.post(session, sound("second"))
        await gate.await_reached()
        await voice_messages.post(other, sound("other"))
        await until(other, "message.edited")  # the second is understood, and keeps no place in the line
        gate.open()
        await until(session, "message.edited", lambda data: data.message.text == "second")
        edited = [event.data.message.text for event in session.events() if isinstance(event.data, MessageEdited)]
        assert edited == ["first", "second"]


@looped
async def test_one_that_is_removed_meanwhile_is_not_transcribed_further() -> None:
    """It goes nowhere, what is behind it goes on, and the place is free for others."""
    gate = Gate()
    transcriber = ScriptedTranscriber(gate=gate)
    voice_messages = VoiceMessages(transcriber, max_parallel=1)
    async with serving("ok", "ok") as session:
        first = await voice_messages.post(session, sound("gate", "first"))
        second = await voice_messages.post(session, sound("second"))
        third = await voice_messages.post(session, sound("third"))
        await gate.await_reached()
        assert session.inbox.remove(second.id)  # it only waits
        assert session.inbox.remove(first.id)
        await until(session, "turn.finished")
        assert (first.state, second.state, third.state) == ("removed", "removed", "applied")
        assert transcriber.cancelled == ["gate|first"]
        assert said(session.history) == ["third"]
        assert echoes(session) == ['🎙️ "third"']


@looped
async def test_the_order_after_one_was_removed() -> None:
    """Texts of a session came out of order if a message between them had been removed while it waited."""
    first, second, fourth = Gate(), Gate(), Gate()
    voice_messages = VoiceMessages(ScriptedTranscriber(first=first, second=second, fourth=fourth), max_parallel=2)
    async with serving("ok", "ok", "ok", "ok") as session:
        await voice_messages.post(session, sound("first", "one"))
        await voice_messages.post(session, sound("second", "two"))
        third = await voice_messages.post(session, sound("three"))
        await voice_messages.post(session, sound("fourth", "four"))
        assert session.inbox.remove(third.id)
        second.open()
        await fourth.await_reached()  # the third was found to be removed, while the first has no text yet
        fourth.open()
        await asyncio.wait(voice_messages._tasks, return_when=asyncio.FIRST_COMPLETED)
        assert data_of(session, "message.edited") == []
        first.open()
        await until(session, "message.edited", lambda data: data.message.text == "four")
        assert [data.message.text for data in data_of(session, "message.edited")] == ["one", "two", "four"]


# -- stop phrases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["stop", "Stop.", " STOP! stop!", "Never mind…", "¡Stop, never mind!", "\uff53top"])
def test_a_stop_phrase_is_known_however_it_is_written(words: str) -> None:
    """Case, punctuation, repetition and width do not matter."""
    assert StopPhrases(STOPS).are_all(words)
    assert StopPhrases(STOPS).said_in(words)


@pytest.mark.parametrize("words", ["", "...", "stopping", "do not stop", "stop it", "never", "mind never", "nonstop"])
def test_other_words_are_no_stop_phrase(words: str) -> None:
    """A phrase within a sentence is part of that sentence."""
    assert not StopPhrases(STOPS).are_all(words)
    assert not StopPhrases(STOPS).said_in(words)
    assert not StopPhrases(()).are_all(words)


def test_a_stop_phrase_counts_as_a_sentence_of_its_own() -> None:
    """In the middle of other sentences it is said, and is not all."""
    phrases = StopPhrases((*STOPS, "", "don't"))
    text = "Wait a moment. Stop! Take the other one."
    assert (phrases.said_in(text), phrases.are_all(text)) == ("Stop", False)
    assert phrases.said_in("Well; don\u2019t.") == "don\u2019t"


@looped
async def test_a_stop_phrase_stops_the_turn_and_is_no_message() -> None:
    """The turn ends, with who said it on record; no model sees the word, and people see it once."""
    gate = Gate()
    voice_messages = VoiceMessages(ScriptedTranscriber(), stop_phrases=STOPS)
    async with serving(["one, two, ", gate]) as session:
        session.post("count")
        await gate.await_reached()
        waiting = session.post("and then?")
        receipt = await voice_messages.post(session, sound("Stop."), id="v")
        await heard(session, "v")
        end = await until(session, "turn.finished")
        assert (end.status, end.reason, end.detail) == ("interrupted", "stop", "voice message v said 'Stop'")
        assert (receipt.state, receipt.stopped) == ("removed", True)
        assert receipt.note == "it said 'Stop': the turn was stopped"
        assert waiting.state == "held"
        assert echoes(session) == ['🎙️ "Stop."']
        assert len(model_of(session).requests) == 1


@looped
async def test_what_comes_behind_a_spoken_stop_is_newer_than_it() -> None:
    """Who says stop, and at once types what to do instead, is answered: that was not there to be held."""
    first, words = Gate(), Gate()
    voice_messages = VoiceMessages(ScriptedTranscriber(words=words), stop_phrases=STOPS)
    async with serving(["one ", first], "instead") as session:
        session.post("begin")
        await first.await_reached()
        stop = await voice_messages.post(session, sound("words", "stop"))
        behind = session.post("do this instead")
        await words.await_reached()
        words.open()
        await done(session)
        assert (stop.state, stop.stopped, behind.state) == ("removed", True, "applied")
        assert said(session.history)[-1].endswith("do this instead")


@looped
async def test_a_stop_phrase_hurts_nothing_when_nothing_runs() -> None:
    """It stops nothing, says so, is no message, and the next message is answered."""
    voice_messages = VoiceMessages(ScriptedTranscriber(), stop_phrases=STOPS)
    async with serving("ok") as session:
        receipt = await voice_messages.post(session, sound("never mind"), id="v")
        await heard(session, "v")
        assert (receipt.state, receipt.stopped) == ("removed", False)
        assert receipt.note == "it said 'never mind': nothing was running"
        session.post("hello")
        await until(session, "turn.finished")
        assert said(session.history) == ["hello"]


@looped
async def test_a_stop_phrase_acts_before_the_rest_is_heard_and_the_rest_is_held() -> None:
    """The turn ends while the recording is still being transcribed; its other words wait for a person's decision."""
    first, rest = Gate(), Gate()
    voice_messages = VoiceMessages(ScriptedTranscriber(rest=rest), stop_phrases=STOPS)
    async with serving(["one ", first], "as you say") as session:
        session.post("begin")
        await first.await_reached()
        receipt = await voice_messages.post(
            session, sound("Wait. Stop.", "rest", "Take the blue one."), "steer", id="v"
        )
        await rest.await_reached()
        end = await until(session, "turn.finished")
        assert (end.reason, session.inbox[0].preparing) == ("stop", TRANSCRIBING)
        rest.open()
        await heard(session, "v")
        assert (receipt.state, session.inbox[0].text) == ("held", "Wait. Stop. Take the blue one.")
        session.release("v")
        await done(session)
        assert said(session.history)[-1].endswith("Wait. Stop. Take the blue one.")


@looped
async def test_a_spoken_stop_does_not_hit_what_began_after_another_stop() -> None:
    """Who presses stop while the word is still being transcribed, and goes on, is not stopped a second time by it."""
    first, words, second = Gate(), Gate(), Gate()
    voice_messages = VoiceMessages(ScriptedTranscriber(words=words), stop_phrases=STOPS)
    async with serving(["one ", first], ["two ", second]) as session:
        session.post("begin")
        await first.await_reached()
        spoken = await voice_messages.post(session, sound("words", "stop"), id="v")
        await words.await_reached()
        assert session.stop().stopped
        session.post("go on with this")
        await second.await_reached()
        words.open()
        await heard(session, "v")
        assert (spoken.state, spoken.stopped) == ("removed", False)
        assert session.is_running
        second.open()
        await done(session)


@looped
async def test_a_spoken_stop_does_not_wait_for_a_long_recording_before_it() -> None:
    """It is heard beside that one, stops the turn at once, and holds the long one, which came before it."""
    first, words = Gate(), Gate()
    voice_messages = VoiceMessages(ScriptedTranscriber(words=words))
    async with serving(["one ", first]) as session:
        session.post("begin")
        await first.await_reached()
        long = await voice_messages.post(session, sound("words", "a long story"), id="long")
        await words.await_reached()
        stop = await voice_messages.post(session, sound("Stop."))
        end = await until(session, "turn.finished")
        assert (end.reason, stop.stopped, long.state) == ("stop", True, "held")
        words.open()
        await heard(session, "long")
        assert [(letter.state, letter.text) for letter in session.inbox] == [("held", "a long story")]


@looped
async def test_a_spoken_stop_for_a_turn_that_is_over_stops_no_other() -> None:
    """expect_turn holds for what a message turns out to be as well."""
    gate = Gate()
    voice_messages = VoiceMessages(ScriptedTranscriber(), stop_phrases=STOPS)
    async with serving(["one ", gate]) as session:
        session.post("begin")
        await gate.await_reached()
        receipt = await voice_messages.post(session, sound("stop"), "interrupt", "v", "another turn")
        await heard(session, "v")
        assert (receipt.state, receipt.stopped) == ("removed", False)
        assert not session.cancel_token.is_cancelled
        gate.open()
        await done(session)


# -- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["session", "voice_messages"])
def test_what_an_end_cuts_off_is_transcribed_when_the_session_is_opened_again(what: str, tmp_path: Path) -> None:
    """The message stays in the store, with its place; the next who opens the session hears it, and it is there once."""
    path = tmp_path / "s.db"
    gate = Gate()

    async def before() -> None:
        transcriber = ScriptedTranscriber(gate=gate)
        voice_messages = VoiceMessages(transcriber, stop_phrases=STOPS)
        with SQLiteStore(path) as store:
            session = agent_of().session("s", store)
            await voice_messages.post(session, sound("gate", "said before"), "interrupt", "v")
            session.post("typed before")
            await gate.await_reached()
            if what == "session":
                await session.aclose()
                with pytest.raises(SessionClosed):
                    await voice_messages.post(session, sound("too late"))
            await voice_messages.close()
            assert transcriber.is_closed
            assert transcriber.cancelled
            assert not data_of(session, "message.edited")
            await session.aclose()

    async def after() -> None:
        voice_messages = VoiceMessages(ScriptedTranscriber(gate=gate))
        with SQLiteStore(path) as store:
            async with agent_of("ok").session("s", store, prepares=[TRANSCRIBING]) as session:
                gate.open()
                assert voice_messages.resume(session) == 1
                task = asyncio.ensure_future(session.serve())
                await until(session, "turn.finished")
                assert said(session.history) == ["said before", "typed before"]
                assert echoes(session) == ['🎙️ "said before"']
                assert voice_messages.resume(session) == 0
                await voice_messages.close()
            await task

    asyncio.run(asyncio.wait_for(before(), 20))
    asyncio.run(asyncio.wait_for(after(), 20))


_CRASH = """
import asyncio, os, sys
from halter import Agent
from halter.stores import SQLiteStore
from halter.testing import Gate, ScriptedModel
from halter.voice.voice_messages import VoiceMessages
from tests.support.scripted_transcriber import ScriptedTranscriber, sound

async def main():
    gate = Gate()
    session = Agent(ScriptedModel()).session("s", SQLiteStore(sys.argv[1]))
    voice_messages = VoiceMessages(ScriptedTranscriber(gate=gate))
    for number in range(3):
        await voice_messages.post(session, sound("gate", f"said {number}"), id=f"v{number}")
    await gate.await_reached()
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@looped
async def test_a_killed_program_has_lost_no_recording(tmp_path: Path) -> None:
    """What had its receipt is transcribed by the next one, in its order, once; sent again, it is the same message."""
    path = tmp_path / "s.db"
    ended = await asyncio.to_thread(run_python, _CRASH, str(path), env=os.environ | {"PYTHONPATH": os.getcwd()})
    assert ended.returncode == -9, ended.stderr
    gate = Gate()
    gate.open()
    transcriber = ScriptedTranscriber(gate=gate)
    voice_messages = VoiceMessages(transcriber)
    with SQLiteStore(path) as store:
        async with agent_of("ok", "ok", "ok").session("s", store, prepares=[TRANSCRIBING]) as session:
            assert voice_messages.resume(session) == 3
            assert (await voice_messages.post(session, sound("gate", "said 1"), id="v1")).state == "accepted"
            task = asyncio.ensure_future(session.serve())
            await until(session, "message.applied", lambda data: data.id == "v2")
            assert said(session.history) == ["said 0", "said 1", "said 2"]
            assert transcriber.began == ["gate|said 0", "gate|said 1", "gate|said 2"]
        await task


@looped
async def test_a_store_that_is_full_for_a_while_loses_nothing() -> None:
    """The words are written as soon as there is space, and then the message acts."""
    store = HookedStore()
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()
    voice_messages = VoiceMessages(ScriptedTranscriber())
    async with serving("ok", store=store) as session:
        store.fill_up("message.edited")
        fail = store.before

        def look(written: list[str]) -> None:
            if "message.edited" in written:
                loop.call_soon_threadsafe(refused.set)
            fail(written)

        store.before = look
        await voice_messages.post(session, sound("kept"))
        await refused.wait()
        store.empty()
        await until(session, "turn.finished")
        assert said(session.history) == ["kept"]
        assert kinds(session.events()).count("message.edited") == 1


@looped
async def test_who_sends_it_may_go_before_it_is_written() -> None:
    """A client that hangs up in the middle of the upload's last moment has its message transcribed all the same."""
    store = SlowStore()
    voice_messages = VoiceMessages(ScriptedTranscriber())
    session = agent_of("ok").session(None, store)
    sending = asyncio.ensure_future(voice_messages.post(session, sound("all the same")))
    await asyncio.to_thread(store.wait_for_write)
    sending.cancel()
    store.let_write()
    with pytest.raises(asyncio.CancelledError):
        await sending
    task = asyncio.ensure_future(session.serve())
    await until(session, "turn.finished")
    assert said(session.history) == ["all the same"]
    await session.aclose()
    await task


class SlowStore(MemoryStore):
    """A store whose first write waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self._begun, self._may = threading.Event(), threading.Event()

    blocks = True

    def commit(self, writes: Any) -> None:
        self._begun.set()
        assert self._may.wait(10)
        super().commit(writes)

    def wait_for_write(self) -> None:
        assert self._begun.wait(10)

    def let_write(self) -> None:
        self._may.set()


def test_a_recording_is_shown_as_it_was_heard_and_other_changes_are_not() -> None:
    """The echo is of transcriptions alone."""
    message = UserMessage.of("said", Audio(b"x"))
    assert echo(MessageEdited("m", message, prepared=TRANSCRIBING)) == '🎙️ "said"'
    assert not echo(MessageEdited("m", message))
