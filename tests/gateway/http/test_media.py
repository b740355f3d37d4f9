"""Pictures and recordings: events say where they are, and there they can be fetched."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from halter import Agent, tool
from halter.events import Event, MessageAccepted
from halter.events.tools import ToolFinishedLate
from halter.gateway.http.event_feed import read_log
from halter.gateway.http.media import find_media, is_sound, replace_media
from halter.models import ToolCall
from halter.models.types import Audio, Image, Text, UserMessage
from halter.testing import ScriptedModel
from halter.tools.outcome import LateEnd, ToolOutcome
from halter.views.event_json import encode_event
from halter.voice.voice_messages import VoiceMessages
from tests.support.gateway_client import gateway_of, sqlite
from tests.support.looped import looped
from tests.support.scripted_transcriber import ScriptedTranscriber

_PICTURE = b"\x89PNG" + bytes(range(256)) * 4_000
_SOUND = b"words|Tell me."


@tool
def shoot() -> list[Any]:
    """Make two pictures."""
    return ["Two of them:", Image(b"first"), Image(b"second", media_type="text/html")]


def parts_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All parts that have an address, wherever they are in the events."""
    found = []
    todo: list[Any] = list(events)
    while todo:
        each = todo.pop(0)
        if isinstance(each, dict):
            found += [each] if "href" in each else []
            todo += each.values()
        elif isinstance(each, list):
            todo += each
    return found


@looped
async def test_a_picture_and_a_recording_are_fetched_from_where_the_event_says() -> None:
    """Its events stay small, over both ways; what is fetched is what was sent, and a browser does no more with it."""
    async with gateway_of("A cat.", voice_messages=VoiceMessages(ScriptedTranscriber())) as (_, client):
        await client.create("s:1")
        form = aiohttp.FormData()
        form.add_field("image", _PICTURE, filename="a", content_type="image/webp")
        form.add_field("audio", _SOUND, filename="b", content_type="audio/ogg; codecs=opus")
        assert (await client.ask("POST", "/v1/sessions/s:1/messages", data=form)).status == 202
        events = await client.finished("s:1")
        assert len(msgspec.json.encode(events)) < 10_000
        picture, sound, *rest = parts_in(events)
        assert picture == {"type": "image", "media_type": "image/webp", "bytes": len(_PICTURE), "href": picture["href"]}
        assert (sound["type"], sound["media_type"], sound["bytes"]) == ("audio", "audio/ogg", len(_SOUND))
        assert rest  # those of the message as it is when it has been transcribed
        for part, data in ((picture, _PICTURE), (sound, _SOUND)):
            answer = await client.ask("GET", part["href"])
            assert (answer.status, answer.data) == (200, data)
            assert answer.headers["Content-Type"] == part["media_type"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "sandbox" in answer.headers["Content-Security-Policy"]
        async with client.http.ws_connect("/v1/sessions/s:1/ws") as socket:
            told: list[dict[str, Any]] = []
            while not told or told[-1]["data"]["type"] != "turn.finished":
                told.append(await socket.receive_json(timeout=10))
            assert told == events


@looped
async def test_pictures_of_results_have_addresses_too() -> None:
    """Each its own; one that says that it is something else is bytes to a browser, and no page."""
    async with gateway_of(ToolCall("c", "shoot", "{}"), "There.", tools=[shoot]) as (_, client):
        await client.create()
        await client.post("Shoot.")
        first, second = parts_in(await client.finished())
        assert (await client.ask("GET", first["href"])).data == b"first"
        answer = await client.ask("GET", second["href"])
        assert (answer.data, answer.headers["Content-Type"]) == (b"second", "application/octet-stream")


@looped
async def test_what_is_not_there_is_not_found() -> None:
    """No such session, event or part: 404. What is no number: 422."""
    async with gateway_of("Yes.") as (_, client):
        await client.create()
        await client.post("Hi.")
        await client.finished()
        for place in ("s/media/2/1", "s/media/2/0", "s/media/0/1", "s/media/99/1", "nobody/media/1/1"):
            assert (await client.ask("GET", f"/v1/sessions/{place}")).status == 404, place
        for place, field in (("s/media/x/1", "event"), ("s/media/2/-1", "number"), ("s/media/99999999999/1", "event")):
            answer = await client.ask("GET", f"/v1/sessions/{place}")
            assert (answer.status, answer.body["field"]) == (422, field), place


def test_those_of_a_late_end_are_told_apart_from_those_before() -> None:
    """An abandoned call may have shown something, and then more: each has its number."""
    late = LateEnd(ended_at=2.0, seconds=1.0, content=[Image(b"late")])
    outcome = ToolOutcome(call_id="c", name="shoot", status="abandoned", content=[Text("a"), Image(b"soon")], late=late)
    event = Event(7, 1.0, "a/b c", "t", ToolFinishedLate(outcome))
    told = msgspec.to_builtins(replace_media(event))
    hrefs = {part["href"] for part in parts_in([told])}
    assert hrefs == {"/v1/sessions/a%2Fb%20c/media/7/1", "/v1/sessions/a%2Fb%20c/media/7/2"}
    found = [find_media(event, number) for number in (0, 1, 2, 3)]
    assert [each.data if each is not None else None for each in found] == [None, b"late", b"soon", None]


def test_what_has_no_bytes_is_told_as_it_is() -> None:
    """A text, and a picture that is somewhere else."""
    message = UserMessage.of("Look.", Image(url="https://example.com/a.png"))
    event = Event(1, 1.0, "s", "", MessageAccepted("m", "queue", message))
    assert replace_media(event) is event
    assert find_media(event, 1) is None
    assert find_media(Event(2, 1.0, "s", "", MessageAccepted("n", "queue", UserMessage.of(Audio(b"x")))), 1) is not None


@pytest.mark.parametrize("kind", ["audio/", "audio/ogg\r\nX: y", "audio/Ogg", "text/html", "audio/" + "x" * 41])
def test_what_is_no_type_of_sound(kind: str) -> None:
    """It would stand in a header."""
    assert not is_sound(kind)


def test_a_replay_has_few_pictures_in_memory(tmp_path: Path) -> None:
    """A client that came back to a log with many pictures made the gateway load all of them at once."""
    size, count = 500_000, 100
    with sqlite(tmp_path) as store:
        with Agent(ScriptedModel()).session("s", store) as session:
            for number in range(count):
                session.post([str(number), Image(bytes(size), media_type="image/png")])
        tracemalloc.start()
        events = read_log(store, "s", 0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert [event.seq for event in events] == list(range(1, count + 1))
    assert all(b"href" in encode_event(event) for event in events)
    assert peak < size * count
