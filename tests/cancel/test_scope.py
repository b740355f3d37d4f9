"""The asyncio scope: whose cancellation it is, and that none leaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from halter import NEVER, CancellationToken, Cancelled, checkpoint
from halter.cancel import scope
from halter.testing import DeafCoroutine, assert_cancels_within, interrupt_everywhere
from tests.support.waiting import wait_until


def run(main: Coroutine[Any, Any, Any]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def test_the_body_is_left_when_another_thread_cancels_an_idle_loop() -> None:
    """Nothing happens in the loop; the stop wakes it all the same, and Cancelled comes out."""

    async def main() -> None:
        async with assert_cancels_within(5) as token:
            async with token.scope() as same:
                assert same is token
                await asyncio.sleep(60)
        assert cancelling() == 0

    run(main())


def test_a_stop_before_the_first_await_is_not_lost() -> None:
    """Entering the scope of a cancelled token raises at once."""

    async def main() -> None:
        token = CancellationToken()
        token.cancel("early")
        with pytest.raises(Cancelled, match="early"):
            async with token.scope():
                pytest.fail("the body ran")

    run(main())


def test_a_body_that_finishes_stands() -> None:
    """A token that is cancelled as the body returns, or later, does not undo or haunt the finished work."""

    async def main() -> None:
        token = CancellationToken()
        async with token.scope():
            token.cancel()  # in this task: it is cancelled at its next await, and there is none
        await asyncio.sleep(0.01)
        assert cancelling() == 0
        other = CancellationToken()
        async with other.scope():
            await asyncio.sleep(0)
        other.cancel()
        await asyncio.sleep(0.01)

    run(main())


def test_a_foreign_cancellation_wins_and_is_told_to_those_below() -> None:
    """wait_for() around the scope raises TimeoutError, and the token is cancelled as external."""

    async def main() -> None:
        token = CancellationToken()

        async def work() -> None:
            async with token.scope():
                await asyncio.sleep(60)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(), 0.02)
        assert token.reason == "external"

    run(main())


def test_when_both_cancel_the_foreign_one_wins() -> None:
    """The stop and a foreign cancel() in one step: CancelledError comes out, and exactly the foreign one is left."""

    async def main() -> None:
        token = CancellationToken()
        counts: list[int] = []

        async def work() -> None:
            try:
                async with token.scope():
                    await asyncio.sleep(60)
            finally:
                counts.append(cancelling())

        for stop_first in (True, False):
            token = CancellationToken()
            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            if stop_first:
                token.cancel("stop")
                await asyncio.sleep(0)
            task.cancel()
            token.cancel("stop")
            await asyncio.wait([task])
            assert task.cancelled()
        assert counts == [1, 1]
        assert token.reason == "stop"

    run(main())


def test_a_checkpoint_in_the_body_does_not_hide_a_foreign_cancellation() -> None:
    """The body turns the error into Cancelled by a checkpoint; the foreign caller still gets CancelledError."""

    async def main() -> None:
        token = CancellationToken()

        async def work() -> None:
            async with token.scope():
                try:
                    await asyncio.sleep(60)
                finally:
                    token.cancel("stop")
                    token.raise_if_cancelled()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(main())


def test_a_checkpoint_in_the_body_leaves_it_as_it_is() -> None:
    """Cancelled that the body itself raised passes unchanged, also of a token below, and the count is restored."""

    async def main() -> None:
        token = CancellationToken()
        child = token.child()
        token_in_body = asyncio.Event()

        async def work() -> None:
            async with token.scope():
                token_in_body.set()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    child.raise_if_cancelled()

        task = asyncio.create_task(work())
        await token_in_body.wait()
        token.cancel()
        await asyncio.wait([task])
        exc = task.exception()
        assert isinstance(exc, Cancelled)
        assert exc.token is child

    run(main())


def test_cancelled_of_another_token_passes() -> None:
    """A scope does not touch another token's Cancelled, nor any other exception."""

    async def main() -> None:
        token, other = CancellationToken(), CancellationToken()
        other.cancel("other")
        with pytest.raises(Cancelled, match="other"):
            async with token.scope():
                other.raise_if_cancelled()
        with pytest.raises(ZeroDivisionError):
            async with token.scope():
                1 / 0  # noqa: B018
        assert not token.is_cancelled

    run(main())


