"""run_detached: what the work raises comes out, and work that does not end delays nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import weakref
from asyncio import run
from typing import TYPE_CHECKING, Any

import pytest

from halter.cancel import CancellationToken, Cancelled, run_process
from halter.cancel.detach import run_detached

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SHORT = 0.01


async def detached(
    work: Callable[[], Awaitable[None]], token: CancellationToken, grace: float = SHORT, **callbacks: Any
) -> None:
    """Run *work* detached, with a short grace."""
    await run_detached(work, token, grace=grace, name="it", **callbacks)


class Deaf:
    """Work that goes on when it is cancelled, until it is released."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.told = asyncio.Event()
        self.error = error

    async def __call__(self) -> None:
        self.reached.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.told.set()
        if self.error is not None:
            raise self.error


def test_what_it_raises_comes_out() -> None:
    """Its own error is the caller's to handle, and is gone with it: no cycle keeps the frames of a request alive."""

    class Own(Exception):
        def __len__(self) -> int:
            return 0  # an error that is not true is an error all the same

    async def fails() -> None:
        raise Own

    async def main() -> None:
        gc.collect()
        gc.disable()
        try:
            try:
                await detached(fails, CancellationToken())
            except Own as exc:
                seen = weakref.ref(exc)
            await asyncio.sleep(0)
            assert seen() is None
        finally:
            gc.enable()

    run(main())


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_comes_out_where_it_is_awaited(kind: type[BaseException]) -> None:
    """SystemExit in a task ended the event loop, without the clean-up of the code that awaited the task."""

    async def exits() -> None:
        raise kind

    async def main() -> None:
        with pytest.raises(kind):
            await detached(exits, CancellationToken())

    run(main())


def test_a_ctrl_c_in_what_was_left_is_not_lost() -> None:
    """Nothing awaits work that was left behind; a KeyboardInterrupt in it still ends the program."""
    deaf: list[Deaf] = []

    async def main() -> None:
        token = CancellationToken()
        deaf.append(Deaf(KeyboardInterrupt()))
        task = asyncio.create_task(detached(deaf[0], token))
        await deaf[0].reached.wait()
        token.cancel()
        with contextlib.suppress(Cancelled):
            await task
        deaf[0].released.set()
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run(main())


@pytest.mark.parametrize("error", [None, SystemExit(3), ValueError("late"), asyncio.CancelledError()], ids=repr)
def test_the_end_of_what_was_left_ends_nothing(error: BaseException | None, caplog: pytest.LogCaptureFixture) -> None:
    """A model that was left behind called sys.exit() in its clean-up, and the whole gateway ended."""
    caplog.set_level("DEBUG")

    async def main() -> None:
        token, deaf = CancellationToken(), Deaf(error)
        task = asyncio.create_task(detached(deaf, token))
        await deaf.reached.wait()
        token.cancel()
        with pytest.raises(Cancelled):
            await task
        deaf.released.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        await asyncio.sleep(0)

    run(main())
    assert "it ended late" in caplog.text
    assert "never retrieved" not in caplog.text


def test_nothing_starts_under_a_cancelled_token() -> None:
    """A stop before the start is not lost: the work is not even begun."""

    async def main() -> None:
        token = CancellationToken()
        token.cancel()
        deaf = Deaf()
        with pytest.raises(Cancelled):
            await detached(deaf, token)
        assert not deaf.reached.is_set()
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_who_listens_has_ended_when_control_is_back() -> None:
    """A clean-up that takes a few turns of the loop is over before the caller goes on."""

    async def main() -> None:
        token, reached, ended = CancellationToken(), asyncio.Event(), []

        async def polite() -> None:
            try:
                reached.set()
                await asyncio.Event().wait()
            finally:
                for _ in range(5):
                    await asyncio.sleep(0)
                ended.append(True)

        task = asyncio.create_task(detached(polite, token, grace=30))
        await reached.wait()
        token.cancel("interrupt")
        with pytest.raises(Cancelled) as caught:
            await task
        assert caught.value.token is token
        assert ended

    run(main())


