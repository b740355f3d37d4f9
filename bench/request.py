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
import threading
import time

from bench.measure import percentile
from bench.stalled import BACK_OFF, STALLED, Ground, Took
from halter.cancel import CancellationToken, Cancelled
from halter.events import RequestRetry
from halter.models import ModelCall, ModelRequest, OpenAIModel, UserMessage

FLOOR_GOAL = 1.5
P99_GOAL = 10.0  # milliseconds
WARM_UP = 5  # the first ones import and connect
REQUEST = ModelRequest([UserMessage.of("go")])


async def stop_exchange(ground: Ground, scenario: str) -> Took:
    """Stop an `ModelCall` by its token."""
    token = CancellationToken()
    retry = threading.Event()
    model = OpenAIModel(scenario, base_url=ground.server.url, api_key="none")
    exchange = ModelCall(
        model, REQUEST, token=token, emit=lambda event: retry.set() if isinstance(event, RequestRetry) else None
    )

    async def work() -> float:
        try:
            await exchange.run()
        except Cancelled:
            return time.monotonic()
        return 0.0

    return await ground.measure(scenario, work(), token.cancel, retry.wait)


async def run(runs: int) -> bool:
    """Measure and print all; tells whether the goals are met."""
    passed = True
    async with Ground() as ground:
        for scenario in STALLED:
            floor, ours = [], []
            for number in range(runs + WARM_UP):
                if number % 2:
                    of_floor, of_ours = await ground.floor(scenario), await stop_exchange(ground, scenario)
                else:
                    of_ours, of_floor = await stop_exchange(ground, scenario), await ground.floor(scenario)
                if number >= WARM_UP:
                    floor.append(of_floor)
                    ours.append(of_ours)
            back = [[took.back for took in each] for each in (ours, floor)]
            is_request = scenario != BACK_OFF
            passed &= report(f"{scenario}: control back", *back, is_request=is_request)
            if is_request:
                seen = [[took.seen for took in each if took.seen is not None] for each in (ours, floor)]
                passed &= report(f"{scenario}: server sees it", *seen)
    return passed


def report(what: str, ours: list[float], floor: list[float], *, is_request: bool = True) -> bool:
    """Print one line, and tell whether it meets the goals."""
    ours_p99, floor_p99 = percentile(ours, 99), percentile(floor, 99)
    ours_p50, floor_p50 = percentile(ours, 50), percentile(floor, 50)
    is_met = ours_p99 < P99_GOAL and (ours_p50 <= FLOOR_GOAL * floor_p50 or not is_request)
    print(
        f"{what:40} p50 {ours_p50:6.3f} ms  floor {floor_p50:6.3f}  ratio {ours_p50 / floor_p50:5.2f}   "
        f"p99 {ours_p99:6.3f} ms  floor {floor_p99:6.3f}   {'ok' if is_met else 'MISSED'}",
        flush=True,
    )
    return is_met


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    passed = asyncio.run(run(parser.parse_args().runs))
    print("PASS" if passed else "FAIL")
    if not passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
