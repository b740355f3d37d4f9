"""Voice messages as people send them: real speech, through the real transcriber, into sessions that are at work."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import wave
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from halter import CancellationToken, Session, ToolContext, tool
from halter.models import Audio, UserMessage
from halter.testing import Gate
from halter.voice.transcriber import Recording, RemoteTranscriber, Segment, Transcriber
from halter.voice.voice_messages import VoiceMessages
from tests.support.sessions import call, data_of, kinds, model_of, said
from tests.support.slow_server import SlowServer
from tests.support.sounds import likeness, packed, spoken
from tests.support.voice_sessions import done, echoes, heard, serving, until
from tests.support.waiting import wait_until

BLUE = "Take the blue one."
FORMATS = {"ogg": "audio/ogg", "webm": "audio/webm", "m4a": "audio/mp4", "mp3": "audio/mpeg", "wav": "audio/wav"}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


class Counted(Transcriber):
    """The real one; it counts what it is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.pieces = 0

    async def segments(
        self, audio: Recording, *, token: CancellationToken | None = None
    ) -> AsyncGenerator[Segment, None]:
        self.calls += 1
        async for piece in super().segments(audio, token=token):
            self.pieces += 1
            yield piece


@pytest.fixture(scope="module")
def transcriber() -> Iterator[Counted]:
    made = Counted()  # one for all: to load the model takes seconds
    yield made
    made.close()


@pytest.fixture
def voice_messages(transcriber: Counted) -> VoiceMessages:
    transcriber.calls = transcriber.pieces = 0
    return VoiceMessages(transcriber, stop_phrases=("stop", "halt"))


def voice(text: str = BLUE, name: str = "ogg") -> Audio:
    return Audio(packed(name, text), FORMATS[name])


def last_words(session: Session) -> list[str]:
    """What the user said, without what the model is told about it; what is nearly that sentence is taken for it."""
    return [as_meant(text.splitlines()[-1]) for text in said(session.history)]


def as_meant(words: str) -> str:
    return BLUE if likeness(words, BLUE) >= 0.7 else words


def shown(session: Session) -> list[str]:
    """What people were shown, taken in the same way."""
    return [as_meant(each.removeprefix('🎙️ "').removesuffix('"')) for each in echoes(session)]


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_recording_is_understood(voice_messages: VoiceMessages, name: str) -> None:
    """What was said is what the model reads, and what the person sees, once; the recording is in the log."""

    async def main() -> None:
        async with serving("ok") as session:
            recording = Audio(packed(name), FORMATS[name])
            await voice_messages.post(session, recording)
            await done(session)
            (words,) = last_words(session)
            assert likeness(words) >= 0.6, words
            assert echoes(session) == [f'🎙️ "{words}"']
            assert data_of(session, "message.accepted")[0].message.parts == [recording]

    run(main())


def test_a_voice_interrupt_stops_the_turn_and_is_answered(voice_messages: VoiceMessages, transcriber: Counted) -> None:
    """One transcription, one echo, one answer; the turn that ran is stopped by it, and says so."""

    async def main() -> None:
        gate = Gate()
        async with serving(["I paint it red, ", gate], "Blue it is.") as session:
            session.post("Paint the door.")
            await gate.await_reached()
            receipt = await voice_messages.post(session, voice(), "interrupt", "v")
            again = await voice_messages.post(session, voice(), "interrupt", "v")
            await done(session)
            first, second = data_of(session, "turn.finished")
            assert (first.status, first.reason, second.status) == ("interrupted", "interrupt", "done")
            assert (receipt.stopped, receipt.state, again.message == receipt.message) == (True, "applied", True)
            assert shown(session) == [BLUE]
            assert transcriber.calls == 1
            assert last_words(session)[-1] == BLUE
            assert session.text == "Blue it is."
            assert len(model_of(session).requests) == 2

    run(main())


def test_a_voice_steer_goes_into_the_running_turn(voice_messages: VoiceMessages) -> None:
    """The step is broken off, and the same turn goes on with what was said."""

    async def main() -> None:
        gate = Gate()
        async with serving(["I paint it red, ", gate], "Blue it is.") as session:
            session.post("Paint the door.")
            await gate.await_reached()
            receipt = await voice_messages.post(session, voice(name="webm"), "steer")
            await done(session)
            assert (receipt.mode, receipt.state) == ("steer", "applied")
            assert kinds(session.events()).count("turn.finished") == 1
            assert last_words(session) == ["Paint the door.", BLUE]

    run(main())


