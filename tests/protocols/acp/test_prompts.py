"""`halter acp`: prompts, answers, tool calls and approvals, with the SDK's own client."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import acp
import pytest
from acp.schema import (
    AgentPlanUpdate,
    AgentThoughtChunk,
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    SessionInfoUpdate,
    TextResourceContents,
)

from halter._version import __version__
from halter.events import ApprovalAnswered, SessionCreated
from halter.models import ToolCall
from halter.testing import FakeProvider, answer, status, tool_calls
from tests.support.acp_client import Editor, ask, editing, opened
from tests.support.cli_program import Home


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("1", name, json.dumps(arguments))


def test_an_answer_is_streamed(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """The pieces of an answer come before the end of its prompt, in order; thoughts are told from words."""
    provider.script(answer(chunks=["It ", "is ", "42."], reasoning="Six times seven."))

    async def scenario() -> None:
        editor = Editor()
        async with editing(home, editor) as (connection, process):
            info = await connection.initialize(protocol_version=1)
            assert (info.protocol_version, info.agent_info.version) == (1, __version__)
            assert info.agent_capabilities.load_session
            session = await opened(connection, workspace)
            result = await ask(connection, session, "What is 6 times 7?")
            assert result.stop_reason == "end_turn"
            assert editor.text == "It is 42."
            thoughts = [each.content.text for each in editor.updates if isinstance(each, AgentThoughtChunk)]
            assert "".join(thoughts) == "Six times seven."
            titles = [each.title for each in editor.updates if isinstance(each, SessionInfoUpdate)]
            assert titles == ["What is 6 times 7?"]
        assert process.returncode == 0

    asyncio.run(scenario())
    first = home.events()[0].data
    assert first == SessionCreated("halter", workspace=str(workspace))
    assert "What is 6 times 7?" in home.run("sessions").out


def test_a_later_version_of_the_protocol_is_answered_with_ours(home: Home) -> None:
    """The client is told the version that is spoken, whatever it asked for."""

    async def scenario() -> None:
        async with editing(home, Editor()) as (connection, _):
            assert (await connection.initialize(protocol_version=7)).protocol_version == 1

    asyncio.run(scenario())


def test_tools_work_in_the_folder_of_the_session(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A tool call goes from pending to completed, names its file, and shows the change as a diff."""
    (workspace / "notes.txt").write_text("one\ntwo\n")
    provider.script(
        tool_calls([call("read_file", path="notes.txt")]),
        tool_calls([call("patch", path="notes.txt", changes="@@ -1,2 +1,2 @@\n one\n-two\n+three\n")]),
        answer("Done."),
    )

    async def scenario() -> None:
        editor = Editor()
        async with editing(home, editor) as (connection, _):
            session = await opened(connection, workspace)
            assert (await ask(connection, session, "Change it.")).stop_reason == "end_turn"
        assert [each[-1] for each in editor.calls.values()] == ["completed", "completed"]
        assert all(each[0] == "pending" for each in editor.calls.values())
        assert editor.last("locations")[0].path == str(workspace / "notes.txt")
        [diff] = editor.last("content")
        assert (diff.type, diff.path) == ("diff", str(workspace / "notes.txt"))
        assert (diff.old_text, diff.new_text) == ("one\ntwo\n", "one\nthree\n")
        assert editor.last("raw_input")["path"] == "notes.txt"

    asyncio.run(scenario())
    assert (workspace / "notes.txt").read_text() == "one\nthree\n"


