"""The rules of the token, one by one."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import logging
import os
import pickle
import signal
import sys
import threading
import time
import tracemalloc
import weakref
from typing import Any

import pytest

from halter import NEVER, CancellationToken, Cancelled
from halter.cancel import token_tree
from halter.cancel.registration import Waker
from tests.support.processes import run_python
from tests.support.waiting import wait_until


def test_a_fresh_token_is_live_and_owns_nothing() -> None:
    """A fresh token is not cancelled, has no reason, and has made no lock, dict or event."""
    token = CancellationToken()
    assert token.is_cancelled is False
    assert token.reason is None
    assert token.detail == ""
    assert token.deadline is None
    assert token._subs is None


def test_the_first_reason_wins_for_ever() -> None:
    """Only the first cancel() counts; its reason and detail stay."""
    token = CancellationToken()
    assert token.cancel("interrupt", detail="user typed") is True
    assert token.cancel("timeout", detail="later") is False
    assert (token.is_cancelled, token.reason, token.detail) == (True, "interrupt", "user typed")


def test_the_default_reason_is_interrupt() -> None:
    """Without a reason it is an interrupt."""
    token = CancellationToken()
    token.cancel()
    assert token.reason == "interrupt"


def test_a_token_is_true_whether_cancelled_or_not() -> None:
    """`if token and token.is_cancelled` means what it says, for NEVER too."""
    token = CancellationToken()
    assert token
    assert NEVER
    token.cancel()
    assert token


@pytest.mark.parametrize("reason", [None, "", 3, b"stop"])
def test_a_reason_is_a_nonempty_string(reason: object) -> None:
    """A reason that is not a string is refused, and the token stays live."""
    token = CancellationToken()
    with pytest.raises(TypeError, match="non-empty string"):
        token.cancel(reason)  # type: ignore[arg-type]
    assert not token.is_cancelled


def test_raise_if_cancelled_raises_a_base_exception_with_everything_on_it() -> None:
    """Cancelled passes `except Exception` and carries token, reason and detail."""
    token = CancellationToken()
    token.raise_if_cancelled()
    token.cancel("interrupt", detail="typed")
    with pytest.raises(Cancelled) as caught:
        try:
            token.raise_if_cancelled()
        except Exception:
            pytest.fail("a tool's `except Exception` swallowed the cancellation")
    assert caught.value.token is token
    assert (caught.value.reason, caught.value.detail) == ("interrupt", "typed")
    assert str(caught.value) == "interrupt: typed"
    other = CancellationToken()
    other.cancel("stop")
    assert str(Cancelled(other)) == "stop"


def test_a_child_is_cancelled_with_its_parent_and_alone() -> None:
    """Cancelling goes down the tree with the parent's reason, and never up."""
    root = CancellationToken()
    one, two = root.child("one"), root.child("two")
    grandchild = one.child()
    one.cancel("timeout", detail="slow")
    assert grandchild.is_cancelled
    assert (grandchild.reason, grandchild.detail) == ("timeout", "slow")
    assert not root.is_cancelled
    assert not two.is_cancelled
    root.cancel("stop")
    assert (two.reason, one.reason) == ("stop", "timeout")


def test_a_child_of_a_cancelled_parent_is_born_cancelled() -> None:
    """Work that starts after the stop finds it."""
    root = CancellationToken()
    root.cancel("interrupt", detail="typed")
    child = root.child()
    assert (child.is_cancelled, child.reason, child.detail) == (True, "interrupt", "typed")
    assert root._subs is None


def test_any_of_is_cancelled_with_the_first() -> None:
    """any_of() follows whichever of its tokens is cancelled first, and none of them follows it."""
    a, b = CancellationToken(), CancellationToken()
    either = CancellationToken.any_of(a, b)
    b.cancel("disconnect")
    assert (either.reason, a.is_cancelled) == ("disconnect", False)
    assert CancellationToken.any_of(a, b).is_cancelled
    CancellationToken.any_of(a).cancel()
    assert not a.is_cancelled


