"""What the tests of fetching share: a fetch, a name server, answers."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from halter.toolbox.http.fetch import Fetched, Net
from tests.support.slow_server import SlowServer


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


def answering(content_type: str, body: bytes, **headers: str) -> Any:
    named = {key.replace("_", "-"): value for key, value in headers.items()}

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers={"content-type": content_type, **named})

    return answer


def redirecting(target: str, **headers: str) -> Any:
    named = {key.replace("_", "-"): value for key, value in headers.items()}

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"location": target, **named})

    return answer
