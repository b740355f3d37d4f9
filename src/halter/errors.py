"""What can go wrong with a session and its store; what can go wrong with a model is in `halter.models.errors`.

`TurnInterrupted` and `TurnFailed` are in `halter.session.turn`, since they have a turn.

HalterError
├── SessionBusy           a turn is running, or somebody serves the session; nothing was accepted
├── NothingToDo           the inbox is empty, and the last turn was done
├── SessionClosed         the session was closed; open it again to go on
├── CheckpointFailed      the files of a turn could not be kept or restored; every file is whole
├── LimitReached          the turn came to a limit: steps, tokens, cost, or the length of an answer
│   └── UnknownPrice      the turn has a limit of its cost, and that cannot be kept: a price is not known
├── InvalidOutput         the model refused, or its answers did not fit the agent's `output` type
├── TurnInterrupted       `turn.raise_for_error()`: the turn was stopped; `.turn` has what it did until then
├── TurnFailed            `turn.raise_for_error()`: the turn failed; the cause is its `__cause__`
└── StoreError            the store could not do it; what it held before is unharmed
    ├── SessionOwned      another session object, here or in another process, owns this session
    ├── WriteRefused      events of one session were not written; `.session` names it
    │   ├── LeaseLost     this session object owned the session, and does not any more
    │   └── NotStorable   an event has something in it that cannot be written
    ├── StoreFull         no space is left
    ├── StoreReadOnly     it can be read, and not written
    ├── StoreCorrupt      it is damaged, or no store at all
    └── StoreTooNew       a newer Halter has written it
"""

from __future__ import annotations

__all__ = [
    "CheckpointFailed",
    "HalterError",
    "InvalidOutput",
    "LeaseLost",
    "LimitReached",
    "NotStorable",
    "NothingToDo",
    "SessionBusy",
    "SessionClosed",
    "SessionOwned",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreTooNew",
    "UnknownPrice",
    "WriteRefused",
]


class HalterError(Exception):
    """Anything below."""


class SessionBusy(HalterError):
    """A turn is running already. Nothing was accepted: the caller still has the text, and may post() it."""


class NothingToDo(HalterError):
    """The inbox is empty, and there is no broken-off turn to go on with."""


class SessionClosed(HalterError):
    """The session was closed."""


class CheckpointFailed(HalterError):
    """The files of a turn could not be kept or restored; the text says why. Every file is whole."""


class LimitReached(HalterError):
    """A turn came to a limit. What it has done is in the history, and run() goes on from there."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnknownPrice(LimitReached):
    """A limit of the cost cannot be kept, because a price is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unknown_price")


class InvalidOutput(HalterError):
    """The turn has no typed answer. Its text, and what it has done, are in the history."""


class StoreError(HalterError):
    """A store could not do what it was asked to. Nothing of it was done."""


class SessionOwned(StoreError):
    """Somebody else owns the session. In a cluster, `owner` is the name of that process."""

    def __init__(self, message: str, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class WriteRefused(StoreError):
    """Events of one session cannot be written as they are. Other sessions of the store are not concerned."""

    def __init__(self, message: str, session: str) -> None:
        super().__init__(message)
        self.session = session


class LeaseLost(WriteRefused):
    """The session was closed, or somebody else has taken it over."""


class NotStorable(WriteRefused):
    """An event has something in it that cannot be written as JSON."""


class StoreFull(StoreError):
    """No space is left."""


class StoreReadOnly(StoreError):
    """The store cannot be written."""


class StoreCorrupt(StoreError):
    """The store is damaged, or the file is something else."""


class StoreTooNew(StoreError):
    """The store was written by a newer Halter."""
