"""Fetching: sizes, types, times, certificates and proxies."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import Iterator

import pytest
import trustme

from halter import CancellationToken, Cancelled
from halter.toolbox.http.fetch import FetchError, Net, Refused, TooLarge
from tests.support.fetching import Names, answering, get, local
from tests.support.leftovers import nothing_is_left  # noqa: F401  (for each test here)
from tests.support.processes import open_descriptors
from tests.support.slow_server import SlowServer
from tests.support.time_limits import call_limited
from tests.support.waiting import wait_until


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with SlowServer() as running:
        yield running


def test_what_is_too_large_ends_at_the_limit(server: SlowServer) -> None:
    """Whether the size is announced, or not, or a bomb: reading ends."""
    server.page("/big", b"x" * 20_000)
    server.page("/bomb", gzip.compress(b"\0" * 50_000_000), content_encoding="gzip")
    for path in ("/big", "/trickle"):
        with pytest.raises(TooLarge, match="the limit is 1,000 bytes"):
            get(local(server, max_bytes=1_000), server.url + path)
    sizes: list[int] = []
    with pytest.raises(TooLarge, match="the limit is 200,000 bytes"):  # packed it has a quarter of that
        get(local(server, max_bytes=200_000), server.url + "/bomb", on_bytes=sizes.append)
    assert max(sizes, default=0) < 300_000


def test_packed_answers_are_unpacked(server: SlowServer) -> None:
    """Gzip in one and in two members, deflate in both of its meanings."""
    raw = zlib.compressobj(wbits=-15)
    bodies = {
        "gzip": gzip.compress(b"one two"),
        "x-gzip": gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0",
        "deflate": zlib.compress(b"one two"),
        "DEFLATE": raw.compress(b"one two") + raw.flush(),
    }
    for encoding, body in bodies.items():
        server.pages["/x"] = answering("text/plain", body, content_encoding=encoding)
        assert get(local(server), server.url + "/x").body == b"one two"
    server.pages["/x"] = answering("text/plain", b"?", content_encoding="br")
    with pytest.raises(Refused, match="not requested"):
        get(local(server), server.url + "/x")
    server.pages["/x"] = answering("text/plain", gzip.compress(b"x" * 1000)[:10] + b"garbage", content_encoding="gzip")
    with pytest.raises(FetchError, match="damaged"):
        get(local(server), server.url + "/x")


def test_a_type_that_is_not_wanted_is_refused_before_its_body(server: SlowServer) -> None:
    """A film is not read to find out that it is no page."""
    with pytest.raises(Refused, match=r"video/mp4; expected text/html, image/\*"):
        get(local(server), server.url + "/trickle?type=video/mp4", types=["text/html", "image/*"])
    server.wait_for_close("/trickle")
    server.page("/i", b"x", "image/webp")
    assert get(local(server), server.url + "/i", types=["image/*"]).media_type == "image/webp"


def test_a_failure_is_an_answer_with_an_excerpt(server: SlowServer) -> None:
    """The status decides, and no type is asked of it."""
    got = get(local(server), server.url + "/nothing", types=["image/png"])
    assert (got.status, got.is_ok, got.body) == (404, False, b"there is no such page")


@pytest.mark.parametrize("path", ["/hang", "/trickle"])
def test_a_fetch_ends_in_time(server: SlowServer, path: str) -> None:
    """A server that says nothing, or a little for ever, is left when the time is up, and sees it."""

    def fetch(seconds: float) -> bool:
        with pytest.raises(FetchError, match="longer than"):
            get(local(server, timeout=seconds), server.url + path)
        return server.has_seen(path)

    call_limited(fetch, bool)
    server.wait_for_close(path)


@pytest.mark.parametrize("path", ["/hang", "/trickle"])
def test_a_stop_closes_the_connection(server: SlowServer, path: str) -> None:
    """As the server sees it, and no descriptor stays open."""
    get(local(server), server.page("/warm", "up"))
    token = CancellationToken()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        before, tasks = open_descriptors(), asyncio.all_tasks()
        waiter = loop.run_in_executor(None, server.wait_for_request, path)
        waiter.add_done_callback(lambda _: token.cancel("stop"))
        with pytest.raises(Cancelled):
            async with token.scope():
                await local(server).fetch(server.url + path)
        assert asyncio.all_tasks() == tasks
        server.wait_for_close(path)
        wait_until(lambda: open_descriptors() <= before)  # some are the server's own

    asyncio.run(asyncio.wait_for(main(), 30))
    server.wait_for_close(path)


def test_a_proxy_is_used_only_if_the_user_says_so(server: SlowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment alone does not send requests past the check; written addresses are checked all the same."""
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(FetchError, match="looked up"):
        get(Net(), "http://name.invalid/x")
    assert not server.requests
    server.page("/x", "by proxy")
    assert get(Net(use_proxy=True), "http://name.invalid/x").body == b"by proxy"
    with pytest.raises(Refused, match="private"):
        get(Net(use_proxy=True), "http://10.0.0.1/x")
    assert len(server.requests) == 1


