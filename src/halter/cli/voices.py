"""Voice messages as the settings want them: for whoever serves, and for the platforms that it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.cli.settings import SettingsError
from halter.voice.hearing import Hearing
from halter.voice.transcriber import RemoteTranscriber, Transcriber, Transcribes

if TYPE_CHECKING:
    from halter.cli.settings import Configuration

__all__ = ["make_hearing"]


def make_hearing(configuration: Configuration) -> Hearing:
    """Make what hears. Raises `SettingsError` if the settings name nobody who could transcribe."""
    settings = configuration.settings
    who = settings.transcriber
    transcriber: Transcribes
    if who == "local":
        transcriber = Transcriber()
    elif who.startswith(("http://", "https://")):
        transcriber = RemoteTranscriber(who, model=settings.transcription_model, timeout=settings.voice_timeout)
    else:
        origin = configuration.origins["transcriber"]
        msg = f'{origin}: transcriber is "local", or the address of a server (http://… or https://…); not {who!r}'
        raise SettingsError(msg)
    return Hearing(transcriber, stop_phrases=settings.stop_phrases, timeout=settings.voice_timeout)
