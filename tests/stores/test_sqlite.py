"""What the SQLite store does with its file: what survives, who waits for whom, and what is said when it fails."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from halter.errors import LeaseLost, SessionOwned, StoreError, StoreFull, WriteRefused
from halter.events import (
    ApprovalAnswered,
    EventData,
    MessageApplied,
    MessageEdited,
    MessageRemoved,
    QuestionAnswered,
    kind_of,
)
from halter.models.types import UserMessage
from halter.stores import SQLiteStore, Write
from halter.stores.sqlite import connection as sqlite_file
from tests.support.processes import open_descriptors
from tests.support.store_events import accepted, append, event, line, numbered, numbers, output, program, says, texts
from tests.support.waiting import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_what_was_written_is_there_when_it_is_opened_again(path: Path) -> None:
    """A store that was closed and opened again has the log and the sessions, and new leases have higher generations."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        log = append(store, lease, accepted("a"), event(MessageApplied("a", "queue")), says("hi"), waiting=1)
        sessions = store.sessions()
    with SQLiteStore(str(path)) as store:
        assert (store.read("s"), store.sessions()) == (log, sessions)
        newer = store.acquire("s")
        assert newer.generation > lease.generation
        append(store, newer, says("more"))
        assert numbers(store) == [1, 2, 3, 4]


@pytest.mark.parametrize("moment", range(6))
def test_kill_leaves_all_of_a_commit_or_nothing(path: Path, moment: int) -> None:
    """A process that is killed leaves each commit for all its sessions or for none, and all that it has reported."""
    code = """
        store = SQLiteStore(path)
        leases = [store.acquire(name) for name in "abcde"]
        for n in range(1_000_000):
            made = [numbered(2 * n + 1, accepted(f"m{n}") if n % 3 else says("x"), says(str(n))) for _ in leases]
            store.commit([Write(lease, events, n) for lease, events in zip(leases, made)])
            print(n)
    """
    with program(code, path) as process:
        for _ in range(moment * 37 + 1):
            reported = int(line(process))
        process.kill()
        assert process.stdout is not None
        rest = process.stdout.read().split()
        reported = int(rest[-1]) if rest else reported
    with SQLiteStore(path) as store:
        found = {info.id: (info.events, info.waiting) for info in store.sessions()}
        last = found["a"][1]
        assert last in {reported, reported + 1}  # it may have died between writing and reporting
        assert found == dict.fromkeys("abcde", (2 * last + 2, last))
        for name in "abcde":
            assert numbers(store, name) == list(range(1, 2 * last + 3))
            assert [text for text in texts(store, name) if text != "x"] == [str(n) for n in range(last + 1)]
        append(store, store.acquire("a"), says("on"))


TOLD = [
    accepted("m").data,
    MessageEdited("m", UserMessage.of("x")),
    MessageRemoved("m"),
    QuestionAnswered("q", "yes"),
    ApprovalAnswered("q", "c", granted=True, note=""),
]


@pytest.mark.parametrize("data", TOLD, ids=kind_of)
def test_what_a_person_was_told_is_on_the_disk(path: Path, data: EventData) -> None:
    """A commit that a person is told of waits for the disk; the one after it does not."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        levels = []
        for each in (says("a"), event(data), says("b")):
            append(store, lease, each)
            (connection,) = store._file._writers
            levels += connection.execute("PRAGMA synchronous").fetchone()
    assert levels == [1, 2, 1]


def test_two_make_the_same_file(path: Path) -> None:
    """Of processes that make the same store at the same moment, all get it, whole."""
    code = """
        sys.stdin.readline()
        with SQLiteStore(path) as store:
            append(store, store.acquire(sys.argv[2]), says("x", sys.argv[2]))
        print("done")
    """
    with program(code, path, "a") as one, program(code, path, "b") as two, program(code, path, "c") as three:
        for process in (one, two, three):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [line(process) for process in (one, two, three)] == ["done"] * 3
    with SQLiteStore(path) as store:
        assert sorted(info.id for info in store.sessions()) == ["a", "b", "c"]


def test_threads_make_the_same_file(path: Path) -> None:
    """Threads that open one path at the same moment all get the store."""
    start, made = threading.Barrier(6), []

    def make() -> None:
        start.wait(10)
        made.append(SQLiteStore(path))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 6
    for number, store in enumerate(made):
        append(store, store.acquire(str(number)), says("x", str(number)))
    assert len(made[0].sessions()) == 6
    for store in made:
        store.close()


# Locks and full disks


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else writes for as long as this lasts."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield other
    finally:
        other.close()


def test_another_holds_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another process holds locked for too long is an error that says so; then the store goes on."""
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT", 0.05)
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        with locked(path):
            with pytest.raises(StoreError, match="another process is holding the file") as refused:
                append(store, lease, says("a"))
            assert not isinstance(refused.value, WriteRefused)
            assert store.read("s") == []
        append(store, lease, says("b"))
        assert texts(store) == ["b"]


