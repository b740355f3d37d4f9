"""The OpenAPI document tells what is so, and no request that can be made of it brings the gateway down."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from halter import Agent
from halter.gateway import Gateway, GatewayLimits, Keys
from halter.gateway.http.openapi import document
from halter.gateway.http.routes import ROUTES
from halter.stores import MemoryStore
from tests.support.gateway_client import OWN, Client, client_session, gateway_of
from tests.support.gateway_program import Talking
from tests.support.looped import looped

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001"
    "e221bc330000000049454e44ae426082"
)
EXAMPLES = 300 if os.environ.get("HALTER_EVERY_POINT") else 12


@looped
async def test_the_document_has_every_address() -> None:
    """Each address of the gateway is described, with what it takes and gives, and who may use it."""
    async with gateway_of() as (_, client):
        described_as = (await client.ask("GET", "/openapi.json")).body
    described = {(method.upper(), path) for path, methods in described_as["paths"].items() for method in methods}
    assert described == {(route.method, route.path.replace("{file:.+}", "{file}")) for route in ROUTES}
    for route in ROUTES:
        operation = described_as["paths"][route.path.replace("{file:.+}", "{file}")][route.method.lower()]
        assert bool(operation["security"]) == (route.scope is not None)
        assert str(route.status) in operation["responses"]
    schemas = described_as["components"]["schemas"]
    assert schemas["MessageBody"]["required"] == ["text"]
    assert set(schemas["StopBody"]["properties"]) == {"reason", "scope", "call_id", "expect_turn", "wait"}
    for path, kind in (("messages", "application/json"), ("media", "multipart/form-data")):
        operation = described_as["paths"][f"/v1/sessions/{{session}}/{path}"]["post"]
        assert list(operation["requestBody"]["content"]) == [kind]
    assert schemas["MessageForm"]["properties"]["image"]["type"] == "array"


class Running:
    """A gateway in a thread of its own, for clients that block."""

    def __init__(self) -> None:
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._end: asyncio.Event
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()), daemon=True)

    async def _run(self) -> None:
        self._end = asyncio.Event()
        limits = GatewayLimits(session_messages=100_000, key_messages=100_000, key_sessions=100_000)
        async with Gateway(Agent(Talking()), MemoryStore(), Keys(own=OWN), limits=limits) as gateway:
            async with client_session(gateway) as http:
                await Client(http).create("s")
            self.url = gateway.url
            self._up.set()
            await self._end.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with Running() as running:
        yield running


def _operations(url: str) -> list[Any]:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


# Streams have no end, and each PDF is read by a process: tests of their own try what these are given.
TRIED = sorted({route.name for route in ROUTES} - {"events", "socket", "page", "page_file", "openapi", "pdf"})

OPENAI = {route.name for route in ROUTES if route.is_openai}

CHANGING = {route.name for route in ROUTES if route.takes is not None}


@pytest.mark.filterwarnings("ignore")  # of its own parts
@pytest.mark.parametrize("name", TRIED)
def test_no_request_is_answered_with_a_server_error(name: str, running: Running) -> None:
    """Requests made of the document, right ones and wrong ones, are answered with 2xx or 4xx, and never with 5xx."""
    [operation] = [each for each in _operations(running.url) if each.definition.raw["operationId"] == name]
    tried: list[int] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    def try_one(case: Any) -> None:
        if case.path_parameters and "session" in case.path_parameters and len(tried) % 2:
            case.path_parameters["session"] = "s"  # one that is there
        if isinstance(case.body, dict) and case.body.get("wait"):
            case.body["wait"] = 0.01
        response = case.call(headers={"Authorization": f"Bearer {OWN}"}, timeout=10)
        assert response.status_code < 500
        if response.status_code >= 400:
            kind = "application/json" if name in OPENAI else "application/problem+json"
            assert response.headers["content-type"][0].startswith((kind, "text/plain"))
        tried.append(response.status_code)

    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if name in CHANGING else [GenerationMode.POSITIVE]
    for mode in modes:
        given(case=operation.as_strategy(generation_mode=mode))(try_one)()
    assert len(tried) >= len(modes)
    assert any(status != 401 for status in tried)


def test_a_generated_client_works(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that a generator made of the document sends a message, pictures, and a stop, and reads the receipts."""
    (tmp_path / "openapi.json").write_bytes(document())
    (tmp_path / "settings.yaml").write_text("post_hooks: []\n")
    given = ["--path", "openapi.json", "--config", "settings.yaml", "--meta", "none", "--output-path", "generated"]
    subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", *given],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    calls = {
        name: import_module(f"generated.api.default.{name}").sync
        for name in ("create", "message", "media_message", "inbox", "stop")
    }
    models, types = import_module("generated.models"), import_module("generated.types")
    with import_module("generated.client").AuthenticatedClient(running.url, token=OWN) as client:
        assert calls["create"](client=client, body=models.SessionBody(id="generated")).id == "generated"
        sent = calls["message"]("generated", client=client, body=models.MessageBody(text="wait 60", id="m1"))
        assert (sent.id, sent.session) == ("m1", "generated")
        pictures = [types.File(io.BytesIO(PIXEL), f"{name}.png", "image/png") for name in "ab"]
        form = models.MessageForm(text="Look.", id="m2", image=pictures)
        assert calls["media_message"]("generated", client=client, body=form).id == "m2"
        [queued] = [each for each in calls["inbox"]("generated", client=client) if each.id == "m2"]
        assert (queued.text, queued.parts.to_dict()) == ("Look.", {"image": 2})
        calls["stop"]("generated", client=client, body=models.StopBody(wait=10.0))
