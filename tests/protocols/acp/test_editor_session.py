"""A session of an editor, without the program around it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from halter import Agent
from halter.cancel.token import CancellationToken
from halter.protocols.acp.editor_session import EditorSession, PreparedAgent
from halter.protocols.acp.json_rpc import IncomingRequest, RpcConnection
from halter.protocols.acp.schema import PromptParams, TextBlock
from halter.protocols.line_stream import LineStream
from halter.stores import MemoryStore
from halter.testing import Gate, ScriptedModel
from tests.support.looped import looped


@looped
async def test_a_prompt_whose_turn_is_over_stops_no_other_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn of a prompt was over, but not shown yet: its cancellation stopped the turn of the next prompt."""
    gate, may_show = Gate(), asyncio.Event()
    agent = Agent(ScriptedModel("One.", ["Two ", gate, "and on."]))
    reading, client = os.pipe()
    output = os.open(os.devnull, os.O_WRONLY)
    with agent.session("s", MemoryStore()) as session:
        connection = RpcConnection(LineStream(reading, output), {}, {})
        editor = EditorSession(session, PreparedAgent(agent, [], lambda: None), tmp_path, connection, has_forms=False)
        wait_shown = editor._wait_shown

        async def wait_shown_later(number: int) -> None:
            await may_show.wait()
            await wait_shown(number)

        monkeypatch.setattr(editor, "_wait_shown", wait_shown_later)
        requests = [IncomingRequest(CancellationToken()) for _ in range(2)]
        answers = [
            asyncio.ensure_future(editor.prompt(PromptParams("s", [TextBlock("Go.")]), request)) for request in requests
        ]
        await gate.await_reached()
        requests[0].stop("stop", "$/cancel_request")
        gate.open()
        may_show.set()
        assert await asyncio.gather(*answers) == [{"stopReason": "end_turn"}] * 2
        assert session.text == "Two and on."
        connection.stream.token.cancel("shutdown")
        await connection.stream.flush(20.0)
    for each in (reading, client, output):
        os.close(each)
