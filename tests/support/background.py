"""Work in a thread, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from halter import Session, Turn
from tests.support.sessions import AT_MOST


class Background:
    """Something that runs in a thread, and what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        """Wait for the end, with a bound."""
        self._thread.join(AT_MOST)
        assert not self._thread.is_alive(), f"still at work after {AT_MOST} s"
        if self._error is not None:
            raise self._error
        return self._value


class RunningTurn(Background):
    """A `session.run()` in a thread."""

    def __init__(self, session: Session, text: Any = "begin") -> None:
        super().__init__(lambda: session.run(text))

    def end(self) -> Turn:
        turn = self.result()
        assert isinstance(turn, Turn)
        return turn
