"""Converts updates of Telegram to `Incoming`, and downloads attachments."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from telegram.error import BadRequest, Forbidden, InvalidToken, TelegramError

from halter.gateway.chat.adapter import AttachmentUnavailable, Fetch, Incoming
from halter.models.backoff import Backoff
from halter.models.image_types import IMAGE_TYPES
from halter.models.types import Audio, Image

if TYPE_CHECKING:
    from collections.abc import Callable

    from telegram import Bot, MaybeInaccessibleMessage, Message

    from halter.models.types import Part

__all__ = ["chat_id_of", "read_message"]

_COMMAND: Final = re.compile(r"/([A-Za-z0-9_]{1,32})(?:@(\w+))?(?:\s+|$)")
_MAX_BYTES: Final = 20_000_000  # bytes; the limit of Telegram's own server
_MAX_TRIES: Final = 4
_BACKOFF: Final = Backoff()
_UNSUPPORTED: Final = {
    "Animation": "an animation",
    "Contact": "a contact",
    "Dice": "a die",
    "Document": "a file of this kind",
    "Location": "a location",
    "Poll": "a poll",
    "Sticker": "a sticker",
    "Venue": "a venue",
    "Video": "a video",
    "VideoNote": "a video",
}


def chat_id_of(message: MaybeInaccessibleMessage) -> str:
    """The id of the chat, or of the topic in it."""
    thread = getattr(message, "message_thread_id", None)
    is_topic = getattr(message, "is_topic_message", None)
    return f"{message.chat.id}:{thread}" if is_topic and thread else str(message.chat.id)


def read_message(bot: Bot, message: Message, username: str, update: str, *, redelivered: bool) -> Incoming | None:
    """Convert a message; None if it is a service message or a command for another bot."""
    sender = message.from_user
    text = message.text or message.caption or ""
    fetch, unsupported = _attached(bot, message)
    if sender is None or not (text or fetch or unsupported):
        return None
    command = ""
    found = _COMMAND.match(text)
    if found is not None:
        if found[2] and found[2].lower() != username:
            return None
        command, text = found[1].lower(), text[found.end() :]
    return Incoming(
        id=update,
        chat_id=chat_id_of(message),
        order=message.message_id,
        sender=str(sender.id),
        command=command,
        text=text,
        fetch=fetch,
        unsupported=unsupported,
        redelivered=redelivered,
    )


def _attached(bot: Bot, message: Message) -> tuple[Fetch | None, str]:
    """How to download the attachment; or what it is, if it is not supported."""
    attached = message.effective_attachment
    if attached is None:
        return None, ""
    if message.photo:
        photo = message.photo[-1]  # the largest
        return _fetch(bot, photo.file_id, lambda data: Image(data, media_type="image/jpeg")), ""
    sound = message.voice or message.audio
    if sound is not None:
        kind = sound.mime_type or "audio/ogg"
        return _fetch(bot, sound.file_id, lambda data: Audio(data, media_type=kind)), ""
    file = message.document
    if file is not None and message.animation is None and file.mime_type in IMAGE_TYPES:
        picture = file.mime_type
        return _fetch(bot, file.file_id, lambda data: Image(data, media_type=picture)), ""
    return None, _UNSUPPORTED.get(type(attached).__name__, "this kind of message")


def _fetch(bot: Bot, file_id: str, make: Callable[[bytes], Part]) -> Fetch:
    async def fetch() -> list[Part]:
        """Download it, with a few tries."""
        for retry in range(_MAX_TRIES):
            try:
                file = await bot.get_file(file_id)
                if (file.file_size or 0) > _MAX_BYTES:
                    msg = f"it is larger than {_MAX_BYTES:,} bytes"
                    raise AttachmentUnavailable(msg)
                return [make(bytes(await file.download_as_bytearray()))]
            except (BadRequest, Forbidden, InvalidToken):
                break
            except TelegramError:
                await asyncio.sleep(_BACKOFF.delay(retry))
        msg = "Telegram did not deliver it"
        raise AttachmentUnavailable(msg)

    return fetch
