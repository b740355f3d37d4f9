"""The gateway: sessions of an agent over HTTP, WebSocket, a web page and chat platforms, in one process.

    async with Gateway(agent, store, Keys(own="a long secret")) as gateway:
        print(gateway.url)

A session is loaded on demand and unloaded when it is idle. Closing a connection stops nothing; stopping is always a
command. A message answered with 202 is durable. For OpenAI clients it is different: each request is a turn of its own,
which ends with its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports

if TYPE_CHECKING:
    from halter.gateway.http.keys import Key as Key
    from halter.gateway.http.keys import KeyFile as KeyFile
    from halter.gateway.http.keys import Keys as Keys
    from halter.gateway.server import Gateway as Gateway
    from halter.gateway.sessions.limits import GatewayLimits as GatewayLimits

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "http.keys": ["Key", "KeyFile", "Keys"],
        "server": ["Gateway"],
        "sessions.limits": ["GatewayLimits"],
    },
)
