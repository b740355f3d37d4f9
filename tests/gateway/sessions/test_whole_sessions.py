"""What is done to whole sessions over HTTP: rename, another model, retry, branch, search, and what a face must show."""

from __future__ import annotations

from pathlib import Path

from halter import Agent, Compaction
from halter.gateway.sessions.branching import before_turn
from halter.models import ToolCall
from halter.models.types import Image, UserMessage
from halter.stores import MemoryStore, SQLiteStore
from halter.testing import Gate, ScriptedModel
from halter.toolbox import Checkpoints, Files, Terminal
from tests.support.gateway_client import Client, gateway_of
from tests.support.looped import looped

_PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452")


async def _said(client: Client, text: str, session: str = "s", turns: int = 1) -> None:
    assert (await client.post(text, session)).status == 202
    await client.finished(session, turns=turns)


@looped
async def test_a_renamed_session_keeps_its_title(tmp_path: Path) -> None:
    """The new title is in its events, in the list, and there after the gateway has started again."""
    path = tmp_path / "s.db"
    with SQLiteStore(path) as store:
        async with gateway_of("One.", store=store) as (_, client):
            await client.create()
            await _said(client, "Hello there.")
            renamed = await client.ask("PATCH", "/v1/sessions/s", {"title": "  My\n title "})
            assert (renamed.status, renamed.body["title"]) == (200, "My title")
            async with client.events() as stream:
                events = await stream.until("session.changed")
            assert events[-1]["data"]["title"] == "My title"
            blank = await client.ask("PATCH", "/v1/sessions/s", {"title": " "})
            assert (blank.status, blank.body["field"]) == (422, "title")
    with SQLiteStore(path) as store:
        async with gateway_of(store=store) as (_, client):
            listed = (await client.ask("GET", "/v1/sessions")).body["sessions"]
            assert [each["title"] for each in listed] == ["My title"]
            assert (await client.ask("GET", "/v1/sessions/s")).body["title"] == "My title"


@looped
async def test_another_model_answers_from_the_next_turn_on(tmp_path: Path) -> None:
    """Only models that the gateway has can be chosen; the choice stays after a new start, and for this session only."""
    path = tmp_path / "s.db"
    first, second = ScriptedModel("One.", name="first"), ScriptedModel("Two.", "Three.", name="second")
    with SQLiteStore(path) as store:
        async with gateway_of(agents=Agent(first, fallbacks=[second]), store=store) as (_, client):
            await client.create()
            agents = (await client.ask("GET", "/v1/agents")).body
            assert agents["models"] == ["first", "second"]
            wrong = await client.ask("PATCH", "/v1/sessions/s", {"model": "third"})
            assert (wrong.status, wrong.body["field"]) == (422, "model")
            changed = await client.ask("PATCH", "/v1/sessions/s", {"model": "second"})
            assert changed.body["model"] == "second"
            await _said(client, "Hi.")
            await client.create("other")
            assert (await client.ask("GET", "/v1/sessions/other")).body["model"] == "first"
    assert len(second.requests) == 1
    with SQLiteStore(path) as store:
        async with gateway_of(agents=Agent(first, fallbacks=[second]), store=store) as (_, client):
            assert (await client.ask("GET", "/v1/sessions/s")).body["model"] == "second"
            await _said(client, "Again.", turns=2)
    assert (len(first.requests), len(second.requests)) == (0, 2)


@looped
async def test_the_last_turn_is_tried_again() -> None:
    """Its message is sent again with its pictures, with another text if one is given; the turn before is gone."""
    model = ScriptedModel("One.", "Two.", "Three.")
    store = MemoryStore()
    with Agent(model).session("s", store) as session:
        await session.arun(["Look.", Image(_PIXEL, media_type="image/png")])
    async with gateway_of(agents=Agent(model), store=store) as (_, client):
        again = await client.ask("POST", "/v1/sessions/s/retry")
        assert again.status == 202, again
        await client.finished(turns=2)
        (sent,) = model.requests[-1].messages
        assert isinstance(sent, UserMessage)
        assert [type(part).__name__ for part in sent.parts] == ["Text", "Image"]
        await client.ask("POST", "/v1/sessions/s/retry", {"text": "Look closer."})
        events = await client.finished(turns=3)
        assert model.requests[-1].messages[-1].text == "Look closer."
        assert sum(event["data"]["type"] == "turn.rolled_back" for event in events) == 2
        assert (await client.create("empty")).status == 201
        nothing = await client.ask("POST", "/v1/sessions/empty/retry")
        assert nothing.status == 409


