"""Which addresses may be connected to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halter.toolbox.http.addresses import Rules, embedded_ipv4, literal, server_of, why_not_public

PRIVATE = [
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "192.0.0.8",
    "192.0.0.170",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "::",
    "::1",
    "::127.0.0.1",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    "3fff::1",
    "4000::1",
    "2001::1",
    "100::1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "2002:7f00:1::",
    "2002:808:808::",
    "64:ff9b::8.8.8.8",
    "64:ff9b:1::a00:1",
    "5f00::1",
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001:830::200e"]


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_the_public_internet_is_refused(text: str) -> None:
    """Each kind of address that is not plainly public is refused, and it is said what it is."""
    assert why_not_public(ipaddress.ip_address(text))
    assert Rules().refuses(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_allowed(text: str) -> None:
    """The web is there to be fetched from."""
    assert Rules().refuses(ipaddress.ip_address(text)) is None


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:{}", "64:ff9b::{}", "::ffff:0:{}"]))
def test_an_address_inside_another_is_found(inner: ipaddress.IPv4Address, form: str) -> None:
    """Whatever IPv4 address is packed into an IPv6 one, the whole is refused and the inner one is known."""
    address = ipaddress.IPv6Address(form.format(inner))
    assert embedded_ipv4(address) == inner
    assert Rules().refuses(address)


@given(st.ip_addresses(v=4))
def test_6to4_is_unpacked(inner: ipaddress.IPv4Address) -> None:
    """The address in the middle of a 6to4 address is the one that it leads to."""
    assert embedded_ipv4(ipaddress.IPv6Address((0x2002 << 112) | (int(inner) << 80))) == inner


def test_a_network_that_is_allowed_allows_no_more_than_itself() -> None:
    """Allowing 10/8 leaves loopback refused; allowing NAT64 leaves private addresses behind it refused."""
    rules = Rules(allow=["10.0.0.0/8", "64:ff9b::/96"])
    assert rules.refuses(ipaddress.ip_address("10.9.8.7")) is None
    assert rules.refuses(ipaddress.ip_address("127.0.0.1"))
    assert rules.refuses(ipaddress.ip_address("64:ff9b::8.8.8.8")) is None
    assert rules.refuses(ipaddress.ip_address("64:ff9b::192.168.0.1"))
    assert rules.refuses(ipaddress.ip_address("64:ff9b::10.0.0.1")) is None  # allowed on its own account


def test_a_host_is_allowed_by_its_name_in_any_spelling() -> None:
    """Case and a trailing dot make no other host; a port, if named, has to be the one."""
    rules = Rules(allow=["Wiki.Example", "localhost:8080"])
    assert rules.names("wiki.example.", 22)
    assert rules.refuses_port("wiki.example", 22) is None
    assert rules.names("LOCALHOST", 8080)
    assert not rules.names("localhost", 8081)
    assert not rules.names("evil.wiki.example", 80)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://[::1]:8080/x", "::1", 8080),
        ("https://Search.Example", "search.example", 443),
        ("http://localhost:3000/v1", "localhost", 3000),
        ("http://b\u00fccher.example/", "xn--bcher-kva.example", 80),
    ],
)
def test_the_server_of_a_url_can_be_allowed(url: str, host: str, port: int) -> None:
    """That one, at that port, and no other."""
    rules = Rules(allow=[server_of(url)])
    assert rules.names(host, port)
    assert not rules.names(host, port + 1)
    assert not rules.names(f"x{host}", port)


@pytest.mark.parametrize("text", ["", "http://example.com", "user@example.com", "example.com/x", "[::1", "a:99999"])
def test_what_is_no_host_cannot_be_allowed(text: str) -> None:
    """A mistake in a setting is told at once, and does not wait for an attack."""
    with pytest.raises(ValueError, match="cannot be allowed"):
        Rules(allow=[text])


def test_all_private_addresses_can_be_allowed_at_once() -> None:
    """allow_private is for an agent whose work is in the own network."""
    assert Rules(allow_private=True).refuses(ipaddress.ip_address("192.168.0.1")) is None


def test_a_single_text_is_not_taken_for_a_list() -> None:
    """allow="localhost" would allow nine hosts of one letter."""
    with pytest.raises(TypeError, match="list of hosts"):
        Rules(allow="localhost")


@pytest.mark.parametrize(("port", "is_refused"), [(80, False), (443, False), (8080, False), (22, True), (25, True)])
def test_ports_of_other_services_are_refused(port: int, is_refused: bool) -> None:
    """No mail is sent through a URL."""
    assert (Rules().refuses_port("example.com", port) is not None) is is_refused
    assert Rules(ports=[443]).refuses_port("example.com", port) is None or port != 443


@given(st.ip_addresses(v=4), st.sampled_from(["octal", "hex", "integer", "short", "hex integer"]))
def test_an_address_in_disguise_is_refused(address: ipaddress.IPv4Address, form: str) -> None:
    """Forms that the system would read as an address are not taken for names, which nobody would check."""
    a, b, c, d = address.packed
    disguised = {
        "octal": f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        "hex": f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}",
        "integer": str(int(address)),
        "short": f"{a}.{(b << 16) + (c << 8) + d}",
        "hex integer": f"0x{int(address):x}",
    }[form]
    with pytest.raises(ValueError, match="unusual form"):
        literal(disguised)


@given(st.ip_addresses())
def test_a_plain_address_is_read_as_itself(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """With a dot at the end, too."""
    assert literal(str(address)) == address
    assert literal(f"{address}.") == address
