"""Text to speech on this machine."""

from __future__ import annotations

import io
import wave

import pytest

from halter import CancellationToken, Cancelled, run_isolated
from halter.voice.espeak import speak
from tests.support.isolated_speech import speak_until_stopped


def test_a_text_becomes_a_wav_file() -> None:
    """A file that the standard library can read, as long as it says."""
    spoken = run_isolated(speak, "Hello there.")
    with wave.open(io.BytesIO(spoken.wav)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        assert file.getnframes() / file.getframerate() == pytest.approx(spoken.seconds)
    assert 0.3 < spoken.seconds < 5


def test_voices_and_speeds_differ() -> None:
    """Another language and another speed are heard."""
    slow, fast, german = (
        run_isolated(speak, "One two three four five", voice, speed)
        for voice, speed in (("en-us", 100), ("en-us", 300), ("de", 100))
    )
    assert slow.seconds > fast.seconds
    assert german.wav != slow.wav


@pytest.mark.parametrize("voice", ["en-us", "en-gb", "de", "fr", "fr-fr", "es", "it", "pt-br"])
def test_a_voice_is_a_language(voice: str) -> None:
    """Every language that the error message recommends can be used: "en-gb" was refused, and recommended."""
    assert run_isolated(speak, "One.", voice).seconds > 0.1


@pytest.mark.parametrize("voice", ["klingon-x", "../../etc", "", "en\0us"])
def test_an_unknown_voice_is_refused(voice: str) -> None:
    """With the names of some that are there."""
    with pytest.raises(ValueError, match="such as en-us"):
        run_isolated(speak, "Hello", voice)


def test_odd_texts_are_said() -> None:
    """Null bytes, half surrogates and markup neither cut it short nor crash it."""
    for text in ("before \0 after", "half \ud800 pair", "<speak>markup & more</speak>", "漢字", "🐴"):
        assert run_isolated(speak, text).wav


def test_a_stop_aborts_it_from_its_callback() -> None:
    """No more than one piece of sound is made after the stop."""
    count, was_stopped = run_isolated(speak_until_stopped, 3)
    assert was_stopped
    assert count <= 4


def test_nothing_is_said_after_a_stop() -> None:
    """A token that is cancelled already means that nothing begins."""
    token = CancellationToken()
    token.cancel("stop")
    with pytest.raises(Cancelled):
        run_isolated(speak, "Hello", token=token)
