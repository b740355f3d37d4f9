"""Ports of servers that are started again, or that have to know each other's."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_ports(count: int = 1) -> Iterator[list[int]]:
    """Free ports that nobody else is given in this block. Servers can listen on them, if they reuse addresses."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            ports.append(held.getsockname()[1])
        yield ports
