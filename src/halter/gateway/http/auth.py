"""Authentication: the host and origin of a request, and the key that allows it.

A key is sent in the `Authorization` header. Browsers cannot set that for a WebSocket; there the client may offer it as
a protocol, `halter.key.KEY`, which is in a header too and in no log. No cookies are used, so pages of other origins
cannot act with a user's key, and it is never sent to another port of the same host.
"""

from __future__ import annotations

import functools
import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from halter.gateway.http.errors import Problem

if TYPE_CHECKING:
    from aiohttp import web

    from halter.gateway.http.keys import Key, Keys, Scope

__all__ = ["PROTOCOL", "Authenticator", "check_scope", "invalid_key", "is_loopback"]

PROTOCOL: Final = "halter"
_BEARER: Final = "bearer "
_OFFERED: Final = "halter.key."
_NAME: Final = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_SAFE: Final = frozenset({"GET", "HEAD"})


class Authenticator:
    """Checks requests. *public_name* is the host of the page's address, if a proxy answers for it."""

    def __init__(self, keys: Keys, host: str, public_name: str = "") -> None:
        self._keys = keys
        self._is_loopback = is_loopback(host)
        self._public_name = _checked(public_name) if public_name else None
        self._public_host = _hostname(public_name) if public_name else None

    def check_host(self, request: web.Request) -> None:
        """Refuse requests by another host name (DNS rebinding) or from another origin."""
        host = request.headers.get("Host", "")
        name = _hostname(host)
        if self._is_loopback and not is_loopback(name) and name != self._public_host:
            raise Problem(
                421, "this gateway only accepts requests to its loopback address or its --public-name", kind="host"
            )
        origin = request.headers.get("Origin")
        if origin is None or (request.method in _SAFE and "Upgrade" not in request.headers):
            return
        if origin.partition("://")[2] not in (host, self._public_name):
            raise Problem(403, "requests from other origins are not allowed", kind="origin")

    def authenticate(self, request: web.Request, scope: Scope) -> Key:
        """The key of a request. Raises `Problem` if there is none, or if it does not allow *scope*."""
        key = self._keys.find(_sent_key(request))
        if key is None:
            raise invalid_key()
        check_scope(key, scope)
        return key


def invalid_key() -> Problem:
    """The problem of a request without a valid key."""
    return Problem(401, "a valid key is required: Authorization: Bearer KEY", kind="key")


def check_scope(key: Key, scope: Scope) -> None:
    """Raise `Problem` if the key does not allow *scope*."""
    if not key.allows(scope):
        raise Problem(403, f"this needs a key with scope {scope!r}; yours has {key.scope!r}", kind="scope")


@functools.lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback one."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _checked(name: str) -> str:
    """A public name as browsers write it in an origin. Raises `ValueError` if it is not a host, or host:port."""
    if not _NAME.fullmatch(name):
        msg = f"invalid public name {name!r}: use a host name such as agents.example.org, without https:// and path"
        raise ValueError(msg)
    return name.lower().removesuffix(":443")


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
