"""What Telegram takes: how fast, how long, and when it cannot be reached."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from halter.errors import StoreFull
from halter.events import MessageAccepted
from halter.gateway import GatewayLimits
from halter.testing import Gate
from tests.support.gateway_client import Client, client_session
from tests.support.hooked_store import HookedStore
from tests.support.looped import looped
from tests.support.telegram_bot import bot_of
from tests.support.telegram_server import BotServer


@looped
async def test_too_fast() -> None:
    """When Telegram says 429, nothing is sent to that chat for as long as it says, and then all is there."""
    async with bot_of(["A", "B", "C"], tools=[]) as desk:
        refused: list[float] = []

        def refuse(call: Any) -> tuple[int, dict[str, Any]] | None:
            if call.method != "sendMessage" or refused:
                return None
            refused.append(call.at)
            return 429, {"parameters": {"retry_after": 1}}

        desk.server.refuse = refuse
        await desk.server.say("Go.")
        await desk.server.read("ABC")
        times = [call.at for call in desk.server.calls if call.method in ("sendMessage", "editMessageText")]
        assert times[0] == refused[0]
        assert times[1] - times[0] >= 1


@looped
async def test_edits_keep_their_pace() -> None:
    """However fast the model is, a message is changed once in the time that is set; and at last it is whole."""
    gates = [Gate() for _ in range(12)]
    script = [step for gate in gates for step in ("word ", gate)]
    async with bot_of(script, edit_interval=0.2) as desk:
        await desk.server.say("Go.")
        await desk.server.read("word")  # else all of it may be sent at once
        for gate in gates:
            await gate.await_reached()
            gate.open()
        await desk.server.read("word " * 11 + "word")
        times = [call.at for call in desk.server.calls if call.method in ("sendMessage", "editMessageText")]
        assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.19
        assert len(times) <= 2 + (times[-1] - times[0]) / 0.19  # not one for each word


@looped
async def test_a_long_answer_is_cut_into_messages() -> None:
    """No message has more than 4096 UTF-16 units, nothing is lost, and the cuts are between lines."""
    lines = [f"{number} " + "🐎" * 60 for number in range(200)]
    async with bot_of("\n".join(lines)) as desk:
        await desk.server.say("Horses!")
        await desk.server.until(lambda: "\n".join(desk.server.texts()) == "\n".join(lines))
        assert len(desk.server.shown) > 5


@looped
async def test_telegram_is_found_again() -> None:
    """When Telegram fails, or another poller is in the way, it is asked again, and nothing is lost."""
    async with BotServer() as server:
        failures: Iterator[tuple[int, dict[str, Any]]] = iter([(500, {}), (409, {})])
        server.refuse = lambda call: next(failures, None) if call.method in ("getMe", "getUpdates") else None
        async with bot_of("Hello.", server=server):
            await server.say("Hi.")
            await server.read("Hello.")


@looped
async def test_a_refused_token() -> None:
    """With a wrong token the bot ends with a word in the log, and the gateway goes on."""
    async with BotServer() as server:
        server.refuse = lambda call: (401, {"description": "Unauthorized"})
        async with bot_of(server=server) as desk:
            await server.until(lambda: "getMe" in server.of())
            async with client_session(desk.gateway) as http:
                assert (await Client(http).ask("GET", "/healthz")).status == 200


@looped
async def test_a_full_store() -> None:
    """While a message cannot be written it is not acknowledged; when it can, it is taken, in its order."""
    store = HookedStore()
    async with bot_of("Hello.", "Again.", "Again.", store=store) as desk:
        await desk.server.say("Hi.")
        await desk.server.read("Hello.")
        full, tries = store.before, itertools.count(1)

        def refuse(written: list[str]) -> None:
            if "message.accepted" in written:
                if next(tries) == 2:
                    store.before = full
                raise StoreFull("no space is left")

        store.before = refuse
        first = await desk.server.say("One.")
        await desk.server.until(lambda: first in desk.server.delivered)
        second = await desk.server.say("Two.")
        assert desk.server.offset <= first
        await desk.server.acknowledged(second)
        await desk.server.read("Again.")
        texts = [data.message.text for data in desk.events() if isinstance(data, MessageAccepted)]
        assert texts == ["Hi.", "One.", "Two."]


@looped
async def test_too_many_messages() -> None:
    """What is refused by a limit is told, with a time, and is not accepted in silence or dropped in silence."""
    async with bot_of("Hello.", limits=GatewayLimits(session_messages=1)) as desk:
        await desk.server.say("Hi.")
        await desk.server.read("Hello.")
        await desk.server.say("Hi again.")
        await desk.server.read("Not accepted: too many messages per minute for this session", "Try again in")
        assert len([data for data in desk.events() if isinstance(data, MessageAccepted)]) == 1
