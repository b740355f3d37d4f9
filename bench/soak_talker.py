"""A thread of the soak that says everything there is to say to a session, by chance, and reports what it was told."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from halter.errors import NothingToDo, SessionBusy, SessionClosed
from halter.models import Audio
from tests.support.valid_history import judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.soak_worker import Slot, Worker
    from halter import Session

_EXPECTED = (SessionClosed, SessionBusy, NothingToDo)
_LONGEST = 20.0  # seconds that a stop may take


class Talker:
    """Each action is about one session, which others talk to, and close, at the same time."""

    def __init__(self, worker: Worker, number: int) -> None:
        self.name = f"talker {number}"
        self._worker = worker
        self._report = worker.report
        self._prefix = f"{worker.options.life}-{number}"
        self._chance = random.Random(f"{worker.options.seed} {self.name}")
        self._count = 0
        self._slot: Slot
        self._session: Session
        self._actions: dict[Callable[[], object], int] = {
            self._post: 40,
            self._post_again: 4,
            self._prepare: 6,
            self._stop: 8,
            self._interrupt: 4,
            self._rollback: 3,
            self._release: 8,
            self._edit: 5,
            self._remove: 3,
            self._answer: 15,
            self._cancel_call: 3,
            self._look: 3,
            self._open_again: 2,
        }

    def talk(self) -> None:
        actions, weights = list(self._actions), list(self._actions.values())
        while not self._worker.is_over.is_set():
            self._slot = self._chance.choice(self._worker.slots)
            self._session = self._slot.session
            action = self._chance.choices(actions, weights)[0]
            what = f"{action.__name__} of {self._session.id}"
            self._worker.busy[self.name] = time.monotonic(), what
            try:
                action()
            except _EXPECTED:
                pass
            except BaseException:  # noqa: BLE001  (whatever it is, it is a violation)
                self._report.error(what)
            self._worker.busy.pop(self.name, None)
            time.sleep(self._chance.choice((0.0, 0.001, 0.01, 0.03)))

    def _new_id(self) -> str:
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def _new_text(self, message: str) -> str:
        """A text that is said once: by it the oracle finds the message in the history."""
        self._count += 1
        return f"<{message}:{self._count}>"

    # -- messages ----------------------------------------------------------------------------------------------------

    def _post(self) -> None:
        session, message = self._session, self._new_id()
        text = self._new_text(message)
        mode = self._chance.choices(("queue", "steer", "interrupt", "rollback"), (4, 4, 3, 1))[0]
        turn = session.turn
        expected = self._chance.choice((None, None, None, "no such turn", turn.id if turn is not None else None))
        self._report("post", session=session.id, id=message, text=text)
        if hasattr(session, "apost") and self._chance.random() < 0.3:
            receipt = self._worker.wait_for(session.apost(text, mode, message, expected))
        else:
            receipt = session.post(text, mode, message, expected)
        self._posted(message, receipt)

    def _posted(self, message: str, receipt: Any) -> None:
        if receipt.id != message:
            self._report.violation(f"the receipt of {message} is that of {receipt.id}")
        self._report("accepted", id=message)
        self._slot.messages[self._session.id].append(message)

    def _post_again(self) -> None:
        """The same id again is the same message: its text is not taken."""
        messages = self._slot.messages[self._session.id]
        if messages:
            message = self._chance.choice(messages)
            receipt = self._session.post("<this must not be said>", "queue", message)
            if receipt.id != message:
                self._report.violation(f"{message} was posted again, and its receipt is that of {receipt.id}")

    def _prepare(self) -> None:
        """A voice message: it is accepted before it is transcribed."""
        session, message = self._session, self._new_id()
        mode = self._chance.choice(("queue", "steer", "interrupt", "rollback"))
        self._report("post", session=session.id, id=message, text="")
        self._posted(message, session.post([Audio(b"RIFF", "audio/wav")], mode, message, preparing="transcribing"))
        time.sleep(self._chance.choice((0.0, 0.01, 0.2)))
        text = self._new_text(message)
        self._report("edit", id=message, text=text)
        if session.prepared(message, text):
            self._report("edited", id=message, text=text)

    def _edit(self) -> None:
        message = self._waiting()
        if message:
            text = self._new_text(message)
            self._report("edit", id=message, text=text)
            if self._session.inbox.edit(message, text):
                self._report("edited", id=message, text=text)

    def _remove(self) -> None:
        message = self._waiting()
        if message and self._session.inbox.remove(message):
            self._report("removed", id=message)

    def _waiting(self) -> str:
        waiting = [each.id for each in self._session.inbox]
        return self._chance.choice(waiting) if waiting else ""

    def _release(self) -> None:
        self._session.release()

    # -- stops -------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        session, when = self._session, self._chance.choice(("now", "now", "step"))
        if hasattr(session, "astop") and self._chance.random() < 0.3:
            self._worker.wait_for(session.astop(when))
            return
        receipt = session.stop(when, scope=self._chance.choice(("turn", "turn", "all")))
        # A pause waits for the running step, which may wait for an answer or a slow provider: it has no bound.
        if when == "now" and self._chance.random() < 0.3 and not receipt.settled(_LONGEST):
            self._report.violation(f"a stop of {session.id} did not settle: {receipt}, {session!r}")

    def _interrupt(self) -> None:
        self._session.interrupt()

    def _rollback(self) -> None:
        self._session.rollback()

    def _cancel_call(self) -> None:
        started = [event.data.call_id for event in self._session.events() if event.kind == "tool.started"]
        if started:
            self._session.cancel_call(started[-1])

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Answer whatever question is open, in any session."""
        for slot in self._chance.sample(self._worker.slots, len(self._worker.slots)):
            session = slot.session
            asked = slot.open_question(self._chance)
            if asked is not None:
                request, kind = asked
                value = self._chance.random() < 0.7 if kind == "approval" else f"answer {self._new_id()}"
                if session.answer(request, value):
                    self._report("answered", session=session.id, id=request, value=value)
                return

    def _look(self) -> None:
        """At any instant the history can be sent."""
        history = self._session.history
        try:
            judge(history)
        except AssertionError as error:
            self._report.violation(f"the history of {self._session.id} is not valid: {error}\n{history[-6:]}")

    def _open_again(self) -> None:
        self._slot.open_again(self._chance, self._session)
