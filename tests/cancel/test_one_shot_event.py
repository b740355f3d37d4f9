"""Events that happen once."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading

import pytest

from halter import CancellationToken
from halter.cancel.one_shot_event import OneShotEvent
from tests.support.ctrl_c import CtrlC
from tests.support.processes import run_python
from tests.support.waiting import wait_until


def test_it_is_set_once_and_for_all() -> None:
    """Setting it runs each callback once; one that is registered later runs at once."""
    event = OneShotEvent()
    calls: list[str] = []
    event.on_set(lambda: calls.append("before"))
    assert (repr(event), event.is_set) == ("<OneShotEvent not set>", False)
    event.set()
    event.set()
    event.on_set(lambda: calls.append("after"))
    assert (repr(event), calls) == ("<OneShotEvent set>", ["before", "after"])


def test_a_callback_can_be_unregistered() -> None:
    """Unregistering in time says so, and the callback never runs."""
    event = OneShotEvent()
    calls: list[str] = []
    unregister = event.on_set(lambda: calls.append("called"))
    assert unregister()
    assert not unregister()
    event.set()
    assert not calls


def test_a_callback_that_fails_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    """The error of one callback keeps no other from running, and does not come out of set()."""
    event = OneShotEvent()
    calls: list[str] = []
    event.on_set(lambda: calls.append("first"))
    event.on_set(lambda: 1 / 0)
    event.on_set(lambda: calls.append("last"))
    event.set()
    assert sorted(calls) == ["first", "last"]
    assert "a callback of an event failed" in caplog.text


def test_waiting_ends_when_it_is_set_or_the_time_is_over() -> None:
    """A thread and a task that wait are woken from another thread; without that, a timeout ends the wait."""
    event = OneShotEvent()
    assert not event.wait(0.001)

    async def wait() -> tuple[bool, bool]:
        early = await event.wait_async(0.001)
        threading.Thread(target=event.set).start()
        return early, await event.wait_async()

    assert asyncio.run(wait()) == (False, True)
    assert event.wait()
    assert asyncio.run(wait()) == (True, True)


def test_a_task_that_waits_can_be_stopped_and_others_wait_on() -> None:
    """The wait of one ends with its token; the event is not set by that, and keeps nothing of the wait."""
    event, token = OneShotEvent(), CancellationToken()

    async def wait() -> list[bool]:
        stopped = asyncio.ensure_future(event.wait_async(token=token))
        other = asyncio.ensure_future(event.wait_async(token=CancellationToken()))
        await asyncio.sleep(0)  # both wait
        threading.Thread(target=token.cancel).start()
        ends = [await stopped, await event.wait_async(token=token), other.done()]
        threading.Thread(target=event.set).start()
        return [*ends, await other, await event.wait_async(token=token)]

    assert asyncio.run(wait()) == [False, False, False, True, True]
    assert not event._callbacks


def test_ctrl_c_in_set_loses_no_callback() -> None:
    """Wherever Ctrl+C lands in set(), once the event is set every callback is called: whoever waits is woken."""
    for nth in itertools.count(1):
        event = OneShotEvent()
        calls: list[int] = []
        for number in range(3):
            event.on_set(lambda number=number: calls.append(number))
        interrupt = CtrlC(nth, "one_shot_event.py")
        was_hit = interrupt.run(event.set)
        if event.is_set:  # else it came before the call had any effect
            wait_until(lambda calls=calls: set(calls) == {0, 1, 2})
        if not was_hit:
            assert calls == [2, 1, 0]
            break
    assert nth > 10


def test_ctrl_c_in_a_callback_has_it_called_again() -> None:
    """A callback that was interrupted halfway, and those behind it, are called by another thread."""
    event = OneShotEvent()
    threads: list[int] = []
    woken = threading.Event()

    def callback() -> None:
        threads.append(threading.get_ident())
        if len(threads) == 1:
            raise KeyboardInterrupt

    event.on_set(woken.set)
    event.on_set(callback)
    with pytest.raises(KeyboardInterrupt):
        event.set()
    assert woken.wait(10)
    assert threads[0] == threading.get_ident() != threads[1]
    assert len(threads) == 2


def test_it_can_be_awaited_while_the_interpreter_ends() -> None:
    """Then nothing can be imported any more: a task that awaits an event in a finalizer must not need to."""
    program = """
        import sys
        from halter.cancel.one_shot_event import OneShotEvent

        class Last:
            def __init__(self):
                self.event = OneShotEvent()
                self.event.set()

            def __del__(self, out=sys.stdout):
                sys.modules.clear()
                sys.meta_path = None
                try:
                    self.event.wait_async().send(None)
                except StopIteration as end:
                    print(end.value, file=out)

        last = Last()
        del last
    """
    measured = {name for name in os.environ if name.startswith("COVERAGE")}  # it cannot be, without modules
    result = run_python(program, env={name: value for name, value in os.environ.items() if name not in measured})
    assert (result.stdout, result.stderr) == ("True\n", "")
