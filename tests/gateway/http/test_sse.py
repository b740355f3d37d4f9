"""Event streams: they resume without a gap and without a repeat, hold up nobody, and stop nothing when they end."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from halter.errors import StoreError
from halter.events import Event
from halter.gateway.http import event_feed, sse, websocket
from halter.models.types import TextDelta
from halter.stores import MemoryStore
from halter.testing import Gate
from tests.support.gateway_client import AT_MOST, OWN, gateway_of, kinds, numbers, sqlite
from tests.support.hooked_store import HookedStore
from tests.support.looped import looped


@looped
async def test_a_stream_that_is_cut_anywhere_goes_on_without_gap_or_repeat(tmp_path: Path) -> None:
    """Clients that leave at random points, while a turn streams, and come back with the last number they saw."""
    words = [f"{number} " for number in range(300)]
    script: list[Any] = [[each for word in words for each in (word, _Pause())]]
    with sqlite(tmp_path) as store:
        async with gateway_of(*script, store=store) as (_, client):
            await client.create()
            await client.post("Count.")

            async def follow_in_pieces(seed: int) -> list[dict[str, Any]]:
                chance = random.Random(seed)
                seen: list[dict[str, Any]] = []
                while not seen or seen[-1]["data"]["type"] != "turn.finished":
                    async with client.events(after=seen[-1]["seq"] if seen else 0) as stream:
                        for _ in range(chance.randint(1, 60)):
                            event = await stream.next()
                            assert event is not None
                            seen.append(event)
                            if event["data"]["type"] == "turn.finished":
                                break
                return seen

            all_seen = await asyncio.gather(*(follow_in_pieces(seed) for seed in range(8)))
    for seen in all_seen:
        assert numbers(seen) == list(range(1, len(seen) + 1))
        assert "".join(each["data"]["text"] for each in seen if each["data"]["type"] == "text.delta") == "".join(words)


class _Pause(Gate):
    """A place where the loop gets its turn."""

    async def _pass(self) -> None:
        await asyncio.sleep(0)


@looped
async def test_two_clients_see_the_same() -> None:
    """What one client says and stops, the other sees, in the same order."""
    gate = Gate()
    async with gateway_of(["One ", gate]) as (_, client):
        await client.create()
        async with client.events() as first, client.events() as second:
            await client.post("Hi.")
            await gate.await_reached()
            await client.stop()
            one, two = await first.until("turn.finished"), await second.until("turn.finished")
            assert one == two
            assert kinds(one)[-4:] == ["text.delta", "turn.stopping", "request.cancelled", "turn.finished"]


@looped
async def test_leaving_a_stream_stops_nothing() -> None:
    """A client that goes in the middle of an answer leaves the turn as it is; the stream is gone at once."""
    gate = Gate()
    async with gateway_of(["One ", gate, "two."]) as (gateway, client):
        await client.create()
        await client.post("Hi.")
        async with client.events() as stream:
            await stream.until("text.delta")
            assert len(gateway.streams) == 1
            stream.response.close()
        session = await client.ask("GET", "/v1/sessions/s")
        assert session.body["state"] == "running"
        gate.open()
        assert (await client.finished())[-1]["data"]["status"] == "done"
        while len(gateway.streams):  # noqa: ASYNC110  (that the other side has gone comes through the system)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("most", [5, 1_000])
def test_a_client_that_does_not_read_slows_nobody(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection fills up, and the turn, another client and memory go on as if it were not there.

    When it reads on, it gets all, in order: what waited for it, or the log if that was more than may wait.
    """
    monkeypatch.setattr(event_feed, "_MAX_PENDING", most)
    _leave_unread(tmp_path)


@looped
async def _leave_unread(tmp_path: Path) -> None:
    with sqlite(tmp_path) as store:
        words = [each for _ in range(800) for each in ("x" * 20_000, _Pause())]
        async with gateway_of(words, "Two.", store=store) as (gateway, client):
            await client.create()
            host, port = gateway.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1000)
            head = f"GET /v1/sessions/s/events HTTP/1.0\r\nHost: {host}\r\nAuthorization: Bearer {OWN}\r\n\r\n"
            writer.write(head.encode())
            await client.post("Talk.")
            events = await client.finished()  # sixteen megabytes, of which the deaf one reads nothing
            assert events[-1]["data"]["status"] == "done"
            transports = [each._request.transport for each in gateway.streams._open]
            buffered = max(each.get_write_buffer_size() for each in transports if each is not None)
            assert 0 < buffered < 5_000_000  # a piece of the log, and not all of it
            await client.post("And?")
            last = (await client.finished(after=events[-1]["seq"]))[-1]
            assert last["data"]["status"] == "done"
            told = await asyncio.wait_for(_read_to(reader, b'"seq":%d,' % last["seq"]), 60)
            writer.close()
            assert [int(each) for each in re.findall(rb"^id: (\d+)$", told, re.MULTILINE)] == list(
                range(1, last["seq"] + 1)
            )


