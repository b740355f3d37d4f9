"""The messages that a chat should show, and the task that makes it so.

Each message renders its own text on demand. One task per chat sends and edits as long as something has changed, within
the rate of that chat. It always sends the latest text: a message that changed ten times meanwhile is edited once. New
messages are sent in order, and before edits of older ones. What cannot be sent now is retried; what the platform
rejects is dropped and logged.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.gateway.chat.adapter import PlatformUnreachable, RateLimited, SendRejected
from halter.gateway.chat.text_chunks import split
from halter.models.backoff import UNTIL_IT_WORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halter.gateway.chat.adapter import Button, ChatAdapter
    from halter.gateway.chat.send_rate import SendRate

__all__ = ["OutgoingMessage", "OutgoingQueue"]

_log = logging.getLogger(__name__)
_MAX_TRIES: Final = 60  # about half an hour
_PLACEHOLDER: Final = "…"  # for a message that is no longer needed because the text became shorter


class _Sent(NamedTuple):
    """A platform message, as it was sent or edited last."""

    message_id: str
    text: str
    buttons: tuple[Button, ...]


class OutgoingMessage:
    """A text to show, as one platform message or as many as its length needs."""

    __slots__ = ("_queue", "_sent", "buttons", "is_changed", "is_final", "monospace", "render", "tries")

    def __init__(
        self, queue: OutgoingQueue, render: Callable[[], str], buttons: Sequence[Button], *, monospace: bool
    ) -> None:
        self._queue = queue
        self._sent: list[_Sent] = []
        self.render = render
        self.buttons = tuple(buttons)
        self.monospace = monospace
        self.is_changed = True
        self.is_final = False
        self.tries = 0

    @property
    def is_new(self) -> bool:
        """Whether nothing of it was sent yet."""
        return not self._sent

    def change(self) -> None:
        """Mark the text as changed."""
        if not self.is_changed:
            self.is_changed = True
            self._queue.wake()

    def finish(self, text: str | None = None) -> None:
        """Set the last text, if one is given, and remove the buttons. It will not change any more."""
        if text is not None:
            self.render = lambda: text
        self.buttons = ()
        self.is_final = True
        self.change()

    async def send_next(self, platform: ChatAdapter, chat_id: str) -> None:
        """Send or edit one platform message, the first that differs from what should be shown."""
        self.is_changed = False
        pieces = split(self.render(), platform.max_length)
        wanted = [(piece, () if at + 1 < len(pieces) else self.buttons) for at, piece in enumerate(pieces)]
        wanted += [(_PLACEHOLDER, ())] * (len(self._sent) - len(wanted))
        steps = [at for at, want in enumerate(wanted) if at >= len(self._sent) or self._sent[at][1:] != want]
        if not steps:
            return
        at = steps[0]
        text, buttons = wanted[at]
        try:
            if at < len(self._sent):
                message_id = self._sent[at].message_id
                await platform.edit(chat_id, message_id, text, buttons)
                self._sent[at] = _Sent(message_id, text, buttons)
            else:
                message_id = await platform.send(chat_id, text, buttons, monospace=self.monospace)
                self._sent.append(_Sent(message_id, text, buttons))
        except (RateLimited, PlatformUnreachable):
            self.is_changed = True
            raise
        self.tries = 0
        self.is_changed |= len(steps) > 1


class OutgoingQueue:
    """The messages of one chat that are new or may still change."""

    def __init__(self, platform: ChatAdapter, chat_id: str, rate: SendRate) -> None:
        self._platform = platform
        self._chat_id = chat_id
        self._rate = rate
        self._messages: list[OutgoingMessage] = []
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, render: Callable[[], str], buttons: Sequence[Button] = ()) -> OutgoingMessage:
        """Show a message that may change until `finish()`."""
        message = OutgoingMessage(self, render, buttons, monospace=False)
        self._messages.append(message)
        self.wake()
        return message

    def say(self, text: str, buttons: Sequence[Button] = (), *, monospace: bool = False) -> None:
        """Show a message that does not change."""
        message = OutgoingMessage(self, lambda: text, buttons, monospace=monospace)
        message.is_final = True
        self._messages.append(message)
        self.wake()

    def wake(self) -> None:
        """Make the task check for changes; start it if there is none."""
        self._woken.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing that could still change."""
        return self._task is None and not self._messages

    async def flush(self) -> None:
        """Wait until everything is sent. The caller sets the time limit."""
        while self._task is not None:
            await asyncio.wait({self._task})

    def close(self) -> None:
        """Send nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        """Send whatever has changed. A boundary: an unexpected error is logged, and the queue is emptied."""
        try:
            while (message := self._next()) is not None:
                self._woken.clear()
                delay = self._rate.delay(is_edit=not message.is_new)
                if delay > 0:  # a new message may come meanwhile that need not wait as long
                    await _wait(self._woken, delay)
                else:
                    await self._send(message)
        except Exception:  # noqa: BLE001
            _log.exception("sending to a chat failed", extra={"chat": self._chat_id})
            self._messages.clear()
        finally:
            self._task = None

    def _next(self) -> OutgoingMessage | None:
        self._messages = [each for each in self._messages if each.is_changed or not each.is_final]
        changed = [each for each in self._messages if each.is_changed]
        return next((each for each in changed if each.is_new), changed[0] if changed else None)

    async def _send(self, message: OutgoingMessage) -> None:
        self._rate.take()
        try:
            await message.send_next(self._platform, self._chat_id)
        except RateLimited as error:
            self._rate.pause(error.seconds)
        except PlatformUnreachable as error:
            message.tries += 1
            self._rate.pause(UNTIL_IT_WORKS.delay(message.tries))
            if message.tries >= _MAX_TRIES:
                self._give_up(message, error)
        except SendRejected as error:
            self._give_up(message, error)
        finally:
            self._rate.sent()

    def _give_up(self, message: OutgoingMessage, error: Exception) -> None:
        _log.warning("a chat message was not sent: %s", error, extra={"chat": self._chat_id})
        self._messages.remove(message)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()
