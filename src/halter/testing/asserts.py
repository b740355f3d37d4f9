"""``assert_cancels_within``: a block must end soon after its token is cancelled."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from halter.cancel.deadlines import check_seconds
from halter.cancel.token import CancellationToken, Cancelled

if TYPE_CHECKING:
    from types import TracebackType


class assert_cancels_within:  # noqa: N801  (it reads like a statement)
    """Cancel the body's token from another thread, and fail if the body takes longer than *seconds* to end.

        with assert_cancels_within(0.1) as token:
            run_blocking(work, token=token)

    The stop comes *after* seconds into the body, or as soon as something calls ``token.cancel()``. A body
    that ends before that was not stopped at all, which is a failure too. ``Cancelled`` of the token is how
    the body may end; other exceptions pass. Works with ``with`` and with ``async with``.
    """

    def __init__(self, seconds: float, *, after: float = 0.05) -> None:
        self._seconds = check_seconds("seconds", seconds)
        self._after = check_seconds("after", after)
        self.token = CancellationToken(name="assert_cancels_within")
        self._cancelled_at = 0.0
        self.took = 0.0

    def __enter__(self) -> CancellationToken:
        self.token.on_cancel(self._note_time)
        self._timer = threading.Timer(self._after, self.token.cancel, ("stop",))
        self._timer.daemon = True
        self._timer.start()
        return self.token

    def _note_time(self) -> None:
        self._cancelled_at = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        now = time.monotonic()
        self._timer.cancel()
        is_ours = isinstance(exc, Cancelled) and exc.belongs_to(self.token)
        if exc is not None and not is_ours:
            return False
        if not self.token.is_cancelled:
            raise AssertionError(
                "the body ended by itself before it was stopped; let it wait for longer, or stop it sooner"
            )
        # The body may have ended before the callback that notes the time has run.
        self.took = max(0.0, now - (self._cancelled_at or now))
        if self.took > self._seconds:
            raise AssertionError(
                f"the body took {self.took:.3f} s to end after it was stopped, more than {self._seconds:g} s"
            )
        return is_ours

    async def __aenter__(self) -> CancellationToken:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, exc, traceback)
