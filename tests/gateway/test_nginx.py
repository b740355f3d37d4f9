"""The gateway behind nginx with TLS, configured as `docs/guides/proxy.md` says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import trustme

from halter.testing import Gate
from tests.support.gateway_client import OWN, Client, gateway_of
from tests.support.looped import looped

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
PAGE = Path(__file__).parents[2] / "docs/guides/proxy.md"
NAME = "agents.example.org"
OWN_ORIGIN = {"Origin": f"https://{NAME}"}

pytestmark = pytest.mark.skipif(
    NGINX is None, reason="needs nginx: apt install nginx-light (as root, scripts/setup does it in a container)"
)


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


def configuration(folder: Path, port: int, gateway: str) -> str:
    """What the page says, with other files, another port, and this gateway."""
    found = re.search(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    recipe = found[1]
    for old, new in {
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/ssl/certs/agents.example.org.pem": f"{folder}/chain.pem",
        "/etc/ssl/private/agents.example.org.key": f"{folder}/key.pem",
        "http://127.0.0.1:8787": gateway,
    }.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    user = "user root;\n" if os.geteuid() == 0 else ""  # the folder is ours alone
    head = f"{user}daemon off;\nworker_processes 1;\npid {folder}/pid;\nerror_log stderr notice;\nevents {{}}\n"
    return f"{head}http {{\naccess_log off;\n{places}{recipe}}}\n"


@contextlib.asynccontextmanager
async def nginx(folder: Path, gateway: str) -> AsyncIterator[Client]:
    """A client that reaches the gateway through nginx."""
    assert NGINX is not None
    authority = trustme.CA()
    certificate = authority.issue_cert(NAME)
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    for each in certificate.cert_chain_pems:
        each.write_to_path(str(folder / "chain.pem"), append=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # nginx is given it, so nobody else can take the port
        port, number = listener.getsockname()[1], listener.fileno()
        (folder / "nginx.conf").write_text(configuration(folder, port, gateway))
        process = await asyncio.create_subprocess_exec(
            *(NGINX, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")),
            stderr=subprocess.PIPE,
            pass_fds=[number],
            env={"NGINX": f"{number};"},
        )
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    connector = aiohttp.TCPConnector(ssl=trusting, resolver=Resolver(port))
    try:
        await asyncio.wait_for(started(process), 15)
        async with aiohttp.ClientSession(
            f"https://{NAME}", connector=connector, headers={"Authorization": f"Bearer {OWN}"}
        ) as http:
            yield Client(http)
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), 15)


async def started(process: asyncio.subprocess.Process) -> None:
    """Wait until nginx listens, which is before it names its system."""
    assert process.stderr is not None
    said = b""
    while b"OS: " not in said:
        line = await process.stderr.readline()
        assert line, said.decode()
        said += line


@looped
async def test_everything_works_through_nginx(tmp_path: Path) -> None:
    """The page, a message, its events as they come, a WebSocket, and a stop: with the origin that browsers send."""
    gate = Gate()
    async with gateway_of(["One ", gate], public_name=NAME) as (gateway, _), nginx(tmp_path, gateway.url) as client:
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


@looped
async def test_other_names_and_origins_are_refused_through_nginx(tmp_path: Path) -> None:
    """A request for another host is misdirected, and other origins change nothing: another port is another origin."""
    async with gateway_of(public_name=NAME) as (gateway, _), nginx(tmp_path, gateway.url) as client:
        assert (await client.ask("GET", "/", headers={"Host": "evil.example"})).status == 421
        for origin in ("https://evil.example", f"https://{NAME}:8443", f"https://{NAME}.evil.example", "null"):
            answer = await client.ask("POST", "/v1/sessions", {}, headers={"Origin": origin})
            assert answer.status == 403, origin
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.http.ws_connect("/v1/sessions/s/ws", headers={"Origin": origin})
            assert refused.value.status == 403