def test_a_name_that_nobody_knows_is_an_error_for_the_model() -> None:
    """It says which name."""
    with pytest.raises(FetchError, match=r"name\.invalid"):
        get(Net(), "http://name.invalid/")
    with pytest.raises(FetchError, match="has no address"):
        get(Net(lookup=lambda _host, _port: []), "http://name.invalid/")


def test_a_server_that_is_not_there_is_an_error_for_the_model(server: SlowServer) -> None:
    """It says where."""
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:1"):
        get(Net(allow=["127.0.0.1:1"]), "http://127.0.0.1:1/")


def test_a_certificate_is_checked_for_the_name_and_not_for_the_address() -> None:
    """Connecting to the checked address leaves TLS as it is: the right name passes, another and a stranger's do not."""
    authority = trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("secure.example").configure_cert(theirs)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    names = Names(secure_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
    with SlowServer(theirs) as server:
        server.page("/x", "safe")
        trusting = Net(allow=["127.0.0.0/8"], lookup=names, tls=ours)
        assert get(trusting, f"https://secure.example:{server.port}/x").body == b"safe"
        with pytest.raises(FetchError, match="certificate"):
            get(trusting, f"https://other.example:{server.port}/x")
        with pytest.raises(FetchError, match="certificate"):
            get(Net(allow=["127.0.0.0/8"], lookup=names), f"https://secure.example:{server.port}/x")
        assert len(server.requests) == 1


def test_a_stop_waits_for_no_farewell_of_tls() -> None:
    """An encrypted connection is cut as well, at once and as the server sees it."""
    authority = trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("secure.example").configure_cert(theirs)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    net = Net(allow=["127.0.0.0/8"], lookup=Names(secure_example=[["127.0.0.1"]]), tls=ours)
    token = CancellationToken()
    with SlowServer(theirs) as server:

        async def main() -> None:
            url = f"https://secure.example:{server.port}/trickle"
            waiter = asyncio.get_running_loop().run_in_executor(None, server.wait_for_request, "/trickle")
            waiter.add_done_callback(lambda _: token.cancel("stop"))
            with pytest.raises(Cancelled):
                async with token.scope():
                    await net.fetch(url)

        asyncio.run(asyncio.wait_for(main(), 30))
        server.wait_for_close("/trickle")


def test_progress_is_told(server: SlowServer) -> None:
    """Whoever asks hears how much has come."""
    server.page("/x", b"x" * 500_000)
    seen: list[int] = []
    get(local(server), server.url + "/x", on_bytes=seen.append)
    assert seen[-1] == 500_000
    assert seen == sorted(seen)


@pytest.mark.parametrize("url", ["", "x", "http://", "http://a b/", "http://a\n.b/", "http://[::1/", "a" * 9_000])
def test_what_is_no_url_is_refused(url: str) -> None:
    """With words that a model can act upon."""
    with pytest.raises(Refused, match="URL"):
        get(Net(), url)


def test_nothing_is_left_after_many_fetches(server: SlowServer) -> None:
    """Descriptors and tasks are as before."""
    url = server.page("/x", "x")
    get(local(server), url)

    async def main() -> None:
        before = open_descriptors()
        await asyncio.gather(*(local(server).fetch(url) for _ in range(20)))
        wait_until(lambda: open_descriptors() <= before)

    asyncio.run(asyncio.wait_for(main(), 30))
