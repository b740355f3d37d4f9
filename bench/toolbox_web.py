"""How long a stop of the tools for the web, pictures and speech takes: from cancel() to `Batch.run()` having returned.

    python bench/toolbox_web.py [--runs 100]

One call each, stopped from another thread when it is in the middle of its work: pages that hang and that trickle (four
at once), a page that is being parsed, a search, a search by ddgs, a picture, an answer about a picture, speech that is
being made, a recording that is being understood. For the last two and for parsing, the stop comes at a random moment of
the first second or so: while the worker starts, loads, or computes. Those that kill a process have fewer runs, because
each has to start a new one. The server is in this process, and so are its pauses.

Goal: the 99th percentile under 50 ms for each.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import gc
import json
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.measure import Goals, percentile, print_table
from halter import CancellationToken, run_isolated
from halter.events.tools import ToolProgress
from halter.models import ToolCall
from halter.toolbox.http.fetch import Net
from halter.toolbox.images import Media
from halter.toolbox.speech import Speech
from halter.toolbox.web.search_providers import Ddgs, SearXNG
from halter.toolbox.web.web import Web
from halter.tools import collect_tools
from halter.tools.resources import SessionResources
from halter.tools.run.batch import Batch, BatchEnvironment
from halter.voice.espeak import speak
from tests.support.search_proxy import SearchProxy
from tests.support.slow_server import SlowServer

if TYPE_CHECKING:
    from collections.abc import Callable

_GOAL = 50.0
_AT_MOST = 60.0
_WARM_UP = 2
_PNG = b"\x89PNG\r\n\x1a\n" + bytes(1_000)


class Scenario(NamedTuple):
    """A call, and how to know that it is in the middle."""

    tool: Any
    arguments: dict[str, Any]
    ready: Callable[[int], object] | None = None  # blocks until the server has seen so many; none: a moment by chance
    share: float = 1.0  # of the runs


async def stop_once(scenario: Scenario, number: int, resources: SessionResources) -> float:
    """Milliseconds from the stop to control being back."""
    token = CancellationToken(name="turn")
    has_begun = threading.Event()
    called_at = 0.0

    def stop() -> None:
        nonlocal called_at
        if scenario.ready is not None:
            scenario.ready(number)
            time.sleep(0.005)
        else:
            has_begun.wait(_AT_MOST)
            time.sleep(random.uniform(0.0, 0.3))
        called_at = time.perf_counter()
        token.cancel("interrupt")

    def hear(event: object) -> None:
        if isinstance(event, ToolProgress):
            has_begun.set()

    tools = collect_tools([scenario.tool])
    calls = [ToolCall("call", scenario.tool.name, json.dumps(scenario.arguments))]
    batch = Batch(calls, BatchEnvironment(tools, listener=hear, resources=resources), token=token)
    gc.collect()
    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    [outcome] = await batch.run()
    back = time.perf_counter()
    stopper.join(_AT_MOST)
    if outcome.status not in ("partial", "cancelled"):
        message = f"this call was not stopped: {outcome}"
        raise SystemExit(message)
    return (back - called_at) * 1000


def scenarios(server: SlowServer, proxy: SearchProxy, folder: Path) -> dict[str, Scenario]:
    net = Net(allow=["127.0.0.1"], timeout=_AT_MOST)
    web = Web(SearXNG(f"{server.url}/hang", timeout=_AT_MOST), net=net)
    media = Media(f"{server.url}/hang/v1", "none", workspace=folder, timeout=_AT_MOST)
    vision = Media(f"{server.url}/hang/v2", "none", workspace=folder)
    speech = Speech(folder, max_characters=2_000_000)
    (folder / "a.png").write_bytes(_PNG)
    (folder / "a.wav").write_bytes(run_isolated(speak, "Many words are said here, one after the other. " * 30).wav)
    deep = server.page("/deep", "<html><body>" + "<div><p>some words here</p>" * 150_000)

    def four(path: str) -> dict[str, Any]:
        return {"urls": [f"{server.url}{path}{each}" for each in range(4)]}

    def seen(path: str) -> Callable[[int], object]:
        return lambda number: server.wait_for_request(path, number)

    return {
        "extract, hanging": Scenario(web.web_extract, four("/hang"), seen("/hang3")),
        "extract, trickling": Scenario(web.web_extract, four("/trickle"), seen("/trickle3")),
        "extract, parsing": Scenario(web.web_extract, {"urls": [deep]}, None, 0.3),
        "search": Scenario(web.web_search, {"query": "x"}, seen("/hang/search")),
        "search, ddgs": Scenario(
            Web(Ddgs(backend="duckduckgo", proxy=proxy.url, timeout=60)).web_search,
            {"query": "x"},
            proxy.wait_for_open,
            0.3,
        ),
        "image": Scenario(media.image_generate, {"prompt": "x"}, seen("/hang/v1/images/generations")),
        "vision": Scenario(
            vision.vision_analyze, {"image": "a.png", "question": "?"}, seen("/hang/v2/chat/completions")
        ),
        "text to speech": Scenario(
            speech.text_to_speech, {"text": "So many words. " * 100_000, "path": "b.wav"}, None, 0.3
        ),
        "transcribe": Scenario(speech.transcribe, {"path": "a.wav"}, None, 0.3),
    }


async def measure(runs: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, SlowServer() as server, SearchProxy(Path(name)) as proxy:
        resources = SessionResources()
        for title, scenario in scenarios(server, proxy, Path(name)).items():
            count = max(int(runs * scenario.share), 5)
            times = []
            for number in range(1, count + _WARM_UP + 1):
                async with asyncio.timeout(_AT_MOST):
                    times.append(await stop_once(scenario, number, resources))
            taken[title] = times[_WARM_UP:]
        resources.close()
        check_files(Path(name))
    return taken


def check_files(folder: Path) -> None:
    if list(folder.glob("*b.wav*")):
        message = "a file was left behind"
        raise SystemExit(message)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    taken = asyncio.run(measure(parser.parse_args().runs))
    rows = [
        [title, str(len(times)), *(f"{percentile(times, each):.1f}" for each in (50, 99)), f"{max(times):.1f}"]
        for title, times in taken.items()
    ]
    print_table("Stop of one call, control back, milliseconds", ["tool", "runs", "p50", "p99", "max"], rows)
    goals = Goals()
    for title, times in taken.items():
        goals.at_most(title, percentile(times, 99), _GOAL, " ms")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
