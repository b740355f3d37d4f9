"""What a session needs from a history of files: checkpoints before changes, the diff of a turn, and its rollback.

A tool that may change files has a `file_history`. The first such call of a turn makes a checkpoint before it starts;
the toolbox's `Checkpoints` is the implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ChangedFile", "CheckpointState", "FileDiff", "FileHistory", "RestoredFiles"]


class CheckpointState(NamedTuple):
    """What a checkpoint covers."""

    is_complete: bool  # no later call of this turn needs another one
    note: str = ""  # what it does not cover, or why there is none; for people


class ChangedFile(Struct, frozen=True):
    """A file that a turn has changed."""

    path: str
    change: Literal["created", "changed", "deleted"]
    kept: str = ""  # why a rollback would leave it as it is; empty if it would restore it


class FileDiff(Struct):
    """What a turn has changed."""

    files: list[ChangedFile] = []
    text: str = ""  # a unified diff, from the start of the turn to its end
    truncated: bool = False  # the diff was too long
    note: str = ""  # what is not covered


class RestoredFiles(Struct):
    """What a rollback has done to files."""

    restored: list[str] = []
    kept: dict[str, str] = {}  # files that the turn has changed and that were left as they are, with the reason
    note: str = ""  # what is not covered


class FileHistory(Protocol):
    """Keeps the files of one workspace. All methods block, and stop when the current token is cancelled."""

    def before_call(self, session: str, turn: str, paths: Sequence[str]) -> CheckpointState:
        """Keep what a call may change, before it starts. *paths* are the files that it names, if it names any."""
        ...

    def end_turn(self, session: str, turn: str) -> None:
        """Keep the state at the end of a turn: what differs later was changed by somebody else."""
        ...

    def tidy(self) -> None:
        """Remove what is too old or too much."""
        ...

    def diff(self, session: str, *turns: str) -> FileDiff:
        """What turns have changed, from before the first to the end of the last; changes nothing."""
        ...

    def restore(self, session: str, turn: str) -> RestoredFiles:
        """Restore what a turn has changed and nobody else has changed since.

        After a stop every file is whole, old or new, and calling it again completes it.
        """
        ...

    def undo_restore(self, session: str) -> RestoredFiles:
        """Undo the last restore of a session, where nobody has changed the files since."""
        ...
