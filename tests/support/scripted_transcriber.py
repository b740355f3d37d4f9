"""A transcriber that follows a script: what a recording says is what is in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from halter import CancellationToken
from halter.models import Audio
from halter.testing import Gate
from halter.voice.transcriber import Recording, Segment, Transcript


def sound(*pieces: str) -> Audio:
    """A recording of these pieces."""
    return Audio("|".join(pieces).encode(), "audio/ogg")


class ScriptedTranscriber:
    """Understands recordings of `sound()`, and tells in which order it began with them.

    It waits before a piece of the name of a gate until that is open. "fail" fails.
    """

    def __init__(self, **gates: Gate) -> None:
        self.began: list[str] = []
        self.cancelled: list[str] = []
        self.is_closed = False
        self._gates = gates

    async def segments(
        self, audio: Recording, *, token: CancellationToken | None = None
    ) -> AsyncGenerator[Segment, None]:
        assert isinstance(audio, bytes)
        assert token is not None
        text = audio.decode()
        self.began.append(text)
        try:
            for piece in text.split("|"):
                if piece in self._gates:
                    async with token.scope():
                        await self._gates[piece]._pass()
                elif piece == "fail":
                    raise RuntimeError("the pen broke.")
                else:
                    yield Segment(piece)
        finally:
            if token.is_cancelled:
                self.cancelled.append(text)

    async def transcribe(self, audio: Recording, *, token: CancellationToken | None = None) -> Transcript:
        return Transcript([each async for each in self.segments(audio, token=token)])

    def close(self) -> None:
        self.is_closed = True
