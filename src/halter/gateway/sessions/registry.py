"""The sessions of a gateway: loaded on demand, unloaded when idle.

A loaded session is a `LiveSession`: it has a task that runs `session.serve()` in the gateway's loop. The registry gets
the events of its messages and turns. Leases (requests, streams), a running turn and queued messages keep it loaded.
Everything is in one event loop, so nothing changes between two awaits.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING, Final

from halter.cancel.loop_bridge import run_in_thread
from halter.errors import LeaseLost
from halter.events import (
    Event,
    MessageAccepted,
    MessageEdited,
    TurnFinished,
    TurnStarted,
    TurnStopping,
)
from halter.gateway.http.errors import Problem
from halter.gateway.sessions.event_queue import EventQueue
from halter.gateway.sessions.limits import LimitExceeded, Overloaded
from halter.gateway.sessions.live_session import CLOSE_TIMEOUT, LiveSession, agent_of
from halter.gateway.sessions.resumption import Resumption
from halter.gateway.sessions.transient_sessions import TransientSessions
from halter.stores.closed_sessions import copy_events, erase_session
from halter.voice.voice_messages import TRANSCRIBING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    from halter.agent import Agent
    from halter.events import EventData
    from halter.gateway.http.keys import Key
    from halter.gateway.sessions.limits import GatewayLimits
    from halter.session.session import Session
    from halter.session.turn import Turn
    from halter.stores.base import Store
    from halter.voice.voice_messages import VoiceMessages

__all__ = ["SessionLease", "SessionRegistry"]


_log = logging.getLogger(__name__)
_RESOURCES_FACTOR: Final = 60  # sessions with resources of tools stay loaded this many times longer


class SessionLease:
    """Keeps a session loaded in an `async with` block. A class for speed: every request makes one."""

    __slots__ = ("_key", "_live", "_registry", "_session")

    def __init__(self, registry: SessionRegistry, session_id: str, key: Key | None) -> None:
        self._registry = registry
        self._session = session_id
        self._key = key

    async def __aenter__(self) -> LiveSession:
        self._live = live = await self._registry.acquire(self._session)
        if self._key is not None and not self._key.may_use(live.owner):
            self._registry.release(live, None)
            raise _no_session(self._session)
        return live

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._registry.release(self._live, error)


class SessionRegistry:
    """All loaded sessions, and the way to load others."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        store: Store,
        limits: GatewayLimits,
        *,
        watch: Callable[[LiveSession, Event], None],
        voice_messages: VoiceMessages,
        kinds: Collection[type[EventData]] = (),
        idle_after: float,
    ) -> None:
        """*watch* is called with the events of messages and turns, and with those of *kinds*."""
        self.agents = agents
        self.models = {each.name: each for agent in agents.values() for each in (agent.model, *agent.fallbacks)}
        self.store = store
        self.limits = limits
        self.voice_messages = voice_messages
        self.live_sessions: dict[str, LiveSession] = {}
        self.busy: set[LiveSession] = set()
        self.transient = TransientSessions()
        self.turn_ended = asyncio.Event()
        self.resumption = Resumption(self)
        self.is_draining = False
        self.before_serving: Callable[[LiveSession], Awaitable[None]] | None = None
        """Awaited with each session that was loaded, before it is served. If it raises, the session is closed again."""
        self.released: Callable[[str], None] | None = None
        """Called with each session that has queued messages when it is unloaded by a draining gateway."""
        self._watch = watch
        self._kinds = frozenset({MessageAccepted, MessageEdited, TurnStarted, TurnStopping, TurnFinished, *kinds})
        self._idle_after = idle_after
        self._loading: dict[str, asyncio.Task[tuple[LiveSession, bool]]] = {}
        self._awaiting: collections.Counter[str] = collections.Counter()  # callers that wait for a session to be loaded
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self._events = EventQueue(self._process)
        self._unloaded = asyncio.Event()  # set, and replaced, when a session was unloaded

    # -- loading ---------------------------------------------------------------------------------------------------

    def lease(self, session_id: str, key: Key | None = None) -> SessionLease:
        """Load a session and keep it loaded in this `async with` block.

        Raises `Problem` if there is none, or if it is not one that *key* may use.
        """
        return SessionLease(self, session_id, key)

    async def acquire(self, session_id: str) -> LiveSession:
        """Load a session, and count one more lease."""
        live = self.live_sessions.get(session_id)
        if live is None:
            live, _ = await self._load(session_id)
        live.leases += 1
        return live

    def release(self, live: LiveSession, error: BaseException | None) -> None:
        """Count one lease less; *error* is what ended it."""
        if isinstance(error, LeaseLost):
            self._drop(live)
        live.leases -= 1
        self._schedule_unload(live)

    async def create(self, session_id: str | None, agent: str | None, owner: str = "") -> tuple[LiveSession, bool]:
        """Create a session for the key *owner*, or find the existing one of this name; True if it is new."""
        if agent is not None and agent not in self.agents:
            msg = f"there is no agent {agent!r}; known: {', '.join(self.agents)}"
            raise Problem(422, msg, field="agent", kind="field")
        self._check_draining()
        name = session_id or secrets.token_hex(8)
        live, is_new = self.live_sessions.get(name), False
        while live is None:
            earlier = self._loading.get(name)
            if earlier is None:
                live, is_new = await self._load(name, agent or next(iter(self.agents)), owner)
            else:
                await asyncio.wait({earlier})  # which may not create the session, and not find it
                live = self.live_sessions.get(name)
        if agent is not None and live.agent != agent:
            raise Problem(409, f"session {name!r} was created with another agent", field="agent", kind="conflict")
        self._schedule_unload(live)
        return live, is_new

    async def exists(self, session_id: str) -> bool:
        """Whether a session of this name is loaded or in the store."""
        return session_id in self.live_sessions or bool(
            await run_in_thread(lambda: self.store.read(session_id, limit=1))
        )

    async def _load(self, session_id: str, make: str = "", owner: str = "") -> tuple[LiveSession, bool]:
        """Open a session, once for all callers; if there is none, create it with the agent *make*."""
        task = self._loading.get(session_id)
        if task is None:
            self._check_draining()
            task = asyncio.create_task(self._open(session_id, make, owner))
            self._loading[session_id] = task
            task.add_done_callback(lambda done: self._on_loaded(session_id, done))
        self._awaiting[session_id] += 1
        try:
            return await asyncio.shield(task)  # others may wait for the same task if this caller is cancelled
        finally:
            self._awaiting[session_id] -= 1
            self._schedule_unload_if_unused(session_id)

    def _on_loaded(self, session_id: str, task: asyncio.Task[tuple[LiveSession, bool]]) -> None:
        self._loading.pop(session_id, None)
        if not task.cancelled():
            task.exception()  # mark it as retrieved, even if nobody waits any more
        self._schedule_unload_if_unused(session_id)

    def _schedule_unload_if_unused(self, session_id: str) -> None:
        """Start the idle timer of a loaded session, unless callers wait for it.

        They resume some iterations of the loop later. A short timer would unload the session before that.
        """
        if not self._awaiting[session_id]:
            del self._awaiting[session_id]
            live = self.live_sessions.get(session_id)
            if live is not None:
                self._schedule_unload(live)

    async def _open(self, session_id: str, make: str, owner: str) -> tuple[LiveSession, bool]:
        unloading = self._unloading.get(session_id)
        if unloading is not None:
            await asyncio.wait({unloading})
        session, agent, first, is_new = await run_in_thread(lambda: self._read(session_id, make, owner))
        if self.is_draining:
            await session.aclose()
            self._check_draining()
        live = LiveSession(session, agent, first, self.limits)
        if self.before_serving is not None:
            try:
                await self.before_serving(live)
            except BaseException:
                await session.aclose()
                raise
        self.live_sessions[session_id] = live
        self.voice_messages.resume(session)
        if live.is_busy:
            self.busy.add(live)
        loop = asyncio.get_running_loop()
        live.start(self._kinds, lambda events: self._events.add(live, events, loop), self._drop)
        return live, is_new  # its idle timer is started when nobody waits for it any more

    def _read(self, session_id: str, make: str, owner: str) -> tuple[Session, str, list[Event], bool]:
        """Open a session, in a thread, as its log may be long."""
        first = self.store.read(session_id, limit=2)
        is_new = bool(make and not first)
        if is_new:
            with self.agents[make].session(session_id, self.store) as session:
                session.record_created(make, owner)
            first = self.store.read(session_id, limit=2)
        if not first or "/" in session_id:  # child sessions are part of their parent
            raise _no_session(session_id)
        agent = agent_of(first)
        agent = agent if agent in self.agents else next(iter(self.agents))
        session = self.agents[agent].session(session_id, self.store, prepares=[TRANSCRIBING])
        session.use_tool_loop()
        chosen = self.models.get(session.chosen.model)
        if chosen is not None:
            session.use_model(chosen)
        return session, agent, first, is_new

    def _check_draining(self) -> None:
        if self.is_draining:
            raise Problem(503, "the gateway is shutting down", kind="draining", retry_after=5.0)

    # -- turns -------------------------------------------------------------------------------------------------------

    def _process(self, live: LiveSession, event: Event) -> None:
        live.update(event)
        if isinstance(event.data, TurnStarted):
            self.busy.add(live)
        elif isinstance(event.data, (TurnFinished, MessageEdited)):  # an edit may leave nothing to do
            if not live.is_busy:
                self.busy.discard(live)
            self.turn_ended.set()
            self._schedule_unload(live)
        self._watch(live, event)

    @contextlib.contextmanager
    def run_transient(self, live: LiveSession) -> Iterator[None]:
        """Count a session that lives for one request, and take its events, as long as this block runs."""
        live.accepting += 1  # so that it counts before its turn begins
        self.busy.add(live)
        self.transient.add(live)
        loop = asyncio.get_running_loop()
        try:
            with live.session.subscribe(
                only=self._kinds, on_events=lambda events: self._events.add(live, events, loop)
            ):
                yield
        finally:
            live.accepting -= 1
            self.transient.discard(live)
            self.busy.discard(live)
            self.turn_ended.set()

    def check_turns(self, live: LiveSession | None, key: str) -> None:
        """Refuse a message that would start one turn too many. One for a running turn is accepted."""
        if live in self.busy:
            return
        if len(self.busy) >= min(self.limits.turns, self.limits.key_turns):
            self.busy = {each for each in self.busy if each.is_busy}  # a message may have been removed
        if len(self.busy) >= self.limits.turns:
            raise Overloaded
        if len(self.busy) >= self.limits.key_turns:
            own = sum(each.key == key for each in self.busy)
            if own >= self.limits.key_turns:
                msg = "too many turns of this key are running"
                raise LimitExceeded(msg, "turns")

    async def loaded(self) -> bool:
        """Wait for the sessions that are being opened; False if there are none. Bounded."""
        loading = set(self._loading.values())
        if loading:
            await asyncio.wait(loading, timeout=CLOSE_TIMEOUT)
        return bool(loading)

    # -- unloading ------------------------------------------------------------------------------------------------

    def _schedule_unload(self, live: LiveSession) -> None:
        """Start the idle timer, if nothing needs the session any more."""
        if live.leases or live.is_busy or self.live_sessions.get(live.session.id) is not live:
            return
        loop = asyncio.get_running_loop()
        live.idle_since = loop.time()
        if live.timer is None:
            live.timer = loop.call_later(self._idle_after, self._on_timer, live)

    def _on_timer(self, live: LiveSession) -> None:
        live.timer = None
        if live.leases or live.is_busy or self.is_draining or live.session.id in self._awaiting:
            return  # its end calls _schedule_unload()
        loop = asyncio.get_running_loop()
        due = live.idle_since + self._idle_after * (_RESOURCES_FACTOR if live.session.has_resources else 1)
        if loop.time() < due:
            live.timer = loop.call_at(due, self._on_timer, live)
        else:
            self._unload(live)

    def _unload(
        self, live: LiveSession, last: Callable[[], object] | None = None, close_timeout: float = CLOSE_TIMEOUT
    ) -> asyncio.Task[None]:
        """Unload it, then call *last* in a thread. A request for the session meanwhile waits for that."""
        session_id = live.session.id
        self.live_sessions.pop(session_id, None)
        self.busy.discard(live)
        task = asyncio.create_task(self._close(live, last, close_timeout))
        self._unloading[session_id] = task
        task.add_done_callback(lambda _: self._on_unloaded(session_id))
        return task

    async def hand_over(self, session_id: str) -> bool:
        """Unload an idle session, so that another node can have it; False if it has to stay. Its streams end."""
        live = self.live_sessions.get(session_id)
        if live is None or live.is_busy or live.session.has_resources:
            return False
        await asyncio.shield(self._unload(live))
        return True

    def _drop(self, live: LiveSession) -> None:
        """Unload a session that another process has taken over."""
        if self.live_sessions.get(live.session.id) is live:
            _log.warning("another process has taken over the session", extra={"session": live.session.id})
            self._unload(live)

    def _on_unloaded(self, session_id: str) -> None:
        self._unloading.pop(session_id, None)
        self._unloaded.set()
        self._unloaded = asyncio.Event()

    async def wait_for_unload(self) -> None:
        """Wait until the next session has been unloaded."""
        await self._unloaded.wait()

    async def _close(self, live: LiveSession, last: Callable[[], object] | None, close_timeout: float) -> None:
        await live.close(close_timeout)
        self._events.process_all()
        if self.is_draining and self.released is not None and len(live.session.inbox):
            self.released(live.session.id)
        if last is not None:
            await run_in_thread(last)

    async def erase(self, live: LiveSession) -> None:
        """Stop a session and delete it and its children from the store."""
        await asyncio.shield(self._unload(live, lambda: self._erase(live.session.id)))

    def _erase(self, session_id: str) -> None:
        children = [info.id for info in self.store.sessions() if info.id.startswith(f"{session_id}/")]
        for each in (*children, session_id):
            erase_session(self.store, each)

    async def drain(self, drain_timeout: float, close_timeout: float = CLOSE_TIMEOUT) -> int:
        """Start no more turns, give running ones *drain_timeout* seconds, and stop the rest; returns their number.

        Idle sessions are unloaded at once, others when their turn has ended. Queued messages stay in their inboxes for
        the next start, or for another node.
        """
        self.is_draining = True
        self.resumption.cancel()
        transient = asyncio.create_task(self.transient.drain(drain_timeout, close_timeout))
        ends = []
        for live in list(self.live_sessions.values()):
            turn = live.session.turn if live.session.is_running else None
            if turn is None:
                self._unload(live, close_timeout=close_timeout)
            else:
                # At the moment of its end, so that `serve()` does not start the next one.
                turn.ended.on_set(_close_at_end(live.session))
                ends.append(asyncio.create_task(self._unload_after(live, turn, close_timeout)))
        left = 0
        if ends:
            _, open_ends = await asyncio.wait(ends, timeout=drain_timeout)
            left = len(open_ends)
            for each in open_ends:
                each.cancel()
        for live in list(self.live_sessions.values()):
            self._unload(live, close_timeout=close_timeout)
        if self._unloading:
            await asyncio.wait(self._unloading.values(), timeout=close_timeout)
        left += await transient
        self._events.process_all()
        return left

    async def _unload_after(self, live: LiveSession, turn: Turn, close_timeout: float) -> None:
        await turn.ended.wait_async()
        if self.live_sessions.get(live.session.id) is live:
            self._unload(live, close_timeout=close_timeout)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read(self, session_id: str, number: int) -> Event | None:
        """One event of the log."""
        found = await run_in_thread(lambda: self.store.read(session_id, number - 1, limit=1)) if number else []
        return found[0] if found and found[0].seq == number else None

    async def fill(self, session_id: str, events: Sequence[Event], title: str) -> LiveSession:
        """Give a new session the events of another one, and open it again."""
        async with self.lease(session_id) as live:
            await asyncio.shield(self._unload(live, lambda: copy_events(self.store, session_id, events)))
        live = (await self._load(session_id))[0]
        if title:
            await run_in_thread(lambda: live.session.record_change(title))
            live.title = title
        return live


def _close_at_end(session: Session) -> Callable[[], object]:
    return lambda: session.token.cancel("shutdown", detail="the gateway is shutting down")


def _no_session(session_id: str) -> Problem:
    return Problem(404, f"there is no session {session_id!r}", field="session", kind="no-session")
