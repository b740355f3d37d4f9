"""Carries what people say in the chats of one platform into their sessions.

Messages of one place are accepted one after the other, in their order. A stop does not wait for them: it is done at
once, and what it has overtaken on the way, such as a picture that was still being fetched, is held when it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.blocking import run_blocking_async
from halter.cancel.token import NEVER, CancellationToken
from halter.cli.timeline import timeline_of
from halter.errors import HalterError
from halter.events import MessageAccepted, TurnFinished, TurnRolledBack
from halter.gateway.commands import Commands
from halter.gateway.keys import Key
from halter.gateway.messages import MessageBody, MessageForm, StopBody
from halter.gateway.platforms.follower import Follower
from halter.gateway.platforms.places import Places
from halter.gateway.platforms.platform import Answer, Button, Unfetched
from halter.gateway.platforms.replies import HELP, NOTHING_RAN, no_user, queued, refusal, stopped, why
from halter.gateway.problems import Problem, of_error
from halter.models.model import Image, Part
from halter.voice.phrases import StopPhrases

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from halter.events import Event, Mode
    from halter.gateway.hall import Hall
    from halter.gateway.messages import ReceiptView
    from halter.gateway.platforms.places import Place
    from halter.gateway.platforms.platform import Incoming, Platform, Pressed
    from halter.gateway.room import Room
    from halter.gateway.speech import Speech
    from halter.inbox import Letter
    from halter.session import Session
    from halter.turn import Turn

__all__ = ["Porter"]

_log = logging.getLogger(__name__)
_PATIENCE: Final = 30.0  # seconds for which the answer to a stop waits for the turn's end
_STOPPING: Final = 2.0  # seconds for a platform to end
_FIRST_PAUSE: Final = 0.5  # seconds after which something is tried again; longer each time
_LONGEST_PAUSE: Final = 30.0
_LAST: Final = 50  # events, among which is one of the last turn
_DAY: Final = 86_400.0
_DELTAS: Final = ("text.delta", "reasoning.delta")
_RELEASE: Final = "release"
_GONE: Final = Answer("This is not asked any more.", is_over=True)
_UNAVAILABLE: Final = 503


class Porter:
    """The porter of one platform, in the gateway's event loop: its `Door`."""

    def __init__(self, platform: Platform, hall: Hall, speech: Speech) -> None:
        self._platform = platform
        self._hall = hall
        self._commands = Commands(hall)
        self._key = Key(platform.name, platform.name, "write", "")
        self._phrases = StopPhrases(platform.stop_phrases)
        self._places = Places(platform)
        self._follower = Follower(platform, self._places, speech)
        self._running: asyncio.Task[None] | None = None
        self.see = self._follower.see

    # -- beginning and end -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to receive."""
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Tell of turns that were broken off, and receive until the end.

        A boundary: a platform that fails is told, and the gateway goes on without it.
        """
        try:
            known, broken = await run_blocking_async(self._find, token=NEVER)
            for session_id in known:
                self._places.learn(session_id)
            for session_id in broken:
                self._follower.do(self._open_broken(session_id))
            await self._platform.run(self)
        except Exception:  # noqa: BLE001
            _log.exception("%s has ended", self._platform.name)

    def _find(self) -> tuple[list[str], list[str]]:
        """All sessions of this platform, and those of them that have a turn which its gateway did not live to end.

        Such a turn has said something shortly before that end, so that not every session has to be read.
        """
        store = self._hall.store
        found = [each for each in store.sessions() if self._places.has(each.id)]
        since = max((each.updated_at for each in found), default=0.0) - _DAY
        recent = [each for each in found if each.updated_at >= since]
        broken = [each for each in recent if _is_open(store.read(each.id, each.events - _LAST))]
        return [each.id for each in found], [each.id for each in broken]

    async def _open_broken(self, session_id: str) -> None:
        """Open a session in which a turn was broken off, and tell. A boundary: else it is told at the next message."""
        try:
            async with self._hall.visit(session_id) as room:
                self._follower.tell_if_broken(self._places.of(session_id), room.session.turn)
        except Exception:  # noqa: BLE001
            _log.warning("a session could not be opened", extra={"session": session_id})

    async def rest(self) -> None:
        """Receive nothing more. Bounded."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=_STOPPING)

    async def close(self, patience: float) -> None:
        """Show the last words, for *patience* seconds at the most, and let go of all."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._follower.flush()
        self._follower.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOPPING):
                await self._platform.close()

    # -- what people say ---------------------------------------------------------------------------------------------

    async def take(self, incoming: Incoming) -> None:
        """Take what was said. It is safe when this returns."""
        place = self._places[incoming.place]
        says_stop = not incoming.command and incoming.fetch is None and self._phrases.are_all(incoming.text)
        if incoming.sender not in self._platform.users:
            told = no_user(self._platform.name, incoming.sender)
            self._places.tell_once(place, f"user {incoming.sender}", told)
        elif incoming.command == "stop" or says_stop:
            place.stopped = max(place.stopped, incoming.order)
            await self._surely(place, lambda: self._stop(place, incoming))
        elif incoming.command == "why":
            await self._surely(place, lambda: self._why(place, incoming))
        elif incoming.unknown:
            place.board.say(f"I can not do anything with {incoming.unknown}: it was not passed on.")
        elif incoming.command not in ("", "steer", "queue", "new"):
            place.board.say(HELP)
        elif incoming.command in ("steer", "queue") and not incoming.text and incoming.fetch is None:
            place.board.say(f"What is to be said goes behind it: /{incoming.command} and the text.")
        else:
            do = self._new if incoming.command == "new" else self._message
            async with place.line:
                await self._surely(place, lambda: do(place, incoming))

    async def _surely(self, place: Place, do: Callable[[], Awaitable[None]]) -> None:
        """Do it, however often it has to be tried: a store may be full, or another process own the session.

        A boundary: what fails by a defect is told and logged. It would fail the next time, too.
        """
        pause = _FIRST_PAUSE
        while True:
            try:
                await do()
            except Exception as error:  # noqa: BLE001
                if not isinstance(error, Problem) and of_error(error) is None:
                    _log.exception("something that was said could not be taken", extra={"place": place.name})
                    place.board.say("⚠️ This could not be taken: the gateway has a defect. Its log says more.")
                    return
                _log.warning("something that was said waits: %s", error, extra={"place": place.name})
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _message(self, place: Place, incoming: Incoming) -> None:
        modes: dict[str, Mode] = {"steer": "steer", "queue": "queue"}
        mode = modes.get(incoming.command, self._platform.busy)
        session_id = place.session(incoming.order)
        message_id = f"{self._platform.name}-{incoming.id}-{incoming.order}"
        try:
            await self._hall.create(session_id, None)
            async with self._hall.visit(session_id) as room:
                known = room.session.inbox.find(message_id)
                if known is not None:
                    self._tell_again(place, room.session, known)
                    return
                parts = await incoming.fetch() if incoming.fetch is not None else []
                form = MessageForm(text=incoming.text, id=message_id, mode=mode)
                if incoming.order < place.stopped:
                    await self._accept_held(place, room, form, parts)
                    return
                is_busy = room.is_busy
                receipt = await self._accept(room, form, parts)
        except Unfetched as error:
            place.board.say(f"⚠️ What you sent could not be fetched, and was not passed on: {error}.")
        except Problem as problem:
            if problem.status == _UNAVAILABLE:
                raise
            place.board.say(refusal(problem))
        else:
            told = queued(receipt, incoming.command, is_busy=is_busy)
            if told:
                place.board.say(told)

    def _tell_again(self, place: Place, session: Session, letter: Letter) -> None:
        """Tell of a message that was accepted before, if its turn was broken off: nothing else will."""
        turn = session.turn
        if turn is not None and turn.id == letter.turn_id:
            self._follower.tell_if_broken(place, turn)

    async def _accept(self, room: Room, form: MessageForm, parts: list[Part]) -> ReceiptView:
        if parts:
            return await self._commands.hear(room, self._key, form, parts)
        return self._commands.message(room, self._key, MessageBody(text=form.text, id=form.id, mode=form.mode))

    async def _accept_held(self, place: Place, room: Room, form: MessageForm, parts: list[Part]) -> None:
        """Accept what a stop has overtaken, and hold it.

        Nothing is awaited between the two, so that no turn begins; but for a recording, which can not begin one yet.
        """
        if any(isinstance(part, Image) for part in parts):
            room.session.post([form.text, *parts], form.mode, form.id)
        else:
            await self._accept(room, form, parts)
        await self._commands.stop(room, self._key, StopBody())
        self._say_stopped(place, room.session, "📥 This came behind your stop.")

    async def _new(self, place: Place, incoming: Incoming) -> None:
        if place.has_begun(incoming.order):
            return
        old = place.session(incoming.order)
        await self._hall.create(place.session_begun(incoming.order), None)
        self._places.learn(place.session_begun(incoming.order))
        place.board.say("A new conversation begins.")
        with contextlib.suppress(Problem):  # there was none before
            async with self._hall.visit(old) as room:
                await self._commands.stop(room, self._key, StopBody())

    async def _why(self, place: Place, incoming: Incoming) -> None:
        text, is_drawing = why(await self._read(place.session(incoming.order)))
        place.board.say(text, fixed=is_drawing)

    async def _read(self, session_id: str) -> list[Event]:
        return await run_blocking_async(self._hall.store.read, session_id, without=_DELTAS, token=NEVER)

    # -- stops -------------------------------------------------------------------------------------------------------

    async def _stop(self, place: Place, incoming: Incoming) -> None:
        try:
            async with self._hall.visit(place.session(incoming.order)) as room:
                session = room.session
                if incoming.again and _was_done(await self._read(session.id), incoming.order):
                    return
                turn = session.turn
                receipt = await self._commands.stop(room, self._key, StopBody())
        except Problem as problem:
            if problem.status == _UNAVAILABLE:
                raise
            place.board.say(NOTHING_RAN)  # there is not even a session
            return
        if receipt.stopped and turn is not None:
            self._follower.do(self._answer_stop(place, session, turn))
        else:
            self._say_stopped(place, session, NOTHING_RAN)

    async def _answer_stop(self, place: Place, session: Session, turn: Turn) -> None:
        """Tell what was stopped, and how long that took, when it is known. A boundary: it is only told."""
        await CancellationToken.any_of(turn.ended, CancellationToken(timeout=_PATIENCE)).wait_async()
        text = "⏹ Stopped."
        with contextlib.suppress(HalterError):
            text = stopped(timeline_of(await self._read(session.id), turn.id))
        self._say_stopped(place, session, text)

    def _say_stopped(self, place: Place, session: Session, text: str) -> None:
        """Tell of a stop, and of what it holds, with a button to let that go on."""
        held = len(session.inbox.held())
        if held:
            waits = "1 message is held." if held == 1 else f"{held} messages are held."
            place.say_held(f"{text} {waits}", Button("Go on with what is held", f"{_RELEASE}/{session.id}"))
        else:
            place.end_held()
            place.board.say(text)

    # -- buttons -----------------------------------------------------------------------------------------------------

    async def press(self, pressed: Pressed) -> Answer:
        """Take what was pressed. What is not asked any more, or can not be answered now, is told to who did."""
        if pressed.sender not in self._platform.users:
            return Answer(no_user(self._platform.name, pressed.sender))
        place = self._places[pressed.place]
        request, _, last = pressed.data.rpartition("/")
        try:
            if request == _RELEASE:
                return await self._release(place, last)
            option = self._follower.option(place, request, int(last) if last.isdecimal() else -1)
            if option is None:
                return _GONE
            async with self._hall.visit(option[0]) as room:
                return Answer() if room.session.answer(request, option[1]) else _GONE
        except (Problem, HalterError) as error:
            return Answer(f"Not now: {error}")

    async def _release(self, place: Place, session_id: str) -> Answer:
        if not self._places.has(session_id) or self._places.of(session_id) is not place:
            return _GONE
        async with self._hall.visit(session_id) as room:
            if not room.session.release():
                return Answer("Nothing is held any more.", is_over=True)
        place.end_held("▶️ They go on.")
        return Answer()


def _was_done(events: Sequence[Event], order: int) -> bool:
    """Whether a stop that is delivered again was done: something that was said after it has been accepted."""
    ids = (event.data.id for event in events if isinstance(event.data, MessageAccepted))
    return any(_order_of(each) > order for each in ids)


def _order_of(message_id: str) -> int:
    order = message_id.rpartition("-")[2]
    return int(order) if order.isdecimal() else -1


def _is_open(last: Sequence[Event]) -> bool:
    """Whether a turn is open behind these events, the last of a session."""
    turn = next((event.turn for event in reversed(last) if event.turn), "")
    ends = (TurnFinished, TurnRolledBack)
    return bool(turn) and not any(event.turn == turn and isinstance(event.data, ends) for event in last)
