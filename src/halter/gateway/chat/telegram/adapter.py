"""Telegram, by `python-telegram-bot`: one chat, or one topic of a group, is one session.

    platform = Telegram("the bot's token", users=["1234"])
    async with Gateway(agent, store, keys, platforms=[platform]): ...

Updates are received by long polling, and acknowledged only when they are stored. So an update that was not stored when
the gateway ended, however it ended, is delivered again; and one that was stored is recognized, as its id is that of the
message. The library's own updater would acknowledge first, so only its API client is used.

The token is part of every URL, and is therefore removed from everything that is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from telegram import (
    Bot,
    BotCommand,
    CallbackQuery,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    MessageEntity,
    Update,
)
from telegram.constants import ChatAction
from telegram.error import BadRequest, ChatMigrated, Forbidden, InvalidToken, NetworkError, RetryAfter, TelegramError
from telegram.request import HTTPXRequest

from halter._secrets import redact
from halter.gateway.chat.adapter import ButtonPress, PlatformUnreachable, RateLimited, SendRejected
from halter.gateway.chat.telegram.albums import Albums
from halter.gateway.chat.telegram.updates import chat_id_of, read_message
from halter.gateway.chat.text_chunks import size
from halter.models.backoff import UNTIL_IT_WORKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from halter.events import Mode
    from halter.gateway.chat.adapter import Button, Inbound
    from halter.models.types import Audio

__all__ = ["Telegram"]

_log = logging.getLogger(__name__)
_SERVER: Final = "https://api.telegram.org"
_POLL_TIMEOUT: Final = 50  # seconds of a long poll
_POLL_PAUSE: Final = 0.3  # seconds until the next poll while an update is not stored yet
_CONFIRM_TIMEOUT: Final = 1.5  # seconds for the last acknowledgement
_MAX_KNOWN: Final = 1_000  # acknowledged updates that are remembered
_ROW_WIDTH: Final = 24  # characters of labels that fit into one row of buttons
_MENU: Final = (
    ("stop", "Stop now"),
    ("steer", "Send a message into the running turn"),
    ("queue", "Send a message when the turn ends"),
    ("new", "Start a new conversation"),
    ("deny", "Deny the open request, with a reason"),
    ("why", "Show the last stop: what ended, and how fast"),
)


class Telegram:
    """A bot. *users* are the ids of those who may use it; *server* is a server of the Bot API."""

    name = "telegram"
    max_length = 4096
    max_rate = 30

    def __init__(
        self,
        token: str,
        users: Collection[int | str],
        *,
        busy: Mode = "steer",
        stop_phrases: Collection[str] = (),
        server: str = _SERVER,
        edit_interval: float = 1.0,
    ) -> None:
        self.users: Collection[str] = frozenset(map(str, users))
        self.busy: Mode = busy
        self.stop_phrases = stop_phrases
        self.edit_interval = edit_interval
        self._token = token
        self._redactor = _TokenRedactor(token)
        server = server.rstrip("/")
        self._requests = (
            HTTPXRequest(connection_pool_size=2, connect_timeout=10.0),  # for updates
            HTTPXRequest(read_timeout=20.0, connect_timeout=10.0, pool_timeout=10.0),
        )
        self._bot = Bot(
            token,
            base_url=f"{server}/bot",
            base_file_url=f"{server}/file/bot",
            request=self._requests[1],
            get_updates_request=self._requests[0],
        )
        self._albums = Albums()
        self._username = ""
        self._offset: int | None = None  # earlier updates are stored
        self._confirmed: int | None = None  # earlier updates are acknowledged
        self._taking: dict[int, asyncio.Task[None]] = {}  # by update id
        self._known: OrderedDict[int, None] = OrderedDict()

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def run(self, inbound: Inbound) -> None:
        """Receive until cancelled."""
        try:
            me = await self._retrying(self._bot.get_me)
            self._username = (me.username or "").lower()
            with contextlib.suppress(TelegramError):  # only a menu
                await self._bot.set_my_commands([BotCommand(*each) for each in _MENU])
            _log.info("telegram: receiving as @%s", self._username)
            while True:
                await self._receive(inbound)
        except InvalidToken:
            _log.error("telegram: the token was refused: nothing can be received")
        finally:
            for task in self._taking.values():
                task.cancel()
            await self._confirm()

    async def _receive(self, inbound: Inbound) -> None:
        """Poll once, and start to take the new updates.

        A poll returns at once while updates are unacknowledged. So while one is not stored yet, such as a recording
        that is being downloaded, the next poll comes after a short pause: the next update may be a stop.
        """
        offset = self._offset
        updates = await self._retrying(
            lambda: self._bot.get_updates(offset, timeout=_POLL_TIMEOUT, allowed_updates=["message", "callback_query"])
        )
        self._confirmed = offset
        for update in updates:
            number = update.update_id
            if number not in self._taking and number not in self._known:
                self._taking[number] = asyncio.create_task(self._take(inbound, update, redelivered=offset is None))
        self._offset = offset or 0
        if self._taking:
            await asyncio.wait(self._taking.values(), timeout=_POLL_PAUSE)
        self._advance()

    def _advance(self) -> None:
        """Move the offset past the stored updates, up to the first that is not."""
        for number in sorted(self._taking):
            if not self._taking[number].done():
                break
            self._taking.pop(number).exception()  # mark it as retrieved: `_take()` is a boundary
            self._offset = number + 1
            self._known[number] = None
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)

    async def _confirm(self) -> None:
        """Acknowledge what is stored, at the end. What is not acknowledged is delivered again."""
        self._advance()
        if not self._offset or self._offset == self._confirmed:
            return
        with contextlib.suppress(TelegramError, TimeoutError):
            async with asyncio.timeout(_CONFIRM_TIMEOUT):
                await self._bot.get_updates(self._offset, limit=1, timeout=0)

    async def _take(self, inbound: Inbound, update: Update, *, redelivered: bool) -> None:
        """Take an update. A boundary: one that cannot be read is logged and acknowledged."""
        try:
            if update.callback_query is not None:
                await self._press(inbound, update.callback_query)
            elif update.message is not None:
                incoming = read_message(
                    self._bot, update.message, self._username, str(update.update_id), redelivered=redelivered
                )
                if incoming is not None:
                    await self._albums.take(inbound, incoming, update.message.media_group_id or "")
        except Exception:  # noqa: BLE001
            _log.exception("telegram: handling update %d failed", update.update_id)

    async def _press(self, inbound: Inbound, query: CallbackQuery) -> None:
        message = query.message
        if message is None:
            return
        pressed = ButtonPress(chat_id=chat_id_of(message), sender=str(query.from_user.id), data=query.data or "")
        answer = await inbound.press(pressed)
        with contextlib.suppress(TelegramError):  # the button shows a spinner until then, for a while
            await self._bot.answer_callback_query(query.id, text=answer.text[:200] or None)
        if answer.is_expired:
            with contextlib.suppress(TelegramError):
                await self._bot.edit_message_reply_markup(message.chat.id, message.message_id, reply_markup=None)

    async def _retrying(self, request: Any) -> Any:  # noqa: ANN401  (any method of the bot)
        """Retry a request until it succeeds. Raises `InvalidToken`."""
        for retry in itertools.count():
            try:
                return await request()
            except InvalidToken:
                raise
            except RetryAfter as error:
                wait = _seconds(error)
            except TelegramError as error:
                wait = UNTIL_IT_WORKS.delay(retry)
                _log.warning("telegram: request failed: %s", self._redactor.redact(str(error)))
            await asyncio.sleep(wait)
        raise AssertionError

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send(self, chat_id: str, text: str, buttons: Sequence[Button], *, monospace: bool) -> str:
        """Send a message."""
        with self._translated():
            chat, thread = _address(chat_id)
            message = await self._bot.send_message(
                chat,
                text,
                message_thread_id=thread,
                entities=[MessageEntity(MessageEntity.PRE, 0, size(text))] if monospace else None,
                reply_markup=_keyboard(buttons),
                link_preview_options=_NO_PREVIEW,
            )
        return str(message.message_id)

    async def edit(self, chat_id: str, message: str, text: str, buttons: Sequence[Button]) -> None:
        """Edit a message."""
        with self._translated():
            chat, _ = _address(chat_id)
            await self._bot.edit_message_text(
                text, chat, int(message), reply_markup=_keyboard(buttons), link_preview_options=_NO_PREVIEW
            )

    async def say(self, chat_id: str, sound: Audio) -> None:
        """Send a voice message."""
        with self._translated():
            chat, thread = _address(chat_id)
            await self._bot.send_voice(chat, sound.data, message_thread_id=thread, filename="answer.ogg")

    async def show_busy(self, chat_id: str) -> None:
        """Show "typing" for some seconds."""
        with self._translated():
            chat, thread = _address(chat_id)
            await self._bot.send_chat_action(chat, ChatAction.TYPING, message_thread_id=thread)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate the errors of the library."""
        try:
            yield
        except RetryAfter as error:
            raise RateLimited(_seconds(error)) from None
        except BadRequest as error:
            if "not modified" not in error.message.lower():  # it has this text already
                raise SendRejected(self._redactor.redact(error.message)) from None
        except (Forbidden, InvalidToken, ChatMigrated) as error:
            raise SendRejected(self._redactor.redact(error.message)) from None
        except NetworkError as error:
            raise PlatformUnreachable(self._redactor.redact(error.message)) from None
        except TelegramError as error:
            raise SendRejected(self._redactor.redact(error.message)) from None

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(client.shutdown() for client in self._requests))
        self._redactor.remove()