def test_a_short_lock_is_waited_for(path: Path) -> None:
    """A commit that finds the file locked waits until it is not."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        with locked(path) as other:
            thread = threading.Thread(target=append, args=(store, lease, says("a")))
            thread.start()
            wait_until(lambda: not store._file._writers)  # the commit is under way
            other.execute("ROLLBACK")
            thread.join(10)
        assert texts(store) == ["a"]


def test_readers_do_not_wait_for_a_lock(path: Path) -> None:
    """While another process holds the file locked and a commit waits for it, any number of threads can read."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        append(store, lease, says("a"))
        with locked(path) as other:
            writer = threading.Thread(target=append, args=(store, lease, says("b")))
            writer.start()
            wait_until(lambda: not store._file._writers)  # the commit is under way
            found: list[object] = []

            def read() -> None:
                found.append((texts(store), len(store.sessions())))

            readers = [threading.Thread(target=read) for _ in range(4)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(10)
            assert found == [(["a"], 1)] * 4
            assert writer.is_alive()
            other.execute("ROLLBACK")
            writer.join(10)
        assert texts(store) == ["a", "b"]


def test_a_release_that_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that the file's lock kept from being written is an error, and yet the session can be opened again."""
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT", 0.05)
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        with locked(path), pytest.raises(StoreError, match="is locked"):
            store.release(lease)
        with pytest.raises(LeaseLost):
            append(store, lease, says("late"))
        newer = store.acquire("s")
        assert newer.generation > lease.generation
        with pytest.raises(SessionOwned):
            store.acquire("s")
        append(store, newer, says("a"))


def test_a_full_disk(path: Path) -> None:
    """A store that cannot grow says so and writes nothing; once there is space it goes on, and no number is missed."""
    code = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = SQLiteStore(path)
        lease = store.acquire("s")
        append(store, lease, says("before"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
        failed = 0
        for n in range(100):
            try:
                append(store, lease, says("x" * 3000), accepted(f"m{n}"))
            except StoreFull as error:
                failed += 1
                told = str(error)
        assert failed > 50, failed
        assert "the disk is full" in told
        written = 100 - failed
        assert len(store.read("s")) == 2 * written + 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        append(store, lease, says("after"))
        assert numbers(store) == list(range(1, 2 * written + 3))
        assert texts(store)[-1] == "after"
        store.close()
        print("whole")
    """
    assert output(code, path) == "whole"


def test_a_full_disk_in_a_database_of_limited_size(path: Path) -> None:
    """SQLite's own word for a full disk is understood too."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        append(store, lease, says("a"))
        (connection,) = store._file._writers
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreFull):
            append(store, lease, says("x" * 100_000))
        connection.execute("PRAGMA max_page_count = 1000000")
        append(store, lease, says("b"))
        assert texts(store) == ["a", "b"]


# Connections


def test_no_descriptor_is_left(path: Path) -> None:
    """A store that needs a descriptor when there is none says so, and goes on when there are some again."""
    code = """
        import resource
        store = SQLiteStore(path)
        lease = store.acquire("s")
        store._file.close_idle()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
        full = []
        try:
            while True:
                full.append(os.dup(0))
        except OSError:
            pass
        for use in (store.sessions, lambda: store.commit([Write(lease, numbered(1, accepted("m")), 1)])):
            try:
                use()
            except StoreError as error:
                print("cannot be opened" in str(error))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        append(store, lease, accepted("m"))
        print(numbers(store))
    """
    assert output(code, path).split("\n") == ["True", "True", "[1]"]


def test_a_closed_store_says_so(path: Path) -> None:
    """After close() every use is refused; also for who was reading while it closed."""
    store = SQLiteStore(path)
    lease = store.acquire("s")
    taken = store._file._take(store._file._readers)
    store.close()
    store._file._put_back(store._file._readers, taken)
    for use in (
        lambda: store.commit([Write(lease, numbered(1, says("x")), 0)]),
        lambda: store.acquire("s"),
        lambda: store.erase(lease),
        lambda: store.read("s"),
        store.sessions,
    ):
        with pytest.raises(StoreError, match="is closed; open it again"):
            use()
    assert os.listdir(path.parent) == ["store.db"]


def test_no_more_connections_than_calls(path: Path) -> None:
    """Calls one after the other share one connection of each kind, and a burst of calls does not leave a crowd."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        for n in range(20):
            append(store, lease, says("x"))
            append(store, lease, accepted(f"m{n}"))
        assert len(store._file._open) == 2
        crowd = [store._file._take(store._file._readers) for _ in range(40)]
        for connection in crowd:
            store._file._put_back(store._file._readers, connection)
        assert len(store._file._open) == 17


def test_closing_while_others_use_it(path: Path) -> None:
    """close() while threads write and read: each commit is whole or refused, no descriptor stays, and nobody hangs."""
    before = open_descriptors()
    for _ in range(10):
        store = SQLiteStore(path)
        lease = store.acquire("s")
        started = threading.Barrier(4)
        reported: list[int] = []

        def write() -> None:
            first = len(store.read("s")) + 1
            started.wait(10)
            with contextlib.suppress(StoreError):
                for seq in count(first):
                    store.commit([Write(lease, numbered(seq, says("x")), 0)])
                    reported.append(seq)

        def read() -> None:
            started.wait(10)
            with contextlib.suppress(StoreError):
                while True:
                    store.read("s")

        threads = [threading.Thread(target=target) for target in (write, read, read)]
        for thread in threads:
            thread.start()
        started.wait(10)
        wait_until(lambda: reported)
        store.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        with SQLiteStore(path) as again:
            assert again.sessions()[0].events == reported[-1]
    gc.collect()
    assert open_descriptors() == before


def test_importing_the_stores_does_not_import_sqlite() -> None:
    """Who keeps sessions in memory does not load SQLite."""
    code = """if True:
        import sys
        before = set(sys.modules)  # an environment may load things of its own at start-up
        from halter.stores import MemoryStore
        print({"sqlite3", "halter.stores.sqlite.store"} & (set(sys.modules) - before))
    """
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