def test_a_to_do_list_is_a_plan(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """What the model writes into its to-do list is shown as the plan."""
    provider.script(
        tool_calls([call("todo", add=["read", "write"])]),
        tool_calls([call("todo", number=1, state="done")]),
        answer(""),
    )

    async def scenario() -> list[Any]:
        editor = Editor()
        async with editing(home, editor) as (connection, _):
            await ask(connection, await opened(connection, workspace), "Plan.")
        return [each for each in editor.updates if isinstance(each, AgentPlanUpdate)]

    plans = asyncio.run(scenario())
    shown = [[(each.content, each.status) for each in plan.entries] for plan in plans]
    assert shown == [[("read", "pending"), ("write", "pending")], [("read", "completed"), ("write", "pending")]]


@pytest.mark.parametrize(
    ("choose", "is_run", "note"), [("y", True, ""), ("s", True, ""), ("n", False, ""), ("nonsense", False, "")]
)
def test_commands_need_permission(
    home: Home, provider: FakeProvider, workspace: Path, choose: str, is_run: bool, note: str
) -> None:
    """A command that may change something runs if the user allows it, and only then; the whole command is shown."""
    provider.script(tool_calls([call("terminal", command="touch made")]), answer("Well."))

    async def scenario() -> None:
        editor = Editor(choose)
        async with editing(home, editor) as (connection, _):
            session = await opened(connection, workspace)
            assert (await ask(connection, session, "Make it.")).stop_reason == "end_turn"
        [(asked, options)] = editor.asked
        assert [(each.option_id, each.kind) for each in options] == [
            ("y", "allow_once"),
            ("s", "allow_always"),
            ("n", "reject_once"),
        ]
        assert asked.tool_call_id in editor.calls
        assert asked.content is not None
        assert "command: touch made" in asked.content[0].content.text
        assert [each[-1] for each in editor.calls.values()] == ["completed" if is_run else "failed"]

    asyncio.run(scenario())
    assert (workspace / "made").exists() is is_run
    [answered] = [each.data for each in home.events() if isinstance(each.data, ApprovalAnswered)]
    assert (answered.granted, answered.by) == (is_run, "the ACP client")


def test_permission_for_the_session_is_asked_once(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """What is allowed for the session is not asked again."""
    script = [tool_calls([call("terminal", command=f"touch {each}")]) for each in "ab"]
    provider.script(*script, answer("Done."))

    async def scenario() -> int:
        editor = Editor("s")
        async with editing(home, editor) as (connection, _):
            await ask(connection, await opened(connection, workspace), "Make them.")
        return len(editor.asked)

    assert asyncio.run(scenario()) == 1
    assert {each.name for each in workspace.iterdir()} == {"a", "b"}


def test_a_choice_answers_a_question(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """The choices of a question are the options of a request; a question without any is not left open."""
    provider.script(
        tool_calls([call("clarify", question="Which?", choices=["red", "blue"])]),
        tool_calls([call("clarify", question="Why?")]),
        answer("Thanks."),
    )

    async def scenario() -> None:
        editor = Editor("1")
        async with editing(home, editor) as (connection, _):
            session = await opened(connection, workspace)
            assert (await ask(connection, session, "Ask me.")).stop_reason == "end_turn"
        assert [each.name for each in editor.asked[0][1]] == ["red", "blue", "No answer"]

    asyncio.run(scenario())
    results = [each["content"] for each in provider.requests[2].body["messages"] if each["role"] == "tool"]
    assert results[0] == "blue"
    assert "nobody can be asked" in results[1]


class _FormEditor(Editor):
    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        self.updates.append(message)
        return {"action": "accept", "content": {"answer": "Because."}}


def test_a_form_answers_a_question(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """An editor that has forms is asked with one."""
    provider.script(tool_calls([call("clarify", question="Why?")]), answer("Thanks."))

    async def scenario() -> None:
        editor = _FormEditor()
        async with editing(home, editor) as (connection, _):
            capabilities = acp.schema.ClientCapabilities.model_validate({"elicitation": {"form": {}}})
            await connection.initialize(protocol_version=1, client_capabilities=capabilities)
            await ask(connection, await opened(connection, workspace), "Ask me.")
        assert "Why?" in editor.updates

    asyncio.run(scenario())
    assert provider.requests[1].body["messages"][-1]["content"] == "Because."


def test_every_kind_of_content_reaches_the_model(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """Text, images, sound, files and links of a prompt become parts of the message, in order."""
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    prompt = [
        acp.text_block("Look:"),
        ImageContentBlock(type="image", data=data, mime_type="image/png"),
        AudioContentBlock(type="audio", data=base64.b64encode(b"RIFF").decode(), mime_type="audio/wav"),
        EmbeddedResourceContentBlock(
            type="resource", resource=TextResourceContents(uri="file:///a%20b.py", text="print(1)")
        ),
        EmbeddedResourceContentBlock(
            type="resource", resource=BlobResourceContents(uri="file:///c.png", blob=data, mime_type="image/png")
        ),
        ResourceContentBlock(type="resource_link", uri="file:///d.pdf", name="d.pdf"),
    ]

    async def scenario() -> None:
        async with editing(home, Editor()) as (connection, _):
            session = await opened(connection, workspace)
            assert (await connection.prompt(session_id=session, prompt=prompt)).stop_reason == "end_turn"

    asyncio.run(scenario())
    content = provider.requests[0].body["messages"][-1]["content"]
    assert [each["type"] for each in content] == ["text", "image_url", "input_audio", "text", "image_url", "text"]
    assert content[3]["text"] == '<file path="/a b.py">\nprint(1)\n</file>'
    assert content[5]["text"] == "[d.pdf](/d.pdf)"


def test_what_went_wrong_is_told(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A turn that fails is an error with the provider's words; the session goes on."""
    provider.script(status(400, "no such model"), answer("Hello."))

    async def scenario() -> None:
        editor = Editor()
        async with editing(home, editor) as (connection, _):
            session = await opened(connection, workspace)
            with pytest.raises(acp.RequestError, match="no such model"):
                await ask(connection, session, "Hi.")
            with pytest.raises(acp.RequestError, match="not empty"):
                await connection.prompt(session_id=session, prompt=[])
            assert (await ask(connection, session, "Hi again.")).stop_reason == "end_turn"

    asyncio.run(scenario())


def test_limits_have_their_own_stop_reasons(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A turn that comes to its limit of steps says so."""
    provider.script(tool_calls([call("todo")]), tool_calls([call("todo")]))

    async def scenario() -> str:
        async with editing(home, Editor(), "--max-steps", "1") as (connection, _):
            result = await ask(connection, await opened(connection, workspace), "Go.")
            return str(result.stop_reason)

    assert asyncio.run(scenario()) == "max_turn_requests"


def test_prompts_of_one_session_wait_for_each_other(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A prompt that comes while another runs is answered after it; other sessions do not wait."""
    provider.script(answer("First.", delay=0.3), answer("Second."))

    async def scenario() -> None:
        editor = Editor()
        async with editing(home, editor) as (connection, _):
            session = await opened(connection, workspace)
            first, second = ask(connection, session, "One."), ask(connection, session, "Two.")
            assert (await second).stop_reason == "end_turn"
            assert first.done()
            assert editor.text == "First.Second."

    asyncio.run(scenario())
    asked = [each["content"] for each in provider.requests[1].body["messages"] if each["role"] == "user"]
    assert asked == ["One.", "Two."]