def test_any_of_never_links_to_nothing() -> None:
    """NEVER among the tokens adds nothing; none at all is a mistake."""
    token = CancellationToken.any_of(NEVER)
    assert not token.is_cancelled
    assert token._parents() == ()
    with pytest.raises(TypeError, match="at least one"):
        CancellationToken.any_of()


def test_any_of_is_observed_through_all_its_parents() -> None:
    """A callback on any_of() keeps it alive below each parent, and unregistering lets go of it in each."""
    a, b = CancellationToken(), CancellationToken()
    calls: list[int] = []
    CancellationToken.any_of(a, b).on_cancel(lambda: calls.append(1))
    gc.collect()
    b.cancel()
    a.cancel()
    assert calls == [1]


def test_the_whole_subtree_is_marked_before_any_callback_runs() -> None:
    """A callback that looks around sees the stop everywhere."""
    root = CancellationToken()
    leaves = [root.child().child() for _ in range(10)]
    seen: list[bool] = []
    for leaf in leaves:
        leaf.on_cancel(lambda: seen.append(all(leaf.is_cancelled for leaf in leaves)))
    root.cancel()
    assert seen == [True] * 10


def test_callbacks_run_newest_first_and_deepest_first() -> None:
    """What was built last is taken down first, as with nested blocks."""
    root = CancellationToken()
    child = root.child()
    order: list[str] = []
    child.on_cancel(lambda: order.append("child 1"))
    root.on_cancel(lambda: order.append("root 1"))
    root.on_cancel(lambda: order.append("root 2"))
    child.on_cancel(lambda: order.append("child 2"))
    root.cancel()
    assert order == ["child 2", "child 1", "root 2", "root 1"]


def test_waiters_wake_before_callbacks_run() -> None:
    """A slow callback does not delay waiters."""
    token = CancellationToken()
    woken = threading.Event()

    def wait() -> None:
        token.wait()
        woken.set()

    results: list[bool] = []
    token.on_cancel(lambda: results.append(woken.wait(10)))
    threading.Thread(target=wait).start()
    wait_until(lambda: token._observers == 2)
    token.cancel()
    assert results == [True]


def test_a_failing_callback_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    """cancel() never raises an Exception of a callback, and skips no other callback because of it."""
    token = CancellationToken()
    ran: list[int] = []
    token.on_cancel(lambda: ran.append(1))
    token.on_cancel(lambda: 1 / 0)
    token.on_cancel(lambda: ran.append(2))
    with caplog.at_level(logging.ERROR):
        assert token.cancel() is True
    assert ran == [2, 1]
    assert "ZeroDivisionError" in caplog.text


def test_a_base_exception_of_a_callback_comes_out_after_all_have_run() -> None:
    """A Ctrl+C that lands in a callback is not swallowed, and costs no other callback its turn."""
    token = CancellationToken()
    ran: list[int] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    token.on_cancel(lambda: ran.append(1))
    token.on_cancel(interrupted)
    with pytest.raises(KeyboardInterrupt):
        token.cancel()
    assert ran == [1]


def test_a_callback_may_use_the_token_it_belongs_to() -> None:
    """No lock is held while a callback runs: it may read, register, make children and cancel, in other threads too."""
    token = CancellationToken()
    done: list[object] = []

    def elsewhere() -> None:
        token.on_cancel(lambda: done.append("registered"))
        done.append(token.child().reason)
        done.append(token.cancel("again"))

    def callback() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(10)

    token.on_cancel(callback)
    token.cancel("stop")
    assert done == ["registered", "stop", False]


def test_a_callback_on_a_cancelled_token_runs_at_once_in_this_thread() -> None:
    """Registering too late is not too late."""
    token = CancellationToken()
    token.cancel()
    where: list[int] = []
    registration = token.on_cancel(lambda: where.append(threading.get_ident()))
    assert where == [threading.get_ident()]
    assert registration() is False


