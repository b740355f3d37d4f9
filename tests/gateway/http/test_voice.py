"""Voice messages over HTTP: a form with a recording in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from halter import ToolContext, tool
from halter.gateway import GatewayLimits
from halter.testing import Gate
from halter.voice.transcriber import Transcriber
from halter.voice.voice_messages import VoiceMessages
from tests.support.gateway_client import Answer, Client, EventStream, gateway_of, kinds, sqlite
from tests.support.looped import looped
from tests.support.scripted_transcriber import ScriptedTranscriber, sound
from tests.support.sessions import call
from tests.support.sounds import packed

MESSAGES = "/v1/sessions/s/messages"


async def say(client: Client, data: bytes, kind: str = "audio/ogg", **fields: str) -> Answer:
    """Send a recording, as a browser sends it."""
    form = aiohttp.FormData(fields)
    form.add_field("audio", data, filename="message.ogg", content_type=kind)
    return await client.ask("POST", MESSAGES, data=form)


def spoken(*pieces: str) -> bytes:
    return sound(*pieces).data


def edited(events: list[dict[str, Any]]) -> list[str]:
    """What the transcriptions gave."""
    found = [event["data"] for event in events if event["data"].get("prepared") == "transcribing"]
    return [data["message"]["parts"][0]["text"] for data in found]


def test_a_browsers_recording_interrupts_and_is_answered() -> None:
    """Real speech, really transcribed: one transcription, one echo, one answer, and the turn before it was stopped."""
    data = packed("webm", "Take the blue one.")
    patient = aiohttp.ClientTimeout(total=110)  # the model that transcribes is loaded first

    async def main() -> None:
        gate = Gate()
        voice_messages = VoiceMessages(Transcriber())
        async with gateway_of(["I paint it red, ", gate], "Blue it is.", voice_messages=voice_messages) as (_, client):
            await client.create()
            await client.post("Paint the door.")
            await gate.await_reached()
            answers = [await say(client, data, "audio/webm;codecs=opus", mode="interrupt", id="v") for _ in range(2)]
            assert [answer.status for answer in answers] == [202, 202]
            assert answers[0].body["mode"] == "interrupt"
            async with client.http.get("/v1/sessions/s/events", timeout=patient) as response:
                events = await EventStream(response).until("turn.finished", 2)
            (words,) = edited(events)
            assert "blue" in words.lower()
            ends = [event["data"] for event in events if event["data"]["type"] == "turn.finished"]
            assert [(end["status"], end["reason"]) for end in ends] == [("interrupted", "interrupt"), ("done", "")]
            accepted = [event["data"] for event in events if event["data"]["type"] == "message.accepted"]
            assert [data["preparing"] for data in accepted] == ["", "transcribing"]

    asyncio.run(asyncio.wait_for(main(), 120))


@looped
async def test_a_form_of_curl_is_understood() -> None:
    """`curl -F audio=@message.ogg` sends no type of its own: the recording is known by its first bytes."""
    heads = (b"OggS", b"RIFF\0\0\0\0WAVE", b"fLaC", b"ID3", b"\xff\xfb", b"\0\0\0\x20ftypM4A ", b"\x1a\x45\xdf\xa3")
    async with gateway_of(voice_messages=VoiceMessages(ScriptedTranscriber())) as (_, client):
        await client.create()
        for number, head in enumerate(heads):
            answer = await say(client, head + b"|rest", "application/octet-stream", id=f"v{number}")
            assert answer.status == 202, (head, answer)
        refused = await say(client, b"GIF89a", "application/octet-stream")
        assert (refused.status, refused.body["field"]) == (415, "audio")


@looped
async def test_the_inbox_shows_what_is_being_done_to_it() -> None:
    """While it is transcribed it has its place, cannot be edited, and can be removed."""
    gate = Gate()
    async with gateway_of("ok", voice_messages=VoiceMessages(ScriptedTranscriber(gate=gate))) as (_, client):
        await client.create()
        assert (await say(client, spoken("gate", "words"), id="v")).body["state"] == "accepted"
        await client.post("behind", id="t")
        await gate.await_reached()
        first, second = (await client.ask("GET", "/v1/sessions/s/inbox")).body
        assert (first["id"], first["preparing"], first["parts"]) == ("v", "transcribing", {"audio": 1})
        assert (second["id"], second["preparing"]) == ("t", "")
        answer = await client.ask("PATCH", "/v1/sessions/s/inbox/v", {"text": "typed"})
        assert (answer.status, answer.body["type"]) == (409, "urn:halter:problem:preparing")
        assert (await client.ask("DELETE", "/v1/sessions/s/inbox/v")).body["state"] == "removed"
        assert edited(await client.finished()) == []


@looped
async def test_a_spoken_word_stops_the_turn() -> None:
    """The turn ends, nothing is sent to the model, and the message leaves the inbox with what was heard."""
    gate = Gate()
    async with gateway_of(["one, ", gate], voice_messages=VoiceMessages(ScriptedTranscriber())) as (gateway, client):
        await client.create()
        await client.post("count")
        await gate.await_reached()
        await say(client, spoken("Stop!"), id="v")
        async with client.events() as stream:
            events = await stream.until("turn.finished")
            while "message.removed" not in kinds(events):
                events += await stream.until("message.removed")
        assert edited(events) == ["Stop!"]
        end = next(event["data"] for event in events if event["data"]["type"] == "turn.finished")
        assert (end["reason"], end["detail"]) == ("stop", "voice message v said 'Stop'")
        assert (await client.ask("GET", "/v1/sessions/s/inbox")).body == []
        assert not gateway.registry.live_sessions["s"].is_busy


@looped
async def test_it_answers_the_question_that_is_open() -> None:
    """The tool gets the words."""

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.ask("Which one?"))

    async with gateway_of(call("ask"), "ok", tools=[ask], voice_messages=VoiceMessages(ScriptedTranscriber())) as (
        _,
        client,
    ):
        await client.create()
        await client.post("begin")
        async with client.events() as stream:
            await stream.until("question.asked")
        await say(client, spoken("the blue one"), mode="steer")
        (answered,) = (
            event["data"] for event in await client.finished() if event["data"]["type"] == "question.answered"
        )
        assert answered["value"] == "the blue one"


@looped
async def test_a_session_does_not_fall_asleep_while_it_is_transcribed_and_does_when_nothing_comes_of_it() -> None:
    """Nobody visits it; still the recording is heard. A word that only stops leaves nothing to stay awake for."""
    gate = Gate()
    async with gateway_of("ok", voice_messages=VoiceMessages(ScriptedTranscriber(gate=gate)), idle_after=0.01) as (
        gateway,
        client,
    ):
        await client.create()
        await say(client, spoken("gate", "stop"), id="v")
        await gate.await_reached()
        live = gateway.registry.live_sessions["s"]
        with live.session.subscribe() as listener:
            gateway.registry._on_timer(live)  # as when nobody has come for long
            assert gateway.registry.live_sessions["s"] is live
            gate.open()
            async for _ in listener:
                pass  # it ends when the session is closed: it has fallen asleep
        assert "s" not in gateway.registry.live_sessions
        events = await client.ask("GET", "/v1/sessions/s")
        assert (events.status, events.body["waiting"]) == (200, 0)


@looped
async def test_a_restart_goes_on_with_what_was_being_transcribed(tmp_path: Path) -> None:
    """Accepted with 202, and then the gateway ends: the next one transcribes it, and answers."""
    gate = Gate()
    with sqlite(tmp_path) as store:
        async with gateway_of(store=store, voice_messages=VoiceMessages(ScriptedTranscriber(gate=gate))) as (_, client):
            await client.create()
            assert (await say(client, spoken("gate", "said before"), id="v")).status == 202
            await gate.await_reached()
    gate.open()
    with sqlite(tmp_path) as store:
        async with gateway_of("ok", store=store, voice_messages=VoiceMessages(ScriptedTranscriber(gate=gate))) as (
            _,
            client,
        ):
            assert edited(await client.finished()) == ["said before"]


@looped
async def test_what_is_no_recording_is_refused_or_told() -> None:
    """A form that is wrong is answered with what is wrong; sound that is none is a message that says so."""
    async with gateway_of(
        "ok", voice_messages=VoiceMessages(ScriptedTranscriber()), limits=GatewayLimits(upload=10_000)
    ) as (
        _,
        client,
    ):
        await client.create()
        refused = await say(client, b"x", "text/html")
        assert (refused.status, refused.body["field"]) == (415, "audio")
        assert (await say(client, b"")).status == 422
        assert (await say(client, bytes(20_000))).status == 413
        assert (await say(client, spoken("fail"))).status == 202
        assert edited(await client.finished()) == ["[A voice message that could not be transcribed: the pen broke.]"]


@looped
async def test_a_recording_counts_as_a_turn_while_it_is_heard() -> None:
    """What would be one turn too many is refused, and not dropped; when the recording is removed there is room."""
    gate = Gate()
    limits = GatewayLimits(turns=1)
    async with gateway_of("ok", "ok", voice_messages=VoiceMessages(ScriptedTranscriber(gate=gate)), limits=limits) as (
        _,
        client,
    ):
        await client.create()
        await client.create("other")
        await say(client, spoken("gate"), id="v")
        await gate.await_reached()
        assert (await client.post("hello", "other")).status == 429
        await client.ask("DELETE", "/v1/sessions/s/inbox/v")
        assert (await client.post("hello", "other")).status == 202


def test_an_answer_is_said_if_that_is_wanted() -> None:
    """As ogg, for the last answer; before there is one that is said in words, and nothing is where it is off."""

    async def main() -> None:
        path = "/v1/sessions/s/speech"
        async with gateway_of("**Hello** there.", "***", spoken_replies=True) as (_, client):
            await client.create()
            assert (await client.ask("GET", path)).status == 409
            await client.post("hi")
            await client.finished()
            answer = await client.ask("GET", path)
            assert (answer.status, answer.headers["Content-Type"], answer.data[:4]) == (200, "audio/ogg", b"OggS")
            await client.post("hi")
            await client.finished(turns=2)
            assert (await client.ask("GET", path)).body["type"] == "urn:halter:problem:no-answer"
        async with gateway_of("ok") as (_, client):
            await client.create()
            assert (await client.ask("GET", path)).body["type"] == "urn:halter:problem:off"

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("who", ["local", "https://voice.lan/v1"])
def test_the_settings_say_who_transcribes(who: str) -> None:
    """The machine itself, or a server; nonsense is told with the place where it stands."""
    from halter.cli.settings import SettingsError, load
    from halter.cli.voice_factory import make_voice_messages
    from halter.views.stop_phrases import STOP_PHRASES

    configuration = load({"transcriber": who}, env={})
    assert configuration.settings.stop_phrases == STOP_PHRASES
    voice_messages = make_voice_messages(configuration)
    assert type(voice_messages._transcriber).__name__ == ("Transcriber" if who == "local" else "RemoteTranscriber")
    with pytest.raises(SettingsError, match=r"HALTER_TRANSCRIBER: transcriber must be .* not 'loca'"):
        make_voice_messages(load(env={"HALTER_TRANSCRIBER": "loca"}))
