"""Checkpoints of a workspace: the files of a turn can be shown, restored, and the restore undone.

    checkpoints = Checkpoints(".")
    agent = Agent(model, checkpoints.watch(tools))
    session.rollback(files=True)

The state is kept before the first call of a turn that may change files, and again when the turn has ended. What differs
between the two is the turn's; what differs later was changed by others, and a restore keeps it. If the program ended
before the turn's end could be kept, the state is taken at the next opportunity, and results say so.

With Git, a repository in our data folder keeps the whole workspace, so changes by commands count too. Left out are
files that `.gitignore` names, keys and passwords, large files and nested repositories. Without Git, or if the workspace
is the home folder or contains it, only what our own file tools change is kept.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter._data_paths import find_paths
from halter.cancel.context import checkpoint, current_token
from halter.cancel.deadlines import check_seconds
from halter.cancel.token import Cancelled
from halter.errors import CheckpointFailed
from halter.toolbox.files.checkpoints.changes import TurnChange, display_path, text_diff
from halter.toolbox.files.checkpoints.git_snapshots import GitSnapshots
from halter.toolbox.files.checkpoints.image_snapshots import ImageSnapshots
from halter.toolbox.files.checkpoints.records import UNDO, Records, TurnRecord, key
from halter.toolbox.files.checkpoints.restore import find_kept, may_restore_any, restore_files
from halter.tools.file_history import ChangedFile, CheckpointState, FileDiff, RestoredFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halter.tools.tool import Tool

__all__ = ["Checkpoints"]

_log = logging.getLogger(__name__)
_CHANGING: Final = frozenset({"terminal", "process", "write_file", "patch", "execute_code"})
_MAX_DIFF: Final = 200_000  # characters
_MAX_LISTED: Final = 1_000  # files of a diff
_TIDY_TIMEOUT: Final = 120.0  # seconds
_LATE: Final = "the files at the end of the turn are unknown, so later changes by others count as the turn's"


class Checkpoints:
    """Keeps the files of *workspace*, for any number of sessions."""

    def __init__(
        self,
        workspace: str | os.PathLike[str],
        *,
        folder: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
        max_file_size: int = 10_000_000,
        max_size: int = 1_000_000_000,
        max_turns: int = 200,
    ) -> None:
        """Keep the files in *folder*; by default in Halter's data folder.

        A checkpoint that takes longer than *timeout* seconds is given up, and the turn goes on without one. Files with
        more than *max_file_size* bytes are left out. Of all turns the last *max_turns* can be rolled back, fewer if
        they need more than *max_size* bytes.
        """
        self.root = Path(workspace).expanduser().resolve()
        self._folder = None if folder is None else Path(folder).expanduser().absolute()
        self._timeout = check_seconds("timeout", timeout)
        self._max_file = max_file_size
        self._max_size = max_size
        self._max_turns = max_turns
        self._running: set[tuple[str, str]] = set()  # sessions and turns
        self._storage: tuple[GitSnapshots | ImageSnapshots, Records] | None = None

    def __eq__(self, other: object) -> bool:
        """Two that keep the same files in the same place are one history: a turn needs one of them."""
        return isinstance(other, Checkpoints) and (self.root, self._folder) == (other.root, other._folder)

    def __hash__(self) -> int:
        return hash((self.root, self._folder))

    def __repr__(self) -> str:
        return f"<Checkpoints of {str(self.root)!r}>"

    def watch(
        self, tools: Iterable[Tool[..., Any]], changing: Callable[[Tool[..., Any]], bool] | None = None
    ) -> list[Tool[..., Any]]:
        """The same tools; before those that may change files run, a checkpoint is made.

        *changing* says which ones may; by default those of the toolbox that do.
        """
        watched = []
        for tool in tools:
            copied = tool
            if tool.name in _CHANGING if changing is None else changing(tool):
                copied = copy.copy(tool)
                copied.file_history = self
            watched.append(copied)
        return watched

    # -- during a turn -----------------------------------------------------------------------------------------------

    def before_call(self, session: str, turn: str, paths: Sequence[str]) -> CheckpointState:
        """Keep the workspace, or with images the files that a call names, before it changes them."""
        snapshots, records = self._opened()
        self._running.add((session, turn))
        record = records.load(session, turn) or TurnRecord(turn=turn, note=snapshots.note)
        try:
            with _Timeout(self._timeout):
                snapshots.begin(record, f"{key(session, turn)}/before", paths)
        except (CheckpointFailed, OSError) as error:
            record.failure = str(error)
        try:
            records.save(session, record)
        except OSError as error:
            record.failure = str(error)
        if record.failure:
            return CheckpointState(is_complete=True, note=f"no checkpoint of the files: {record.failure}")
        return CheckpointState(snapshots.covers_commands, snapshots.note)

    def end_turn(self, session: str, turn: str) -> None:
        """Keep the state at the end of a turn. A boundary: a failure is recorded, and shown with the diff."""
        _, records = self._opened()
        self._running.discard((session, turn))
        record = records.load(session, turn)
        if record is None or record.has_ended or record.failure:
            return
        try:
            self._finish(session, record)
            records.save(session, record)
        except (CheckpointFailed, OSError) as error:
            _log.info("the files at the end of turn %s could not be kept: %s", turn, error)

    def _finish(self, session: str, record: TurnRecord) -> None:
        snapshots, _ = self._opened()
        with _Timeout(self._timeout):
            snapshots.finish(record, f"{key(session, record.turn)}/end")
        record.has_ended = True

    def tidy(self) -> None:
        """Remove the oldest turns and pack the rest. A boundary: if that fails, it is tried after another turn."""
        snapshots, records = self._opened()
        try:
            with _Timeout(_TIDY_TIMEOUT):
                if snapshots.tidy(records.remove_oldest(self._max_turns)):
                    snapshots.tidy(records.remove_oldest(max(records.count() // 2, 1)))
        except (CheckpointFailed, OSError) as error:
            _log.info("old checkpoints could not be removed: %s", error)

    # -- afterwards --------------------------------------------------------------------------------------------------

    def diff(self, session: str, *turns: str) -> FileDiff:
        """What turns have changed, from before the first to the end of the last; of a running one, until now."""
        snapshots, records = self._opened()
        merged: dict[str, TurnChange] = {}
        notes: dict[str, None] = {}
        for turn in turns:
            record = records.load(session, turn)
            if record is None or record.failure:
                notes[_no_checkpoint(record)] = None
                continue
            if not record.has_ended:
                record.is_late = (session, turn) not in self._running
                self._finish(session, record)
            notes[_note(record)] = None
            for each in snapshots.changes(record):
                first = merged.get(each.path, each)
                merged[each.path] = TurnChange(each.path, first.before, each.after)
        changes = [each for each in merged.values() if each.before != each.after]
        listed = changes[:_MAX_LISTED]
        files = [
            ChangedFile(display_path(each.path), each.name, find_kept(self.root, each, self._max_file))
            for each in listed
        ]
        text, is_whole = self._text(snapshots, listed)
        note = "; ".join(filter(None, notes))
        return FileDiff(files, text, truncated=not is_whole or len(changes) > len(listed), note=note)

    def _text(self, snapshots: GitSnapshots | ImageSnapshots, changes: Sequence[TurnChange]) -> tuple[str, bool]:
        pieces: list[str] = []
        size = 0
        for change in changes:
            checkpoint()
            entries = [each for each in (change.before, change.after) if each is not None]
            contents = dict(snapshots.read([each.blob for each in entries if each.blob]))
            before, after = (b"" if each is None else contents.get(each.blob, b"") for each in change[1:])
            piece = text_diff(change, before, after)
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_DIFF:
                return "".join(pieces)[:_MAX_DIFF], False
        return "".join(pieces), True

    def restore(self, session: str, turn: str) -> RestoredFiles:
        """Restore the turn's changes, except in files that others have changed since. The restore can be undone."""
        snapshots, records = self._opened()
        record = records.load(session, turn)
        if record is None or record.failure:
            return RestoredFiles(note=_no_checkpoint(record))
        if not record.has_ended:
            record.is_late = (session, turn) not in self._running
            self._finish(session, record)
            records.save(session, record)
        changes = snapshots.changes(record)
        undo = records.load(session, UNDO)
        if undo is not None and undo.turn != turn:
            undo = None
        if undo is not None and undo.has_ended and not may_restore_any(self.root, changes, self._max_file):
            kept = {display_path(each.path): find_kept(self.root, each, self._max_file) for each in changes}
            kept = {path: reason for path, reason in kept.items() if reason}
            return RestoredFiles(kept=kept, note=_note(record))  # and what was done before can still be undone
        if undo is None or undo.has_ended:  # else it continues one that was stopped
            undo = self._begin_undo(session, turn, changes)
            records.save(session, undo, UNDO)
        result = restore_files(self.root, changes, snapshots.read, self._max_file)
        self._end_undo(session, undo)
        result.note = _note(record)
        return result

    def undo_restore(self, session: str) -> RestoredFiles:
        """Undo the last restore; the next call undoes that again."""
        snapshots, records = self._opened()
        record = records.load(session, UNDO)
        if record is None:
            return RestoredFiles(note="there is no rollback of files to undo")
        if not record.has_ended:  # it was stopped, so what it has done so far is undone
            self._end_undo(session, record)
        if not record.has_ended:
            raise CheckpointFailed("the files could not be compared; try again")
        changes = self._own_changes(session, record)
        undo = self._begin_undo(session, record.turn, changes)
        result = restore_files(self.root, changes, snapshots.read, self._max_file)
        self._end_undo(session, undo)  # only now: until then, calling this again completes it
        return result

    def _own_changes(self, session: str, undo: TurnRecord) -> list[TurnChange]:
        """What a restore has changed. After a stop, its two states also differ in what others changed meanwhile."""
        snapshots, records = self._opened()
        turn = records.load(session, undo.turn)
        if turn is None:
            raise CheckpointFailed("what the turn had changed is no longer known")
        own = {(each.path, entry) for each in snapshots.changes(turn) for entry in (each.before, each.after)}
        return [each for each in snapshots.changes(undo) if (each.path, each.after) in own]

    def _begin_undo(self, session: str, turn: str, changes: Sequence[TurnChange]) -> TurnRecord:
        """Keep the present state, so that a restore can be undone."""
        snapshots, _ = self._opened()
        undo = TurnRecord(turn=turn)
        with _Timeout(self._timeout):
            snapshots.begin(undo, f"{key(session, UNDO)}/before", [str(self.root / each.path) for each in changes])
        return undo

    def _end_undo(self, session: str, undo: TurnRecord) -> None:
        """Keep the state after a restore. If that fails, `undo_restore()` tries again."""
        snapshots, records = self._opened()
        try:
            with _Timeout(self._timeout):
                snapshots.finish(undo, f"{key(session, UNDO)}/end")
            undo.has_ended = True
        except CheckpointFailed as error:
            _log.info("the files after a restore could not be kept: %s", error)
        records.save(session, undo, UNDO)

    # -- where it is kept --------------------------------------------------------------------------------------------

    def _opened(self) -> tuple[GitSnapshots | ImageSnapshots, Records]:
        """The snapshots and records, which are chosen once. Two threads at the same time choose the same."""
        if self._storage is None:
            folder = find_paths().data / "checkpoints" if self._folder is None else self._folder
            name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:20]
            own = folder / name
            git = _find_git(self.root)
            why = _why_not_git(git, self.root, folder.resolve())
            options = {"max_file": self._max_file, "max_size": self._max_size}
            snapshots: GitSnapshots | ImageSnapshots
            if why or git is None:
                snapshots = ImageSnapshots(why, own / "images", self.root, **options)
            else:
                snapshots = GitSnapshots(git, own / "git", self.root, **options)
            self._storage = (snapshots, Records(own / ("turns" if not why else "image-turns")))
        return self._storage


