"""Fetching: what is refused, and what is pinned."""

from __future__ import annotations

import asyncio
import ipaddress
import string
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halter.toolbox.http import fetch as fetch_module
from halter.toolbox.http.addresses import why_not_public
from halter.toolbox.http.fetch import FetchError, Net, Refused
from tests.support.fetching import Names, answering, get, local, redirecting
from tests.support.leftovers import nothing_is_left  # noqa: F401  (for each test here)
from tests.support.slow_server import SlowServer


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with SlowServer() as running:
        yield running


def test_a_page_is_fetched(server: SlowServer) -> None:
    """The plain case: body, type, charset and address come back."""
    url = server.page("/a", "<p>hé</p>".encode("latin-1"), "text/html", charset="x")
    server.pages["/b"] = answering("text/html; charset=latin-1", "<p>hé</p>".encode("latin-1"))
    got = get(local(server), server.url + "/b#part")
    assert (got.status, got.media_type, got.text()) == (200, "text/html", "<p>hé</p>")
    assert got.url == server.url + "/b"
    assert get(local(server), url).is_ok


@pytest.mark.parametrize("charset", ["punycode", "Punycode", "idna", "undefined", "hex", "base64", "zip", "no such"])
def test_a_page_does_not_choose_a_codec_that_is_no_charset(charset: str) -> None:
    """A page with `charset=punycode` stopped the event loop for minutes; one with `idna` lost the pages beside it."""
    program = (
        "from halter.toolbox.http.fetch import Fetched; "
        f"got = Fetched('', 200, 'text/plain', b'a' * 3_000_000 + b'\\xff', {charset!r}); "
        "assert got.text() == 'a' * 3_000_000 + '\\ufffd'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


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
        await fetch_module._load()
        url = fetch_module._parse(f"{scheme}://{user}{host}{port}{path}")
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
    connector = fetch_module._connection()._PinnedConnector(checked)
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
    server.pages["/round"] = redirecting("/round")
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
        await fetch_module._load()
        url = fetch_module._parse(server.url + "/x")
        with pytest.raises(FetchError, match="not the one that was checked"):
            async with fetch_module._connection().opened(
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
    server.pages["/set"] = redirecting("/x", set_cookie="a=b")
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
        with pytest.raises(Refused, match="not allowed"):
            get(net, f"{server.url}/to?status=307&url={other.url}/y", method="POST", body=b"secret")