async def _read_to(reader: asyncio.StreamReader, end: bytes) -> bytes:
    told = bytearray()
    while end not in told[-100_000:]:
        piece = await reader.read(1 << 16)
        assert piece
        told += piece
    return bytes(told)


@looped
async def test_a_silent_stream_says_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that ends what is silent has nothing to end."""
    monkeypatch.setattr(sse, "_HEARTBEAT", 0.01)
    async with gateway_of() as (_, client):
        await client.create()
        async with client.events() as stream:
            await stream.next()
            beats = 0
            async for line in stream.response.content:
                beats += line == b": \n"
                if beats == 3:
                    break


@looped
async def test_a_number_from_another_life_of_the_session_begins_anew() -> None:
    """A number that the log does not have is of a session that was erased: the whole log is told."""
    async with gateway_of() as (_, client):
        await client.create()
        async with client.events(after=77) as stream:
            event = await stream.next()
            assert event is not None
            assert event["seq"] == 1


@looped
async def test_a_stream_says_how_much_has_happened() -> None:
    """The header has the number of the last event when the stream began: behind it, events are news."""
    async with gateway_of("One.") as (gateway, client):
        await client.create()
        await client.post("a")
        last = (await client.finished())[-1]["seq"]
        url = f"{gateway.url}/v1/sessions/s/events"
        headers = {"Authorization": f"Bearer {OWN}"}
        async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as answer:
            assert answer.headers["Halter-Last-Event"] == str(last)


@looped
async def test_a_client_that_knows_more_than_the_owner_is_sent_nothing_twice() -> None:
    """It saw on another node what the owner had no answer for yet; from the owner it got the whole log again."""
    store = HookedStore()

    def lose_answer() -> None:
        raise StoreError("no answer")

    async with gateway_of("An answer.", store=store) as (gateway, client):
        await client.create()
        store.once("message.accepted", lose_answer)
        assert (await client.post("Hello.", id="m1")).status == 503
        written = store.read("s")[-1].seq
        assert gateway.registry.live_sessions["s"].session.last_event < written
        async with client.events(after=written) as stream:
            await client.post("Hello.", id="m1")
            seen = await stream.until("turn.finished")
        assert numbers(seen)[0] == written + 1


@looped
async def test_after_is_a_number() -> None:
    """What is none is refused, and the field is named; both ways of saying it work."""
    async with gateway_of("One.") as (_, client):
        await client.create()
        for bad in ("x", "-1", "1.5", "99999999999", "٣"):
            answer = await client.ask(
                "GET", "/v1/sessions/s/events", headers={"Last-Event-ID": bad.encode().decode("latin-1")}
            )
            assert (answer.status, answer.body["field"]) == (422, "Last-Event-ID")
            answer = await client.ask("GET", "/v1/sessions/s/events", params={"after": bad})
            assert (answer.status, answer.body["field"]) == (422, "after")
        await client.post("x")
        await client.finished()
        async with client.http.get("/v1/sessions/s/events?after=3", timeout=AT_MOST) as response:
            assert await response.content.readuntil(b"\n\n") == b"retry: 1000\n\n"
            assert (await response.content.readuntil(b"\n")) == b"id: 4\n"


@looped
async def test_a_stream_of_a_session_that_is_none() -> None:
    """There is no stream of nothing."""
    async with gateway_of() as (_, client):
        with pytest.raises(AssertionError, match="no session"):
            async with client.events("nobody"):
                pass
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.http.ws_connect("/v1/sessions/nobody/ws")
        assert refused.value.status == 404


@pytest.mark.parametrize("where", ["in the loop", "in a thread"])
def test_more_at_once_than_is_kept_for_a_client(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is up to date, and then has more news than wait for it in memory, is sent the log."""
    monkeypatch.setattr(event_feed, "_MAX_PENDING", 5)
    _say_much(where)


