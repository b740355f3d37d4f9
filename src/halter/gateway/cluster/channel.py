"""Requests between processes over core NATS: one subject for each process, and replies of any size.

A message may be larger than the servers allow: it is sent in parts, which arrive in order. If one is lost, so is the
message, and the request times out as if all of it had been lost. A request to a process that does not exist fails at
once, because the servers answer that its subject has no subscriber.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Final

import nats.errors

from halter.cancel.loop_bridge import end_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = ["Channel", "NoReply"]

_ROOM: Final = 4_096  # bytes of a message that are not its body
_MAX_SIZE: Final = 256 * 1024 * 1024  # bytes of messages that are incomplete
_MESSAGE: Final = "Halter-Message"  # an id
_PART: Final = "Halter-Part"  # "2/3"
_NO_SUBSCRIBER: Final = "503"


class NoReply(Exception):
    """A process has not answered. With `is_gone` it does not exist; else it is unknown whether it did the request."""

    def __init__(self, *, is_gone: bool) -> None:
        super().__init__("no such process" if is_gone else "no reply in time")
        self.is_gone = is_gone


class Channel:
    """The requests of one process, and to it. Everything here runs on the loop of the connection."""

    def __init__(self, client: Client, subject: str, serve: Callable[[bytes], Awaitable[bytes]]) -> None:
        """*serve* is called with each request that arrives on *subject*, and gives its reply. It must not raise."""
        self._client = client
        self._subject = subject
        self._serve = serve
        self._replies = client.new_inbox()
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._parts: dict[str, list[bytes]] = {}
        self._size = 0  # of these parts
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        await self._client.subscribe(f"{self._replies}.*", cb=self._on_reply)
        await self._client.subscribe(self._subject, cb=self._on_request)
        await self._client.flush()

    async def close(self) -> None:
        """Answer nothing more."""
        await end_tasks(self._tasks)

    async def ask(self, subject: str, body: bytes, patience: float) -> bytes:
        """Send a request, and wait for its reply. Raises `NoReply`."""
        if not self._client.is_connected:  # else the client sends it after reconnecting, when nobody waits for it
            raise NoReply(is_gone=False)
        name = secrets.token_hex(8)
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[name] = reply
        try:
            async with asyncio.timeout(patience):
                await self._send(subject, body, name, f"{self._replies}.{name}")
                return await reply
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise NoReply(is_gone=False) from error
        finally:
            del self._waiting[name]

    async def _send(self, subject: str, body: bytes, name: str, reply: str = "") -> None:
        size = max(self._client.max_payload - _ROOM, 1)
        count = max(1, -(-len(body) // size))
        for number in range(1, count + 1):
            headers = {_MESSAGE: name, _PART: f"{number}/{count}"}
            part = body[(number - 1) * size : number * size]
            await self._client.publish(subject, part, reply, headers=headers)

    def _whole(self, message: Msg) -> bytes | None:
        """The body of a message, once its last part has come."""
        headers = message.headers or {}
        name = headers.get(_MESSAGE, "")
        number, _, count = headers.get(_PART, "1/1").partition("/")
        if count == "1":
            return message.data
        parts = self._parts.pop(name, [])
        self._size -= sum(map(len, parts))
        if len(parts) != int(number) - 1 or self._size + len(message.data) > _MAX_SIZE:
            return None
        parts.append(message.data)
        if number == count:
            return b"".join(parts)
        self._parts[name] = parts
        self._size += sum(map(len, parts))
        while self._size > _MAX_SIZE // 2 and len(self._parts) > 1:  # the oldest one has lost a part
            self._size -= sum(map(len, self._parts.pop(next(iter(self._parts)))))
        return None

    async def _on_reply(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is None or waiting.done():
            return
        if (message.headers or {}).get("Status") == _NO_SUBSCRIBER:
            waiting.set_exception(NoReply(is_gone=True))
            return
        body = self._whole(message)
        if body is not None:
            waiting.set_result(body)

    async def _on_request(self, message: Msg) -> None:
        body = self._whole(message)
        if body is not None:
            task = asyncio.create_task(self._answer(message.reply, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, reply: str, body: bytes) -> None:
        answer = await self._serve(body)
        with contextlib.suppress(nats.errors.Error, OSError):  # then the request times out
            await self._send(reply, answer, secrets.token_hex(8))
