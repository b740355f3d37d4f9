"""What who runs a gateway sees of it: the page's files, figures and the log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.events import Event, TurnFinished
from halter.gateway import GatewayLimits
from halter.gateway.http import static_files
from halter.gateway.http.static_files import StaticFiles
from halter.gateway.observe import logs
from halter.models import Backoff
from halter.models.errors import ProviderError
from halter.testing import Gate
from tests.support.gateway_client import OWN, gateway_of
from tests.support.looped import looped
from tests.support.waiting import until


@looped
async def test_the_page_is_served_with_a_strict_policy() -> None:
    """Its type is right, nothing from elsewhere may run in it, and a browser that has it gets 304."""
    async with gateway_of() as (_, client):
        page = await client.ask("GET", "/")
        assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        policy = dict(each.strip().split(" ", 1) for each in page.headers["Content-Security-Policy"].split(";"))
        assert (policy["default-src"], policy["script-src"], policy["frame-ancestors"]) == (
            "'none'",
            "'self'",
            "'none'",
        )
        assert "unsafe" not in page.headers["Content-Security-Policy"]
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        tag = page.headers["ETag"]
        for known in (tag, f'"other", {tag}', "*"):
            again = await client.ask("GET", "/", headers={"If-None-Match": known})
            assert (again.status, again.data, again.headers["ETag"]) == (304, b"", tag)
        assert (await client.ask("GET", "/", headers={"If-None-Match": '"other"'})).status == 200


@looped
async def test_only_files_of_the_page_are_served() -> None:
    """No path leads out of the folder."""
    async with gateway_of() as (_, client):
        assert (await client.ask("GET", "/page/index.html")).status == 200
        for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/none.js", "/page/", "/page"):
            answer = await client.ask("GET", path)
            assert answer.status == 404, path


def test_files_have_their_types(tmp_path: Path) -> None:
    """Modules are modules to a browser only by their type; folders below the page's are served too."""
    (tmp_path / "below").mkdir()
    for name in ("a.js", "b.mjs", "c.css", "d.svg", "below/e.woff2", "f.webmanifest", "g.unknown-kind"):
        (tmp_path / name).write_text("x")
    kinds = {name: file.kind for name, file in StaticFiles(tmp_path)._files.items()}
    assert kinds == {
        "a.js": "text/javascript",
        "b.mjs": "text/javascript",
        "below/e.woff2": "font/woff2",
        "c.css": "text/css",
        "d.svg": "image/svg+xml",
        "f.webmanifest": "application/manifest+json",
        "g.unknown-kind": "application/octet-stream",
    }
    assert static_files._FOLDER.is_dir()


