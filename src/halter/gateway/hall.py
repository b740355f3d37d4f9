"""The sessions of a gateway: loaded when somebody asks for one, put to sleep when nobody does.

A session that is awake has a room, and in it an actor: `session.serve()`, in the gateway's loop. The hall hears of its
messages and turns. Visitors (requests, streams) keep it awake, and so do a turn and what waits for one. All of this is
in one event loop, so that between two awaits nothing changes.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import secrets
import time
from typing import TYPE_CHECKING, Final, TypeVar

from halter.cancel.blocking import run_blocking_async
from halter.cancel.token import NEVER, call_in_loop
from halter.errors import LeaseLost, SessionOwned
from halter.events import (
    Event,
    MessageAccepted,
    MessageEdited,
    SessionCreated,
    TurnFinished,
    TurnStarted,
    TurnStopping,
)
from halter.gateway.limits import TooMany
from halter.gateway.problems import Problem
from halter.gateway.room import CLOSING, Room, title_of
from halter.voice.hearing import TRANSCRIBING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from types import TracebackType

    from halter.agent import Agent
    from halter.events import EventData
    from halter.gateway.limits import Limits
    from halter.session import Session
    from halter.stores.store import SessionInfo, Store
    from halter.voice.hearing import Hearing

__all__ = ["Hall"]

T = TypeVar("T")

_log = logging.getLogger(__name__)
_KEEPS: Final = 60  # times as long is a session awake in which tools keep something


class Visit:
    """Somebody's, to a room, in an `async with` block. A class, for with every request comes one."""

    __slots__ = ("_hall", "_room", "_session")

    def __init__(self, hall: Hall, session_id: str) -> None:
        self._hall = hall
        self._session = session_id

    async def __aenter__(self) -> Room:
        self._room = await self._hall.enter(self._session)
        return self._room

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hall.depart(self._room, error)


