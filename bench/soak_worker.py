"""The process of the soak that is killed: sessions in one file, those who run them, and threads that say everything.

It is started by `bench/soak.py`, reports what was acknowledged to a pipe, a line of JSON for each, and ends by kill -9,
or when it reads "end" or "settle" from its input. It uses what a program can use: the public API.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import functools
import json
import logging
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from bench.soak_talker import Talker
from bench.soak_tools import make_agent
from halter.errors import NothingToDo, SessionClosed
from halter.models import AnthropicModel, OpenAIModel
from halter.stores import SQLiteStore

if TYPE_CHECKING:
    from halter import Agent, Session
    from halter.events import Event

_LONGEST = 20.0  # seconds that anything said to a session may take
_SETTLED = 40.0  # seconds in which all that waits has to be applied, once nobody says anything more
_MAX_EVENTS = 600  # of a session; then the next one takes its place, for a long history takes long to judge
_RUNNERS = ("serve", "serve", "serve", "run", "arun", "stream")


class Reporter:
    """Tells the parent, in pieces that a pipe takes whole."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def __call__(self, kind: str, **details: object) -> None:
        line = json.dumps({"kind": kind, **details})
        os.write(self._pipe, line[:4000].encode() + b"\n")

    def violation(self, what: str) -> None:
        self("violation", what=what[-3000:])

    def error(self, what: str) -> None:
        """Report the exception that is being handled."""
        self.violation(f"{what}: {traceback.format_exc()}")


class Slot:
    """One place among the sessions: its session is closed, opened again, and followed by another one."""

    def __init__(self, worker: Worker, index: int, chance: random.Random) -> None:
        self.worker = worker
        self.index = index
        self.lock = threading.Lock()  # of those who close and open
        self.messages: defaultdict[str, list[str]] = defaultdict(list)  # that were said to each session
        self._chance = chance
        self._seen: dict[str, int] = {}
        self._asked: dict[str, str] = {}  # open questions and approvals, and the kind of each
        self._runner: threading.Event
        self.number = 0
        while f"s{index}-{self.number + 1}" in worker.known:
            self.number += 1
        self.session: Session
        self.open()

    @property
    def name(self) -> str:
        return f"s{self.index}-{self.number}"

    def open(self, runner: str = "") -> None:
        self.session = self.worker.agents[self.index % 2].session(self.name, self.worker.store)
        self._runner = self.worker.run(self.session, runner or self._chance.choice(_RUNNERS), self._chance.random())

    def close(self, *, how: str) -> None:
        """Close it; afterwards no turn is open in its log, and whoever ran it has ended."""
        session = self.session
        if how == "aclose":
            self.worker.wait_for(session.aclose())
        else:
            session.close()
        open_turn = ""
        events = self.worker.store.read(session.id)
        for event in events:
            if event.kind == "turn.started":
                open_turn = event.turn
            elif event.kind == "turn.finished":
                open_turn = ""
        if open_turn:
            self.worker.report.violation(f"{session.id} was closed, and its turn {open_turn} is open")
        if not self._runner.wait(_LONGEST):
            self.worker.report.violation(f"{session.id} was closed, and who ran it did not end")
        if len(events) > _MAX_EVENTS:
            self.number += 1

    def open_again(self, chance: random.Random, session: Session) -> None:
        with self.lock:
            if session is not self.session:
                return  # somebody else was faster
            self.close(how=chance.choice(("close", "close", "aclose")))
            self.open()

    def open_question(self, chance: random.Random) -> tuple[str, str] | None:
        """A question or an approval that is open, and which of them it is."""
        session = self.session
        with self.lock:
            last = self._seen.get(session.id, 0)
            for event in session.events(last):
                self._seen[session.id] = event.seq
                self._note(event)
            return chance.choice(list(self._asked.items())) if self._asked else None

    def _note(self, event: Event) -> None:
        data: Any = event.data
        if event.kind == "question.asked":
            self._asked[data.id] = "question"
        elif event.kind == "approval.asked":
            self._asked[data.request.id] = "approval"
        elif event.kind == "turn.finished":
            self._asked.clear()
        elif event.kind == "question.answered":
            self._asked.pop(data.id, None)
        elif event.kind == "approval.answered":
            self._asked.pop(data.request_id, None)


