"""A JetStream stream that holds one log for each subject: append with an expected sequence, read, list.

Everything here runs on the event loop of the connection. An append of several messages is an atomic batch: the server
writes all of them or none. Each message names the sequence that it expects to be the last one of its subject, and the
server refuses it otherwise. So a repeated append writes nothing twice, and an old owner's append writes nothing at all.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.client import Client
    from nats.aio.subscription import Subscription
    from nats.js.client import JetStreamContext

__all__ = ["MAX_MESSAGES", "Append", "Stored", "Stream", "StreamRefused", "WrongSequence"]

_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_WRONG_SEQUENCE: Final = frozenset({10071, 10164})  # the server's numbers of these errors
_NOT_YET: Final = frozenset({10005, 10008, 10009, 10023})  # servers have not found each other, or have no leader
MAX_MESSAGES: Final = 1_000  # of an atomic batch; the server's limit
# The status of a read that nobody answers yet, or any more: no leader listens, or it was just replaced.
_UNANSWERED: Final = frozenset({"409", "503"})
_PAGE: Final = 256  # messages
_PAGE_BYTES: Final = 4 * 1024 * 1024
_PULL: Final = 1_000  # messages of a consumer that are asked for at once


class Append(NamedTuple):
    """A message to append. *expected* is the last sequence of its subject; None for further messages of the subject."""

    subject: str
    body: bytes
    headers: dict[str, str]
    expected: int | None


class Stored(NamedTuple):
    """A message of the stream."""

    subject: str
    sequence: int
    headers: dict[str, str]
    body: bytes


class WrongSequence(Exception):
    """A subject has another last sequence than was expected. Nothing was written."""


class StreamRefused(Exception):
    """The server has refused something: why, and the server's number of the error. Nothing was written."""

    def __init__(self, why: str, code: int = 0) -> None:
        super().__init__(f"{why} ({code})" if code else why)
        self.code = code
        self.is_temporary = code in _NOT_YET


class Stream:
    """One stream."""

    def __init__(self, client: Client, name: str, timeout: float) -> None:
        self._client = client
        self._js: JetStreamContext = client.jetstream(timeout=timeout)
        self.name = name
        self._timeout = timeout
        self._broken: asyncio.Future[None] | None = None  # set when the connection breaks

    def fail_requests(self) -> None:
        """End the waits for answers: the connection is broken, so they will not come."""
        if self._broken is not None:
            self._broken.set_result(None)
            self._broken = None

    async def append(self, messages: Sequence[Append]) -> int:
        """Append messages, all or none; gives the sequence of the last one. Theirs are consecutive.

        Raises `WrongSequence`, `StreamRefused`, or an error of `nats`: then it is not known whether they were written.
        """
        if not self._client.is_connected:  # the client would send them later, when nobody waits for the answer any more
            raise nats.errors.ConnectionReconnectingError
        batch = secrets.token_hex(8)
        for number, message in enumerate(messages, 1):
            headers = dict(message.headers)
            if message.expected is not None:
                headers[_EXPECTED] = str(message.expected)
            if len(messages) > 1:
                headers |= {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number == len(messages):
                if number > 1:
                    headers["Nats-Batch-Commit"] = "1"
                return await self._request(message, headers)
            await self._client.publish(message.subject, message.body, headers=headers)
        raise ValueError("there is nothing to append")

    async def _request(self, message: Append, headers: dict[str, str]) -> int:
        if self._broken is None:
            self._broken = asyncio.get_running_loop().create_future()
        broken = self._broken
        request = asyncio.ensure_future(
            self._client.request(message.subject, message.body, self._timeout, headers=headers)
        )
        try:
            waits: set[asyncio.Future[Any]] = {request, broken}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise nats.errors.ConnectionReconnectingError
            answer = request.result()
        finally:
            request.cancel()
        found = json.loads(answer.data)
        error = found.get("error")
        if error is None:
            return int(found["seq"])
        if error.get("err_code") in _WRONG_SEQUENCE:
            raise WrongSequence(error["description"])
        raise StreamRefused(str(error.get("description", error)), error.get("err_code", 0))

    async def last(self, subject: str) -> Stored | None:
        """The last message of a subject, as the stream's leader has it."""
        from nats.js.errors import NotFoundError

        try:
            found = await self._js.get_last_msg(self.name, subject, direct=False)
        except NotFoundError:
            return None
        return Stored(subject, found.seq or 0, found.headers or {}, found.data or b"")

    async def next(self, subject: str, sequence: int) -> Stored | None:
        """The first message of a subject that has at least this sequence."""
        found = await self.read(subject, sequence, 1)
        return found[0] if found else None

    async def read(self, subject: str, sequence: int, limit: int | None = None) -> list[Stored]:
        """The next messages of a subject from this sequence on, at most a page; none if there are no more.

        They come one by one, and then a message with a status.
        """
        batch = _PAGE if limit is None else min(limit, _PAGE)
        asked = {"next_by_subj": subject, "seq": max(sequence, 1), "batch": batch, "max_bytes": _PAGE_BYTES}
        inbox = self._client.new_inbox()
        found: list[Stored] = []
        subscription = await self._client.subscribe(inbox)
        try:
            await self._client.publish(f"$JS.API.DIRECT.GET.{self.name}", json.dumps(asked).encode(), inbox)
            while True:
                message = await subscription.next_msg(self._timeout)
                headers: dict[str, Any] = message.headers or {}
                status = headers.get("Status")
                if status in ("204", "404"):  # the end of the page; nothing there
                    return found
                if status is not None:
                    raise _error_of(status, headers)
                found.append(Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, message.data))
        finally:
            await subscription.unsubscribe()

    async def last_of_all(self, subjects: str, *, headers_only: bool = False) -> list[Stored]:
        """The last message of each subject."""
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
            ack_policy=AckPolicy.NONE,
            filter_subject=subjects,
            headers_only=headers_only,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=30,
        )
        info = await self._js.add_consumer(self.name, config)
        found: list[Stored] = []
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        try:
            while page := await self._pull(info.name, inbox, subscription):
                found += page
                if len(page) < _PULL:
                    break
        finally:
            await subscription.unsubscribe()
        await self._js.delete_consumer(self.name, info.name)
        return found

    async def _pull(self, consumer: str, inbox: str, subscription: Subscription) -> list[Stored]:
        """Take the next messages of a consumer. Fewer than `_PULL`: the server said that there are no more."""
        asked = json.dumps({"batch": _PULL, "no_wait": True}).encode()
        await self._client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{consumer}", asked, inbox)
        found: list[Stored] = []
        while len(found) < _PULL:
            message = await subscription.next_msg(self._timeout)
            headers: dict[str, Any] = message.headers or {}
            status = headers.get("Status")
            if status in ("404", "408"):  # no more
                break
            if status is not None:
                raise _error_of(status, headers)
            found.append(Stored(message.subject, message.metadata.sequence.stream, headers, message.data))
        return found

    async def purge(self, subject: str, before: int) -> None:
        """Delete the messages of a subject that have a lower sequence than *before*."""
        await self._js.purge_stream(self.name, seq=before, subject=subject)


def _error_of(status: str, headers: dict[str, Any]) -> Exception:
    if status in _UNANSWERED:
        return nats.errors.NoRespondersError()
    return StreamRefused(f"{status} {headers.get('Description', '')}".strip())
