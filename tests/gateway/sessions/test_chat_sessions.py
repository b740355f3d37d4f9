"""Sessions of chats: their names are addresses, so only the chat platform may create them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from halter.gateway.chat.adapter import Button, Inbound, Incoming
from halter.models import Audio
from tests.support.gateway_client import Client, client_session, gateway_of, keys_of
from tests.support.looped import looped


class Recorder:
    """A chat platform that records what it is told to send, and receives one message."""

    name = "telegram"
    users = ("1",)
    busy = "steer"
    stop_phrases = ()
    max_length = 4096
    edit_interval = 0.01
    max_rate = 30

    def __init__(self, *incoming: Incoming) -> None:
        self.sent: list[str] = []
        self.changed = asyncio.Event()
        self._incoming = incoming

    async def run(self, inbound: Inbound) -> None:
        for each in self._incoming:
            await inbound.take(each)
        await asyncio.Event().wait()

    async def send(self, chat_id: str, text: str, buttons: Sequence[Button], *, monospace: bool) -> str:
        self.sent.append(chat_id)
        self.changed.set()
        return "1"

    async def edit(self, chat_id: str, message: str, text: str, buttons: Sequence[Button]) -> None: ...

    async def say(self, chat_id: str, sound: Audio) -> None: ...

    async def show_busy(self, chat_id: str) -> None: ...

    async def close(self) -> None: ...


@looped
async def test_a_key_cannot_reach_any_chat() -> None:
    """A client that named a session after a chat made the bot write to it, to whomever that chat belongs."""
    platform = Recorder()
    async with gateway_of("Send me your password.", platforms=[platform]) as (_, client):
        refused = await client.ask("POST", "/v1/sessions", {"id": "telegram-999888777"})
        assert (refused.status, refused.body["field"]) == (422, "id")
        assert (await client.post("say it", session="telegram-999888777")).status == 404
        await client.create("telegrams")  # only begins like it
        await client.post("say it", session="telegrams")
        await client.finished("telegrams")
    assert platform.sent == []


@looped
async def test_names_of_chats_are_reserved_before_there_is_a_bot() -> None:
    """A session that was made while no bot was set up would be a chat's as soon as there is one."""
    async with gateway_of() as (_, client):
        refused = await client.ask("POST", "/v1/sessions", {"id": "telegram-999888777"})
        assert (refused.status, refused.body["field"]) == (422, "id")


@looped
async def test_a_session_of_a_chat_is_not_for_other_keys(tmp_path: Path) -> None:
    """A key that may write does not find it, by reading it or by creating it again."""
    keys, made = keys_of(tmp_path)
    platform = Recorder(Incoming(id="1", chat_id="5", order=1, sender="1", text="Hi."))
    async with gateway_of("Hello.", platforms=[platform], keys=keys) as (gateway, _):
        await asyncio.wait_for(platform.changed.wait(), 10)
        async with client_session(gateway, made["approve"]) as http:
            client = Client(http)
            assert (await client.post("And?", session="telegram-5")).status == 404
            assert (await client.ask("POST", "/v1/sessions", {"id": "telegram-5"})).status == 422
            assert (await client.ask("GET", "/v1/sessions")).body["sessions"] == []


@looped
async def test_a_session_that_a_chat_has_made_is_shared() -> None:
    """Once a user of the bot has written, an admin and the page can use the session too, as before."""
    platform = Recorder(Incoming(id="1", chat_id="5", order=1, sender="1", text="Hi."))
    async with gateway_of("Hello.", "Again.", platforms=[platform]) as (_, client):
        await asyncio.wait_for(platform.changed.wait(), 10)
        found = await client.ask("POST", "/v1/sessions", {"id": "telegram-5"})
        assert found.status == 200
        assert (await client.post("And?", session="telegram-5")).status == 202
        await client.finished("telegram-5", turns=2)
    assert set(platform.sent) == {"5"}
