"""Law 2, complete: what can be stopped is stopped, and what cannot is named and fenced."""

from __future__ import annotations

from halter import CancellationToken
from halter.cancel import abandoned
from halter.cancel.isolation import worker_process
from halter.cancel.processes import registry
from halter.testing import interrupt_everywhere
from tests.support.core_work import all_kinds_of_work, is_whole_or_cancelled
from tests.support.turn_scenarios import a_foreign_cancellation, try_decisions
from tests.support.waiting import wait_until


async def scenario(token: CancellationToken) -> None:
    for what, end in (await all_kinds_of_work(token)).items():
        assert is_whole_or_cancelled(what, end), f"{what}: {end!r}"


def nothing_is_left() -> None:
    wait_until(lambda: len(abandoned) == 0)
    wait_until(lambda: len(registry.roots()) == len(worker_process.shared_workers.workers))


def test_a_stop_anywhere_leaves_no_process_and_no_thread_behind() -> None:
    """Task, threads, process and worker, stopped at every point: each ends whole or cancelled, and nobody is left."""
    report = interrupt_everywhere(scenario, check=nothing_is_left, repeat=1)
    assert len(report.points) > 400
    assert len(report.missed) < len(report.points) / 5


def test_a_turn_that_a_stranger_cancels_leaves_nothing_running() -> None:
    """A foreign cancellation at any point of a turn: it is sealed, then passes on; no thread or process is left."""
    try_decisions(a_foreign_cancellation)
