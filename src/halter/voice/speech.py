"""Spoken answers: the text of a turn as a voice message, made on this machine.

    sound = await speak_reply(turn.text, turn_token)

The text is spoken without its markup, as a person would read it out. The speech is made in a worker process, which a
stop ends at once.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, Final

from halter._extras import need
from halter.cancel.context import checkpoint
from halter.cancel.isolation.api import run_isolated_async
from halter.models.types import Audio
from halter.voice.espeak import speak

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken

__all__ = ["readable", "speak_reply", "synthesize"]

_MAX_LENGTH: Final = 5_000  # characters: about five minutes
_RATE: Final = 48_000  # samples per second
_BLOCK: Final = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1[`~]*\s*$|\Z)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
_ADDRESS: Final = re.compile(r"<?https?://[^\s>]+>?")
_LINE_START: Final = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+][ \t]+)+", re.MULTILINE)
_RULE: Final = re.compile(r"^[ \t]*[-*_|:= \t]{3,}$", re.MULTILINE)
_SIGNS: Final = re.compile(r"\*+|`+|~~|__+|(?<!\w)_|_(?!\w)|\|")


async def speak_reply(text: str, token: CancellationToken | None = None, *, voice: str = "en-us") -> Audio | None:
    """A text as speech in ogg/opus. None if there is nothing in it to say aloud.

    Raises Cancelled as soon as the token (default: the current one) is cancelled.
    """
    need("voice", "av", "espeakng_loader")
    words = readable(text)
    if not words:
        return None
    return Audio(await run_isolated_async(synthesize, words, voice, token=token), "audio/ogg")


def readable(text: str) -> str:
    """A text as it is read aloud: without markup, URLs and code, and of bounded length."""
    plain = _BLOCK.sub("\n(Code.)\n", text)
    plain = _ADDRESS.sub("(link)", _LINK.sub(r"\1", plain))
    plain = _SIGNS.sub("", _LINE_START.sub("", _RULE.sub("", plain)))
    plain = "\n".join(line.strip() for line in plain.splitlines() if line.strip())
    if len(plain) > _MAX_LENGTH:
        plain = plain[:_MAX_LENGTH].rpartition(" ")[0] + "\nThe rest is in the text."
    return plain if any(each.isalnum() for each in plain) else ""


def synthesize(text: str, voice: str) -> bytes:
    """Speak it into an ogg/opus file, in a worker process."""
    import av

    file = io.BytesIO()
    wav = speak(text, voice).wav
    with av.open(io.BytesIO(wav), "r") as source, av.open(file, "w", format="ogg") as target:
        stream: Any = target.add_stream("libopus", rate=_RATE)
        stream.layout = "mono"
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=_RATE)
        for frame in [*source.decode(audio=0), None]:
            checkpoint()
            for piece in resampler.resample(frame):
                target.mux(stream.encode(piece))
        target.mux(stream.encode(None))
    return file.getvalue()
