"""The process at the other end of a connection, if it runs on this machine: Linux lists the sockets of both ends.

Agents run programs on the machine of the gateway, and such a program must not answer what its agent was asked.
"""

from __future__ import annotations

import os
import socket
import sys
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from halter.cancel.processes.origin import tool_processes
from halter.cancel.processes.proc_table import HAS_PROC, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from ipaddress import IPv4Address

    from aiohttp import web

__all__ = ["ClientSocket", "client_of", "is_agents_process"]

_Address: TypeAlias = "tuple[IPv4Address | IPv6Address, int]"
_TABLES: Final = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_WORD: Final = 4  # bytes; the table has addresses as words of this machine


class ClientSocket(NamedTuple):
    """The client's end of a connection, and ours."""

    client: tuple[str, int] | None
    own: tuple[str, int] | None


def client_of(request: web.Request) -> ClientSocket:
    """The ends of the connection of a request; None if it has been lost."""
    transport = request.transport
    ends = [transport.get_extra_info(name) if transport is not None else None for name in ("peername", "sockname")]
    client, own = ((end[0], end[1]) if end else None for end in ends)
    return ClientSocket(client, own)


def is_agents_process(ends: ClientSocket) -> bool:
    """Whether the client is a process that was started for a tool, or cannot be told from one. Blocks.

    A local client that has closed its end already cannot be told from one. Outside Linux none is recognized.
    """
    if not HAS_PROC:
        return False
    if ends.client is None or ends.own is None:
        return True
    client, own = _normal(*ends.client), _normal(*ends.own)
    inode = next((inode for local, remote, inode in _sockets(client[1]) if (local, remote) == (client, own)), None)
    if inode is None:
        return client[0].is_loopback or client[0] == own[0]  # else it is on another machine
    suspects = tool_processes()
    held, is_hidden = _find(inode, suspects)
    if held or inode == "0":
        return True
    return is_hidden and not _find(inode, _all_processes() - suspects)[0]


def _find(inode: str, pids: Iterable[int]) -> tuple[bool, bool]:
    """Whether one of these processes has the socket open; and whether that could not be seen of one of them."""
    wanted, is_hidden = f"socket:[{inode}]", False
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):  # noqa: PTH208  (names, not paths)
                try:
                    if os.readlink(f"{folder}/{name}") == wanted:  # noqa: PTH115
                        return True, is_hidden
                except FileNotFoundError:
                    pass  # closed meanwhile
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended
        except PermissionError:
            is_hidden = True
    return False, is_hidden


def _all_processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  (names, not paths)


def _sockets(port: int) -> Iterator[tuple[_Address, _Address, str]]:
    """The TCP sockets of this machine with a local port: local address, remote address and inode."""
    suffix = f":{port:04X}"
    for table in _TABLES:
        for line in read(table).decode("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(suffix):
                yield _parsed(fields[1]), _parsed(fields[2]), fields[9]


def _parsed(text: str) -> _Address:
    address, _, port = text.partition(":")
    data = bytes.fromhex(address)
    words = [int.from_bytes(data[at : at + _WORD], "big") for at in range(0, len(data), _WORD)]
    packed = b"".join(word.to_bytes(_WORD, sys.byteorder) for word in words)
    family = socket.AF_INET if len(packed) == _WORD else socket.AF_INET6
    return _normal(socket.inet_ntop(family, packed), int(port, 16))


def _normal(host: str, port: int) -> _Address:
    """An address in one form: IPv4 in IPv6 is IPv4."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address), port
