"""Stop phrases mean the same wherever they are said."""

from __future__ import annotations

import pytest

from halter.views.stop_phrases import STOP_PHRASES, StopPhrases

PHRASES = StopPhrases(STOP_PHRASES)


@pytest.mark.parametrize("text", ["stop", "Stop!", "stop stop", "Stop?", "Never  mind", "stop, halt", "stop…"])
def test_only_stop_phrases(text: str) -> None:
    """Case, punctuation, spaces and repetition do not matter."""
    assert PHRASES.are_all(text)


@pytest.mark.parametrize("text", ["", "do not stop", "stop the music", "nonstop", "Stop. Take the other file."])
def test_a_message_that_has_more_in_it(text: str) -> None:
    """A text with other words in it is a message."""
    assert not PHRASES.are_all(text)


def test_a_sentence_of_a_recording() -> None:
    """In speech a phrase counts where it is a sentence of its own."""
    assert PHRASES.said_in("Stop. Take the other file.") == "Stop"
    assert PHRASES.said_in("Do not stop. Take the other file.") == ""


def test_no_phrases() -> None:
    """Without phrases nothing is a stop."""
    assert not StopPhrases([]).are_all("stop")