class Hall:
    """All sessions."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        store: Store,
        limits: Limits,
        *,
        watch: Callable[[Room, Event], None],
        hearing: Hearing,
        kinds: Collection[type[EventData]] = (),
        idle_after: float,
    ) -> None:
        """*watch* hears of messages and turns, and of more *kinds* of events."""
        self.agents = agents
        self.store = store
        self.limits = limits
        self.hearing = hearing
        self.rooms: dict[str, Room] = {}
        self.busy: set[Room] = set()
        self.is_draining = False
        self._watch = watch
        self._kinds = (MessageAccepted, MessageEdited, TurnStarted, TurnStopping, TurnFinished, *kinds)
        self._idle_after = idle_after
        self._loading: dict[str, asyncio.Task[tuple[Room, bool]]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._waking: asyncio.Task[None] | None = None
        self._news: collections.deque[tuple[Room, list[Event]]] = collections.deque()  # that nobody has looked at
        self._will_look = False
        self._freed = asyncio.Event()  # set by each turn that ends
        self._slept = asyncio.Event()  # set, and replaced, by each session that has gone to sleep

    # -- coming in ---------------------------------------------------------------------------------------------------

    def visit(self, session_id: str) -> Visit:
        """The room of a session, which is kept awake in this `async with` block. Raises `Problem` if there is none."""
        return Visit(self, session_id)

    async def enter(self, session_id: str) -> Room:
        """Keep a session awake, for one more."""
        room = self.rooms.get(session_id)
        if room is None:
            room, _ = await self._load(session_id)
        room.visitors += 1
        return room

    def depart(self, room: Room, error: BaseException | None) -> None:
        """Keep it awake for one less, whose visit has ended so."""
        if isinstance(error, LeaseLost):
            self._drop(room)
        room.visitors -= 1
        self._rest(room)

    async def create(self, session_id: str | None, agent: str | None) -> tuple[Room, bool]:
        """Make a session, or find the one that was made under this name; True if it is new."""
        if agent is not None and agent not in self.agents:
            msg = f"there is no agent {agent!r}; there are: {', '.join(self.agents)}"
            raise Problem(422, msg, field="agent", kind="field")
        self._check_open()
        name = session_id or secrets.token_hex(8)
        room, is_new = self.rooms.get(name), False
        while room is None:
            earlier = self._loading.get(name)
            if earlier is None:
                room, is_new = await self._load(name, agent or next(iter(self.agents)))
            else:
                await asyncio.wait({earlier})  # it may be one who looks for it and will not find it
                room = self.rooms.get(name)
        if agent is not None and room.agent != agent:
            raise Problem(409, f"session {name!r} was made with another agent", field="agent", kind="conflict")
        self._rest(room)
        return room, is_new

    async def _load(self, session_id: str, make: str = "") -> tuple[Room, bool]:
        """Open a session, once for all who ask; or *make* it, with this agent, if there is none."""
        task = self._loading.get(session_id)
        if task is None:
            self._check_open()
            task = asyncio.create_task(self._open(session_id, make))
            self._loading[session_id] = task
            task.add_done_callback(lambda done: self._has_loaded(session_id, done))
        return await asyncio.shield(task)  # who asked may go; others may wait for the same

    def _has_loaded(self, session_id: str, task: asyncio.Task[tuple[Room, bool]]) -> None:
        self._loading.pop(session_id, None)
        if not task.cancelled():
            task.exception()  # now it has been looked at, even if nobody waits any more

    async def _open(self, session_id: str, make: str) -> tuple[Room, bool]:
        leaving = self._leaving.get(session_id)
        if leaving is not None:
            await asyncio.wait({leaving})
        session, agent, first, is_new = await _in_thread(lambda: self._read(session_id, make))
        if self.is_draining:
            await session.aclose()
            self._check_open()
        room = Room(session, agent, first, self.limits)
        self.rooms[session_id] = room
        self.hearing.resume(session)
        if room.is_busy:
            self.busy.add(room)
        loop = asyncio.get_running_loop()
        room.begin(self._kinds, lambda news: self._hear(room, news, loop), self._drop)
        self._rest(room)
        return room, is_new

    def _read(self, session_id: str, make: str) -> tuple[Session, str, list[Event], bool]:
        """Open a session, in a thread: its log may be long."""
        first = self.store.read(session_id, limit=2)
        is_new = bool(make and not first)
        if is_new:
            lease = self.store.acquire(session_id)
            try:
                self.store.append(lease, [Event(0, time.time(), session_id, "", SessionCreated(make))])
            finally:
                self.store.release(lease)
            first = self.store.read(session_id, limit=2)
        if not first or "/" in session_id:  # what an agent has others do is part of its own session
            raise Problem(404, f"there is no session {session_id!r}", field="session", kind="no-session")
        agent = _agent_of(first)
        agent = agent if agent in self.agents else next(iter(self.agents))
        return self.agents[agent].session(session_id, self.store, prepares=[TRANSCRIBING]), agent, first, is_new

    def _check_open(self) -> None:
        if self.is_draining:
            raise Problem(503, "the gateway is shutting down", kind="draining", retry_after=5.0)

    # -- turns -------------------------------------------------------------------------------------------------------

    def _hear(self, room: Room, news: list[Event], loop: asyncio.AbstractEventLoop) -> None:
        """Hear of events, in any thread; soon they are looked at, those of all sessions together.

        Not in the loop's next turn, in which clients are sent them, but in the one after: to count and to log can wait.
        """
        self._news.append((room, news))
        if not self._will_look:  # asked after it was added: the look that is to come finds it
            self._will_look = True
            call_in_loop(loop, lambda: loop.call_soon(self._look))

    def _look(self) -> None:
        """Look at all news. A boundary: what fails with one event must not keep the others from being seen."""
        self._will_look = False
        while self._news:
            room, news = self._news.popleft()
            for event in news:
                try:
                    self._see(room, event)
                except Exception:  # noqa: BLE001
                    _log.exception("an event could not be looked at", extra={"session": room.session.id})

    def _see(self, room: Room, event: Event) -> None:
        room.see(event)
        if isinstance(event.data, TurnStarted):
            self.busy.add(room)
        elif isinstance(event.data, (TurnFinished, MessageEdited)):  # the latter may be one that begins no turn
            if not room.is_busy:
                self.busy.discard(room)
            self._freed.set()
            self._rest(room)
        self._watch(room, event)

    def check_turns(self, room: Room, key: str) -> None:
        """Refuse a message that would set off one turn too many. One for a turn that runs is taken."""
        if room in self.busy:
            return
        if len(self.busy) >= min(self.limits.turns, self.limits.key_turns):
            self.busy = {each for each in self.busy if each.is_busy}  # a message may have been taken out again
        if len(self.busy) >= self.limits.turns:
            msg = "as many turns run as this gateway runs at once"
            raise TooMany(msg, "turns")
        if len(self.busy) >= self.limits.key_turns:
            own = sum(each.key == key for each in self.busy)
            if own >= self.limits.key_turns:
                msg = "as many turns of this key run as it may have at once"
                raise TooMany(msg, "turns")

    def wake_waiting(self) -> None:
        """Go on with what a gateway before this one has accepted: open each session in which messages wait."""
        self._waking = asyncio.create_task(self._wake())

    def wake_no_more(self) -> None:
        """Leave those asleep that are to go on and have not been opened yet, until somebody asks for one."""
        if self._waking is not None:
            self._waking.cancel()

    async def loaded(self) -> bool:
        """Wait for those that are just being opened; False if there is none. Bounded."""
        loading = set(self._loading.values())
        if loading:
            await asyncio.wait(loading, timeout=CLOSING)
        return bool(loading)

    async def _wake(self) -> None:
        """Wake them, some at a time. A boundary: one that can not be opened is told, and does not hold up others."""
        try:
            waiting = [info.id for info in await _in_thread(self.store.sessions) if info.waiting and "/" not in info.id]
        except Exception:  # noqa: BLE001
            _log.exception("the sessions with waiting messages could not be found")
            return
        for session_id in waiting:
            while len(self.busy) >= self.limits.turns:
                self._freed.clear()
                await self._freed.wait()
            try:
                async with self.visit(session_id):
                    pass
            except (Problem, SessionOwned) as error:
                _log.warning("%s", error, extra={"session": session_id})
            except Exception:  # noqa: BLE001
                _log.exception("the session could not be woken", extra={"session": session_id})

    # -- going to sleep ----------------------------------------------------------------------------------------------

    def _rest(self, room: Room) -> None:
        """Let the room go to sleep some time after the last who needed it."""
        if room.visitors or room.is_busy or self.rooms.get(room.session.id) is not room:
            return
        loop = asyncio.get_running_loop()
        room.rested_at = loop.time()
        if room.timer is None:
            room.timer = loop.call_later(self._idle_after, self._on_timer, room)

    def _on_timer(self, room: Room) -> None:
        room.timer = None
        if room.visitors or room.is_busy or self.is_draining:
            return  # whoever ends that comes to _rest()
        loop = asyncio.get_running_loop()
        due = room.rested_at + self._idle_after * (_KEEPS if room.session.keeps else 1)
        if loop.time() < due:
            room.timer = loop.call_at(due, self._on_timer, room)
        else:
            self._leave(room)

    def _leave(self, room: Room, last: Callable[[], object] | None = None) -> asyncio.Task[None]:
        """Put it to sleep, and then do the *last* thing, in a thread; who asks for it meanwhile waits for that."""
        session_id = room.session.id
        self.rooms.pop(session_id, None)
        self.busy.discard(room)
        task = asyncio.create_task(self._close(room, last))
        self._leaving[session_id] = task
        task.add_done_callback(lambda _: self._has_left(session_id))
        return task

    def _drop(self, room: Room) -> None:
        """Let go of a session that another process has taken; who asks for it again is told whose it is."""
        if self.rooms.get(room.session.id) is room:
            _log.warning("another has taken the session", extra={"session": room.session.id})
            self._leave(room)

    def _has_left(self, session_id: str) -> None:
        self._leaving.pop(session_id, None)
        self._slept.set()
        self._slept = asyncio.Event()

    async def asleep(self) -> None:
        """Wait until the next session has been put to sleep."""
        await self._slept.wait()

    async def _close(self, room: Room, last: Callable[[], object] | None) -> None:
        await room.close()
        self._look()
        if last is not None:
            await _in_thread(last)

    async def erase(self, session_id: str) -> None:
        """Stop a session and take it out of the store, with those that it had for its parts."""
        async with self.visit(session_id) as room:
            await asyncio.shield(self._leave(room, lambda: self._erase(session_id)))

    def _erase(self, session_id: str) -> None:
        below = [info.id for info in self.store.sessions() if info.id.startswith(f"{session_id}/")]
        for each in (*below, session_id):
            lease = self.store.acquire(each)
            try:
                self.store.erase(lease)
            finally:
                self.store.release(lease)

    async def drain(self, patience: float, closing: float = CLOSING) -> int:
        """Begin no turn any more, let those that run have *patience* seconds, and stop the rest; gives their number.

        What waits in an inbox stays there, for the next start.
        """
        self.is_draining = True
        self.wake_no_more()
        rooms = list(self.rooms.values())
        ends = []
        for room in rooms:
            turn = room.session.turn if room.session.is_running else None
            if turn is None:
                room.session.token.cancel("shutdown", detail="the gateway is shutting down")
            else:
                # In the very moment of its end, so that its actor does not begin the next one.
                turn.ended.on_cancel(_ender(room.session))
                ends.append(asyncio.ensure_future(turn.ended.wait_async()))
        left = 0
        if ends:
            _, open_ends = await asyncio.wait(ends, timeout=patience)
            left = len(open_ends)
            for each in open_ends:
                each.cancel()
        await asyncio.gather(*(room.close(closing) for room in rooms), return_exceptions=True)
        self._look()
        if self._leaving:
            await asyncio.wait(self._leaving.values(), timeout=closing)
        return left

    # -- looking -----------------------------------------------------------------------------------------------------

    async def read(self, session_id: str, number: int) -> Event | None:
        """One event of the log."""
        found = await _in_thread(lambda: self.store.read(session_id, number - 1, limit=1)) if number else []
        return found[0] if found and found[0].seq == number else None

    async def list(self, most: int) -> list[tuple[SessionInfo, str, str]]:
        """The latest used sessions, each with its agent and its first words."""
        return await _in_thread(lambda: list(self._list(most)))

    def _list(self, most: int) -> Iterator[tuple[SessionInfo, str, str]]:
        found = [info for info in self.store.sessions() if "/" not in info.id]
        for info in found[:most]:
            first = self.store.read(info.id, limit=2)
            yield info, _agent_of(first) or next(iter(self.agents)), title_of(first)


def _ender(session: Session) -> Callable[[], object]:
    return lambda: session.token.cancel("shutdown", detail="the gateway is shutting down")


async def _in_thread(fn: Callable[[], T]) -> T:
    return await run_blocking_async(fn, token=NEVER)


def _agent_of(first: list[Event]) -> str:
    data = first[0].data if first else None
    return data.agent if isinstance(data, SessionCreated) else ""
