"""Follows the sessions of a platform's chats and renders their events there.

A session is followed from its first event in this gateway until it is unloaded, whoever caused the event: the chat, the
page or a program. If spoken replies are on, answers are sent as voice messages too, until the next turn starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.token import CancellationToken, Cancelled
from halter.events import Missed, TurnFinished, TurnStarted
from halter.gateway.chat.adapter import PlatformUnreachable, RateLimited, SendRejected
from halter.gateway.chat.renderer import ChatRenderer
from halter.gateway.http.errors import Problem
from halter.models.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from halter.events import Event
    from halter.gateway.chat.adapter import ChatAdapter
    from halter.gateway.chat.conversations import Conversation, Conversations
    from halter.gateway.sessions.spoken_replies import SpokenReplies
    from halter.models.types import Audio
    from halter.session.session import Session
    from halter.session.turn import Turn

__all__ = ["SessionFollower"]

_log = logging.getLogger(__name__)
_CUT_OFF: Final = "⚠️ The gateway stopped in the middle of this answer. Send a message to continue."
_SPEECH_TIMEOUT: Final = 120.0  # seconds to make and send a spoken reply
_BACKOFF: Final = Backoff()
_READ_BACK: Final = 4  # events before the first; they include the end of a turn sealed when its session was opened


class SessionFollower:
    """Renders the sessions of one platform."""

    def __init__(self, platform: ChatAdapter, conversations: Conversations, speech: SpokenReplies) -> None:
        self._platform = platform
        self._conversations = conversations
        self._speech = speech
        self._speaking: dict[str, CancellationToken] = {}  # by session; cancelled when the reply is no longer wanted
        self._renderers: dict[str, ChatRenderer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = time.time()

    def observe(self, session: Session, event: Event) -> None:
        """Called with each event of any session; follows the session from here on if it is one of this platform."""
        if session.id not in self._renderers and self._conversations.has(session.id):
            conversation = self._conversations.of(session.id)
            renderer = self._renderers[session.id] = ChatRenderer(conversation.outgoing)
            self.start_task(self._follow(session, renderer, conversation, event.seq))

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background; `flush()` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait until everything is sent. The caller sets the time limit."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        for conversation in self._conversations:
            await conversation.outgoing.flush()

    def close(self) -> None:
        """Stop following and sending."""
        for task in self._tasks:
            task.cancel()
        for conversation in self._conversations:
            conversation.outgoing.close()

    def option(self, conversation: Conversation, request: str, index: int) -> tuple[str, object] | None:
        """What a button of an open question means: the session that asked, and the answer."""
        for session_id, renderer in self._renderers.items():
            option = renderer.option(request, index)
            if option is not None and self._conversations.of(session_id) is conversation:
                return session_id, option[1]
        return None

    def show_next_page(self, session_id: str, request: str) -> None:
        """Show the next page of an approval."""
        renderer = self._renderers.get(session_id)
        if renderer is not None:
            renderer.show_next_page(request)

    def report_if_cut_off(self, conversation: Conversation, turn: Turn | None) -> None:
        """Report, once, that a turn was cut off by the end of an earlier gateway process."""
        if turn is not None and turn.reason == "crash":
            self._conversations.send_once(conversation, turn.id, _CUT_OFF)

    async def _follow(self, session: Session, renderer: ChatRenderer, conversation: Conversation, first: int) -> None:
        """Render a session's events from number *first* on, without a gap.

        A boundary: an error is logged, and the session is followed again from its next event on.
        """
        try:
            with session.subscribe() as listener:
                last = max(first - _READ_BACK, 0)
                for event in await _read(session, last):
                    last = event.seq
                    if last >= first:
                        self._write(session, renderer, conversation, event)
                    elif event.time >= self._began:
                        self._report_if_sealed(conversation, event)
                async for received in listener:
                    new = await _read(session, last) if isinstance(received.data, Missed) else [received]
                    for event in new:
                        if event.seq > last:
                            last = event.seq
                            self._write(session, renderer, conversation, event)
        except Exception:  # noqa: BLE001
            _log.exception("rendering a session in its chat failed", extra={"session": session.id})
        finally:
            renderer.close()
            self._renderers.pop(session.id, None)

    def _report_if_sealed(self, conversation: Conversation, event: Event) -> None:
        if isinstance(event.data, TurnFinished) and event.data.reason == "crash":
            self._conversations.send_once(conversation, event.turn, _CUT_OFF)

    def _write(self, session: Session, renderer: ChatRenderer, conversation: Conversation, event: Event) -> None:
        if isinstance(event.data, TurnStarted):
            self.start_task(self._show_busy(conversation.chat_id))
            if session.id in self._speaking:
                self._speaking.pop(session.id).cancel("interrupt", detail="the next turn has started")
        elif isinstance(event.data, TurnFinished) and event.data.status == "done" and self._speech.is_on:
            self._speaking[session.id] = until = CancellationToken(name="spoken reply", timeout=_SPEECH_TIMEOUT)
            self.start_task(self._say(session, conversation.chat_id, until))
        renderer.apply(event)

    async def _say(self, session: Session, chat_id: str, until: CancellationToken) -> None:
        """Send the answer as a voice message. A boundary: errors are logged, as the text was sent anyway."""
        try:
            sound = await self._speech.speak(session, until)
            async with until.scope():
                await self._send_sound(chat_id, sound)
        except Cancelled:
            pass  # a newer turn started, or it took too long
        except (Problem, SendRejected) as error:
            _log.info("no spoken reply: %s", error, extra={"session": session.id})
        except Exception:  # noqa: BLE001
            _log.exception("the spoken reply failed", extra={"session": session.id})
        finally:
            if self._speaking.get(session.id) is until:
                del self._speaking[session.id]

    async def _send_sound(self, chat_id: str, sound: Audio) -> None:
        """Retry until it is sent. The caller sets the time limit."""
        for retry in itertools.count():
            try:
                await self._platform.say(chat_id, sound)
            except RateLimited as error:
                await asyncio.sleep(error.seconds)
            except PlatformUnreachable:
                await asyncio.sleep(_BACKOFF.delay(retry))
            else:
                return

    async def _show_busy(self, chat_id: str) -> None:
        with contextlib.suppress(RateLimited, PlatformUnreachable, SendRejected):  # cosmetic
            await self._platform.show_busy(chat_id)


async def _read(session: Session, after: int) -> list[Event]:
    """The events of a session after number *after*."""
    return await run_in_thread(lambda: session.events(after))
