"""Agents for other programs and people: sessions over HTTP and WebSocket, in one process, with a stop that works.

    async with Gateway(agent, store, Keys(own="a long secret")) as gateway:
        print(gateway.url)

A session is loaded when somebody asks for it and put to sleep when nobody does. Closing a connection stops nothing;
stopping is always a command. What was accepted with a 202 is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.lazy import lazy_names

if TYPE_CHECKING:
    from halter.gateway.app import Gateway
    from halter.gateway.keys import Key, KeyFile, Keys
    from halter.gateway.limits import Limits

_HOMES = {"Gateway": "app", "Key": "keys", "KeyFile": "keys", "Keys": "keys", "Limits": "limits"}

__all__ = ["Gateway", "Key", "KeyFile", "Keys", "Limits"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