def test_unregistering_says_whether_the_callback_is_prevented() -> None:
    """True exactly once, and then the callback never runs."""
    token = CancellationToken()
    ran: list[int] = []
    registration = token.on_cancel(lambda: ran.append(1))
    with token.on_cancel(lambda: ran.append(2)):
        pass
    assert registration() is True
    assert registration() is False
    token.cancel()
    assert ran == []


def test_unregistering_does_not_wait_for_a_running_callback() -> None:
    """The classic deadlock: a callback that waits for the thread that unregisters it."""
    token = CancellationToken()
    is_running, go_on = threading.Event(), threading.Event()

    def callback() -> None:
        is_running.set()
        go_on.wait(10)

    registration = token.on_cancel(callback)
    canceller = threading.Thread(target=token.cancel)
    canceller.start()
    assert is_running.wait(10)
    assert registration() is False
    go_on.set()
    canceller.join(10)


def test_unregistering_while_a_callback_cancels_is_harmless() -> None:
    """A registration that is called from within the cancellation finds nothing left to remove."""
    token = CancellationToken()
    later: list[bool] = []
    first = token.on_cancel(lambda: later.append(False))
    token.on_cancel(lambda: later.append(first()))
    token.cancel()
    assert later == [True]


def test_wait_returns_true_when_cancelled_and_false_in_time() -> None:
    """wait() blocks until the stop or the timeout, and says which."""
    token = CancellationToken()
    assert token.wait(0.01) is False
    assert token.wait(0) is False
    threading.Timer(0.02, token.cancel).start()
    assert token.wait(10) is True
    assert token.wait() is True


def test_sleep_ends_early_with_cancelled() -> None:
    """sleep() sleeps, or raises as soon as the token is cancelled."""
    token = CancellationToken()
    token.sleep(0.001)
    threading.Timer(0.02, token.cancel).start()
    with pytest.raises(Cancelled):
        token.sleep(30)


def test_wait_async_wakes_an_idle_loop_from_another_thread() -> None:
    """A task that waits is resumed although nothing else happens in its loop."""

    async def main() -> None:
        token = CancellationToken()
        threading.Timer(0.02, token.cancel).start()
        await asyncio.wait_for(token.wait_async(), 10)
        await asyncio.wait_for(token.wait_async(), 10)

    asyncio.run(main())


def test_wait_async_that_is_cancelled_leaves_no_registration() -> None:
    """Giving up the wait takes the waker out again; a stop that is on its way then does nothing."""

    async def main() -> None:
        token = CancellationToken()
        task = asyncio.create_task(token.wait_async())
        await asyncio.sleep(0)
        token.cancel()
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert task.cancelled()

        fresh = CancellationToken()
        task = asyncio.create_task(fresh.wait_async())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert fresh._observers == 0

    asyncio.run(main())


def test_cancelling_for_a_loop_that_is_closed_is_harmless() -> None:
    """A waiter whose loop is closed is not woken, and that is no error."""
    token = CancellationToken()

    async def main() -> None:
        waiting = token.wait_async()
        waiting.send(None)
        main.waiting = waiting  # type: ignore[attr-defined]

    asyncio.run(main())
    assert token.cancel() is True
    main.waiting.close()  # type: ignore[attr-defined]


def test_a_deadline_cancels_with_reason_timeout() -> None:
    """A token with a timeout is cancelled by itself, and everything below it."""
    token = CancellationToken(timeout=0.02)
    child = token.child()
    assert child.wait(10)
    assert (token.reason, child.reason) == ("timeout", "timeout")
    assert "0.02" in token.detail


def test_a_deadline_is_the_least_of_ones_own_and_the_parents() -> None:
    """A child may shorten the time, never extend it."""
    parent = CancellationToken(timeout=100)
    assert parent.child().deadline == parent.deadline
    assert parent.child(timeout=1000).deadline == parent.deadline
    short = parent.child(timeout=1)
    assert short.deadline is not None
    assert short.deadline < time.monotonic() + 2
    assert CancellationToken.any_of(parent, short, CancellationToken()).deadline == short.deadline