def _find_git(root: Path) -> str | None:
    """The path of Git. Not one in the workspace: the model may have written that, and this runs without a sandbox."""
    folders = [each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(each)]  # noqa: PTH117
    for folder in folders:
        found = shutil.which("git", path=folder)
        if found is not None and not any(path.is_relative_to(root) for path in (Path(found), Path(found).resolve())):
            return os.path.realpath(found)
    return None


def _why_not_git(git: str | None, root: Path, folder: Path) -> str:
    if git is None:
        return "Git was not found"
    if Path.home().resolve().is_relative_to(root):
        return "the workspace is the home folder, or contains it"
    if folder.is_relative_to(root):
        return "the data folder is in the workspace"
    return ""


def _no_checkpoint(record: TurnRecord | None) -> str:
    return "" if record is None else f"there is no checkpoint of the files: {record.failure}"


def _note(record: TurnRecord) -> str:
    return "; ".join(filter(None, (record.note, _LATE if record.is_late else "")))


class _Timeout:
    """A block with a time limit of its own, below the current token: raises CheckpointFailed when it is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._token = current_token().child("checkpoint", seconds)
        self._bound = self._token.bind()

    def __enter__(self) -> None:
        self._bound.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._bound.__exit__(kind, error, traceback)  # type: ignore[arg-type]
        if isinstance(error, Cancelled) and error.belongs_to(self._token) and self._token.reason == "timeout":
            current_token().raise_if_cancelled()
            raise CheckpointFailed(f"it took longer than {self._seconds:g} s") from None
