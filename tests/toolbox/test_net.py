"""Fetching: what is refused, what is pinned, and what is limited."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import ssl
import string
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from halter import CancellationToken, Cancelled
from halter.toolbox import net as net_module
from halter.toolbox.addresses import why_not_public
from halter.toolbox.net import Fetched, FetchError, Net, Refused, TooLarge
from tests.helpers import open_descriptors, wait_until
from tests.toolbox.leftovers import nothing_is_left  # noqa: F401  (for each test here)
from tests.toolbox.slowserver import SlowServer


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with SlowServer() as running:
        yield running


def get(net: Net, url: str, **options: Any) -> Fetched:
    async def main() -> Fetched:
        return await asyncio.wait_for(net.fetch(url, **options), 30)

    return asyncio.run(main())


def local(server: SlowServer, **options: Any) -> Net:
    return Net(allow=[f"127.0.0.1:{server.port}"], **options)


class Names:
    """A name server: each name has addresses; a list of lists is given out one after the other."""

    def __init__(self, **names: list[list[str]]) -> None:
        self.names = {name.replace("_", "."): answers for name, answers in names.items()}
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self.names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def test_a_page_is_fetched(server: SlowServer) -> None:
    """The plain case: body, type, charset and address come back."""
    url = server.page("/a", "<p>hé</p>".encode("latin-1"), "text/html", charset="x")
    server.pages["/b"] = _answer("text/html; charset=latin-1", "<p>hé</p>".encode("latin-1"))
    got = get(local(server), server.url + "/b#part")
    assert (got.status, got.media_type, got.text()) == (200, "text/html", "<p>hé</p>")
    assert got.url == server.url + "/b"
    assert get(local(server), url).is_ok


def test_this_machine_is_refused_unless_it_is_allowed(server: SlowServer) -> None:
    """A model that is told to read http://127.0.0.1 or http://localhost gets nothing, and no connection is made."""
    server.page("/secret", "secret")
    for host in ("127.0.0.1", "localhost", "localhost.", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127。0。0。1"):
        with pytest.raises(FetchError, match=r"refused|looked up"):
            get(Net(), f"http://{host}:{server.port}/secret")
    assert not server.requests
    assert get(Net(allow_private=True), server.url + "/secret").body == b"secret"


_HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda each: f"[{each}]"),
    st.integers(0, 2**32 - 1).map(str),
    st.integers(0, 2**32 - 1).map(hex),
    st.ip_addresses(v=4).map(lambda each: ".".join(f"0{part:o}" for part in each.packed)),
    st.ip_addresses(v=4).map(lambda each: str(each).replace(".", "\u3002")),
    st.ip_addresses(v=4).map(lambda each: str(each).translate({48 + n: 0xFF10 + n for n in range(10)})),
    st.ip_addresses(v=6).map(lambda each: f"[{each}%25eth0]"),
    st.text(st.sampled_from(string.ascii_letters + string.digits + ".-_%:@[]/\\?#\u3002\uff0e"), max_size=20),
)


@given(
    st.sampled_from(["http", "https", "HTTP", "ftp", "file", "gopher", "javascript", ""]),
    st.sampled_from(["", "user@", "user:pass@", "127.0.0.1@", "a@b@", "1.1.1.1:80@"]),
    _HOSTS,
    st.sampled_from(["", ".", ":80", ".:443", ":", ":0", ":99999"]),
    st.sampled_from(["", "/", "/x?y#z", "?@evil", "#@evil", "/\\evil"]),
)
@example("http", "", "127。0。0。1", "", "/")
@example("http", "1.1.1.1@", "[::ffff:7f00:1]", ":80", "/")
@example("http", "", "0x7f.1", "", "")
def test_however_a_url_is_written_nothing_but_checked_addresses_is_connected_to(
    scheme: str, user: str, host: str, port: str, path: str
) -> None:
    """Any URL either is refused, or would connect to public addresses that were checked, and only to those."""
    # No packet leaves: names have a public address of documentation kind, and the wire is asked only what it may do.
    net = Net(lookup=lambda _host, _port: ["93.184.216.34"])

    async def main() -> None:
        await net_module._load()
        url = net_module._parse(f"{scheme}://{user}{host}{port}{path}")
        checked, proxy = await net._check(url)
        assert proxy is None
        assert checked
        assert url.scheme in {"http", "https"}
        assert url.user is None
        assert url.password is None
        for address in checked:
            assert why_not_public(ipaddress.ip_address(address)) is None
        for found in await _resolved(url, checked):
            assert found in checked

    try:
        asyncio.run(main())
    except FetchError as error:
        assert str(error)
        assert "pass" not in str(error)


