"""Speech to text: real speech in, words out."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halter import CancellationToken, Cancelled
from halter.cancel import abandoned
from halter.cancel.isolation.api import Workers
from halter.models.errors import ModelError
from halter.voice.recognition import RATE, UnreadableAudio, _windows, decode
from halter.voice.transcriber import RemoteTranscriber, Transcriber
from tests.support.processes import wait_dead
from tests.support.slow_server import SlowServer
from tests.support.sounds import PACKINGS, likeness, packed, spoken
from tests.support.waiting import wait_until


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 120))


@pytest.fixture(scope="module")
def transcriber() -> Iterator[Transcriber]:
    made = Transcriber()
    yield made
    made.close()


@pytest.mark.parametrize("name", PACKINGS)
def test_speech_is_understood_however_it_is_packed(transcriber: Transcriber, name: str, tmp_path: Path) -> None:
    """What espeak said is mostly what the model hears, given as bytes or as a file."""
    data = packed(name)
    path = tmp_path / f"message.{name}"
    path.write_bytes(data)
    transcript = run(transcriber.transcribe(data if name in ("ogg", "wav") else path))
    assert likeness(transcript.text) >= 0.6, transcript.text
    assert 3 < transcript.seconds < 20


def test_the_process_stays_between_calls(transcriber: Transcriber) -> None:
    """The second call is answered by the same process; after a crash there is a new one."""

    async def main() -> None:
        first = await transcriber._workers.run(os.getpid)
        await transcriber.transcribe(spoken("Hello."))
        assert await transcriber._workers.run(os.getpid) == first
        os.kill(first, signal.SIGKILL)
        wait_dead(first)
        assert await transcriber._workers.run(os.getpid) != first

    run(main())


def test_a_stop_gives_control_back_and_leaves_nothing() -> None:
    """In the middle of a call into the model: Cancelled at once, the process is killed, and the next call works."""
    transcriber = Transcriber()
    idle = transcriber._workers._idle.workers

    async def is_killed_by_a_stop() -> bool:
        """Whether it was: a call that ends within its grace keeps its process."""
        pid, token = await transcriber._workers.run(os.getpid), CancellationToken()
        recording = spoken("Many words are said here. " * 40)
        async with contextlib.aclosing(transcriber.segments(recording, token=token)) as pieces:
            await anext(pieces)  # the recording is decoded, which is quick: what comes now is the model's work
            task = asyncio.ensure_future(anext(pieces))
            await asyncio.to_thread(wait_until, lambda: not idle)
            token.cancel("interrupt")
            with pytest.raises(Cancelled):
                await task
        await asyncio.to_thread(wait_until, lambda: len(abandoned) == 0)
        if idle:
            return False
        await asyncio.to_thread(wait_dead, pid)
        return True

    async def main() -> None:
        assert any([await is_killed_by_a_stop() for _ in range(3)])
        assert (await transcriber.transcribe(b"".join([spoken("Hello.")]))).seconds > 0.2

    run(main())
    transcriber.close()


def test_closing_ends_the_process_also_at_work() -> None:
    """Whoever closes a session is not kept by a model that thinks."""
    workers = Workers()

    async def main() -> None:
        idle = await workers.run(os.getpid)
        workers.close()
        await asyncio.to_thread(wait_dead, idle)
        with pytest.raises(Cancelled, match="shutdown"):
            await workers.run(os.getpid)
        workers.close()
        busy = Workers()
        pid = await busy.run(os.getpid)
        task = asyncio.ensure_future(busy.run(time.sleep, 60))
        await asyncio.to_thread(wait_until, lambda: not busy._idle.workers)
        busy.close()
        with pytest.raises(Cancelled, match="shutdown"):
            await task
        await asyncio.to_thread(wait_dead, pid)

    run(main())


def test_a_stop_before_the_start_starts_nothing(transcriber: Transcriber) -> None:
    """Cancelled is raised before anything is read."""
    token = CancellationToken()
    token.cancel("stop")
    with pytest.raises(Cancelled):
        run(transcriber.transcribe(b"nothing", token=token))


def test_a_single_word_is_understood(transcriber: Transcriber) -> None:
    """A recording of one word with no silence around it was misheard: "Stop." as "Uh"."""
    assert run(transcriber.transcribe(without_silence(first_spoken("Stop.")))).text == "Stop."


def first_spoken(text: str) -> bytes:
    """A WAV file from a new process: what espeak has said before changes what it says next, a little."""
    program = "import sys; from halter.voice.espeak import speak; sys.stdout.buffer.write(speak(sys.argv[1]).wav)"
    return subprocess.run([sys.executable, "-c", program, text], capture_output=True, check=True).stdout


def without_silence(recording: bytes) -> bytes:
    """A WAV file that begins and ends with sound."""
    with wave.open(io.BytesIO(recording)) as file:
        rate, samples = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), np.int16)
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 300)
    cut = io.BytesIO()
    with wave.open(cut, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples[loud[0] : loud[-1] + 1].tobytes())
    return cut.getvalue()


def test_silence_is_no_speech(transcriber: Transcriber) -> None:
    """The model would hear words in it."""
    header = spoken("Hello.")[:44]
    transcript = run(transcriber.transcribe(header + bytes(RATE * 4)))
    assert transcript.text == ""


@pytest.mark.parametrize(
    "data",
    [b"", b"not sound", b"\x89PNG\r\n\x1a\n" + bytes(1000), b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/x.wav\n"],
)
def test_what_is_no_sound_is_refused(transcriber: Transcriber, data: bytes) -> None:
    """Playlists too, which would have other files read, or addresses fetched."""
    with pytest.raises(UnreadableAudio):
        run(transcriber.transcribe(data))


def test_a_playlist_fetches_nothing(transcriber: Transcriber, tmp_path: Path) -> None:
    """A file that names an address does not make us ask there, whatever it is called."""
    with SlowServer() as server:
        for name in ("list.m3u8", "list.wav", "concat.ffconcat"):
            text = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{server.url}/x.ts\n"
            if name.endswith("ffconcat"):
                text = f"ffconcat version 1.0\nfile {server.url}/x.wav\n"
            (tmp_path / name).write_text(text)
            with pytest.raises(UnreadableAudio):
                run(transcriber.transcribe(tmp_path / name))
        assert not server.requests


def test_a_file_that_is_not_there_is_named(transcriber: Transcriber, tmp_path: Path) -> None:
    """As the system says it."""
    with pytest.raises(FileNotFoundError):
        run(transcriber.transcribe(tmp_path / "none.wav"))


def test_long_recordings_are_cut_where_it_is_quiet() -> None:
    """Windows follow each other without gaps, none is too long, and the cut is in a pause."""
    noise = np.random.default_rng(1).integers(-9_000, 9_000, 50 * RATE).astype(np.int16)
    for second in (12, 27, 41):
        noise[second * RATE : second * RATE + RATE // 2] = 0
    windows = _windows(noise)
    assert b"".join(each.samples for each in windows) == noise.tobytes()
    assert all(each.end - each.start <= 20 for each in windows)
    assert [int(each.end) for each in windows[:-1]] == [12, 27, 41]


def test_only_so_much_of_a_recording_is_read() -> None:
    """A file of a day does not fill the memory."""
    windows = decode(spoken(), 2.0)
    assert windows[-1].end == 2.0


def test_a_server_is_asked_as_it_wants(tmp_path: Path) -> None:
    """The file in a form, with its name and the model; the text comes back."""
    (tmp_path / "a.ogg").write_bytes(b"sound")
    with SlowServer() as server:
        server.page("/v1/audio/transcriptions", '{"text": " hello "}', "application/json")
        remote = RemoteTranscriber(f"{server.url}/v1", "key", model="m")
        assert run(remote.transcribe(tmp_path / "a.ogg")).text == "hello"
        [seen] = server.requests
        assert seen.headers["authorization"] == "Bearer key"
        assert re.search(rb'name="file"; filename="a.ogg".*sound', seen.body, re.DOTALL)
        assert re.search(rb'name="model"\r\n\r\nm\r\n', seen.body)
        server.page("/v1/audio/transcriptions", "{}", "application/json")
        with pytest.raises(ModelError, match="has no text"):
            run(remote.transcribe(b"sound"))


def test_a_stop_closes_the_request_to_a_server() -> None:
    """As the server sees it."""
    with SlowServer() as server:
        remote = RemoteTranscriber(f"{server.url}/hang", "key")
        token = CancellationToken()

        async def main() -> None:
            task = asyncio.ensure_future(remote.transcribe(b"sound", token=token))
            await asyncio.to_thread(server.wait_for_request, "/hang/audio/transcriptions")
            token.cancel("stop")
            with pytest.raises(Cancelled):
                await task

        run(main())
        server.wait_for_close("/hang/audio/transcriptions")
