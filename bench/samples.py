"""One sample of one figure of one kind of token, for ``bench/token.py`` to take in turns."""

from __future__ import annotations

import gc
import time
import timeit
import tracemalloc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 10_000
_REPEATED = 10  # so that the loop around a check does not hide its cost


class Contender:
    """One kind of token; each method takes one sample."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        *,
        check: str = "",
        raise_if: str = "",
        child: Callable[[Any], Any] | None = None,
        leave: Callable[[Any], object] | None = None,
    ) -> None:
        self.name = name
        self._make = make
        self._check = check
        self._raise_if = raise_if
        self._child = child
        self._leave = leave

    def columns(self) -> dict[str, Callable[[], float]]:
        """Tell what this kind can do: the columns that have a figure."""
        offers: dict[str, Callable[[], float]] = {"create": self.create, "bytes": self.size}
        if self._check:
            offers["check"] = self.check
        if self._raise_if:
            offers["raise_if"] = self.raise_if
        if self._child is not None:
            offers |= {"child": self.child, "cancel": self.cancel_many, "kept": self.kept}
        return offers

    def _time(self, statement: str, number: int) -> float:
        # Local names, as in a user's function; timeit switches the garbage collector off.
        setup = "make = given._make; child = given._child; token = make()"
        return timeit.Timer(statement, setup, globals={"given": self}).timeit(number) / number

    def create(self) -> float:
        return self._time("make()", 5_000)

    def check(self) -> float:
        return self._time("; ".join([self._check] * _REPEATED), 2_000) / _REPEATED

    def raise_if(self) -> float:
        return self._time("; ".join([self._raise_if] * _REPEATED), 5_000) / _REPEATED

    def child(self) -> float:
        return self._time("child(token)", 2_000)

    def cancel_many(self) -> float:
        assert self._child is not None
        parent = self._make()
        children = [self._child(parent) for _ in range(MANY)]
        start = time.perf_counter()
        parent.cancel()
        seconds = time.perf_counter() - start
        del children
        return seconds

    def size(self) -> float:
        made: list[Any] = [None] * MANY
        make = self._make
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for at in range(MANY):
            made[at] = make()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return (after - before) / MANY

    def kept(self) -> float:
        parent = self._make()
        self._make_and_drop(parent, 1)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        self._make_and_drop(parent, MANY)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return after - before

    def _make_and_drop(self, parent: Any, count: int) -> None:
        assert self._child is not None
        children = [self._child(parent) for _ in range(count)]
        if self._leave is not None:
            for child in children:
                self._leave(child)


class ScopeContender(Contender):
    """anyio's and trio's scopes, which live in a loop of their library; the two have the same names for all we need."""

    def __init__(self, name: str, library: Any, open_group: Callable[[], Any]) -> None:
        super().__init__(name, library.CancelScope, check="token.cancel_called", raise_if="-", child=lambda _: None)
        self._library = library
        self._open_group = open_group

    def _time(self, statement: str, number: int) -> float:
        measure = super()._time

        async def main() -> float:
            with self._make():
                return measure(statement, number)

        return float(self._library.run(main))

    def raise_if(self) -> float:
        number = 5_000

        async def main() -> float:
            check = self._library.lowlevel.checkpoint_if_cancelled
            start = time.perf_counter()
            for _ in range(number):
                await check()
            return (time.perf_counter() - start) / number

        return float(self._library.run(main))

    def child(self) -> float:
        return self._time("with make(): pass", 2_000)

    def size(self) -> float:
        measure = super().size

        async def main() -> float:
            return measure()

        return float(self._library.run(main))

    def cancel_many(self) -> float:
        async def main() -> float:
            with self._make() as parent:
                async with self._open_group() as group:
                    await self._start(group, MANY, self._library.Event())
                    start = time.perf_counter()
                    parent.cancel()
                    seconds = time.perf_counter() - start
            return seconds

        return float(self._library.run(main))

    def kept(self) -> float:
        async def make_and_drop(count: int) -> None:
            async with self._open_group() as group:
                go = self._library.Event()
                await self._start(group, count, go)
                go.set()

        async def main() -> float:
            with self._make():
                await make_and_drop(1)
                gc.collect()
                tracemalloc.start()
                before = tracemalloc.get_traced_memory()[0]
                await make_and_drop(MANY)
                gc.collect()
                after = tracemalloc.get_traced_memory()[0]
                tracemalloc.stop()
                return after - before

        return float(self._library.run(main))

    async def _start(self, group: Any, count: int, go: Any) -> None:
        """Start *count* tasks and return when each of them waits inside a scope of its own."""
        started = 0
        all_started = self._library.Event()

        async def sit() -> None:
            nonlocal started
            with self._make():
                started += 1
                if started == count:
                    all_started.set()
                await go.wait()

        for _ in range(count):
            group.start_soon(sit)
        await all_started.wait()
