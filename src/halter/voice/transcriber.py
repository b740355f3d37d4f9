"""Speech to text: on this machine, or by a server.

    transcriber = Transcriber()
    transcript = await transcriber.transcribe(Path("message.ogg"))
    transcript.text

`Transcriber` understands English, without any network: its model comes inside a wheel. It runs in a process of its own,
which is kept between calls, because loading the model takes a second. A stop returns at once; if the model was in the
middle of something its process is killed, and the next call starts a new one.

`RemoteTranscriber` asks an OpenAI-compatible server and is used in the same way.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from msgspec import Struct

from halter._extras import need
from halter.cancel.context import current_token
from halter.cancel.isolation.api import Workers
from halter.cancel.threads.blocking import run_blocking_async
from halter.models.errors import StreamBroken
from halter.models.http.endpoint import Endpoint, Form, Upload
from halter.voice.recognition import decode, transcribe_window

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from halter.cancel.token import CancellationToken

__all__ = ["AudioFile", "Recording", "RemoteTranscriber", "Segment", "Transcriber", "Transcribes", "Transcript"]

_MAX_UPLOAD: Final = 25_000_000


class AudioFile(Struct, frozen=True):
    """A recording that was read from a file. By its name a server knows the format."""

    name: str
    data: bytes


Recording: TypeAlias = bytes | AudioFile | os.PathLike[str] | str


class Segment(Struct, frozen=True):
    """A piece of a transcript, with its times in seconds."""

    text: str
    start: float = 0.0
    end: float = 0.0
    total: float = 0.0
    """The length of the whole recording; 0 if not known."""


class Transcript(Struct, frozen=True):
    """The text of a recording."""

    segments: list[Segment]
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join(each.text for each in self.segments if each.text)


class Transcribes(Protocol):
    """Anything that turns speech into text."""

    def segments(self, audio: Recording, *, token: CancellationToken | None = None) -> AsyncGenerator[Segment, None]:
        """Transcribe piece by piece."""
        ...

    async def transcribe(self, audio: Recording, *, token: CancellationToken | None = None) -> Transcript:
        """Transcribe all of it. Raises Cancelled when the token is cancelled."""
        ...

    def close(self) -> None:
        """Free all resources. Bounded."""
        ...


class _TranscriberBase:
    """The common part of both transcribers."""

    def segments(self, audio: Recording, *, token: CancellationToken | None = None) -> AsyncGenerator[Segment, None]:
        raise NotImplementedError

    async def transcribe(self, audio: Recording, *, token: CancellationToken | None = None) -> Transcript:
        """Transcribe all of it. Raises Cancelled when the token (default: the current one) is cancelled."""
        async with contextlib.aclosing(self.segments(audio, token=token)) as pieces:
            segments = [each async for each in pieces]
        return Transcript(segments, segments[-1].total if segments else 0.0)


class Transcriber(_TranscriberBase):
    """English speech to text on this machine. Reads ogg/opus, webm, m4a, mp3, wav, flac; *max_seconds* of each.

    Two calls at once use two processes; one of them is kept.
    """

    def __init__(self, *, max_seconds: float = 1_800.0) -> None:
        self._max_seconds = max_seconds
        self._workers = Workers(max_idle=1)

    async def segments(
        self, audio: Recording, *, token: CancellationToken | None = None
    ) -> AsyncGenerator[Segment, None]:
        """Transcribe in pieces of some seconds. Raises Cancelled when the token is cancelled."""
        need("voice", "av", "moonshine_voice", "numpy")
        used_token = current_token() if token is None else token
        if isinstance(audio, AudioFile):
            audio = audio.data
        source = audio if isinstance(audio, bytes) else os.fspath(audio)
        windows = await self._workers.run(decode, source, self._max_seconds, token=used_token)
        for window in windows:
            text = await self._workers.run(transcribe_window, window.samples, token=used_token)
            yield Segment(text, window.start, window.end, windows[-1].end)

    def close(self) -> None:
        """End the process."""
        self._workers.close()


class RemoteTranscriber(_TranscriberBase):
    """Speech to text by an OpenAI-compatible server (`/audio/transcriptions`)."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str = "whisper-1",
        timeout: float = 300.0,
    ) -> None:
        self._endpoint = Endpoint(base_url, api_key, timeout=timeout)
        self._model = model

    async def segments(
        self, audio: Recording, *, token: CancellationToken | None = None
    ) -> AsyncGenerator[Segment, None]:
        """Transcribe all of it, in one piece. Raises Cancelled when the token is cancelled."""
        used_token = current_token() if token is None else token
        if isinstance(audio, AudioFile):
            name, data = audio.name, audio.data
        elif isinstance(audio, bytes):
            name, data = "audio", audio
        else:
            path = Path(audio)
            name, data = path.name, await run_blocking_async(_read, path, token=used_token)
        if len(data) > _MAX_UPLOAD:
            msg = f"{name} is larger than {_MAX_UPLOAD:,} bytes, the limit of most servers"
            raise ValueError(msg)
        form = Form({"model": self._model, "response_format": "json"}, {"file": Upload(name, data)})
        async with used_token.scope():
            answer = await self._endpoint.post_json("/audio/transcriptions", form)
        text = answer.get("text")
        if not isinstance(text, str):
            msg = "the server's answer has no text"
            raise StreamBroken(msg)
        yield Segment(text.strip())

    def close(self) -> None:
        """Nothing to close."""


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_UPLOAD + 1)
