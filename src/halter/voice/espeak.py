"""Text to speech on this machine, by espeak-ng: robotic, in a hundred languages, and very fast.

`speak()` runs in a worker process: it is C code that could crash, and it has one state per process. It checks the
current token whenever espeak returns a piece of sound, a few times for each word.
"""

from __future__ import annotations

import ctypes
import functools
import io
import re
import wave
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halter.cancel.context import checkpoint, current_token

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Spoken", "speak"]

_SYNCHRONOUS: Final = 2
_BUFFER: Final = 100  # milliseconds of audio per callback
_DO_NOT_EXIT: Final = 0x8000
_BY_CHARACTER: Final = 1
_UTF8: Final = 1
_RATE_PARAMETER: Final = 1
_SAMPLE: Final = 2  # bytes
_VOICE: Final = re.compile(r"[a-zA-Z0-9+_-]{1,40}")
_CONTINUE, _STOP = 0, 1


class Spoken(NamedTuple):
    """A WAV file and its duration."""

    wav: bytes
    seconds: float


def speak(
    text: str, voice: str = "en-us", words_per_minute: int = 170, on_sound: Callable[[], Any] | None = None
) -> Spoken:
    """Speak *text*. Raises Cancelled as soon as the current token is; *on_sound* is called for each piece of audio."""
    checkpoint()
    library, rate = _library()
    if _VOICE.fullmatch(voice) is None or not _set_voice(library, voice.encode()):
        msg = f"there is no voice {voice!r}; a voice is a language such as en-us, en-gb, de, fr, es, it or pt-br"
        raise ValueError(msg)
    library.espeak_SetParameter(_RATE_PARAMETER, min(max(words_per_minute, 80), 450), 0)
    token = current_token()
    sound = bytearray()

    def on_samples(samples: Any, count: int, _events: Any) -> int:  # noqa: ANN401  (a pointer of C's)
        if token.is_cancelled:
            return _STOP
        if samples and count > 0:
            sound.extend(ctypes.string_at(samples, count * _SAMPLE))
        if on_sound is not None:
            on_sound()
        return _CONTINUE

    callback = _Callback(on_samples)  # referenced until the end, as C has only its address
    library.espeak_SetSynthCallback(callback)
    data = text.replace("\0", " ").encode("utf-8", "replace") + b"\0"
    failure = library.espeak_Synth(data, len(data), 0, _BY_CHARACTER, 0, _UTF8, None, None)
    checkpoint()
    if failure != 0:
        msg = f"espeak failed (error {failure})"
        raise RuntimeError(msg)
    return Spoken(_wav(bytes(sound), rate), len(sound) / _SAMPLE / rate)


class _VoiceProperties(ctypes.Structure):
    """espeak_VOICE."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_char_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


def _set_voice(library: Any, voice: bytes) -> bool:  # noqa: ANN401  (a library of C's)
    """Choose a voice by its name, or by its language: "en-gb" is a language, and its voice has another name."""
    if library.espeak_SetVoiceByName(voice) == 0:
        return True
    wanted = _VoiceProperties(languages=voice)
    return bool(library.espeak_SetVoiceByProperties(ctypes.byref(wanted)) == 0)


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@functools.cache
def _library() -> tuple[Any, int]:
    """Load espeak, once per process; returns it and its sample rate."""
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(_SYNCHRONOUS, _BUFFER, espeakng_loader.get_data_path().encode(), _DO_NOT_EXIT)
    if rate <= 0:
        msg = "espeak did not start"
        raise RuntimeError(msg)
    return library, rate


def _wav(sound: bytes, rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(_SAMPLE)
        writer.setframerate(rate)
        writer.writeframes(sound)
    return file.getvalue()
