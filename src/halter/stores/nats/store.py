"""Sessions in NATS JetStream: the store for many machines.

Every session has a subject in one stream; each commit is a message there, and the commits of several sessions are one
atomic batch. A lease is a key in a bucket, changed by compare-and-set. Whoever takes a lease appends an empty message
to the log first. That moves the log's last sequence, so the server itself refuses whatever the owner before may still
write: its message expects an older one.

A commit that was not answered is tried again, for a while. Trying again is safe: if the first try was written, the
second is refused, and the last message of the log then has the commit's own id.

How much a crash of the servers can lose is theirs to say: see `docs/guides/cluster.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import nats.errors
import nats.js.errors

from halter._extras import need
from halter.cancel.loop_thread import LoopClosed, LoopThread
from halter.cancel.token import NEVER
from halter.errors import NotStorable, SessionOwned, StoreError
from halter.events import Event, kind_of
from halter.stores.base import Lease, SessionInfo
from halter.stores.nats.names import Names, session_of, token_of
from halter.stores.nats.node import Node
from halter.stores.nats.streams import MOST_MESSAGES, Append, Stored, Stream, StreamRefused, WrongSequence
from halter.stores.refusals import lease_lost, open_here, out_of_order
from halter.stores.rows import from_body, to_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence
    from types import TracebackType
    from typing import Self

    from nats.aio.client import Client
    from nats.js.kv import KeyValue

    from halter.cancel.token import CancellationToken
    from halter.stores.base import Write

__all__ = ["NATSStore"]

T = TypeVar("T")

_ANSWER_SECONDS: Final = 2.0  # for one request
_CLOSE_SECONDS: Final = 1.0
_PAUSE: Final = 0.1  # seconds between two tries
_HEADER_ROOM: Final = 4_096  # bytes of a message that are not its body
_FEW: Final = 512  # events of a log that are read rather than searched

_COMMIT: Final = "Halter-Commit"
_GENERATION: Final = "Halter-Generation"
_LAST: Final = "Halter-Last"  # the number of the log's last event, with this message
_INFO: Final = "Halter-Info"  # when the log began and when it was last written, and how many messages are waiting
_PART: Final = "Halter-Part"  # "2/3", where the body was too large for one message

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[int, float, str, str, str]]).decode


class _Held:
    """A lease of this store, and where its log ends."""

    __slots__ = ("created_at", "last", "node", "revision", "sequence", "updated_at", "waiting")

    def __init__(self, node: Node, revision: int) -> None:
        self.node = node
        self.revision = revision  # of the key in the bucket
        self.sequence = 0  # of the log's last message
        self.last = 0  # the number of its last event
        self.created_at = 0.0
        self.updated_at = 0.0
        self.waiting = 0


class _Owner(NamedTuple):
    """What the bucket has for a session."""

    node: str  # empty if it is free
    generation: int
    revision: int


class NATSStore:
    """Keeps sessions in NATS JetStream. Any number of processes may share it; each session has one owner at a time.

    *servers* are addresses such as `nats://localhost:4222`. The stream and the buckets are made if they do not exist,
    with so many *replicas*. A process that cannot reach NATS loses its sessions after *lease_seconds*; another one can
    take them then, and not before. Further *options* go to `nats.connect()`: `user_credentials`, `tls`, `token`...
    """

    blocks = True

    def __init__(
        self,
        servers: str | list[str],
        *,
        prefix: str = "halter",
        replicas: int = 1,
        lease_seconds: float = 10.0,
        patience: float = 5.0,
        **options: Any,
    ) -> None:
        need("cluster", "nats")
        self._servers = servers
        self._names = Names(prefix)
        self._replicas = replicas
        self._lease_seconds = lease_seconds
        self._patience = patience  # for a commit that is not answered
        self._options = options
        self._home = LoopThread("halter-nats")
        self._held: dict[Lease, _Held] = {}
        self._client: Client
        self._stream: Stream
        self._leases: KeyValue
        self._nodes: KeyValue
        self._node: Node | None = None
        self._former: set[str] = set()  # nodes of this store that lost their sessions
        self._is_closed = False
        try:
            self._run(self._open)
        except BaseException:
            self._home.close()
            raise

    # -- the store, from any thread ----------------------------------------------------------------------------------

    def acquire(self, session: str) -> Lease:
        """Take the lease of *session*."""
        return self._run(lambda: self._patiently(lambda: self._acquire(session)))

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        if not self._is_closed:
            self._run(lambda: self._release(lease))

    def expiry(self, lease: Lease) -> CancellationToken:
        """A token that is cancelled before anybody else can take the session, if NATS cannot be reached."""
        held = self._held.get(lease)
        return held.node.lost if held is not None else NEVER

    def commit(self, writes: Sequence[Write]) -> None:
        """Append the events of several sessions: all of them or none."""
        self._run(lambda: self._commit(writes))

    def erase(self, lease: Lease) -> None:
        """Delete the session's log."""
        self._run(lambda: self._erase(lease))

    def read(
        self, session: str, after: int = 0, *, limit: int | None = None, without: Collection[str] = ()
    ) -> list[Event]:
        """The events with higher numbers than *after*."""
        return self._run(lambda: self._patiently(lambda: self._read(session, max(after, 0), limit, without)))

    def sessions(self) -> list[SessionInfo]:
        """All sessions, the most recently used first."""
        return self._run(lambda: self._patiently(self._sessions))

    def close(self) -> None:
        """Release every lease and disconnect."""
        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(LoopClosed, TimeoutError, StoreError):
                self._home.do_blocking(self._close, _ANSWER_SECONDS)
            self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop of the connection, and block for it. Raises `StoreError`."""
        if self._is_closed:
            raise StoreError("the store is closed; make a new one")

        async def bounded() -> T:
            try:
                async with asyncio.timeout(4 * self._patience):
                    return await make()
            except (nats.errors.Error, OSError, TimeoutError) as error:
                raise self._unreachable(error) from error
            except StreamRefused as error:
                raise StoreError(f"NATS refused it: {error}") from error

        try:
            return self._home.do_blocking(bounded, 5 * self._patience)
        except (LoopClosed, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> StoreError:
        why = str(error) or type(error).__name__
        return StoreError(f"NATS at {self._servers} does not answer ({why}); is it running, with JetStream?")

    # -- on the loop of the connection -------------------------------------------------------------------------------

    async def _open(self) -> None:
        import nats
        from nats.js.api import KeyValueConfig, StorageType

        async def note(error: Exception) -> None:
            """The client tells of errors that it deals with itself; it prints them if nobody takes them."""

        async def note_broken() -> None:
            self._stream.fail_requests()

        self._client = await nats.connect(
            self._servers,
            name="halter",
            error_cb=note,
            disconnected_cb=note_broken,
            connect_timeout=2,
            reconnect_time_wait=_PAUSE,
            max_reconnect_attempts=-1,
            allow_reconnect=True,
            **self._options,
        )
        js = self._client.jetstream(timeout=_ANSWER_SECONDS)
        names, replicas = self._names, self._replicas
        # With the server's own words: the client's type does not know atomic batches yet.
        await self._ask(
            f"$JS.API.STREAM.CREATE.{names.stream}",
            {
                "name": names.stream,
                "subjects": [names.logs],
                "storage": "file",
                "retention": "limits",
                "discard": "new",
                "num_replicas": replicas,
                "allow_direct": True,
                "allow_atomic": True,
            },
        )
        self._stream = Stream(self._client, names.stream, _ANSWER_SECONDS)
        # Not direct: what another node just wrote has to be seen, so the leader answers.
        kept = KeyValueConfig(names.leases, storage=StorageType.FILE, replicas=replicas, direct=False)
        self._leases = await js.create_key_value(kept)
        passing = KeyValueConfig(
            names.nodes, storage=StorageType.FILE, replicas=replicas, direct=False, ttl=self._lease_seconds
        )
        self._nodes = await js.create_key_value(passing)

    async def _patiently(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Try something again while NATS does not answer, for a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while True:
            try:
                return await make()
            except (nats.errors.Error, OSError):
                if loop.time() > until:
                    raise
                await asyncio.sleep(_PAUSE)

    async def _ask(self, subject: str, body: dict[str, Any]) -> None:
        answer = await self._client.request(subject, json.dumps(body).encode(), _ANSWER_SECONDS)
        error = json.loads(answer.data).get("error")
        if error is not None:
            raise StreamRefused(f"{error['description']} ({error.get('err_code', '?')})")

    async def _close(self) -> None:
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):  # then the leases end by time
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self._client.is_connected:
                    for lease in list(self._held):
                        await self._release(lease)
                if self._node is not None:
                    await self._node.end()
        with contextlib.suppress(nats.errors.Error, OSError):  # the connection may be broken already
            await self._client.close()

    # Leases

    async def _acquire(self, session: str) -> Lease:
        node = await self._living_node()
        while True:
            owner = await self._owner(session)
            lease = Lease(session, owner.generation + 1)
            if owner.node == node.id and Lease(session, owner.generation) in self._held:
                raise open_here(session)
            if owner.node not in {"", node.id, *self._former} and await self._is_alive(owner.node):
                raise SessionOwned(
                    f"session {session!r} is open on node {owner.node}; ask there, or wait until it is closed or its "
                    "lease has ended"
                )
            held = _Held(node, await self._take(session, node, lease.generation, owner.revision))
            if held.revision and await self._fence(lease, held):
                self._held[lease] = held
                return lease

    async def _living_node(self) -> Node:
        if self._node is None or not self._node.is_alive:
            self._held = {}
            if self._node is not None:
                self._former.add(self._node.id)
                await self._node.end()
            node = Node(self._nodes, self._lease_seconds)
            await node.start()
            self._node = node
        return self._node

    async def _owner(self, session: str) -> _Owner:
        try:
            entry = await self._leases.get(token_of(session))
        except nats.js.errors.NotFoundError:
            return _Owner("", 0, 0)
        found = json.loads(entry.value or b"{}")
        return _Owner(found["node"], found["generation"], entry.revision or 0)

    async def _is_alive(self, node: str) -> bool:
        try:
            await self._nodes.get(node)
        except nats.js.errors.NotFoundError:
            return False
        return True

    async def _take(self, session: str, node: Node | None, generation: int, revision: int) -> int:
        """Change who has a session, if nobody else has meanwhile; gives the new revision, or 0."""
        body = json.dumps({"node": node.id if node is not None else "", "generation": generation}).encode()
        try:
            return await self._leases.update(token_of(session), body, last=revision)
        except nats.js.errors.KeyWrongLastSequenceError:
            return 0

    async def _fence(self, lease: Lease, held: _Held) -> bool:
        """Append an empty message, after which the server refuses older owners; False if the lease was taken away."""
        subject = self._names.log(lease.session)
        while True:
            end = await self._stream.last(subject)
            if end is not None:
                _learn(held, end)
            if (await self._owner(lease.session)).revision != held.revision:
                return False
            message = Append(subject, b"", _headers(lease, held, secrets.token_hex(8)), held.sequence)
            with contextlib.suppress(WrongSequence):  # the owner before has written just now
                held.sequence = await self._stream.append([message])
                return True

    async def _release(self, lease: Lease) -> None:
        held = self._held.pop(lease, None)
        if held is not None and held.node.is_alive:
            await self._take(lease.session, None, lease.generation, held.revision)

    def _own(self, lease: Lease) -> _Held:
        held = self._held.get(lease)
        if held is None or not held.node.is_alive:
            raise lease_lost(lease)
        return held

    # Writing

    async def _commit(self, writes: Sequence[Write]) -> None:
        commit = secrets.token_hex(8)
        messages: list[Append] = []
        ends: dict[Lease, tuple[_Held, int]] = {}  # what is held afterwards, and its last message in the batch
        for write in writes:
            held = self._own(write.lease)
            before, _ = ends.get(write.lease, (held, 0))
            after = _after(write, before)
            parts = self._messages(write, _headers(write.lease, after, commit))
            if before is held:
                parts[0] = parts[0]._replace(expected=held.sequence)
            messages += parts
            ends[write.lease] = after, len(messages)
        if len(messages) > MOST_MESSAGES:
            raise NotStorable("it is too much for one commit; nothing was written", writes[0].lease.session)
        last = await self._patiently(lambda: self._append(messages, commit, writes))
        for lease, (after, number) in ends.items():
            after.sequence = last - len(messages) + number
            self._held[lease] = after

    def _messages(self, write: Write, headers: dict[str, str]) -> list[Append]:
        """A write as messages: one, or several if it is too large."""
        body = _encode(to_rows(write))
        size = max(self._client.max_payload - _HEADER_ROOM, 1)
        subject = self._names.log(write.lease.session)
        if len(body) <= size:
            return [Append(subject, body, headers, None)]
        parts = [body[start : start + size] for start in range(0, len(body), size)]
        return [
            Append(subject, part, headers | {_PART: f"{number}/{len(parts)}"}, None)
            for number, part in enumerate(parts, 1)
        ]

    async def _append(self, messages: list[Append], commit: str, writes: Sequence[Write]) -> int:
        """Append; gives the last sequence. Raises `WriteRefused` if one of the writes is at fault."""
        first = messages[0]
        try:
            return await self._stream.append(messages)
        except WrongSequence:
            end = await self._stream.last(first.subject)
            if end is not None and end.headers.get(_COMMIT) == commit:  # an earlier try was written after all
                place = max(number for number, each in enumerate(messages, 1) if each.subject == first.subject)
                return end.sequence - place + len(messages)
            await self._blame(writes)
            raise StoreError("a log was changed by another process at the same time; try again") from None

    async def _blame(self, writes: Sequence[Write]) -> None:
        """Find the write that is at fault, and learn where its log ends now."""
        for lease, events, _ in writes:
            held = self._own(lease)
            end = await self._stream.last(self._names.log(lease.session))
            if end is None or end.sequence == held.sequence:
                continue
            if (await self._owner(lease.session)).revision != held.revision:
                del self._held[lease]
                raise lease_lost(lease)
            _learn(held, end)
            raise out_of_order(lease, events[0].seq, held.last)

    async def _erase(self, lease: Lease) -> None:
        held = self._own(lease)
        empty = _Held(held.node, held.revision)
        empty.sequence = held.sequence
        subject = self._names.log(lease.session)
        try:
            message = Append(subject, b"", _headers(lease, empty, secrets.token_hex(8)), held.sequence)
            empty.sequence = await self._stream.append([message])
        except WrongSequence:
            raise lease_lost(lease) from None
        self._held[lease] = empty
        await self._stream.purge(subject, before=empty.sequence)  # what is before such a message counts as erased

    # Reading

    async def _read(self, session: str, after: int, limit: int | None, without: Collection[str]) -> list[Event]:
        subject = self._names.log(session)
        end = await self._stream.last(subject)
        if end is None or (last := int(end.headers[_LAST])) <= after:
            return []
        sequence = await self._find(subject, after, end.sequence) if after and last > _FEW else 1
        events: list[Event] = []
        parts: list[bytes] = []
        while sequence <= end.sequence:
            page = await self._stream.read(subject, sequence)
            if not page:  # a replica that is behind the leader has answered
                await asyncio.sleep(_PAUSE)
            for message in page:
                sequence = message.sequence + 1
                if int(message.headers[_LAST]) == 0:  # erased
                    events, parts = [], []
                    continue
                parts.append(message.body)
                number, _, of = message.headers.get(_PART, "1/1").partition("/")
                if number == of:
                    events += _events(session, b"".join(parts), after, without)
                    parts = []
            if limit is not None and len(events) >= limit:
                break
        return events if limit is None else events[:limit]

    async def _find(self, subject: str, after: int, last: int) -> int:
        """The sequence of the first message with a higher number than *after*, by bisection."""
        low, high = 1, last
        while low < high:
            middle = (low + high) // 2
            found = await self._stream.next(subject, middle)
            if found is None or int(found.headers[_LAST]) > after:
                high = middle
            else:
                low = found.sequence + 1
        return low

    async def _sessions(self) -> list[SessionInfo]:
        found = []
        for end in await self._stream.last_of_all(self._names.logs):
            created, updated, waiting = end.headers[_INFO].split()
            events = int(end.headers[_LAST])
            if events:
                session = session_of(end.subject.rpartition(".")[2])
                found.append(SessionInfo(session, float(created), float(updated), events, int(waiting)))
        return sorted(found, key=lambda info: info.updated_at, reverse=True)


def _after(write: Write, held: _Held) -> _Held:
    """What is held once a write is done. Raises `WriteRefused`."""
    lease, events, waiting = write
    if (events[0].seq, events[-1].seq) != (held.last + 1, held.last + len(events)):
        raise out_of_order(lease, events[0].seq, held.last)
    new = _Held(held.node, held.revision)
    new.last = events[-1].seq
    new.created_at = held.created_at or events[0].time
    new.updated_at = events[-1].time
    new.waiting = waiting
    return new


def _headers(lease: Lease, held: _Held, commit: str) -> dict[str, str]:
    return {
        _COMMIT: commit,
        _GENERATION: str(lease.generation),
        _LAST: str(held.last),
        _INFO: f"{held.created_at!r} {held.updated_at!r} {held.waiting}",
    }


def _learn(held: _Held, end: Stored) -> None:
    """Take over where a log ends."""
    created, updated, waiting = end.headers[_INFO].split()
    held.sequence = end.sequence
    held.last = int(end.headers[_LAST])
    held.created_at, held.updated_at, held.waiting = float(created), float(updated), int(waiting)


def _events(session: str, body: bytes, after: int, without: Collection[str]) -> list[Event]:
    """The events of one commit."""
    found: list[Event] = []
    for last, at, turn, kind, text in _decode(body) if body else ():
        data = from_body(session, last, kind, text)
        for seq, each in enumerate(data, last - len(data) + 1):
            if seq > after and not (without and kind_of(each) in without):
                found.append(Event(seq, at, session, turn, each))
    return found
