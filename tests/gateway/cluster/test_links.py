"""The links of the fault runner break connections as a network does."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from bench.cluster_proxy import Links


@pytest.fixture
def link() -> Iterator[tuple[Links, socket.socket, socket.socket]]:
    """The links, and both ends of a connection over the link "a"."""
    with socket.create_server(("127.0.0.1", 0)) as server, Links() as links:
        port = links.add("a", server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port)) as near:
            far, _ = server.accept()
            with far:
                near.settimeout(20)
                far.settimeout(20)
                yield links, near, far


def test_a_held_link_passes_on_later_what_was_sent(link: tuple[Links, socket.socket, socket.socket]) -> None:
    """Nothing is lost and nothing is closed: it arrives when the link goes on, in both directions."""
    links, near, far = link
    near.sendall(b"1")
    assert far.recv(1) == b"1"
    links.hold(["a"])
    near.sendall(b"2")
    far.sendall(b"3")
    far.settimeout(0.2)
    with pytest.raises(TimeoutError):
        far.recv(1)
    far.settimeout(20)
    links.go(["a"])
    assert far.recv(1) == b"2"
    assert near.recv(1) == b"3"


def test_a_cut_link_closes_its_connections(link: tuple[Links, socket.socket, socket.socket]) -> None:
    """Both ends see the end, and what was held is lost."""
    links, near, far = link
    links.hold(["a"])
    near.sendall(b"lost")
    links.cut(["a"])
    links.go(["a"])
    for end in (near, far):
        with contextlib.suppress(ConnectionResetError):
            assert end.recv(1) == b""


def test_a_held_link_connects_nobody(link: tuple[Links, socket.socket, socket.socket]) -> None:
    """A new connection reaches the other side only when the link goes on."""
    links, near, far = link
    links.hold(["a"])
    with socket.create_connection(near.getpeername()) as late:
        late.sendall(b"x")
        links.go(["a"])
        near.sendall(b"y")
        assert far.recv(1) == b"y"
