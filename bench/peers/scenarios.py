"""The scenarios. Each runs one driver from its start to its exit, and returns what was measured, in seconds."""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers.environments import QUIET
from bench.peers.judge import all_text, defects_of
from bench.peers.processes import Driver, Provider, count_sleeps, end_sleeps
from bench.peers.provider_main import BRIEF_CHUNKS, BRIEF_INTERVAL, CHUNKS

if TYPE_CHECKING:
    from bench.peers.systems import System

__all__ = ["COSTS", "SCENARIOS", "STREAM_TAGS", "Bench", "NotStarted", "Scenario"]

CAP = 5.0  # how long control, a next turn and an exit are waited for
START_CAP = 120.0  # some import for long on a busy machine
TOOL_SECONDS = 15.0
LOOK_AFTER = 2.0  # when the provider and the process table are looked at after a stop
STREAM_TAGS = {"slow", "silent", "hang"}
RACES = 10
TOO_LATE = f"no end within {CAP:g} s"
TURNS = 50
COST_CAP = 60.0  # for the fifty turns, and again for the answer of many chunks


class NotStarted(Exception):
    """The driver did not come to the end of a first, plain turn."""


@dataclass(frozen=True)
class Scenario:
    """One scenario: its tag chooses the provider's reply, and `does` tells readers what happens."""

    name: str
    tag: str
    does: str


SCENARIOS = [
    Scenario("slow stream", "slow", "the model streams a word every 50 ms, for ever"),
    Scenario("silent before the first byte", "silent", "the provider accepts the request and never answers"),
    Scenario("silent in mid-stream", "hang", "the stream falls silent after five words"),
    Scenario("8 deaf tools", "deaf", f"eight calls of a function that does `time.sleep({TOOL_SECONDS:g})`"),
    Scenario("8 cooperative tools", "cooperative", "eight calls of an async function that awaits"),
    Scenario("8 tools with a process each", "process", "eight calls of a function that does `subprocess.run()`"),
    Scenario("a blocking async tool", "blocking", "one call of an async function that blocks its event loop"),
    Scenario(
        "a message during the turn",
        "message",
        "the user sends a message while the model streams, and stops 0.5 s later",
    ),
    Scenario(
        "a stop in the last millisecond", "race", "ten stops between the last word of an answer and the end of its turn"
    ),
    Scenario("kill -9", "kill", "SIGKILL while eight tools run a process each; then a new process goes on"),
]
COSTS = Scenario("cost", "cost", "fifty turns, and one answer of many chunks")


@dataclass
class Bench:
    """What every scenario needs: the system, its Python, the provider, and a place for logs."""

    system: System
    python: Path
    provider: Provider
    logs: Path
    _drivers: list[Driver] = field(default_factory=list)

    def run(self, scenario: Scenario) -> dict:
        run = {"message": _message, "race": _race, "kill": _kill, "cost": _cost}.get(scenario.tag)
        run = run or functools.partial(_stop, scenario.tag)
        with tempfile.TemporaryDirectory() as store:
            # Unique, and long: what is alive two seconds after the stop was not going to end by itself.
            sleep = f"{TOOL_SECONDS + int(uuid.uuid4().hex[:6], 16) / 1e8:.8f}"
            try:
                return run(self, Path(store), sleep)
            finally:
                for driver in self._drivers:
                    driver.kill()
                self._drivers.clear()
                end_sleeps(sleep)

    def start(self, store: Path, sleep: str) -> Driver:
        self.provider.begin()
        environment = (
            os.environ
            | QUIET
            | {
                "HOME": str(store),  # nothing of the user's is read or written
                "HERMES_HOME": str(store),
                "PEERS_BASE_URL": self.provider.url,
                "PEERS_SLEEP": sleep,
                "PEERS_STORE": str(store),
                "PEERS_TOOL_SECONDS": str(TOOL_SECONDS),
            }
        )
        driver = Driver(self.python, self.system.driver, environment, self.logs / f"{self.system.name}.log")
        self._drivers.append(driver)
        ready = driver.wait_for("ready", START_CAP)
        first = ready and driver.turn("[[hello]] Hello.", START_CAP)
        if not first or "error" in first:
            raise NotStarted(f"the first turn failed: {first['error'] if first else f'no end within {START_CAP:g} s'}")
        return driver

    def wait_request(self, tag: str) -> float | None:
        """Wait for the request of a streamed answer to this tag, and return when it came."""
        deadline = time.monotonic() + CAP
        while time.monotonic() < deadline:
            requests = self.provider.requests()
            for request in requests:
                messages = request["body"].get("messages") or []
                if request["body"].get("stream") and f"[[{tag}]]" in all_text(messages, "user"):
                    return request["received"]
            self.provider.wait_request(len(requests) + 1, max(0.0, deadline - time.monotonic()))
        return None


