"""Sessions in NATS JetStream: the store for many machines.

Every session has a subject in one stream; each commit is a message there, and the commits of several sessions are one
atomic batch. A lease is a key in a bucket, changed by compare-and-set. Whoever takes a lease appends an empty message
to the log first. That moves the log's last sequence, so the server itself refuses whatever the owner before may still
write: its message expects an older one.

How logs are written, and what becomes of a commit that is not answered: see `halter.stores.nats.log_writer`.
How much a crash of the servers can lose depends on their settings: see `docs/guides/cluster.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import nats.errors

from halter._extras import need
from halter.cancel.loop_thread import LoopClosed, LoopThread
from halter.cancel.token import NEVER
from halter.errors import SessionOwned, StoreError
from halter.stores.base import Lease
from halter.stores.nats.commits import HeldLog
from halter.stores.nats.leases import Leases
from halter.stores.nats.log_reader import LogReader
from halter.stores.nats.log_writer import LogWriter
from halter.stores.nats.names import Names, process_of
from halter.stores.nats.node import Node, process_name
from halter.stores.nats.requests import ANSWER_SECONDS, ask, retry_unanswered
from halter.stores.nats.schema import make_stream, open_bucket
from halter.stores.nats.streams import Stream, StreamRefused
from halter.stores.refusals import open_here

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence
    from types import TracebackType
    from typing import Self

    from nats.aio.client import Client
    from nats.js.kv import KeyValue

    from halter.cancel.token import CancellationToken
    from halter.events import Event
    from halter.stores.base import SessionInfo, Write
    from halter.stores.nats.leases import LeaseOwner

__all__ = ["NATSStore"]

T = TypeVar("T")
_log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 1.0
_RECONNECT: Final = 0.1  # seconds between two tries to connect


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
        self.names = Names(prefix)
        self.process = process_name()
        """The name of this process in the cluster."""
        self.lease_seconds = lease_seconds
        self.replicas = replicas
        self.patience = patience
        """How many seconds a request is made again if the servers do not answer."""
        self._options = options
        self._home = LoopThread("halter-nats")
        self._client: Client
        self._stream: Stream
        self._logs: LogReader
        self._writer: LogWriter
        self._leases: Leases
        self._nodes: KeyValue
        self._node: Node | None = None
        self._count = 0  # of nodes that this process was
        self._former: set[str] = set()  # nodes of this store that lost their sessions
        self._has_given_up = False  # a request, and since then none has succeeded
        self._is_closed = False
        self._joining = asyncio.Lock()  # or two who need a node at once would make two
        try:
            self._run(self._open)
        except BaseException:
            self._home.close()
            raise

    # -- the store, from any thread ----------------------------------------------------------------------------------

    def acquire(self, session: str) -> Lease:
        """Take the lease of *session*."""
        return self._run(lambda: self._retry(lambda: self._acquire(session)))

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        if not self._is_closed:
            self._run(lambda: self._release(lease))

    def expiry(self, lease: Lease) -> CancellationToken:
        """A token that is cancelled before anybody else can take the session, if NATS cannot be reached."""
        held = self._writer.held.get(lease)
        return held.node.lost if held is not None else NEVER

    def commit(self, writes: Sequence[Write]) -> None:
        """Append the events of several sessions: all of them or none."""
        self._run(lambda: self._writer.commit(writes))

    def erase(self, lease: Lease) -> None:
        """Delete the session's log."""
        self._run(lambda: self._writer.erase(lease))

    def read(
        self, session: str, after: int = 0, *, limit: int | None = None, without: Collection[str] = ()
    ) -> list[Event]:
        """The events with higher numbers than *after*."""

        async def read() -> list[Event]:
            await self._writer.settle_session(session)
            return await self._logs.read(session, max(after, 0), limit, without)

        return self._run(lambda: self._retry(read))

    def sessions(self) -> list[SessionInfo]:
        """All sessions, the most recently used first."""
        return self._run(lambda: self._retry(self._logs.sessions))

    def join(self) -> CancellationToken:
        """Register as a node, also without a session. The token is cancelled when this node is lost."""

        async def join() -> CancellationToken:
            return (await self._living_node()).lost

        return self._run(lambda: self._retry(join))

    def last_number(self, session: str) -> int:
        """The number of a session's last event; 0 if there is no such session."""
        return self._run(lambda: self._retry(lambda: self._logs.last_number(session)))

    def owners(self) -> dict[str, LeaseOwner]:
        """The sessions that are open anywhere, with their owners, which may be dead: `nodes()` has the living ones."""
        return self._run(lambda: self._retry(self._leases.taken))

    def nodes(self) -> dict[str, dict[str, object]]:
        """The nodes that are alive, as one of the servers knows them: a new one may be missing for a moment."""
        return self._run(lambda: self._retry(self._leases.nodes))

    def state(self) -> dict[str, Any]:
        """The servers' description of the stream of all logs."""
        subject = f"$JS.API.STREAM.INFO.{self.names.stream}"
        return self._run(lambda: self._retry(lambda: ask(self._client, subject, {})))

    async def connect(self, name: str, **callbacks: Any) -> Client:
        """One more connection to the same servers, on the loop that is running. Raises an error of `nats`."""
        from nats.aio.client import Client

        async def ignore(error: Exception) -> None:
            """Ignore errors that the client handles itself; without this callback it prints them."""

        client = Client()
        try:
            await client.connect(
                self._servers,
                name=name,
                error_cb=ignore,
                connect_timeout=2,
                reconnect_time_wait=_RECONNECT,  # type: ignore[arg-type]  # passed to asyncio.sleep()
                max_reconnect_attempts=-1,
                allow_reconnect=True,
                **callbacks,
                **self._options,
            )
        except BaseException:
            await _disconnect(client)
            raise
        return client

    def close(self) -> None:
        """Release every lease and disconnect."""
        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(LoopClosed, TimeoutError, StoreError):
                self._home.do_blocking(self._close, 4 * _CLOSE_SECONDS)
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
                async with asyncio.timeout(4 * self.patience):
                    return await make()
            except (nats.errors.Error, OSError, TimeoutError) as error:
                raise self._unreachable(error) from error
            except StreamRefused as error:
                raise StoreError(f"NATS refused it: {error}") from error

        try:
            return self._home.do_blocking(bounded, 5 * self.patience)
        except (LoopClosed, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> StoreError:
        why = str(error) or type(error).__name__
        return StoreError(
            f"NATS at {_without_secrets(self._servers)} does not answer ({why}); is it running, with JetStream?"
        )

    # -- on the loop of the connection -------------------------------------------------------------------------------

    async def _open(self) -> None:
        async def note_broken() -> None:
            self._stream.fail_requests()

        self._client = await self.connect("halter", disconnected_cb=note_broken)
        self._stream = Stream(self._client, self.names.stream, ANSWER_SECONDS)
        try:
            await self._open_stream()
        except BaseException:
            await _disconnect(self._client)
            raise

    async def _open_stream(self) -> None:
        """Open the stream and the buckets; create what does not exist."""
        from nats.js.api import KeyValueConfig, StorageType

        js = self._client.jetstream(timeout=ANSWER_SECONDS)
        names = self.names
        # Servers that have just started answer once they have chosen their leaders.
        await self._retry(lambda: make_stream(self._client, names, self.replicas))
        self._logs = LogReader(self._stream, names)
        self._writer = LogWriter(self._client, self._stream, self._logs, names, self.patience)
        # Not direct: only the leader has what another node has just written.
        kept = KeyValueConfig(names.leases, storage=StorageType.FILE, replicas=self.replicas, direct=False)
        passing = KeyValueConfig(
            names.nodes, storage=StorageType.FILE, replicas=self.replicas, direct=False, ttl=self.lease_seconds
        )
        self._nodes = await self._retry(lambda: open_bucket(js, passing))
        # Of the bucket as it is: it decides when the keys of all nodes expire.
        self.lease_seconds = (await self._retry(self._nodes.status)).ttl or self.lease_seconds
        leases = await self._retry(lambda: open_bucket(js, kept))
        self._leases = Leases(self._client, names, leases, self._nodes)

    async def _retry(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a request, and again while the servers do not answer, for `patience` seconds.

        Once one was given up, each is tried only once until one succeeds, and not at all without a connection: the
        sessions read one after the other, and each stop would wait for all that are before it.
        """
        if self._has_given_up and not self._client.is_connected:
            raise nats.errors.ConnectionReconnectingError
        try:
            result = await retry_unanswered(make, 0.0 if self._has_given_up else self.patience)
        except (nats.errors.Error, OSError, asyncio.CancelledError):  # the last one is the time limit of _run()
            self._has_given_up = True
            raise
        self._has_given_up = False
        return result

    async def _close(self) -> None:
        # Each has a time of its own: the end of the node frees what was not released in time.
        for step in (self._writer.close, self._release_all, self._end_node):
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):  # then the leases end by time
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await step()
        await _disconnect(self._client)

    async def _release_all(self) -> None:
        if self._client.is_connected:
            for lease in list(self._writer.held):
                await self._release(lease)

    async def _end_node(self) -> None:
        if self._node is not None:
            await self._node.end()

    # Leases

    async def _acquire(self, session: str) -> Lease:
        node = await self._living_node()
        while True:
            owner = await self._leases.owner(session)
            lease = Lease(session, owner.generation + 1)
            if owner.node == node.id and Lease(session, owner.generation) in self._writer.held:
                raise open_here(session)
            if owner.node not in {"", node.id, *self._former} and await self._leases.is_alive(owner.node):
                raise SessionOwned(
                    f"session {session!r} is open on node {owner.node}; ask there, or wait until it is closed or its "
                    "lease has ended",
                    process_of(owner.node),
                )
            held = HeldLog(node, await self._leases.take(session, node, lease.generation, owner.revision))
            if held.revision and await self._writer.begin(lease, held):
                return lease

    async def _living_node(self) -> Node:
        async with self._joining:
            if self._node is None or not self._node.is_alive:
                self._writer.held.clear()
                if self._node is not None:
                    self._former.add(self._node.id)
                    await self._node.end()
                self._count += 1
                node = Node(f"{self.process}-{self._count}", self._nodes, self.lease_seconds)
                await node.start()
                self._node = node
            return self._node

    async def _release(self, lease: Lease) -> None:
        held = self._writer.held.pop(lease, None)
        if held is not None and held.node.is_alive:
            await self._leases.take(lease.session, None, lease.generation, held.revision)


async def _disconnect(client: Client) -> None:
    """Close a connection. Bounded. A boundary: a broken one raises, on Python 3.13.0 a TypeError of asyncio."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
    except Exception as error:  # noqa: BLE001
        _log.debug("the connection to NATS was broken already: %s", str(error) or type(error).__name__)


def _without_secrets(servers: str | list[str]) -> str:
    """Addresses as they may be shown: without users, passwords and tokens."""
    addresses = servers.split(",") if isinstance(servers, str) else servers
    return ", ".join(re.sub(r"//.*@", "//", each) for each in addresses)
