"""Secrets: which variables hold one, and texts without them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["HIDDEN", "is_secret", "redact", "secrets_of"]

HIDDEN: Final = "[hidden]"
_MIN_LENGTH: Final = 8  # a shorter value is a placeholder, and would match any text
_NAME: Final = (  # compiled when it is needed first, and not at every start
    r"(?i)TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|SIGNATURE|PRIVATE|APIKEY"
    r"|(?:^|[_-])(?:[A-Z0-9]*KEYS?|PASS|PAT|PIN|AUTH|DSN|JWT|SALT)(?:$|[_-])"
    r"|.[_-]PWD$"
)
# Ordinary names that only look like it (GPG_KEY is the public one of Python's images), and secrets that do not.
_HARMLESS: Final = frozenset({"SSH_AUTH_SOCK", "XAUTHORITY", "TOKENIZERS_PARALLELISM", "GPG_KEY"})
_KNOWN: Final = frozenset({"DATABASE_URL", "REDIS_URL", "MONGO_URL", "MONGODB_URI", "AMQP_URL", "PGPASSFILE", "NETRC"})
_WITH_CREDENTIALS: Final = r"(?i)[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@"


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable or a setting looks like a secret: by its name, or because it is a URL with a password."""
    upper = name.upper()
    if upper in _HARMLESS:
        return False
    if upper in _KNOWN or re.search(_NAME, name):
        return True
    # Of all URLs with a password the ones of proxies are passed on: without them nothing reaches the network.
    return re.match(_WITH_CREDENTIALS, value) is not None and not upper.endswith("_PROXY")


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values that look like secrets, the longest first: one may be a part of another."""
    return sorted({value for name, value in environment.items() if is_secret(name, value)}, key=len, reverse=True)


def redact(text: str, secrets: Iterable[str]) -> str:
    """A text without *secrets*."""
    for secret in secrets:
        if len(secret) >= _MIN_LENGTH:
            text = text.replace(secret, HIDDEN)
    return text