@pytest.mark.parametrize("stopped_first", [False, True])
def test_a_foreign_cancellation_in_the_grace_wins(stopped_first: bool) -> None:
    """A foreign cancellation during the grace after a stop, or after another one, is raised and not lost."""

    async def main() -> None:
        token, deaf = CancellationToken(), Deaf()
        task = asyncio.create_task(detached(deaf, token, grace=0.05))
        await deaf.reached.wait()
        if stopped_first:
            token.cancel("interrupt")
        else:
            task.cancel()
        await deaf.told.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert token.reason == ("interrupt" if stopped_first else "external")
        deaf.released.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})

    run(main())


@pytest.mark.parametrize("is_begun", [False, True])
def test_other_code_cancels_the_task_inside(is_begun: bool) -> None:
    """Whoever cancels all tasks, even one that has not begun, gets CancelledError and no waiter that hangs."""

    async def main() -> None:
        token, reached = CancellationToken(), asyncio.Event()

        async def waits() -> None:
            reached.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(detached(waits, token))
        await (reached.wait() if is_begun else asyncio.sleep(0))
        assert reached.is_set() == is_begun
        (inner,) = asyncio.all_tasks() - {task, asyncio.current_task()}
        inner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not token.is_cancelled

    run(main())


def test_a_group_of_stops_is_a_stop() -> None:
    """A model with a TaskGroup inside made an ExceptionGroup of the stop, which was not recognized as a stop."""

    async def main() -> None:
        token, reached = CancellationToken(), asyncio.Event()

        async def groups() -> None:
            async def member() -> None:
                async with token.scope():
                    reached.set()
                    await asyncio.Event().wait()

            async with asyncio.TaskGroup() as group:
                group.create_task(member())

        task = asyncio.create_task(detached(groups, token))
        await reached.wait()
        token.cancel("interrupt")
        with pytest.raises(Cancelled, match="interrupt"):
            await task

    run(main())


def test_a_process_inside_hands_its_output_over() -> None:
    """What ends by itself with the stop is given a turn to do so, as in a scope."""

    async def main() -> None:
        token, shown = CancellationToken(), asyncio.Event()
        loop = asyncio.get_running_loop()
        got: list[Any] = []

        async def processes() -> None:
            program = "import time; print('some', flush=True); time.sleep(60)"
            got.append(
                await run_process(
                    [sys.executable, "-c", program], on_output=lambda *_: loop.call_soon_threadsafe(shown.set)
                )
            )

        task = asyncio.create_task(detached(processes, token, grace=30))
        await shown.wait()
        token.cancel("interrupt")
        with contextlib.suppress(Cancelled):
            await task
        assert got[0].cancelled
        assert "some" in str(got[0].stdout)

    run(main())


def test_work_that_was_left_behind_reports_its_late_end() -> None:
    """`on_left` is called before control is back, `on_late` once, with the exception, when the work ends after all."""

    async def main() -> None:
        deaf, token = Deaf(ValueError("late")), CancellationToken()
        ended = asyncio.Event()
        calls: list[object] = []

        def on_late(error: BaseException | None) -> None:
            calls.append(error)
            ended.set()

        task = asyncio.create_task(detached(deaf, token, on_left=lambda: calls.append("left"), on_late=on_late))
        await deaf.reached.wait()
        token.cancel()
        with pytest.raises(Cancelled):
            await task
        assert calls == ["left"]
        deaf.released.set()
        await ended.wait()
        assert [str(call) for call in calls] == ["left", "late"]

    run(main())


def test_work_that_ends_within_its_grace_is_not_reported() -> None:
    """Neither callback is called for work that ends in time."""

    async def main() -> None:
        token, calls = CancellationToken(), list[object]()
        started = asyncio.Event()

        async def polite() -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(
            detached(polite, token, on_left=lambda: calls.append("left"), on_late=lambda _: calls.append("late"))
        )
        await started.wait()
        token.cancel()
        with pytest.raises(Cancelled):
            await task
        assert calls == []

    run(main())
