"""Names in NATS: streams, buckets and subjects, and session ids as one token of a subject."""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

__all__ = ["Names", "process_of", "session_of", "token_of"]

_ESCAPE: Final = "="  # at the beginning of a token: the rest is base64


class Names(NamedTuple):
    """The names that a store uses, all of which begin with a prefix. Stores with different prefixes share nothing."""

    prefix: str

    @property
    def stream(self) -> str:
        """The stream of all logs."""
        return f"{self.prefix}_log"

    @property
    def leases(self) -> str:
        """The bucket of leases."""
        return f"{self.prefix}_leases"

    @property
    def nodes(self) -> str:
        """The bucket of nodes that are alive."""
        return f"{self.prefix}_nodes"

    @property
    def stops(self) -> str:
        """The bucket of stops that did not reach their node."""
        return f"{self.prefix}_stops"

    @property
    def logs(self) -> str:
        """All subjects of logs."""
        return f"{self.prefix}.log.*"

    def log(self, session: str) -> str:
        """The subject of a session's log."""
        return f"{self.prefix}.log.{token_of(session)}"

    @property
    def stored(self) -> str:
        """Where the server publishes every message of a log once it is stored. `{{wildcard(1)}}` is the session."""
        return f"{self.prefix}.stored.{{{{wildcard(1)}}}}"

    def stored_log(self, session: str) -> str:
        """The subject on which the server publishes what it has stored of a session."""
        return f"{self.prefix}.stored.{token_of(session)}"

    def process(self, name: str) -> str:
        """The subject of requests to a process."""
        return f"{self.prefix}.process.{name}"


def process_of(node: str) -> str:
    """The name of the process that a node is, or was, part of."""
    return node.rpartition("-")[0]


def token_of(session: str) -> str:
    """A session id as a token of a subject and a key of a bucket: as it is where possible, else in base64."""
    if session.isascii() and session and all(each.isalnum() or each in "-_" for each in session):
        return session
    encoded = session.encode("utf-8", "surrogatepass")
    return _ESCAPE + base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def session_of(token: str) -> str:
    """The session id of a token."""
    if not token.startswith(_ESCAPE):
        return token
    body = token[1:]
    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode("utf-8", "surrogatepass")
