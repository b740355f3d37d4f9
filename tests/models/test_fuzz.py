"""Streams that no provider should send: each ends in an answer or a `ModelError`, and the history is valid.

The suite tries some hundred streams of each wire. `HALTER_LONG=1 pytest tests/models/test_fuzz.py` tries many more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from halter.models import ModelError, ModelEvent
from halter.models.http.sse import ServerSentEvents
from halter.models.http.wire import HTTPModel
from halter.testing import FakeProvider, drop, hang_mid_stream, raw, status
from tests.models.test_oracle import MAKERS
from tests.support.provider_streams import ENDS, split_bytes, write
from tests.support.sessions import agent_of, model_of
from tests.support.valid_history import judge_session
from tests.support.wires import KEY, MODELS, WIRES, collect, model_for, run

TIMES = 50 if os.environ.get("HALTER_LONG") else 1
STREAMS = 250 * TIMES
TURNS = 60 * TIMES
SOCKETS = 30 * TIMES
Events = list[tuple[str, dict[str, Any] | str]]

WRONG: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    2**70,
    "",
    "x",
    "\x00",
    "\ud83d",
    [],
    [None],
    [[]],
    {},
    {"type": "text"},
    "a" * 100_000,
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a value of JSON that can be replaced: a container, and a key of it."""
    found: list[tuple[Any, Any]] = []
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        found.append((value, key))
        found += places(value[key])
    return found


def wrong_types(rng: Random, events: Events) -> Events:
    """Replace, take out or add values, anywhere."""
    events = json.loads(json.dumps(events))
    for _ in range(rng.randint(1, 4)):
        some = places([data for _, data in events])
        if not some:
            break
        container, key = rng.choice(some)
        if isinstance(container, dict) and rng.random() < 0.3:
            container.pop(key)
        elif isinstance(container, dict) and rng.random() < 0.2:
            container[rng.choice(["type", "index", "delta", "id", "error", "choices", "output", "parts"])] = rng.choice(
                WRONG
            )
        else:
            container[key] = rng.choice(WRONG)
    return [(name, data) for name, data in events]


def duplicated(rng: Random, events: Events) -> Events:
    """Send some events again: at once, or later."""
    events = list(events)
    for _ in range(rng.randint(1, 5)):
        events.insert(rng.randint(0, len(events)), rng.choice(events or [("", {})]))
    return events


def interleaved(rng: Random, events: Events, others: Events) -> Events:
    """Two answers in one stream, each in its own order."""
    events, others, mixed = list(events), list(others), []
    while events or others:
        mixed.append((events if events and (not others or rng.random() < 0.5) else others).pop(0))
    return mixed


def shuffled(rng: Random, events: Events, _others: Events) -> Events:
    """The events in any order, and not all of them."""
    events = list(events)
    rng.shuffle(events)
    return events[: rng.randint(0, len(events))]


MUTATIONS: list[Callable[[Random, Events, Events], Events]] = [
    lambda rng, events, _: wrong_types(rng, events),
    lambda rng, events, _: duplicated(rng, events),
    interleaved,
    shuffled,
    lambda rng, events, _: [*events, ("", {"text": "a" * rng.choice([10, 300_000])})],
]


def garbage(rng: Random, data: bytes) -> bytes:
    """Change bytes, cut the stream anywhere, or put noise into it."""
    kind = rng.random()
    at = rng.randint(0, len(data))
    if kind < 0.3:
        return data[:at]
    if kind < 0.6:
        noise = rng.choice(
            [
                rng.randbytes(rng.randint(1, 60)),
                b"data: {",
                b"data: [" * 3000,
                b"\n\n",
                b"event: error\n",
                b"\xff\xfe",
                b":",
            ]
        )
        return data[:at] + noise + data[at:]
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def stream(seed: int, wire: str) -> list[bytes]:
    """A stream that is wrong in one way or in two, in pieces."""
    rng = Random(seed)
    make = MAKERS[wire]
    events, _ = make(rng)
    if rng.random() < 0.7:
        events = rng.choice(MUTATIONS)(rng, events, make(rng)[0])
    end = rng.choice(ENDS)
    data = b"".join(_sent(name, body, end) for name, body in events)
    if rng.random() < 0.5:
        data = garbage(rng, data)
    return split_bytes(rng, data) or [b""]


