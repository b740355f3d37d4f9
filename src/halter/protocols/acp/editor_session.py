"""One session that a client has opened: its prompts become turns, and its events become updates.

Prompts run one after the other, in the order in which they came. All updates of a turn are sent before the answer to
its prompt.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halter.cancel.loop_bridge import run_in_thread
from halter.errors import SessionClosed
from halter.events import ContextCompacted, Missed, RequestRetry, TurnFinished
from halter.models.types import ReasoningDelta, TextDelta
from halter.protocols.acp.content import pieces, text_block, to_parts
from halter.protocols.acp.json_rpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from halter.protocols.acp.questions import OpenQuestions
from halter.protocols.acp.replay import chunk, replay
from halter.protocols.acp.tool_calls import ToolCallUpdates, plan_of
from halter.session.inbox import to_message
from halter.views.items import CallItem, CompactionItem, RetryItem
from halter.views.session_view import SessionDisplay
from halter.views.text import compaction_text, retry_text, shorten
from halter.views.turn_text import turn_end_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from halter.agent import Agent
    from halter.events import Event
    from halter.protocols.acp.json_rpc import IncomingRequest, RpcConnection
    from halter.protocols.acp.schema import PromptParams
    from halter.session.session import Session
    from halter.session.turn import Turn

__all__ = ["EditorSession", "PreparedAgent"]

_log = logging.getLogger(__name__)
_CLIENT: Final = "the ACP client"
_STOP_REASONS: Final = {
    "step_limit": "max_turn_requests",
    "output_limit": "max_tokens",
    "token_limit": "max_tokens",
    "context_limit": "max_tokens",
}  # for turns that a limit has ended
_TITLE: Final = 60
_TURNS: Final = 2  # that are kept for display: the running one, and one that may get late events


class PreparedAgent(NamedTuple):
    """An agent for one session, what the user should know about it, and what closes the servers that it uses."""

    agent: Agent
    notices: list[str]
    close: Callable[[], object]


class EditorSession:
    """A session, as one client sees it."""

    def __init__(
        self, session: Session, prepared: PreparedAgent, workspace: Path, connection: RpcConnection, *, has_forms: bool
    ) -> None:
        self._session = session
        self._prepared = prepared
        self._workspace = workspace
        self._connection = connection
        self._display = SessionDisplay(max_turns=_TURNS)
        self._calls = ToolCallUpdates(workspace)
        self._questions = OpenQuestions(session, connection, self._calls, has_forms=has_forms)
        self._prompts: list[IncomingRequest] = []
        self._order = asyncio.Lock()
        self._shown = session.last_event  # the number of the last event that was shown
        self._on_shown = asyncio.Event()
        self._has_title = session.turn is not None
        self._notices = prepared.notices
        session.use_tool_loop()
        self._subscription = session.subscribe()
        self._follower = asyncio.create_task(self._follow())

    @property
    def is_busy(self) -> bool:
        """Whether a prompt is not answered yet."""
        return bool(self._prompts)

    def prompt(self, params: PromptParams, request: IncomingRequest) -> Awaitable[dict[str, Any]]:
        """Take a prompt, which `cancel()` stops from now on; what is returned runs its turn and gives the answer."""
        self._prompts.append(request)
        return self._answer(params, request)

    async def _answer(self, params: PromptParams, request: IncomingRequest) -> dict[str, Any]:
        try:
            async with self._order:
                request.on_stop = self._stop
                try:
                    turn = await self._run(params, request)
                finally:
                    request.on_stop = None  # the next prompt may have a turn from now on
            await self._wait_shown(self._session.last_event)
        except ValueError as error:  # an empty prompt
            raise RpcError(INVALID_PARAMS, str(error)) from error
        except SessionClosed:
            if not request.token.is_cancelled:
                raise
            return {"stopReason": "cancelled"}
        finally:
            self._prompts.remove(request)
        self._send_usage()
        return {"stopReason": self._stop_reason(turn, request)}

    async def _run(self, params: PromptParams, request: IncomingRequest) -> Turn:
        session = self._session
        message = to_message(to_parts(params.prompt))
        for notice in self._notices:
            self._update(chunk("agent_thought_chunk", text_block(f"{notice}\n"), "notices"))
        self._notices = []
        if not session.last_event:  # only now: a session without a message is not stored
            await run_in_thread(lambda: session.record_created(session.agent.name, workspace=str(self._workspace)))
        # If the request was stopped by now, the turn begins and ends at once: the prompt is in the history.
        with request.token.bind():
            return await session.arun(message)

    def cancel(self) -> None:
        """Stop the running turn, and those of the prompts that wait."""
        for request in list(self._prompts):
            request.stop("stop", "session/cancel")

    def _stop(self, reason: str, detail: str) -> None:
        self._session.interrupt(reason=reason, detail=detail, by=_CLIENT)

    def _stop_reason(self, turn: Turn, request: IncomingRequest) -> str:
        if turn.status == "done":
            return "end_turn"
        if request.token.is_cancelled:
            return "cancelled"
        if turn.reason in _STOP_REASONS:
            return _STOP_REASONS[turn.reason]
        shown = next((each for each in self._display.turns if each.id == turn.id), None)
        raise RpcError(INTERNAL_ERROR, turn_end_text(shown) if shown is not None else turn.detail)

    # -- events ------------------------------------------------------------------------------------------------------

    async def replay(self) -> None:
        """Send the whole conversation."""
        events = await run_in_thread(self._session.events)
        for update in replay(events, self._workspace):
            self._update(update)
            await self._connection.stream.drain()

    async def _follow(self) -> None:
        """Show the events of the session until it is closed. A boundary: an error is logged, and prompts go on."""
        try:
            async for event in self._subscription:
                if isinstance(event.data, Missed):
                    for each in await run_in_thread(lambda: self._session.events(self._shown)):
                        self._show(each)
                elif event.seq > self._shown:
                    self._show(event)
        except Exception:  # noqa: BLE001
            _log.exception("showing session %s failed", self._session.id)
        finally:
            self._on_shown.set()

    async def _wait_shown(self, number: int) -> None:
        """Wait until the follower has shown an event, which it has already got, or has ended."""
        while self._shown < number and not self._follower.done():
            self._on_shown.clear()
            await self._on_shown.wait()

    def _show(self, event: Event) -> None:
        shown = self._display.apply(event)
        data = event.data
        if isinstance(data, TextDelta):
            self._say("agent_message_chunk", data.text, event.turn)
        elif isinstance(data, ReasoningDelta):
            self._say("agent_thought_chunk", data.text, event.turn)
        elif isinstance(data, RequestRetry) and isinstance(shown, RetryItem):
            self._say("agent_thought_chunk", f"{retry_text(shown)}\n", event.turn)
        elif isinstance(data, ContextCompacted) and isinstance(shown, CompactionItem):
            self._say("agent_thought_chunk", f"{compaction_text(shown)}\n", event.turn)
        else:
            self._show_calls(shown)
        if isinstance(data, TurnFinished):
            self._send_title()
        self._shown = event.seq
        self._on_shown.set()

    def _show_calls(self, shown: object) -> None:
        turn = self._display.turns[-1] if self._display.turns else None
        if turn is not None:
            for update in self._calls.of(turn):
                self._update(update)
        if isinstance(shown, CallItem) and (plan := plan_of(shown)) is not None:
            self._update(plan)
        self._questions.update(self._display.questions)

    def _say(self, kind: str, text: str, turn_id: str) -> None:
        """Send a piece of text. What comes behind another item is another message."""
        items = len(self._display.turns[-1].items) if self._display.turns else 0
        for piece in pieces(text):
            self._update(chunk(kind, text_block(piece), f"{turn_id}-{items - 1}"))

    def _send_title(self) -> None:
        if not self._has_title and self._display.title:
            self._has_title = True
            title = shorten(self._display.title, _TITLE)
            self._update({"sessionUpdate": "session_info_update", "title": title})

    def _send_usage(self) -> None:
        context, cost = self._session.context, self._session.usage.cost
        if context.window:
            paid = {"cost": {"amount": cost, "currency": "USD"}} if cost is not None else {}
            self._update({"sessionUpdate": "usage_update", "used": context.tokens, "size": context.window, **paid})

    def _update(self, update: dict[str, Any]) -> None:
        self._connection.notify("session/update", {"sessionId": self._session.id, "update": update})

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self, seconds: float) -> None:
        """Stop the turn, seal it and release the session. Bounded."""
        self._questions.close()
        await self._session.aclose(seconds)
        self._subscription.close()
        await asyncio.wait({self._follower}, timeout=1.0)
        await run_in_thread(self._prepared.close)
