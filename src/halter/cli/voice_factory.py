"""Makes the transcription of voice messages from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.cli.settings import SettingsError
from halter.voice.transcriber import RemoteTranscriber, Transcriber, Transcribes
from halter.voice.voice_messages import VoiceMessages

if TYPE_CHECKING:
    from halter.cli.settings import Configuration

__all__ = ["make_voice_messages"]


def make_voice_messages(configuration: Configuration) -> VoiceMessages:
    """Make it. Raises `SettingsError` if the setting `transcriber` is invalid."""
    settings = configuration.settings
    name = settings.transcriber
    transcriber: Transcribes
    if name == "local":
        transcriber = Transcriber()
    elif name.startswith(("http://", "https://")):
        transcriber = RemoteTranscriber(name, model=settings.transcription_model, timeout=settings.voice_timeout)
    else:
        origin = configuration.origins["transcriber"]
        msg = f'{origin}: transcriber must be "local" or the URL of a server (http://… or https://…), not {name!r}'
        raise SettingsError(msg)
    return VoiceMessages(transcriber, stop_phrases=settings.stop_phrases, timeout=settings.voice_timeout)