@looped
async def test_a_retry_and_a_rollback_are_of_the_turn_that_was_meant() -> None:
    """Asked for just before another turn began, they removed that turn: nobody had meant it."""
    model = ScriptedModel("One.", "Two.", "Three.")
    async with gateway_of(model=model) as (_, client):
        await client.create()
        await _said(client, "first")
        await _said(client, "second", turns=2)
        first, second = dict.fromkeys(event["turn"] for event in await client.finished(turns=2) if event["turn"])
        for path in ("retry", "rollback"):
            refused = await client.ask("POST", f"/v1/sessions/s/{path}", {"expect_turn": first})
            assert (refused.status, refused.body["field"]) == (409, "expect_turn"), refused
            assert refused.body["detail"] == f"turn {first} is not the last one any more"
            with_files = await client.ask("POST", f"/v1/sessions/s/{path}", {"expect_turn": first, "files": True})
            assert with_files.status == 409
        assert len(model.requests) == 2
        again = await client.ask("POST", "/v1/sessions/s/retry", {"expect_turn": second})
        assert again.status == 202
        events = await client.finished(turns=3)
        assert [event["turn"] for event in events if event["data"]["type"] == "turn.rolled_back"] == [second]


@looped
async def test_a_branch_begins_before_a_turn() -> None:
    """It has the conversation before that turn and sends the turn's message, changed; the first session stays."""
    model = ScriptedModel("One.", "Two.", "Other.", "Whole.")
    async with gateway_of(model=model) as (_, client):
        await client.create()
        await _said(client, "first")
        await _said(client, "second", turns=2)
        events = await client.finished(turns=2)
        turn = events[-1]["turn"]
        made = await client.ask("POST", "/v1/sessions/s/branch", {"turn": turn, "text": "changed", "id": "b"})
        assert (made.status, made.body["title"]) == (201, "first (branch)")
        await client.finished("b", turns=2)
        assert [message.text for message in model.requests[-1].messages] == ["first", "One.", "changed"]
        assert len(await client.finished(turns=2)) == len(events)
        copied = await client.finished("b")
        started = [next(each for each in log if each["data"]["type"] == "turn.started") for log in (events, copied)]
        assert started[0]["time"] == started[1]["time"]
        assert [event["seq"] for event in copied] == list(range(1, len(copied) + 1))
        whole = await client.ask("POST", "/v1/sessions/s/branch", {})
        assert whole.body["state"] == "idle"
        assert (await client.ask("POST", "/v1/sessions/s/branch", {"turn": "none"})).status == 404
        assert (await client.ask("POST", "/v1/sessions/s/branch", {"id": "b"})).status == 409


@looped
async def test_a_branch_leaves_out_what_waits() -> None:
    """A message that is still queued is the first session's, and no other turn's."""
    gate = Gate()
    async with gateway_of(["One ", gate], "Two.") as (gateway, client):
        await client.create()
        await client.post("first")
        await gate.await_reached()
        await client.post("later")
        events = gateway.registry.live_sessions["s"].session.events()
        kept = before_turn(events, events[-1].turn or events[-2].turn)
        assert [event.kind for event in kept] == []
        gate.open()
        await client.finished(turns=2)


