"""What all drivers share: lines of JSON on stdin and stdout, and the tools that the model calls.

It needs only the standard library, because it is imported in the environment of each system. A driver implements
`turn()`, which runs one turn and returns its text, and `stop()`, which stops it in the way that the system recommends.
The moment of the stop is taken where the line is read, in a thread of its own, as a stop button would be pressed. The
button works only while a turn runs: a stop that comes later is not passed on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

BASE_URL = os.environ["PEERS_BASE_URL"]
STORE = os.environ["PEERS_STORE"]  # a directory that outlives the process
MODEL = "gpt-4o-mini"
INSTRUCTIONS = "Answer briefly."
TOOL_SECONDS = float(os.environ["PEERS_TOOL_SECONDS"])
SLEEP = os.environ["PEERS_SLEEP"]  # the argument of `sleep` by which the runner finds our processes

# What asyncio takes on 28 cores and more. Its default depends on the machine, and with less than four cores it could
# not run the eight tools at once, nor the next turn beside them.
POOL_THREADS = 32

os.environ.setdefault("OPENAI_API_KEY", "none")
os.environ.setdefault("OPENAI_BASE_URL", BASE_URL)

# Libraries may print: their standard output goes to the log, and ours is kept for the protocol.
_out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
_writing = threading.Lock()


def emit(event: str, **fields: object) -> None:
    with _writing:
        _out.write(json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n")


def saw(text: str) -> None:
    """Tell that the user was shown this text."""
    if text:
        emit("text", text=text)


# -- tools: the same code in every system ----------------------------------------------------------------------------


def deaf_tool(n: int) -> str:
    """Work for a while in code that knows nothing of being stopped."""
    emit("tool", n=n)
    time.sleep(TOOL_SECONDS)
    return f"done {n}"


async def cooperative_tool(n: int) -> str:
    """Wait for a while in code that can be cancelled."""
    emit("tool", n=n)
    await asyncio.sleep(TOOL_SECONDS)
    return f"done {n}"


def process_tool(n: int) -> str:
    """Run a program."""
    emit("tool", n=n)
    subprocess.run(["sleep", SLEEP], check=False)
    return f"done {n}"


async def blocking_tool(n: int) -> str:
    """Block the event loop, as an async function does that calls a client which is not async."""
    emit("tool", n=n)
    time.sleep(TOOL_SECONDS)  # noqa: ASYNC251  (the mistake that is measured)
    return f"done {n}"


# -- drivers ---------------------------------------------------------------------------------------------------------


class Driver:
    """One system. `turn()` may be async; then it runs in an event loop in the main thread, else in a thread."""

    stops_from_any_thread: ClassVar[bool] = False
    async_tools: ClassVar[bool] = True  # whether its tools can be async functions
    send: Callable[[str], None] | None = None  # deliver a message while a turn runs; None if the system has no way
    is_running = False

    def turn(self, text: str) -> object:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def close(self) -> object:
        """Close what the system's documentation says is to be closed."""

    def main(self) -> None:
        if asyncio.iscoroutinefunction(self.turn):
            asyncio.run(self._serve_async())
        else:
            self._serve_threads()
        emit("leaving")

    async def _serve_async(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(POOL_THREADS))
        commands: asyncio.Queue[dict] = asyncio.Queue()

        def read() -> None:
            for command in _commands():
                if command["do"] in {"stop", "send"}:
                    call = self._stop if command["do"] == "stop" else lambda text=command["text"]: self._send(text)
                    if self.stops_from_any_thread:
                        call()
                    else:
                        loop.call_soon_threadsafe(call)
                else:
                    loop.call_soon_threadsafe(commands.put_nowait, command)

        threading.Thread(target=read, daemon=True).start()
        emit("ready", can_send=self.send is not None, async_tools=self.async_tools)
        turns = []
        while True:
            command = await commands.get()
            if command["do"] == "exit":
                break
            if command["do"] == "cpu":
                emit("cpu", seconds=time.process_time())
            else:
                turns.append(asyncio.create_task(self._turn_async(command["text"])))
        done = self.close()
        if done is not None:
            await done

    async def _turn_async(self, text: str) -> None:
        self.is_running = True
        try:
            told = {"text": str(await self.turn(text))}
        except BaseException as exc:  # noqa: BLE001  (a boundary: reported)
            told = {"error": f"{type(exc).__name__}: {exc}"[:500]}
        self.is_running = False
        emit("ended", **told)

    def _serve_threads(self) -> None:
        emit("ready", can_send=self.send is not None, async_tools=self.async_tools)
        for command in _commands():
            if command["do"] == "exit":
                break
            if command["do"] == "stop":
                self._stop()
            elif command["do"] == "send":
                self._send(command["text"])
            elif command["do"] == "cpu":
                emit("cpu", seconds=time.process_time())
            else:
                threading.Thread(target=self._turn, args=(command["text"],), daemon=True).start()
        self.close()

    def _turn(self, text: str) -> None:
        self.is_running = True
        try:
            told = {"text": str(self.turn(text))}
        except BaseException as exc:  # noqa: BLE001  (a boundary: reported)
            told = {"error": f"{type(exc).__name__}: {exc}"[:500]}
        self.is_running = False
        emit("ended", **told)

    def _stop(self) -> None:
        if not self.is_running:
            return
        try:
            self.stop()
        except BaseException as exc:  # noqa: BLE001  (a boundary: reported)
            emit("stop_failed", error=f"{type(exc).__name__}: {exc}"[:500])

    def _send(self, text: str) -> None:
        try:
            self.send(text)
        except BaseException as exc:  # noqa: BLE001  (a boundary: reported)
            emit("sent", error=f"{type(exc).__name__}: {exc}"[:500])
        else:
            emit("sent")


def _commands():
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "stop":
            emit("stop")
        yield command
