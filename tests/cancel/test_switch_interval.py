"""The switch interval: low for half a second after a stop, then the user's again."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from halter import CancellationToken, tool
from halter.cancel.switch_interval import lower
from halter.models import ToolCall
from halter.tools.run.batch import Batch, BatchEnvironment
from halter.tools.tool import Tool
from tests.support.processes import run_python
from tests.support.waiting import wait_until

USERS = 0.004
RECENT = 0.5  # seconds for which it stays low after a stop


def is_low() -> bool:
    return sys.getswitchinterval() < 0.001


def lower_and_look() -> bool:
    """Whether a stop takes effect at once. A thread that stood still until the end of it proves nothing."""
    start = time.monotonic()
    lower()
    return is_low() or time.monotonic() - start > RECENT


def wait_until_restored(value: float = USERS) -> None:
    wait_until(lambda: sys.getswitchinterval() == pytest.approx(value))


def wait_for_the_restorer() -> None:
    """Wait for a later deadline: one thread handles them in order, so an earlier one has been handled by then."""
    CancellationToken(timeout=0.6).wait()


@pytest.fixture(autouse=True)
def _users_interval() -> Iterator[None]:
    """Each test starts with a value of the user's own, and the default is back after it."""
    default = sys.getswitchinterval()
    sys.setswitchinterval(USERS)
    yield
    wait_until(lambda: not is_low())
    sys.setswitchinterval(default)


def test_it_is_low_at_once_and_restored_later() -> None:
    """A stop takes effect at once, and the user's value comes back by itself."""
    assert lower_and_look()
    wait_until_restored()


def test_a_second_stop_extends_it() -> None:
    """The first one's end does not restore it while the second one is recent."""
    ended = CancellationToken(timeout=0.55)  # after the end of the first, before that of the second
    lower()
    CancellationToken(timeout=0.3).wait()
    second = time.monotonic()
    lower()
    ended.wait()
    assert is_low() or time.monotonic() - second > RECENT  # this thread stood still: it proves nothing
    wait_until_restored()


def test_a_value_that_the_user_sets_meanwhile_stays() -> None:
    """It is not overwritten, and a stop that comes later restores that value."""
    lower()
    sys.setswitchinterval(0.002)
    wait_for_the_restorer()
    assert sys.getswitchinterval() == pytest.approx(0.002)
    assert lower_and_look()
    wait_until_restored(0.002)


def test_a_value_of_the_users_that_is_lower_is_left_alone() -> None:
    """There is nothing to lower, and nothing to restore."""
    sys.setswitchinterval(0.00001)
    lower()
    assert sys.getswitchinterval() == pytest.approx(0.00001)
    wait_for_the_restorer()
    assert sys.getswitchinterval() == pytest.approx(0.00001)
    sys.setswitchinterval(USERS)


def test_a_batch_lowers_it_before_anything_else_hears_of_the_stop() -> None:
    """Its calls may hold the interpreter, so the interval is low before their tokens wake anybody."""
    token = CancellationToken()
    seen: list[bool] = []
    token.on_cancel(lambda: seen.append(is_low()))
    batch = Batch([ToolCall("1", "stop", "{}")], BatchEnvironment({"stop": stopper(token)}), token=token)
    assert not is_low()
    asyncio.run(batch.run())
    wait_until(lambda: seen)  # the loop may end before the thread that cancels has run the last callback
    assert seen == [True]


def stopper(token: CancellationToken) -> Tool[[], None]:
    @tool
    def stop() -> None:
        """Stop the batch."""
        token.cancel()

    return stop


def test_many_threads_leave_the_users_value() -> None:
    """Overlapping stops of eight threads: low after each of them, and the user's value in the end."""
    high: list[float] = []

    def work() -> None:
        high.extend(sys.getswitchinterval() for _ in range(500) if not lower_and_look())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not high
    wait_until_restored()


def test_signal_handlers_and_ctrl_c_leave_the_users_value() -> None:
    """A handler may call lower() inside lower(), and may raise there: nothing stays low for good."""
    program = """
        import signal, sys, threading
        from halter.cancel.switch_interval import lower
        class Raised(BaseException): pass
        hits = 0
        def handler(number, frame):
            global hits
            hits += 1
            lower()
            if frame.f_globals["__name__"].startswith("halter"):
                raise Raised
        signal.signal(signal.SIGALRM, handler)
        for round in range(500):
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + round % 10 * 0.00001)
            try:
                while hits <= round:
                    lower()
            except Raised:
                pass
        restored = threading.Event()
        for _ in range(300):
            if abs(sys.getswitchinterval() - 0.005) < 1e-6:
                sys.exit(0)
            restored.wait(0.1)
        sys.exit(f"still {sys.getswitchinterval()}")
    """
    result = run_python(program)
    assert result.returncode == 0, result.stderr


def test_a_forked_child_has_the_users_value() -> None:
    """The stop was the parent's."""
    lower()
    pid = os.fork()
    if pid == 0:  # pragma: no cover  (another process)
        os._exit(0 if abs(sys.getswitchinterval() - USERS) < 1e-6 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_without_a_thread_it_stays_as_it_is() -> None:
    """From Python 3.12 on no thread can be started when the interpreter ends, and at a limit of the system neither. A
    stop printed a traceback then, and after such a limit no deadline ever passed: the thread counted as started.
    """
    program = """
        import sys, threading
        from halter.cancel import CancellationToken
        from halter.cancel.switch_interval import lower

        start = threading.Thread.start
        def refuse(thread):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = refuse
        before = sys.getswitchinterval()
        lower()
        assert sys.getswitchinterval() == before
        threading.Thread.start = start
        assert CancellationToken(timeout=0.01).wait(20)
    """
    ended = run_python(program)
    assert (ended.returncode, ended.stderr) == (0, "")
