"""What goes wrong is told as a problem, with the field; whatever a client sends, it is never a 5xx."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halter.errors import SessionOwned, StoreCorrupt, StoreError, StoreFull, StoreReadOnly
from halter.events import Event
from halter.gateway import GatewayLimits
from halter.gateway.http.errors import MEDIA_TYPE
from halter.stores import MemoryStore
from tests.support.gateway_client import gateway_of, kinds, sqlite
from tests.support.looped import looped

WRONG: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/v1/sessions", {"id": ""}, 422, "id"),
    ("POST", "/v1/sessions", {"id": "a/b"}, 422, "id"),
    ("POST", "/v1/sessions", {"id": "a\n"}, 422, "id"),
    ("POST", "/v1/sessions", {"id": "x" * 129}, 422, "id"),
    ("POST", "/v1/sessions", {"id": 7}, 422, "id"),
    ("POST", "/v1/sessions", {"name": "x"}, 422, "name"),
    ("POST", "/v1/sessions", {"agent": "nobody"}, 422, "agent"),
    ("POST", "/v1/sessions", [], 422, "body"),
    ("POST", "/v1/sessions/s/messages", {}, 422, "text"),
    ("POST", "/v1/sessions/s/messages", {"text": 1}, 422, "text"),
    ("POST", "/v1/sessions/s/messages", {"text": ""}, 422, "text"),
    ("POST", "/v1/sessions/s/messages", {"text": " \n"}, 422, "text"),
    ("POST", "/v1/sessions/s/messages", {"text": "\udc00"}, 400, "body"),
    ("POST", "/v1/sessions/s/messages", {"text": "x", "mode": "later"}, 422, "mode"),
    ("POST", "/v1/sessions/s/messages", {"text": "x", "expect_turn": ""}, 422, "expect_turn"),
    ("POST", "/v1/sessions/s/messages", {"text": "x", "id": "a b"}, 422, "id"),
    ("POST", "/v1/sessions/none/messages", {"text": "x"}, 404, "session"),
    ("POST", "/v1/sessions/s%2Fx/messages", {"text": "x"}, 404, "session"),
    ("PATCH", "/v1/sessions/s/inbox/none", {"text": "x"}, 404, "message"),
    ("PATCH", "/v1/sessions/s/inbox/none", {"state": "held"}, 422, "state"),
    ("POST", "/v1/sessions/s/stop", {"wait": -1}, 422, "wait"),
    ("POST", "/v1/sessions/s/stop", {"wait": "yes"}, 422, "wait"),
    ("POST", "/v1/sessions/s/stop", {"scope": "world"}, 422, "scope"),
    ("POST", "/v1/sessions/s/stop", {"reason": ""}, 422, "reason"),
    ("POST", "/v1/sessions/none/stop", {}, 404, "session"),
    ("POST", "/v1/sessions/s/answers/x", {}, 422, "value"),
    ("GET", "/v1/sessions?limit=x", None, 422, "limit"),
    ("GET", "/v1/sessions/none", None, 404, "session"),
    ("GET", "/v1/sessions/none/inbox", None, 404, "session"),
    ("DELETE", "/v1/sessions/none", None, 404, "session"),
]


@looped
async def test_each_wrong_field_is_named() -> None:
    """422, or 404 for what is not there; the body is a problem, and nothing was done."""
    async with gateway_of() as (gateway, client):
        await client.create()
        for method, path, body, status, field in WRONG:
            answer = await client.ask(method, path, body)
            assert (answer.status, answer.body["field"]) == (status, field), (method, path, body, answer)
            assert answer.headers["Content-Type"] == MEDIA_TYPE
            assert answer.body["status"] == status
            assert answer.body["title"]
            assert answer.body["detail"]
        assert [event.kind for event in gateway.registry.store.read("s")] == ["session.created"]


@looped
async def test_bodies_that_cannot_be_read() -> None:
    """400 for what is no JSON, 415 for another kind of content, and no depth of nesting hurts."""
    async with gateway_of() as (_, client):
        await client.create()
        for data in (b"{", b"\xff", b"", b"[" * 100_000, b'{"text": "x"} x', b"NaN"):
            answer = await client.ask(
                "POST", "/v1/sessions/s/messages", data=data, headers={"Content-Type": "application/json"}
            )
            assert (answer.status, answer.body["field"]) in ((400, "body"), (422, "body")), (data[:10], answer)
        answer = await client.ask(
            "POST", "/v1/sessions/s/messages", data="text=x", headers={"Content-Type": "text/plain"}
        )
        assert (answer.status, answer.body["field"]) == (415, "Content-Type")
        nested = json.dumps({"value": json.loads("[" * 500 + "]" * 500)})
        answer = await client.ask(
            "POST", "/v1/sessions/s/answers/x", data=nested, headers={"Content-Type": "application/json"}
        )
        assert answer.status == 404


FORM = {"Content-Type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    "headers",
    [b"H: x\r\n" * 300, b"no colon\r\n", b"H: " + b"x" * 20_000 + b"\r\n", b"Content-Transfer-Encoding: none\r\n"],
    ids=["too many", "no colon", "too long", "unknown encoding"],
)
@looped
async def test_headers_of_a_part_that_cannot_be_read(headers: bytes) -> None:
    """They were a 500, and a traceback in the log; they are the client's mistake."""
    async with gateway_of() as (_, client):
        await client.create()
        form = b"--x\r\n" + headers + b"\r\nhello\r\n--x--\r\n"
        answer = await client.ask("POST", "/v1/sessions/s/messages", data=form, headers=FORM)
        assert (answer.status, answer.body["field"]) == (400, "body")


