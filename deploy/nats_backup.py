"""Back up the sessions of a cluster, and restore them.

    python nats_backup.py save FOLDER
    python nats_backup.py load FOLDER

The servers are those of HALTER_CLUSTER, with the certificate authority of HALTER_CLUSTER_CA if that is set. `save` can
run while gateways serve: of each stream it writes what was there at one moment. `load` is for servers that have no
sessions; start the gateways afterwards. Needs only `nats-py`, which comes with `pip install 'halter[cluster]'`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import nats.errors

if TYPE_CHECKING:
    from nats.aio.client import Client

# The leases first: one that is taken meanwhile is older than the log then, and is taken again. Nodes are not kept.
STREAMS = ("KV_halter_leases", "KV_halter_stops", "halter_log")
_SECONDS = 30.0  # for one answer
_CHUNK = 128 * 1024  # bytes


class Failed(Exception):
    """The servers have refused something; the text says what."""


async def connect() -> Client:
    servers = [each.strip() for each in os.environ["HALTER_CLUSTER"].split(",")]
    authority = os.environ.get("HALTER_CLUSTER_CA")
    options: dict[str, Any] = {"tls": ssl.create_default_context(cafile=authority)} if authority else {}
    return await nats.connect(servers, max_reconnect_attempts=3, **options)


async def ask(client: Client, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await client.request(subject, json.dumps(body).encode(), _SECONDS)).data)
    if "error" in answer:
        raise Failed(f"{subject}: {answer['error']['description']}")
    return answer


async def save(client: Client, stream: str, folder: Path) -> int:
    """Write one stream to two files; gives the number of its messages."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox, pending_bytes_limit=-1)
    body = {"deliver_subject": inbox, "no_consumers": True, "jsck": True, "chunk_size": _CHUNK}
    about = await ask(client, f"$JS.API.STREAM.SNAPSHOT.{stream}", body)
    with (folder / f"{stream}.data").open("wb") as file:
        while chunk := await subscription.next_msg(_SECONDS):
            status = (chunk.headers or {}).get("Status", "")
            if status and status != "204":
                raise Failed(f"{stream}: {(chunk.headers or {}).get('Description', status)}")
            if not chunk.data:  # this was all
                break
            file.write(chunk.data)
            if chunk.reply:  # the server sends only a few that are not answered
                await client.publish(chunk.reply)
        file.flush()
        os.fsync(file.fileno())
    # Last: without this file the other one is not complete.
    (folder / f"{stream}.json").write_text(json.dumps({"config": about["config"], "state": about["state"]}))
    return int(about["state"]["messages"])


async def load(client: Client, stream: str, folder: Path) -> int:
    """Make a stream of two files; gives the number of its messages."""
    about = json.loads((folder / f"{stream}.json").read_text())
    started = await ask(client, f"$JS.API.STREAM.RESTORE.{stream}", about)
    subject = started["deliver_subject"]
    with (folder / f"{stream}.data").open("rb") as file:
        while chunk := file.read(_CHUNK):
            answer = await client.request(subject, chunk, _SECONDS)
            if b'"error"' in answer.data:
                raise Failed(f"{stream}: {json.loads(answer.data)['error']['description']}")
    done = json.loads((await client.request(subject, b"", _SECONDS)).data)
    if "error" in done:
        raise Failed(f"{stream}: {done['error']['description']}")
    return int(done["state"]["messages"])


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["save", "load"])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    if "HALTER_CLUSTER" not in os.environ:
        parser.error("HALTER_CLUSTER has to name the servers: nats://user:password@host:4222")
    if options.action == "save":
        options.folder.mkdir(mode=0o700, parents=True)  # never over an older backup
    client = await connect()
    try:
        for stream in STREAMS:
            count = await (save if options.action == "save" else load)(client, stream, options.folder)
            print(f"{stream}: {count} messages")
    finally:
        await client.close()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (Failed, OSError, nats.errors.Error) as error:
        sys.exit(f"nothing more was done: {error or type(error).__name__}")
