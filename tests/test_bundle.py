"""What several sessions write in the same turn of the loop: together if that can be, and as if each wrote alone."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from halter import Agent, Session, Turn, bundle
from halter.bundle import Entry, bundle_here
from halter.errors import StoreError, StoreFull
from halter.events import Event, EventData
from halter.models import Finished, ModelEvent, ModelRequest, TextDelta
from halter.stores import Lease, MemoryStore, SQLiteStore, Store
from tests.historyjudge import judge_session
from tests.laws.judge import check_log
from tests.sessionkit import AT_MOST, always_one_more, kinds, next_event, said

COUNT = 4
WORDS = ("one ", "two ", "three ")
_TURNS = 10  # of the loop, between two words: each is written before the next is said


class InStep:
    """A model whose streams say each word in the same turn of the loop; or the first, and then wait, if asked to."""

    name = "in step"

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._gone = 0
        self._here: list[asyncio.Future[None]] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            for word in WORDS:
                await self._meet()
                yield TextDelta(word)
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
                if request.messages[-1].text == "wait":
                    await asyncio.Event().wait()
            yield Finished("stop")
        finally:
            self._gone += 1
            self._go_on()

    async def _meet(self) -> None:
        bell = asyncio.get_running_loop().create_future()
        self._here.append(bell)
        self._go_on()
        await bell

    def _go_on(self) -> None:
        """Wake those that are here, if they are all that are left."""
        if len(self._here) + self._gone == self._streams:
            here, self._here = self._here, []
            for bell in here:
                if not bell.done():
                    bell.set_result(None)
        if self._gone == self._streams:
            self._gone = 0


class GroupStore(SQLiteStore):
    """A real store that tells of what is written together, in the moment before and after."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.together: list[list[list[str]]] = []
        self.alone: list[list[str]] = []
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self.before_alone: Callable[[], object] = lambda: None

    def append_all(self, writings: Sequence[tuple[Lease, Sequence[Event]]]) -> None:
        self.before()
        super().append_all(writings)
        self.together.append([kinds(events) for _, events in writings])
        self.after()

    def append(self, lease: Lease, events: Sequence[Event]) -> None:
        self.before_alone()
        super().append(lease, events)
        self.alone.append(kinds(events))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GroupStore]:
    with GroupStore(tmp_path / "store.db") as store:
        yield store


def sessions_in(store: Store, count: int = COUNT, model: InStep | None = None) -> list[Session]:
    agent = Agent(model or InStep(count))
    return [agent.session(f"s{number}", store) for number in range(count)]


def run_all(sessions: list[Session], text: str = "go", then: Callable[[], object] | None = None) -> list[Turn]:
    """Run a turn in each at the same time; when each has said a word, do something."""

    async def main() -> list[Turn]:
        listeners = [session.listen() for session in sessions]
        running = [asyncio.ensure_future(session.arun(text)) for session in sessions]
        if then is not None:
            for listener in listeners:
                await next_event(listener, "text.delta")
            then()
        return await asyncio.wait_for(asyncio.gather(*running), AT_MOST)

    return asyncio.run(main())


def words(session: Session) -> list[str]:
    return [event.data.text for event in session.events() if isinstance(event.data, TextDelta)]


def check(sessions: list[Session], turns: list[Turn]) -> None:
    """Look whether all is done, and in the log."""
    assert [turn.status for turn in turns] == ["done"] * len(turns)
    for session in sessions:
        assert words(session) == list(WORDS)
        assert kinds(session.events())[-1] == "turn.finished"
        judge_session(session)


def test_words_and_ends_of_several_are_written_together(store: GroupStore) -> None:
    """What sessions say at the same time is one write, and so are their ends but the first, which does not wait."""
    sessions = sessions_in(store)
    check(sessions, run_all(sessions))
    end = ["request.finished", "turn.finished"]
    assert store.together == [[["text.delta"]] * COUNT] * len(WORDS) + [[end] * (COUNT - 1)]
    assert store.alone[-1] == end


def test_stops_of_several_are_written_together(store: GroupStore) -> None:
    """Who stops many sessions at once waits for two writes, not for many."""
    sessions = sessions_in(store)
    turns = run_all(sessions, "wait", lambda: [session.stop() for session in sessions])
    assert [(turn.status, turn.reason) for turn in turns] == [("interrupted", "stop")] * COUNT
    end = ["turn.stopping", "request.cancelled", "turn.finished"]
    assert store.together[-1] == [end] * (COUNT - 1)
    assert store.alone[-1] == end
    for session in sessions:
        judge_session(session)


