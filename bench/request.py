"""How long a stop of a request takes, from cancel() in another thread: to control being back, to the server seeing it.

    python bench/request.py [--runs 200]

Beside each figure stands the floor, measured in the same run, turn about: a task that reads the same stream with bare
aiohttp, cancelled by `loop.call_soon_threadsafe(task.cancel)`. The server is a `FakeProvider` in a process of its own;
`time.monotonic()` is one clock for both processes.
Goals: the 99th percentile under 10 ms; for streams and hangs the median at most 1.5 times the floor's. In the wait
before a retry no request is open, so the server has nothing to see, and the floor is no request but a bare
`asyncio.sleep`: that ratio is printed, and not judged.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import multiprocessing
import os
import queue
import statistics
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from halter.cancel import CancellationToken, Cancelled
from halter.models import Exchange, ModelRequest, OpenAIModel, RequestRetry, UserMessage
from halter.testing import FakeProvider, hang_before_first_byte, hang_mid_stream, slow_stream, status

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from multiprocessing.connection import Connection

    from halter.testing import ScriptedReply, SeenRequest

FLOOR_GOAL = 1.5
P99_GOAL = 0.010
SETTLE = 0.003  # so that the loop sleeps, and the stop has to wake it
REPLIES = {
    "slow stream": slow_stream(0.005),
    "hang before first byte": hang_before_first_byte(),
    "hang mid-stream": hang_mid_stream(after=3),
    "back-off": status(429, retry_after=50),
}
REQUEST = ModelRequest([UserMessage.of("go")])


class Took(NamedTuple):
    """Seconds from the stop to control being back, and to the server seeing the end."""

    back: float
    seen: float | None


def serve(pipe: Connection) -> None:
    """Serve, and tell for the n-th request when it has got as far as it gets, and when it was closed."""

    def reply(request: SeenRequest) -> ScriptedReply:
        return REPLIES[request.body["model"]]

    with FakeProvider(default=reply) as provider:
        pipe.send(provider.openai_url)
        number = 0
        while pipe.recv() == "next":
            number += 1
            request = provider.wait_for_request(number)
            scripted = REPLIES[request.body["model"]]
            if scripted.chunks:
                provider.wait_for_pieces(3, number)
            pipe.send(number)
            if pipe.recv() == "closed":
                connection = provider.connections[request.connection - 1]
                while connection.closed is None:
                    provider.wait_for_close(len(provider.closes) or 1)
                    time.sleep(0.0005)
                pipe.send(connection.closed)


class Stopper:
    """Another thread, which does the stopping and notes when."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def order(self, stop: Callable[[], object]) -> None:
        """Have it done a moment from now."""
        self._orders.put(stop)

    def close(self) -> None:
        """End the thread."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (stop := self._orders.get()) is not None:
            time.sleep(SETTLE)
            self.at = time.monotonic()
            stop()


class Bench:
    """One loop, one server, one stopper."""

    def __init__(self, url: str, pipe: Connection) -> None:
        self.url = url
        self.pipe = pipe
        self.stopper = Stopper()
        self.session: aiohttp.ClientSession

    async def ours(self, scenario: str) -> Took:
        """Stop an `Exchange` by its token."""
        token = CancellationToken()
        retry = asyncio.Event()
        model = OpenAIModel(scenario, base_url=self.url, api_key="none")
        exchange = Exchange(
            model, REQUEST, token=token, emit=lambda event: retry.set() if isinstance(event, RequestRetry) else None
        )
        return await self._measure(scenario, exchange.run(), lambda _: token.cancel(), Cancelled, retry)

    async def floor(self, scenario: str) -> Took:
        """Cancel a task that does the same with nothing but aiohttp."""
        loop = asyncio.get_running_loop()
        retry = asyncio.Event()

        async def read() -> None:
            body = {"model": scenario, "messages": [], "stream": True}
            async with self.session.post(f"{self.url}/chat/completions", json=body) as response:
                async for _ in response.content:
                    pass
            retry.set()
            await asyncio.sleep(50)

        def stop(task: asyncio.Task[object]) -> None:
            loop.call_soon_threadsafe(task.cancel)

        return await self._measure(scenario, read(), stop, asyncio.CancelledError, retry)

    async def _measure(
        self,
        scenario: str,
        work: Coroutine[object, object, object],
        stop: Callable[[asyncio.Task[object]], object],
        ending: type[BaseException],
        retry: asyncio.Event,
    ) -> Took:
        back = 0.0

        async def timed() -> None:
            nonlocal back
            try:
                await work
            except ending:
                back = time.monotonic()

        self.pipe.send("next")
        task: asyncio.Task[object] = asyncio.create_task(timed())
        await asyncio.to_thread(self.pipe.recv)
        is_waiting = scenario == "back-off"
        if is_waiting:
            await retry.wait()
        self.stopper.order(lambda: stop(task))
        await task
        if not back:
            message = f"{scenario}: it was not stopped"
            raise SystemExit(message)
        self.pipe.send("not closed" if is_waiting else "closed")
        closed: float | None = None if is_waiting else await asyncio.to_thread(self.pipe.recv)
        return Took(back - self.stopper.at, None if closed is None else max(0.0, closed - self.stopper.at))

    async def run(self, runs: int) -> bool:
        """Measure and print all; tells whether the goals are met."""
        passed = True
        async with aiohttp.ClientSession() as self.session:
            for scenario in REPLIES:
                floor, ours = [], []
                for number in range(runs + 5):  # the first ones import and connect
                    pair = (self.floor, self.ours) if number % 2 else (self.ours, self.floor)
                    took = {measure: await measure(scenario) for measure in pair}
                    if number >= 5:
                        floor.append(took[self.floor])
                        ours.append(took[self.ours])
                back = [[t.back for t in each] for each in (ours, floor)]
                is_request = scenario != "back-off"
                passed &= report(f"{scenario}: control back", *back, is_request=is_request)
                if is_request:
                    seen = [[t.seen for t in each if t.seen is not None] for each in (ours, floor)]
                    passed &= report(f"{scenario}: server sees it", *seen)
        self.stopper.close()
        return passed


def report(what: str, ours: list[float], floor: list[float], *, is_request: bool = True) -> bool:
    """Print one line, and tell whether it meets the goals."""
    ours_p99, floor_p99 = (statistics.quantiles(times, n=100)[98] for times in (ours, floor))
    ours_p50, floor_p50 = statistics.median(ours), statistics.median(floor)
    is_met = ours_p99 < P99_GOAL and (ours_p50 <= FLOOR_GOAL * floor_p50 or not is_request)
    print(
        f"{what:40} p50 {ours_p50 * 1e3:6.3f} ms  floor {floor_p50 * 1e3:6.3f}  ratio {ours_p50 / floor_p50:5.2f}   "
        f"p99 {ours_p99 * 1e3:6.3f} ms  floor {floor_p99 * 1e3:6.3f}   {'ok' if is_met else 'MISSED'}",
        flush=True,
    )
    return is_met


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    os.environ["NO_PROXY"] = "127.0.0.1"
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    passed = asyncio.run(Bench(ours.recv(), ours).run(options.runs))
    ours.send("end")
    server.join(5)
    print("PASS" if passed else "FAIL")
    if not passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
