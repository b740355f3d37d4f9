"""The oracle of the soak: it knows what was acknowledged, and judges the log by that.

Knows nothing of the process that was killed but what that process reported before. Reads the file when nobody has it
open any more.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from halter import Agent
from halter.stores import SQLiteStore
from halter.testing import ScriptedModel
from tests.support.sessions import replay
from tests.support.valid_history import judge, judge_messages

if TYPE_CHECKING:
    from halter import Session
    from halter.events import Event

_TEXT = re.compile(r"<[^<>]*>")
_OF_TURNS = ("turn.", "request.", "tool.", "text.", "reasoning.")
_AFTER_THE_END = {"tool.finished_late", "turn.rolled_back"}


class Message:
    """What was reported of one message."""

    def __init__(self, session: str, text: str) -> None:
        self.session = session
        self.text = text
        self.is_accepted = False
        self.is_removed = False
        self.tried_edits: set[str] = set()
        self.edits: set[str] = set()


class Oracle:
    """Takes reports, and then judges a file by them."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self._messages: dict[str, Message] = {}
        self._texts: dict[str, bool] = {}  # of turns that were started with one, and whether they reported their end
        self._answers: dict[str, tuple[str, object]] = {}

    def take(self, report: dict[str, Any]) -> None:
        kind = report["kind"]
        self.counts[kind] += 1
        if kind == "violation":
            self.violations.append(report["what"])
        elif kind == "post":
            self._messages[report["id"]] = Message(report["session"], report["text"])
        elif kind == "accepted":
            self._messages[report["id"]].is_accepted = True
        elif kind in {"edit", "edited"} and (message := self._messages.get(report["id"])) is not None:
            (message.edits if kind == "edited" else message.tried_edits).add(report["text"])
        elif kind == "removed" and (message := self._messages.get(report["id"])) is not None:
            message.is_removed = True
        elif kind == "text":
            self._texts[report["text"]] = False
        elif kind == "text applied":
            self._texts[report["text"]] = True
        elif kind == "answered":
            self._answers[report["id"]] = report["session"], report["value"]

    def judge(self, path: str) -> None:
        """Judge every session of the file."""
        with SQLiteStore(path) as store:
            logs = {info.id: store.read(info.id) for info in store.sessions()}
            self._judge_acknowledged(logs)
            for name, events in logs.items():
                self._judge_log(name, events)
                self._judge_history(Agent(ScriptedModel()).session(name, store), events)

    def _expect(self, is_so: object, what: str) -> None:
        if not is_so:
            self.violations.append(what)

    # -- what was acknowledged ---------------------------------------------------------------------------------------

    def _judge_acknowledged(self, logs: dict[str, list[Event]]) -> None:
        messages: dict[str, list[Event]] = defaultdict(list)
        answers: dict[str, list[Event]] = defaultdict(list)
        # Not of children: what is said to them is not said by us, and their questions are asked above.
        for event in (each for name, events in logs.items() if "/" not in name for each in events):
            data: Any = event.data
            if event.kind.startswith("message."):
                messages[data.id].append(event)
            elif event.kind == "question.answered":
                answers[data.id].append(event)
            elif event.kind == "approval.answered":
                answers[data.request_id].append(event)
        for id_, message in self._messages.items():
            self._judge_message(id_, message, messages.pop(id_, []))
        self._judge_texts(messages)
        for id_, (session, value) in self._answers.items():
            self._judge_answer(session, id_, value, answers[id_])

    def _judge_texts(self, messages: dict[str, list[Event]]) -> None:
        """Messages whose ids we do not know: those of turns that were started with a text."""
        found: Counter[str] = Counter()
        for id_, events in messages.items():
            self._judge_life(id_, events)
            first: Any = events[0].data
            found[first.message.text] += 1
            self._expect(first.message.text in self._texts, f"nobody has said message {id_}: {first}")
        for text, is_applied in self._texts.items():
            self._expect(found[text] <= 1, f"{text} was given to one turn and accepted {found[text]} times")
            self._expect(found[text] or not is_applied, f"{text} began a turn that was reported, and is not in the log")

    def _judge_message(self, id_: str, message: Message, events: list[Event]) -> None:
        if not events:
            self._expect(not message.is_accepted, f"message {id_} of {message.session} was accepted, and is lost")
            return
        self._judge_life(id_, events)
        first: Any = events[0].data
        self._expect(first.message.text == message.text, f"message {id_} is {message.text!r}, in the log {first}")
        where = events[0].session
        self._expect(where == message.session, f"message {id_} was said to {message.session}, and is in {where}")
        edited: list[Any] = [event.data for event in events if event.kind == "message.edited"]
        edits = {data.message.text for data in edited}
        self._expect(message.edits <= edits, f"message {id_} was edited to {message.edits - edits}, which is lost")
        unknown = edits - message.tried_edits - {message.text}  # as it is, when its preparation was cut off
        self._expect(not unknown, f"nobody has edited message {id_} to {unknown}")
        if message.is_removed:
            self._expect(events[-1].kind == "message.removed", f"message {id_} was removed, and then {events[-1]}")

    def _judge_life(self, id_: str, events: list[Event]) -> None:
        """Accepted once and first; applied or removed once and last; or it waits."""
        kinds = [event.kind for event in events]
        ends = [kind for kind in kinds if kind in {"message.applied", "message.removed"}]
        self._expect(kinds[0] == "message.accepted", f"message {id_} begins with {kinds[0]}")
        self._expect(kinds.count("message.accepted") == 1, f"message {id_} was accepted twice")
        self._expect(len(ends) <= 1, f"message {id_} ended {len(ends)} times: {ends}")
        self._expect(not ends or kinds[-1] in ends, f"message {id_} was over, and then {kinds[-1]}")
        self.counts[f"log {ends[0].removeprefix('message.') if ends else 'waiting'}"] += 1

    def _judge_answer(self, session: str, id_: str, value: object, events: list[Event]) -> None:
        what = f"answer {value!r} to {id_} of {session} was taken"
        self._expect(len(events) == 1, f"{what}, and is {len(events)} times in the log")
        for event in events:
            data: Any = event.data
            if event.kind == "approval.answered":
                self._expect(data.granted == value, f"{what}, and the log says {data}")
            else:
                self._expect(data.value == value and not data.withdrawn, f"{what}, and the log says {data}")

    # -- what every log must be --------------------------------------------------------------------------------------

    def _judge_log(self, name: str, events: list[Event]) -> None:
        numbers = [event.seq for event in events]
        self._expect(numbers == list(range(1, len(events) + 1)), f"the numbers of {name} have gaps")
        running = stopping = ""
        for event in events:
            self.counts[event.kind] += 1
            where = f"event {event.seq} of {name}, {event}"
            if event.kind == "turn.stopping":
                stopping = event.turn
            if event.kind == "request.started":
                self._expect(event.turn != stopping, f"a request after the stop of its turn: {where}")
            if event.kind == "turn.started":
                self._expect(not running, f"a turn within turn {running}: {where}")
                running = event.turn
            elif event.kind == "turn.finished":
                self._expect(event.turn == running, f"the end of a turn that does not run: {where}")
                running = ""
            elif event.turn and event.kind.startswith(_OF_TURNS) and event.kind not in _AFTER_THE_END:
                self._expect(event.turn == running, f"of a turn that does not run: {where}")
        # The last process has closed what it had open. A child of a process that was killed stays as it was.
        self._expect(not running or "/" in name, f"turn {running} of {name} is open, and nobody runs it")
        self._judge_calls(name, events)

    def _judge_calls(self, name: str, events: list[Event]) -> None:
        """Each call that a model made has one result, whatever came; late ends are of calls that were abandoned."""
        asked: Counter[str] = Counter()
        results: Counter[str] = Counter()
        abandoned: set[str] = set()
        for event in events:
            data: Any = event.data
            if event.kind in {"request.finished", "request.cancelled"} and data.answer is not None:
                asked.update(call.id for call in getattr(data.answer, "calls", []))
            elif event.kind == "tool.finished":
                results[data.outcome.call_id] += 1
                if data.outcome.status == "abandoned":
                    abandoned.add(data.outcome.call_id)
            elif event.kind == "tool.finished_late":
                self._expect(data.outcome.call_id in abandoned, f"a late end before the outcome that says so: {event}")
        twice = [call for call, count in (asked + results).items() if asked[call] > 1 or results[call] > 1]
        self._expect(not twice, f"calls of {name} with several results: {twice}")
        self._expect("/" in name or not asked - results, f"calls of {name} without a result: {asked - results}")

    # -- the history -------------------------------------------------------------------------------------------------

    def _judge_history(self, session: Session, log: list[Event]) -> None:
        """Valid after each event, for both wires; each applied message is in it once, as it was last."""
        where = "at its beginning"
        try:
            for data, messages in replay(session):
                where = f"after {data}"
                judge_messages(messages)
                if type(data).__name__ in {"TurnFinished", "TurnRolledBack"}:  # the wires cost more to judge
                    judge(messages)
            where = "as it is"
            judge(session.history)
        except AssertionError as error:
            self.violations.append(f"the history of {session.id} is not valid {where}: {error}")
        self._judge_words(session, log)
        session.close()

    def _judge_words(self, session: Session, log: list[Event]) -> None:
        gone = {event.turn for event in log if event.kind == "turn.rolled_back"}
        latest: dict[str, str] = {}
        expected: Counter[str] = Counter()
        answers: Counter[str] = Counter()  # the model is told of them if the call that asked was stopped
        for event in log:
            data: Any = event.data
            if event.kind in {"message.accepted", "message.edited"}:
                latest[data.id] = data.message.text
            elif event.kind == "message.applied" and data.question:
                answers.update(_TEXT.findall(latest[data.id]))
            elif event.kind == "message.applied" and event.turn not in gone:
                expected.update(_TEXT.findall(latest[data.id]))
        found: Counter[str] = Counter()
        for message in session.history:
            if type(message).__name__ == "UserMessage":
                found.update(_TEXT.findall(message.text))
        lost, more = expected - found, found - expected - answers
        self._expect(not lost and not more, f"the history of {session.id} lacks {lost}, and has {more} too often")