def test_one_that_is_alone_waits_for_nobody(store: GroupStore) -> None:
    """One session writes as if there were no others, in no more transactions."""
    sessions = sessions_in(store, 1)
    check(sessions, run_all(sessions))
    assert not store.together
    assert store.alone[-4:] == [["text.delta"]] * len(WORDS) + [["request.finished", "turn.finished"]]


def test_a_store_that_knows_no_groups() -> None:
    """A store of another kind is written to for one after the other."""
    sessions = sessions_in(MemoryStore())
    check(sessions, run_all(sessions))


def test_several_stores(store: GroupStore, tmp_path: Path) -> None:
    """Sessions of several stores in one loop each have their own log."""
    with GroupStore(tmp_path / "other.db") as other:
        model = InStep(6)
        stores = (store, other, MemoryStore())
        sessions = [session for each in stores for session in sessions_in(each, 2, model)]
        check(sessions, run_all(sessions))


def test_many_more_than_are_written_at_once(store: GroupStore) -> None:
    """All of very many sessions are written, some at a time."""
    sessions = sessions_in(store, 300)
    check(sessions, run_all(sessions))
    assert max(len(written) for written in store.together) == 128


@pytest.mark.parametrize("most", [20, 1_024])
def test_it_is_quiet_when_nothing_waits(store: GroupStore, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has something less urgent to do goes on when all that waited is written, and at once if nothing does."""
    monkeypatch.setattr(bundle, "_MOST", 16)
    monkeypatch.setattr(bundle, "_MOST_LATE", most)
    sessions = sessions_in(store, 160)
    ends: list[int] = []

    async def wait(here: bundle.Bundle) -> None:
        await here.quiet()
        ends.append(ends_in(store))

    async def main() -> None:
        assert is_quiet()
        running = await run_to_first_word(sessions)
        waiting: list[asyncio.Task[None]] = []

        def begin() -> None:
            if not waiting and ends_in(store):
                waiting.append(asyncio.ensure_future(wait(bundle_here())))

        store.after = begin
        for session in sessions:
            session.stop()
        await asyncio.wait_for(asyncio.gather(*running), AT_MOST)
        await asyncio.gather(*waiting)
        assert is_quiet()

    asyncio.run(main())
    assert ends == [160]


@pytest.mark.parametrize("most", [20, 1_024])
def test_all_are_written_before_one_goes_on(store: GroupStore, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many end, those who listen hear of all before the first goes on; or of many, for that has to end."""
    monkeypatch.setattr(bundle, "_MOST", 16)
    monkeypatch.setattr(bundle, "_MOST_LATE", most)
    sessions = sessions_in(store, 160)
    ends: list[int] = []

    async def main() -> None:
        running = await run_to_first_word(sessions)
        for session in sessions:
            assert session.turn is not None
            session.turn.ended.on_cancel(lambda: ends.append(ends_in(store)))
            session.stop()
        await asyncio.wait_for(asyncio.gather(*running), AT_MOST)

    asyncio.run(main())
    first, *others = ends
    assert first == 1  # it knew of no others
    assert len(others) == 159
    assert min(others) == 160 if most > 160 else min(others) < 80


def test_ends_come_first(store: GroupStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more waits than is written in one go, words wait for ends, and both keep their order."""
    monkeypatch.setattr(bundle, "_MOST", 4)
    sessions = sessions_in(store, 12)
    asked: list[str] = []

    def entry(number: int, what: str) -> Entry:
        def say() -> list[EventData]:
            asked.append(f"{what} {number}")
            return []

        return Entry(sessions[number]._journal, "", say, lambda *_: None)

    async def main() -> None:
        here = bundle_here()
        ends = [asyncio.ensure_future(here.write(entry(number, "end"))) for number in range(6)]
        for number in range(6, 12):
            here.add(entry(number, "word"))
        await asyncio.gather(*ends)

    asyncio.run(main())
    assert asked == [f"end {number}" for number in range(6)] + [f"word {number}" for number in range(6, 12)]


def test_quiet_is_waited_for_a_while(store: GroupStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is always one more that ends, that is the end of it."""
    monkeypatch.setattr(bundle, "_LATER", 0.01)
    (session,) = sessions_in(store, 1)

    async def main() -> None:
        with always_one_more(session, monkeypatch) as here:
            await asyncio.sleep(0)
            assert here.is_ending
            await asyncio.wait_for(here.quiet(), AT_MOST)
            assert here.is_ending

    asyncio.run(main())


def test_words_without_end_hold_up_nobody(store: GroupStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are always more words than are written in one go, who ends goes on all the same, and it is quiet."""
    monkeypatch.setattr(bundle, "_MOST", 2)
    monkeypatch.setattr(bundle, "_LATER", AT_MOST)
    sessions = sessions_in(store, 4)

    async def main() -> None:
        here = bundle_here()
        is_over = False

        def again(said: object, error: object) -> None:
            if not is_over:
                here.add(Entry(sessions[0]._journal, "", list, again))

        for _ in range(10):
            again([], None)
        for session in sessions[1:]:
            await asyncio.wait_for(here.write(Entry(session._journal, "", list, lambda *_: None)), AT_MOST / 2)
        await asyncio.wait_for(here.quiet(), AT_MOST / 2)
        is_over = True

    asyncio.run(main())


def ends_in(store: GroupStore) -> int:
    """How many turns were written to their end."""
    together = [each for written in store.together for each in written]
    return sum(each[-1] == "turn.finished" for each in (*store.alone, *together))


def is_quiet() -> bool:
    """Whether nobody has to wait for that."""
    try:
        bundle_here().quiet().send(None)
    except StopIteration:
        return True
    return False


async def run_to_first_word(sessions: list[Session]) -> list[asyncio.Task[Turn]]:
    listeners = [session.listen() for session in sessions]
    running = [asyncio.create_task(session.arun("wait")) for session in sessions]
    for listener in listeners:
        await next_event(listener, "text.delta")
    return running


def test_what_the_store_refuses_is_written_alone(store: GroupStore) -> None:
    """If it can not be written together, each is written for itself, and nothing is missing or there twice."""

    def refuse() -> None:
        msg = "not together"
        raise StoreError(msg)

    store.before = refuse
    sessions = sessions_in(store)
    check(sessions, run_all(sessions))
    assert not store.together


def test_a_full_disk_is_told_to_each(store: GroupStore) -> None:
    """Turns whose words can not be written fail, each with the reason; when there is space, the next ones go well."""

    def refuse() -> None:
        msg = "no space is left"
        raise StoreFull(msg)

    def fill_up() -> None:
        store.before = store.before_alone = refuse
        refuse()

    store.before = fill_up
    sessions = sessions_in(store)
    turns = run_all(sessions)
    assert [turn.status for turn in turns] == ["failed"] * COUNT
    assert all(isinstance(turn.error, StoreFull) for turn in turns)
    store.before = store.before_alone = lambda: None
    assert [turn.status for turn in run_all(sessions)] == ["done"] * COUNT
    for session in sessions:
        judge_session(session)


def test_a_lost_session_costs_the_others_nothing(store: GroupStore) -> None:
    """A session whose lease is lost in the middle fails, and those that wrote with it do not."""
    sessions = sessions_in(store)

    def lose() -> None:
        store.before = lambda: None
        store.release(sessions[0]._journal.lease)

    store.before = lose
    lost, *others = run_all(sessions)
    assert lost.status == "failed"
    check(sessions[1:], others)


def test_somebody_holds_a_lock(store: GroupStore) -> None:
    """A session that another thread is just at work in is written when it is free; the others do not wait for it."""
    sessions = sessions_in(store)
    is_held, may_let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with sessions[0]._journal.lock:
            is_held.set()
            may_let_go.wait(AT_MOST)

    holder = threading.Thread(target=hold)

    def begin() -> None:
        holder.start()
        assert is_held.wait(AT_MOST)
        store.after = may_let_go.set

    check(sessions, run_all(sessions, then=begin))
    assert may_let_go.is_set()
    holder.join(AT_MOST)
    assert [["text.delta"]] * (COUNT - 1) in store.together


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_handler_comes_between(store: GroupStore, moment: str) -> None:
    """Messages that a signal's handler sends while sessions write together are not lost, and all is told in order."""
    sessions = sessions_in(store)

    def handler() -> None:
        setattr(store, moment, lambda: None)
        for session in sessions:
            session.queue(f"for {session.id}")

    setattr(store, moment, handler)
    listeners = [session.listen() for session in sessions]
    turns = run_all(sessions, "wait", lambda: [session.interrupt() for session in sessions])
    assert [turn.status for turn in turns] == ["interrupted"] * COUNT
    for listener in listeners:
        told = [event.seq for event in iter(listener.get_nowait, None)]
        assert told == list(range(1, len(told) + 1))
    assert [turn.status for turn in run_all(sessions)] == ["done"] * COUNT
    for session in sessions:
        earlier, last = said(session.history)[-2:]
        assert earlier.endswith(f"for {session.id}")
        assert last == "go"
        judge_session(session)


def test_ctrl_c_while_it_is_taken_in(store: GroupStore) -> None:
    """A handler that raises when all is written, and some of it not taken in yet, leaves no session that is torn."""
    sessions = sessions_in(store)

    def interrupt(events: list[Event]) -> None:
        if events:
            raise KeyboardInterrupt

    listeners = [session.listen() for session in sessions]
    heard = sessions[1].listen(only=[TextDelta])
    heard.hear = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_all(sessions)
    heard.close()
    assert [turn.status for turn in run_all(sessions)] == ["done"] * COUNT
    for session, listener in zip(sessions, listeners, strict=True):
        assert list(iter(listener.get_nowait, None)) == session.events()
        judge_session(session)
        check_log(session.events())


def test_a_stop_from_another_thread_while_they_write(store: GroupStore) -> None:
    """A stop that comes from a thread in the middle of the write takes hold, and is told in the log."""
    sessions = sessions_in(store)

    def stop_all() -> None:
        store.before = lambda: None
        thread = threading.Thread(target=lambda: [session.stop() for session in sessions])
        thread.start()
        for session in sessions:
            session.turn.token.wait(AT_MOST)  # type: ignore[union-attr]

    store.before = stop_all
    turns = run_all(sessions, "wait")
    assert [(turn.status, turn.reason) for turn in turns] == [("interrupted", "stop")] * COUNT
    for session in sessions:
        judge_session(session)


def test_a_cancelled_task_does_not_wait_to_be_written(store: GroupStore) -> None:
    """Tasks that are cancelled while the ends of their turns wait to be written leave none of them unwritten."""
    sessions = sessions_in(store, 700)
    unwritten: list[str] = []

    async def main() -> None:
        listeners = [session.listen() for session in sessions]
        running = [asyncio.ensure_future(session.arun("wait")) for session in sessions]
        here = bundle_here()
        for session, task in zip(sessions, running, strict=True):
            task.add_done_callback(lambda _, session=session: unwritten.extend(left_open(session)))
        for listener in listeners:
            await next_event(listener, "text.delta")

        def cancel_all() -> None:
            if store.together[-1][0][-1] == "turn.finished":
                store.after = lambda: None
                for task in running:
                    task.cancel()

        store.after = cancel_all
        for session in sessions:
            session.stop()
        ended = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), AT_MOST)
        assert any(isinstance(each, asyncio.CancelledError) for each in ended)
        assert not here.is_ending

    asyncio.run(main())
    assert not unwritten
    for session in sessions:
        assert session.turn is not None
        assert (session.turn.status, session.turn.reason) == ("interrupted", "stop")
        judge_session(session)


def left_open(session: Session) -> list[str]:
    return [] if kinds(session.events())[-1] == "turn.finished" else [session.id]


def test_who_holds_a_journal_is_alone(store: GroupStore) -> None:
    """A journal is held once, also by the same thread, and is free again when it was not given."""
    (session,) = sessions_in(store, 1)
    run_all([session])
    journal = session._journal
    assert journal.hold()
    assert not journal.hold()
    journal.let_go()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(journal.lock.acquire, blocking=False).result()


def test_nothing_is_kept_of_a_loop_that_is_gone() -> None:
    """Who has run a turn in a loop keeps neither the loop nor what it knew."""

    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        await sessions_in(MemoryStore(), 1)[0].arun("go")
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    gc.collect()
    assert loop() is None