def test_a_timeout_of_zero_is_over_at_once() -> None:
    """Zero seconds are over when the constructor returns."""
    assert CancellationToken(timeout=0).reason == "timeout"
    assert CancellationToken().child(timeout=0).is_cancelled


def test_a_deadline_of_a_token_that_only_its_callback_knows_still_fires() -> None:
    """An observed token is held by the timer; an unobserved one is not."""
    fired = threading.Event()
    CancellationToken(timeout=0.02).on_cancel(fired.set)
    gc.collect()
    assert fired.wait(10)
    dropped = weakref.ref(CancellationToken(timeout=100))
    assert dropped() is None


def test_unregistering_makes_the_timer_forget_the_token_again() -> None:
    """A deadline keeps its token alive only while the token is observed."""
    token = CancellationToken(timeout=100)
    registration = token.on_cancel(print)
    registration()
    reference = weakref.ref(token)
    del token, registration
    assert reference() is None


def test_dropped_children_leave_nothing_behind() -> None:
    """A parent that lives long keeps neither its dropped children nor the room they took."""
    parent = CancellationToken()
    parent.child()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        children = [parent.child() for _ in range(10_000)]
        del children
        assert tracemalloc.get_traced_memory()[0] - before < 5000  # half a byte each; a dict would keep 30
    finally:
        tracemalloc.stop()
    registrations = [parent.on_cancel(print) for _ in range(1000)]
    for registration in registrations:
        registration()
    assert parent._subs is None


def test_a_child_is_held_from_above_only_while_it_is_observed() -> None:
    """The callback of a dropped child still runs at the stop; a child without one is freed at once."""
    root = CancellationToken()
    heard: list[int] = []
    registration = root.child().child().on_cancel(lambda: heard.append(1))
    gc.collect()
    assert root._observers == 1
    registration()
    assert root._observers == 0
    del registration
    gc.collect()
    assert not root._subs
    root.child().child().on_cancel(lambda: heard.append(2))
    gc.collect()
    root.cancel()
    assert heard == [2]


def test_two_observers_of_one_child_count_as_two() -> None:
    """The link from above stays strong until the last observer is gone."""
    root = CancellationToken()
    child = root.child()
    one, two = child.on_cancel(print), child.on_cancel(print)
    one()
    reference = weakref.ref(child)
    del child, one
    gc.collect()
    assert reference() is not None
    two()
    del two
    gc.collect()
    assert reference() is None


def test_a_parent_lets_go_of_a_child_that_was_cancelled_alone() -> None:
    """A program that lives for months kept a token of every session that was ever stopped: none was unlinked."""
    program, other = CancellationToken(), CancellationToken()
    session = program.child("session")
    either = CancellationToken.any_of(session, other)
    either.on_cancel(lambda: None)
    assert (program._observers, other._observers) == (1, 1)
    session.cancel()
    assert (program._observers, other._observers) == (0, 0)
    either.on_cancel(lambda: None)  # too late to observe anything
    references = [weakref.ref(session), weakref.ref(either)]
    del session, either
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert not program._subs
    assert not other._subs


def test_a_chain_of_100_000_tokens_is_cancelled_without_recursion() -> None:
    """Depth is no limit."""
    chain = [CancellationToken()]
    for _ in range(100_000):
        chain.append(chain[-1].child())
    chain[0].cancel("deep")
    assert chain[-1].reason == "deep"
    while chain:  # from the leaf up: freeing a long chain from its root would recurse in C
        chain.pop()


def test_cancelled_belongs_to_the_token_and_to_those_above() -> None:
    """A scope may catch only what its own tokens have raised."""
    root = CancellationToken()
    child = CancellationToken.any_of(root, CancellationToken()).child()
    other = CancellationToken()
    child.cancel()
    exc = Cancelled(child)
    assert exc.belongs_to(child)
    assert not exc.belongs_to(root)  # it is alive: this was not its doing
    root.cancel()
    other.cancel()
    assert exc.belongs_to(root)
    assert not exc.belongs_to(other)


