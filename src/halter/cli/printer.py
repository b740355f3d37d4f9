"""An answer, written as it comes: by a thread of its own, so that a reader who is slow, or gone, holds up no turn."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import msgspec

from halter.cancel.token import CancellationToken
from halter.events import Event, Missed
from halter.models.model import TextDelta
from halter.models.progress import RequestRetry, RequestStarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cli.output import Output
    from halter.listener import Listener
    from halter.session import Session

__all__ = ["Printer", "encode_event"]


class Printer:
    """Writes what a listener hears: the words, or with *as_json* every event as one line."""

    def __init__(
        self, session: Session, output: Output, on_gone: Callable[[OSError], object], *, as_json: bool
    ) -> None:
        self.done = CancellationToken(name="printed")  # as a bell that rings once
        self._session = session
        self._output = output
        self._on_gone = on_gone
        self._as_json = as_json
        self._last = 0  # the number of the event that was shown last
        self._listener: Listener = session.listen()
        threading.Thread(target=self._run, name="halter-print", daemon=True).start()

    def end(self) -> None:
        """Let it end, after what it has heard already."""
        self._listener.close()

    def _run(self) -> None:
        try:
            while (event := self._listener.get()) is not None:
                for each in self._whole(event):
                    self._show(each)
            if not self._as_json:
                self._output.end_line()
        except OSError as error:
            self._on_gone(error)
        finally:
            self.done.cancel("done")

    def _whole(self, event: Event) -> list[Event]:
        if isinstance(event.data, Missed):
            missed = event.data
            return [each for each in self._session.events(missed.first - 1) if each.seq <= missed.last]
        return [event]

    def _show(self, event: Event) -> None:
        if event.seq <= self._last:
            return  # who was far behind may be told something twice
        self._last = event.seq
        data = event.data
        if self._as_json:
            self._output.write_line(encode_event(event))
        elif isinstance(data, TextDelta):
            self._output.write(data.text)
        elif isinstance(data, RequestStarted):
            self._output.end_line()  # what one step has said is not run into what the next one says
        elif isinstance(data, RequestRetry):
            self._output.end_line()
            again = "the answer begins again" if data.superseded else "trying again"
            self._output.say(f"halter: {data.error}; {again} ({data.model}, attempt {data.attempt}).")


def encode_event(event: Event) -> bytes:
    """An event as one line of JSON, without the end of the line."""
    try:
        return msgspec.json.encode(event)
    except UnicodeEncodeError:  # half of a pair, which only JSON's escapes can carry
        return json.dumps(msgspec.to_builtins(event)).encode()
