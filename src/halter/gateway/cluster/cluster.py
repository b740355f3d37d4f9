"""One gateway of several that share their sessions: it asks the others, and does what they ask for.

Requests for a session go to the process that has its lease. A stop goes there too, directly; if there is no reply soon,
it is also kept as a record, which is found by whoever has the session then. Both have the same id, so it is done once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import nats.errors

from halter.cancel.loop_bridge import run_in_thread
from halter.errors import LeaseLost, SessionClosed, SessionOwned, StoreError
from halter.gateway.cluster.channel import Channel, NoReply
from halter.gateway.cluster.members import Members
from halter.gateway.cluster.messages import (
    ForSession,
    LoadedSession,
    NodeReply,
    ReadStates,
    StopNode,
    decode_request,
    encode,
)
from halter.gateway.cluster.remote_log import RemoteLogs
from halter.gateway.cluster.stop_records import StopRecord, StopRecords
from halter.gateway.http.errors import Problem, problem_of_error
from halter.gateway.http.keys import Key
from halter.gateway.http.schemas import ReceiptView, StoppedView
from halter.gateway.sessions.limits import Overloaded
from halter.gateway.sessions.live_session import owner_of
from halter.gateway.sessions.placement import Moved
from halter.gateway.sessions.requests import StopTurn
from halter.gateway.sessions.views import view_turn
from halter.models.backoff import UNTIL_IT_WORKS
from halter.stores.nats.names import process_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from halter.gateway.cluster.remote_log import RemoteLog
    from halter.gateway.http.schemas import StopAllBody
    from halter.gateway.sessions.commands import Commands
    from halter.gateway.sessions.live_session import LiveSession
    from halter.gateway.sessions.placement import Sessions
    from halter.gateway.sessions.registry import SessionRegistry
    from halter.gateway.sessions.requests import SessionRequest
    from halter.stores.nats.store import NATSStore

__all__ = ["Cluster"]

_log = logging.getLogger(__name__)
_MAX_OWNERS: Final = 100_000
_LISTINGS: Final = 4  # attempts to list the sessions of a node that has gone; with many sessions each is expensive
_STATES: Final = 1.0  # seconds for the states of another node's sessions
_STOP: Final = 1.0  # seconds after which a stop without a reply is recorded
_RECORDED: Final = (
    "the gateway that has this session does not answer: the stop was recorded, and is carried out before any gateway "
    "goes on with the session"
)


class Cluster:
    """A gateway among others. Everything here runs on the gateway's loop."""

    def __init__(self, store: NATSStore, registry: SessionRegistry, commands: Commands) -> None:
        self._store = store
        self._registry = registry
        self._commands = commands
        self._owners: dict[str, str] = {}  # processes that had a session when it was last asked for
        self._sessions: Sessions
        self._client: Client
        self._channel: Channel
        self._logs: RemoteLogs
        self._records: StopRecords
        self._members: Members
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_open = False

    @property
    def is_connected(self) -> bool:
        """Whether the servers can be reached."""
        return self._is_open and self._client.is_connected

    async def start(self, sessions: Sessions) -> None:
        """Connect, and be a node. Raises `StoreError` if that fails; `close()` it then, too."""
        self._sessions = sessions
        self._registry.before_serving = self._apply_record
        self._registry.released = self._announce_released
        try:
            self._client = await self._store.connect("halter-gateway", reconnected_cb=self._on_reconnect)
            self._is_open = True
            names = self._store.names
            self._channel = Channel(self._client, names.process(self._store.process), self._serve)
            self._logs = RemoteLogs(self._client, self._store)
            self._records = StopRecords(self._client, self._store)
            self._members = Members(self._client, self._store, self._on_gone)
            await self._channel.start()
            await self._logs.start()
            await self._records.start(self._carry_out)
            await self._client.subscribe(f"{names.prefix}.released", cb=self._on_released)
            await self._members.start()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise StoreError(f"NATS does not answer: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Answer nothing more, and disconnect. Bounded."""
        if not self._is_open:
            return
        self._is_open = False
        for task in list(self._tasks):
            task.cancel()
        parts = [getattr(self, name, None) for name in ("_members", "_records", "_logs", "_channel")]
        for part in parts:
            if part is not None:
                await part.close()
        try:
            async with asyncio.timeout(2.0):
                await self._client.close()
        except (nats.errors.Error, OSError, TimeoutError):
            _log.debug("the connection could not be closed in time")

    # -- asking others ---------------------------------------------------------------------------------------------

    def owner_of(self, session_id: str) -> str:
        """The process that had a session when it was last asked for; empty if that is not known, or this one."""
        return self._owners.get(session_id, "")

    def learn_owner(self, session_id: str, owner: str) -> None:
        """Remember who has a session; nobody, if *owner* is empty."""
        self._owners.pop(session_id, None)
        if owner and owner != self._store.process:
            self._owners[session_id] = owner
            if len(self._owners) > _MAX_OWNERS:
                del self._owners[next(iter(self._owners))]

    def another(self) -> str:
        """Some other process that is alive; empty if there is none."""
        others = self._members.others()
        return random.choice(others) if others else ""  # noqa: S311  (no secret depends on it)

    async def ask(self, owner: str, session_id: str, key: Key, request: SessionRequest, *, is_certain: bool) -> Any:  # noqa: ANN401  (`request.result`)
        """Have another process do a request.

        Raises `Moved` if it does not have the session, and `Problem`. *is_certain*: the bucket of leases names that
        process as the owner.
        """
        body = encode(ForSession(session_id, _bare(key), request))
        try:
            if isinstance(request, StopTurn) and is_certain:
                reply = await self._ask_to_stop(owner, session_id, key, request, body)
            else:
                reply = await self._ask(owner, body, request.patience)
        except NoReply as error:
            if error.is_gone and not is_certain:
                raise Moved("") from error
            self.learn_owner(session_id, "")
            if isinstance(request, StopTurn):
                return await self._record_stop(session_id, key, request)
            what = "nothing was accepted" if error.is_gone else "send it again, with the same id, to be sure"
            msg = f"the node that has this session does not answer: {what}"
            raise Problem(503, msg, kind="node", retry_after=1.0) from error
        if reply.moved is not None:
            raise Moved(reply.moved)
        return reply.value(request.result)

    async def _ask(self, process: str, body: bytes, patience: float) -> NodeReply:
        data = await self._channel.ask(self._store.names.process(process), body, patience)
        return msgspec.msgpack.decode(data, type=NodeReply)

    async def _ask_to_stop(self, owner: str, session_id: str, key: Key, request: StopTurn, body: bytes) -> NodeReply:
        """Ask for a stop. One that waits for the end of the turn is recorded as soon as its reply is late."""
        asking = asyncio.create_task(self._ask(owner, body, request.patience))
        try:
            await asyncio.wait({asking}, timeout=_STOP)
            if not asking.done() and request.body.patience:
                await self._record_stop(session_id, key, request)
            return await asking
        finally:
            asking.cancel()

    async def _record_stop(self, session_id: str, key: Key, request: StopTurn) -> ReceiptView:
        """Keep a stop for whoever has the session next. Raises `Problem` if that cannot be made durable."""
        body = request.body
        if body.scope == "call":
            msg = "the gateway that runs this call does not answer, and a stop of a single call is not recorded: "
            raise Problem(503, f"{msg}send it again", kind="node", retry_after=1.0)
        first = await run_in_thread(lambda: self._store.read(session_id, limit=1))
        if not first or not key.may_use(owner_of(first)):
            raise Problem(404, f"there is no session {session_id!r}", field="session", kind="no-session")
        scope: Literal["all", "turn"] = "all" if body.scope == "all" else "turn"
        detail = key.title
        try:
            last = await run_in_thread(lambda: self._store.last_number(session_id))
            record = StopRecord(request.id, last, scope, body.reason, detail, body.expect_turn or "")
            await self._records.write(session_id, record)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            msg = "the cluster cannot be reached: the stop was neither delivered nor recorded"
            raise Problem(503, msg, kind="cluster", retry_after=1.0) from error
        return ReceiptView(session=session_id, id="", state="accepted", mode="stop", note=_RECORDED)

    async def stop_all(self, key: Key, body: StopAllBody) -> StoppedView:
        """Stop every session of every node. For nodes that do not answer, a stop of each session is recorded.

        Raises `Problem` if a node could not hold messages; the others have stopped theirs nevertheless.
        """
        others = self._members.others()
        request = encode(StopNode(_bare(key), body))
        asking = [self._try_ask(each, request, _STOP + body.patience) for each in others]
        stopping = self._commands.stops.stop_all(key, body)
        *replies, total = await asyncio.gather(*asking, stopping, return_exceptions=True)  # others are asked first
        silent = [process for process, reply in zip(others, replies, strict=True) if reply is None]
        recorded = await self._record_stops(silent, key, body) if silent else 0
        if isinstance(total, BaseException):
            raise total
        assert isinstance(total, StoppedView)
        total.recorded = recorded
        for reply in replies:
            if isinstance(reply, NodeReply):
                view = reply.value(StoppedView)
                total.stopped += view.stopped
                total.finished += view.finished
            elif isinstance(reply, BaseException):
                raise reply
        return total

    async def _try_ask(self, process: str, body: bytes, patience: float) -> NodeReply | None:
        try:
            return await self._ask(process, body, patience)
        except NoReply:
            return None

    async def _record_stops(self, processes: list[str], key: Key, body: StopAllBody) -> int:
        from halter.gateway.http.schemas import StopBody

        owners = await run_in_thread(self._store.owners)
        theirs = [each for each, owner in owners.items() if process_of(owner.node) in processes and "/" not in each]
        stop = StopTurn(body=StopBody(reason=body.reason, scope=body.scope))
        recorded = 0
        for session_id in theirs:
            try:
                await self._record_stop(session_id, key, await stop.to_send())
                recorded += 1
            except Problem as problem:
                if problem.kind != "no-session":  # a lease without a log: its session is about to be created
                    raise
        return recorded

    async def states(self) -> dict[str, LoadedSession]:
        """The sessions that are loaded on other nodes. A node that does not answer soon is left out."""
        request = encode(ReadStates())
        asked = [self._try_ask(each, request, _STATES) for each in self._members.others()]
        states: dict[str, LoadedSession] = {}
        for reply in await asyncio.gather(*asked):
            if reply is not None:
                states |= reply.value(dict[str, LoadedSession])
        return states

    async def follow(self, session_id: str, key: Key) -> RemoteLog:
        """The events of a session that another node has."""
        return await self._logs.open(session_id, key)

    # -- being asked -----------------------------------------------------------------------------------------------

    async def _serve(self, body: bytes) -> bytes:
        """Do what another node asks for. A boundary: every error is a reply."""
        try:
            return encode(NodeReply(result=msgspec.Raw(encode(await self._do(body)))))
        except (Moved, SessionOwned) as error:
            return encode(NodeReply(moved=error.owner))
        except LeaseLost:  # nothing was written
            return encode(NodeReply(moved=""))
        except Problem as problem:
            if problem.kind == "draining":
                return encode(NodeReply(moved=""))
            return encode(NodeReply(problem=problem.body()))
        except Exception as error:  # noqa: BLE001
            problem_of = problem_of_error(error)
            if problem_of is None:
                _log.exception("a request of another node failed")
                problem_of = Problem(500, "internal error; see the log of the session's gateway")
            return encode(NodeReply(problem=problem_of.body()))

    async def _do(self, body: bytes) -> Any:  # noqa: ANN401  (of the kind that the request has)
        asked = decode_request(body)
        if isinstance(asked, ForSession):
            try:
                return await self._sessions.do_here(asked.session, asked.key, asked.request)
            except Overloaded as error:
                if not await self._registry.hand_over(asked.session):
                    raise
                raise Moved("") from error  # whoever asks may have it
        if isinstance(asked, StopNode):
            return await self._commands.stops.stop_all(asked.key, asked.body)
        return {
            session_id: LoadedSession(live.session.is_running, view_turn(live))
            for session_id, live in self._registry.live_sessions.items()
        }

    # -- stops that were recorded ----------------------------------------------------------------------------------

    async def _carry_out(self, session_id: str, record: StopRecord) -> bool:
        """Carry out a record, if the session is here. Raises `StoreError` if that has to be tried again."""
        live = self._registry.live_sessions.get(session_id)
        if live is None:
            return False
        try:
            await self._commands.stops.stop_recorded(live, record)
        except (LeaseLost, SessionClosed):  # the next owner does it, before it serves the session
            return False
        return True

    async def _apply_record(self, live: LiveSession) -> None:
        """Carry out the record of a session that is about to be served. Raises `StoreError` if that is not known."""
        try:
            record = await self._records.find(live.session.id)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise StoreError(f"NATS does not answer: {str(error) or type(error).__name__}") from error
        self.learn_owner(live.session.id, "")
        if record is not None:
            await self._commands.stops.stop_recorded(live, record)
            await self._records.remove(live.session.id, record)

    # -- nodes that come and go ------------------------------------------------------------------------------------

    def _on_gone(self, node: str) -> None:
        """Take over the sessions of a node that has ended, or died."""
        process = process_of(node)
        self._owners = {session_id: owner for session_id, owner in self._owners.items() if owner != process}
        self._registry.resumption.resume(lambda: self._left_by(node))

    async def _left_by(self, node: str) -> list[str]:
        """The sessions that a node has left. If they cannot be listed, each is opened by its next request."""
        for retry in range(_LISTINGS):
            try:
                owners = await run_in_thread(self._store.owners)
                return [session_id for session_id, owner in owners.items() if owner.node == node]
            except StoreError as error:
                _log.warning("the sessions of node %s could not be listed: %s", node, error)
                await asyncio.sleep(UNTIL_IT_WORKS.delay(retry))
        return []

    def _announce_released(self, session_id: str) -> None:
        """Announce a session with queued messages that this node has released."""
        if self.is_connected:
            self._spawn(self._client.publish(f"{self._store.names.prefix}.released", session_id.encode()))

    async def _on_released(self, message: Msg) -> None:
        self._registry.resumption.open_soon([message.data.decode()])

    async def _on_reconnect(self) -> None:
        self._logs.request_reread()
        self._members.join_again()

    def _spawn(self, work: Any) -> None:  # noqa: ANN401  (a coroutine)
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("a message to the cluster could not be sent: %s", task.exception())


def _bare(key: Key) -> Key:
    """A key as other nodes need it: without what it is known by."""
    return Key(key.id, key.name, key.scope, "")
