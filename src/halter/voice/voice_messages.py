"""Voice messages for every face: accepted at once, transcribed once, then messages like any other.

    voice_messages = VoiceMessages(Transcriber(), stop_phrases=("stop", "halt"))  # or RemoteTranscriber(url, key)
    receipt = await voice_messages.post(session, Audio(data, "audio/ogg"), "steer")

What it promises:

- When `post()` returns, the recording is durable and has its place in the inbox. Once it is transcribed it acts as if
  it had been typed: it steers, interrupts, or answers the open question.
- The same id again is the same message, and is transcribed once.
- The model gets the text. The recording stays in the log (`message.accepted`): a model without audio input would reject
  it, and every later request with it.
- A `message.edited` whose `prepared` is "transcribing" comes once for each message, in the order of the messages;
  `echo()` is how to show it.
- Nothing is dropped. If there is no text, for whatever reason, the model is told so.
- A stop phrase that is a sentence of its own stops the turn as soon as that piece of the recording is transcribed. If
  nothing else was said, the message is done and no model sees it; otherwise it is held, with all its text. Messages
  sent after it are newer than the stop, and are not held by it.
- What was not transcribed when the program ended, or the session or this was closed, is transcribed when the session
  is opened again (`resume()`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.token import CancellationToken, Cancelled
from halter.events import MessageRemoved
from halter.models.types import Audio
from halter.session.inbox import to_message
from halter.views.stop_phrases import STOP_PHRASES, StopPhrases
from halter.voice.message_transcript import MessageTranscript

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter.events import Event, MessageEdited, Mode
    from halter.models.types import UserMessage
    from halter.session.inbox import Content, Receipt
    from halter.session.session import Session
    from halter.voice.transcriber import Transcribes

__all__ = ["TRANSCRIBING", "VoiceMessages", "echo"]

TRANSCRIBING: Final = "transcribing"
"""The `preparing` of such a message, for `agent.session(prepares=...)`."""
_TIMEOUT: Final = 120.0  # seconds
_MAX_PARALLEL: Final = 2
_log = logging.getLogger(__name__)


def echo(edited: MessageEdited) -> str:
    """How to show the text of a recording; empty if the event is about something else."""
    return f'🎙️ "{edited.message.text}"' if edited.prepared == TRANSCRIBING else ""


class _TranscriptionJob(NamedTuple):
    """A message to be transcribed."""

    session: Session
    message_id: str
    expect_turn: str | None


class VoiceMessages:
    """Transcribes the voice messages of sessions, in one event loop.

    At most *max_parallel* messages are transcribed at the same time. Those of a session start in order; of several
    sessions the one with the fewest running is next. *timeout* is for each message, from its start.
    """

    def __init__(
        self,
        transcriber: Transcribes,
        *,
        stop_phrases: Iterable[str] = STOP_PHRASES,
        timeout: float = _TIMEOUT,
        max_parallel: int = _MAX_PARALLEL,
    ) -> None:
        self._transcriber = transcriber
        self._phrases = StopPhrases(stop_phrases)
        self._timeout = timeout
        self._max_parallel = max_parallel
        self._token = CancellationToken(name="voice_messages")
        self._known: set[tuple[Session, str]] = set()  # queued here, or being transcribed
        self._waiting: dict[Session, deque[_TranscriptionJob]] = {}  # the session that has waited longest comes first
        self._busy: Counter[Session] = Counter()
        self._last: dict[Session, asyncio.Event] = {}  # set when the newest message of the session has its text
        self._deliveries: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[MessageTranscript | None]] = set()
        self._accepting: set[asyncio.Task[Receipt]] = set()  # asyncio refers to tasks weakly

    async def post(
        self,
        session: Session,
        content: Content,
        mode: Mode = "queue",
        id: str | None = None,  # noqa: A002  (the contract's word)
        expect_turn: str | None = None,
    ) -> Receipt:
        """Post a message, as `session.post()` does, and transcribe the recordings in it."""
        message = to_message(content)
        accepting = asyncio.create_task(self._accept(session, message, mode, id, expect_turn))
        self._accepting.add(accepting)
        accepting.add_done_callback(self._on_accepted)
        return await asyncio.shield(accepting)  # the sender may disconnect: a stored recording is transcribed anyway

    def _on_accepted(self, task: asyncio.Task[Receipt]) -> None:
        self._accepting.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved, even if the sender has disconnected

    async def _accept(
        self, session: Session, message: UserMessage, mode: Mode, message_id: str | None, expect_turn: str | None
    ) -> Receipt:
        has_sound = any(isinstance(part, Audio) for part in message.parts)
        preparing = TRANSCRIBING if has_sound else ""
        receipt = await session.apost(message, mode, message_id, expect_turn, preparing=preparing)
        self._expect(_TranscriptionJob(session, receipt.id, expect_turn))
        return receipt

    def resume(self, session: Session) -> int:
        """Transcribe what was left over, in a session opened with `prepares=[TRANSCRIBING]`; returns how many.

        Call it in the event loop, before anything else runs there.
        """
        found = [message for message in session.inbox if message.preparing == TRANSCRIBING]
        for message in found:
            self._expect(_TranscriptionJob(session, message.id, None))
        return len(found)

    async def close(self, timeout: float = 1.0) -> None:  # noqa: ASYNC109  (as a session's)
        """Stop transcribing, within about *timeout* seconds. What is not transcribed stays in its inbox."""
        self._token.cancel("shutdown")
        self._waiting.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=timeout)
        await run_in_thread(self._transcriber.close)

    # -- the queue ---------------------------------------------------------------------------------------------------

    def _expect(self, job: _TranscriptionJob) -> None:
        """Queue a message, once."""
        message = job.session.inbox.find(job.message_id)
        if message is None or message.preparing != TRANSCRIBING or job[:2] in self._known:
            return
        self._known.add(job[:2])
        self._waiting.setdefault(job.session, deque()).append(job)
        self._begin()

    def _begin(self) -> None:
        """Start as many as may run at once."""
        while self._waiting and len(self._tasks) < self._max_parallel and not self._token.is_cancelled:
            session = min(self._waiting, key=lambda each: self._busy[each])  # of several, the first
            jobs = self._waiting.pop(session)
            job = jobs.popleft()
            if jobs:
                self._waiting[session] = jobs  # behind the other sessions
            self._busy[session] += 1
            earlier, stored = self._last.get(session), asyncio.Event()
            self._last[session] = stored
            task = asyncio.create_task(self._transcribe_message(job))
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._on_transcribed, job, earlier, stored))

    def _on_transcribed(
        self,
        job: _TranscriptionJob,
        earlier: asyncio.Event | None,
        stored: asyncio.Event,
        task: asyncio.Task[MessageTranscript | None],
    ) -> None:
        self._tasks.discard(task)
        self._busy[job.session] -= 1
        if not self._busy[job.session]:
            del self._busy[job.session]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("transcribing a voice message failed", exc_info=error, extra={"session": job.session.id})
        transcript = task.result() if error is None and not task.cancelled() else None
        delivery = asyncio.create_task(self._deliver(job, transcript, earlier, stored))
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)
        self._begin()

    async def _deliver(
        self,
        job: _TranscriptionJob,
        transcript: MessageTranscript | None,
        earlier: asyncio.Event | None,
        stored: asyncio.Event,
    ) -> None:
        """Give a message its text, after the *earlier* one of the session has its own: texts appear in order.

        The wait is bounded: the earlier message is being transcribed, and that has a timeout. It delays no other
        transcription, and a stop phrase does not wait for it either.
        """
        try:
            if earlier is not None:
                await earlier.wait()  # also without a text of its own: a later message waits only for this one
            if transcript is not None:
                await transcript.store(CancellationToken.any_of(job.session.token, self._token))
        finally:
            stored.set()
            self._known.discard(job[:2])
            if self._last.get(job.session) is stored:
                del self._last[job.session]

    # -- one message -------------------------------------------------------------------------------------------------

    async def _transcribe_message(self, job: _TranscriptionJob) -> MessageTranscript | None:
        """Transcribe a message; None if it was removed, or is left for the next time the session is opened."""
        removed = CancellationToken(name="removed")

        def on_events(events: list[Event]) -> None:
            if any(isinstance(each.data, MessageRemoved) and each.data.id == job.message_id for each in events):
                removed.cancel("removed")

        with job.session.subscribe(only={MessageRemoved}, on_events=on_events):
            message = job.session.inbox.find(job.message_id)
            if message is None or message.message is None:
                return None  # it was removed while it waited
            end = CancellationToken.any_of(job.session.token, self._token)
            token = CancellationToken.any_of(removed, end, CancellationToken(timeout=self._timeout))
            transcript = MessageTranscript(job.session, job.message_id, job.expect_turn, self._phrases)
            for part in message.message.parts:
                if isinstance(part, Audio):
                    await self._transcribe(part, transcript, token)
                    transcript.end_recording()
                else:
                    transcript.add(part)
                if end.is_cancelled:
                    return None
            return transcript

    async def _transcribe(self, sound: Audio, transcript: MessageTranscript, token: CancellationToken) -> None:
        """Transcribe one recording. A boundary: any error becomes a note in the text."""
        has_words = False
        why = "no speech was recognized"
        try:
            async with contextlib.aclosing(self._transcriber.segments(sound.data, token=token)) as pieces:
                async for piece in pieces:
                    has_words = has_words or bool(piece.text.strip())
                    await transcript.add_text(piece.text)
        except Cancelled as stop:
            is_late = stop.reason == "timeout"
            why = (
                f"transcription took longer than {self._timeout:g} seconds"
                if is_late
                else f"it was stopped ({stop.reason})"
            )
        except Exception as error:  # noqa: BLE001
            why = f"{error!s:.300}" or type(error).__name__
        else:
            if has_words:
                return
        transcript.add_failure(why, is_rest=has_words)
