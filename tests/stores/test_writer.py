"""The writer of a store: it alone decides, writes and publishes, in order, for all threads and signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from halter.errors import StoreError, StoreFull, WriteRefused
from halter.events import MessageAccepted
from halter.models.types import UserMessage
from halter.session.log import EventLog, Transaction
from halter.stores import MemoryStore, SQLiteStore, Store, Write
from halter.stores.closed_sessions import erase_session
from halter.stores.drain_claim import DrainClaim
from halter.stores.writer import MAX_BATCH
from tests.support.background import Background
from tests.support.ctrl_c import CtrlC
from tests.support.looped import looped
from tests.support.paused_writer import WriterPaused
from tests.support.processes import run_python
from tests.support.sessions import kinds
from tests.support.waiting import wait_until


class Watched:
    """A real store whose commits are counted, and can be made to fail."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commits: list[int] = []  # how many sessions each has written
        self.error: Exception | None = None
        self._commit = store.commit
        store.commit = self.commit  # type: ignore[method-assign]

    def commit(self, writes: Sequence[Write]) -> None:
        if self.error is not None:
            raise self.error
        self._commit(writes)
        self.commits.append(len(writes))

    def log(self, name: str) -> EventLog:
        return EventLog(name, self.store, self.store.acquire(name))


