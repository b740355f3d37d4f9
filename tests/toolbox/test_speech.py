"""Speaking and listening as tools, and being stopped at it."""

from __future__ import annotations

import json
import sys
import threading
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halter import Agent
from halter.cancel import abandoned
from halter.cancel.isolation import worker_process
from halter.models import ToolCall
from halter.testing import Moment, ScriptedModel, Stop, ToolCalls
from halter.toolbox.speech import Speech
from halter.tools.resources import SessionResources
from tests.support.leftovers import nothing_is_left  # noqa: F401  (for each test here)
from tests.support.processes import wait_dead
from tests.support.slow_server import SlowServer
from tests.support.sounds import SENTENCE, likeness, packed, spoken
from tests.support.stopped_calls import (
    BEFORE_THE_END,
    IN_THE_MIDDLE,
    PATIENT,
    STOP_OR_STEER,
    call,
    check_obeys,
    every_moment,
    text_of,
)
from tests.support.waiting import wait_until

LONG = "The road goes on, and many words are said along it, one after the other. " * 200


@pytest.fixture(scope="module")
def resources() -> Iterator[SessionResources]:
    made = SessionResources()
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with SlowServer() as running:
        yield running


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.rglob("*"))


def test_what_is_said_is_understood(tmp_path: Path, resources: SessionResources) -> None:
    """One tool's file is the other's text."""
    speech = Speech(tmp_path)
    outcome = call(speech.text_to_speech, text=SENTENCE, path="said/it.wav")
    assert text_of(outcome).startswith("Written to said/it.wav: ")
    assert names(tmp_path) == ["it.wav", "said"]
    outcome = call(speech.transcribe, resources, path="said/it.wav")
    assert outcome.status == "completed", outcome.detail
    assert likeness(text_of(outcome)) >= 0.6


def test_errors_tell_what_to_do(tmp_path: Path, resources: SessionResources) -> None:
    """A wrong voice, name, place or text, a file that is none: each in words."""
    speech = Speech(tmp_path, max_characters=100)
    (tmp_path / "noise.ogg").write_bytes(b"noise")
    say, hear = speech.text_to_speech, speech.transcribe
    for outcome, words in (
        (call(say, text="x", path="x.wav", voice="nobody"), "no voice 'nobody'"),
        (call(say, text="x", path="x.mp3"), "only .wav"),
        (call(say, text="x", path="../x.wav"), "out of the workspace"),
        (call(say, text=" ", path="x.wav"), "1 to 100 characters"),
        (call(say, text="x" * 101, path="x.wav"), "1 to 100 characters"),
        (call(hear, resources, path="none.ogg"), "no such file in the workspace: none.ogg"),
        (call(hear, resources, path="/etc/passwd"), "out of the workspace"),
        (call(hear, resources, path="noise.ogg"), "cannot decode the audio"),
    ):
        assert outcome.status == "failed"
        assert words in outcome.detail
    assert names(tmp_path) == ["noise.ogg"]


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not installed it is told the command."""
    (tmp_path / "a.wav").write_bytes(b"")
    for module in ("espeakng_loader", "moonshine_voice"):
        monkeypatch.setitem(sys.modules, module, None)
    speech = Speech(tmp_path)
    assert "pip install 'halter[voice]'" in call(speech.text_to_speech, text="x", path="x.wav").detail
    assert "pip install 'halter[voice]'" in call(speech.transcribe, path="a.wav").detail


@pytest.mark.parametrize("reason", STOP_OR_STEER)
@every_moment
def test_speaking_is_stopped(tmp_path: Path, moment: Moment, reason: str) -> None:
    """Whenever the stop comes: a file is there whole, or none is, not even a temporary one."""
    text = "Hello." if moment == "end" else LONG
    calls = ToolCalls(Speech(tmp_path).text_to_speech, grace=PATIENT)
    stop = Stop(reason, moment, wait=lambda: wait_until(lambda: calls.reports))
    check_obeys(calls.call_stopped(stop, "text_to_speech", text=text, path="it.wav"), moment, reason)
    wait_until(lambda: len(abandoned) == 0)
    if moment == "end":
        with wave.open(str(tmp_path / "it.wav")) as file:
            assert file.getnframes() > 1_000
    else:
        assert names(tmp_path) == []


@pytest.mark.parametrize("reason", STOP_OR_STEER)
@every_moment
def test_listening_is_stopped(tmp_path: Path, resources: SessionResources, moment: Moment, reason: str) -> None:
    """Whenever the stop comes, control is back, and no thread is left behind."""
    (tmp_path / "it.ogg").write_bytes(packed("ogg"))
    calls = ToolCalls(Speech(tmp_path).transcribe, resources=resources, grace=PATIENT)
    stop = Stop(reason, moment, wait=lambda: wait_until(lambda: calls.reports))
    outcome = calls.call_stopped(stop, "transcribe", path="it.ogg")
    check_obeys(outcome, moment, reason)
    if moment == "end":
        assert likeness(text_of(outcome)) >= 0.6
    wait_until(lambda: len(abandoned) == 0)


def test_what_was_understood_until_the_stop_is_kept(tmp_path: Path) -> None:
    """Of a long recording a stop keeps the beginning, and says that there is more."""
    (tmp_path / "long.wav").write_bytes(spoken(SENTENCE * 5))
    with ToolCalls(Speech(tmp_path).transcribe, grace=PATIENT) as calls:
        outcome = calls.call_stopped(Stop("stop", report="seconds transcribed"), "transcribe", path="long.wav")
    assert (outcome.status, outcome.reason) == ("partial", "stop")
    assert likeness(text_of(outcome)) >= 0.5
    assert "Stopped here" in text_of(outcome)


def test_a_server_speaks_and_listens(server: SlowServer, tmp_path: Path) -> None:
    """If one is named, it is asked; the format is that of the file's name."""
    server.page("/v1/audio/speech", b"sound", "audio/mpeg")
    server.page("/v1/audio/transcriptions", '{"text": "hello"}', "application/json")
    speech = Speech(tmp_path, base_url=f"{server.url}/v1", api_key="key")
    assert text_of(call(speech.text_to_speech, text="hi", path="a.mp3")) == "Written to a.mp3: 5 bytes."
    assert (tmp_path / "a.mp3").read_bytes() == b"sound"
    body = {"model": "tts-1", "input": "hi", "voice": "alloy", "response_format": "mp3"}
    assert json.loads(server.requests[0].body) == body
    assert text_of(call(speech.transcribe, path="a.mp3")) == "hello"
    assert "must end in" in call(speech.text_to_speech, text="hi", path="a.txt").detail


