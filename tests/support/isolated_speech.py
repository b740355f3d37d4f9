"""Functions that the tests of speech run in worker processes."""

from __future__ import annotations

from halter import CancellationToken, Cancelled
from halter.voice.espeak import speak


def speak_until_stopped(pieces: int) -> tuple[int, bool]:
    """Say something long, and cancel the token when so many pieces of sound have come; how many came in all."""
    token = CancellationToken()
    count = 0

    def hear() -> None:
        nonlocal count
        count += 1
        if count == pieces:
            token.cancel("stop")

    try:
        with token.bind():
            speak("A long text that goes on and on, with many words in it. " * 200, on_sound=hear)
    except Cancelled:
        return count, True
    return count, False
