"""Searching the web and reading pages, and being stopped at it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web as aioweb

from halter import Agent, ToolOutcome
from halter.cancel import abandoned
from halter.models import ToolCall
from halter.testing import Moment, ScriptedModel, Stop, ToolCalls
from halter.toolbox.http.fetch import Net
from halter.toolbox.web.search_providers import Brave, Ddgs, SearXNG, Tavily, provider_named
from halter.toolbox.web.web import Web
from tests.support.leftovers import nothing_is_left  # noqa: F401  (for each test here)
from tests.support.processes import open_descriptors
from tests.support.search_proxy import SearchProxy
from tests.support.slow_server import SlowServer
from tests.support.stopped_calls import (
    IN_THE_MIDDLE,
    PATIENT,
    STOP_OR_STEER,
    call,
    check_obeys,
    every_moment,
    patient,
    stop_everywhere,
    text_of,
)
from tests.support.waiting import wait_until

ARTICLE = (
    "<html><head><title>On halters</title></head><body><nav>menu menu</nav><article><h1>On halters</h1>"
    + "<p>A halter is a rope that <b>leads</b> a horse, and holds it.</p>" * 8
    + '<p>See <a href="/more">more</a>.</p></article><script>var hidden = 1;</script></body></html>'
)


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with SlowServer() as running:
        yield running


@pytest.fixture
def web(server: SlowServer) -> Web:
    return Web(SearXNG(server.url), net=Net(allow=[f"127.0.0.1:{server.port}"]))


def serve_results(server: SlowServer, hang_from: int = 99) -> None:
    """Three results on each page; from a page on, none ever comes."""

    async def answer(request: aioweb.Request) -> aioweb.StreamResponse:
        page = int(request.query["pageno"])
        if page >= hang_from:
            await asyncio.Event().wait()
        rows = [
            {"title": f"Title {page}.{row}", "url": f"https://example.com/{page}/{row}", "content": "some  text"}
            for row in range(3 if page <= 3 else 0)
        ]
        return aioweb.json_response({"results": rows})

    server.pages["/search"] = answer


# -- searching ------------------------------------------------------------------------------------


def test_results_are_listed_page_after_page(server: SlowServer, web: Web) -> None:
    """They are numbered through, with address and text; the search ends where there are no more."""
    serve_results(server)
    outcome = call(web.web_search, query="halter", pages=9)
    assert outcome.status == "completed"
    lines = text_of(outcome).splitlines()
    assert lines[:3] == ["1. Title 1.0", "   https://example.com/1/0", "   some text"]
    assert "9. Title 3.2" in lines
    assert [seen.query["pageno"] for seen in server.seen("/search")] == ["1", "2", "3", "4"]


def test_a_search_without_results_says_so(server: SlowServer, web: Web) -> None:
    """An empty text would look like a failure."""
    server.page("/search", '{"results": []}', "application/json")
    assert text_of(call(web.web_search, query="halter")) == "No results for 'halter'."


def test_a_search_that_fails_tells_why(server: SlowServer, web: Web) -> None:
    """A server without JSON, one that is broken, an empty query: the model is told what to do about it."""

    async def forbid(_request: aioweb.Request) -> aioweb.StreamResponse:
        return aioweb.Response(status=403)

    server.pages["/search"] = forbid
    outcome = call(web.web_search, query="x")
    assert outcome.status == "failed"
    assert "search.formats" in outcome.detail
    server.page("/search", "<html>")
    assert "did not answer with a JSON object" in call(web.web_search, query="x").detail
    assert "query is empty" in call(web.web_search, query=" ").detail


def test_a_later_page_that_fails_does_not_cost_the_earlier_ones(server: SlowServer, web: Web) -> None:
    """What was found stays, and it is said that there may be more."""

    async def answer(request: aioweb.Request) -> aioweb.StreamResponse:
        if request.query["pageno"] == "2":
            return aioweb.Response(status=429, text="slow down")
        return aioweb.json_response({"results": [{"title": "One", "url": "https://example.com"}]})

    server.pages["/search"] = answer
    outcome = call(web.web_search, query="x", pages=3)
    assert outcome.status == "completed"
    assert "1. One" in text_of(outcome)
    assert "429: slow down" in text_of(outcome)


def test_brave_is_asked_as_it_wants(server: SlowServer) -> None:
    """With its header and its offset; the key is in no error."""
    server.page(
        "/res/v1/web/search",
        json.dumps({"web": {"results": [{"title": "B", "url": "https://b", "description": "brave"}]}}),
        "application/json",
    )
    outcome = call(Web(Brave("key-1234567", base_url=server.url)).web_search, query="a b", pages=2)
    assert "1. B\n   https://b\n   brave\n2. B" in text_of(outcome)
    first, second = server.requests
    assert first.headers["x-subscription-token"] == "key-1234567"
    assert (first.query["q"], first.query["offset"], second.query["offset"]) == ("a b", "0", "1")
    server.pages.clear()
    assert "key-1234567" not in call(Web(Brave("key-1234567", base_url=server.url)).web_search, query="x").detail


def test_tavily_is_asked_as_it_wants(server: SlowServer) -> None:
    """With its key and one page."""
    server.page("/search", json.dumps({"results": [{"title": "T", "url": "https://t", "content": "tavily"}]}))
    outcome = call(Web(Tavily("key", base_url=server.url)).web_search, query="a b", pages=3)
    assert text_of(outcome) == "1. T\n   https://t\n   tavily"
    [seen] = server.requests
    assert (seen.method, seen.headers["authorization"]) == ("POST", "Bearer key")
    assert json.loads(seen.body)["query"] == "a b"


def test_the_environment_chooses_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL or a key that is there is used; otherwise it is ddgs."""
    for variable in ("SEARXNG_URL", "BRAVE_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    assert provider_named(None).name == "ddgs"
    with pytest.raises(ValueError, match="BRAVE_API_KEY"):
        provider_named("brave")
    with pytest.raises(ValueError, match="URL of its server"):
        provider_named("searxng")
    monkeypatch.setenv("TAVILY_API_KEY", "x")
    assert provider_named(None).name == "Tavily"
    monkeypatch.setenv("SEARXNG_URL", "http://search.lan")
    assert provider_named(None).name == "SearXNG"
    with pytest.raises(ValueError, match="not a search provider"):
        Web("altavista")


def test_ddgs_finds_through_its_own_client(tmp_path: Path) -> None:
    """The default provider works, against a stand-in for one of its engines."""
    rows = "".join(
        f'<div class="result__body body"><h2>Halter {n}</h2><a href="https://example.com/{n}">about halter</a></div>'
        for n in range(3)
    )
    with SearchProxy(tmp_path, f"<html><body>{rows}</body></html>") as proxy:
        provider = Ddgs(backend="duckduckgo", proxy=proxy.url, verify=str(proxy.certificate))
        outcome = call(Web(provider).web_search, query="halter")
    assert outcome.status == "completed", outcome.detail
    assert "https://example.com/1" in text_of(outcome)


@pytest.mark.parametrize("reason", STOP_OR_STEER)
def test_a_stop_closes_what_ddgs_has_open(tmp_path: Path, reason: str) -> None:
    """Its client hears of nothing, so its process is killed, and the other side sees the end."""
    with SearchProxy(tmp_path) as proxy:
        provider = Ddgs(backend="duckduckgo", proxy=proxy.url, timeout=30)
        calls = ToolCalls(Web(provider).web_search, grace=PATIENT)
        outcome = calls.call_stopped(Stop(reason, wait=proxy.wait_for_open), "web_search", query="halter")
        assert (outcome.status, outcome.reason) == ("cancelled", reason)
        proxy.wait_for_close()
        wait_until(lambda: len(abandoned) == 0)


@pytest.mark.parametrize("reason", STOP_OR_STEER)
@every_moment
def test_a_search_is_stopped_with_the_pages_so_far(server: SlowServer, web: Web, moment: Moment, reason: str) -> None:
    """Whenever the stop comes: found pages are kept, the connection is closed, nothing is asked after it."""
    serve_results(server, hang_from=99 if moment == "end" else 2)
    calls = ToolCalls(web.web_search, grace=PATIENT)
    stop = Stop(reason, moment, wait=lambda: server.wait_for_request("/search", 2))
    outcome = calls.call_stopped(stop, "web_search", query="halter", pages=2)
    check_obeys(outcome, moment, reason)
    if moment == "before":
        assert not server.requests
    if moment in IN_THE_MIDDLE:
        assert outcome.status == "partial"
        assert "3. Title 1.2" in text_of(outcome)
        server.wait_for_close("/search")
        assert len(server.requests) == 2
        assert calls.reports == ["searching, page 1", "searching, page 2"]
    if moment == "end":
        assert "6. Title 2.2" in text_of(outcome)


# -- reading --------------------------------------------------------------------------------------


def test_pages_become_markdown(server: SlowServer, web: Web) -> None:
    """The main text with its links, without menus and scripts; text and JSON as they are."""
    page = server.page("/a", ARTICLE)
    plain = server.page("/b", "just text", "text/plain")
    data = server.page("/c", '{"a": 1}', "application/json")
    text = text_of(call(web.web_extract, urls=[page, plain, data]))
    assert f"# On halters\n{page}" in text
    assert "**leads** a horse" in text
    assert f"[more]({server.url}/more)" in text
    assert "hidden" not in text
    assert f"# {plain}\n\njust text" in text
    assert f'# {data}\n\n{{"a": 1}}' in text


def test_a_page_without_a_charset_in_its_header_is_read_by_its_own(server: SlowServer, web: Web) -> None:
    """Old pages say in their own head how they are encoded."""
    html = ARTICLE.replace("<head>", '<head><meta charset="windows-1252">').replace("holds it", "hält es")
    server.pages["/a"] = lambda _request: _raw(html.encode("windows-1252"))
    assert "hält es" in text_of(call(web.web_extract, urls=[server.url + "/a"]))


async def _raw(body: bytes) -> aioweb.StreamResponse:
    return aioweb.Response(body=body, headers={"content-type": "text/html"})


def test_what_cannot_be_read_is_told_beside_what_can(server: SlowServer, web: Web) -> None:
    """A PDF, a picture, a page that is not there, a private address: each says why, and the others are read."""
    urls = [
        server.page("/good", "good", "text/plain"),
        server.page("/pdf", b"%PDF-1.7", "application/pdf"),
        server.page("/png", b"\x89PNG", "image/png"),
        server.page("/empty", "<html><body></body></html>"),
        f"{server.url}/none",
        "http://10.0.0.1/",
        f"{server.url}/to?url=http://localhost:{server.port}/good",
    ]
    outcome = call(web.web_extract, urls=urls)
    assert outcome.status == "completed"
    text = text_of(outcome)
    for words in (
        "good",
        "it is a PDF file; only pages and plain text are supported",
        "it is image/png",
        "it has no text",
        "status 404",
        "10.0.0.1 is a private",
        "is a loopback address",
    ):
        assert words in text


def test_if_nothing_can_be_read_the_call_has_failed(server: SlowServer, web: Web) -> None:
    """And says for each address why."""
    outcome = call(web.web_extract, urls=[f"{server.url}/x", "file:///etc/passwd"])
    assert outcome.status == "failed"
    assert "status 404" in outcome.detail
    assert "only http:// and https://" in outcome.detail
    assert "1 to 10 URLs" in call(web.web_extract, urls=[]).detail


def test_a_long_page_is_cut_and_says_so(server: SlowServer) -> None:
    """So much of each page, and no more."""
    web = Web("ddgs", net=Net(allow=["127.0.0.1"]), max_characters=1_000)
    text = text_of(call(web.web_extract, urls=[server.page("/x", "word " * 10_000, "text/plain")]))
    assert "characters left out" in text
    assert len(text) < 1_200


def test_a_missing_extra_is_named(server: SlowServer, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not installed it is told the command."""
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    monkeypatch.setitem(sys.modules, "ddgs", None)
    assert "pip install 'halter[web]'" in call(web.web_extract, urls=[server.page("/a", ARTICLE)]).detail
    assert "pip install 'halter[web]'" in call(Web("ddgs").web_search, query="x").detail


@pytest.mark.parametrize("reason", STOP_OR_STEER)
@every_moment
@pytest.mark.parametrize("slow", ["/hang", "/trickle"])
def test_reading_is_stopped_with_the_pages_that_are_finished(
    server: SlowServer, web: Web, slow: str, moment: Moment, reason: str
) -> None:
    """Whenever the stop comes: finished pages are kept, the rest is named, and the servers see the end."""
    good = server.page("/good", "good words", "text/plain")
    urls = [good] if moment == "end" else [f"{server.url}{slow}", good, f"{server.url}{slow}2"]
    calls = ToolCalls(web.web_extract, grace=PATIENT)

    def middle() -> None:
        for path in (slow, slow + "2"):
            server.wait_for_request(path)
        wait_until(lambda: any("1 of 3" in text for text in calls.reports))

    async def main() -> Any:
        before = open_descriptors()
        call = ToolCall("1", "web_extract", json.dumps({"urls": urls}))
        outcome = await calls.run(call, Stop(reason, moment, wait=middle))
        wait_until(lambda: open_descriptors() <= before)
        return outcome

    outcome = asyncio.run(main())
    check_obeys(outcome, moment, reason)
    text = text_of(outcome)
    if moment == "before":
        assert not server.requests
    if moment in IN_THE_MIDDLE:
        assert outcome.status == "partial"
        assert "good words" in text
        assert f"Stopped before these were read: {urls[0]}, {urls[2]}" in text
        server.wait_for_close(slow)
        server.wait_for_close(slow + "2")
    if moment == "end":
        assert "good words" in text
    assert len(abandoned) == 0


@pytest.mark.parametrize("reason", STOP_OR_STEER)
def test_a_page_that_takes_for_ever_to_parse_is_stopped(server: SlowServer, web: Web, reason: str) -> None:
    """Parsing runs in a process that is killed, so control is back and nothing is left."""
    url = server.page("/deep", "<html><body>" + "<div><p>deep words</p>" * 60_000)
    stop = Stop(reason, wait=lambda: server.wait(lambda seen: seen and seen[0].end))
    outcome = ToolCalls(web.web_extract, grace=PATIENT).call_stopped(stop, "web_extract", urls=[url])
    check_obeys(outcome, "middle", reason)
    assert text_of(outcome) == f"Stopped before these were read: {url}"
    wait_until(lambda: len(abandoned) == 0)


@pytest.mark.parametrize("reason", STOP_OR_STEER)
def test_a_stop_anywhere_loses_no_page_that_was_read(server: SlowServer, web: Web, reason: str) -> None:
    """Whatever it hits, each page is given or named as not read; or what is given says that it is the first of two."""
    urls = [server.page(f"/{name}", f"{name} words", "text/plain") for name in ("one", "two")]

    def verify(outcome: ToolOutcome) -> None:
        text = text_of(outcome)
        assert "[1 of 2]" in text or all(url in text for url in urls), outcome

    assert stop_everywhere(lambda: (web.web_extract, {"urls": urls}), verify, reason) > 50


def test_a_session_goes_on_with_what_was_read(server: SlowServer, web: Web) -> None:
    """A steer breaks the reading; the model gets the finished page, the names of the rest, and then the guidance."""
    good = server.page("/good", "good words", "text/plain")
    arguments = json.dumps({"urls": [good, f"{server.url}/hang"]})
    model = ScriptedModel(ToolCall("1", "web_extract", arguments), "done")
    with Agent(model, patient(web.tools)).session() as session:

        def steer() -> None:
            server.wait_for_request("/hang")
            server.wait(lambda seen: any(each.path == "/good" and each.end for each in seen))
            session.steer("enough")

        threading.Thread(target=steer).start()
        turn = session.run("read these")
    assert turn.text == "done"
    server.wait_for_close("/hang")
    # If the steer comes just as the finished page is given, that is all there is; it says that it is the first of two.
    assert any(each in str(session.history) for each in ("Stopped before these were read", "[1 of 2]"))
