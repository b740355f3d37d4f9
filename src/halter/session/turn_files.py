"""The files that the turns of a session change: checkpoints before the first change, and the rollback with files.

A rollback with files goes in this order: stop the turn, wait for its end, restore the files, take the turn out of the
history. If the process dies on the way, the turn is still in the history, every file is whole, and rolling back again
completes it. No other turn begins meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.loop_bridge import running_loop
from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.threads import pool
from halter.cancel.threads.blocking import run_blocking, run_blocking_async
from halter.cancel.token import CancellationToken, Cancelled
from halter.errors import SessionBusy, SessionClosed
from halter.events import TurnRolledBack, TurnStarted
from halter.events.event import kinds_except
from halter.session.inbox import Receipt
from halter.session.running import caller_token
from halter.session.stopping import is_last, not_last
from halter.tools.file_history import FileDiff, RestoredFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halter.agent import Agent
    from halter.session.log import Transaction
    from halter.session.session import Session
    from halter.session.turn import Turn
    from halter.tools.file_history import FileHistory

__all__ = ["SessionFiles", "TurnFiles", "file_changes", "roll_back", "undo_rollback"]

_log = logging.getLogger(__name__)
_END_TIMEOUT: Final = 300.0  # seconds for the state at the end of a turn, and for removing old ones
_CLOSE_TIMEOUT: Final = 2.0  # seconds for it when the session is closed
_STOP_TIMEOUT: Final = 30.0  # seconds for a stopped turn to end
_NONE: Final[frozenset[str]] = frozenset()  # the same one for all sessions: each would take memory
_ALL_BUT_TURNS: Final = kinds_except(TurnStarted, TurnRolledBack)


class TurnFiles:
    """The checkpoints of one running turn. In the session's event loop."""

    def __init__(self, files: SessionFiles, turn: str) -> None:
        self.turn = turn
        self.histories: list[FileHistory] = []  # those with a checkpoint
        self.over = OneShotEvent()  # set once the state at its end is being kept
        self._files = files
        self._complete: set[FileHistory] = set()
        self._lock = asyncio.Lock()  # the calls of a batch need one checkpoint, and all have to wait for it

    async def before_change(self, history: FileHistory, paths: Sequence[str], token: CancellationToken) -> str:
        """Make a checkpoint, unless there is one that covers this call; returns a note to be shown once."""
        if history in self._complete or self.over.is_set:  # a child may outlive the turn that has started it
            return ""
        async with token.scope(), self._lock:
            if history in self._complete:
                return ""
            await self._files.wait_for_end(token)
            if history not in self.histories:
                self.histories.append(history)
            state = await run_blocking_async(history.before_call, self._files.session, self.turn, paths, token=token)
            if state.is_complete:
                self._complete.add(history)
            return self._files.note_once(state.note)


class SessionFiles:
    """The checkpoints of one session."""

    __slots__ = ("_above", "_ending", "_restoring", "_shown_notes", "running", "session")

    def __init__(self, session: str, above: TurnFiles | None = None) -> None:
        """*above* is the turn that has started this child session: what the child changes is that turn's."""
        self.session = session
        self.running: TurnFiles | None = None
        self._above = above
        self._ending: _Ending | None = None  # the state at the end of the last turn is being kept
        self._restoring: OneShotEvent | None = None  # set when the restore is over
        self._shown_notes = _NONE

    async def begin(self, turn: Turn) -> TurnFiles:
        """Begin the files of a turn.

        Waits while files are being restored, or until the turn is stopped: a stop finds it already.
        """
        while (restoring := self._restoring) is not None and not turn.token.is_cancelled:
            await restoring.wait_async(token=turn.token)
        self.running = self._above or TurnFiles(self, turn.id)
        return self.running

    def end(self) -> None:
        """End the turn: keep the state of the files now, in a thread. Does not wait for it."""
        turn = self.running
        if turn is not None and turn is not self._above:
            if turn.histories:
                self._ending = _Ending(self.session, turn)
            turn.over.set()
        self.running = None  # last: whoever finds no turn finds its end

    async def wait_for_end(self, token: CancellationToken) -> None:
        """Wait until the end of the last turn is kept: what changes from now on is not that turn's."""
        if self._ending is not None:
            await self._ending.done.wait_async(token=token)

    def wait_blocking(self) -> None:
        """Wait as `wait_for_end()` does, blocking, until the current token is cancelled.

        Call it only once the end of the turn is durable.
        """
        turn = self.running  # its task may not have noticed the end yet
        if turn is not None and turn is not self._above:
            run_blocking(turn.over.wait, _STOP_TIMEOUT)
        if self._ending is not None:
            run_blocking(self._ending.done.wait, _END_TIMEOUT)

    def note_once(self, note: str) -> str:
        """The note, or empty if it was shown before."""
        if note in self._shown_notes:
            return ""
        self._shown_notes |= {note}
        return note

    @contextlib.contextmanager
    def restoring(self) -> Iterator[None]:
        """In this block no turn and no other restore begins."""
        own = OneShotEvent()
        if self._restoring is not None:
            raise SessionBusy("the files of this session are being restored; wait for that")
        self._restoring = own
        try:
            yield
        finally:
            self._restoring = None
            own.set()

    def close(self, timeout: float) -> None:
        """Wait until the end of the last turn is kept, for at most *timeout* and `_CLOSE_TIMEOUT` seconds."""
        if self._ending is not None:
            self._ending.done.wait(min(timeout, _CLOSE_TIMEOUT))
            self._ending.token.cancel("shutdown")

    async def aclose(self, timeout: float) -> None:  # noqa: ASYNC109  (as its twin)
        """Wait as `close()` does, without blocking the loop."""
        if self._ending is not None:
            await self._ending.done.wait_async(min(timeout, _CLOSE_TIMEOUT))
            self._ending.token.cancel("shutdown")