class Worker:
    """The store, the sessions in it, the event loop, and the threads that talk."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.report = Reporter(options.pipe)
        self.store = SQLiteStore(options.path)
        self.known = {info.id for info in self.store.sessions()}
        limits: dict[str, Any] = {"api_key": "none", "stale_timeout": 0.5, "first_byte_timeout": 1.0}
        openai = OpenAIModel("soak", base_url=f"{options.url}/v1", **limits)
        anthropic = AnthropicModel("soak", base_url=options.url, **limits)
        self.agents: list[Agent] = [make_agent(openai, anthropic), make_agent(anthropic, openai)]
        self.is_over = threading.Event()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="loop", daemon=True).start()
        chance = random.Random(f"{options.seed} slots")
        self.slots = [Slot(self, index, random.Random(chance.random())) for index in range(options.sessions)]
        self.busy: dict[str, tuple[float, str]] = {}  # since when each thread does what
        self.threads = [
            threading.Thread(target=Talker(self, number).talk, name=f"talker {number}", daemon=True)
            for number in range(options.threads)
        ]
        for thread in self.threads:
            thread.start()

    def wait_for(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(_LONGEST)

    # -- running turns -----------------------------------------------------------------------------------------------

    def run(self, session: Session, how: str, seed: float) -> threading.Event:
        """Run the turns of a session, in one of the ways there are, until it is closed."""
        ended = threading.Event()
        chance = random.Random(seed)
        if how == "run":
            work = functools.partial(self._run_in_thread, session, chance, ended)
            threading.Thread(target=work, name=f"run {session.id}", daemon=True).start()
        else:
            asyncio.run_coroutine_threadsafe(self._run_in_loop(session, how, chance, ended), self.loop)
        return ended

    def _run_in_thread(self, session: Session, chance: random.Random, ended: threading.Event) -> None:
        try:
            while True:
                text = self._own_text(session, chance)
                try:
                    session.run(text)
                    self._applied(text)
                except NothingToDo:
                    time.sleep(0.02)
        except SessionClosed:
            pass
        except BaseException:  # noqa: BLE001  (whatever it is, it is a violation)
            self.report.error(f"run() of {session.id}")
        finally:
            ended.set()

    async def _run_in_loop(self, session: Session, how: str, chance: random.Random, ended: threading.Event) -> None:
        try:
            if how == "serve":
                await session.serve()
                return
            while True:
                text = self._own_text(session, chance)
                try:
                    if await (self._arun if how == "arun" else self._stream)(session, text, chance):
                        self._applied(text)
                except NothingToDo:
                    await asyncio.sleep(0.02)
                except TimeoutError:
                    pass  # cancelled from outside; whether the text was accepted is not known
        except SessionClosed:
            pass
        except BaseException:  # noqa: BLE001  (whatever it is, it is a violation)
            self.report.error(f"{how} of {session.id}")
        finally:
            ended.set()

    async def _arun(self, session: Session, text: str | None, chance: random.Random) -> bool:
        await asyncio.wait_for(session.arun(text), chance.choice((0.01, 0.3, 5.0)))
        return True

    async def _stream(self, session: Session, text: str | None, chance: random.Random) -> bool:
        """Read some events; False if it was left before the turn had begun, as the first ones may be of others."""
        events = session.stream(text)
        left = chance.choice((1, 10, 1000))
        has_begun = False
        try:
            async for event in events:
                has_begun = has_begun or event.kind == "turn.started"
                left -= 1
                if not left:
                    break
        finally:
            await events.aclose()
        return has_begun

    def _own_text(self, session: Session, chance: random.Random) -> str | None:
        """Sometimes a turn is started with a text of its own; its message gets an id that we do not know."""
        if chance.random() < 0.7:
            return None
        text = f"<{self.options.life}-{session.id}-{chance.getrandbits(40):x}>"
        self.report("text", session=session.id, text=text)
        return text

    def _applied(self, text: str | None) -> None:
        if text is not None:
            self.report("text applied", text=text)

    # -- the end -----------------------------------------------------------------------------------------------------

    def watch(self) -> str:
        """Wait for the order to end, and look meanwhile whether somebody is stuck."""
        while not select.select([0], [], [], 1.0)[0]:
            now = time.monotonic()
            for name, (since, what) in list(self.busy.items()):
                if now - since > _LONGEST:
                    self.busy.pop(name, None)
                    self.report.violation(f"{name} does not come back from {what}")
                    faulthandler.dump_traceback()
        return sys.stdin.readline().strip()

    def end(self, *, settle: bool) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join(2 * _LONGEST)
            if thread.is_alive():
                self.report.violation(f"{thread.name} did not come to an end: {self.busy.get(thread.name)}")
        for slot in self.slots:
            if settle:
                slot.close(how="close")
                slot.open("serve")
        if settle:
            self._settle()
        for slot in self.slots:
            slot.close(how="close")
        self.store.close()
        self.report("ended")

    def _settle(self) -> None:
        """Answer every question and release what is held: then all messages are applied."""
        chance = random.Random(0)
        end = time.monotonic() + _SETTLED
        waiting = list(self.slots)
        while waiting and time.monotonic() < end:
            for slot in list(waiting):
                session = slot.session
                session.release()
                asked = slot.open_question(chance)
                if asked is not None:
                    session.answer(asked[0], True if asked[1] == "approval" else "a")
                if not len(session.inbox) and not session.is_running:
                    waiting.remove(slot)
            time.sleep(0.02)
        for slot in waiting:
            self.report.violation(f"{slot.session!r} did not settle: {slot.session.inbox}, {slot.session.turn}")
            faulthandler.dump_traceback()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("pipe", "life", "sessions", "threads"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("path", "url", "seed"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    os.set_inheritable(options.pipe, False)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    worker = Worker(options)
    chance = random.Random(f"{options.seed} signals")

    def stop_one(*_: object) -> None:
        session = chance.choice(worker.slots).session
        with contextlib.suppress(SessionClosed):
            chance.choice((session.stop, session.interrupt))()

    signal.signal(signal.SIGUSR2, stop_one)
    worker.report("ready")
    worker.end(settle=worker.watch() == "settle")


if __name__ == "__main__":
    main()
