"""Inbox, turn and token in every order: two posts, one stop and a crash, at every iteration of a turn's event loop.

The suite plays a part of the schedules, spread evenly. `HALTER_LONG=1 pytest tests/session/test_exploration.py -s`
plays all of them and prints how many states they visited.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from halter.events import Mode
from tests.support.exploration import NEVER, Outcome, Schedule, agent, check, play

MODES: tuple[Mode, ...] = ("queue", "steer", "interrupt", "rollback")
LONG = bool(os.environ.get("HALTER_LONG"))
ITERATIONS = 16  # a turn with one call and no disturbance has 14; later actors find no turn
PLAYED = 200  # in the suite


@pytest.fixture(scope="module", autouse=True)
def _guardian() -> None:
    """Start the guardian: the first call of a process waits for that, in a thread that no schedule controls."""
    with agent().session() as session:
        session.run("go")


def schedules(*, crashes: bool) -> Iterator[Schedule]:
    """All schedules, in a fixed order. The order of two posts in one iteration is covered by both orders of modes."""
    stops = [(NEVER, False), *itertools.product(range(ITERATIONS), (True, False))]
    for first, second in itertools.product(MODES, MODES):
        for first_at, second_at in itertools.product(range(ITERATIONS), range(ITERATIONS)):
            for stop_at, before in stops:
                for crash_at in range(ITERATIONS) if crashes else [NEVER]:
                    yield Schedule(first, first_at, second, second_at, stop_at, before, crash_at)


def some(*, crashes: bool) -> Iterator[Schedule]:
    """All schedules, or every nth: n has no factor in common with the ranges, so that all values of each occur."""
    total = len(MODES) ** 2 * ITERATIONS**2 * (2 * ITERATIONS + 1) * (ITERATIONS if crashes else 1)
    every = 1 if LONG and not crashes else total // (40_000 if LONG else PLAYED) | 1
    return itertools.islice(schedules(crashes=crashes), 0, None, every)


@pytest.mark.parametrize("crashes", [False, True], ids=["without a crash", "with a crash"])
@pytest.mark.timeout(0 if LONG else 120)
def test_no_order_of_posts_stops_and_crashes_breaks_a_law(crashes: bool) -> None:
    """In every order each accepted message is applied once, the history is valid at every instant, turns begin and end
    one at a time, a stop hits only its own turn, and its receipt tells the truth.
    """
    states = set[tuple[object, ...]]()
    played = 0
    for schedule in some(crashes=crashes):
        try:
            outcome = play(schedule)
            check(outcome, schedule)
        except Exception as exc:
            raise AssertionError(f"{schedule}: {exc}") from exc
        states |= outcome.states
        played += 1
    print(f"{played} schedules, {len(states)} states, none bad")
    assert played >= PLAYED
    assert len(states) > 100


def test_the_explorer_sees_a_message_that_is_applied_twice() -> None:
    """The checks can fail: a log in which a message was applied twice is found."""
    schedule = Schedule("queue", 2, "steer", 3, NEVER, stops_before_posts=False)
    outcome = play(schedule)
    check(outcome, schedule)
    _repeat(outcome, "message.applied")
    with pytest.raises(AssertionError, match="applied 2 times"):
        check(outcome, schedule)


def _repeat(outcome: Outcome, kind: str) -> None:
    events = outcome.store._logs["s"].events
    events.append(next(event for event in reversed(events) if event.kind == kind))