async def _resolved(url: Any, checked: frozenset[str]) -> list[str]:
    """What aiohttp would connect to."""
    connector = net_module._wire()._Connector(checked)
    try:
        found = await connector._resolve_host(url.raw_host, url.port)
        return [str(ipaddress.ip_address(each["host"])) for each in found]
    finally:
        await connector.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("target", ["http://localhost:{}/secret", "http://2130706433:{}/secret", "//[::1]:{}/secret"])
def test_a_redirect_into_the_own_network_is_refused(server: SlowServer, status: int, target: str) -> None:
    """The page that was allowed cannot send us to one that is not."""
    server.page("/secret", "secret")
    with pytest.raises(Refused):
        get(local(server), f"{server.url}/to?status={status}&url={target.format(server.port)}")
    assert not server.has_seen("/secret")


def test_a_redirect_to_another_scheme_is_refused(server: SlowServer) -> None:
    """file:///etc/passwd is not the web."""
    for target in ("file:///etc/passwd", "ftp://example.com/x", "gopher://127.0.0.1:70/_x", "http://"):
        with pytest.raises(Refused):
            get(local(server), f"{server.url}/to?url={target}")


def test_redirects_are_followed_up_to_a_limit(server: SlowServer) -> None:
    """The way is told; a circle ends."""
    server.page("/end", "there")
    got = get(local(server), f"{server.url}/to?url=/end")
    assert (got.body, len(got.hops), got.url) == (b"there", 2, server.url + "/end")
    with pytest.raises(Refused, match="more than 5 times"):
        get(local(server), f"{server.url}/to?url=/to%3Furl%3D/to")
        get(local(server), _circle(server))


def _circle(server: SlowServer) -> str:
    server.pages["/round"] = _redirect("/round")
    return server.url + "/round"


def test_a_name_with_one_private_address_among_public_ones_is_refused(server: SlowServer) -> None:
    """Mixed records: the one that is connected to would be a matter of luck."""
    names = Names(mixed_example=[["93.184.216.34", "127.0.0.1"]])
    with pytest.raises(Refused, match=r"127\.0\.0\.1 is a loopback"):
        get(Net(lookup=names), f"http://mixed.example:{server.port}/")
    assert not server.requests


def test_a_name_that_changes_between_check_and_connection_changes_nothing(server: SlowServer) -> None:
    """DNS rebinding: a name is looked up once for each hop, and what was checked is what is connected to."""
    server.page("/x", "it was us")
    names = Names(rebind_example=[["127.0.0.1"], ["10.0.0.1"]])
    got = get(Net(lookup=names, allow=["127.0.0.0/8"]), f"http://rebind.example:{server.port}/x")
    assert got.body == b"it was us"
    assert names.asked == ["rebind.example"]
    assert server.seen("/x")[0].headers["host"] == f"rebind.example:{server.port}"


def test_the_second_hop_is_looked_up_and_checked_again(server: SlowServer) -> None:
    """A name that was harmless for the first hop may not be for the second."""
    names = Names(rebind_example=[["127.0.0.1"], ["127.0.0.2"]])
    with pytest.raises(Refused, match=r"127\.0\.0\.2"):
        get(
            Net(lookup=names, allow=["127.0.0.1"]),
            f"http://rebind.example:{server.port}/to?url=http://rebind.example:{server.port}/x",
        )
    assert not server.has_seen("/x")


def test_the_socket_itself_refuses_an_address_that_was_not_checked(server: SlowServer) -> None:
    """Should every parser above be fooled, nothing is connected."""

    async def main() -> None:
        await net_module._load()
        url = net_module._parse(server.url + "/x")
        with pytest.raises(FetchError, match="not the one that was checked"):
            async with net_module._wire().opened(
                url,
                frozenset({"93.184.216.34"}),
                method="GET",
                headers={},
                body=None,
                connect_timeout=5,
                tls=None,
                proxy=None,
            ):
                pass

    asyncio.run(main())
    assert not server.requests


