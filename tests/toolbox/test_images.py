"""Making pictures and looking at them, and being stopped at it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from halter.cancel import abandoned
from halter.models.http.endpoint import Form, Upload
from halter.models.types import Image, Text
from halter.testing import FakeProvider, Moment, Stop, ToolCalls, answer, hang_mid_stream
from halter.toolbox.http.fetch import Net
from halter.toolbox.images import Media
from tests.support.leftovers import nothing_is_left  # noqa: F401  (for each test here)
from tests.support.slow_server import SlowServer
from tests.support.stopped_calls import (
    IN_THE_MIDDLE,
    PATIENT,
    STOP_OR_STEER,
    call,
    check_obeys,
    every_moment,
    text_of,
)

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10
JPEG = b"\xff\xd8\xff\xe0" + b"pixels" * 10
GENERATE = "/v1/images/generations"


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with SlowServer() as running:
        yield running


def media(server: SlowServer, workspace: Path, **options: object) -> Media:
    return Media(f"{server.url}/v1", "key-1234567", workspace=workspace, **options)  # type: ignore[arg-type]


def serve(server: SlowServer, *pictures: dict[str, str]) -> None:
    server.page(GENERATE, json.dumps({"data": pictures}), "application/json")


def packed(data: bytes) -> dict[str, str]:
    return {"b64_json": base64.b64encode(data).decode()}


def test_a_picture_comes_as_a_part(server: SlowServer, tmp_path: Path) -> None:
    """What the server packs into its answer is what the agent's model sees; it is asked as it wants."""
    serve(server, packed(PNG))
    outcome = call(media(server, tmp_path, extra={"quality": "low"}).image_generate, prompt="a horse", size="64x64")
    assert outcome.content == [Image(PNG)]
    [seen] = server.requests
    assert seen.headers["authorization"] == "Bearer key-1234567"
    assert json.loads(seen.body) == {
        "model": "gpt-image-1",
        "prompt": "a horse",
        "n": 1,
        "size": "64x64",
        "quality": "low",
    }
    assert not list(tmp_path.iterdir())


def test_pictures_are_written_into_the_workspace(server: SlowServer, tmp_path: Path) -> None:
    """One under its name, several numbered; in folders that did not exist."""
    serve(server, packed(PNG))
    outcome = call(media(server, tmp_path).image_generate, prompt="x", path="art/horse.png")
    assert outcome.content == [Text("Written to art/horse.png (image/png)."), Image(PNG)]
    assert (tmp_path / "art/horse.png").read_bytes() == PNG
    serve(server, packed(PNG), packed(JPEG))
    outcome = call(media(server, tmp_path, show=False).image_generate, prompt="x", path="two.png", count=2)
    assert (tmp_path / "two-1.png").read_bytes() == PNG
    assert (tmp_path / "two-2.png").read_bytes() == JPEG
    assert "two-2.png (image/jpeg)" in text_of(outcome)


def test_a_picture_at_an_address_is_fetched(server: SlowServer, tmp_path: Path) -> None:
    """From the server itself, also if that is a private one, and from nowhere else inside."""
    serve(server, {"url": server.page("/p.jpg", JPEG, "image/jpeg")})
    assert call(media(server, tmp_path).image_generate, prompt="x").content == [Image(JPEG, media_type="image/jpeg")]
    serve(server, {"url": "http://10.0.0.1/p.jpg"})
    outcome = call(media(server, tmp_path).image_generate, prompt="x")
    assert outcome.status == "failed"
    assert "10.0.0.1 is a private" in outcome.detail


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        ({"data": []}, "returned no image"),
        ({"data": [{}]}, "neither b64_json nor url"),
        ({"data": [{"b64_json": "!"}]}, "cannot be decoded"),
        ({"data": [packed(b"<svg>")]}, "not a supported image"),
        ([], "did not answer with a JSON object"),
    ],
)
def test_an_answer_without_a_picture_is_an_error(
    server: SlowServer, tmp_path: Path, answered: object, words: str
) -> None:
    """It says what was wrong with it."""
    server.page(GENERATE, json.dumps(answered), "application/json")
    outcome = call(media(server, tmp_path).image_generate, prompt="x", path="x.png")
    assert outcome.status == "failed"
    assert words in outcome.detail
    assert not list(tmp_path.iterdir())


