"""State machines of the inbox, the history and the views: random sequences of what people do, checked after each.

The inbox is compared with a simple model of it; the history is judged by the rules of every provider, and must be the
same after a restart; the display that is fed event by event must be the same as one that reads the log at once.
`HALTER_LONG=1 pytest tests/session/test_machines.py -s` runs many more, and prints how many states they visited.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from halter import Session, tool
from halter.errors import NothingToDo
from halter.events import Event
from halter.models import ModelError, ToolCall
from halter.stores import MemoryStore, Write
from halter.testing import ScriptedModel
from halter.views.session_view import SessionDisplay
from tests.support.display_dump import dump
from tests.support.sessions import agent_of, said
from tests.support.valid_history import judge

LONG = bool(os.environ.get("HALTER_LONG"))
SETTINGS = settings(
    max_examples=2_000 if LONG else 100,
    stateful_step_count=60 if LONG else 20,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=list(HealthCheck),
)
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
TEXTS = st.sampled_from(["Hello.", "And this?", "日本語", "two\nlines", " x "])


def copied(store: MemoryStore) -> MemoryStore:
    """The store as a new process finds it."""
    copy = MemoryStore()
    if events := store.read("s"):
        lease = copy.acquire("s")
        copy.commit([Write(lease, events, 0)])
        copy.release(lease)
    return copy


class InboxMachine(RuleBasedStateMachine):
    """Posts, edits, holds, releases, turns and restarts, beside a model of it: ids, each with its state and text."""

    visited: ClassVar[set[tuple[object, ...]]] = set()

    @initialize()
    def begin(self) -> None:
        self.store = MemoryStore()
        self.session = self.opened()
        self.waiting: dict[str, tuple[str, str, bool]] = {}  # state, text, in preparation; in order
        self.settled: dict[str, str] = {}
        self.applied: list[str] = []

    def opened(self) -> Session:
        return agent_of(*["ok"] * 200).session("s", self.store)

    @rule(name=IDS, text=TEXTS, preparing=st.booleans())
    def post(self, name: str, text: str, preparing: bool) -> None:
        receipt = self.session.post(text, id=name, preparing="transcribing" if preparing else "")
        if name not in self.waiting and name not in self.settled:
            self.waiting[name] = ("accepted", text, preparing)
        assert receipt.state == self.state(name)

    @rule(name=IDS, text=TEXTS)
    def prepare(self, name: str, text: str) -> None:
        state, _, preparing = self.waiting.get(name, ("", "", False))
        assert self.session.prepared(name, text) == preparing
        if preparing:
            self.waiting[name] = (state, text, False)

    @rule(name=IDS, text=TEXTS)
    def edit(self, name: str, text: str) -> None:
        state, _, preparing = self.waiting.get(name, ("", "", True))
        assert self.session.inbox.edit(name, text) == (not preparing)
        if not preparing:
            self.waiting[name] = (state, text, False)

    @rule(name=IDS)
    def remove(self, name: str) -> None:
        assert self.session.inbox.remove(name) == (name in self.waiting)
        if self.waiting.pop(name, None) is not None:
            self.settled[name] = "removed"

    @rule()
    def stop(self) -> None:
        assert not self.session.stop().stopped
        self.waiting = {name: ("held", *rest) for name, (_, *rest) in self.waiting.items()}

    @rule(name=st.none() | IDS)
    def release(self, name: str | None) -> None:
        held = [each for each, (state, *_) in self.waiting.items() if state == "held" and name in (None, each)]
        assert self.session.release(name) == len(held)
        for each in held:
            self.waiting[each] = ("accepted", *self.waiting[each][1:])

    @rule(text=st.none() | TEXTS)
    def run_turn(self, text: str | None) -> None:
        ready = []
        for name, (state, _, preparing) in self.waiting.items():
            if state == "accepted" and preparing:
                break
            if state == "accepted":
                ready.append(name)
        try:
            turn = self.session.run(text)
        except NothingToDo:
            assert text is None
            assert not ready
            return
        assert turn.status == "done"
        assert ready or text is not None
        for name in ready:
            self.applied.append(self.waiting.pop(name)[1])
            self.settled[name] = "applied"
        if text is not None:
            self.applied.append(text)

    @rule()
    def restart(self) -> None:
        """A new process: what was in preparation goes on as it is."""
        self.session.close()
        self.store = copied(self.store)
        self.session = self.opened()
        self.waiting = {name: (state, text, False) for name, (state, text, _) in self.waiting.items()}

    def state(self, name: str) -> str:
        return self.waiting[name][0] if name in self.waiting else self.settled[name]

    @invariant()
    def agrees(self) -> None:
        found = [(each.id, each.state, each.text, bool(each.preparing)) for each in self.session.inbox]
        assert found == [(name, *rest) for name, rest in self.waiting.items()]
        waiting = tuple((name, state, preparing) for name, state, _, preparing in found)
        self.visited.add((waiting, tuple(sorted(self.settled.items()))))
        for name in self.settled:
            message = self.session.inbox.find(name)
            assert message is not None
            assert message.state == self.settled[name]
        assert [text.strip() for text in said(self.session.history)] == [text.strip() for text in self.applied]

    def teardown(self) -> None:
        self.session.close()


@tool
def look(n: int = 0) -> str:
    """Look."""
    return f"seen {n}"


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


ANSWERS: list[Callable[[], Any]] = [
    lambda: "A text.",
    lambda: "",
    lambda: ["Some ", "pieces", "."],
    lambda: [ToolCall("same", "look", "{}"), ToolCall("same", "fail", "{}")],
    lambda: ["Let me see. ", ToolCall("c1", "look", '{"n": 3}')],
    lambda: ToolCall("", "unknown", "not json"),
    lambda: ["half an ", ModelError("broken")],
    lambda: ModelError("refused"),
    lambda: [ToolCall("c2", "look", '{"n": "x"}'), ModelError("broken")],
]


class HistoryMachine(RuleBasedStateMachine):
    """Turns with every kind of answer, posts, rollbacks and restarts: valid for every provider, and the same again."""

    visited: ClassVar[set[tuple[object, ...]]] = set()

    @initialize()
    def begin(self) -> None:
        self.store = MemoryStore()
        self.model = ScriptedModel()
        self.display = SessionDisplay()
        self.session = self.opened()

    def opened(self) -> Session:
        agent = agent_of(tools=[look, fail], max_steps=4)
        agent.model = self.model = ScriptedModel()
        return agent.session("s", self.store)

    @rule(answers=st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=3), text=TEXTS)
    def run_turn(self, answers: list[Callable[[], Any]], text: str) -> None:
        asked = len(self.model.requests)
        self.model._script[asked:] = [*(answer() for answer in answers), *["Done."] * 8]
        assert self.session.run(text).status in ("done", "failed")
        for request in self.model.requests[asked:]:
            judge(request.messages)

    @rule(text=TEXTS, mode=st.sampled_from(["queue", "steer", "interrupt", "rollback"]))
    def post(self, text: str, mode: Any) -> None:
        self.session.post(text, mode)

    @rule()
    def roll_back(self) -> None:
        self.session.rollback()

    @precondition(lambda self: len(self.store.read("s")) > 2)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The log ends after any event: what a crash leaves, for a log is written in order."""
        self.session.close()
        events = self.store.read("s")
        at = data.draw(st.integers(1, len(events)))
        self.store = MemoryStore()
        lease = self.store.acquire("s")
        self.store.commit([Write(lease, events[:at], 0)])
        self.store.release(lease)
        self.session = self.opened()
        self.display = SessionDisplay()

    @invariant()
    def history_is_valid(self) -> None:
        judge(self.session.history)
        roles = tuple(type(message).__name__ for message in self.session.history)
        self.visited.add((roles, tuple(message.state for message in self.session.inbox)))

    @invariant()
    def history_is_the_same_after_a_restart(self) -> None:
        if not self.session.is_running and self.session._log.view.history.turn is None:
            with agent_of(tools=[look, fail]).session("s", copied(self.store)) as again:
                assert again.history == self.session.history
                assert [each.id for each in again.inbox] == [each.id for each in self.session.inbox]

    @invariant()
    def display_needs_no_history(self) -> None:
        """A face that follows the events shows what one shows that reads the whole log now."""
        events: list[Event] = self.store.read("s")
        for event in events:
            if event.seq > self.display.seq:
                self.display.apply(event)
        fresh = SessionDisplay()
        for event in events:
            fresh.apply(event)
            fresh.apply(event)  # one that comes twice counts once
        assert json.dumps(dump(fresh), default=str) == json.dumps(dump(self.display), default=str)
        assert fresh.state == ("running" if self.session.is_running else "idle")
        waiting = [each.id for each in self.session.inbox]
        assert list(fresh.queue) == waiting

    def teardown(self) -> None:
        self.session.close()


def test_the_inbox_is_what_a_simple_model_says() -> None:
    """After any sequence of posts, edits, holds, releases, turns and restarts, the inbox agrees with the model."""
    run_state_machine_as_test(InboxMachine, settings=SETTINGS)
    print(f"{len(InboxMachine.visited)} states of the inbox, none bad")
    assert len(InboxMachine.visited) >= 40  # else the rules do nothing


def test_histories_are_valid_and_views_agree_with_the_log() -> None:
    """After any sequence of turns, posts, rollbacks and crashes, providers accept the history, and views agree."""
    run_state_machine_as_test(HistoryMachine, settings=SETTINGS)
    print(f"{len(HistoryMachine.visited)} states of history and views, none bad")
    assert len(HistoryMachine.visited) >= 40
