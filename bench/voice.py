"""How long a spoken word takes to stop a turn, and what a large recording costs those who do not speak.

Real speech, the real model, warm. Three figures: from `post()` of a recorded "stop" to the end of the turn, beside the
transcription of the same recording alone; seconds of speech that are understood in a second; and for how long the event
loop, in which all sessions of a gateway run, stands still while 10 MB are accepted into SQLite, by `post()` and by a
plain `post()`.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import asyncio
import tempfile
import time
from pathlib import Path

from bench.measure import percentile, print_table
from halter import Agent, run_isolated
from halter.models import Audio
from halter.stores import SQLiteStore
from halter.testing import Gate, ScriptedModel
from halter.voice.espeak import speak
from halter.voice.speech import synthesize
from halter.voice.transcriber import Transcriber
from halter.voice.voice_messages import VoiceMessages

_ROUNDS = 20
_LARGE = 10_000_000
_WORDS = "The meeting starts at nine in the morning, and everybody brings the report. " * 12


async def stop_by_voice(voice_messages: VoiceMessages, recording: bytes) -> float:
    """Milliseconds from the message to the end of the turn."""
    gate = Gate()
    async with Agent(ScriptedModel(["I go on and on, ", gate])).session() as session:
        running = asyncio.create_task(session.arun("Begin."))
        await gate.await_reached()
        start = time.perf_counter()
        await voice_messages.post(session, Audio(recording, "audio/ogg"))
        turn = await running
        assert turn.reason == "stop", turn
        return (time.perf_counter() - start) * 1e3


async def stall(store: SQLiteStore, voice_messages: VoiceMessages | None) -> float:
    """The longest time, in milliseconds, for which a large recording kept the loop from everything else."""
    longest, last, is_over = 0.0, time.perf_counter(), False

    async def tick() -> None:
        nonlocal longest, last
        while not is_over:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    async with Agent(ScriptedModel()).session(None, store) as session:
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0.02)
        longest = 0.0
        sound = Audio(bytes(_LARGE))
        if voice_messages is None:
            session.post(sound)
        else:
            await voice_messages.post(session, sound)
        await asyncio.sleep(0)
        is_over = True
        await ticking
    return longest * 1e3


async def main() -> None:
    transcriber = Transcriber()
    voice_messages = VoiceMessages(transcriber)
    stop = run_isolated(synthesize, "Stop.", "en-us")
    long = run_isolated(speak, _WORDS)
    await transcriber.transcribe(stop)  # the model is loaded now
    alone, stops = [], []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        await transcriber.transcribe(stop)
        alone.append((time.perf_counter() - start) * 1e3)
        stops.append(await stop_by_voice(voice_messages, stop))
    start = time.perf_counter()
    await transcriber.transcribe(long.wav)
    speed = long.seconds / (time.perf_counter() - start)
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "s.db") as store:
        ours = [await stall(store, voice_messages) for _ in range(5)]
        plain = [await stall(store, None) for _ in range(5)]
    await voice_messages.close()
    print_table(
        f"Voice messages, {_ROUNDS} rounds",
        ["what", "median", "worst"],
        [
            ["a spoken stop, to the end of the turn", *_ms(stops)],
            ["  its transcription alone", *_ms(alone)],
            ["the loop stands still for 10 MB, hear()", *_ms(ours)],
            ["  the same, post() in the loop", *_ms(plain)],
            ["speech understood in a second", f"{speed:.1f} s", ""],
        ],
    )


def _ms(values: list[float]) -> list[str]:
    return [f"{percentile(values, 50):.1f} ms", f"{max(values):.1f} ms"]


if __name__ == "__main__":
    asyncio.run(main())