@pytest.fixture(params=["memory", "sqlite"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db")
    yield Watched(store)
    store.close()


def says(message_id: str, then: Callable[[], object] | None = None) -> Callable[[Transaction], str]:
    """Make a decision that accepts a message."""

    def decide(tx: Transaction) -> str:
        tx.write("", MessageAccepted(message_id, "queue", UserMessage.of("hello")))
        if then is not None:
            tx.after_commit(then)
        return message_id

    return decide


def ids(log: EventLog) -> list[str]:
    """The messages in the log, which must be those of the view."""
    stored = [event.data.id for event in log.store.read(log.id) if isinstance(event.data, MessageAccepted)]
    assert stored == [message.id for message in log.view.inbox]
    return stored


# -- batches ---------------------------------------------------------------------------------------------------------


def test_what_waits_is_committed_together(watched: Watched) -> None:
    """Commands that came while the writer was busy share one commit, whatever sessions they are for."""
    logs = [watched.log(name) for name in "abc"]
    with WriterPaused(logs[0]):
        commands = [log.submit(says(f"{log.id}{number}")) for number in range(4) for log in logs]
        assert not any(command.is_done for command in commands)
    results = [logs[0].writer.wait(command) for command in commands]
    assert results == [f"{name}{number}" for number in range(4) for name in "abc"]
    assert watched.commits == [3]
    for log in logs:
        assert ids(log) == [f"{log.id}{number}" for number in range(4)]


def test_a_batch_is_bounded(watched: Watched) -> None:
    """A flood of commands is committed in pieces, so that the first need not wait for the last."""
    log = watched.log("a")
    with WriterPaused(log):
        commands = [log.submit(says(str(number))) for number in range(MAX_BATCH + 1)]
    assert log.writer.wait(commands[-1]) == str(MAX_BATCH)
    assert len(watched.commits) == 2
    assert ids(log) == [str(number) for number in range(MAX_BATCH + 1)]


@looped
async def test_a_loop_is_woken_once_for_all_that_a_batch_shows(tmp_path: Path) -> None:
    """Readers of many sessions in one event loop are woken together: each wake-up costs the writer the interpreter."""
    loop = asyncio.get_running_loop()
    woken: list[object] = []
    wake = loop.call_soon_threadsafe

    def count(call: Callable[..., object], *args: Any, **options: Any) -> asyncio.Handle:
        woken.append(call)
        return wake(call, *args, **options)

    with SQLiteStore(tmp_path / "store.db") as store:
        watched = Watched(store)
        logs = [watched.log(name) for name in "abcde"]
        readers = [asyncio.ensure_future(log.watch().wait_async()) for log in logs]
        await asyncio.sleep(0)  # until they wait
        loop.call_soon_threadsafe = count  # type: ignore[assignment, method-assign]
        with WriterPaused(logs[0]):
            for log in logs:
                log.submit(says("m"))
        assert await asyncio.gather(*readers) == [True] * len(logs)
        assert len(woken) == 1
        assert watched.commits == [len(logs)]


def test_a_job_for_the_store_has_its_place_in_the_order(watched: Watched) -> None:
    """What is for the store alone is done behind what came before it, and its error is its caller's."""
    log = watched.log("a")
    seen: list[list[str]] = []

    def fail() -> None:
        raise StoreFull("none")

    with WriterPaused(log):
        log.submit(says("one"))
        looks = log.writer.submit(log.writer.job(lambda: seen.append(kinds(log.store.read("a")))))
        fails = log.writer.submit(log.writer.job(fail))
        log.submit(says("two"))
    log.writer.wait(looks)
    assert seen == [["message.accepted"]]
    with pytest.raises(StoreFull):
        log.writer.wait(fails)
    log.run(lambda _: None)
    assert ids(log) == ["one", "two"]


def test_many_threads_keep_their_order_and_lose_nothing(watched: Watched) -> None:
    """Each thread's commands run in its order, once, and the log has no gaps; some share a commit."""
    log = watched.log("a")

    def speak(who: int) -> list[str]:
        return [log.run(says(f"{who}-{number}")) for number in range(50)]

    speakers = [Background(lambda who=who: speak(who)) for who in range(6)]
    for who, speaker in enumerate(speakers):
        assert speaker.result() == [f"{who}-{number}" for number in range(50)]
    found = ids(log)
    assert len(found) == 300
    for who in range(6):
        assert [each for each in found if each.startswith(f"{who}-")] == [f"{who}-{number}" for number in range(50)]
    assert [event.seq for event in log.store.read("a")] == list(range(1, 301))


@looped
async def test_a_command_whose_awaiter_is_cancelled_still_runs() -> None:
    """Cancelling the task that awaits a command does not take back what was asked for."""
    log = Watched(MemoryStore()).log("a")
    with WriterPaused(log):
        task = asyncio.ensure_future(log.run_async(says("one")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert ids(log) == ["one"]


def test_nobody_is_left_to_wake_in_a_closed_loop(watched: Watched) -> None:
    """A command whose event loop is gone does not keep the others of its batch from being told."""
    log = watched.log("a")
    loop = asyncio.new_event_loop()
    with WriterPaused(log):
        waiting = loop.create_task(log.run_async(says("one")))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        behind = log.submit(says("two"))
    assert log.writer.wait(behind) == "two"
    assert ids(log) == ["one", "two"]
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody can await it any more


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_failed_commit_leaves_memory_equal_to_the_store(watched: Watched) -> None:
    """If a commit fails, all its callers are told, nothing of it is seen or acted on, and the next one works."""
    logs = [watched.log(name) for name in "ab"]
    acted: list[str] = []
    told: list[Exception] = []
    heard: list[Any] = []
    subscription = logs[0].subscribe(100, on_events=heard.extend)
    logs[0].run(says("before"))
    heard.clear()
    watched.error = StoreFull("no space is left")
    with WriterPaused(logs[0]):
        commands = [log.submit(says("lost", lambda: acted.append("lost"))) for log in logs]
        logs[0].submit(says("lost too"), told.append)
    for command in commands:
        with pytest.raises(StoreFull):
            logs[0].writer.wait(command)
    wait_until(lambda: told)
    assert [type(error) for error in told] == [StoreFull]
    assert (acted, heard) == ([], [])
    watched.error = None
    for log in logs:
        log.run(says("after"))
    assert ids(logs[0]) == ["before", "after"]
    assert ids(logs[1]) == ["after"]
    assert [event.seq for event in heard] == [2]
    subscription.close()


def test_a_store_that_raises_anything_else_fails_as_well(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A defect of a store: it was tried again for ever, and the callers waited. They are told, and the log has it."""
    log = watched.log("a")
    watched.error = ZeroDivisionError("a defect")
    for _ in range(2):
        with pytest.raises(StoreError, match="ZeroDivisionError: a defect"):
            Background(lambda: log.run(says("lost"))).result()
    assert "a store raised" in caplog.text
    watched.error = None
    log.run(says("after"))
    assert ids(log) == ["after"]


def test_ctrl_c_while_a_store_breaks_leaves_nobody_waiting(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether the interrupted write is in the store: it is tried again, and its callers are told."""
    log = watched.log("a")
    log.run(says("before"))

    def broken(*_: object, **__: object) -> None:
        raise StoreFull("it is broken")

    def interrupted(_: Sequence[Write]) -> None:
        monkeypatch.setattr(watched.store, "read", broken)
        raise KeyboardInterrupt

    monkeypatch.setattr(watched.store, "commit", interrupted)
    command = log.command(says("lost"))
    with contextlib.suppress(KeyboardInterrupt):
        log.writer.submit(command)
    with pytest.raises(StoreFull, match="it is broken"):
        Background(lambda: log.writer.wait(command)).result()
    monkeypatch.undo()
    log.run(says("after"))
    assert ids(log) == ["before", "after"]


def test_the_refused_write_of_one_session_does_not_fail_another(watched: Watched) -> None:
    """A session whose lease is lost is refused; those in the same batch are written as if it were not there."""
    good, bad = watched.log("good"), watched.log("bad")
    watched.store.release(bad.lease)
    with WriterPaused(good):
        commands = [log.submit(says(name)) for log, name in ((good, "1"), (bad, "2"), (good, "3"), (bad, "4"))]
    assert [good.writer.wait(commands[number]) for number in (0, 2)] == ["1", "3"]
    for number in (1, 3):
        with pytest.raises(WriteRefused, match="bad"):
            good.writer.wait(commands[number])
    assert (ids(good), ids(bad)) == (["1", "3"], [])


def test_a_command_that_fails_half_way_takes_nobody_with_it(watched: Watched) -> None:
    """What a command had written before it raised is undone; the others of its session are done, in their order."""
    log, other = watched.log("a"), watched.log("b")

    def half(tx: Transaction) -> None:
        tx.write("", MessageAccepted("half", "queue", UserMessage.of("x")))
        raise ValueError("on purpose")

    def nothing(_: Transaction) -> None:
        raise ValueError("before it wrote anything")

    with WriterPaused(log):
        before, fails, behind = log.submit(says("before")), log.submit(half), log.submit(says("behind"))
        refuses, neighbour = log.submit(nothing), other.submit(says("neighbour"))
    for command in (fails, refuses):
        with pytest.raises(ValueError, match=r"on purpose|before it wrote"):
            log.writer.wait(command)
    assert [log.writer.wait(command) for command in (before, behind, neighbour)] == ["before", "behind", "neighbour"]
    assert (ids(log), ids(other)) == (["before", "behind"], ["neighbour"])


# -- effects ---------------------------------------------------------------------------------------------------------


def test_an_effect_may_run_a_command_and_wait_for_it(watched: Watched) -> None:
    """What follows from a command may say something itself, also to another session, and wait until it is durable."""
    one, other = watched.log("one"), watched.log("other")
    seen: list[str] = []

    def post() -> None:
        seen.append(one.run(says("nested", lambda: seen.append(other.run(says("deeper"))))))

    one.run(says("first", post))
    assert seen == ["deeper", "nested"]
    assert (ids(one), ids(other)) == (["first", "nested"], ["deeper"])


def test_an_effect_that_raises_keeps_nobody_from_anything(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged, and the effects and commands behind it come all the same."""
    log = watched.log("a")
    seen: list[str] = []

    def fail() -> None:
        raise ValueError("on purpose")

    with WriterPaused(log):
        commands = [log.submit(says("one", fail)), log.submit(says("two", lambda: seen.append("two")))]
    assert [log.writer.wait(command) for command in commands] == ["one", "two"]
    assert seen == ["two"]
    assert "on purpose" in caplog.text


# -- signals ---------------------------------------------------------------------------------------------------------

WRITER = (
    "stores/writer.py",
    "stores/batch.py",
    "stores/drain_claim.py",
    "stores/memory.py",
    "session/log.py",
    "session/inbox.py",
    "threads/pool.py",
)


def test_a_signal_handler_may_submit_at_any_point(watched: Watched) -> None:
    """A handler that interrupts the writer's own work submits: its command runs once, when it has returned."""
    log = watched.log("a")
    for nth in itertools.count(1):
        posted: list[bool] = []

        def handler(nth: int = nth, posted: list[bool] = posted) -> None:
            command = log.submit(says(f"handler {nth}"))
            if log.writer.is_interrupted_here:
                with pytest.raises(RuntimeError, match="signal handler"):
                    log.writer.wait(command)
            else:
                log.writer.wait(command)
            posted.append(True)

        interrupt = CtrlC(nth, *WRITER, do=handler)
        was_hit = interrupt.run(lambda nth=nth: log.run(says(f"caller {nth}")))
        if not was_hit:
            break
        log.run(lambda _: None)
        assert posted, interrupt.where
        assert sorted(ids(log)[-2:]) == [f"caller {nth}", f"handler {nth}"], interrupt.where
    assert nth > 15
    assert len(ids(log)) == 2 * (nth - 1) + 1


def test_ctrl_c_at_any_point_harms_nobody(watched: Watched) -> None:
    """Wherever Ctrl+C is raised, what was submitted is done once, with its effects, and the others' commands too."""
    log, other = watched.log("a"), watched.log("b")
    writer = log.writer
    for nth in itertools.count(1):
        seen: list[str] = []
        claim = DrainClaim()
        wait_until(lambda claim=claim: writer.claim.set(claim))
        theirs = Background(lambda nth=nth, seen=seen: other.run(says(f"theirs {nth}", lambda: seen.append("1"))))
        wait_until(lambda: writer.waiting == 1)
        own = log.command(says(f"own {nth}", lambda seen=seen: seen.append("2")))
        writer.claim.clear()  # so both are run in one batch, by whoever comes first: this thread
        interrupt = CtrlC(nth, *WRITER)
        was_hit = interrupt.run(lambda own=own: writer.run(own))
        Background(lambda: log.run(lambda _: None)).result()
        assert theirs.result() == f"theirs {nth}", interrupt.where
        assert ids(other)[-1] == f"theirs {nth}", interrupt.where
        if f"own {nth}" in ids(log):  # else it came before the command was given
            assert ids(log).count(f"own {nth}") == 1, interrupt.where
            assert own.is_done, interrupt.where
            assert set(seen) == {"1", "2"}, interrupt.where
        if not was_hit:
            break
    assert nth > 15
    assert len(ids(other)) == nth


# -- forks and erasing -----------------------------------------------------------------------------------------------

FORK_PROGRAM = """
    import os, threading, warnings
    from halter import Agent
    from halter.stores import MemoryStore
    from halter.testing import ScriptedModel

    class Slow(MemoryStore):
        blocks = True
        is_in, go = threading.Event(), threading.Event()

        def commit(self, writes):
            super().commit(writes)
            if os.getpid() == parent and not self.is_in.is_set():
                self.is_in.set()
                self.go.wait(20)

    parent = os.getpid()
    store = Slow()
    agent = Agent(ScriptedModel("one", "two"))
    session = agent.session("parent", store)
    posting = threading.Thread(target=session.queue, args=("hello",))
    posting.start()
    assert store.is_in.wait(20)          # the writer's thread is in the middle of a commit, with the claim
    warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on Python warns of forks with threads
    if os.fork() == 0:
        with agent.session("child", store) as own:
            assert own.run("hi").text == "one"
        os._exit(7)
    _, status = os.wait()
    store.go.set()
    posting.join(20)
    assert session.run().text == "one"
    print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_has_a_writer_of_its_own() -> None:
    """A fork while the writer's thread commits: the child can write at once, and the parent goes on."""
    ended = run_python(FORK_PROGRAM)
    assert (ended.stdout, ended.stderr) == ("7\n", "")


def test_a_session_that_nobody_has_open_can_be_erased(watched: Watched) -> None:
    """erase_session() forgets its log, and leaves it free."""
    log = watched.log("a")
    log.run(says("one"))
    log.close()
    watched.store.release(log.lease)
    erase_session(watched.store, "a")
    assert watched.store.read("a") == []
    assert ids(watched.log("a")) == []


def test_sessions_that_share_a_failed_commit_share_no_frames(watched: Watched) -> None:
    """Was a defect: each caller's frames were added to the one error, so the last of 200 logged a thousand lines."""
    logs = [watched.log(str(number)) for number in range(5)]
    watched.error = StoreFull("full")
    with WriterPaused(logs[0]):
        commands = [log.submit(says("m")) for log in logs]
    lengths = set()
    for command in commands:
        with pytest.raises(StoreFull) as caught:
            logs[0].writer.wait(command)
        lengths.add(len(caught.traceback))
    assert len(lengths) == 1