def test_a_voice_message_answers_the_question_that_is_open(voice_messages: VoiceMessages) -> None:
    """The tool that asked gets the words, exactly as if they had been typed."""

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.ask("Which one?"))

    async def main() -> None:
        async with serving(call("ask"), "ok", tools=[ask]) as session:
            session.post("Begin.")
            await until(session, "question.asked")
            await voice_messages.post(session, voice(name="mp3"), "steer")
            await done(session)
            assert as_meant(data_of(session, "question.answered")[0].value) == BLUE
            assert last_words(session) == ["Begin."]
            assert shown(session) == [BLUE]

    run(main())


def test_texts_around_it_keep_their_order(voice_messages: VoiceMessages) -> None:
    """A text that was typed behind it does not pass it, however long it takes to understand it."""

    async def main() -> None:
        gate = Gate()
        async with serving([gate, "wait"], "ok") as session:
            session.post("Begin.")
            await gate.await_reached()
            session.post("first")
            await voice_messages.post(session, voice())
            session.post("third")
            await voice_messages.post(session, voice("Never mind."))
            session.post("fifth", id="last")
            gate.open()
            await until(session, "message.applied", lambda data: data.id == "last")
            assert last_words(session) == ["Begin.", "first", BLUE, "third", "Never mind.", "fifth"]

    run(main())


def test_a_spoken_stop_stops_the_turn(voice_messages: VoiceMessages) -> None:
    """As fast as it is understood; the model hears nothing of it, and the person sees it."""

    async def main() -> None:
        gate = Gate()
        async with serving(["I paint ", gate]) as session:
            session.post("Paint the door.")
            await gate.await_reached()
            receipt = await voice_messages.post(session, voice("Stop!"), id="v")
            await heard(session, "v")
            end = await until(session, "turn.finished")
            assert (end.status, end.reason) == ("interrupted", "stop")
            assert (receipt.state, receipt.stopped) == ("removed", True)
            assert [each.lower().count("stop") > 0 for each in echoes(session)] == [True]
            assert len(model_of(session).requests) == 1

    run(main())


def test_a_stop_in_the_middle_of_a_recording_does_not_wait_for_its_end(
    voice_messages: VoiceMessages, transcriber: Counted
) -> None:
    """The turn is over when a part of the recording is understood; the rest is kept, and held."""
    story = "The door is old and the wood is dark. "
    recording = spoken(f"{story} Stop. {story * 9}")

    async def main() -> None:
        gate = Gate()
        async with serving(["I paint ", gate]) as session:
            session.post("Paint the door.")
            await gate.await_reached()
            receipt = await voice_messages.post(session, Audio(recording), id="v")
            await until(session, "turn.finished")
            assert transcriber.pieces == 1
            assert session.inbox[0].preparing
            await heard(session, "v")
            assert transcriber.pieces > 1
            assert (receipt.state, receipt.stopped) == ("held", True)
            assert "stop" in session.inbox[0].text.lower()
            assert session.inbox[0].text.count("door") > 5

    run(main())


# -- what cannot be understood --------------------------------------------------------------------------------------