@pytest.mark.parametrize("timeout", [-1, float("nan"), -0.001])
def test_a_negative_or_nan_timeout_is_refused(timeout: float) -> None:
    """A timeout that makes no sense is an error with the cure in it, at every door."""
    token = CancellationToken()
    for door in (
        lambda: CancellationToken(timeout=timeout),
        lambda: token.child(timeout=timeout),
        lambda: token.wait(timeout),
        lambda: token.sleep(timeout),
    ):
        with pytest.raises(ValueError, match="zero or more seconds"):
            door()


@pytest.mark.parametrize("timeout", ["5", None, True])
def test_a_duration_must_be_a_number(timeout: object) -> None:
    """A string or a bool is no duration."""
    with pytest.raises(TypeError, match="number of seconds"):
        CancellationToken().sleep(timeout)  # type: ignore[arg-type]


def test_an_infinite_timeout_means_no_limit() -> None:
    """Infinity is accepted and waits as long as the platform can."""
    token = CancellationToken(timeout=float("inf"))
    threading.Timer(0.02, token.cancel).start()
    assert token.wait(float("inf")) is True


def test_bad_use_gets_a_clear_error() -> None:
    """Not callable, pickling and copying all say what to do instead."""
    token = CancellationToken()
    with pytest.raises(TypeError, match="needs a function"):
        token.on_cancel("print")  # type: ignore[arg-type]
    for misuse in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="lives in one process"):
            misuse(token)


def test_never_cannot_be_cancelled_and_holds_nothing() -> None:
    """NEVER refuses cancel(), and nothing that hangs on it is kept."""
    with pytest.raises(TypeError, match="NEVER cannot be cancelled"):
        NEVER.cancel("stop")
    assert NEVER.wait(0.001) is False
    child = NEVER.child("mine", timeout=100)
    assert child._parents() == ()
    assert child.deadline is not None
    assert NEVER.on_cancel(print)() is True
    assert NEVER._subs is None
    assert repr(NEVER) == "NEVER"


def test_a_token_shows_its_place_in_the_tree() -> None:
    """repr() names the path from the root, and the reason."""
    turn = CancellationToken(name="session").child("turn")
    call = turn.child("call")
    assert repr(call) == "<CancellationToken session/turn/call live>"
    turn.cancel("interrupt")
    assert repr(call) == "<CancellationToken session/turn/call cancelled: interrupt>"
    assert repr(CancellationToken.any_of(turn, call)).startswith("<CancellationToken session/turn|session/turn/call ")
    assert "0x" in repr(CancellationToken())


def test_cancel_from_a_signal_handler_wakes_the_interrupted_wait() -> None:
    """The main thread waits, the handler runs in the main thread and cancels; the wait ends."""
    token = CancellationToken()
    old = signal.signal(signal.SIGUSR1, lambda *_: token.cancel("signal"))
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert token.wait(10) is True
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_cancel_from_a_finalizer_works_under_the_tokens_own_lock() -> None:
    """__del__ may run anywhere, also while this thread is inside the token's lock."""
    token = CancellationToken()

    class Owner:
        def __del__(self) -> None:
            token.cancel("dropped")

    owner = Owner()
    with token_tree.lock:
        del owner
        gc.collect()
    assert token.reason == "dropped"


def test_a_ctrl_c_while_the_children_are_sorted_is_made_up_for() -> None:
    """What had been taken from the token before the interruption is not lost."""

    class Bomb:
        exploded = False

        @property
        def __class__(self) -> type:
            if not Bomb.exploded:
                Bomb.exploded = True
                raise KeyboardInterrupt
            return weakref.ref

        def __call__(self) -> None:
            return None  # as a weak reference to a child that is just being freed

    root = CancellationToken()
    children = [root.child() for _ in range(3)]
    assert root._subs is not None
    root._subs[1] = Bomb()
    children.append(root.child())
    with pytest.raises(KeyboardInterrupt):
        root.cancel()
    assert all(child.is_cancelled for child in children)


