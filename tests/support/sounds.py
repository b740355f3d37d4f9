"""Sound files for the tests: spoken by espeak, packed in every way that people send them."""

from __future__ import annotations

import functools
import io
import re
import subprocess
import sys
from typing import Any

import av

SENTENCE = "The meeting starts at nine in the morning. Please bring the report and two copies of the letter."
PACKINGS = {
    "ogg": ("ogg", "libopus"),
    "webm": ("webm", "libopus"),
    "m4a": ("mp4", "aac"),
    "mp3": ("mp3", "libmp3lame"),
    "flac": ("flac", "flac"),
    "wav": ("wav", "pcm_s16le"),
}


@functools.cache
def spoken(text: str = SENTENCE) -> bytes:
    """A WAV file that says it: always the same one, as the first text that a process says always sounds the same."""
    code = "import sys; from halter.voice.espeak import speak; sys.stdout.buffer.write(speak(sys.argv[1]).wav)"
    return subprocess.run([sys.executable, "-c", code, text], stdout=subprocess.PIPE, check=True).stdout


@functools.cache
def packed(name: str, text: str = SENTENCE) -> bytes:
    """The same, as another kind of file."""
    container, codec = PACKINGS[name]
    file = io.BytesIO()
    with av.open(io.BytesIO(spoken(text)), "r") as source, av.open(file, "w", format=container) as target:
        stream: Any = target.add_stream(codec, rate=48_000)
        stream.layout = "mono"
        resampler = av.AudioResampler(format=stream.format or "s16", layout="mono", rate=48_000)
        for frame in source.decode(audio=0):
            for piece in resampler.resample(frame):
                target.mux(stream.encode(piece))
        for piece in resampler.resample(None):
            target.mux(stream.encode(piece))
        target.mux(stream.encode(None))
    return file.getvalue()


def likeness(heard: str, said: str = SENTENCE) -> float:
    """Which part of the words that were said was heard."""
    words = re.findall(r"[a-z]+", said.lower())
    found = set(re.findall(r"[a-z]+", heard.lower()))
    return sum(word in found for word in words) / len(words)
