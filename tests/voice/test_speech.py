"""Answers, said: what is read out, that it can be understood, and that a stop ends it."""

from __future__ import annotations

import asyncio
import io

import av
import pytest

from halter import CancellationToken, Cancelled
from halter.voice.speech import readable, speak_reply
from halter.voice.transcriber import Transcriber
from tests.support.looped import looped
from tests.support.sounds import SENTENCE, likeness


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Plain words.", "Plain words."),
        ("# Title\n\n**Bold**, _slanted_, ~~gone~~ and `code`.", "Title\nBold, slanted, gone and code."),
        ("- one\n* two\n> three\n1. four", "one\ntwo\nthree\n1. four"),
        ("See [the page](https://a.b/c) or https://d.e/f?g=1.", "See the page or (link)"),
        ("Before\n```python\nx = 1\n```\nafter", "Before\n(Code.)\nafter"),
        ("It is still being\n```\nwritten", "It is still being\n(Code.)"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "a  b\n1  2"),
        ("snake_case and 2 * 3", "snake_case and 2  3"),
        ("  \n---\n***\n", ""),
        ("🎉", ""),
        ("", ""),
    ],
)
def test_what_is_read_out_is_what_a_person_would_read(text: str, said: str) -> None:
    """Words, without the signs around them, and nothing where there are none."""
    assert readable(text) == said


def test_nobody_is_read_to_for_ever() -> None:
    """A long text is cut between two words, and the listener is told."""
    said = readable("word " * 100_000)
    assert len(said) < 6_000
    assert said.endswith("word\nThe rest is in the text.")


@looped
async def test_an_answer_becomes_a_voice_message_that_can_be_understood() -> None:
    """It is ogg/opus, and a listener hears what was written."""
    sound = await speak_reply(f"**{SENTENCE}**")
    assert sound is not None
    assert sound.media_type == "audio/ogg"
    with av.open(io.BytesIO(sound.data), "r") as container:
        assert (container.format.name, container.streams.audio[0].codec_context.name) == ("ogg", "opus")
    transcriber = Transcriber()
    try:
        assert likeness((await transcriber.transcribe(sound.data)).text) >= 0.6
    finally:
        transcriber.close()


@looped
async def test_there_may_be_nothing_to_say() -> None:
    """An answer of signs alone is no voice message."""
    assert await speak_reply("***") is None


@looped
async def test_a_stop_ends_the_speaking() -> None:
    """Before it begins and in the middle of it: control is back, and nothing is said."""
    token = CancellationToken()
    speaking = asyncio.ensure_future(speak_reply("A long answer with many words in it. " * 130, token))
    await asyncio.sleep(0)  # it has begun
    token.cancel("stop")
    with pytest.raises(Cancelled, match="stop"):
        await speaking
    with pytest.raises(Cancelled):
        await speak_reply("Never said.", token)
    with token.bind(), pytest.raises(Cancelled):
        await speak_reply("Never said.")
    assert await speak_reply("Said.") is not None
