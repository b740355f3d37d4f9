"""Three NATS servers that are one cluster, as processes on loopback, with links between them that can be broken."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import urllib.request
from typing import TYPE_CHECKING

from bench.cluster_proxy import Links
from tests.support.nats_server import NATSServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DISK = 4 * 1024 * 1024 * 1024  # bytes of a server's disk, which is in memory and takes only what is used
_LITTLE = 64 * 1024  # bytes that are left when it is full
_NOWHERE = "127.0.0.1:1"  # what servers tell each other of their addresses: they are to use the links


class NATSCluster:
    """The servers. One that was killed is started again with its files, its ports and its name."""

    def __init__(self, servers: list[NATSServer], monitors: list[int], links: Links, folders: list[Path]) -> None:
        self.servers = servers
        self.links = links
        self._monitors = monitors
        self._folders = folders  # empty if they are on a disk that cannot be filled

    @property
    def urls(self) -> str:
        return ",".join(server.url for server in self.servers)

    @property
    def can_be_full(self) -> bool:
        return bool(self._folders)

    def urls_for(self, client: str) -> str:
        """The addresses for one client, over links of its own: `CLIENT/0`, `CLIENT/1`..."""
        ports = [self.links.add(f"{client}/{number}", each.port) for number, each in enumerate(self.servers)]
        return ",".join(f"nats://127.0.0.1:{port}" for port in ports)

    def routes_of(self, number: int) -> list[str]:
        """The links between a server and the others."""
        others = [each for each in range(len(self.servers)) if each != number]
        return [f"route/{number}/{each}" for each in others] + [f"route/{each}/{number}" for each in others]

    def fill_disk(self, number: int) -> None:
        """Leave next to nothing of a server's disk."""
        folder = self._folders[number]
        used = shutil.disk_usage(folder).used
        _mount(folder, used + _LITTLE, "remount")

    def empty_disk(self, number: int) -> None:
        """Give the server its disk back."""
        _mount(self._folders[number], _DISK, "remount")

    def leader(self, stream: str) -> int | None:
        """The number of the server that leads a stream; None if that is not known."""
        for port in self._monitors:
            with contextlib.suppress(OSError, ValueError):
                url = f"http://127.0.0.1:{port}/jsz?streams=1&accounts=1"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    for account in json.load(answer).get("account_details", ()):
                        for each in account.get("stream_detail", ()):
                            if each["name"] == stream and each.get("cluster", {}).get("leader"):
                                return int(each["cluster"]["leader"].removeprefix("n"))
        return None


@contextlib.contextmanager
def nats_cluster(folder: Path, count: int = 3) -> Iterator[NATSCluster]:
    """Start the servers, and wait until they are one cluster."""
    routes, monitors = _free_ports(count), _free_ports(count)
    with contextlib.ExitStack() as stack:
        links = stack.enter_context(Links())
        servers, folders = [], []
        for number in range(count):
            own = folder / f"n{number}"
            own.mkdir()
            if os.geteuid() == 0 and _mount(own, _DISK):
                stack.callback(subprocess.run, ["umount", own], check=False)
                folders.append(own)
            ports = [links.add(f"route/{number}/{to}", routes[to]) for to in range(count) if to != number]
            arguments = ["-cluster", f"nats://127.0.0.1:{routes[number]}", "-cluster_name", "bench"]
            arguments += ["-routes", ",".join(f"nats://127.0.0.1:{port}" for port in ports)]
            arguments += ["--cluster_advertise", _NOWHERE, "--no_advertise=true"]
            arguments += ["-server_name", f"n{number}", "-m", str(monitors[number])]
            servers.append(stack.enter_context(NATSServer(own, *arguments)))
        cluster = NATSCluster(servers, monitors, links, folders if len(folders) == count else [])
        wait_until(lambda: _is_formed(monitors[0], count), 60)
        yield cluster


def _mount(folder: Path, size: int, how: str = "") -> bool:
    """Make a folder a disk of this size, in memory; False if that is not allowed."""
    options = f"{how},size={size}".lstrip(",")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def _is_formed(monitor: int, count: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/jsz", timeout=2) as answer:
            meta = json.load(answer).get("meta_cluster", {})
    except (OSError, ValueError):
        return False
    return bool(meta.get("leader")) and meta.get("cluster_size", 0) == count


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
