"""The claim to drain a writer's queue. At most one thread has it, and there is no lock.

`dict.setdefault` is atomic: of several threads exactly one puts its claim into force, and the claim names its thread in
the same instant. A claim may also be made for a worker thread that has not begun: from then on nobody else drains.
"""

from __future__ import annotations

import threading

__all__ = ["CurrentClaim", "DrainClaim"]


class DrainClaim:
    """The right to drain: one thread takes it, once and for all."""

    __slots__ = ("_taken", "submitter")

    def __init__(self, thread: int = 0, submitter: int = 0) -> None:
        self.submitter = submitter  # the thread that is submitting it to a worker thread right now
        self._taken = {"by": thread} if thread else {}

    @property
    def thread(self) -> int:
        """The thread that has taken it; 0 if none has."""
        return self._taken.get("by", 0)

    def take(self) -> bool:
        """Take it for this thread; False if another has it."""
        thread = threading.get_ident()
        return self._taken.setdefault("by", thread) == thread


class CurrentClaim:
    """The claim in force, if any."""

    __slots__ = ("_claim",)

    def __init__(self) -> None:
        self._claim: dict[str, DrainClaim] = {}

    def get(self) -> DrainClaim | None:
        """The claim in force; None if nobody drains."""
        return self._claim.get("")

    def set(self, claim: DrainClaim) -> bool:
        """Put a claim into force; False if another one is."""
        return self._claim.setdefault("", claim) is claim

    def clear(self) -> None:
        """End the claim in force."""
        self._claim.clear()