@looped
async def test_a_body_that_is_not_compressed_as_it_says() -> None:
    """It was a 500 as well."""
    async with gateway_of() as (_, client):
        await client.create()
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        answer = await client.ask("POST", "/v1/sessions/s/messages", data=b"no gzip", headers=headers)
        assert (answer.status, answer.body["field"]) == (400, "body")


@pytest.mark.parametrize(("size", "said"), [(10, "100 parts"), (7_000, "500,000 bytes")])
@looped
async def test_empty_parts_of_a_form_count(size: int, said: str) -> None:
    """60,000 empty parts with long names were all read and kept: what counts is what is sent, and how many."""

    async def parts() -> AsyncIterator[bytes]:
        for number in range(60_000):
            name = f"{number}".zfill(size)
            yield f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n\r\n'.encode()

    async with gateway_of(limits=GatewayLimits(upload=500_000)) as (_, client):
        await client.create()
        answer = await client.ask("POST", "/v1/sessions/s/messages", data=parts(), headers=FORM)
        assert (answer.status, answer.body["field"]) == (413, "body")
        assert said in answer.body["detail"]


@looped
async def test_addresses_that_are_none() -> None:
    """404 and 405 are problems as well, and 405 says what can be done."""
    async with gateway_of() as (_, client):
        nowhere = await client.ask("GET", "/v2")
        assert (nowhere.status, nowhere.headers["Content-Type"]) == (404, MEDIA_TYPE)
        wrong = await client.ask("PUT", "/v1/sessions")
        assert (wrong.status, wrong.headers["Content-Type"]) == (405, MEDIA_TYPE)
        assert set(wrong.headers["Allow"].split(",")) >= {"GET", "POST"}