def test_a_defect_within_cancel_is_raised_and_not_tried_for_ever() -> None:
    """What fails again and again is no signal: it comes out instead of pinning a core."""

    class Broken:
        @property
        def __class__(self) -> type:
            raise LookupError("a defect")

    root = CancellationToken()
    root.child()
    assert root._subs is not None
    root._subs[1] = Broken()
    with pytest.raises(LookupError, match="a defect"):
        root.cancel()
    assert root.is_cancelled


def test_a_cancel_within_a_cancel_finds_the_rest_of_the_tree() -> None:
    """A signal handler cancels the root while the main thread is in the middle of cancelling a branch of it."""
    cancel_code = CancellationToken.cancel.__code__
    for nth in range(1, 80):
        root = CancellationToken()
        branch, other = root.child(), root.child()
        leaf = branch.child()
        woken: list[str] = []
        for token, name in ((leaf, "leaf"), (other, "other"), (branch, "branch")):
            token.on_cancel(lambda name=name: woken.append(name))
        lines = 0

        def trace(frame: object, event: str, arg: object, nth: int = nth, root: CancellationToken = root) -> object:
            nonlocal lines
            if frame.f_code is not cancel_code:  # type: ignore[attr-defined]
                return None
            lines += event == "line"
            if lines == nth:
                root.cancel("root")
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            branch.cancel("branch")
        finally:
            sys.settrace(before)
        root.cancel("root")
        assert sorted(woken) == ["branch", "leaf", "other"]
        assert leaf.reason in {"branch", "root"}
        assert other.reason == "root"


def test_a_dict_that_is_used_again_as_it_is_dropped_is_kept() -> None:
    """Whoever adds a child in the very moment in which the last other one goes is not lost."""
    root = CancellationToken()
    root.child()
    subs = root._subs
    assert subs is not None
    child = root.child()
    root._shrink(subs)  # as the other one's finalizer would, having found it empty just before
    assert root._subs is subs
    root._shrink({})
    assert root._subs is subs
    root.cancel()
    assert child.is_cancelled


def test_a_ctrl_c_at_any_line_of_cancel_loses_no_flag_and_no_waiter() -> None:
    """KeyboardInterrupt is raised before each line of cancel() in turn; everything below is cancelled all the same."""
    cancel_code = CancellationToken.cancel.__code__
    source, first_line = inspect.getsourcelines(CancellationToken.cancel)
    lock_line = first_line + next(number for number, line in enumerate(source) if "with token_tree.lock:" in line)

    def build() -> tuple[CancellationToken, list[CancellationToken], list[str]]:
        root = CancellationToken()
        tokens = [root, *(root.child() for _ in range(2))]
        tokens.append(tokens[1].child(timeout=1000))
        woken: list[str] = []
        for number, token in enumerate(tokens):
            token._register(Waker(token, lambda number=number: woken.append(f"waker {number}")))
        tokens[-1].on_cancel(lambda: woken.append("callback"))
        return root, tokens, woken

    def cancel_with_interrupt_at(nth: int) -> bool:
        root, tokens, woken = build()
        lines = 0

        def trace(frame: object, event: str, arg: object) -> object:
            nonlocal lines
            if frame.f_code is not cancel_code:  # type: ignore[attr-defined]
                return None
            # Python looks for signals at calls and jumps; between the block's last line and the lock's release
            # there is neither.
            is_leaving_lock = frame.f_lineno == lock_line and token_tree.lock._is_owned()  # type: ignore[attr-defined]
            if event == "line" and not is_leaving_lock:
                lines += 1
                if lines == nth:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            root.cancel("stop")
            was_interrupted = False
        except KeyboardInterrupt:
            was_interrupted = True
        finally:
            sys.settrace(before)
        if not root.is_cancelled:
            assert was_interrupted  # before the first flag was set: the stop was never taken
            return True
        assert all(token.reason == "stop" for token in tokens)
        assert set(woken) >= {f"waker {number}" for number in range(4)}
        assert "callback" in woken
        return was_interrupted

    nth = 1
    while cancel_with_interrupt_at(nth):
        nth += 1
    assert nth > 40


