"""A stop at every point of the tools that fetch and write: nothing is lost unsaid, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from halter import CancellationToken, ToolOutcome
from halter.cancel import abandoned
from halter.models.types import ToolCall
from halter.testing import Stop, ToolCalls, interrupt_everywhere
from halter.toolbox.files.media import save_file
from halter.toolbox.files.workspace import Workspace
from halter.toolbox.http.fetch import Net
from halter.toolbox.web.search_providers import SearXNG
from halter.toolbox.web.web import Web
from tests.support.leftovers import nothing_is_left  # noqa: F401  (for each test here)
from tests.support.slow_server import SlowServer
from tests.support.stopped_calls import PATIENT, text_of
from tests.support.waiting import wait_until


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with SlowServer() as running:
        yield running


def test_every_page_is_read_or_said_not_to_be(server: SlowServer) -> None:
    """Wherever the stop lands: a page is given, or named as not read, or the count tells that one is missing."""
    urls = [server.page(f"/{name}", f"text {name}", "text/plain") for name in ("one", "two")]
    web = Web(SearXNG(server.url), net=Net(allow=["127.0.0.1"]))
    calls = ToolCalls(web.web_extract, grace=PATIENT)
    outcomes: list[ToolOutcome] = []

    async def scenario(token: CancellationToken) -> None:
        call = ToolCall("1", "web_extract", json.dumps({"urls": urls}))
        outcomes.append(await calls.run(call, Stop("stop", token)))

    def check() -> None:
        outcome = outcomes.pop()
        text = text_of(outcome)
        if outcome.status == "completed":
            assert "text one" in text
            assert "text two" in text
            assert "Stopped" not in text
        elif outcome.status == "partial":
            rest = text.partition("Stopped before these were read:")[2]
            counted = re.findall(r"\[(\d) of 2\]", text)
            given = [f"text {url.rpartition('/')[2]}" in text for url in urls]
            assert len(counted) == sum(given)
            if rest:
                assert all(is_given or url in rest for url, is_given in zip(urls, given, strict=True))
            else:
                assert counted
        else:
            assert outcome.status in ("cancelled", "not_started"), outcome
            assert text == ""
        wait_until(lambda: len(abandoned) == 0)

    report = interrupt_everywhere(scenario, check=check)
    assert len(report.points) > 500


def test_a_page_that_is_being_parsed_is_named(server: SlowServer) -> None:
    """Wherever the stop lands while another process finds the text: the page is given or named, never neither."""
    url = server.page(
        "/page", "<html><body><article>" + "<p>Some words of a page.</p>" * 30 + "</article></body></html>"
    )
    web = Web(SearXNG(server.url), net=Net(allow=["127.0.0.1"]))
    calls = ToolCalls(web.web_extract, grace=PATIENT)
    outcomes: list[ToolOutcome] = []

    async def scenario(token: CancellationToken) -> None:
        call = ToolCall("1", "web_extract", json.dumps({"urls": [url]}))
        outcomes.append(await calls.run(call, Stop("stop", token)))

    def check() -> None:
        outcome = outcomes.pop()
        text = text_of(outcome)
        assert outcome.status in ("completed", "partial", "cancelled", "not_started"), outcome
        if calls.reports:  # it had begun
            assert ("Some words" in text) is not ("Stopped before these were read" in text)
        wait_until(lambda: len(abandoned) == 0)

    places = ("toolbox/web", "cancel/isolation/")
    report = interrupt_everywhere(
        scenario, check=check, repeat=1, only=lambda place: any(each in place for each in places)
    )
    for each in places:
        assert any(each in point.place for point in report.points), each


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """Wherever the stop lands: saving has happened exactly if it says so, and no temporary file is left."""
    target = tmp_path / "file"
    told: list[bool] = []

    async def scenario(token: CancellationToken) -> None:
        target.unlink(missing_ok=True)
        told.clear()
        with token.bind():
            async with token.scope():
                await save_file(Workspace(tmp_path), "file", b"data" * 1000)
                told.append(True)

    def check() -> None:
        wait_until(lambda: len(abandoned) == 0)
        assert [each.name for each in tmp_path.iterdir()] == ["file"] * len(told)

    interrupt_everywhere(scenario, check=check)
    assert asyncio.run(scenario(CancellationToken())) is None
    assert target.read_bytes() == b"data" * 1000
