"""One request that meets everything, stopped at every point there is: by a stop, and by a foreign cancellation."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from halter import CancellationToken
from halter.models import Backoff, ModelCall, aclose_clients
from halter.testing import FakeProvider, Gate, ScriptedModel, interrupt_everywhere
from tests.support.model_calls import Log
from tests.support.processes import open_descriptors
from tests.support.stopped_request import CALL, TEXT, Judge, Server
from tests.support.waiting import wait_until
from tests.support.wires import HELLO, KEY, MODELS

if TYPE_CHECKING:
    from collections.abc import Iterator


WIRE_FILES = {"anthropic": ["models/anthropic"], "responses": ["openai/responses"], "gemini": ["models/gemini"]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start the one server."""
    made: list[Server] = []
    with FakeProvider(default=lambda request: made[0].reply(request)) as provider:  # noqa: PLW0108  (made later)
        made.append(Server(provider))
        yield made[0]


class Impatient(ScriptedModel):
    """A model that has little time for the first attempt, and as much as it needs for the second."""

    @property
    def first_byte_timeout(self) -> float | None:
        """Asked for before each attempt."""
        return None if self.streams else 0.02


class Case(Judge):
    """A request over the wire."""

    wire = "openai"

    async def scenario(self, token: CancellationToken) -> None:
        """Make the request under `token`, or have a stranger cancel it when `token` is."""
        self.begin()
        loop, log = asyncio.get_running_loop(), Log()
        exchange = self.exchange(CancellationToken() if self.foreign else token, log)
        task = asyncio.create_task(exchange.run())
        if self.foreign:
            token.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            await asyncio.wait([task])
            await asyncio.sleep(0)  # an aborted connection is closed at the loop's next turn
            self.check(exchange, log, task, token)
        finally:
            await aclose_clients()

    def exchange(self, token: CancellationToken, log: Log) -> ModelCall:
        """Meet a stream that breaks in the middle, a wait, a refusal, a fallback, text and a call."""
        kind, path = MODELS[self.wire]
        url = f"{self.server.provider.url}{path}"
        first = kind(f"first-{self.run}", base_url=url, api_key=KEY, max_retries=1)
        second = kind(f"second-{self.run}", base_url=url, api_key=KEY)
        return ModelCall(first, HELLO, token=token, emit=log, fallbacks=[second], backoff=Backoff(base=0.001))


class SilentCase(Case):
    """The watchdog, without a server: how soon a real one answers on a busy machine is not to be bet on."""

    def exchange(self, token: CancellationToken, log: Log) -> ModelCall:
        """Meet a model that does not begin, the watchdog, a wait, text and a call."""
        model = Impatient(Gate(), [TEXT, CALL])
        return ModelCall(model, HELLO, token=token, emit=log, backoff=Backoff(base=0.001))


@pytest.mark.parametrize("foreign", [False, True], ids=["stop", "foreign"])
@pytest.mark.parametrize("kind", [Case, SilentCase])
def test_stopped_everywhere(server: Server, kind: type[Case], foreign: bool) -> None:
    """At every point: one end, the right one; no request after it; what was shown is in the answer; nothing is left."""
    case = kind(server, foreign=foreign)
    report = interrupt_everywhere(case.scenario, check=case.nothing_is_left, repeat=1)
    assert case.stopped > 100
    assert len(report.missed) < len(report.points) / 10
    assert case.whole > 2
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "halter-aside"])
    assert open_descriptors() < 50


@pytest.mark.parametrize("foreign", [False, True], ids=["stop", "foreign"])
@pytest.mark.parametrize("wire", [wire for wire in MODELS if wire != "openai"])
def test_stopped_at_every_line_of_a_wire(server: Server, wire: str, foreign: bool) -> None:
    """The same for each other wire, at the lines of its own modules."""
    case = Case(server, foreign=foreign)
    case.wire = wire
    files = WIRE_FILES[wire]
    report = interrupt_everywhere(
        case.scenario, check=case.nothing_is_left, repeat=1, only=lambda place: any(file in place for file in files)
    )
    assert len(report.points) > 30
    assert len(report.missed) < len(report.points) / 10
    assert case.stopped > 20
