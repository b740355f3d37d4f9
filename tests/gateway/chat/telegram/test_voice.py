"""Voice messages to a Telegram bot: heard once, shown, and then messages like any other."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import av

from halter import ToolContext, tool
from halter.events import MessageApplied, MessageEdited, TurnFinished
from halter.models import Audio, ToolCall, UserMessage
from halter.stores import MemoryStore
from halter.testing import Gate
from halter.voice.transcriber import Transcriber
from halter.voice.voice_messages import VoiceMessages
from tests.support.looped import looped
from tests.support.scripted_transcriber import ScriptedTranscriber, sound
from tests.support.sounds import packed
from tests.support.telegram_bot import Desk, bot_of
from tests.support.telegram_server import BotServer


async def speak(server: BotServer, data: bytes, name: str = "v", **fields: Any) -> int:
    """Somebody sends a voice message."""
    server.files[name] = data
    voice = {"file_id": name, "file_unique_id": name, "duration": 1, "mime_type": "audio/ogg"}
    return await server.say(voice=voice, **fields)


def echoes(desk: Desk) -> list[str]:
    return [text for text in desk.server.texts() if text.startswith("🎙️")]


def test_a_voice_message_steers() -> None:
    """Real speech, really transcribed: it goes into the running turn, with one transcription and one echo."""

    async def main() -> None:
        gate = Gate()
        async with bot_of(
            ["I paint it red, ", gate], "Blue it is.", voice_messages=VoiceMessages(Transcriber())
        ) as desk:
            await desk.server.say("Paint the door.")
            await desk.server.read("I paint it red,")
            await speak(desk.server, packed("ogg", "Take the blue one."))
            echo = await desk.server.until(lambda: echoes(desk))
            assert "blue" in echo[0].lower()
            await desk.server.read("Blue it is.")
            assert len([data for data in desk.events() if isinstance(data, MessageEdited)]) == 1
            assert [data.mode for data in desk.events() if isinstance(data, MessageApplied)] == ["queue", "steer"]
            assert desk.server.texts() == ["I paint it red,", echo[0], "Blue it is."]

    asyncio.run(asyncio.wait_for(main(), 60))


@looped
async def test_a_voice_message_that_says_stop() -> None:
    """It stops the turn, is shown, and no model sees it."""
    gate = Gate()
    voice_messages = VoiceMessages(ScriptedTranscriber(), stop_phrases=["stop"])
    async with bot_of(["One, ", gate], voice_messages=voice_messages) as desk:
        await desk.server.say("Count.")
        await desk.server.read("One,")
        await speak(desk.server, sound("Stop!").data)
        await desk.server.read('🎙️ "Stop!"')
        await desk.server.read("One,", "⏹ stopped in")
        assert len(desk.model.requests) == 1


@tool
async def name_it(ctx: ToolContext) -> str:
    """Give it a name."""
    return f"named {await ctx.ask('Which name?')}"


@looped
async def test_a_voice_message_answers_a_question() -> None:
    """What was said is the answer of the question that is open."""
    async with bot_of(
        ToolCall("c1", "name_it", "{}"), "Nice.", tools=[name_it], voice_messages=VoiceMessages(ScriptedTranscriber())
    ) as desk:
        await desk.server.say("Name it.")
        asked = await desk.server.read("❓ Which name?")
        await speak(desk.server, sound("Rosinante").data)
        await desk.server.read("Nice.")
        await desk.server.until(lambda: asked.text.endswith("✅ Rosinante"))
        assert echoes(desk) == ['🎙️ "Rosinante"']


@looped
async def test_a_voice_message_that_cannot_be_understood() -> None:
    """The person and the model are told so, and nothing is dropped."""
    async with bot_of("Pardon?", voice_messages=VoiceMessages(ScriptedTranscriber())) as desk:
        await speak(desk.server, sound("fail").data)
        await desk.server.read("Pardon?")
        assert "could not be transcribed: the pen broke" in echoes(desk)[0]
        assert "could not be transcribed" in desk.said()[0]


@looped
async def test_a_voice_message_that_is_delivered_again() -> None:
    """It is transcribed and shown once, by this gateway and the next, which goes on with what was not done."""
    store, renderer, gate = MemoryStore(), ScriptedTranscriber(), Gate()
    async with BotServer() as server:
        server.acknowledges = False
        async with bot_of(server=server, store=store, voice_messages=VoiceMessages(ScriptedTranscriber(gate=gate))):
            await speak(server, sound("gate", "Hello").data)
            await gate.await_reached()
        async with bot_of("Hi.", server=server, store=store, voice_messages=VoiceMessages(renderer)) as desk:
            await server.read("Hi.")
            server.acknowledges = True
            await server.acknowledged(await server.say("/help"))
            assert len(renderer.began) == len(echoes(desk)) == len(desk.model.requests) == 1
            [message] = [each for each in desk.model.requests[0].messages if isinstance(each, UserMessage)]
            assert not any(isinstance(part, Audio) for part in message.parts)


@looped
async def test_a_word_that_means_stop() -> None:
    """Typed, it is the same as the command."""
    gate = Gate()
    async with bot_of(["One, ", gate], stop_phrases=["stop"]) as desk:
        await desk.server.say("Count.")
        await desk.server.read("One,")
        await desk.server.say("STOP!")
        await desk.server.read("⏹ Stopped in")
        [end] = [data for data in desk.events() if isinstance(data, TurnFinished)]
        assert end.reason == "stop"


def _seconds(sound: bytes) -> float:
    with av.open(io.BytesIO(sound), "r") as file:
        assert file.streams.audio[0].codec_context.name == "opus"
        return sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))


def test_answers_are_said_where_that_is_wanted() -> None:
    """As a voice message beside the text, however often it has to be sent; a turn that was stopped is not said."""

    async def main() -> None:
        gate = Gate()
        async with bot_of("Fine, thanks.", ["And you ", gate], "Good.", spoken_replies=True) as desk:
            busy = iter([(429, {"parameters": {"retry_after": 0}}), (502, {})])
            desk.server.refuse = lambda call: next(busy, None) if call.method == "sendVoice" else None
            await desk.server.say("How are you?")
            await desk.server.until(lambda: desk.server.voices)
            assert 0.5 < _seconds(desk.server.voices[0]) < 5
            assert desk.server.texts() == ["Fine, thanks."]
            await desk.server.say("Go on.")
            await gate.await_reached()
            await desk.server.say("/stop")
            await desk.server.read("stopped")
            await desk.server.say("And now?")
            await desk.server.until(lambda: len(desk.server.voices) == 2)
            assert desk.server.of("sendVoice") == ["sendVoice"] * 4

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_answer_is_not_said_when_the_next_turn_has_begun() -> None:
    """It takes a while to say much; who speaks meanwhile is not answered with what was before."""

    async def main() -> None:
        async with bot_of("It is a long story. " * 250, "Short.", spoken_replies=True) as desk:
            await desk.server.say("Tell me.")
            await desk.server.until(lambda: any(isinstance(each, TurnFinished) for each in desk.events()))
            await desk.server.say("Shorter!")
            await desk.server.until(lambda: desk.server.voices)
            assert _seconds(desk.server.voices[0]) < 5

    asyncio.run(asyncio.wait_for(main(), 60))


@looped
async def test_answers_are_not_said_where_nobody_wants_it() -> None:
    """It is a setting, and off."""
    async with bot_of("Fine.") as desk:
        await desk.server.say("How are you?")
        await desk.server.read("Fine.")
    assert "sendVoice" not in desk.server.asked