def quiet(seconds: float) -> bytes:
    """A WAV file in which nothing is said."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(48_000)
        writer.writeframes(bytes(int(seconds * 48_000) * 4))
    return file.getvalue()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: b"\x00garbage\xff" * 100, "cannot decode the audio"),
        (lambda: packed("m4a")[:-2_000], "cannot decode the audio"),
        (lambda: b"OggS", "cannot decode the audio"),
        (lambda: quiet(2), "no speech was recognized"),
    ],
    ids=["garbage", "truncated-m4a", "four-bytes", "silence"],
)
def test_what_cannot_be_understood_is_delivered_as_that(
    voice_messages: VoiceMessages, make: Callable[[], bytes], why: str
) -> None:
    """The model is told in words and can say so; nothing that it might refuse is in the conversation from then on."""
    data = make()

    async def main() -> None:
        async with serving("Say it again, please.", "Better.") as session:
            receipt = await voice_messages.post(session, Audio(data, "audio/ogg"))
            await done(session)
            (words,) = said(session.history)
            assert words.startswith(f"[A voice message that could not be transcribed: {why}")
            assert why in receipt.note
            assert len(echoes(session)) == 1
            session.post("once more")
            await until(session, "turn.finished", lambda _: kinds(session.events()).count("turn.finished") == 2)
            sent = [part for each in model_of(session).requests[1].messages for part in getattr(each, "parts", ())]
            assert not any(isinstance(part, Audio) for part in sent)
            assert data_of(session, "message.accepted")[0].message == UserMessage.of(Audio(data, "audio/ogg"))

    run(main())


def test_a_recording_that_breaks_off_is_understood_as_far_as_it_goes(voice_messages: VoiceMessages) -> None:
    """Half of an ogg file is half of what was said."""

    async def main() -> None:
        async with serving("ok") as session:
            whole = packed("ogg")
            await voice_messages.post(session, Audio(whole[: len(whole) // 2], "audio/ogg"))
            await done(session)
            (words,) = said(session.history)
            assert 0.1 < likeness(words) < 0.7, words

    run(main())


def test_a_recording_of_ten_megabytes_is_understood(voice_messages: VoiceMessages) -> None:
    """Most of it is silence: what was said in it is heard."""

    async def main() -> None:
        with wave.open(io.BytesIO(spoken(BLUE))) as reader:
            frames, rate = reader.readframes(reader.getnframes()), reader.getframerate()
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(rate)
            writer.writeframes(frames + bytes(10_000_000))
        async with serving("ok") as session:
            await voice_messages.post(session, Audio(file.getvalue()))
            await done(session)
            assert last_words(session) == [BLUE]

    run(main())


def test_a_transcription_that_takes_too_long_is_given_up(transcriber: Counted) -> None:
    """The message is delivered with a note; the transcriber is there for the next one."""

    async def main() -> None:
        voice_messages = VoiceMessages(transcriber, timeout=0.05)
        async with serving("ok") as session:
            receipt = await voice_messages.post(session, Audio(spoken("Many words are said here. " * 40)))
            await done(session)
            assert said(session.history) == [
                "[A voice message that could not be transcribed: transcription took longer than 0.05 seconds.]"
            ]
            assert receipt.note == "not transcribed: transcription took longer than 0.05 seconds"

    run(main())


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_death_of_the_worker_loses_no_message() -> None:
    """Killed in the middle of a recording: that message says so, and the next is understood by a new process."""

    async def main() -> None:
        transcriber = Counted()  # of its own: the process of another may be at work for somebody else
        voice_messages = VoiceMessages(transcriber)
        async with serving("ok", "ok") as session:
            pid = await transcriber._workers.run(os.getpid)
            await voice_messages.post(session, Audio(spoken("Many words are said here. " * 40)))
            await asyncio.to_thread(wait_until, lambda: transcriber.pieces > 0)
            used = cpu_seconds(pid)
            await asyncio.to_thread(wait_until, lambda: cpu_seconds(pid) > used + 0.05)  # it is at the next piece
            os.kill(pid, signal.SIGKILL)
            await done(session)
            (words,) = said(session.history)
            assert words.startswith("Many words")
            assert "[The rest of this voice message could not be transcribed: the worker process was killed" in words
            await voice_messages.post(session, voice(), id="v")
            assert as_meant((await heard(session, "v")).message.text) == BLUE
        await voice_messages.close()

    run(main())


def test_a_server_that_hangs_is_given_up_and_one_that_answers_is_heard() -> None:
    """An OpenAI-compatible server is used in the same way, and its connection is closed when it takes too long."""

    async def main(server: SlowServer) -> None:
        server.page("/v1/audio/transcriptions", f'{{"text": "{BLUE}"}}', "application/json")
        async with serving("ok", "ok") as session:
            await VoiceMessages(RemoteTranscriber(f"{server.url}/v1", "key")).post(session, voice())
            await done(session)
            slow = VoiceMessages(RemoteTranscriber(f"{server.url}/hang", "key"), timeout=3.0)
            await slow.post(session, voice(), id="v")
            text = (await heard(session, "v")).message.text
            assert text == "[A voice message that could not be transcribed: transcription took longer than 3 seconds.]"
            assert last_words(session)[0] == BLUE
        await asyncio.to_thread(server.wait_for_close, "/hang/audio/transcriptions")

    with SlowServer() as server:
        run(main(server))
