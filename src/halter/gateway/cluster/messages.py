"""What nodes send each other, in MessagePack: it has bytes, so images need no other encoding."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from halter.gateway.http.errors import Problem, ProblemBody
from halter.gateway.http.keys import Key
from halter.gateway.http.schemas import StopAllBody
from halter.gateway.http.session_schemas import TurnView
from halter.gateway.sessions.requests import SessionRequest

__all__ = ["ForSession", "LoadedSession", "NodeReply", "ReadStates", "Request", "StopNode", "decode_request", "encode"]


class ForSession(Struct, tag="session"):
    """A request for one session, in the name of a key."""

    session: str
    key: Key
    request: SessionRequest


class StopNode(Struct, tag="stop_all"):
    """Stop every session of the node that gets this."""

    key: Key
    body: StopAllBody


class ReadStates(Struct, tag="states"):
    """What the sessions of the node that gets this are doing."""


class LoadedSession(Struct):
    """A session that is loaded on some node."""

    is_running: bool
    turn: TurnView | None


Request: TypeAlias = ForSession | StopNode | ReadStates


class NodeReply(Struct):
    """A result; or a problem; or who has the session now (empty if nobody is known)."""

    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    problem: ProblemBody | None = None
    moved: str | None = None

    def value(self, kind: Any) -> Any:  # noqa: ANN401  (of the kind that was asked for)
        """The result as *kind*. Raises `Problem`."""
        if self.problem is not None:
            body = self.problem
            kind_of_problem = body.type.rpartition(":")[2]
            raise Problem(
                body.status, body.detail, field=body.field, kind=kind_of_problem, retry_after=body.retry_after
            )
        return msgspec.msgpack.decode(self.result, type=kind)


_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
encode = msgspec.msgpack.Encoder().encode


def decode_request(body: bytes) -> Request:
    """A request that another node has sent. Raises `msgspec.MsgspecError`."""
    return _requests.decode(body)