class _Ending:
    """Keeps the state of the files at the end of a turn, in a thread, and then removes what is too old."""

    __slots__ = ("done", "token")

    def __init__(self, session: str, turn: TurnFiles) -> None:
        self.done = OneShotEvent()
        self.token = CancellationToken(timeout=_END_TIMEOUT, name="files")
        try:
            pool.submit(functools.partial(self._run, session, turn.turn, list(turn.histories)))
        except RuntimeError:  # the interpreter is about to end
            self.done.set()

    def _run(self, session: str, turn: str, histories: list[FileHistory]) -> None:
        """A boundary: a rollback says that the end is not known."""
        try:
            with self.token.bind():
                for history in histories:
                    history.end_turn(session, turn)
                self.done.set()
                for history in histories:
                    history.tidy()
        except Cancelled:
            _log.info("session %s was closed before the files of turn %s were kept", session, turn)
        except Exception:  # noqa: BLE001
            _log.exception("the files of turn %s could not be kept", turn)
        finally:
            self.done.set()


def histories_of(agent: Agent) -> list[FileHistory]:
    """The file histories of an agent's tools."""
    return list(dict.fromkeys(tool.file_history for tool in agent.tools.values() if tool.file_history is not None))


def roll_back(session: Session, expect_turn: str | None = None) -> Receipt:
    """Stop the running turn, if there is one, and take the last turn back: its files, and then out of the history.

    With *expect_turn*, only if it is that turn. No turn begins while files are restored, so it stays the last one.
    """
    _check_thread(session)
    log = session._log
    with session._files.restoring():
        control = log.control
        if control is not None and control.turn.id and expect_turn not in (None, control.turn.id):
            return Receipt(log, "", "rollback", not_last(expect_turn), stopped=False, turn=None)
        stopped = control is not None and control.cancel(
            "stop", detail="to roll it back with its files", by="rollback()"
        )
        if control is not None and not control.turn.ended.wait(_STOP_TIMEOUT):
            raise SessionBusy("the turn was stopped and has not ended; nothing was rolled back")
        session._files.wait_blocking()
        turn = control.turn if control is not None and control.turn.id else None  # a compaction has no id
        last = log.view.history.last
        if last is None or not is_last(log.view.history, expect_turn):
            return Receipt(log, "", "rollback", not_last(expect_turn), stopped=stopped, turn=turn)
        files = _restore(session, lambda history: history.restore(session.id, last.id))

        def decide(tx: Transaction) -> bool:
            if tx.history.turn is not None or tx.history.last is None or tx.history.last.id != last.id:
                return False
            tx.write(last.id, TurnRolledBack(files.restored, files.kept))
            return True

        is_done = log.run(decide)
        note = "" if is_done else "the files were restored, but the turn is no longer the last one"
        return Receipt(log, "", "rollback", note, stopped=stopped, turn=turn, files=files)


def undo_rollback(session: Session) -> RestoredFiles:
    """Bring the files back that the last rollback has restored."""
    _check_thread(session)
    with session._files.restoring():
        control = session._log.control  # also of a turn that is about to begin
        if control is not None and control.turn.id and not control.turn.ended.is_set:
            raise SessionBusy("a turn is running; stop it first")
        return _restore(session, lambda history: history.undo_restore(session.id))


def file_changes(session: Session, *, whole: bool = False) -> FileDiff:
    """What the running or the last turn has changed, or all turns that were not rolled back."""
    past = session._log.view.history
    turn = past.turn or past.last
    if turn is None:
        return FileDiff()
    if past.turn is None:
        session._files.wait_blocking()
    turns = _turns(session) if whole else [turn.id]
    diffs = [history.diff(session.id, *turns) for history in histories_of(session.agent)]
    notes = dict.fromkeys(each.note for each in diffs if each.note)
    return FileDiff(
        [file for each in diffs for file in each.files],
        "".join(each.text for each in diffs),
        any(each.truncated for each in diffs),
        "; ".join(notes),
    )


def _turns(session: Session) -> list[str]:
    """The turns of a session that were not rolled back, in order."""
    events = session._log.store.read(session.id, without=_ALL_BUT_TURNS)
    undone = {event.turn for event in events if isinstance(event.data, TurnRolledBack)}
    return [event.turn for event in events if isinstance(event.data, TurnStarted) and event.turn not in undone]


def _restore(session: Session, restore: Callable[[FileHistory], RestoredFiles]) -> RestoredFiles:
    """Restore the files of all histories; the end of the session stops it, and so does the current token."""
    whole = RestoredFiles()
    token = caller_token(session)
    for history in histories_of(session.agent):
        try:
            with token.bind():
                part = restore(history)
        except Cancelled:
            if session.token.is_cancelled:
                raise SessionClosed("the session was closed while its files were restored; roll back again") from None
            raise
        whole.restored += part.restored
        whole.kept |= part.kept
        whole.note = "; ".join(filter(None, (whole.note, part.note)))
    return whole


def _check_thread(session: Session) -> None:
    session._check_open()
    control = session._log.control
    if control is not None and control.loop is running_loop():
        raise RuntimeError(
            "rollback(files=True) waits for the turn that runs in this event loop; "
            "use `await session.arollback(files=True)`"
        )
