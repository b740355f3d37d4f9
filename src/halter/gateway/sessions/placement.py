"""Where a session is: here, or on another node of the cluster. This is the only place that decides it.

A session that no node has is loaded here. Requests for one on another node are sent there, and its events are read from
the servers of the cluster. If a message would start one turn too many here, its session, which is idle, is handed over
to another node. Without a cluster every session is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from halter.errors import LeaseLost, SessionOwned
from halter.gateway.http.errors import Problem
from halter.gateway.sessions.limits import Overloaded
from halter.gateway.sessions.requests import CreateSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from halter.events import Event
    from halter.gateway.cluster.cluster import Cluster
    from halter.gateway.cluster.messages import LoadedSession
    from halter.gateway.cluster.remote_log import RemoteLog
    from halter.gateway.http.keys import Key
    from halter.gateway.http.schemas import StopAllBody, StoppedView
    from halter.gateway.http.session_schemas import SessionBody, SessionView
    from halter.gateway.sessions.commands import Commands
    from halter.gateway.sessions.live_session import LiveSession
    from halter.gateway.sessions.registry import SessionRegistry
    from halter.gateway.sessions.requests import SessionRequest

__all__ = ["EventSource", "Feed", "FollowedSession", "Moved", "Sessions"]

_MAX_MOVES: Final = 5  # of one session during one request


class Moved(Exception):
    """A node does not have the session; `owner` is the process that has it, or empty if that is not known."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class Feed(Protocol):
    """A subscription to events; it can be used in a `with` block."""

    def close(self) -> None:
        """Unsubscribe. From any thread."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class EventSource(Protocol):
    """Something whose events can be followed: a session that is loaded here, or the log of one that is not."""

    id: str

    @property
    def last_event(self) -> int:
        """The number of the newest event."""
        ...

    def subscribe(self, *, on_events: Callable[[list[Event]], object]) -> Feed:
        """Call *on_events* with each batch of events, in any thread, and with an empty list at the end.

        If a batch does not follow the one before, events are missing: the log has them.
        """
        ...


class Sessions:
    """Carries out the requests of clients, wherever their sessions are."""

    def __init__(self, registry: SessionRegistry, commands: Commands, cluster: Cluster | None = None) -> None:
        self._registry = registry
        self._commands = commands
        self._cluster = cluster

    @property
    def is_connected(self) -> bool:
        """Whether the servers of the cluster can be reached; True without a cluster."""
        return self._cluster is None or self._cluster.is_connected

    async def do(self, session_id: str, key: Key, request: SessionRequest) -> Any:  # noqa: ANN401  (`request.result`)
        """Do a request. Raises `Problem`, or an error of the store."""
        cluster = self._cluster
        if cluster is None:
            return await self.do_here(session_id, key, request)
        sent = None
        is_certain = False  # the owner is known from the lease itself
        is_handed_over = False
        for _ in range(_MAX_MOVES):
            owner = "" if session_id in self._registry.live_sessions else cluster.owner_of(session_id)
            try:
                if not owner:
                    return await self.do_here(session_id, key, request)
                sent = sent or await request.to_send()
                return await cluster.ask(owner, session_id, key, sent, is_certain=is_certain)
            except SessionOwned as error:
                cluster.learn_owner(session_id, error.owner)
                is_certain = True
            except Moved as moved:
                cluster.learn_owner(session_id, moved.owner)
                is_certain = False
            except Overloaded:
                another = cluster.another()
                if is_handed_over or not another or not await self._registry.hand_over(session_id):
                    raise
                is_handed_over = True
                cluster.learn_owner(session_id, another)
                is_certain = False
            except LeaseLost:  # nothing was written, and the session is unloaded here
                continue
        raise Problem(503, "the session is moving from node to node: try again", kind="moving", retry_after=1.0)

    async def do_here(self, session_id: str, key: Key, request: SessionRequest) -> Any:  # noqa: ANN401  (as above)
        """Do a request on this node. Raises `SessionOwned` if another node has the session."""
        if isinstance(request, CreateSession):
            return await self._commands.create(key, request.body)
        async with self._registry.lease(session_id, key) as live:
            return await request.run(self._commands, live, key)

    async def create(self, key: Key, body: SessionBody) -> tuple[SessionView, bool]:
        """Create a session, or find it; True if it is new."""
        created: tuple[SessionView, bool] = await self.do(body.id or "", key, CreateSession(body=body))
        return created

    async def stop_all(self, key: Key, body: StopAllBody) -> StoppedView:
        """Stop every session, on every node."""
        if self._cluster is None:
            return await self._commands.stops.stop_all(key, body)
        return await self._cluster.stop_all(key, body)

    async def states(self) -> Mapping[str, LoadedSession]:
        """What the sessions on other nodes are doing."""
        return {} if self._cluster is None else await self._cluster.states()

    def follow(self, session_id: str, key: Key) -> FollowedSession:
        """The events of a session, in this `async with` block."""
        return FollowedSession(self._registry, self._cluster, session_id, key)


class FollowedSession:
    """An `EventSource` for an `async with` block. A session that is here stays loaded meanwhile."""

    def __init__(self, registry: SessionRegistry, cluster: Cluster | None, session_id: str, key: Key) -> None:
        self._registry = registry
        self._cluster = cluster
        self._session = session_id
        self._key = key
        self._live: LiveSession | None = None
        self._remote: RemoteLog | None = None

    async def __aenter__(self) -> EventSource:
        lease = self._registry.lease(self._session, self._key)
        try:
            self._live = await lease.__aenter__()
        except SessionOwned as error:
            if self._cluster is None:
                raise
            self._cluster.learn_owner(self._session, error.owner)
            self._remote = await self._cluster.follow(self._session, self._key)
            return self._remote
        return self._live.session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._registry.release(self._live, error)
        if self._remote is not None:
            self._remote.release()
