"""Follows the sessions of a platform, and has what happens there written down in their chats.

A session is followed from its first event on, in this gateway, until it is put to sleep: whoever set off what happens,
from the chat, the page or a program. Where spoken replies are wanted, answers are said as well, until the next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.token import CancellationToken, Cancelled
from halter.events import Missed, TurnFinished, TurnStarted
from halter.gateway.platforms.platform import Refused, TooFast, Unreachable
from halter.gateway.platforms.scribe import Scribe
from halter.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from halter.events import Event
    from halter.gateway.platforms.places import Place, Places
    from halter.gateway.platforms.platform import Platform
    from halter.gateway.speech import Speech
    from halter.models.model import Audio
    from halter.session import Session
    from halter.turn import Turn

__all__ = ["Follower"]

_log = logging.getLogger(__name__)
_BROKEN_OFF: Final = "⚠️ The gateway ended in the middle of its answer. It can go on: just say so."
_SPEAKING: Final = 120.0  # seconds for a spoken reply to be made and sent
_FIRST_PAUSE: Final = 0.5
_BEFORE: Final = 4  # events before the first: among them is the end of a turn that was sealed as its session was opened


class Follower:
    """One for each platform."""

    def __init__(self, platform: Platform, places: Places, speech: Speech) -> None:
        self._platform = platform
        self._places = places
        self._speech = speech
        self._speaking: dict[str, CancellationToken] = {}  # by the session; cancelled, it says no more
        self._scribes: dict[str, Scribe] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = time.time()

    def see(self, session: Session, event: Event) -> None:
        """Hear of an event of any session; one of ours is followed from then on."""
        if session.id not in self._scribes and self._places.has(session.id):
            place = self._places.of(session.id)
            scribe = self._scribes[session.id] = Scribe(place.board)
            self.do(self._follow(session, scribe, place, event.seq))

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside, and be done with it before the end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait until all is done and shown. Whoever calls sets the limit."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        for place in self._places:
            await place.board.flush()

    def close(self) -> None:
        """Follow and show nothing more."""
        for task in self._tasks:
            task.cancel()
        for place in self._places:
            place.board.close()

    def option(self, place: Place, request: str, index: int) -> tuple[str, object] | None:
        """What one of the buttons below an open question stands for: the session that asks, and the answer."""
        for session_id, scribe in self._scribes.items():
            option = scribe.option(request, index)
            if option is not None and self._places.of(session_id) is place:
                return session_id, option[1]
        return None

    def tell_if_broken(self, place: Place, turn: Turn | None) -> None:
        """Tell of a turn that a gateway before this one did not live to end; once."""
        if turn is not None and turn.reason == "crash":
            self._places.tell_once(place, turn.id, _BROKEN_OFF)

    async def _follow(self, session: Session, scribe: Scribe, place: Place, first: int) -> None:
        """Have the scribe write down a session's events, from number *first* on, without a gap.

        A boundary: what can not be read now is told, and the session is followed again from its next event on.
        """
        try:
            with session.listen() as listener:
                last = max(first - _BEFORE, 0)
                for event in session.events(last):
                    last = event.seq
                    if last >= first:
                        self._write(session, scribe, place, event)
                    elif event.time >= self._began:
                        self._tell_if_sealed(place, event)
                async for heard in listener:
                    new = session.events(last) if isinstance(heard.data, Missed) else [heard]
                    for event in new:
                        if event.seq > last:
                            last = event.seq
                            self._write(session, scribe, place, event)
        except Exception:  # noqa: BLE001
            _log.exception("a chat can not follow its session", extra={"session": session.id})
        finally:
            scribe.close()
            self._scribes.pop(session.id, None)

    def _tell_if_sealed(self, place: Place, event: Event) -> None:
        if isinstance(event.data, TurnFinished) and event.data.reason == "crash":
            self._places.tell_once(place, event.turn, _BROKEN_OFF)

    def _write(self, session: Session, scribe: Scribe, place: Place, event: Event) -> None:
        if isinstance(event.data, TurnStarted):
            self.do(self._show_busy(place.name))
            if session.id in self._speaking:
                self._speaking.pop(session.id).cancel("interrupt", detail="the next turn has begun")
        elif isinstance(event.data, TurnFinished) and event.data.status == "done" and self._speech.is_on:
            self._speaking[session.id] = until = CancellationToken(name="spoken reply", timeout=_SPEAKING)
            self.do(self._say(session, place.name, until))
        scribe.take(event)

    async def _say(self, session: Session, place: str, until: CancellationToken) -> None:
        """Send the answer as a voice message. A boundary: it is there as a text, whatever becomes of this."""
        try:
            sound = await self._speech.say(session, until)
            async with until.scope():
                await self._send_sound(place, sound)
        except Cancelled:
            pass  # there is something newer, or it took too long
        except (Problem, Refused) as error:
            _log.info("an answer was not said: %s", error, extra={"session": session.id})
        except Exception:  # noqa: BLE001
            _log.exception("an answer could not be said", extra={"session": session.id})
        finally:
            if self._speaking.get(session.id) is until:
                del self._speaking[session.id]

    async def _send_sound(self, place: str, sound: Audio) -> None:
        """Try until it is sent; whoever waits for it sets the limit."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._platform.say(place, sound)
            except TooFast as error:
                await asyncio.sleep(error.seconds)
            except Unreachable:
                await asyncio.sleep(pause)
                pause *= 2
            else:
                return

    async def _show_busy(self, place: str) -> None:
        with contextlib.suppress(TooFast, Unreachable, Refused):  # it is only for the eye
            await self._platform.show_busy(place)