class Failing(MemoryStore):
    """A store that fails when it is told to."""

    error: StoreError | None = None

    def commit(self, writes: Any) -> None:
        if self.error is not None:
            raise self.error
        super().commit(writes)

    def read(self, *args: Any, **options: Any) -> list[Event]:
        if isinstance(self.error, StoreCorrupt):
            raise self.error
        return super().read(*args, **options)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StoreFull("/secret/path is full"), "is full"),
        (StoreReadOnly("/secret/path"), "read-only"),
        (StoreCorrupt("/secret/path"), "damaged"),
        (StoreError("disk I/O error in /secret/path"), "failed"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, StoreError) else "",
)
@looped
async def test_a_store_that_fails_is_503_and_nothing_was_accepted(error: StoreError, words: str) -> None:
    """The client is told what is wrong, and when to try again, but not where the files are; then all goes on."""
    store = Failing()
    async with gateway_of("One.", store=store) as (_, client):
        await client.create()
        store.error = error
        answer = await client.post("x", id="m1")
        assert (answer.status, answer.body["type"]) == (503, "urn:halter:problem:store")
        assert words in answer.body["detail"]
        assert "secret" not in answer.data.decode()
        assert int(answer.headers["Retry-After"]) >= 1
        assert (await client.ask("POST", "/v1/sessions", {"id": "other"})).status == 503
        store.error = None
        assert (await client.post("x", id="m1")).status == 202
        assert kinds(await client.finished()).count("message.accepted") == 1


@looped
async def test_a_turn_that_the_store_lets_not_begin_begins_when_it_can() -> None:
    """A message was accepted, and then the disk was full: it is not lost, and applied as soon as there is room."""
    store = Failing()
    async with gateway_of("One.", store=store) as (gateway, client):
        await client.create()
        async with gateway.registry.lease("s") as live:
            live.session.post("x", id="m1")
            store.error = StoreFull("full")  # the actor has not had its turn yet
        async with client.events() as stream:
            await stream.until("message.accepted")
            store.error = None
            events = await stream.until("turn.finished")
        assert kinds(events).count("message.applied") == 1


@looped
async def test_a_body_that_never_ends_is_not_waited_for() -> None:
    """A client that sends half of a body, or of a form, and then nothing, gets 408."""
    limits = GatewayLimits(body_timeout=0.05, upload_timeout=0.05)

    async def half() -> AsyncIterator[bytes]:
        yield b"--x\r\n"
        await asyncio.sleep(10)

    async with gateway_of(limits=limits) as (_, client):
        await client.create()
        for kind in ("application/json", "multipart/form-data; boundary=x"):
            answer = await client.ask("POST", "/v1/sessions/s/messages", data=half(), headers={"Content-Type": kind})
            assert (answer.status, answer.body["field"]) == (408, "body")


@looped
async def test_a_session_that_another_has_taken_is_let_go(tmp_path: Path) -> None:
    """Whoever lost its lease writes nothing more; who asks again is told whose it is, and then finds it."""
    with sqlite(tmp_path) as other, sqlite(tmp_path) as store:
        async with gateway_of("One.", store=store) as (gateway, client):
            await client.create()
            session = gateway.registry.live_sessions["s"].session
            store.release(session._log.lease)
            lease = other.acquire("s")
            assert (await client.post("x")).status == 503
            assert (await client.post("x")).status == 409
            other.release(lease)
            assert (await client.post("x")).status == 202
            assert kinds(await client.finished()).count("message.accepted") == 1


@looped
async def test_a_session_that_another_process_has_open(tmp_path: Path) -> None:
    """409: it is not ours to serve, and the answer says how gateways share sessions."""
    with sqlite(tmp_path) as other, sqlite(tmp_path) as store:
        async with gateway_of(store=store) as (gateway, client):
            await client.create()
            while gateway.registry.live_sessions:
                await gateway.registry._unload(gateway.registry.live_sessions["s"])
            lease = other.acquire("s")
            with pytest.raises(SessionOwned):
                store.acquire("s")
            answer = await client.post("x")
            assert (answer.status, answer.body["type"]) == (409, "urn:halter:problem:session-owned")
            assert "--cluster" in answer.body["detail"]
            other.release(lease)
            assert (await client.ask("GET", "/v1/sessions/s")).status == 200
