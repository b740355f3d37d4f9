"""A server that speaks Telegram's Bot API, as far as a bot of ours uses it: on loopback, and it remembers everything.

It keeps updates as Telegram does: one is delivered again and again until a later offset was asked for. Messages of the
bot are kept as people would see them: `server.chats` has for each chat its messages, in order, as they look now.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.support.slow_server import accept_last

TOKEN = "1234:this-is-the-secret-of-the-bot"
AT_MOST = 30.0
USER = 77
_OBJECTS = ("allowed_updates", "commands", "entities", "link_preview_options", "reply_markup")


@dataclass
class Shown:
    """A message of the bot, as it looks now, and all the texts that it had."""

    id: int
    chat: int
    text: str
    buttons: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Call:
    """A request of the bot: when it came, on the loop's clock, and how it was answered."""

    method: str
    fields: dict[str, Any]
    at: float
    status: int = 200


class BotServer:
    """Use it in an `async with` block."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.shown: list[Shown] = []
        self.files: dict[str, bytes] = {}
        self.voices: list[bytes] = []  # that the bot has sent
        self.offset = 0
        self.url = ""
        self.refuse: Callable[[Call], tuple[int, dict[str, Any]] | None] = lambda _: None
        self.may_download = asyncio.Event()
        self.may_download.set()
        self.asked: list[str] = []  # methods that were called, answered or not
        self.delivered: set[int] = set()  # updates that the bot has been given
        self.acknowledges = True  # whether an offset has its effect
        self._updates: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count(1000)
        self._messages = itertools.count(1)
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=50_000_000)
        app.router.add_route("*", f"/bot{TOKEN}/{{method}}", self._answer)
        app.router.add_get(f"/file/bot{TOKEN}/{{path:.*}}", self._download)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await accept_last()
        await self._runner.cleanup()

    # -- what people do ----------------------------------------------------------------------------------------------

    async def say(self, text: str = "", *, chat: int = USER, user: int = USER, **fields: Any) -> int:
        """Somebody writes; gives the number of the update."""
        message = {
            "message_id": next(self._messages),
            "date": 1_700_000_000,
            "chat": {"id": chat, "type": "private" if chat > 0 else "supergroup"},
            "from": {"id": user, "is_bot": False, "first_name": "Somebody"},
            **({"text": text} if text else {}),
            **fields,
        }
        return await self.deliver({"message": message})

    async def press(self, message: Shown, label: str, *, user: int = USER) -> int:
        """Somebody presses a button below a message."""
        [data] = [each["callback_data"] for each in message.buttons if each["text"] == label]
        query = {
            "id": str(next(self._numbers)),
            "from": {"id": user, "is_bot": False, "first_name": "Somebody"},
            "chat_instance": "1",
            "data": data,
            "message": {
                "message_id": message.id,
                "date": 1_700_000_000,
                "chat": {"id": message.chat, "type": "private"},
                "text": message.text,
            },
        }
        return await self.deliver({"callback_query": query})

    async def deliver(self, update: dict[str, Any], number: int | None = None) -> int:
        """Have an update delivered."""
        async with self._changed:
            number = next(self._numbers) if number is None else number
            self._updates[number] = {"update_id": number, **update}
            self._changed.notify_all()
        return number

    async def deliver_again(self, number: int, update: dict[str, Any]) -> None:
        """Deliver an update that was acknowledged."""
        await self.deliver({key: value for key, value in update.items() if key != "update_id"}, number)

    def update(self, number: int) -> dict[str, Any]:
        return self._updates[number]

    # -- what is to be seen ------------------------------------------------------------------------------------------

    def texts(self, chat: int = USER) -> list[str]:
        """What is to be read in a chat now."""
        return [message.text for message in self.shown if message.chat == chat]

    async def until(self, is_so: Callable[[], Any]) -> Any:
        """Wait until something is to be seen; gives what the function gave."""
        async with self._changed:
            try:
                async with asyncio.timeout(AT_MOST):
                    while not (found := is_so()):
                        # Not everything that is waited for is a change of the server: look now and then as well.
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.05):
                                await self._changed.wait()
            except TimeoutError:
                raise AssertionError(f"not seen; there are {self.texts()} after {self.of()}") from None
            return found

    async def read(self, *parts: str, chat: int = USER) -> Shown:
        """Wait for a message that has all of these parts in it, and give it."""
        found: Shown = await self.until(
            lambda: next((m for m in self.shown if m.chat == chat and all(part in m.text for part in parts)), None)
        )
        return found

    def with_button(self, label: str) -> Shown | None:
        """A message with this button below it."""
        return next((each for each in self.shown if any(b["text"] == label for b in each.buttons)), None)

    async def acknowledged(self, number: int) -> None:
        """Wait until an update was acknowledged."""
        await self.until(lambda: self.offset > number)

    def of(self, *methods: str) -> list[str]:
        """The methods that were called, in order."""
        return [call.method for call in self.calls if not methods or call.method in methods]

    # -- the API -----------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.Response:
        form = await request.post()
        fields: dict[str, Any] = {}
        for key, value in form.items():
            if isinstance(value, web.FileField):
                fields[key] = value.file.read()
            else:
                fields[key] = json.loads(str(value)) if key in _OBJECTS else str(value)
        call = Call(request.match_info["method"], fields, asyncio.get_running_loop().time())
        async with self._changed:
            self.asked.append(call.method)
            self._changed.notify_all()
        refused = self.refuse(call)
        if refused is not None:
            call.status, extra = refused
            answer = {"ok": False, "error_code": call.status, "description": "no", **extra}
        elif call.method == "getUpdates":
            answer = {"ok": True, "result": await self._get_updates(call)}
        else:
            answer = self._do(call)
        async with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        return web.json_response(answer, status=call.status)

    async def _get_updates(self, call: Call) -> list[dict[str, Any]]:
        offset = int(call.fields.get("offset") or 0)
        async with self._changed:
            if self.acknowledges:
                self._updates = {number: each for number, each in self._updates.items() if number >= offset}
                self.offset = max(self.offset, offset)
                self._changed.notify_all()
            try:
                async with asyncio.timeout(float(call.fields.get("timeout") or 0)):
                    while not self._updates:
                        await self._changed.wait()
            except TimeoutError:
                return []
            given = sorted(self._updates)[: int(call.fields.get("limit") or 100)]
            self.delivered.update(given)
            return [self._updates[number] for number in given]

    def _do(self, call: Call) -> dict[str, Any]:
        method = getattr(self, f"_do_{call.method}", None)
        if method is None:
            return {"ok": True, "result": True}
        result = method(call.fields)
        if isinstance(result, str):
            call.status = 400
            return {"ok": False, "error_code": 400, "description": result}
        return {"ok": True, "result": result}

    def _do_getMe(self, _: dict[str, Any]) -> object:  # noqa: N802  (the API's name)
        return {"id": 1234, "is_bot": True, "first_name": "Halter", "username": "halter_bot"}

    def _do_sendMessage(self, fields: dict[str, Any]) -> object:  # noqa: N802
        text = str(fields["text"])
        if not text.strip() or len(text.encode("utf-16-le")) > 2 * 4096:
            return "Bad Request: message is empty or too long"
        message = Shown(next(self._messages), int(fields["chat_id"]), text, _buttons(fields), [text], fields)
        self.shown.append(message)
        return self._view(message)

    def _do_sendVoice(self, fields: dict[str, Any]) -> object:  # noqa: N802
        self.voices.append(fields["voice"])
        return self._view(Shown(next(self._messages), int(fields["chat_id"]), ""))

    def _do_editMessageText(self, fields: dict[str, Any]) -> object:  # noqa: N802
        message = self._find(fields)
        text, buttons = str(fields["text"]), _buttons(fields)
        if message is None:
            return "Bad Request: message to edit not found"
        if (text, buttons) == (message.text, message.buttons):
            return "Bad Request: message is not modified"
        message.text, message.buttons = text, buttons
        message.texts.append(text)
        return self._view(message)

    def _do_editMessageReplyMarkup(self, fields: dict[str, Any]) -> object:  # noqa: N802
        message = self._find(fields)
        if message is None:
            return "Bad Request: message to edit not found"
        message.buttons = _buttons(fields)
        return self._view(message)

    def _do_getFile(self, fields: dict[str, Any]) -> object:  # noqa: N802
        name = str(fields["file_id"])
        if name not in self.files:
            return "Bad Request: wrong file_id"
        return {"file_id": name, "file_unique_id": name, "file_size": len(self.files[name]), "file_path": name}

    def _find(self, fields: dict[str, Any]) -> Shown | None:
        wanted = (int(fields["chat_id"]), int(fields["message_id"]))
        return next((message for message in self.shown if (message.chat, message.id) == wanted), None)

    def _view(self, message: Shown) -> dict[str, Any]:
        chat = {"id": message.chat, "type": "private"}
        return {"message_id": message.id, "date": 1_700_000_000, "chat": chat, "text": message.text}

    async def _download(self, request: web.Request) -> web.Response:
        await self.may_download.wait()
        return web.Response(body=self.files[request.match_info["path"]])


def _buttons(fields: dict[str, Any]) -> list[dict[str, Any]]:
    markup = fields.get("reply_markup") or {}
    return [button for row in markup.get("inline_keyboard", []) for button in row]