def test_an_error_while_being_stopped_is_that_error() -> None:
    """A body that fails in its clean-up says so; the count of cancellations is restored."""

    async def main() -> None:
        token = CancellationToken()
        with pytest.raises(ZeroDivisionError):
            async with token.scope():
                try:
                    token.cancel()
                    await asyncio.sleep(60)
                finally:
                    1 / 0  # noqa: B018
        assert cancelling() == 0

    run(main())


def test_a_body_that_swallows_the_stop_is_told_once() -> None:
    """Nothing re-arms: a body that swallows the cancellation gets it once, and nothing of it is left afterwards."""

    async def main() -> None:
        deaf = DeafCoroutine()
        token = CancellationToken()

        async def release() -> None:
            await asyncio.to_thread(deaf.started.wait, 10)
            token.cancel()
            await asyncio.sleep(0.01)
            deaf.release()

        helper = asyncio.create_task(release())
        async with token.scope():
            assert await deaf() == "late"
        await helper
        assert deaf.swallowed == 1
        assert cancelling() == 0

    run(main())


def test_an_awaited_task_that_was_cancelled_by_others_is_not_our_stop() -> None:
    """CancelledError of something that the body awaited passes, and the token stays live."""

    async def main() -> None:
        token = CancellationToken()
        other = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(other.cancel)
        with pytest.raises(asyncio.CancelledError):
            async with token.scope():
                await other
        assert not token.is_cancelled

    run(main())


def test_an_awaited_task_that_the_stop_itself_cancelled_is_our_stop() -> None:
    """A callback of the token cancels what the body awaits: Cancelled comes out."""

    async def main() -> None:
        token = CancellationToken()
        other = asyncio.get_running_loop().create_future()
        token.on_cancel(other.cancel)
        with pytest.raises(Cancelled):
            async with token.scope():
                token.cancel()
                await other
        assert cancelling() == 0

    run(main())


def test_a_group_of_stopped_tasks_is_one_cancelled() -> None:
    """Tasks of a TaskGroup that raise Cancelled at their checkpoints come out as one Cancelled, not as a group."""

    async def main() -> None:
        token = CancellationToken()

        async def child() -> None:
            with token.bind():
                started.append(1)
                await token.wait_async()
                checkpoint()

        started: list[int] = []
        threading.Thread(target=lambda: wait_until(lambda: len(started) == 2) or token.cancel()).start()
        with pytest.raises(Cancelled) as caught:
            async with token.scope():
                async with asyncio.TaskGroup() as group:
                    group.create_task(child())
                    group.create_task(child())
        assert caught.value.token is token
        assert cancelling() == 0

    run(main())


def test_a_group_whose_task_hears_of_the_stop_first_is_one_cancelled() -> None:
    """A task of a TaskGroup that ends before the body is cancelled leaves no cancellation of the group behind."""

    async def main() -> None:
        token = CancellationToken()

        async def child() -> None:
            await asyncio.sleep(0)  # the body waits for its group by now
            token.cancel()
            token.raise_if_cancelled()

        with pytest.raises(Cancelled) as caught:
            async with token.scope():
                async with asyncio.TaskGroup() as group:
                    group.create_task(child())
                    group.create_task(token.wait_async())
        assert caught.value.token is token
        assert cancelling() == 0

    run(main())


def test_a_group_with_a_real_error_stays_a_group() -> None:
    """An error among stopped tasks is not hidden."""

    async def main() -> None:
        token = CancellationToken()

        async def fail() -> None:
            asyncio.get_running_loop().call_soon(waiting.set)  # runs when this task waits for the token
            await token.wait_async()
            raise ValueError("x")

        waiting = threading.Event()
        threading.Thread(target=lambda: waiting.wait(30) and token.cancel()).start()
        with pytest.raises(BaseExceptionGroup) as caught:
            async with token.scope():
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
        assert caught.group_contains(ValueError)

    run(main())


