"""Text to speech and speech to text, on this machine unless a server is given.

    agent = Agent(model, Speech("work").tools)
    agent = Agent(model, Speech("work", base_url="http://voice.lan/v1", api_key="…").tools)

A stop ends the synthesis, and no file is written; of a recording it keeps the transcript so far.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from halter._extras import need
from halter.cancel.isolation.api import run_isolated_async
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import Cancelled
from halter.models.http.endpoint import Endpoint
from halter.toolbox.files.media import read_file, save_file
from halter.toolbox.files.workspace import Workspace
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool
from halter.voice.espeak import speak
from halter.voice.transcriber import AudioFile, RemoteTranscriber, Transcriber, Transcribes

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator

__all__ = ["Speech"]

_FORMATS: Final = frozenset({".mp3", ".opus", ".aac", ".flac", ".wav"})
_MAX_BYTES: Final = 200_000_000


class Speech:
    """The tools `text_to_speech` and `transcribe`.

    With *base_url* (or `remote=True`, and then the environment's OPENAI_BASE_URL) an OpenAI-compatible server does
    both; without, espeak and a small English model on this machine.
    """

    def __init__(  # noqa: PLR0913  (each is the user's to set, and all have a default)
        self,
        workspace: str | os.PathLike[str] = ".",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        remote: bool = False,
        speech_model: str = "tts-1",
        transcription_model: str = "whisper-1",
        voice: str | None = None,
        max_characters: int = 20_000,
        max_seconds: float = 1_800.0,
        timeout: float = 300.0,
    ) -> None:
        self._workspace = Workspace(workspace)
        self._is_remote = remote or base_url is not None
        self._base_url = base_url
        self._api_key = api_key
        self._endpoint = Endpoint(base_url, api_key, timeout=timeout)
        self._speech_model = speech_model
        self._transcription_model = transcription_model
        self._voice = voice or ("alloy" if self._is_remote else "en-us")
        self._max_characters = max_characters
        self._max_seconds = max_seconds
        self._timeout = timeout

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """Both tools."""
        return [self.text_to_speech, self.transcribe]

    @tool
    async def text_to_speech(self, text: str, path: str, ctx: ToolContext, voice: str = "") -> str:
        """Speak a text into an audio file in the workspace.

        Args:
            text: the text to speak
            path: the file to write, such as answer.wav
            ctx: the call
            voice: the voice; a language such as en-us, en-gb, de or fr. Usually not needed

        """
        if not text.strip() or len(text) > self._max_characters:
            raise ValueError(f"the text must have 1 to {self._max_characters:,} characters, not {len(text):,}")
        self._workspace.check(path)
        ctx.report("speaking")
        speak_it = self._speak_there if self._is_remote else self._speak_here
        sound, length = await speak_it(text, voice or self._voice, PurePosixPath(path).suffix.lower())
        return f"Written to {await save_file(self._workspace, path, sound)}: {length}."

    async def _speak_here(self, text: str, voice: str, suffix: str) -> tuple[bytes, str]:
        need("voice", "espeakng_loader")
        if suffix != ".wav":
            raise ValueError(f"only .wav files can be written, not {suffix or 'files without a suffix'}")
        wav, seconds = await run_isolated_async(speak, text, voice)
        return wav, f"{seconds:.1f} seconds of speech"

    async def _speak_there(self, text: str, voice: str, suffix: str) -> tuple[bytes, str]:
        if suffix not in _FORMATS:
            raise ValueError(f"the file name must end in one of {', '.join(sorted(_FORMATS))}")
        request = {
            "model": self._speech_model,
            "input": text,
            "voice": voice,
            "response_format": suffix.removeprefix("."),
        }
        sound = await self._endpoint.post("/audio/speech", request)
        return sound, f"{len(sound):,} bytes"

    @tool
    async def transcribe(self, path: str, ctx: ToolContext) -> AsyncIterator[str]:
        """Transcribe an audio file in the workspace (ogg, opus, webm, m4a, mp3, wav, flac).

        Args:
            path: the file
            ctx: the call

        """
        # Read here and not by the transcriber: a directory of the path may be swapped for a link meanwhile.
        try:
            data = await run_blocking_async(read_file, self._workspace, path, _MAX_BYTES)
        except FileNotFoundError:
            raise FileNotFoundError(f"no such file in the workspace: {path}") from None
        recording = AudioFile(PurePosixPath(path).name, data)
        transcriber = ctx.keep(self._transcriber)
        ctx.report("listening")
        has_text = False
        try:
            async with contextlib.aclosing(transcriber.segments(recording, token=ctx.token)) as pieces:
                async for piece in pieces:
                    has_text = has_text or bool(piece.text)
                    if piece.text:
                        yield piece.text
                    if piece.total:
                        ctx.report(f"{piece.end:.0f} of {piece.total:.0f} seconds transcribed")
        except (Cancelled, asyncio.CancelledError):
            if not ctx.token.is_cancelled or not has_text:
                raise
            yield "[Stopped here; the recording continues.]"
        if not has_text:
            yield "[No speech was recognized.]"

    def _transcriber(self) -> Transcribes:
        if self._is_remote:
            return RemoteTranscriber(
                self._base_url, self._api_key, model=self._transcription_model, timeout=self._timeout
            )
        return Transcriber(max_seconds=self._max_seconds)