def _begin(bench: Bench, driver: Driver, tag: str) -> None:
    """Start a turn, and wait until it is in the middle of what the tag says."""
    driver.do("run", text=f"[[{tag}]] Please begin.")
    if bench.wait_request(tag) is None:
        raise RuntimeError(f"no request within {CAP:g} s")
    if tag == "silent":
        return
    if tag in STREAM_TAGS:
        words = [0]

        def enough(event: dict) -> bool:
            words[0] += len(event["text"].split()) if event["event"] == "text" else 0
            return words[0] >= 5

        driver.wait(enough, CAP)
        return
    wanted = 1 if tag == "blocking" else 8
    for _ in range(wanted):
        if driver.wait_for("tool", 3.0) is None:
            break


def _stop(tag: str, bench: Bench, store: Path, sleep: str) -> dict:
    driver = bench.start(store, sleep)
    if tag == "blocking" and not driver.events[0]["async_tools"]:
        driver.exit(CAP)
        return {"applies": False}
    before = len(driver.events)
    _begin(bench, driver, tag)
    time.sleep(0.3)  # in the middle of it, whatever that is
    started = sum(event["event"] == "tool" for event in driver.events)
    driver.do("stop")
    stop = driver.wait_for("stop", CAP)
    if _ended_since(driver, before):  # the driver is wrong, and nothing was stopped
        raise RuntimeError("the turn had ended before the stop")
    ended = driver.wait_for("ended", CAP)
    time.sleep(max(0.0, stop["at"] + LOOK_AFTER - time.monotonic()))
    requests = bench.provider.requests()
    result = {
        "control": ended and ended["at"] - stop["at"],
        "requests_after": sum(request["received"] > stop["at"] for request in requests),
    }
    if tag in STREAM_TAGS:
        # Of the answer that was stopped: some systems ask for a title beside it, which is none of the user's business.
        open_ones = [each for each in requests if each["finished"] is None and each["body"].get("stream")]
        closed = [each["closed"] for each in open_ones]
        result["closed"] = None if None in closed or not closed else max(closed) - stop["at"]
        result["seen"] = "".join(
            event["text"] for event in driver.events[before:] if event["event"] == "text" and event["at"] < stop["at"]
        )
    else:
        result["tools_started"] = started
    if tag == "process":
        result["processes"] = count_sleeps(sleep)
    result |= _next_turn(bench, driver, f"[[{tag}]]", result.pop("seen", ""), is_back=ended is not None)
    result["exit"] = driver.exit(CAP)
    return result


def _ended_since(driver: Driver, before: int) -> dict | None:
    return next((event for event in driver.events[before:] if event["event"] == "ended"), None)


def _next_turn(bench: Bench, driver: Driver, said: str, seen: str, *, is_back: bool) -> dict:
    """Run one more turn, and judge the history by the request that it sends."""
    if not is_back:
        return {"next": False, "why": "control was not back"}
    ended = driver.turn("[[next]] Are you there?", CAP)
    messages = _last_messages(bench)
    result: dict = {"next": ended is not None and "error" not in ended and ended["text"].strip().startswith("ok")}
    if not result["next"]:
        result["why"] = ended.get("error") or f"answered {ended['text'][:80]!r}" if ended else TOO_LATE
    if messages is None:
        return result | {"valid": None}
    defects = defects_of(messages)
    result |= {"valid": not defects, "message_kept": said in all_text(messages, "user")}
    if defects:
        result["defects"] = sorted(set(defects))
    if seen.strip():
        words = seen.split()
        # In a message of any role: some systems tell the model what was said before the stop as a note.
        result |= {"seen": len(words), "words_kept": " ".join(words) in " ".join(all_text(messages).split())}
    return result


def _last_messages(bench: Bench) -> list[dict] | None:
    """The messages of the newest request that has the next turn's text."""
    for request in reversed(bench.provider.requests()):
        messages = request["body"].get("messages") or []
        if "[[next]]" in all_text(messages, "user"):
            return messages
    return None


def _message(bench: Bench, store: Path, sleep: str) -> dict:
    driver = bench.start(store, sleep)
    if not driver.events[0]["can_send"]:
        driver.exit(CAP)
        return {"can_send": False}
    before = len(driver.events)
    _begin(bench, driver, "slow")
    driver.do("send", text="[[mid]] Also mention Lyon.")
    sent = driver.wait_for("sent", CAP)
    time.sleep(0.5)
    driver.do("stop")
    ended = _ended_since(driver, before) or driver.wait_for("ended", CAP)
    result = {"can_send": True, "accepted": sent is not None and "error" not in sent}
    result |= _next_turn(bench, driver, "[[slow]]", "", is_back=ended is not None)
    texts = [all_text(request["body"].get("messages") or [], "user") for request in bench.provider.requests()]
    result["arrived_during_turn"] = any("[[mid]]" in text and "[[next]]" not in text for text in texts)
    result["lost"] = int(not any("[[mid]]" in text for text in texts))
    result["exit"] = driver.exit(CAP)
    return result