def test_a_signal_handler_that_cancels_at_any_line_of_cancel_does_no_harm() -> None:
    """A second stop came by a signal into the middle of the first, in the same thread, and cancel() span for ever.

    In a program of its own, which can be ended: nothing that is raised into a cancel() that spins would leave it.
    """
    program = """
        import sys
        from halter.cancel.registration import Waker
        from halter.cancel.token import CancellationToken

        def cancel_with_another_at(nth):
            root = CancellationToken()
            middle = root.child()
            leaf = middle.child(timeout=1000)
            told = []
            leaf._register(Waker(leaf, lambda: told.append("waker")))
            leaf.on_cancel(lambda: told.append("callback"))
            lines = 0

            def trace(frame, event, arg):
                nonlocal lines
                if frame.f_code is not CancellationToken.cancel.__code__:
                    return None
                if event == "line":
                    lines += 1
                    if lines == nth:
                        root.cancel("second")
                return trace

            sys.settrace(trace)
            try:
                middle.cancel("first")
            finally:
                sys.settrace(None)
            assert middle.is_cancelled and leaf.is_cancelled
            assert "waker" in told and told.count("callback") == 1, told
            assert root.is_cancelled == (nth <= lines)
            return root.is_cancelled

        nth = 1
        while cancel_with_another_at(nth):
            nth += 1
        assert nth > 30, nth
    """
    ended = run_python(program, timeout=20)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_working_tokens_and_deadlines() -> None:
    """After fork() no lock is stuck and deadlines, old and new, go on firing."""
    old = CancellationToken(timeout=0.05)
    dropped = CancellationToken(timeout=1000)
    del dropped
    with token_tree.lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if old.wait(10) and CancellationToken(timeout=0.01).wait(10) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert old.wait(10)


def test_a_forked_child_without_deadlines_starts_no_thread() -> None:
    """Only a child that has a deadline to watch pays for a thread."""
    program = """
        import os, threading
        from halter import CancellationToken
        CancellationToken(timeout=1000)
        pid = os.fork()
        if pid == 0:
            os._exit(threading.active_count() - 1)
        raise SystemExit(os.waitpid(pid, 0)[1])
    """
    assert run_python(program).returncode == 0


@pytest.mark.parametrize("kept", ["None", "sys.modules.copy()"])
def test_a_token_that_outlives_the_modules_ends_quietly(kept: str) -> None:
    """At its end the interpreter sets the globals of modules to None. Tokens that something still referred to then
    printed a TypeError for each of them: under Django, on Python 3.11.
    """
    program = f"""
        import os, sys
        from halter import CancellationToken
        parent, other = CancellationToken(), CancellationToken()
        sys.kept = [os, {kept}]  # the module os is emptied after those that were imported later
        os.kept = [[parent.child() for _ in range(100)], CancellationToken.any_of(parent, other)]
    """
    ended = run_python(program)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_stop_wakes_an_event_loop_once_for_all_its_waiters() -> None:
    """Fifty tasks that wait below one token cost one wake-up of their loop, and all of them end."""

    class CountingLoop(asyncio.SelectorEventLoop):
        wake_ups = 0

        def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
            self.wake_ups += 1
            return super().call_soon_threadsafe(*args, **kwargs)

    loop = CountingLoop()
    root = CancellationToken()

    async def main() -> int:
        tasks = [asyncio.create_task(root.child().wait_async()) for _ in range(50)]
        await asyncio.sleep(0)
        before = loop.wake_ups
        thread = threading.Thread(target=root.cancel)
        thread.start()
        await asyncio.gather(*tasks)
        thread.join()
        return loop.wake_ups - before

    try:
        assert loop.run_until_complete(main()) == 1
    finally:
        loop.close()