class _Swapping(Speech):
    """Swaps the directory for a link, as a job of the terminal may, after the path was looked at."""

    def _transcriber(self) -> Any:
        sounds = Path(self._workspace.root) / "sounds"
        sounds.rename(sounds.with_name("aside"))
        sounds.symlink_to(sounds.parent.with_name("outside"))
        return super()._transcriber()


def test_a_directory_swapped_for_a_link_is_not_read(server: SlowServer, tmp_path: Path) -> None:
    """The file that was looked at is sent, under its name; it was one from outside of the workspace."""
    server.page("/v1/audio/transcriptions", '{"text": "hello"}', "application/json")
    for folder, said in (("work/sounds", b"mine"), ("outside", b"secret")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "it.wav").write_bytes(said)
    speech = _Swapping(tmp_path / "work", base_url=f"{server.url}/v1", api_key="key")
    assert text_of(call(speech.transcribe, path="sounds/it.wav")) == "hello"
    [request] = server.requests
    assert b"mine" in request.body
    assert b'filename="it.wav"' in request.body


@pytest.mark.parametrize("reason", STOP_OR_STEER)
@pytest.mark.parametrize("moment", BEFORE_THE_END)
@pytest.mark.parametrize("name", ["text_to_speech", "transcribe"])
def test_a_request_to_a_server_is_closed_by_a_stop(
    server: SlowServer, tmp_path: Path, name: str, moment: Moment, reason: str
) -> None:
    """As the server sees it, and no file is left."""
    (tmp_path / "a.mp3").write_bytes(b"sound")
    speech = Speech(tmp_path, base_url=f"{server.url}/hang", api_key="key")
    path = "/hang/audio/speech" if name == "text_to_speech" else "/hang/audio/transcriptions"
    arguments: dict[str, Any] = {"text": "hi", "path": "b.mp3"} if name == "text_to_speech" else {"path": "a.mp3"}
    with ToolCalls(getattr(speech, name), grace=PATIENT) as calls:
        stop = Stop(reason, moment, wait=lambda: server.wait_for_request(path))
        outcome = calls.call_stopped(stop, name, **arguments)
    check_obeys(outcome, moment, reason)
    if moment == "before":
        assert not server.requests
    if moment in IN_THE_MIDDLE:
        assert outcome.status == "cancelled"
        server.wait_for_close(path)
    assert names(tmp_path) == ["a.mp3"]


def test_the_process_lasts_as_long_as_the_session(tmp_path: Path) -> None:
    """Two calls of one session are heard by one process, a stop in between does no harm, and closing ends it."""
    (tmp_path / "it.wav").write_bytes(spoken("Hello there, my friend."))
    call_it = ToolCall("1", "transcribe", '{"path": "it.wav"}')
    model = ScriptedModel(call_it, "a", call_it, "b", call_it, "c")
    pools = set(worker_process._pools)
    with Agent(model, Speech(tmp_path).tools).session() as session:
        assert session.run("one").text == "a"
        [idle] = set(worker_process._pools) - pools
        [process] = idle.workers
        session.stop()
        assert session.run("two").text == "b"
        assert list(idle.workers) == [process]
    wait_dead(process._process.pid)
    assert not idle.workers


def test_a_session_that_is_stopped_while_it_listens_goes_on(tmp_path: Path) -> None:
    """The turn ends as interrupted, its call is answered, and the next turn hears the recording."""
    (tmp_path / "it.wav").write_bytes(spoken(SENTENCE))
    call_it = ToolCall("1", "transcribe", '{"path": "it.wav"}')
    with Agent(ScriptedModel(call_it, call_it, "done"), Speech(tmp_path).tools).session() as session:

        def stop() -> None:
            wait_until(lambda: any("listening" in str(event) for event in session.events()))
            session.stop()

        threading.Thread(target=stop).start()
        turn = session.run("listen")
        assert turn.status == "interrupted"
        assert session.run("again").text == "done"
        assert likeness(str(session.history)) >= 0.6
