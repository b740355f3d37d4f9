"""Telegram, by `python-telegram-bot`: one chat, or one topic of a group, is one session.

    platform = Telegram("the bot's token", users=["1234"])
    async with Gateway(agent, store, keys, platforms=[platform]): ...

Updates are asked for (long polling), and Telegram is told that it may forget one only when it is safe here. So what is
received and not safe yet when the gateway ends, however it ends, is delivered again; and what was safe is the same
message then, as its id is the update's. The library's own updater would acknowledge first: of it only the API is used.

The token is in every address that is asked, and therefore hidden in all that is logged on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
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

from halter.gateway.platforms.pieces import size
from halter.gateway.platforms.platform import Pressed, Refused, TooFast, Unreachable
from halter.gateway.platforms.telegram_albums import Albums
from halter.gateway.platforms.telegram_updates import place_of, read_message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from halter.events import Mode
    from halter.gateway.platforms.platform import Button, Door
    from halter.models.model import Audio

__all__ = ["Telegram"]

_log = logging.getLogger(__name__)
_SERVER: Final = "https://api.telegram.org"
_LONG: Final = 50  # seconds for which Telegram may keep a question for updates open
_SOON: Final = 0.3  # seconds after which it is asked for more while something is still on its way to safety
_LAST_WORD: Final = 1.5  # seconds to tell at the end what may be forgotten
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_KNOWN: Final = 1_000  # updates that are remembered after they were acknowledged
_ROW: Final = 24  # characters of the labels of buttons that are in one row
_MENU: Final = (
    ("stop", "Stop, now"),
    ("steer", "Say something into what is being done"),
    ("queue", "Say something for afterwards"),
    ("new", "Begin a new conversation"),
    ("why", "What the last stop has stopped, and how fast"),
)


class Telegram:
    """A bot. *users* are the numbers of those who may speak to it; *server* is a server of the Bot API."""

    name = "telegram"
    longest = 4096
    a_second = 30

    def __init__(
        self,
        token: str,
        users: Collection[int | str],
        *,
        busy: Mode = "steer",
        stop_phrases: Collection[str] = (),
        server: str = _SERVER,
        every: float = 1.0,
    ) -> None:
        self.users: Collection[str] = frozenset(map(str, users))
        self.busy: Mode = busy
        self.stop_phrases = stop_phrases
        self.every = every
        self._token = token
        self._veil = _Veil(token)
        server = server.rstrip("/")
        self._wires = (
            HTTPXRequest(connection_pool_size=2, connect_timeout=10.0),  # for updates
            HTTPXRequest(read_timeout=20.0, connect_timeout=10.0, pool_timeout=10.0),
        )
        self._bot = Bot(
            token,
            base_url=f"{server}/bot",
            base_file_url=f"{server}/file/bot",
            request=self._wires[1],
            get_updates_request=self._wires[0],
        )
        self._albums = Albums()
        self._username = ""
        self._offset: int | None = None  # what comes before it is safe
        self._confirmed: int | None = None  # and what comes before this, Telegram has been told of
        self._taking: dict[int, asyncio.Task[None]] = {}  # by the updates' numbers
        self._known: OrderedDict[int, None] = OrderedDict()

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def run(self, door: Door) -> None:
        """Receive until cancelled."""
        try:
            me = await self._ask(self._bot.get_me)
            self._username = (me.username or "").lower()
            with contextlib.suppress(TelegramError):  # only a menu
                await self._bot.set_my_commands([BotCommand(*each) for each in _MENU])
            _log.info("telegram: receiving as @%s", self._username)
            while True:
                await self._receive(door)
        except InvalidToken:
            _log.error("telegram: the token was refused: nothing can be received")
        finally:
            for task in self._taking.values():
                task.cancel()
            await self._confirm()

    async def _receive(self, door: Door) -> None:
        """Ask for updates, once, and begin to take those that are new.

        Telegram does not wait as long as there are some that it was not told to forget. So while one is still on its
        way to safety, such as a recording that is being fetched, it is asked again soon: what comes behind it may be a
        stop.
        """
        offset = self._offset
        updates = await self._ask(
            lambda: self._bot.get_updates(offset, timeout=_LONG, allowed_updates=["message", "callback_query"])
        )
        self._confirmed = offset
        for update in updates:
            number = update.update_id
            if number not in self._taking and number not in self._known:
                self._taking[number] = asyncio.create_task(self._take(door, update, again=offset is None))
        self._offset = offset or 0
        if self._taking:
            await asyncio.wait(self._taking.values(), timeout=_SOON)
        self._advance()

    def _advance(self) -> None:
        """Count what is safe, up to the first that is not."""
        for number in sorted(self._taking):
            if not self._taking[number].done():
                break
            self._taking.pop(number).exception()  # looked at: taking is a boundary
            self._offset = number + 1
            self._known[number] = None
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)

    async def _confirm(self) -> None:
        """Tell Telegram what it may forget, at the end. A boundary: what it is not told comes again."""
        self._advance()
        if not self._offset or self._offset == self._confirmed:
            return
        with contextlib.suppress(TelegramError, TimeoutError):
            async with asyncio.timeout(_LAST_WORD):
                await self._bot.get_updates(self._offset, limit=1, timeout=0)

    async def _take(self, door: Door, update: Update, *, again: bool) -> None:
        """Have an update taken. A boundary: one that can not even be read is logged, and does not come for ever."""
        try:
            if update.callback_query is not None:
                await self._press(door, update.callback_query)
            elif update.message is not None:
                incoming = read_message(self._bot, update.message, self._username, str(update.update_id), again=again)
                if incoming is not None:
                    await self._albums.take(door, incoming, update.message.media_group_id or "")
        except Exception:  # noqa: BLE001
            _log.exception("telegram: update %d could not be taken", update.update_id)

    async def _press(self, door: Door, query: CallbackQuery) -> None:
        message = query.message
        if message is None:
            return
        pressed = Pressed(place=place_of(message), sender=str(query.from_user.id), data=query.data or "")
        answer = await door.press(pressed)
        with contextlib.suppress(TelegramError):  # the button turns until then; it stops by itself
            await self._bot.answer_callback_query(query.id, text=answer.words[:200] or None)
        if answer.is_over:
            with contextlib.suppress(TelegramError):
                await self._bot.edit_message_reply_markup(message.chat.id, message.message_id, reply_markup=None)

    async def _ask(self, ask: Any) -> Any:  # noqa: ANN401  (one of the bot's methods, and what it gives)
        """Ask until there is an answer. Raises `InvalidToken`."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return await ask()
            except InvalidToken:
                raise
            except RetryAfter as error:
                wait = _seconds(error)
            except TelegramError as error:
                wait = pause
                pause = min(2 * pause, _LONGEST_PAUSE)
                _log.warning("telegram: not reached: %s", self._veil.hide(str(error)))
            await asyncio.sleep(wait)

    # -- showing -----------------------------------------------------------------------------------------------------

    async def send(self, place: str, text: str, buttons: Sequence[Button], *, fixed: bool) -> str:
        """Make a message."""
        with self._told():
            chat, thread = _address(place)
            message = await self._bot.send_message(
                chat,
                text,
                message_thread_id=thread,
                entities=[MessageEntity(MessageEntity.PRE, 0, size(text))] if fixed else None,
                reply_markup=_keyboard(buttons),
                link_preview_options=_NO_PREVIEW,
            )
        return str(message.message_id)

    async def edit(self, place: str, message: str, text: str, buttons: Sequence[Button]) -> None:
        """Change a message."""
        with self._told():
            chat, _ = _address(place)
            await self._bot.edit_message_text(
                text, chat, int(message), reply_markup=_keyboard(buttons), link_preview_options=_NO_PREVIEW
            )

    async def say(self, place: str, sound: Audio) -> None:
        """Send a voice message."""
        with self._told():
            chat, thread = _address(place)
            await self._bot.send_voice(chat, sound.data, message_thread_id=thread, filename="answer.ogg")

    async def show_busy(self, place: str) -> None:
        """Show "typing" for some seconds."""
        with self._told():
            chat, thread = _address(place)
            await self._bot.send_chat_action(chat, ChatAction.TYPING, message_thread_id=thread)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What the library raises, in the words of the seam."""
        try:
            yield
        except RetryAfter as error:
            raise TooFast(_seconds(error)) from None
        except BadRequest as error:
            if "not modified" not in error.message.lower():  # that is how it should look
                raise Refused(self._veil.hide(error.message)) from None
        except (Forbidden, InvalidToken, ChatMigrated) as error:
            raise Refused(self._veil.hide(error.message)) from None
        except NetworkError as error:
            raise Unreachable(self._veil.hide(error.message)) from None
        except TelegramError as error:
            raise Refused(self._veil.hide(error.message)) from None

    async def close(self) -> None:
        """Let go of the connections."""
        await asyncio.gather(*(wire.shutdown() for wire in self._wires))
        self._veil.lift()


class _Veil(logging.Filter):
    """Hides the token in what the libraries log: the addresses that they ask."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token
        known = list(logging.root.manager.loggerDict)
        names = {name for name in known if name.partition(".")[0] in ("telegram", "httpx", "httpcore")}
        self._loggers = [logging.getLogger(name) for name in names]
        for logger in self._loggers:
            logger.addFilter(self)

    def hide(self, text: str) -> str:
        """A text without the token."""
        return text.replace(self._token, "<token>")

    def filter(self, record: logging.LogRecord) -> bool:
        """Change what is logged, and let it pass."""
        message = record.getMessage()
        if self._token in message:
            record.msg, record.args = self.hide(message), ()
        return True

    def lift(self) -> None:
        for logger in self._loggers:
            logger.removeFilter(self)


_NO_PREVIEW: Final = LinkPreviewOptions(is_disabled=True)


def _keyboard(buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
    keys = [InlineKeyboardButton(button.label, callback_data=button.data) for button in buttons]
    if not keys:
        return None
    is_short = sum(len(button.label) for button in buttons) <= _ROW
    return InlineKeyboardMarkup([keys] if is_short else [[key] for key in keys])


def _address(place: str) -> tuple[int, int | None]:
    chat, _, thread = place.partition(":")
    try:
        return int(chat), int(thread) if thread else None
    except ValueError:  # somebody has made a session of such a name, over HTTP
        msg = f"there is no chat {place!r}"
        raise Refused(msg) from None


def _seconds(error: RetryAfter) -> float:
    wait = error.retry_after
    return wait.total_seconds() if isinstance(wait, timedelta) else float(wait)
