"""Speech: text said into a file, and sound files as text. Both on this machine, unless a server is named.

    agent = Agent(model, Speech("work").tools)
    agent = Agent(model, Speech("work", base_url="http://voice.lan/v1", api_key="…").tools)

A stop ends the speaking, and no file is written; of a recording it keeps what was understood until then.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.isolate import run_isolated_async
from halter.cancel.token import Cancelled
from halter.extras import need
from halter.models.endpoint import Endpoint
from halter.toolbox.placing import inside, save
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool
from halter.voice.espeak import speak
from halter.voice.transcriber import RemoteTranscriber, Transcriber, Transcribes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Speech"]

_FORMATS: Final = frozenset({".mp3", ".opus", ".aac", ".flac", ".wav"})


class Speech:
    """Tools that speak and listen.

    With *base_url* (or `remote=True`, and then the environment's OPENAI_BASE_URL) an OpenAI-compatible server does
    both; without, espeak and a small English model on this machine.
    """

    def __init__(  # noqa: PLR0913  (each is the user's to set, and all have a default)
        self,
        workspace: str | Path = ".",
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
        self._workspace = Path(workspace)
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
        """Say a text into a sound file of the workspace.

        Args:
            text: what to say
            path: the file to write, such as answer.wav
            ctx: the call
            voice: which voice; a language such as en-us, en-gb, de or fr. Usually not needed

        """
        if not text.strip() or len(text) > self._max_characters:
            msg = f"give a text of 1 to {self._max_characters:,} characters, not {len(text):,}"
            raise ValueError(msg)
        file = inside(self._workspace, path)
        ctx.report("speaking")
        said = await (self._say_there if self._is_remote else self._say_here)(text, voice or self._voice, file)
        return f"Written to {file.relative_to(self._workspace.resolve())}{said}."

    async def _say_here(self, text: str, voice: str, file: Path) -> str:
        need("voice", "espeakng_loader")
        if file.suffix.lower() != ".wav":
            msg = f"only .wav files can be written here, not {file.name}"
            raise ValueError(msg)
        wav, seconds = await run_isolated_async(speak, text, voice)
        await save(file, wav)
        return f": {seconds:.1f} seconds of speech"

    async def _say_there(self, text: str, voice: str, file: Path) -> str:
        if file.suffix.lower() not in _FORMATS:
            msg = f"{file.name} should end in one of {', '.join(sorted(_FORMATS))}"
            raise ValueError(msg)
        wanted = {
            "model": self._speech_model,
            "input": text,
            "voice": voice,
            "response_format": file.suffix.lower().removeprefix("."),
        }
        sound = await self._endpoint.post("/audio/speech", wanted)
        await save(file, sound)
        return f": {len(sound):,} bytes"

    @tool
    async def transcribe(self, path: str, ctx: ToolContext) -> AsyncIterator[str]:
        """Write down what is said in a sound file of the workspace (ogg, opus, webm, m4a, mp3, wav, flac).

        Args:
            path: the file
            ctx: the call

        """
        file = inside(self._workspace, path)
        if not file.is_file():
            msg = f"there is no file {path} in the workspace"
            raise FileNotFoundError(msg)
        transcriber = ctx.keep(self._transcriber)
        ctx.report("listening")
        has_said = False
        try:
            async with contextlib.aclosing(transcriber.segments(file, token=ctx.token)) as pieces:
                async for piece in pieces:
                    has_said = has_said or bool(piece.text)
                    if piece.text:
                        yield piece.text
                    if piece.total:
                        ctx.report(f"{piece.end:.0f} of {piece.total:.0f} seconds heard")
        except (Cancelled, asyncio.CancelledError):
            if not ctx.token.is_cancelled or not has_said:
                raise
            yield "[Stopped here; the recording goes on.]"
        if not has_said:
            yield "[No speech was heard.]"

    def _transcriber(self) -> Transcribes:
        if self._is_remote:
            return RemoteTranscriber(
                self._base_url, self._api_key, model=self._transcription_model, timeout=self._timeout
            )
        return Transcriber(max_seconds=self._max_seconds)
