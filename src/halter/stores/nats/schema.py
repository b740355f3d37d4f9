"""The stream and the buckets of a store, as they are made on servers that do not have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import nats.js.errors

from halter.stores.nats.requests import ask
from halter.stores.nats.streams import StreamRefused

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.api import KeyValueConfig
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

    from halter.stores.nats.names import Names

__all__ = ["make_stream", "open_bucket"]

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
            raise StreamRefused(
                f"the stream {names.stream} exists, but was not created by Halter; use another prefix", 0
            ) from error


async def open_bucket(js: JetStreamContext, config: KeyValueConfig) -> KeyValue:
    """A bucket: made if it does not exist, and else as it is."""
    try:
        return await js.create_key_value(config)
    except nats.js.errors.BadRequestError:
        return await js.key_value(config.bucket)
