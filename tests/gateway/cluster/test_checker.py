"""The checker of the fault runner finds what it is meant to find."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from bench.cluster_checker import Commit, Report, check

_LOG: list[dict[str, Any]] = [
    {"seq": 1, "turn": "", "data": {"type": "session.created"}},
    {"seq": 2, "turn": "", "data": {"type": "message.accepted", "id": "m1"}},
    {"seq": 3, "turn": "t1", "data": {"type": "turn.started"}},
    {"seq": 4, "turn": "t1", "data": {"type": "message.applied", "id": "m1"}},
    {"seq": 5, "turn": "t1", "data": {"type": "turn.finished", "status": "interrupted"}},
    {"seq": 6, "turn": "", "data": {"type": "message.accepted", "id": "m2"}},
    {"seq": 7, "turn": "", "data": {"type": "message.held", "id": "m2"}},
]
_COMMITS = [Commit(1, is_fence=True), Commit(1, is_fence=False), Commit(2, is_fence=True), Commit(2, is_fence=False)]
_Plant = Callable[[Report, list[dict[str, Any]], list[Commit]], object]


def parts() -> tuple[Report, list[dict[str, Any]], list[Commit]]:
    log = copy.deepcopy(_LOG)
    return Report("s", {"m1", "m2"}, {"t1"}, copy.deepcopy(log)), log, list(_COMMITS)


def without(log: list[dict[str, Any]], seq: int) -> None:
    """Remove an event, as if it had never been: the numbers have no gap."""
    log[:] = [{**event, "seq": number} for number, event in enumerate((e for e in log if e["seq"] != seq), 1)]


def in_both(change: Callable[[list[dict[str, Any]]], object]) -> _Plant:
    """Change the log, and what the stream has seen of it."""

    def plant(report: Report, log: list[dict[str, Any]], _commits: list[Commit]) -> None:
        change(log)
        change(report.seen)

    return plant


def again(log: list[dict[str, Any]], seq: int) -> None:
    """Have an event a second time, at the end."""
    log.append({**log[seq - 1], "seq": len(log) + 1})


def test_what_is_well_is_not_blamed() -> None:
    """A log that keeps the promises has no violations."""
    assert check(*parts()) == []


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (in_both(lambda log: without(log, 2)), "acknowledged, and is 0 times in the log"),
        (in_both(lambda log: without(log, 7)), "neither applied nor held"),
        (in_both(lambda log: again(log, 4)), "applied 2 times"),
        (in_both(lambda log: again(log, 2)), "accepted 2 times"),
        (in_both(lambda log: log[4]["data"].update(status="done")), "was stopped, said the receipt, and is done"),
        (in_both(lambda log: without(log, 5)), "never ended"),
        (in_both(lambda log: again(log, 5)), "was not running"),
        (in_both(lambda log: log.insert(3, {**log[2], "turn": "t2", "seq": 99})), "while t1 was running"),
        (in_both(lambda log: log.pop(3)), "a gap or a repeat"),
        (lambda report, log, commits: report.seen.pop(2), "a stream had a gap or a repeat"),
        (lambda report, log, commits: report.seen.insert(2, report.seen[2]), "a stream had a gap or a repeat"),
        (lambda report, log, commits: report.seen.pop(), "did not come to the end"),
        (lambda report, log, commits: report.seen[2].update(turn="other"), "something else than the log"),
        (lambda report, log, commits: commits.append(Commit(1, is_fence=False)), "wrote after generation 2"),
        (lambda report, log, commits: commits.append(Commit(2, is_fence=True)), "began twice"),
        (lambda report, log, commits: commits.append(Commit(3, is_fence=False)), "never began"),
    ],
)
def test_a_planted_violation_is_found(plant: _Plant, said: str) -> None:
    """Each broken promise is named."""
    report, log, commits = parts()
    plant(report, log, commits)
    assert any(said in each for each in check(report, log, commits)), check(report, log, commits)
