"""Who is let in: by the right name of the host, from no other origin, and with a key that allows it.

A key comes in the `Authorization` header. Browsers can not send that with a WebSocket; there it may come as one of the
protocols that the client offers, `halter.key.KEY`, which is in a header too and in no log. No cookies are used, so no
page of another origin can act with somebody's key, and no other port of the same host is ever sent it.
"""

from __future__ import annotations

import functools
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from halter.gateway.problems import Problem

if TYPE_CHECKING:
    from aiohttp import web

    from halter.gateway.keys import Key, Keys, Scope

__all__ = ["PROTOCOL", "Guard", "is_loopback"]

PROTOCOL: Final = "halter"
_BEARER: Final = "bearer "
_OFFERED: Final = "halter.key."
_SAFE: Final = frozenset({"GET", "HEAD"})


class Guard:
    """The door."""

    def __init__(self, keys: Keys, host: str) -> None:
        self._keys = keys
        self._is_loopback = is_loopback(host)

    def check_host(self, request: web.Request) -> None:
        """Refuse what a page of somebody else has sent: by a name that leads here, or from another origin."""
        host = request.headers.get("Host", "")
        if self._is_loopback and not is_loopback(_hostname(host)):
            raise Problem(421, "this gateway is on the loopback address, and has no other name", kind="host")
        origin = request.headers.get("Origin")
        if origin is None or (request.method in _SAFE and "Upgrade" not in request.headers):
            return
        if origin.partition("://")[2] != host:
            raise Problem(403, "pages of other origins can not use this gateway", kind="origin")

    def let_in(self, request: web.Request, scope: Scope) -> Key:
        """The key that allows this. Raises `Problem` if there is none."""
        key = self._keys.find(_sent_key(request))
        if key is None:
            raise Problem(401, "send a key of this gateway: Authorization: Bearer KEY", kind="key")
        self.check_scope(key, scope)
        return key

    @staticmethod
    def check_scope(key: Key, scope: Scope) -> None:
        """Refuse what needs more than the key has."""
        if not key.allows(scope):
            raise Problem(403, f"this needs a key of scope {scope!r}, and this one has {key.scope!r}", kind="scope")


@functools.lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host of this name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _sent_key(request: web.Request) -> str:
    header = request.headers.get("Authorization", "")
    if header[: len(_BEARER)].lower() == _BEARER:
        return header[len(_BEARER) :].strip()
    if "Upgrade" in request.headers:
        for offered in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
            if offered.strip().startswith(_OFFERED):
                return offered.strip().removeprefix(_OFFERED)
    return ""