def _sent(name: str, body: object, end: bytes) -> bytes:
    """One event. In JSON with escapes, half of a surrogate pair can be sent, and some servers send it."""
    text = body if isinstance(body, str) and body == "[DONE]" else json.dumps(body)
    head = f"event: {name}".encode() + end if isinstance(name, str) and name.isascii() and name else b""
    return head + b"data: " + text.encode() + end + end


def read(model: HTTPModel, pieces: list[bytes]) -> tuple[list[ModelEvent], ModelError | None]:
    """Read a stream as `HTTPModel.stream()` does, without a connection."""
    found: list[ModelEvent] = []
    reader, decoder = model.reader(), ServerSentEvents()
    try:
        for piece in pieces:
            for name, data in decoder.feed(piece):
                if not reader.finished:
                    found += model._take(reader, name, data)
        found += reader.end()
    except ModelError as error:
        return found, error
    return found, None


def unasked(wire: str) -> HTTPModel:
    kind, path = MODELS[wire]
    return kind("m", base_url=f"http://127.0.0.1:9{path}", api_key=KEY)


@pytest.mark.parametrize("wire", WIRES)
def test_a_wrong_stream_gives_events_or_a_model_error(wire: str) -> None:
    """Garbage, wrong types, duplicates and mixtures end in events or in a `ModelError`, and in nothing else."""
    model = unasked(wire)
    for seed in range(STREAMS):
        try:
            read(model, stream(seed, wire))
        except Exception as exc:
            raise AssertionError(f"seed {seed}: {exc!r}") from exc


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_ends_at_any_byte(wire: str) -> None:
    """A connection may end after any byte: the answer so far and a `ModelError`, or a whole answer."""
    model = unasked(wire)
    rng = Random(7)
    data = write(rng, MAKERS[wire](rng)[0], b"\n")
    whole, _ = read(model, [data])
    for at in range(len(data)):
        found, error = read(model, [data[:at]])
        assert error is not None or found == whole or len(found) <= len(whole) + 1, at


@pytest.mark.parametrize("wire", WIRES)
def test_a_wrong_stream_leaves_a_valid_history(wire: str) -> None:
    """Whatever a stream contained, the turn ends, the history is valid at each event, and the next turn works."""
    model = unasked(wire)
    for seed in range(TURNS):
        events, error = read(model, stream(seed, wire))
        script: list[Any] = [*events, *([error] if error is not None else [])]
        entries = [script, script, script, *["fine"] * 60]  # it may be retried
        try:
            with agent_of(*entries, max_steps=5).session() as session:
                first = session.run("hello")
                assert first.status in ("done", "failed"), first
                scripted = model_of(session)
                scripted._script[len(scripted.requests) :] = ["fine"]
                assert session.run("and now?").status == "done"
                judge_session(session)
        except Exception as exc:
            raise AssertionError(f"seed {seed}: {exc!r}") from exc


@pytest.mark.parametrize("wire", WIRES)
def test_wrong_streams_over_a_real_connection(wire: str) -> None:
    """The same streams through a socket: each request ends, within the limit, in events or in a `ModelError`."""

    async def scenario() -> None:
        async with FakeProvider() as provider:
            model = model_for(wire, provider)
            for seed in range(SOCKETS):
                provider.script(raw(*stream(seed, wire)))
                try:
                    await collect(model)
                except ModelError:
                    continue
            for reply in (drop(2), status(500), status(429, body=b"\xff"), raw(b"\x00" * 70_000)):
                provider.script(reply)
                with pytest.raises(ModelError):
                    await collect(model)

    run(scenario(), limit=60.0 * TIMES)


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_says_nothing_more_is_not_waited_for_without_end(wire: str) -> None:
    """A stream that falls silent ends its request after the model's `stale_timeout`, and the turn fails."""
    with FakeProvider(default=hang_mid_stream(1)) as provider:
        model = model_for(wire, provider, stale_timeout=0.2, max_retries=1)
        with agent_of("unused").session() as session:
            session.agent.model = model
            turn = session.run("hello")
            assert (turn.status, turn.reason) == ("failed", "error")
            assert len(provider.requests) == 2