class _TokenRedactor(logging.Filter):
    """Removes the token from the URLs that the libraries log."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token
        known = list(logging.root.manager.loggerDict)
        names = {name for name in known if name.partition(".")[0] in ("telegram", "httpx", "httpcore")}
        self._loggers = [logging.getLogger(name) for name in names]
        for logger in self._loggers:
            logger.addFilter(self)

    def redact(self, text: str) -> str:
        """A text without the token."""
        return redact(text, [self._token])

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record, and keep it."""
        message = record.getMessage()
        if self._token in message:
            record.msg, record.args = self.redact(message), ()
        return True

    def remove(self) -> None:
        for logger in self._loggers:
            logger.removeFilter(self)


_NO_PREVIEW: Final = LinkPreviewOptions(is_disabled=True)


def _keyboard(buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
    keys = [InlineKeyboardButton(button.label, callback_data=button.data) for button in buttons]
    if not keys:
        return None
    is_short = sum(len(button.label) for button in buttons) <= _ROW_WIDTH
    return InlineKeyboardMarkup([keys] if is_short else [[key] for key in keys])


def _address(chat_id: str) -> tuple[int, int | None]:
    chat, _, thread = chat_id.partition(":")
    try:
        return int(chat), int(thread) if thread else None
    except ValueError:  # a session of the store with such a name
        msg = f"there is no chat {chat_id!r}"
        raise SendRejected(msg) from None


def _seconds(error: RetryAfter) -> float:
    wait = error.retry_after
    return wait.total_seconds() if isinstance(wait, timedelta) else float(wait)
