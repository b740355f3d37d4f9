"""Messages, inboxes and answers over HTTP, as the contract has them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from halter import ToolContext, tool
from halter.models import ToolCall
from halter.models.types import Image, UserMessage
from halter.testing import Gate, ScriptedModel
from halter.toolbox import Checkpoints, Files
from halter.voice.voice_messages import VoiceMessages
from tests.support.gateway_client import Client, gateway_of, kinds
from tests.support.looped import looped
from tests.support.scripted_transcriber import ScriptedTranscriber


@looped
async def test_the_same_id_is_the_same_message() -> None:
    """Sent twice, also at the same time, it is applied once; the receipt is the same, and later tells what became."""
    async with gateway_of("One.") as (_, client):
        await client.create()
        answers = await asyncio.gather(*(client.post("Hi.", id="m1") for _ in range(5)))
        assert {answer.status for answer in answers} == {202}
        events = await client.finished()
        assert kinds(events).count("message.accepted") == 1
        again = await client.post("Something else.", id="m1")
        assert (again.status, again.body["state"]) == (202, "applied")
        assert again.body["turn_id"] == events[-1]["turn"]


@looped
async def test_modes_and_what_they_become() -> None:
    """A steer goes into the turn, one for a turn that is over is queued, and the receipt says so."""
    gate, second = Gate(), Gate()
    async with gateway_of(["One ", gate], ["Two ", second], "Three.") as (_, client):
        await client.create()
        idle = await client.post("Hi.", mode="steer")
        assert (idle.body["mode"], idle.body["note"]) == ("queue", "no turn was running: it starts the next one")
        await gate.await_reached()
        wrong = await client.post("Hm.", mode="steer", expect_turn="another", id="late")
        assert wrong.body["mode"] == "queue"
        assert "another was over" in wrong.body["note"]
        turn = (await client.ask("GET", "/v1/sessions/s")).body["turn"]["id"]
        steer = await client.post("No, this.", mode="steer", expect_turn=turn)
        assert (steer.body["mode"], steer.body["note"]) == ("steer", "")
        await second.await_reached()
        interrupt = await client.post("Stop that.", mode="interrupt")
        assert (interrupt.body["mode"], interrupt.body["stopped"]) == ("interrupt", True)
        events = await client.finished(turns=2)
        assert [each["data"]["status"] for each in events if each["data"]["type"] == "turn.finished"] == [
            "interrupted",
            "done",
        ]


@looped
async def test_the_inbox_can_be_read_and_changed() -> None:
    """What waits is listed; a text can be changed, a message taken out; what was applied is beyond both."""
    gate = Gate()
    model = ScriptedModel(["One ", gate], "Two.")
    async with gateway_of(model=model) as (_, client):
        await client.create()
        await client.post("Hi.", id="first")
        await gate.await_reached()
        for name in ("a", "b"):
            await client.post(f"text {name}", id=name)
        inbox = (await client.ask("GET", "/v1/sessions/s/inbox")).body
        assert [(each["id"], each["text"], each["state"]) for each in inbox] == [
            ("a", "text a", "accepted"),
            ("b", "text b", "accepted"),
        ]
        edited = await client.ask("PATCH", "/v1/sessions/s/inbox/a", {"text": "changed"})
        assert (edited.status, edited.body["text"]) == (200, "changed")
        removed = await client.ask("DELETE", "/v1/sessions/s/inbox/b")
        assert (removed.status, removed.body["state"]) == (200, "removed")
        for method, body in (("PATCH", {"text": "x"}), ("DELETE", None)):
            late = await client.ask(method, "/v1/sessions/s/inbox/first", body)
            assert (late.status, late.body["field"]) == (409, "message")
            none = await client.ask(method, "/v1/sessions/s/inbox/nothing", body)
            assert (none.status, none.body["field"]) == (404, "message")
        gate.open()
        await client.finished(turns=2)
        assert model.requests[1].messages[-1] == UserMessage.of("changed")


@looped
async def test_rollback_takes_the_last_turn_back() -> None:
    """The log keeps it, and says so."""
    async with gateway_of("One.") as (gateway, client):
        await client.create()
        nothing = await client.ask("POST", "/v1/sessions/s/rollback")
        assert nothing.body["note"] == "there is no turn to roll back"
        await client.post("Hi.")
        await client.finished()
        back = await client.ask("POST", "/v1/sessions/s/rollback")
        assert (back.status, back.body["mode"], back.body["note"]) == (200, "rollback", "")
        assert gateway.registry.live_sessions["s"].session.history == []


@looped
async def test_rollback_restores_files_and_can_be_undone(tmp_path: Path) -> None:
    """The diff comes first and changes nothing; the receipt says what was restored; the undo brings it back."""
    root = tmp_path / "workspace"
    root.mkdir()
    tools = Checkpoints(root, folder=tmp_path / "data").watch(Files(root).tools)
    arguments = '{"path": "a.txt", "content": "new"}'
    async with gateway_of(ToolCall("c1", "write_file", arguments), "Done.", tools=tools) as (_, client):
        await client.create()
        await client.post("Hi.")
        await client.finished()
        diff = await client.ask("GET", "/v1/sessions/s/changes")
        assert diff.body["files"] == [{"path": "a.txt", "change": "created", "kept": ""}]
        assert "+new" in diff.body["text"]
        bad = await client.ask("POST", "/v1/sessions/s/rollback", {"files": "yes"})
        assert (bad.status, bad.body["field"]) == (422, "files")
        back = await client.ask("POST", "/v1/sessions/s/rollback", {"files": True})
        assert (back.status, back.body["files"]["restored"], back.body["files"]["kept"]) == (200, ["a.txt"], {})
        assert not (root / "a.txt").exists()
        undone = await client.ask("POST", "/v1/sessions/s/rollback/undo")
        assert undone.body["restored"] == ["a.txt"]
        assert (root / "a.txt").read_text() == "new"


@looped
async def test_approvals_and_questions_are_answered() -> None:
    """Each is an event, and an answer reaches who asked; a second one, or one to nothing, is 404."""

    @tool(approval=True)
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.ask("Which?", ["red", "blue"]))

    async with gateway_of(ToolCall("c1", "ask"), "Done.", tools=[ask], approve="ask") as (_, client):
        await client.create()
        async with client.events() as stream:
            await client.post("Hi.")
            asked = (await stream.until("approval.asked"))[-1]["data"]["request"]["id"]
            path = "/v1/sessions/s/answers/"
            assert (await client.ask("POST", path + "nothing", {"value": True})).status == 404
            granted = await client.ask("POST", path + asked, {"value": True})
            assert (granted.status, granted.body) == (200, {"answered": True})
            question = (await stream.until("question.asked"))[-1]["data"]["id"]
            assert (await client.ask("POST", path + question, {"value": "blue"})).status == 200
            assert (await client.ask("POST", path + question, {"value": "red"})).status == 404
            events = await stream.until("turn.finished")
        outcome = next(each["data"]["outcome"] for each in events if each["data"]["type"] == "tool.finished")
        assert (outcome["status"], outcome["content"]) == ("completed", "blue")


@looped
async def test_a_message_with_a_picture_and_a_recording() -> None:
    """Parts of a form become parts of the message, in their order, beside its text; the inbox counts them.

    The recording is transcribed. Then the text can be changed, and the picture stays.
    """
    gate, words = Gate(), Gate()
    model = ScriptedModel(["One ", gate], "Two.")
    async with gateway_of(model=model, voice_messages=VoiceMessages(ScriptedTranscriber(words=words))) as (_, client):
        await client.create()
        await client.post("Hi.")
        await gate.await_reached()
        form = aiohttp.FormData()
        form.add_field("text", "What is this?")
        form.add_field("id", "m2")
        form.add_field("image", b"\x89PNG", filename="a.png", content_type="image/png")
        form.add_field("audio", b"words|Tell me.", filename="a.ogg", content_type="audio/ogg; codecs=opus")
        sent = await client.ask("POST", "/v1/sessions/s/messages", data=form)
        assert (sent.status, sent.body["id"]) == (202, "m2")
        [waiting] = (await client.ask("GET", "/v1/sessions/s/inbox")).body
        assert (waiting["text"], waiting["parts"]) == ("What is this?", {"image": 1, "audio": 1})
        words.open()
        async with client.events() as stream:
            await stream.until("message.edited")
        [waiting] = (await client.ask("GET", "/v1/sessions/s/inbox")).body
        assert (waiting["text"], waiting["parts"]) == ("What is this?\nTell me.", {"image": 1})
        assert (await client.ask("PATCH", "/v1/sessions/s/inbox/m2", {"text": "And this?"})).status == 200
        gate.open()
        await client.finished(turns=2)
        assert model.requests[1].messages[-1] == UserMessage.of("And this?", Image(b"\x89PNG", media_type="image/png"))


async def _send_form(client: Client, *fields: tuple[str, bytes, str | None]) -> tuple[int, str]:
    form = aiohttp.FormData()
    for name, data, kind in fields:
        form.add_field(name, data, filename="f", content_type=kind)
    answer = await client.ask("POST", "/v1/sessions/s/messages", data=form)
    return answer.status, answer.body.get("field", "")


@looped
async def test_forms_that_are_wrong() -> None:
    """Each is refused by the field that is wrong, and nothing is accepted."""
    async with gateway_of() as (gateway, client):
        await client.create()
        picture: Any = ("image", b"x", "image/png")
        assert await _send_form(client, ("image", b"x", "text/html")) == (415, "image")
        assert await _send_form(client, ("audio", b"x", "image/png")) == (415, "audio")
        assert await _send_form(client, ("audio", b"", "audio/ogg")) == (422, "audio")
        assert await _send_form(client, picture, ("mode", b"fast", None)) == (422, "mode")
        assert await _send_form(client, picture, ("colour", b"red", None)) == (422, "colour")
        assert await _send_form(client, picture, ("text", b"\xff", None)) == (422, "text")
        assert await _send_form(client, ("text", b" ", None)) == (422, "text")
        broken = await client.ask(
            "POST",
            "/v1/sessions/s/messages",
            data=b"--x\r\nnothing",
            headers={"Content-Type": "multipart/form-data; boundary=y"},
        )
        assert (broken.status, broken.body["field"]) in ((400, "body"), (422, "text"))
        without = await client.ask(
            "POST", "/v1/sessions/s/messages", data=b"x", headers={"Content-Type": "multipart/form-data"}
        )
        assert (without.status, without.body["field"]) == (400, "body")
        assert [event.kind for event in gateway.registry.store.read("s")] == ["session.created"]
