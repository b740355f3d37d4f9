"""Delivers what people send in the chats of one platform to their sessions.

The messages of one chat are accepted one after the other, in order. A stop does not wait for them: it is done at once,
and a message that it overtook, such as a picture that was still being downloaded, is held when it arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.loop_bridge import run_in_thread
from halter.errors import HalterError
from halter.events import ApprovalAsked, MessageAccepted, QuestionAsked, TurnFinished, TurnRolledBack
from halter.gateway.chat.adapter import AttachmentUnavailable, Button, ButtonReply
from halter.gateway.chat.conversations import Conversations
from halter.gateway.chat.renderer import NEXT_PAGE
from halter.gateway.chat.replies import HELP, NOTHING_RAN, not_allowed, queued, refusal, stopped, why
from halter.gateway.chat.session_follower import SessionFollower
from halter.gateway.http.errors import Problem, problem_of_error
from halter.gateway.http.keys import Key
from halter.gateway.http.schemas import MessageBody, MessageForm, StopBody
from halter.gateway.sessions.commands import Commands
from halter.models.backoff import UNTIL_IT_WORKS
from halter.models.types import Image, Part
from halter.views.stop_phrases import StopPhrases
from halter.views.timeline import timeline_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from halter.events import Event, Mode
    from halter.gateway.chat.adapter import ButtonPress, ChatAdapter, Incoming
    from halter.gateway.chat.conversations import Conversation
    from halter.gateway.http.schemas import ReceiptView
    from halter.gateway.sessions.live_session import LiveSession
    from halter.gateway.sessions.registry import SessionRegistry
    from halter.gateway.sessions.spoken_replies import SpokenReplies
    from halter.session.inbox import InboxMessage
    from halter.session.session import Session
    from halter.session.turn import Turn

__all__ = ["ChatBridge"]

_log = logging.getLogger(__name__)
_STOP_WAIT: Final = 30.0  # seconds for which the reply to a stop waits for the end of the turn
_CLOSE_TIMEOUT: Final = 2.0  # seconds for a platform to close
_TAIL: Final = 50  # events at the end of a log; an open turn has at least one of them
_DAY: Final = 86_400.0  # seconds
_DELTAS: Final = ("text.delta", "reasoning.delta")
_RELEASE: Final = "release"
_EXPIRED: Final = ButtonReply("This question is no longer open.", is_expired=True)
_UNAVAILABLE: Final = 503


class ChatBridge:
    """The `Inbound` of one platform, in the gateway's event loop."""

    def __init__(
        self, platform: ChatAdapter, registry: SessionRegistry, speech: SpokenReplies, notices: Sequence[str] = ()
    ) -> None:
        self.name = platform.name
        self._platform = platform
        self._registry = registry
        self._notices = notices
        self._commands = Commands(registry, speech)
        self._key = Key(platform.name, platform.name, "write", "")
        self._phrases = StopPhrases(platform.stop_phrases)
        self._conversations = Conversations(platform)
        self._follower = SessionFollower(platform, self._conversations, speech)
        self._running: asyncio.Task[None] | None = None
        self.observe = self._follower.observe

    # -- start and end -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start receiving."""
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Report turns that were cut off, then receive until the end.

        A boundary: if the platform fails, that is logged, and the gateway continues without it.
        """
        try:
            known, cut_off = await run_in_thread(self._find_sessions)
            for session_id in known:
                self._conversations.register(session_id)
            for session_id in cut_off:
                self._follower.start_task(self._open_cut_off(session_id))
            await self._platform.run(self)
        except Exception:  # noqa: BLE001
            _log.exception("the chat platform %s failed", self._platform.name)

    def _find_sessions(self) -> tuple[list[str], list[str]]:
        """All sessions of this platform, and those with a turn that an earlier gateway process left open.

        Such a turn wrote its last event shortly before that process ended, so only recent sessions are read.
        """
        store = self._registry.store
        found = [each for each in store.sessions() if self._conversations.has(each.id)]
        since = max((each.updated_at for each in found), default=0.0) - _DAY
        recent = [each for each in found if each.updated_at >= since]
        cut_off = [each for each in recent if _has_open_turn(store.read(each.id, each.events - _TAIL))]
        return [each.id for each in found], [each.id for each in cut_off]

    async def _open_cut_off(self, session_id: str) -> None:
        """Open a session whose turn was cut off, and report that. A boundary: the next message tries again."""
        try:
            async with self._registry.lease(session_id) as live:
                self._follower.report_if_cut_off(self._conversations.of(session_id), live.session.turn)
        except Exception:  # noqa: BLE001
            _log.warning("the session could not be opened", extra={"session": session_id})

    async def stop_receiving(self) -> None:
        """Receive nothing more. Bounded."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=_CLOSE_TIMEOUT)

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109  (a bound, not a cancellation)
        """Send what is left, for *timeout* seconds at most, and close the platform."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._follower.flush()
        self._follower.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._platform.close()

    # -- messages and commands ---------------------------------------------------------------------------------------

    async def take(self, incoming: Incoming) -> None:
        """Accept a message or command. It is stored when this returns."""
        chat = self._conversations[incoming.chat_id]
        is_stop = not incoming.command and incoming.fetch is None and self._phrases.are_all(incoming.text)
        if incoming.sender not in self._platform.users:
            text = not_allowed(self._platform.name, incoming.sender)
            self._conversations.send_once(chat, f"user {incoming.sender}", text)
        elif incoming.command == "stop" or is_stop:
            chat.last_stop = max(chat.last_stop, incoming.order)
            await self._retrying(chat, lambda: self._stop(chat, incoming))
        elif incoming.command == "deny":
            await self._retrying(chat, lambda: self._deny(chat, incoming))
        elif incoming.command == "why":
            await self._retrying(chat, lambda: self._why(chat, incoming))
        elif incoming.unsupported:
            chat.outgoing.say(f"I cannot use {incoming.unsupported}, so it was not sent to the agent.")
        elif incoming.command not in ("", "steer", "queue", "new"):
            chat.outgoing.say("\n\n".join([HELP, *self._notices]))
        elif incoming.command in ("steer", "queue") and not incoming.text and incoming.fetch is None:
            chat.outgoing.say(f"Write the text after the command: /{incoming.command} TEXT")
        else:
            do = self._new if incoming.command == "new" else self._message
            async with chat.accepting:
                await self._retrying(chat, lambda: do(chat, incoming))

    async def _retrying(self, chat: Conversation, do: Callable[[], Awaitable[None]]) -> None:
        """Do it, and retry while the store fails or another process owns the session.

        A boundary: an unexpected error is logged and reported in the chat, as retrying would not help.
        """
        for retry in itertools.count():
            try:
                await do()
            except Exception as error:  # noqa: BLE001
                if not isinstance(error, Problem) and problem_of_error(error) is None:
                    _log.exception("a chat message could not be handled", extra={"chat": chat.chat_id})
                    chat.outgoing.say("⚠️ This message could not be handled: internal error, see the gateway log.")
                    return
                _log.warning("retrying a chat message: %s", error, extra={"chat": chat.chat_id})
            else:
                return
            await asyncio.sleep(UNTIL_IT_WORKS.delay(retry))

    async def _message(self, chat: Conversation, incoming: Incoming) -> None:
        modes: dict[str, Mode] = {"steer": "steer", "queue": "queue"}
        mode = modes.get(incoming.command, self._platform.busy)
        session_id = chat.session(incoming.order)
        message_id = f"{self._platform.name}-{incoming.id}-{incoming.order}"
        try:
            await self._registry.create(session_id, None, self._key.id)
            async with self._registry.lease(session_id) as live:
                known = live.session.inbox.find(message_id)
                if known is not None:
                    self._report_again(chat, live.session, known)
                    return
                parts = await incoming.fetch() if incoming.fetch is not None else []
                if incoming.command not in modes and any(isinstance(q, QuestionAsked) for q in live.session.questions):
                    mode = "steer"  # the next message answers an open question
                form = MessageForm(text=incoming.text, id=message_id, mode=mode)
                if incoming.order < chat.last_stop:
                    await self._accept_held(chat, live, form, parts)
                    return
                is_busy = live.is_busy
                receipt = await self._accept(live, form, parts)
        except AttachmentUnavailable as error:
            chat.outgoing.say(f"⚠️ The attachment could not be downloaded, so it was not sent to the agent: {error}.")
        except Problem as problem:
            if problem.status == _UNAVAILABLE:
                raise
            chat.outgoing.say(refusal(problem))
        else:
            reply = queued(receipt, incoming.command, is_busy=is_busy)
            if reply:
                chat.outgoing.say(reply)

    def _report_again(self, chat: Conversation, session: Session, known: InboxMessage) -> None:
        """For a message that was accepted before: report if its turn was cut off, as nothing else does."""
        turn = session.turn
        if turn is not None and turn.id == known.turn_id:
            self._follower.report_if_cut_off(chat, turn)

    async def _accept(self, live: LiveSession, form: MessageForm, parts: list[Part]) -> ReceiptView:
        if parts:
            return await self._commands.message_with_media(live, self._key, form, parts)
        return await self._commands.message(live, self._key, MessageBody(text=form.text, id=form.id, mode=form.mode))

    async def _accept_held(self, chat: Conversation, live: LiveSession, form: MessageForm, parts: list[Part]) -> None:
        """Accept a message that a stop has overtaken, and hold it.

        Nothing is awaited between the two, so no turn starts; except for a recording, which cannot start one yet.
        """
        if any(isinstance(part, Image) for part in parts):
            await live.session.apost([form.text, *parts], form.mode, form.id)
        else:
            await self._accept(live, form, parts)
        await self._commands.stops.stop(live, self._key, StopBody())
        self._report_stopped(chat, live.session, "📥 This arrived after your stop.")

    async def _new(self, chat: Conversation, incoming: Incoming) -> None:
        if chat.has_new(incoming.order):
            return
        old = chat.session(incoming.order)
        await self._registry.create(chat.session_of_new(incoming.order), None, self._key.id)
        self._conversations.register(chat.session_of_new(incoming.order))
        chat.outgoing.say("New conversation.")
        with contextlib.suppress(Problem):  # there was none before
            async with self._registry.lease(old) as live:
                await self._commands.stops.stop(live, self._key, StopBody())

    async def _why(self, chat: Conversation, incoming: Incoming) -> None:
        text, is_drawing = why(await self._read(chat.session(incoming.order)))
        chat.outgoing.say(text, monospace=is_drawing)

    async def _read(self, session_id: str) -> list[Event]:
        return await run_in_thread(lambda: self._registry.store.read(session_id, without=_DELTAS))

    # -- stops -------------------------------------------------------------------------------------------------------

    async def _stop(self, chat: Conversation, incoming: Incoming) -> None:
        try:
            async with self._registry.lease(chat.session(incoming.order)) as live:
                session = live.session
                if incoming.redelivered and _was_done(await self._read(session.id), incoming.order):
                    return
                turn = session.turn
                receipt = await self._commands.stops.stop(live, self._key, StopBody())
        except Problem as problem:
            if problem.status == _UNAVAILABLE:
                raise
            chat.outgoing.say(NOTHING_RAN)  # there is no session yet
            return
        if receipt.stopped and turn is not None:
            self._follower.start_task(self._reply_to_stop(chat, session, turn))
        else:
            self._report_stopped(chat, session, NOTHING_RAN)

    async def _reply_to_stop(self, chat: Conversation, session: Session, turn: Turn) -> None:
        """Say what was stopped and how long that took, once it is known."""
        await turn.ended.wait_async(_STOP_WAIT)
        text = "⏹ Stopped."
        with contextlib.suppress(HalterError):
            text = stopped(timeline_of(await self._read(session.id), turn.id))
        self._report_stopped(chat, session, text)

    def _report_stopped(self, chat: Conversation, session: Session, text: str) -> None:
        """Report a stop and the messages that it holds, with a button to release them."""
        held = len(session.inbox.held())
        if held:
            count = "1 message is held." if held == 1 else f"{held} messages are held."
            chat.show_held(f"{text} {count}", Button("Send held messages", f"{_RELEASE}/{session.id}"))
        else:
            chat.end_held()
            chat.outgoing.say(text)

    # -- buttons -----------------------------------------------------------------------------------------------------

    async def press(self, pressed: ButtonPress) -> ButtonReply:
        """Handle a button press."""
        if pressed.sender not in self._platform.users:
            return ButtonReply(not_allowed(self._platform.name, pressed.sender))
        chat = self._conversations[pressed.chat_id]
        request, _, last = pressed.data.rpartition("/")
        try:
            if request == _RELEASE:
                return await self._release(chat, last)
            option = self._follower.option(chat, request, int(last) if last.isdecimal() else -1)
            if option is None:
                return _EXPIRED
            if option[1] is NEXT_PAGE:
                self._follower.show_next_page(option[0], request)
                return ButtonReply()
            async with self._registry.lease(option[0]) as live:
                by = f"{self.name} user {pressed.sender}"
                answer = functools.partial(live.session.answer, request, option[1], by=by)
                return ButtonReply() if await run_in_thread(answer) else _EXPIRED
        except (Problem, HalterError) as error:
            return ButtonReply(f"Try again later: {error}")

    async def _deny(self, chat: Conversation, incoming: Incoming) -> None:
        """Deny the oldest open approval, with a reason that the model reads."""
        try:
            async with self._registry.lease(chat.session(incoming.order)) as live:
                session = live.session
                asked = next((each for each in session.questions if isinstance(each, ApprovalAsked)), None)
                by = f"{self.name} user {incoming.sender}"
                if asked is not None:
                    answer = functools.partial(session.answer, asked.request.id, {"deny": incoming.text}, by=by)
                    if await run_in_thread(answer):
                        return
        except Problem as problem:
            if problem.status == _UNAVAILABLE:
                raise
        chat.outgoing.say("There is nothing to deny.")

    async def _release(self, chat: Conversation, session_id: str) -> ButtonReply:
        if not self._conversations.has(session_id) or self._conversations.of(session_id) is not chat:
            return _EXPIRED
        async with self._registry.lease(session_id) as live:
            if not await run_in_thread(live.session.release):
                return ButtonReply("No messages are held any more.", is_expired=True)
        chat.end_held("▶️ Sent.")
        return ButtonReply()


def _was_done(events: Sequence[Event], order: int) -> bool:
    """Whether a redelivered stop was done before: a message that was sent after it has been accepted."""
    ids = (event.data.id for event in events if isinstance(event.data, MessageAccepted))
    return any(_order_of(each) > order for each in ids)


def _order_of(message_id: str) -> int:
    order = message_id.rpartition("-")[2]
    return int(order) if order.isdecimal() else -1


def _has_open_turn(last: Sequence[Event]) -> bool:
    """Whether the last of these events belong to a turn that has not ended."""
    turn = next((event.turn for event in reversed(last) if event.turn), "")
    ends = (TurnFinished, TurnRolledBack)
    return bool(turn) and not any(event.turn == turn and isinstance(event.data, ends) for event in last)