def test_scopes_nest_and_each_takes_only_its_own() -> None:
    """Stopping the inner scope leaves the outer body running; stopping the outer leaves both."""

    async def main() -> None:
        outer = CancellationToken()
        inner = outer.child()
        async with outer.scope():
            with pytest.raises(Cancelled):
                async with inner.scope():
                    inner.cancel("step")
                    await asyncio.sleep(60)
            await asyncio.sleep(0)
        second = outer.child()
        with pytest.raises(Cancelled):
            async with outer.scope():
                async with second.scope():
                    outer.cancel("turn")
                    await asyncio.sleep(60)
        assert cancelling() == 0

    run(main())


def test_the_scope_of_never_is_only_a_block() -> None:
    """NEVER cancels nothing, and a foreign cancellation passes through it."""

    async def main() -> None:
        async with NEVER.scope():
            await asyncio.sleep(0)

        async def work() -> None:
            async with NEVER.scope():
                await asyncio.sleep(60)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(), 0.01)

    run(main())


def test_a_scope_is_used_once_and_in_a_task() -> None:
    """Misuse says what to do: reuse, no task, leaving without entering."""

    async def main() -> None:
        scope = CancellationToken().scope()
        with pytest.raises(RuntimeError, match="never entered"):
            await scope.__aexit__(None, None, None)
        scope = CancellationToken().scope()
        async with scope:
            pass
        with pytest.raises(RuntimeError, match="already used"):
            async with scope:
                pass

        failed: list[BaseException] = []

        def outside_of_any_task() -> None:
            try:
                CancellationToken().scope().__aenter__().send(None)
            except RuntimeError as exc:
                failed.append(exc)

        asyncio.get_running_loop().call_soon(outside_of_any_task)
        await asyncio.sleep(0.01)
        assert "does not run in one" in str(failed[0])

    run(main())


async def nested_scopes(token: CancellationToken) -> None:
    async with token.scope():
        await asyncio.sleep(0)
        async with token.child().scope():
            await asyncio.sleep(0.001)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.001))
            group.create_task(asyncio.sleep(0))


async def nested_scopes_and_after(token: CancellationToken) -> None:
    try:
        await nested_scopes(token)
    except Cancelled as exc:
        assert exc.belongs_to(token)
    assert cancelling() == 0
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)


def test_a_stop_at_any_point_of_nested_scopes_leaks_nothing_behind_them() -> None:
    """Wherever the stop lands, what follows the scope runs undisturbed."""
    report = interrupt_everywhere(nested_scopes_and_after)
    assert len(report.points) > 100


async def foreign_everywhere(token: CancellationToken) -> None:
    """The stop is a foreign Task.cancel() here; it must come out as one, and reach the scope's token."""
    own = CancellationToken()
    loop = asyncio.get_running_loop()
    started = asyncio.Event()

    async def body() -> None:
        async with own.scope():
            started.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)

    task = asyncio.create_task(body())
    token.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))
    await asyncio.wait([task])
    if task.cancelled():
        assert own.reason == "external" or not started.is_set()
    else:
        assert task.exception() is None


def test_a_foreign_cancellation_at_any_point_comes_out_as_one() -> None:
    """Wherever other code cancels the task, it either finishes or ends cancelled, and then so are the tokens below."""
    assert len(interrupt_everywhere(foreign_everywhere).points) > 30


def test_nothing_is_kept_of_a_task_that_has_left_its_scopes() -> None:
    """Nested scopes around something that ends by itself: each cancels once, and nothing is left registered."""

    async def main() -> None:
        outer = CancellationToken()
        with pytest.raises(Cancelled):
            async with outer.scope():
                async with outer.child().scope():
                    with scope.ends_on_cancel(outer):
                        outer.cancel()
                        await asyncio.sleep(60)
        assert scope._ending_tasks == {}
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(main())
