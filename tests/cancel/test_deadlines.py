"""The one thread of all deadlines."""

from __future__ import annotations

import logging
import threading

import pytest

from halter import CancellationToken
from halter.cancel.deadlines import timer
from tests.support.processes import run_python


def test_all_deadlines_share_one_thread() -> None:
    """A hundred deadlines, in any order, are one thread and fire in their order."""
    fired: list[float | None] = []
    done = threading.Event()
    with timer._lock:  # none fires before all is in place
        tokens = [CancellationToken(timeout=0.5 - n / 1000) for n in range(50)]
        for token in tokens:
            token.on_cancel(lambda token=token: fired.append(token.deadline))
        CancellationToken(timeout=0.6).on_cancel(done.set)
    assert done.wait(10)
    assert fired == sorted(token.deadline or 0.0 for token in tokens)
    assert [t.name for t in threading.enumerate()].count("halter-deadlines") == 1


def test_an_earlier_deadline_is_not_kept_waiting_by_a_later_one() -> None:
    """The thread, asleep until a far deadline, is woken for a near one."""
    far = CancellationToken(timeout=1000)
    assert CancellationToken(timeout=0.02).wait(10)
    assert not far.is_cancelled


def test_dropped_deadlines_are_swept() -> None:
    """A thousand calls that ended long before their deadline do not pile up."""
    for _ in range(2000):
        CancellationToken(timeout=1000)
    assert len(timer._heap) < 600


def test_a_token_cancelled_before_its_deadline_is_let_go() -> None:
    """When the deadline of a cancelled token comes, there is nothing to do."""
    token = CancellationToken(timeout=0.02)
    while not token.cancel("stop"):  # this thread was not run for so long
        token = CancellationToken(timeout=0.02)
    assert CancellationToken(timeout=0.05).wait(10)
    assert token.reason == "stop"


def test_a_callback_that_raises_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Not even a BaseException of a callback costs the other deadlines their timer."""

    def leave() -> None:
        raise SystemExit

    with timer._lock:  # it does not fire before the callback is there
        token = CancellationToken(timeout=0.3)
        token.on_cancel(leave)
    with caplog.at_level(logging.ERROR):
        assert CancellationToken(timeout=0.4).wait(10)
        assert CancellationToken(timeout=0.01).wait(10)
    assert "SystemExit" in caplog.text


def test_a_signal_handler_may_set_a_deadline_at_any_time() -> None:
    """Also in the middle of another one being set: no deadline is lost, and none raises."""
    program = """
        import signal, sys
        from halter import CancellationToken
        tokens, hits = [], 0
        def handler(number, frame):
            global hits
            hits += 1
            tokens.append(CancellationToken(timeout=0.5 - hits * 0.0001))
        signal.signal(signal.SIGALRM, handler)
        for round in range(1000):
            signal.setitimer(signal.ITIMER_REAL, 0.00005 + round % 10 * 0.00001)
            while hits <= round:
                tokens.append(CancellationToken(timeout=0.4 - len(tokens) % 1000 * 0.0001))
                if len(tokens) % 1000 == 0:
                    tokens[:-500] = [token for token in tokens[:-500] if not token.wait(0)]
        sys.exit(0 if all(token.wait(30) for token in tokens) else f"{len(tokens)} tokens")
    """
    result = run_python(program)
    assert result.returncode == 0, result.stderr