@looped
async def test_figures() -> None:
    """Stops are in a histogram of the seconds they took; messages, turns, requests and refusals are counted."""
    gate = Gate()
    async with gateway_of("One.", ["Two ", gate]) as (_, client):
        await client.create()
        await client.post("a")
        await client.finished()
        await client.post("b")
        await gate.await_reached()
        await client.stop(wait=True, reason="a reason of one's own")
        await client.ask("GET", "/nowhere")
        answer = await client.ask("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=1.0.0")
    lines = answer.data.decode().splitlines()
    figures = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}
    assert figures["halter_sessions_awake"] == 1
    assert figures["halter_turns_running"] == 0
    assert figures['halter_messages_total{mode="queue"}'] == 2
    assert figures['halter_turns_total{reason="",status="done"}'] == 1
    assert figures['halter_turns_total{reason="other",status="interrupted"}'] == 1
    assert figures["halter_stop_seconds_count"] == figures['halter_stop_seconds_bucket{le="+Inf"}'] == 1
    assert 0 < figures["halter_stop_seconds_sum"] < 5
    buckets = [value for name, value in figures.items() if name.startswith("halter_stop_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert figures['halter_requests_total{method="GET",route="none",status="404"}'] == 1
    assert figures['halter_requests_total{method="POST",route="/v1/sessions/{session}/messages",status="202"}'] == 2


@looped
async def test_completions_for_openai_clients_are_counted_as_other_turns_are() -> None:
    """Their messages, their turns, those that run, and what it took to stop them when a client left."""
    gate = Gate()
    async with gateway_of("One.", ["Two ", gate]) as (gateway, client):
        body = {"model": "halter", "messages": [{"role": "user", "content": "Hi."}]}
        assert (await client.ask("POST", "/v1/chat/completions", body)).status == 200
        asking = asyncio.create_task(client.ask("POST", "/v1/chat/completions", body))
        await gate.await_reached()
        assert b"halter_turns_running 1.0" in (await client.ask("GET", "/metrics")).data
        asking.cancel()

        async def is_over() -> bool:
            return not gateway.registry.busy

        await until(is_over)
        figures = (await client.ask("GET", "/metrics")).data.decode()
    assert 'halter_messages_total{mode="queue"} 2.0' in figures
    assert 'halter_turns_total{reason="",status="done"} 1.0' in figures
    assert 'halter_turns_total{reason="disconnect",status="interrupted"} 1.0' in figures
    assert "halter_stop_seconds_count 1.0" in figures
    assert "halter_turns_running 0.0" in figures
    assert 'halter_requests_total{method="POST",route="/v1/chat/completions",status="200"} 1.0' in figures


@looped
async def test_an_event_that_cannot_be_counted_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and all else is seen: the turn's end, which makes room for others, above all."""
    async with gateway_of("One.", "Two.", limits=GatewayLimits(turns=1)) as (gateway, client):
        count = gateway.metrics.count

        def fail_once(event: Event) -> None:
            if event.kind == "turn.started" and not caplog.records:
                raise OSError("no room for figures")
            count(event)

        monkeypatch.setattr(gateway.metrics, "count", fail_once)
        for session in ("a", "b"):
            await client.create(session)
            assert (await client.post("Hi.", session=session)).status == 202
            await client.finished(session)
        assert "no room for figures" in caplog.text
        figures = (await client.ask("GET", "/metrics")).data.decode()
        assert 'halter_turns_total{reason="",status="done"} 2.0' in figures


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logs.begin(stream=stream)
    yield stream
    logger = logging.getLogger("halter")
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


@looped
async def _talk() -> None:
    gate = Gate()
    async with gateway_of(["What nobody else may read ", gate]) as (_, client):
        await client.create()
        await client.post("A secret of mine.", id="m1")
        await gate.await_reached()
        await client.stop(wait=True)


def test_the_log_has_the_session_and_the_turn_and_no_words(log: io.StringIO) -> None:
    """Each line is JSON; a stop says who and why; what is said in a session, and keys, are not in it."""
    _talk()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["message.accepted", "turn.started", "turn.stopping", "turn.finished"]
    assert {line["session"] for line in lines} == {"s"}
    assert (lines[0]["message"], lines[0]["mode"]) == ("m1", "queue")
    assert len({line["turn"] for line in lines[1:]}) == 1
    assert (lines[2]["reason"], "environment" in lines[2]["by"]) == ("stop", True)
    assert lines[3]["seconds"] < 5
    for words in ("secret of mine", "nobody else", OWN):
        assert words not in log.getvalue()


def test_the_log_has_retries_and_the_error_of_a_failed_turn(log: io.StringIO) -> None:
    """Who reads the log sees why a turn failed, and that a request was tried again, and not only that it did."""

    @looped
    async def run() -> None:
        lost, refused = ProviderError("connection lost", status=503), ProviderError("no such model", status=404)
        async with gateway_of(lost, refused) as (gateway, client):
            for agent in gateway.registry.agents.values():
                agent.backoff = Backoff(base=0.0)
            await client.create()
            await client.post("Hi.")
            await client.finished()

    run()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    retry, end = (next(line for line in lines if line["event"] == each) for each in ("request.retry", "turn.finished"))
    assert (retry["level"], "connection lost" in retry["error"], retry["attempt"]) == ("warning", True, 2)
    assert (end["level"], end["status"], "no such model" in end["error"]) == ("warning", "failed", True)


def test_the_level_of_the_log() -> None:
    """With level "warning", a turn that is simply done is not logged, and one that failed is."""
    stream = io.StringIO()
    handler = logs.begin("warning", stream)
    try:
        logs.log_event(Event(1, 0.0, "s", "t", TurnFinished("done")))
        logs.log_event(Event(2, 0.0, "s", "t", TurnFinished("failed", "error", error="no key")))
    finally:
        logging.getLogger("halter").removeHandler(handler)
        logging.getLogger("halter").propagate = True
        logging.getLogger("halter").setLevel(logging.NOTSET)
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["error"] == "no key"


def test_secrets_are_taken_out_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of ours by their form, and secrets of the environment by their value, also in errors."""
    monkeypatch.setenv("SOME_API_KEY", "very-secret-value")
    stream = io.StringIO()
    handler = logs.begin(stream=stream)
    logger = logging.getLogger("halter.test")
    try:
        logger.warning("got hk_0a1b2c3d_abc-DEF_123 and Authorization: Bearer foo.bar and halter.key.baz")
        try:
            raise ValueError("very-secret-value")
        except ValueError:
            logger.exception("failed with \ud800", extra={"session": "very-secret-value"})
    finally:
        logging.getLogger("halter").removeHandler(handler)
        logging.getLogger("halter").propagate = True
        logging.getLogger("halter").setLevel(logging.NOTSET)
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["event"] == "got [hidden] and Authorization: Bearer [hidden] and halter.key.[hidden]"
    assert "very-secret" not in stream.getvalue()
    assert "ValueError" in second["error"]
