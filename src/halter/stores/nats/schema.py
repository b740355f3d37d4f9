"""The stream and the buckets of a store, as they are made on servers that do not have them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import nats.js.errors

from halter.stores.nats.streams import StreamRefused

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.api import KeyValueConfig
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

    from halter.stores.nats.names import Names

__all__ = ["ANSWER_SECONDS", "ask", "make_stream", "open_bucket"]

ANSWER_SECONDS: Final = 2.0  # for one request
_EXISTS: Final = 10058  # the server's number of the error: the stream exists, with other settings


async def make_stream(client: Client, names: Names, replicas: int) -> None:
    """Make the stream of all logs, unless it exists. With the server's own words: `nats` has no atomic batches."""
    wanted = {
        "name": names.stream,
        "subjects": [names.logs],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": replicas,
        "allow_direct": True,
        "allow_atomic": True,
        "republish": {"src": names.logs, "dest": names.stored},
    }
    try:
        await ask(client, f"$JS.API.STREAM.CREATE.{names.stream}", wanted)
    except StreamRefused as error:
        if error.code != _EXISTS:
            raise
        found = (await ask(client, f"$JS.API.STREAM.INFO.{names.stream}", {}))["config"]
        if not found.get("allow_atomic") or found.get("republish") != wanted["republish"]:
            raise StreamRefused(f"the stream {names.stream} exists, and was not made for this", 0) from error


async def open_bucket(js: JetStreamContext, config: KeyValueConfig) -> KeyValue:
    """A bucket: made if it does not exist, and else as it is."""
    try:
        return await js.create_key_value(config)
    except nats.js.errors.BadRequestError:
        return await js.key_value(config.bucket)


async def ask(client: Client, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask JetStream something. Raises `StreamRefused`, or an error of `nats`."""
    message = await client.request(subject, json.dumps(body).encode() if body else b"", ANSWER_SECONDS)
    answer: dict[str, Any] = json.loads(message.data)
    error = answer.get("error")
    if error is not None:
        raise StreamRefused(error["description"], error.get("err_code", 0))
    return answer
