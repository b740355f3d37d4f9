"""What the tests of chat platforms are told in: a gateway that is a bot of a server which they run themselves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from halter import Agent
from halter.events import EventData
from halter.gateway import Gateway, GatewayLimits, Keys
from halter.gateway.chat.telegram import Telegram
from halter.models import Backoff, UserMessage
from halter.stores import MemoryStore, Store
from halter.testing import ScriptedModel
from halter.voice.voice_messages import VoiceMessages
from tests.support.gateway_client import OWN
from tests.support.telegram_server import TOKEN, USER, BotServer

SESSION = f"telegram-{USER}"
QUICK = 0.02  # seconds between two changes: the tests of the pace itself take more


class Desk(NamedTuple):
    """A bot and all around it."""

    server: BotServer
    gateway: Gateway
    store: Store
    model: ScriptedModel

    def events(self, session: str = SESSION) -> list[EventData]:
        return [event.data for event in self.store.read(session)]

    def said(self, session: str = SESSION) -> list[str]:
        """What the model was told by people, in its last request."""
        return [message.text for message in self.model.requests[-1].messages if isinstance(message, UserMessage)]


@contextlib.asynccontextmanager
async def bot_of(
    *script: Any,
    server: BotServer | None = None,
    store: Store | None = None,
    tools: Sequence[Any] = (),
    approve: Any = None,
    users: Sequence[int] = (USER,),
    edit_interval: float = QUICK,
    voice_messages: VoiceMessages | None = None,
    limits: GatewayLimits | None = None,
    spoken_replies: bool = False,
    notices: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[Desk]:
    """A bot whose model follows a script."""
    kept = store if store is not None else MemoryStore()
    model = ScriptedModel(*script)
    agent = Agent(model, tools, approve=approve)
    agent.backoff = Backoff(base=0.0)
    async with contextlib.AsyncExitStack() as stack:
        there = server if server is not None else await stack.enter_async_context(BotServer())
        bot = Telegram(TOKEN, users, server=there.url, edit_interval=edit_interval, **options)
        gateway = Gateway(
            agent,
            kept,
            Keys(own=OWN),
            platforms=[bot],
            voice_messages=voice_messages,
            limits=limits,
            spoken_replies=spoken_replies,
            notices=notices,
        )
        yield Desk(there, await stack.enter_async_context(gateway), kept, model)
