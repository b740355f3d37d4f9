"""Voice messages: accepted at once, transcribed once, and then messages like any other. For every face.

    hearing = Hearing(Transcriber(), stop_phrases=("stop", "halt"))  # or RemoteTranscriber(url, key)
    receipt = await hearing.hear(session, Audio(data, "audio/ogg"), "steer")

What it promises:

- When `hear()` returns, the recording is durable and has its place in the inbox. It acts as soon as it is transcribed,
  as if it had been typed: it steers, interrupts, or answers the question that is open.
- The same id again is the same message, and is transcribed once.
- The model gets the words. The recording stays in the log (`message.accepted`): a model that can not hear would refuse
  it, and every later request with it.
- A `message.edited` whose `prepared` is "transcribing" comes once for each message; `echo()` is how people see it.
- Nothing is dropped. Where there are no words, for whatever reason, the model is told so, in words.
- A stop phrase that is a sentence of its own stops the turn as soon as that piece of the recording is understood. If
  nothing else was said, the message is done and no model sees it; otherwise it is held, with all its words. What came
  behind it is newer than the stop, and is not held by it.
- What was not transcribed yet when the program ended, or the session or this was closed, is so when the session is
  opened again (`resume()`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.blocking import run_blocking_async
from halter.cancel.token import NEVER, CancellationToken, Cancelled
from halter.inbox import to_message
from halter.models.model import Audio
from halter.voice.heard import Heard
from halter.voice.phrases import STOP_PHRASES, StopPhrases

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter.events import MessageEdited, Mode
    from halter.inbox import Content, Letter, Receipt
    from halter.models.model import UserMessage
    from halter.session import Session
    from halter.voice.transcriber import Transcribes

__all__ = ["TRANSCRIBING", "Hearing", "echo"]

TRANSCRIBING: Final = "transcribing"
"""What is being done to such a message: its `preparing`, and what `agent.session(prepares=...)` wants to know."""
_TIMEOUT: Final = 120.0
_AT_ONCE: Final = 2
_log = logging.getLogger(__name__)


def echo(edited: MessageEdited) -> str:
    """How to show a person what was heard; empty if the event tells of something else."""
    return f'🎙️ "{edited.message.text}"' if edited.prepared == TRANSCRIBING else ""


class _Job(NamedTuple):
    """A message to be transcribed."""

    session: Session
    letter: Letter
    expect_turn: str | None


class Hearing:
    """Hears what is said to sessions, in one event loop.

    At most *at_once* messages are transcribed at the same time. Those of a session begin in their order; of several
    sessions the one is next that has the fewest at work. *timeout* is for each message, from when it begins.
    """

    def __init__(
        self,
        transcriber: Transcribes,
        *,
        stop_phrases: Iterable[str] = STOP_PHRASES,
        timeout: float = _TIMEOUT,
        at_once: int = _AT_ONCE,
    ) -> None:
        self._transcriber = transcriber
        self._phrases = StopPhrases(stop_phrases)
        self._timeout = timeout
        self._at_once = at_once
        self._token = CancellationToken(name="hearing")
        self._known: set[Letter] = set()  # those that wait here, or are at work
        self._waiting: dict[Session, deque[_Job]] = {}  # the session first that has waited for longest
        self._busy: Counter[Session] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: set[asyncio.Task[Receipt]] = set()  # asyncio refers to tasks weakly

    async def hear(
        self,
        session: Session,
        content: Content,
        mode: Mode = "queue",
        id: str | None = None,  # noqa: A002  (the contract's word)
        expect_turn: str | None = None,
    ) -> Receipt:
        """Leave a message with a recording in it, durably, as `session.post()` does, and have it transcribed.

        A message without a recording is posted, and that is all.
        """
        message = to_message(content)
        accepting = asyncio.create_task(self._accept(session, message, mode, id, expect_turn))
        self._accepting.add(accepting)
        accepting.add_done_callback(self._has_accepted)
        return await asyncio.shield(accepting)  # who sent it may go meanwhile: what is written is transcribed

    def _has_accepted(self, task: asyncio.Task[Receipt]) -> None:
        self._accepting.discard(task)
        if not task.cancelled():
            task.exception()  # now it has been looked at, even if who sent it has gone

    async def _accept(
        self, session: Session, message: UserMessage, mode: Mode, message_id: str | None, expect_turn: str | None
    ) -> Receipt:
        has_sound = any(isinstance(part, Audio) for part in message.parts)
        preparing = TRANSCRIBING if has_sound else ""
        # In a thread: recordings are large, and writing them takes as long as a thousand texts.
        receipt = await run_blocking_async(
            session.post, message, mode, message_id, expect_turn, preparing=preparing, token=NEVER
        )
        self._expect(_Job(session, receipt.letter, expect_turn))
        return receipt

    def resume(self, session: Session) -> int:
        """Go on with what an end has cut off, in a session opened with `prepares=[TRANSCRIBING]`; how many there are.

        In the event loop, before anything runs there.
        """
        found = [letter for letter in session.inbox if letter.preparing == TRANSCRIBING]
        for letter in found:
            self._expect(_Job(session, letter, None))
        return len(found)

    async def close(self, timeout: float = 1.0) -> None:  # noqa: ASYNC109  (as a session's)
        """Stop listening, within about *timeout* seconds. What is not transcribed yet stays so, in its inbox."""
        self._token.cancel("shutdown")
        self._waiting.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        await run_blocking_async(self._transcriber.close, token=NEVER)

    # -- who is next -------------------------------------------------------------------------------------------------

    def _expect(self, job: _Job) -> None:
        """Put a message in line, once."""
        if job.letter.preparing != TRANSCRIBING or job.letter in self._known:
            return
        self._known.add(job.letter)
        self._waiting.setdefault(job.session, deque()).append(job)
        self._begin()

    def _begin(self) -> None:
        """Begin with as many as may be at work."""
        while self._waiting and len(self._tasks) < self._at_once and not self._token.is_cancelled:
            session = min(self._waiting, key=lambda each: self._busy[each])  # of several, the first
            jobs = self._waiting.pop(session)
            job = jobs.popleft()
            if jobs:
                self._waiting[session] = jobs  # behind the others
            self._busy[session] += 1
            task = asyncio.create_task(self._listen(job))
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._has_ended, job))

    def _has_ended(self, job: _Job, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._known.discard(job.letter)
        self._busy[job.session] -= 1
        if not self._busy[job.session]:
            del self._busy[job.session]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a voice message is stuck by a defect", exc_info=error, extra={"session": job.session.id})
        self._begin()

    # -- one message -------------------------------------------------------------------------------------------------

    async def _listen(self, job: _Job) -> None:
        """Transcribe a message and give it its words."""
        letter = job.letter
        message, whole = letter.message, letter.whole
        if message is None or whole is None:
            return  # it was removed while it waited
        end = CancellationToken.any_of(job.session.token, self._token)
        token = CancellationToken.any_of(whole, end, CancellationToken(timeout=self._timeout))
        heard = Heard(job.session, letter, job.expect_turn, self._phrases)
        for part in message.parts:
            if isinstance(part, Audio):
                await self._transcribe(part, heard, token)
                heard.end_recording()
            else:
                heard.add(part)
            if end.is_cancelled:
                return  # it stays as it is, for who opens the session next
        await heard.tell(end)

    async def _transcribe(self, sound: Audio, heard: Heard, token: CancellationToken) -> None:
        """Hear one recording. A boundary: what can not be understood is told, whatever the reason."""
        has_words = False
        why = "no speech was heard in it"
        try:
            async with contextlib.aclosing(self._transcriber.segments(sound.data, token=token)) as pieces:
                async for piece in pieces:
                    has_words = has_words or bool(piece.text.strip())
                    heard.take(piece.text)
        except Cancelled as stop:
            is_late = stop.reason == "timeout"
            why = f"it took longer than {self._timeout:g} seconds" if is_late else f"it was stopped ({stop.reason})"
        except Exception as error:  # noqa: BLE001
            why = f"{error!s:.300}" or type(error).__name__
        else:
            if has_words:
                return
        heard.miss(why, is_rest=has_words)