def test_what_the_server_says_is_told_without_the_key(server: SlowServer, tmp_path: Path) -> None:
    """A refusal of the content policy is something that a model can act upon."""

    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no horses, key-1234567"}}, status=400)

    server.pages[GENERATE] = refuse
    outcome = call(media(server, tmp_path).image_generate, prompt="x")
    assert outcome.status == "failed"
    assert "no horses" in outcome.detail
    assert "key-1234567" not in outcome.detail


def test_nothing_is_written_outside_of_the_workspace(server: SlowServer, tmp_path: Path) -> None:
    """Not by dots, not by a full path, not by a link; and nothing is asked of the server."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "link").symlink_to(tmp_path)
    for path in ("../x.png", "/tmp/x.png", "link/x.png"):
        outcome = call(media(server, workspace).image_generate, prompt="x", path=path)
        assert "out of the workspace" in outcome.detail
    assert not server.requests
    assert [each.name for each in tmp_path.iterdir()] == ["work"]


def test_a_directory_swapped_for_a_link_leads_nowhere(server: SlowServer, tmp_path: Path) -> None:
    """If somebody swaps the directory for a link while the server draws, nothing is written outside."""
    workspace, outside = tmp_path / "work", tmp_path / "outside"
    (workspace / "pictures").mkdir(parents=True)
    outside.mkdir()

    async def draw(_request: web.Request) -> web.Response:
        (workspace / "pictures").rmdir()
        (workspace / "pictures").symlink_to(outside)
        return web.json_response({"data": [packed(PNG)]})

    server.pages[GENERATE] = draw
    outcome = call(media(server, workspace).image_generate, prompt="x", path="pictures/x.png")
    assert outcome.status == "failed"
    assert "out of the workspace" in outcome.detail
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("reason", STOP_OR_STEER)
@every_moment
@pytest.mark.parametrize("where", ["answer", "body", "address"])
def test_making_a_picture_is_stopped(
    server: SlowServer, tmp_path: Path, where: str, moment: Moment, reason: str
) -> None:
    """Whenever the stop comes: the server sees the end of the request, and no file is left."""
    waiting = GENERATE
    if moment == "end":
        serve(server, packed(PNG))
    elif where == "answer":
        server.pages[GENERATE] = _hang
    elif where == "body":
        waiting = "/trickle/images/generations"
    else:
        waiting = "/trickle"
        serve(server, {"url": f"{server.url}/trickle?type=image/png"})
    base = "/trickle" if waiting.startswith("/trickle/") else "/v1"
    tools = Media(server.url + base, "none", workspace=tmp_path)
    with ToolCalls(tools.image_generate, grace=PATIENT) as calls:
        stop = Stop(reason, moment, wait=lambda: is_there(server, waiting))
        outcome = calls.call_stopped(stop, "image_generate", prompt="a horse", path="horse.png")
    check_obeys(outcome, moment, reason)
    if moment == "before":
        assert not server.requests
    if moment in IN_THE_MIDDLE:
        assert outcome.status == "cancelled"
        server.wait_for_close(waiting)
    assert [each.name for each in tmp_path.iterdir()] == (["horse.png"] if moment == "end" else [])
    assert len(abandoned) == 0


def is_there(server: SlowServer, path: str) -> None:
    """Wait until the request has come, and some of the answer is out if it trickles."""
    server.wait_for_request(path)
    if path.startswith("/trickle"):
        server.wait(lambda seen: any(each.path == path and each.pieces > 3 for each in seen))


async def _hang(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_picture_of_the_workspace_is_looked_at(tmp_path: Path) -> None:
    """The model is given its bytes and the question."""
    (tmp_path / "a.png").write_bytes(JPEG)  # the name is wrong, the bytes count
    with FakeProvider() as provider:
        provider.script(answer("a horse"))
        tools = Media(provider.openai_url, "none", workspace=tmp_path, vision="seer")
        assert text_of(call(tools.vision_analyze, image="a.png", question="what is it?")) == "a horse"
        [request] = provider.requests
    assert request.body["model"] == "seer"
    [message] = request.body["messages"]
    assert message["content"][0] == {"type": "text", "text": "what is it?"}
    assert message["content"][1]["image_url"]["url"].startswith("data:image/jpeg;base64,")


def test_a_picture_at_an_address_is_looked_at(server: SlowServer, tmp_path: Path) -> None:
    """It is fetched here, by the rules, and not by the provider."""
    url = server.page("/a.png", PNG, "image/png")
    with FakeProvider() as provider:
        provider.script(answer("a horse"))
        tools = Media(provider.openai_url, "none", workspace=tmp_path, net=Net(allow=["127.0.0.1"]))
        assert text_of(call(tools.vision_analyze, image=url, question="what is it?")) == "a horse"
        tools = Media(provider.openai_url, "none", workspace=tmp_path)
        assert "is refused" in call(tools.vision_analyze, image=url, question="what is it?").detail
        missing = Media(provider.openai_url, "none", workspace=tmp_path, net=Net(allow=["127.0.0.1"]))
        assert "404" in call(missing.vision_analyze, image=f"{server.url}/none", question="?").detail
        assert len(provider.requests) == 1


def test_what_is_no_picture_is_not_sent(tmp_path: Path) -> None:
    """Nor what is not there, outside, or without a name."""
    (tmp_path / "a.png").write_bytes(b"text")
    tools = Media("http://127.0.0.1:1", "none", workspace=tmp_path)
    for image, words in (
        ("a.png", "not a supported image"),
        ("b.png", "No such file"),
        ("../a.png", "out of the workspace"),
        (" ", "No such file"),
    ):
        outcome = call(tools.vision_analyze, image=image, question="?")
        assert outcome.status == "failed"
        assert words in outcome.detail


@pytest.mark.parametrize("reason", STOP_OR_STEER)
@every_moment
def test_looking_is_stopped_with_what_was_said(tmp_path: Path, moment: Moment, reason: str) -> None:
    """Whenever the stop comes: the words so far are kept, and the provider sees the end."""
    (tmp_path / "a.png").write_bytes(PNG)
    with FakeProvider() as provider:
        whole = "one two three four five"
        provider.script(answer(whole) if moment == "end" else hang_mid_stream(after=3, text=whole))
        tools = Media(provider.openai_url, "none", workspace=tmp_path)
        with ToolCalls(tools.vision_analyze, grace=PATIENT) as calls:
            stop = Stop(reason, moment, wait=lambda: provider.wait_for_pieces(3))
            outcome = calls.call_stopped(stop, "vision_analyze", image="a.png", question="count")
        check_obeys(outcome, moment, reason)
        if moment == "before":
            assert not provider.requests
        if moment in IN_THE_MIDDLE:
            assert (whole * 9).startswith(text_of(outcome))
            provider.wait_for_close()
            assert len(provider.requests) == 1
        if moment == "end":
            assert text_of(outcome) == whole


def test_a_form_is_written_as_browsers_do() -> None:
    """A name cannot end its header."""
    kind, data = Form({"model": "m"}, {"file": Upload('a"b\r\nX: y.wav', b"\0\1", "audio/wav")}).encode()
    boundary = kind.partition("boundary=")[2].encode()
    assert data.count(b"--" + boundary) == 3
    assert b'name="file"; filename="abX: y.wav"\r\nContent-Type: audio/wav\r\n\r\n\0\1\r\n' in data