def _race(bench: Bench, store: Path, sleep: str) -> dict:
    """Stop between the last word and the end of the turn: the next turn must not be hit, and no word be lost."""
    driver = bench.start(store, sleep)
    usual = statistics.median(_brief_turn(bench, driver, number) for number in range(3))
    first, last = BRIEF_CHUNKS * BRIEF_INTERVAL - 0.003, usual + 0.001
    result = {"tries": 0, "in_turn": 0, "next_failed": 0, "invalid": 0, "words_lost": 0, "why": ""}
    for number in range(RACES):
        before = len(driver.events)
        received = _begin_brief(bench, driver, f"[[brief]] Try {number}.")
        at = received + first + (last - first) * number / (RACES - 1)
        time.sleep(max(0.0, at - time.monotonic()))
        driver.do("stop")
        stop = driver.wait_for("stop", CAP)
        ended = _ended_since(driver, before) or driver.wait_for("ended", CAP)
        seen = "".join(
            event["text"] for event in driver.events[before:] if event["event"] == "text" and event["at"] < stop["at"]
        )
        told = _next_turn(bench, driver, f"[[brief]] Try {number}.", seen, is_back=ended is not None)
        result["tries"] += 1
        result["in_turn"] += ended is None or ended["at"] > stop["at"]
        result["next_failed"] += not told["next"]
        result["invalid"] += told.get("valid") is False
        result["words_lost"] += told.get("words_kept") is False
        result["why"] = result["why"] or told.get("why", "")
        if ended is None or told.get("why") == TOO_LATE:
            break  # each further one would take as long
    result["exit"] = driver.exit(CAP)
    return result


def _begin_brief(bench: Bench, driver: Driver, text: str) -> float:
    bench.provider.begin()
    driver.do("run", text=text)
    received = bench.wait_request("brief")
    if received is None:
        raise RuntimeError(f"no request within {CAP:g} s")
    return received


def _brief_turn(bench: Bench, driver: Driver, number: int) -> float:
    """How long a turn with a brief answer takes, from its request on."""
    received = _begin_brief(bench, driver, f"[[brief]] Number {number}.")
    ended = driver.wait_for("ended", CAP)
    if ended is None or "error" in ended:
        raise RuntimeError(f"a turn failed: {ended}")
    return ended["at"] - received


def _kill(bench: Bench, store: Path, sleep: str) -> dict:
    driver = bench.start(store, sleep)
    _begin(bench, driver, "process")
    time.sleep(0.5)
    alive = count_sleeps(sleep)
    driver.kill()
    time.sleep(LOOK_AFTER)
    result: dict = {"processes_before": alive, "processes": count_sleeps(sleep), "has_store": bool(bench.system.store)}
    if not bench.system.store:
        return result
    try:
        driver = bench.start(store, sleep)
    except NotStarted as exc:
        return result | {"next": False, "why": str(exc)}
    result |= _next_turn(bench, driver, "[[process]]", "", is_back=True)
    driver.exit(CAP)
    return result


def _cost(bench: Bench, store: Path, sleep: str) -> dict:
    driver = bench.start(store, sleep)

    def cpu() -> float:
        driver.do("cpu")
        return driver.wait_for("cpu", CAP)["seconds"]

    def median_turn() -> tuple[float, float]:
        taken = []
        before, begun = cpu(), time.monotonic()
        while len(taken) < TURNS and time.monotonic() - begun < COST_CAP:
            start = time.monotonic()
            ended = driver.turn("[[next]] Hello.", CAP)
            if ended is None or "error" in ended:
                raise RuntimeError(f"a turn failed: {ended}")
            taken.append(ended["at"] - start)
        return statistics.median(taken), (cpu() - before) / len(taken)

    first = cpu()  # from the start of the process: libraries may put off imports until the first turn
    wall, used = median_turn()
    before = cpu()
    ended = driver.turn("[[chunks]] Many.", COST_CAP)
    result = {"first_cpu": first, "turn": wall, "turn_cpu": used, "chunk_cpu": None}
    if ended is None or "error" in ended:
        return result | {"why": f"the answer of many chunks failed: {ended or f'no end within {COST_CAP:g} s'}"}
    return result | {"chunk_cpu": (cpu() - before) / CHUNKS, "exit_idle": driver.exit(CAP)}
