"""The token of the running code."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from halter import NEVER, CancellationToken, Cancelled, checkpoint, current_token, run_blocking


def test_without_a_binding_the_current_token_is_never() -> None:
    """Code without a token passes every checkpoint."""
    assert current_token() is NEVER
    checkpoint()


def test_a_binding_holds_for_its_block_and_nests() -> None:
    """bind() is undone by the end of its block, also by an exception."""
    outer, inner = CancellationToken(), CancellationToken()
    with outer.bind() as bound:
        assert bound is outer
        with pytest.raises(ValueError, match="x"), inner.bind():
            assert current_token() is inner
            raise ValueError("x")
        assert current_token() is outer
    assert current_token() is NEVER


def test_a_checkpoint_raises_when_the_bound_token_is_cancelled() -> None:
    """checkpoint() is current_token().raise_if_cancelled()."""
    token = CancellationToken()
    with token.bind():
        checkpoint()
        token.cancel()
        with pytest.raises(Cancelled):
            checkpoint()


def test_tasks_and_halter_threads_inherit_the_binding_and_other_threads_do_not() -> None:
    """What is started in the block has its token; a plain thread has its own context."""
    token = CancellationToken()

    async def child() -> object:
        return current_token()

    async def main() -> None:
        with token.bind():
            task = asyncio.create_task(child())
        assert await task is token

    asyncio.run(main())
    seen: list[object] = []
    with token.bind():
        assert token in run_blocking(current_token)._parents()
        thread = threading.Thread(target=lambda: seen.append(current_token()))
        thread.start()
        thread.join()
    assert seen == [NEVER]


def test_a_binding_is_used_once_and_where_it_was_made() -> None:
    """Entering twice, leaving without entering, and leaving elsewhere are errors that say what to do."""
    binding = CancellationToken().bind()
    with pytest.raises(RuntimeError, match="never entered"):
        binding.__exit__(None, None, None)
    with binding, pytest.raises(RuntimeError, match="already in use"):
        binding.__enter__()
    elsewhere = CancellationToken().bind()
    contextvars.copy_context().run(elsewhere.__enter__)
    with pytest.raises(RuntimeError, match="must be left in the task or thread"):
        elsewhere.__exit__(None, None, None)


def test_a_coroutine_that_is_freed_in_its_block_raises_nothing_else() -> None:
    """A program closed its loop in the middle of a turn, and the freed turn logged an error about its binding."""
    seen: list[BaseException] = []

    async def work() -> None:
        try:
            with CancellationToken().bind():
                await asyncio.sleep(0)
        except BaseException as exc:
            seen.append(exc)
            raise

    coroutine = work()
    contextvars.copy_context().run(coroutine.send, None)
    coroutine.close()
    assert [type(each) for each in seen] == [GeneratorExit]


def test_a_token_records_that_it_was_checked() -> None:
    """current_token() and checkpoint() mark the token: code that checks its token gets a grace period after a stop."""
    for check in (current_token, checkpoint):
        token = CancellationToken()
        with token.bind():
            assert not token.was_checked
            check()
        assert token.was_checked
        assert not token.child().was_checked
