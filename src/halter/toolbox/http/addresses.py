"""Which addresses a tool may connect to. A model chooses the URL, so its spelling must not matter.

The rules are about addresses, not names: a name is resolved first, and all of its addresses must be allowed. Everything
that is not clearly public is refused unless it is allowed explicitly: private, loopback, link-local (cloud metadata),
multicast, unspecified, shared (CGNAT) and reserved addresses, and IPv6 addresses that contain an IPv4 address, which a
gateway would translate.

This is our own code because a general library answers another question (`is_global`), and because one rule has to hold
for requests, redirects and the browser. An MCP server is named by its user, and reached at that address alone.
"""

from __future__ import annotations

import contextlib
import ipaddress
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# Networks of IPv6 addresses that carry an IPv4 address: its distance from the right end in bits, and what it is called.
_EMBEDDING: Final = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0, "an IPv4-mapped address"),
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0, "an IPv4-translated address"),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0, "a NAT64 address"),
    (ipaddress.IPv6Network("64:ff9b:1::/48"), 0, "a local NAT64 address"),
    (ipaddress.IPv6Network("2002::/16"), 80, "a 6to4 address"),
)
_RESERVED: Final = "a private or reserved address"
# Addresses for special purposes, as IANA lists them. The tables of the `ipaddress` module differ between versions of
# Python, so nothing here asks it what an address is for. The first network that matches says what the address is.
_SPECIAL_V4: Final = tuple(
    (ipaddress.IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/32", "the unspecified address"),
        ("0.0.0.0/8", _RESERVED),
        ("10.0.0.0/8", _RESERVED),
        ("100.64.0.0/10", "a shared address (CGNAT)"),
        ("127.0.0.0/8", "a loopback address (this machine)"),
        # The agent that each virtual machine of one large cloud has at a public address; it hands out secrets.
        ("168.63.129.16/32", "the address of a cloud agent"),
        ("169.254.0.0/16", "a link-local address (cloud metadata)"),
        ("172.16.0.0/12", _RESERVED),
        ("192.0.0.0/24", _RESERVED),  # protocols, and the metadata of another cloud
        ("192.0.2.0/24", _RESERVED),  # documentation, as two more below
        ("192.88.99.0/24", _RESERVED),  # relays of 6to4
        ("192.168.0.0/16", _RESERVED),
        ("198.18.0.0/15", _RESERVED),  # benchmarks
        ("198.51.100.0/24", _RESERVED),
        ("203.0.113.0/24", _RESERVED),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", _RESERVED),
    )
)
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")  # all others are for something else, or for nothing yet
_SPECIAL_V6: Final = tuple(
    (ipaddress.IPv6Network(network), what)
    for network, what in (
        ("::/128", "the unspecified address"),
        ("::1/128", "a loopback address (this machine)"),
        ("fe80::/10", "a link-local address (cloud metadata)"),
        ("ff00::/8", "a multicast address"),
        ("2001::/32", "a Teredo address"),
        ("2001::/23", "not a public address"),  # protocols
        ("2001:db8::/32", "not a public address"),  # documentation, as the next
        ("3fff::/20", "not a public address"),
    )
)
_FIRST_FREE_PORT: Final = 1024
_LAST_PORT: Final = 65535
_WEB_PORTS: Final = frozenset({80, 443})


class Rules:
    """What may be connected to.

    *allow* names exceptions: hosts (`"wiki.example"`, `"localhost:8080"`), addresses and networks (`"10.0.0.0/8"`).
    A host that is named is allowed whatever its address is. *ports* are those that may be used; without it, 80, 443 and
    all from 1024 up, so that no mail or remote shell server is spoken to.
    """

    def __init__(
        self, *, allow_private: bool = False, allow: Iterable[str] = (), ports: Collection[int] | None = None
    ) -> None:
        if isinstance(allow, str):
            raise TypeError(f"allow is a list of hosts and networks, not the single text {allow!r}")
        self._allow_private = allow_private
        self._ports = None if ports is None else frozenset(ports)
        self._networks: list[_Network] = []
        self._hosts: set[tuple[str, int | None]] = set()  # without a port: all of them
        for each in allow:
            try:
                self._networks.append(ipaddress.ip_network(each, strict=False))
            except ValueError:
                self._hosts.add(_host_and_port(each))

    def names(self, host: str, port: int) -> bool:
        """Whether this host was allowed by its name."""
        host = normal_host(host)
        return (host, None) in self._hosts or (host, port) in self._hosts

    def refuses_port(self, host: str, port: int) -> str | None:
        """Why this port may not be used; None if it may be."""
        if self.names(host, port):
            return None
        if self._ports is not None:
            return None if port in self._ports else f"port {port} is not allowed"
        if port in _WEB_PORTS or _FIRST_FREE_PORT <= port <= _LAST_PORT:
            return None
        return f"port {port} is not a web port"

    def refuses(self, address: Address) -> str | None:
        """Why this address may not be connected to; None if it may be."""
        if any(address in network for network in self._networks):
            inner = embedded_ipv4(address)
            # Allowing a NAT64 network does not allow private IPv4 addresses behind it.
            return None if inner is None else self.refuses(inner)
        if self._allow_private:
            return None
        return why_not_public(address)


def why_not_public(address: Address) -> str | None:
    """What kind of address this is, if it is not clearly a public one; else None."""
    if isinstance(address, ipaddress.IPv4Address):
        return next((what for network, what in _SPECIAL_V4 if address in network), None)
    carriers = ((network, what) for network, _, what in _EMBEDDING)
    found = next((what for network, what in (*carriers, *_SPECIAL_V6) if address in network), None)
    return found or (None if address in _PUBLIC_V6 else "not a public address")


def embedded_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address inside an IPv6 address, if it contains one."""
    for network, shift, _ in _EMBEDDING:
        if address in network:
            return ipaddress.IPv4Address((int(address) >> shift) & 0xFFFFFFFF)
    return None


def normal_host(host: str) -> str:
    """A host in the form in which hosts are compared."""
    return host.strip().lower().rstrip(".")


def server_of(url: str) -> str:
    """The server of a URL in the form of `allow`: its host and its port."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_and_port(text: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or parts.path or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(
            f"{text!r} cannot be allowed: it is neither a host, such as wiki.example or localhost:8080, nor a network"
        )
    with contextlib.suppress(UnicodeError):  # then it is no name, and will match none
        host = host.encode("idna").decode()
    return normal_host(host), port


def literal(host: str) -> Address | None:
    """The address that a URL's host is; None for a name.

    Raises ValueError for what is neither. A host that ends in a number is an address, as in browsers. The system's own
    parser also accepts octal, hexadecimal and whole numbers: here only the plain form is accepted.
    """
    host = normal_host(host)
    if "%" in host:
        raise ValueError("an address with a scope is local to a link of this machine")
    if ":" in host:
        return ipaddress.IPv6Address(host)
    last = host.rpartition(".")[2]
    is_number = last.isdigit() or (last.startswith("0x") and all(digit in "0123456789abcdef" for digit in last[2:]))
    if not is_number:
        return None
    try:
        return ipaddress.IPv4Address(host)
    except ValueError:
        raise ValueError(f"{host!r} is an unusual form of an address; write it as four decimal numbers") from None
