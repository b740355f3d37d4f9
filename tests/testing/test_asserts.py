"""assert_cancels_within says whether the body was left in time."""

from __future__ import annotations

import asyncio
import time

import pytest

from halter import CancellationToken, Cancelled
from halter.testing import assert_cancels_within


def test_a_body_that_obeys_passes() -> None:
    """It may end by Cancelled, or by returning."""
    with assert_cancels_within(5, after=0.01) as token:
        token.sleep(30)
    with assert_cancels_within(5, after=0.01) as token:
        token.wait(30)
    with assert_cancels_within(5, after=30) as token:
        token.cancel()


def test_a_body_that_is_too_slow_fails() -> None:
    """The message says how long it took."""
    with pytest.raises(AssertionError, match=r"more than 0\.01 s"), assert_cancels_within(0.01, after=0) as token:
        token.wait(30)
        time.sleep(0.2)


def test_a_body_that_was_not_stopped_fails() -> None:
    """Work that ends by itself proves nothing."""
    with pytest.raises(AssertionError, match="ended by itself"), assert_cancels_within(5, after=30):
        pass


def test_other_exceptions_pass() -> None:
    """An error is an error, and so is another token's Cancelled."""
    with pytest.raises(ZeroDivisionError), assert_cancels_within(5):
        1 / 0  # noqa: B018
    other = CancellationToken()
    other.cancel()
    with pytest.raises(Cancelled), assert_cancels_within(5):
        other.raise_if_cancelled()


def test_it_works_with_async_with() -> None:
    """The same, in a coroutine."""

    async def main() -> None:
        async with assert_cancels_within(5, after=0.01) as token:
            async with token.scope():
                await asyncio.sleep(30)

    asyncio.run(main())