@looped
async def _say_much(where: str) -> None:
    gate = Gate()
    async with gateway_of(["One ", gate], "Two.") as (gateway, client):
        await client.create()
        async with client.events() as stream:
            await client.post("Hi.")
            seen = await stream.until("text.delta")
            await gate.await_reached()
            session = gateway.registry.live_sessions["s"].session
            if where == "in the loop":
                for number in range(50):
                    session.queue(f"in the loop {number}")
            else:
                await asyncio.to_thread(lambda: [session.queue(f"in a thread {number}") for number in range(50)])
            seen += await stream.until("message.accepted", 50)
            assert numbers(seen) == list(range(1, len(seen) + 1))


def test_the_end_of_a_session_behind_more_than_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was not kept all is sent the log to its end, also if the session is closed in the same moment."""
    monkeypatch.setattr(event_feed, "_MAX_PENDING", 5)
    _close_behind_much()


@looped
async def _close_behind_much() -> None:
    async with gateway_of("One.") as (gateway, client):
        await client.create()
        async with client.events() as stream:
            await client.post("Hi.")
            seen = await stream.until("turn.finished")
            session = gateway.registry.live_sessions["s"].session
            for number in range(50):
                session.queue(f"later {number}")
            session.close(timeout=0)
            seen += await stream.rest()
            assert numbers(seen) == list(range(1, len(seen) + 1))
            assert kinds(seen).count("message.accepted") == 51


@pytest.mark.parametrize("broken", ["stream", "socket"])
def test_one_client_that_cannot_be_sent_to_is_the_only_one(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails for one ends what it was sent, and is logged; the others are sent the same event."""
    module, name = (sse, "_pack_chunk") if broken == "stream" else (websocket, "_pack")
    pack = getattr(module, name)

    def fail(events: list[Event]) -> bytes:
        if any(isinstance(event.data, TextDelta) for event in events):
            msg = "a defect"
            raise ValueError(msg)
        whole: bytes = pack(events)
        return whole

    monkeypatch.setattr(module, name, fail)
    _fail_for_one(broken)
    assert "a defect" in caplog.text
    assert "Exception in callback" not in caplog.text


@looped
async def _fail_for_one(broken: str) -> None:
    gate = Gate()
    async with gateway_of([gate, "One."]) as (_, client):
        await client.create()
        async with client.events() as stream, client.http.ws_connect("/v1/sessions/s/ws") as connection:
            await client.post("Hi.")
            await gate.await_reached()
            gate.open()
            if broken == "stream":
                with pytest.raises(aiohttp.ClientPayloadError):
                    await stream.rest()
                while (await connection.receive_json(timeout=10))["data"]["type"] != "turn.finished":
                    pass
            else:
                await stream.until("turn.finished")
                while (message := await connection.receive(timeout=10)).type is aiohttp.WSMsgType.TEXT:
                    assert "text.delta" not in message.data
                assert message.data == aiohttp.WSCloseCode.INTERNAL_ERROR


class _FailingStore(MemoryStore):
    """A store that cannot be read any more."""

    fails = False

    def read(
        self, session: str, after: int = 0, *, limit: int | None = None, without: Collection[str] = ()
    ) -> list[Event]:
        if self.fails:
            msg = "the disk is gone"
            raise StoreError(msg)
        return super().read(session, after, limit=limit, without=without)


@looped
async def test_what_does_not_begin_is_answered_and_leaves_nobody_listening() -> None:
    """A stream whose log cannot be read, and a WebSocket that is none, are refused with a problem."""
    store = _FailingStore()
    async with gateway_of(store=store) as (gateway, client):
        await client.create()
        log = gateway.registry.live_sessions["s"].session._log
        subscriptions = list(log._subscriptions)
        answer = await client.ask("GET", "/v1/sessions/s/ws")
        assert (answer.status, answer.body["status"]) == (400, 400)
        store.fails = True
        for path in ("events", "ws"):
            answer = await client.ask("GET", f"/v1/sessions/s/{path}", headers={"Last-Event-ID": "1"})
            assert (answer.status, answer.body["type"]) == (503, "urn:halter:problem:store")
        assert list(log._subscriptions) == subscriptions