def test_credentials_and_fragments_are_not_sent(server: SlowServer) -> None:
    """A password in a URL goes nowhere, neither as a header nor into what is told."""
    server.page("/x", "x")
    got = get(local(server), f"http://user:secret@127.0.0.1:{server.port}/x#part")
    assert "authorization" not in server.seen("/x")[0].headers
    assert got.url == f"{server.url}/x"
    with pytest.raises(Refused) as info:
        get(Net(), "http://user:secret@127.0.0.1/")
    assert "secret" not in str(info.value)


def test_cookies_are_neither_kept_nor_sent(server: SlowServer) -> None:
    """Not even from one hop to the next."""
    server.pages["/set"] = _redirect("/x", set_cookie="a=b")
    server.page("/x", "x")
    get(local(server), server.url + "/set")
    assert "cookie" not in server.seen("/x")[0].headers


def test_headers_do_not_go_to_somebody_else(server: SlowServer) -> None:
    """A key that was meant for one host is not sent to the one that it redirects to."""
    server.page("/x", "x")
    with SlowServer() as other:
        other.page("/y", "y")
        net = Net(allow=["127.0.0.1"])
        get(net, f"{server.url}/to?url={server.url}/x", headers={"X-Key": "secret"})
        get(net, f"{server.url}/to?url={other.url}/y", headers={"X-Key": "secret"})
        assert server.seen("/x")[0].headers["x-key"] == "secret"
        assert "x-key" not in other.seen("/y")[0].headers
        with pytest.raises(Refused, match="not done"):
            get(net, f"{server.url}/to?status=307&url={other.url}/y", method="POST", body=b"secret")


def test_what_is_too_large_ends_at_the_limit(server: SlowServer) -> None:
    """Whether the size is announced, or not, or a bomb: reading ends."""
    server.page("/big", b"x" * 20_000)
    server.page("/bomb", gzip.compress(b"\0" * 50_000_000), content_encoding="gzip")
    for path in ("/big", "/trickle"):
        with pytest.raises(TooLarge, match="at most 1,000 bytes"):
            get(local(server, max_bytes=1_000), server.url + path)
    sizes: list[int] = []
    with pytest.raises(TooLarge, match="at most 200,000 bytes"):  # packed it has a quarter of that
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
        server.pages["/x"] = _answer("text/plain", body, content_encoding=encoding)
        assert get(local(server), server.url + "/x").body == b"one two"
    server.pages["/x"] = _answer("text/plain", b"?", content_encoding="br")
    with pytest.raises(Refused, match="not asked for"):
        get(local(server), server.url + "/x")
    server.pages["/x"] = _answer("text/plain", gzip.compress(b"x" * 1000)[:10] + b"garbage", content_encoding="gzip")
    with pytest.raises(FetchError, match="damaged"):
        get(local(server), server.url + "/x")


def test_a_type_that_is_not_wanted_is_refused_before_its_body(server: SlowServer) -> None:
    """A film is not read to find out that it is no page."""
    with pytest.raises(Refused, match=r"video/mp4; wanted is text/html, image/\*"):
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
    with pytest.raises(FetchError, match="longer than"):
        get(local(server, timeout=0.3), server.url + path)
    server.wait_for_close(path)


@pytest.mark.parametrize("path", ["/hang", "/trickle"])
def test_a_stop_closes_the_connection(server: SlowServer, path: str) -> None:
    """As the server sees it, and no descriptor stays open."""
    get(local(server), server.page("/warm", "up"))
    token = CancellationToken()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = open_descriptors()
        waiter = loop.run_in_executor(None, server.wait_for_request, path)
        waiter.add_done_callback(lambda _: token.cancel("stop"))
        with pytest.raises(Cancelled):
            async with token.scope():
                await local(server).fetch(server.url + path)
        assert len(asyncio.all_tasks()) == 2  # this one, and the one that limits it
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


def test_a_certificate_is_checked(server: SlowServer) -> None:
    """TLS to a server that speaks none fails, and so would a certificate of nobody's."""
    with pytest.raises(FetchError, match="could not be fetched"):
        get(local(server, tls=ssl.create_default_context()), f"https://127.0.0.1:{server.port}/")


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


def _answer(content_type: str, body: bytes, **headers: str) -> Any:
    named = {key.replace("_", "-"): value for key, value in headers.items()}

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers={"content-type": content_type, **named})

    return answer


def _redirect(target: str, **headers: str) -> Any:
    named = {key.replace("_", "-"): value for key, value in headers.items()}

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"location": target, **named})

    return answer
