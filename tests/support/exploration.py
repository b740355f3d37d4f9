"""Plays one schedule of a turn: two posts, a stop and a crash, each at a chosen iteration of the event loop.

Everything is real: the session, the writer, the store in memory, the turn and its tokens. Only the order is chosen,
which is possible because one thread does it all: the loop is run one iteration at a time, and between two iterations
the other actors act. `Outcome` has what must hold in every schedule, whatever the order was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from halter import Agent, Session, tool
from halter.events import (
    MessageAccepted,
    MessageApplied,
    MessageRemoved,
    Mode,
    ToolFinishedLate,
    TurnFinished,
    TurnRolledBack,
    TurnStarted,
)
from halter.models import Message, ToolCall
from halter.session.inbox import Receipt
from halter.stores import MemoryStore, Write
from halter.testing import ScriptedModel
from tests.support.valid_history import judge_messages

MAX_ITERATIONS = 400  # far more than any schedule needs: one that needs more waits for something that never comes
NEVER = -1


@tool
async def look() -> str:
    """Look."""
    await asyncio.sleep(0)
    return "seen"


class Schedule(NamedTuple):
    """When each actor acts, as iterations of the loop; `NEVER` for not at all. A stop is before posts, or after."""

    first: Mode
    first_at: int
    second: Mode
    second_at: int
    stop_at: int
    stops_before_posts: bool
    crash_at: int = NEVER


@dataclass
class Outcome:
    """What is left after a schedule: the session, and what the actors were told."""

    session: Session
    store: MemoryStore
    receipts: dict[str, Receipt] = field(default_factory=dict)
    stopped: bool = False
    crashed: bool = False
    iterations: int = 0
    states: set[tuple[object, ...]] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)


def agent() -> Agent:
    """An agent that calls a tool, then answers in two pieces; later answers are one piece."""
    return Agent(ScriptedModel(ToolCall("c1", "look", "{}"), ["one ", "two"], *["again"] * 12), [look])


def play(schedule: Schedule) -> Outcome:
    """Play a schedule to its end, then every turn that the inbox has messages for, and release what is held."""
    loop = asyncio.new_event_loop()
    try:
        store = MemoryStore()
        outcome = Outcome(agent().session("s", store), store)
        turn = loop.create_task(outcome.session.arun("go"))
        while not (turn.done() and outcome.iterations > _last(schedule)):
            _act(outcome, schedule)
            if outcome.iterations == schedule.crash_at:
                _crash(outcome, turn, loop)
                break
            _run_once(loop)
            outcome.iterations += 1
            assert outcome.iterations < MAX_ITERATIONS, "the turn waits for something that never comes"
            _look(outcome)
        if not outcome.crashed:
            outcome.ended.append(turn.result().status)
        _drain(outcome, loop)
        return outcome
    finally:
        loop.close()


def _last(schedule: Schedule) -> int:
    return max(schedule.first_at, schedule.second_at, schedule.stop_at)


def _run_once(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(loop.stop)
    loop.run_forever()


def _act(outcome: Outcome, schedule: Schedule) -> None:
    now = outcome.iterations
    stops = now == schedule.stop_at
    if stops and schedule.stops_before_posts:
        outcome.stopped = outcome.session.stop().stopped
    for name, mode, at in (("a", schedule.first, schedule.first_at), ("b", schedule.second, schedule.second_at)):
        if now == at:
            outcome.receipts[name] = outcome.session.post(f"message {name}", mode, id=name)
    if stops and not schedule.stops_before_posts:
        outcome.stopped = outcome.session.stop().stopped


def _crash(outcome: Outcome, turn: asyncio.Task[object], loop: asyncio.AbstractEventLoop) -> None:
    """Go on as a new process does: with what the store has, and nothing else."""
    outcome.crashed = True
    left = outcome.store.read("s")
    turn.cancel()
    while not turn.done():  # the old process does nothing that counts any more: its store is not looked at again
        _run_once(loop)
    turn.exception() if not turn.cancelled() else None
    outcome.session.close()
    outcome.store = MemoryStore()
    if left:
        lease = outcome.store.acquire("s")
        outcome.store.commit([Write(lease, left, 0)])
        outcome.store.release(lease)
    outcome.session = agent().session("s", outcome.store)
    _look(outcome)


def _drain(outcome: Outcome, loop: asyncio.AbstractEventLoop) -> None:
    """Run what waits, release what is held, and run that too. Afterwards nothing may be left."""
    session = outcome.session
    for _ in range(4):
        session.release()
        if not session.inbox.ready():
            break
        turn = loop.run_until_complete(session.arun())
        outcome.ended.append(turn.status)
        assert turn.status == "done", f"a stop has hit a later turn: {turn.reason}"
        _look(outcome)
    session.close()


def _look(outcome: Outcome) -> None:
    """The history is valid at this instant; remember the state."""
    view = outcome.session._log.view
    judge_messages(view.history.messages)
    events = tuple(event.kind for event in outcome.store.read("s"))
    waiting = tuple((message.id, message.mode, message.state) for message in view.inbox)
    outcome.states.add((events, waiting))


def check(outcome: Outcome, schedule: Schedule) -> None:
    """Check what must hold in every schedule."""
    events = [event.data for event in outcome.store.read("s")]
    posted = {"a", "b"} if not outcome.crashed else set(outcome.receipts)
    assert posted <= {data.id for data in events if isinstance(data, MessageAccepted)}, "an accepted message was lost"
    for name in posted:
        times = sum(isinstance(data, MessageApplied) and data.id == name for data in events)
        removed = sum(isinstance(data, MessageRemoved) and data.id == name for data in events)
        assert times + removed == 1, f"message {name} was applied {times} times"
    assert not outcome.session.inbox, "a message was left behind"
    _check_turns(outcome)
    if outcome.stopped and not outcome.crashed:
        assert outcome.ended[0] == "interrupted", "a stop that claims to have stopped the turn has not"
    said = [text for message in _told(outcome) for text in ("message a", "message b") if text in message]
    assert len(said) == len(set(said)), "a message is in the history twice"


def _told(outcome: Outcome) -> Iterator[str]:
    messages: list[Message] = outcome.session.full_history
    for message in messages:
        yield getattr(message, "text", "")


def _check_turns(outcome: Outcome) -> None:
    """Turns begin and end in order, one at a time, and take no events once they have ended."""
    running, over = "", set[str]()
    for event in outcome.store.read("s"):
        if isinstance(event.data, TurnStarted):
            assert not running, "a turn began while another was open"
            running = event.turn
        elif isinstance(event.data, TurnFinished):
            assert event.turn == running
            over.add(running)
            running = ""
        elif event.turn in over:
            assert isinstance(event.data, ToolFinishedLate | TurnRolledBack), f"{event.kind} after the end of its turn"
    assert not running, "a turn was left open"
