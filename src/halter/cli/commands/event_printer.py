"""Writes an answer as it comes, in a thread of its own, so that a slow or closed output delays no turn."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from halter.cancel.token import CancellationToken
from halter.session.subscription import Subscription, with_missed
from halter.views.event_json import encode_event
from halter.views.items import CompactionItem, RetryItem, TextItem
from halter.views.session_view import SessionDisplay
from halter.views.text import compaction_text, retry_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cli.output import Output
    from halter.events import Event
    from halter.session.session import Session

__all__ = ["EventPrinter"]


class EventPrinter:
    """Writes the text of a turn, or with *as_json* each event as one line of JSON."""

    def __init__(
        self, session: Session, output: Output, on_closed: Callable[[OSError], object], *, as_json: bool
    ) -> None:
        self.done = CancellationToken(name="printed")
        self._session = session
        self._output = output
        self._on_closed = on_closed
        self._as_json = as_json
        self._last = 0  # the number of the last event that was written
        self._display = SessionDisplay(max_turns=1)
        self._listener: Subscription = session.subscribe()
        threading.Thread(target=self._run, name="halter-print", daemon=True).start()

    def end(self) -> None:
        """Write what has come so far, then end."""
        self._listener.close()

    def _run(self) -> None:
        try:
            while (event := self._listener.get()) is not None:
                for each in with_missed(self._session, event):
                    self._show(each)
            if not self._as_json:
                self._output.end_line()
        except OSError as error:
            self._on_closed(error)
        finally:
            self.done.cancel("done")

    def _show(self, event: Event) -> None:
        if event.seq <= self._last:
            return  # after `Missed` an event may come twice
        self._last = event.seq
        if self._as_json:
            self._output.write_line(encode_event(event))
            return
        item = self._display.apply(event)
        if isinstance(item, TextItem):
            self._output.write(item.chunks[-1])
        elif event.kind == "request.started":
            self._output.end_line()  # the answers of two steps must not run into each other
        elif isinstance(item, RetryItem):
            self._output.end_line()
            self._output.say(f"halter: {retry_text(item)}.")
        elif isinstance(item, CompactionItem):
            self._output.end_line()
            self._output.say(f"halter: {compaction_text(item)}.")