@looped
async def test_sessions_are_searched() -> None:
    """By what was said and by their titles, for the sessions of the key; the last word may have only begun."""
    async with gateway_of("The halter is made of hemp.", "Nothing of it.") as (_, client):
        await client.create("a")
        await client.create("b")
        await _said(client, "What is it made of?", "a")
        await _said(client, "And this?", "b")
        await client.ask("PATCH", "/v1/sessions/b", {"title": "Leather"})

        async def found(words: str) -> list[str]:
            answer = await client.ask("GET", "/v1/sessions", params={"search": words})
            return [each["id"] for each in answer.body["sessions"]]

        assert await found("halter hem") == ["a"]
        assert await found("leath") == ["b"]
        assert await found("nowhere") == []
        assert await found('"') == []
        assert len(await found("")) == 2
        too_long = await client.ask("GET", "/v1/sessions", params={"search": "x" * 201})
        assert too_long.body["field"] == "search"


@looped
async def test_what_a_face_always_shows(tmp_path: Path) -> None:
    """The model, how full the context is, tokens and cost, the sandbox, the approvals, and what waits for an answer."""
    ask = ToolCall("1", "terminal", '{"command": "touch x"}')
    model = ScriptedModel(ask, "Done.")
    agent = Agent(model, Terminal(tmp_path).tools, approve="ask", compaction=Compaction(window=4_000))
    async with gateway_of(agents=agent) as (_, client):
        (one,) = (await client.ask("GET", "/v1/agents")).body["agents"]
        assert (one["sandbox"], one["approve"], one["tools"]) == ("off", "ask", ["terminal", "process"])
        await client.create()
        await client.post("Go.")
        async with client.events() as stream:
            asked = (await stream.until("approval.asked"))[-1]["data"]["request"]["id"]
            seen = (await client.ask("GET", "/v1/sessions/s")).body
            (listed,) = (await client.ask("GET", "/v1/sessions")).body["sessions"]
            assert (seen["questions"], listed["questions"], listed["state"]) == (1, 1, "running")
            assert seen["context"]["window"] == 4_000
            assert seen["context"]["tokens"] > 10
            await client.ask("POST", f"/v1/sessions/s/answers/{asked}", {"value": True})
            await stream.until("turn.finished")
        seen = (await client.ask("GET", "/v1/sessions/s")).body
        assert seen["questions"] == 0
        assert seen["usage"]["input_tokens"] > 0


@looped
async def test_compaction_can_be_asked_for() -> None:
    """It is done before the next request, as the session is served."""
    async with gateway_of("One. " * 300, "Two. " * 300, "The summary.", "Three.", "Four.") as (_, client):
        await client.create()
        await _said(client, "first " * 200)
        await _said(client, "second " * 200, turns=2)
        asked = await client.ask("POST", "/v1/sessions/s/compact")
        assert (asked.status, asked.body["scheduled"]) == (202, True)
        await _said(client, "third", turns=3)
        events = await client.finished(turns=3)
        assert [event["data"]["how"] for event in events if event["data"]["type"] == "context.compacted"]


@looped
async def test_the_changes_of_all_turns_are_one_diff(tmp_path: Path) -> None:
    """A file that two turns have changed is there once, from first to last; a removed turn is not in it."""
    (tmp_path / "a.txt").write_text("one\n")
    tools = Checkpoints(tmp_path).watch(Files(tmp_path).tools)

    def write(number: int, path: str, content: str) -> ToolCall:
        return ToolCall(str(number), "write_file", f'{{"path": "{path}", "content": "{content}"}}')

    script = (write(1, "a.txt", "two"), "One.", write(2, "a.txt", "three"), "Two.", write(3, "b.txt", "x"), "Three.")
    async with gateway_of(agents=Agent(ScriptedModel(*script), tools)) as (_, client):
        await client.create()
        for number in range(1, 4):
            await _said(client, f"change {number}", turns=number)
        await client.ask("POST", "/v1/sessions/s/rollback", {"files": True})
        diff = (await client.ask("GET", "/v1/sessions/s/changes", params={"scope": "session"})).body
        assert [(each["path"], each["change"]) for each in diff["files"]] == [("a.txt", "changed")]
        assert "-one" in diff["text"]
        assert "+three" in diff["text"]
        assert "two" not in diff["text"]
        wrong = await client.ask("GET", "/v1/sessions/s/changes", params={"scope": "x"})
        assert wrong.body["field"] == "scope"
