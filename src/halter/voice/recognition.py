"""Speech recognition in a worker process: audio files to samples, samples to text.

Decoding checks the current token after each frame. The model is one call into C for each window of sound, which cannot
be interrupted: a stop in the middle of one kills the process.
"""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from halter.cancel.context import checkpoint

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RATE", "UnreadableAudio", "Window", "decode", "transcribe_window"]

RATE: Final = 16_000  # samples per second
_MAX_WINDOW: Final = 20  # seconds; the model was trained for about that
_MIN_WINDOW: Final = 8  # seconds
_FRAME: Final = RATE // 20  # samples
_PADDED_BELOW: Final = 2 * RATE  # samples
_PADDING: Final = RATE // 2  # samples of silence on either side
_SILENCE: Final = 150  # the loudest sample of silence, of 32,767
# Playlists and the like, which name other files or addresses to be read, are not among them.
_FORMATS: Final = "ogg,matroska,webm,mov,mp4,m4a,mp3,wav,flac,aac,aiff,amr,w64"


class UnreadableAudio(ValueError):
    """The audio cannot be decoded; the message says why."""


class Window(Struct, frozen=True):
    """A piece of audio that is transcribed at once. Samples are 16 bits, 16,000 per second."""

    start: float
    end: float
    samples: bytes


def decode(audio: bytes | str, max_seconds: float) -> list[Window]:
    """Decode a file (its bytes, or its path), at most *max_seconds* of it, and split it where it is quiet."""
    import av
    import numpy as np

    limit = int(max_seconds * RATE)
    pieces: list[Any] = []
    count = 0
    # Passed as an open file, never by name: ffmpeg reads some names as URLs.
    with io.BytesIO(audio) if isinstance(audio, bytes) else Path(audio).open("rb") as file:
        try:
            with av.open(file, "r", options={"format_whitelist": _FORMATS, "protocol_whitelist": "none"}) as container:
                resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
                stream = next(iter(container.streams.audio), None)
                if stream is None:
                    msg = "the file has no audio"
                    raise UnreadableAudio(msg)
                for frame in container.decode(stream):
                    checkpoint()
                    for piece in resampler.resample(frame):
                        pieces.append(piece.to_ndarray().reshape(-1))
                        count += len(pieces[-1])
                    if count >= limit:
                        break
                else:
                    pieces += [piece.to_ndarray().reshape(-1) for piece in resampler.resample(None)]
        except av.FFmpegError as error:
            msg = f"cannot decode the audio: {error.strerror}"
            raise UnreadableAudio(msg) from None
    samples = np.concatenate(pieces)[:limit] if pieces else np.zeros(0, np.int16)
    return _windows(samples)


def _windows(samples: np.ndarray[Any, Any]) -> list[Window]:
    windows: list[Window] = []
    start = 0
    while start < len(samples):
        end = len(samples)
        if end - start > _MAX_WINDOW * RATE:
            end = start + _quiet_place(samples[start : start + _MAX_WINDOW * RATE])
        windows.append(Window(start / RATE, end / RATE, samples[start:end].tobytes()))
        start = end
    return windows


def _quiet_place(samples: np.ndarray[Any, Any]) -> int:
    """The middle of the quietest part in which to cut."""
    import numpy as np

    first = _MIN_WINDOW * RATE
    count = (len(samples) - first) // _FRAME
    frames = samples[first : first + count * _FRAME].reshape(count, _FRAME).astype(np.float32)
    # Three frames together, as there are short pauses between words too.
    loudness = np.convolve((frames**2).mean(axis=1), np.ones(3), mode="same")
    return first + int(loudness.argmin()) * _FRAME + _FRAME // 2


def transcribe_window(samples: bytes) -> str:
    """Transcribe a window."""
    import numpy as np

    sound = np.frombuffer(samples, np.int16)
    if len(sound) < RATE // 10 or int(np.abs(sound.astype(np.int32)).max()) < _SILENCE:
        return ""  # the model invents words in silence
    if len(sound) < _PADDED_BELOW:  # a single word without silence around it is often misrecognized: "Stop." as "Uh"
        sound = np.pad(sound, _PADDING)
    result = _model().transcribe_without_streaming((sound.astype(np.float32) / 32768).tolist(), RATE)
    return " ".join(line.text.strip() for line in result.lines if line.text.strip())


@functools.cache
def _model() -> Any:  # noqa: ANN401  (of a package without hints)
    """Load the model, once in this process: about a second."""
    from moonshine_voice.moonshine_api import ModelArch
    from moonshine_voice.transcriber import Transcriber
    from moonshine_voice.utils import get_model_path

    # Without its voice detection, which cuts off the start of words.
    return Transcriber(get_model_path("tiny-en"), ModelArch.TINY, options={"vad_threshold": 0})
