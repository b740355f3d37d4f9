"""Judges what happened in a cluster, only by what clients saw and by what is in the log.

It knows nothing of nodes, leases and faults. `tests/gateway/cluster/test_checker.py` shows it planted violations.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Commit", "Report", "check"]


class Commit(NamedTuple):
    """One message of a session's log, as the servers have it. A fence is empty: with it a new owner begins."""

    generation: int
    is_fence: bool
    is_merged: bool = False  # it repeats what an owner found in the log; the fence of that owner may be purged


@dataclass
class Report:
    """What the clients of one session saw."""

    session: str
    accepted: set[str] = field(default_factory=set)
    """The ids of messages that were acknowledged."""
    stopped: set[str] = field(default_factory=set)
    """The ids of turns of which a client was told that its stop has stopped them."""
    seen: list[dict[str, Any]] = field(default_factory=list)
    """The events of a stream, in the order in which they came, over all its connections."""


def check(report: Report, events: list[dict[str, Any]], commits: list[Commit]) -> list[str]:
    """The violations in a session that has come to rest; none if all is well. *events* is its log."""
    found = [
        *_check_numbers(events),
        *_check_messages(report, events),
        *_check_turns(report, events),
        *_check_stream(report, events),
        *_check_owners(commits),
    ]
    return [f"{report.session}: {each}" for each in found]


def _check_numbers(events: list[dict[str, Any]]) -> list[str]:
    numbers = [event["seq"] for event in events]
    return [] if numbers == list(range(1, len(numbers) + 1)) else ["the numbers of the log have a gap or a repeat"]


def _of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["data"]["type"] == kind]


def _check_messages(report: Report, events: list[dict[str, Any]]) -> list[str]:
    found = []
    accepted = Counter(event["data"]["id"] for event in _of(events, "message.accepted"))
    applied = Counter(event["data"]["id"] for event in _of(events, "message.applied"))
    held = {event["data"]["id"] for event in _of(events, "message.held")}
    for message in sorted(report.accepted):
        if accepted[message] != 1:
            found.append(f"message {message} was acknowledged, and is {accepted[message]} times in the log")
        if applied[message] == 0 and message not in held:
            found.append(f"message {message} was acknowledged, and neither applied nor held")
    found += [f"message {message} was applied {count} times" for message, count in applied.items() if count > 1]
    found += [f"message {message} was accepted {count} times" for message, count in accepted.items() if count > 1]
    return found


def _check_turns(report: Report, events: list[dict[str, Any]]) -> list[str]:
    found = []
    running = ""
    status: dict[str, str] = {}
    for event in events:
        kind, turn = event["data"]["type"], event["turn"]
        if kind == "turn.started":
            if running:
                found.append(f"turn {turn} started while {running} was running")
            running = turn
        elif kind == "turn.finished":
            if running != turn:
                found.append(f"turn {turn} finished, and was not running")
            running, status[turn] = "", event["data"]["status"]
    if running:
        found.append(f"turn {running} never ended")
    found += [
        f"turn {turn} was stopped, said the receipt, and is {status.get(turn, 'not there')}"
        for turn in sorted(report.stopped)
        if status.get(turn) != "interrupted"
    ]
    return found


def _check_stream(report: Report, events: list[dict[str, Any]]) -> list[str]:
    numbers = [event["seq"] for event in report.seen]
    if numbers != list(range(1, len(numbers) + 1)):
        return ["a stream had a gap or a repeat"]
    if report.seen != events[: len(report.seen)]:
        return ["a stream showed something else than the log has"]
    return [] if len(report.seen) == len(events) else ["a stream did not come to the end of the log"]


def _check_owners(commits: list[Commit]) -> list[str]:
    found = []
    now, begun = 0, set()
    for commit in commits:
        if commit.is_fence:
            if commit.generation in begun:
                found.append(f"generation {commit.generation} began twice")
            begun.add(commit.generation)
        if commit.is_merged:
            begun.add(commit.generation)
        if commit.generation < now:
            found.append(f"generation {commit.generation} wrote after generation {now} had begun")
        elif not commit.is_fence and commit.generation not in begun:
            found.append(f"generation {commit.generation} wrote, and never began")
        now = max(now, commit.generation)
    return found
