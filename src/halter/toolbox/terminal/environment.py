"""The environment of the processes that tools start: ours, without variables that look like secrets.

A model can print the environment of every process it starts, so keys and passwords are removed unless they are named.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SECRET: Final = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|SIGNATURE|PRIVATE|APIKEY"
    r"|(?:^|[_-])(?:[A-Z0-9]*KEYS?|PASS|PAT|PIN|AUTH|DSN|JWT|SALT)(?:$|[_-])"
    r"|.[_-]PWD$",
    re.IGNORECASE,
)
# Ordinary names that only look like it (GPG_KEY is the public one of Python's images), and secrets that do not.
_HARMLESS: Final = frozenset({"SSH_AUTH_SOCK", "XAUTHORITY", "TOKENIZERS_PARALLELISM", "GPG_KEY"})
_KNOWN: Final = frozenset({"DATABASE_URL", "REDIS_URL", "MONGO_URL", "MONGODB_URI", "AMQP_URL", "PGPASSFILE", "NETRC"})
_URL_WITH_PASSWORD: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable looks like a secret: by its name, or because it is a URL with a password."""
    upper = name.upper()
    if upper in _HARMLESS:
        return False
    if upper in _KNOWN or _SECRET.search(name):
        return True
    # Of all URLs with a password the ones of proxies are passed on: without them nothing reaches the network.
    return _URL_WITH_PASSWORD.match(value) is not None and not upper.endswith("_PROXY")


def without_secrets(pass_env: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment (default: ours) for a child, without secrets but those named in *pass_env*."""
    named = frozenset(pass_env)
    given = os.environ if environment is None else environment
    return {name: value for name, value in given.items() if name in named or not is_secret(name, value)}
