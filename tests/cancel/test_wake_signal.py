"""The signal that wakes one waiting thread; and short waits on a busy machine, which once never ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from halter import CancellationToken
from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.wake_signal import WakeSignal
from tests.support.processes import run_python

SHORT = 1e-6
TIMES = 500


@pytest.fixture
def busy() -> Iterator[None]:
    """Other threads use the interpreter, so that a thread is often paused between two of its steps."""
    is_over = threading.Event()

    def spin() -> None:
        while not is_over.is_set():
            sum(range(1_000))

    threads = [threading.Thread(target=spin) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield
    is_over.set()
    for thread in threads:
        thread.join()


def test_it_wakes_one_wait() -> None:
    """It is set before or during the wait; setting it twice wakes once; without it the time passes."""
    woken = WakeSignal()
    woken.set()
    woken.set()
    assert woken.wait()
    assert not woken.wait(0)
    assert not woken.wait(-1)
    threading.Thread(target=woken.set).start()
    assert woken.wait(60)
    woken.set()
    assert woken.wait(1e12)


def test_a_signal_handler_may_set_it() -> None:
    """Also in the thread that waits for it."""
    woken = WakeSignal()
    before = signal.signal(signal.SIGUSR1, lambda *_: woken.set())
    try:
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        assert woken.wait(60)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_does_not_wake_the_main_thread_is_handled_soon() -> None:
    """A signal may come just before the thread blocks. Here another thread receives it, which wakes as little."""
    program = """
        import os, signal, threading
        from halter.cancel.wake_signal import WakeSignal

        def interrupt():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait()

        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            threading.Timer(0.2, interrupt).start()
            WakeSignal().wait()
        except KeyboardInterrupt:
            os._exit(0)
    """
    assert run_python(program).returncode == 0


WAITS: dict[str, Callable[[], object]] = {
    "WakeSignal": lambda: WakeSignal().wait(SHORT),
    "token.wait": lambda: CancellationToken().wait(SHORT),
    "OneShotEvent.wait": lambda: OneShotEvent().wait(SHORT),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_short_wait_ends_on_a_busy_machine(name: str, busy: None) -> None:
    """With a queue.SimpleQueue inside, a wait of which the time was over at its start blocked its thread for ever."""
    work = WAITS[name]
    threads = [threading.Thread(target=lambda: [work() for _ in range(TIMES)], daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 120
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    assert not any(thread.is_alive() for thread in threads)
