"""What the SQLite store does with its file: what survives, who owns what, and what is said when it fails."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from halter.errors import (
    LeaseLost,
    SessionOwned,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreTooNew,
)
from halter.events import MessageApplied, QuestionAnswered, TurnStarted
from halter.stores import SQLiteStore, sqlite_file
from tests.helpers import open_descriptors, wait_until
from tests.stores.storekit import accepted, event, line, numbers, output, program, says, texts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def _owners(path: Path) -> list[str]:
    return [name for name in os.listdir(path.parent) if "-owner-" in name]


# What survives


def test_what_was_written_is_there_when_it_is_opened_again(path: Path) -> None:
    """A store that was closed and opened again has the log, the inbox and the sessions, and numbers on from there."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        store.append(lease, [accepted("a"), accepted("b"), event(MessageApplied("a", "queue")), says("hi")])
        log, inbox, sessions = store.read("s"), store.inbox("s"), store.sessions()
    with SQLiteStore(str(path)) as store:
        assert (store.read("s"), store.inbox("s"), store.sessions()) == (log, inbox, sessions)
        newer = store.acquire("s")
        assert newer.generation > lease.generation
        more = says("more")
        store.append(newer, [more])
        assert more.seq == 5


@pytest.mark.parametrize("moment", range(6))
def test_kill_loses_nothing_that_was_reported(path: Path, moment: int) -> None:
    """A process that is killed in the middle of appends leaves every event that it has reported, none twice, no gap."""
    code = """
        store = SQLiteStore(path)
        lease = store.acquire("s")
        for n in range(1_000_000):
            store.append(lease, [accepted(f"m{n}"), says(str(n))] if n % 3 else [says(str(n))])
            print(n)
    """
    with program(code, path) as process:
        for _ in range(moment * 37 + 1):
            line(process)
        process.kill()
        assert process.stdout is not None
        reported = moment * 37 + len(process.stdout.read().split())
    with SQLiteStore(path) as store:
        found = texts(store)
        assert len(found) in {reported + 1, reported + 2}  # it may have died between writing and reporting
        assert found == [str(n) for n in range(len(found))]
        log = numbers(store)
        assert log == list(range(1, len(log) + 1))
        assert [one.id for one in store.inbox("s")] == [f"m{n}" for n in range(len(found)) if n % 3]
        store.append(store.acquire("s"), [says("on")])


def test_what_a_person_was_told_is_on_the_disk(path: Path) -> None:
    """An append that accepts a message is synchronised with the disk before it returns; others need not be."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        store.append(lease, [says("a")])
        store.append(lease, [accepted("m")])
        levels = {
            durable: connection.execute("PRAGMA synchronous").fetchone()[0]
            for durable, idle in store._file._idle.items()
            for connection in idle
        }
    assert levels == {False: 1, True: 2}


def test_two_make_the_same_file(path: Path) -> None:
    """Of processes that make the same store at the same moment, all get it, whole."""
    code = """
        sys.stdin.readline()
        with SQLiteStore(path) as store:
            store.append(store.acquire(sys.argv[2]), [says("x", sys.argv[2])])
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
        store.append(store.acquire(str(number)), [says("x", str(number))])
    assert len(made[0].sessions()) == 6
    for store in made:
        store.close()


# Who owns what

HOLDER = """
store = SQLiteStore(path)
lease = store.acquire("s")
store.append(lease, [says("theirs")])
print("owned")
for command in sys.stdin:
    try:
        exec(command)
        print("done")
    except Exception as error:
        print(type(error).__name__)
"""


def _tell(process: subprocess.Popen[str], command: str) -> str:
    assert process.stdin is not None
    process.stdin.write(command + "\n")
    process.stdin.flush()
    return line(process)


def test_a_session_of_another_process(path: Path) -> None:
    """A session that another process owns is refused, with that process's number, and free once that has closed it."""
    with program(HOLDER, path) as holder, SQLiteStore(path) as store:
        assert line(holder) == "owned"
        with pytest.raises(SessionOwned, match=f"process {holder.pid}; close it there, or wait"):
            store.acquire("s")
        assert texts(store) == ["theirs"]
        store.acquire("another")
        assert _tell(holder, "store.release(lease)") == "done"
        lease = store.acquire("s")
        assert _tell(holder, "store.append(lease, [says('late')])") == "LeaseLost"
        assert _tell(holder, "store.release(lease)") == "done"
        store.append(lease, [says("ours")])
        assert texts(store) == ["theirs", "ours"]


def test_the_session_of_a_process_that_was_killed_is_free_at_once(path: Path) -> None:
    """Kill -9 frees what a process owned, without a wait, and its leftovers are cleared away."""
    with program(HOLDER, path) as holder, SQLiteStore(path) as store:
        assert line(holder) == "owned"
        assert len(_owners(path)) == 2
        holder.kill()
        holder.wait()
        lease = store.acquire("s")
        assert lease.generation == 2
        assert len(_owners(path)) == 1
        store.append(lease, [says("ours")])
        assert texts(store) == ["theirs", "ours"]


def test_a_process_that_only_sleeps_keeps_its_session(path: Path) -> None:
    """A process that is stopped, however long, still owns its session, and writes on when it is continued."""
    with program(HOLDER, path) as holder, SQLiteStore(path) as store:
        assert line(holder) == "owned"
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(SessionOwned):
            store.acquire("s")
        holder.send_signal(signal.SIGCONT)
        assert _tell(holder, "store.append(lease, [says('awake')])") == "done"
        assert texts(store) == ["theirs", "awake"]


def test_a_stale_owner_is_fenced_out(path: Path) -> None:
    """An owner that was taken for dead, and is not, writes nothing any more: the newer generation does."""
    with program(HOLDER, path) as holder, SQLiteStore(path) as store:
        assert line(holder) == "owned"
        (path.parent / next(name for name in _owners(path) if f"-{holder.pid}-" in name)).unlink()
        lease = store.acquire("s")
        assert _tell(holder, "store.append(lease, [says('stale'), accepted('m')])") == "LeaseLost"
        assert _tell(holder, "store.close()") == "done"
        store.append(lease, [says("ours")])
        assert texts(store) == ["theirs", "ours"]
        assert store.inbox("s") == []


def test_two_stores_of_one_process(path: Path) -> None:
    """Two stores on one file in one process are two owners."""
    with SQLiteStore(path) as one, SQLiteStore(path) as two:
        lease = one.acquire("s")
        with pytest.raises(SessionOwned, match="in this process"):
            two.acquire("s")
        with pytest.raises(LeaseLost):
            two.append(lease, [says("with a lease that is not its own")])
        two.release(lease)
        one.append(lease, [says("x")])
        one.close()
        assert two.acquire("s").generation == 2


def test_names_of_one_file(path: Path) -> None:
    """A store that is opened through a link is the same store, with the same owners."""
    link = path.parent / "link.db"
    link.symlink_to(path)
    with SQLiteStore(path) as one, SQLiteStore(link) as two:
        one.acquire("s")
        with pytest.raises(SessionOwned):
            two.acquire("s")


def test_an_owner_without_a_release_leaves_nothing(path: Path) -> None:
    """A store that is dropped is closed: no warning, no descriptor, no file of an owner, and its sessions are free."""
    before = open_descriptors()
    store = SQLiteStore(path)
    store.append(store.acquire("s"), [accepted("m")])
    del store
    gc.collect()
    assert open_descriptors() == before
    assert os.listdir(path.parent) == ["store.db"]
    with SQLiteStore(path) as store:
        store.acquire("s")


def test_a_process_that_just_ends_leaves_nothing(path: Path) -> None:
    """A program that ends without close() says nothing and leaves only the store."""
    assert output("store = SQLiteStore(path); store.append(store.acquire('s'), [accepted('m')])", path) == ""
    assert os.listdir(path.parent) == ["store.db"]


def test_processes_write_at_the_same_time(path: Path) -> None:
    """Processes that write to one file as fast as they can wait for each other, and lose nothing."""
    code = """
        with SQLiteStore(path) as store:
            lease = store.acquire(sys.argv[2])
            for n in range(300):
                store.append(lease, [accepted(str(n), session=sys.argv[2])])
                store.append(lease, [says(str(n), sys.argv[2])])
        print("done")
    """
    with program(code, path, "a") as one, program(code, path, "b") as two, program(code, path, "c") as three:
        assert [line(process) for process in (one, two, three)] == ["done"] * 3
    with SQLiteStore(path) as store:
        for name in "abc":
            assert texts(store, name) == [str(n) for n in range(300)]
            assert numbers(store, name) == list(range(1, 601))


# Forks


def _in_child(act: Callable[[], object]) -> str:
    """What *act* returns or raises in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            said = str(act())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def test_a_forked_child_cannot_use_the_store(path: Path) -> None:
    """In a forked child every use of the parent's store is refused, with the cure; the parent goes on."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        store.append(lease, [says("a")])
        for use in (
            lambda: store.append(lease, [says("b")]),
            lambda: store.read("s"),
            lambda: store.acquire("t"),
            store.sessions,
        ):
            assert "StoreError" in (said := _in_child(use))
            assert "open a store of your own in the forked child" in said
        assert _in_child(store.close) == "None"
        assert len(_owners(path)) == 1
        store.append(lease, [says("c")])
        assert texts(store) == ["a", "c"]


def test_a_forked_child_opens_its_own(path: Path) -> None:
    """A forked child can open the same file for itself; its parent's sessions are the parent's."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        store.append(lease, [says("a")])

        def child() -> list[str]:
            with SQLiteStore(path) as own:
                own.append(own.acquire("child"), [says("x", "child")])
                with pytest.raises(SessionOwned, match=f"process {os.getppid()};"):
                    own.acquire("s")
                return texts(own)

        assert _in_child(child) == "['a']"
        store.append(lease, [says("b")])
        assert texts(store, "child") == ["x"]


def test_a_child_does_not_keep_its_parent_alive(path: Path) -> None:
    """A process that is killed while a forked child and a subprocess of it live on owns nothing any more."""
    code = """
        import subprocess, time
        store = SQLiteStore(path)
        store.acquire("s")
        other = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
        child = os.fork()
        if not child:
            print("child", flush=True)
            time.sleep(60)
        print(child, other.pid)
        time.sleep(60)
    """
    with program(code, path) as parent, SQLiteStore(path) as store:
        said = {line(parent), line(parent)} - {"child"}
        children = [int(pid) for pid in said.pop().split()]
        try:
            parent.kill()
            parent.wait()
            assert store.acquire("s").generation == 2
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)


def test_a_child_that_was_forked_in_the_middle_of_a_call(path: Path) -> None:
    """A child that is forked while another call is under way is told that it cannot open that file: SQLite would think
    that it has the parent's locks.
    """
    with SQLiteStore(path) as store:
        taken = store._file._take(durable=False)  # as a call in another thread has it
        assert "start the process by spawn" in _in_child(lambda: SQLiteStore(path))
        store._file._give(taken, durable=False)
        assert _in_child(lambda: SQLiteStore(path).close()) == "None"


# What is said when it fails


def test_garbage_is_left_alone(path: Path) -> None:
    """A file that is no database is refused, and not a byte of it changes."""
    path.write_bytes(b"Dear diary, " * 500)
    with pytest.raises(StoreCorrupt, match=r"store\.db .*not a database.*nothing was changed"):
        SQLiteStore(path)
    assert path.read_bytes() == b"Dear diary, " * 500
    assert os.listdir(path.parent) == ["store.db"]


def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    """A SQLite database that is not a store is refused and not changed."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE diary (day TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        SQLiteStore(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["store.db"]


def test_a_newer_store_is_left_alone(path: Path) -> None:
    """A store of a newer format is refused and not changed."""
    SQLiteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match="Upgrade halter"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    """A file without a byte in it, as tempfile makes them, is made a store."""
    path.touch()
    with SQLiteStore(path) as store:
        store.append(store.acquire("s"), [says("x")])


def test_whoever_made_it_was_killed_in_between(path: Path) -> None:
    """A file in which somebody died while making tables is cleared up by SQLite's journal, and then is made a store."""
    code = """
        import signal, sqlite3
        connection = sqlite3.connect(path, isolation_level=None)
        connection.executescript("PRAGMA page_size = 4096; VACUUM; PRAGMA cache_size = 1; BEGIN; CREATE TABLE t (x)")
        for _ in range(100):
            connection.execute("INSERT INTO t VALUES (zeroblob(10000))")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with program(code, path) as process:
        process.wait(30)
    assert path.stat().st_size > 100_000
    assert path.with_name("store.db-journal").stat().st_size
    with SQLiteStore(path) as store:
        store.append(store.acquire("s"), [says("x")])
        assert texts(store) == ["x"]


def test_a_damaged_header(path: Path) -> None:
    """A store whose first bytes were overwritten is refused, and not changed."""
    SQLiteStore(path).close()
    path.write_bytes(bytes(64) + path.read_bytes()[64:])
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="nothing was changed"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_damage_in_the_middle(path: Path) -> None:
    """Damage that is found while reading says so; what is whole can still be read."""
    with SQLiteStore(path) as store:
        for name in ("a", "b"):
            store.append(store.acquire(name), [says("x" * 500, name) for _ in range(200)])
    content = bytearray(path.read_bytes())
    content[-20000:-4096] = b"\xff" * (20000 - 4096)
    path.write_bytes(content)
    with SQLiteStore(path) as store:
        assert len(store.read("a", limit=50)) == 50
        with pytest.raises(StoreCorrupt, match="is damaged"):
            store.read("b")


def test_a_body_that_cannot_be_read(path: Path) -> None:
    """An event that is not what it says is named; one of a kind that is not known here asks for an upgrade."""
    with SQLiteStore(path) as store:
        store.append(store.acquire("s"), [says("a"), says("b")])
        connection = sqlite3.connect(path)
        with connection:
            connection.execute('UPDATE log SET body = \'{"type": "text.delta", "tex\' WHERE id & 0xFF = 2')
        with pytest.raises(StoreCorrupt, match="event 2 of session 's' is damaged"):
            store.read("s")
        with connection:
            connection.execute("UPDATE log SET kind = 'dream', body = '{\"type\": \"dream\"}' WHERE id & 0xFF = 2")
        connection.close()
        with pytest.raises(StoreTooNew, match="event 2 of session 's' is 'dream'"):
            store.read("s")
        assert len(store.read("s", without=["dream"])) == 1


def test_no_directory(tmp_path: Path) -> None:
    """A path in a directory that does not exist is an error that names the directory."""
    with pytest.raises(StoreError, match=r"there is no directory .*nowhere; create it"):
        SQLiteStore(tmp_path / "nowhere" / "store.db")
    with pytest.raises(StoreError, match="is a directory"):
        SQLiteStore(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="there is no directory"):
        SQLiteStore(tmp_path / "file" / "store.db")


@pytest.mark.parametrize("name", ["", ":memory:"])
def test_no_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in memory is asked for by its name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=r"MemoryStore\(\)"):
        SQLiteStore(name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "what?.db", "#1.db", "ünï.db", "file:x.db"])
def test_odd_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may be called as you like; and it stays the same file when the process changes its directory."""
    monkeypatch.chdir(tmp_path)
    with SQLiteStore(name) as store:
        monkeypatch.chdir("/")
        store.append(store.acquire("s"), [accepted("m"), says("x")])
    assert os.listdir(tmp_path) == [name]


def test_only_its_user_can_read_it(path: Path) -> None:
    """The file, and all that is put beside it, is for the user alone, whatever the umask."""
    before = os.umask(0)
    try:
        with SQLiteStore(path) as store:
            store.append(store.acquire("s"), [accepted("m")])
            modes = {name: stat.S_IMODE((path.parent / name).stat().st_mode) for name in os.listdir(path.parent)}
    finally:
        os.umask(before)
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}


def test_another_holds_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another process holds locked for too long is an error that says so; then the store goes on."""
    monkeypatch.setattr(sqlite_file, "PATIENCE", 0.05)
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process is holding the file"):
            store.append(lease, [says("a")])
        assert store.read("s") == []
        other.execute("ROLLBACK")
        store.append(lease, [says("b")])
        assert texts(store) == ["b"]
        other.close()


def test_a_short_lock_is_waited_for(path: Path) -> None:
    """An append that finds the file locked waits until it is not; and signals are heard meanwhile."""
    heard = threading.Event()
    in_time: list[bool] = []
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")

        def release() -> None:
            wait_until(lambda: not store._file._idle[False])  # the append is under way
            os.kill(os.getpid(), signal.SIGUSR1)
            in_time.append(heard.wait(2))
            other.execute("ROLLBACK")

        before = signal.signal(signal.SIGUSR1, lambda *_: heard.set())
        thread = threading.Thread(target=release)
        try:
            thread.start()
            store.append(lease, [says("a")])
        finally:
            thread.join(10)
            signal.signal(signal.SIGUSR1, before)
        assert in_time == [True]
        assert texts(store) == ["a"]
        other.close()


def test_a_full_disk(path: Path) -> None:
    """A store that cannot grow says so and writes nothing; once there is space it goes on, and no number is missed."""
    code = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = SQLiteStore(path)
        lease = store.acquire("s")
        store.append(lease, [says("before")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
        failed = 0
        for n in range(100):
            try:
                store.append(lease, [says("x" * 3000), accepted(f"m{n}")])
            except StoreFull as error:
                failed += 1
                told = str(error)
        assert failed > 50, failed
        assert "the disk is full" in told
        written = 100 - failed
        assert len(store.inbox("s")) == written
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.append(lease, [says("after")])
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
        store.append(lease, [says("a")])
        (connection,) = store._file._idle[False]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreFull):
            store.append(lease, [says("x" * 100_000)])
        connection.execute("PRAGMA max_page_count = 1000000")
        store.append(lease, [says("b")])
        assert texts(store) == ["a", "b"]


NOBODY = """
os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """The path of a store with one session in it, that everybody can read, in a directory that everybody can enter."""
    folder = tmp_path
    while folder != folder.parent and stat.S_IMODE(folder.stat().st_mode) & 0o5 != 0o5:
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o5)
        folder = folder.parent
    with SQLiteStore(tmp_path / "store.db") as store:
        store.append(store.acquire("s"), [accepted("m"), says("hello")])
    (tmp_path / "store.db").chmod(0o644)
    return tmp_path / "store.db"


READING = """
with SQLiteStore(path) as store:
    assert texts(store) == ["hello"]
    assert [info.id for info in store.sessions()] == ["s"]
    assert len(store.inbox("s")) == 1
    for name in ("s", "new"):
        try:
            store.acquire(name)
        except StoreReadOnly as error:
            assert "can not be written" in str(error)
        else:
            raise SystemExit("acquired")
print("read")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_read_only_store_can_be_read(public: Path, mode: int) -> None:
    """Who may not write the file can read it, whether or not the directory can be written; acquire() says why not."""
    public.parent.chmod(mode)
    before = public.read_bytes()
    assert output(NOBODY + READING, public) == "read"
    assert public.read_bytes() == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_read_only_store_that_another_writes(public: Path) -> None:
    """Who may only read sees what the owner of the file is writing, as it is written."""
    public.parent.chmod(0o755)
    code = """
        store = SQLiteStore(path)
        print(len(texts(store)))
        sys.stdin.readline()
        print(len(texts(store)))
    """
    with SQLiteStore(public) as store:
        lease = store.acquire("s")
        store.append(lease, [says("one more")])
        with program(NOBODY + code.replace("\n        ", "\n"), public) as reader:
            assert line(reader) == "2"
            store.append(lease, [says("and more")])
            assert reader.stdin is not None
            reader.stdin.write("go\n")
            reader.stdin.flush()
            assert line(reader) == "3"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_directory_that_cannot_be_written(public: Path) -> None:
    """A store cannot be made where nothing can be written, nor be filled if it is empty and read-only."""
    public.parent.chmod(0o755)
    (public.parent / "empty.db").touch(0o644)
    code = """
for name in ("new.db", "empty.db"):
    try:
        SQLiteStore(os.path.join(os.path.dirname(path), name))
    except StoreReadOnly as error:
        print(name in str(error))
"""
    assert output(NOBODY + code, public).split() == ["True", "True"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_an_owner_of_another_user_is_taken_for_alive(public: Path) -> None:
    """Who may not look whether an owner lives does not take its session: that would be a guess."""
    public.parent.chmod(0o777)
    public.chmod(0o666)
    code = """
try:
    with SQLiteStore(path) as store:
        store.acquire("s")
except SessionOwned:
    print("owned")
"""
    with SQLiteStore(public) as store:
        store.acquire("s")
        for name in ("-wal", "-shm"):
            public.with_name(public.name + name).chmod(0o666)
        assert output(NOBODY + code, public) == "owned"


def test_no_descriptor_is_left(path: Path) -> None:
    """A store that has run out of descriptors says that it cannot go on, and does when there are some again."""
    code = """
        import resource
        store = SQLiteStore(path)
        lease = store.acquire("s")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
        full = []
        try:
            while True:
                full.append(os.dup(0))
        except OSError:
            pass
        for use in (lambda: store.acquire("s"), lambda: store.append(lease, [accepted("m")])):
            try:
                use()
            except StoreError as error:
                print("can not be opened" in str(error))
        store.append(lease, [says("x")])
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        store.append(lease, [accepted("m")])
        print(numbers(store))
    """
    assert output(code, path).split("\n") == ["True", "True", "[1, 2]"]


def test_what_cannot_be_json(path: Path) -> None:
    """What cannot be written as JSON is refused, with the kind of the event; nothing of the append is written."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        with pytest.raises(StoreError, match=r"question\.answered has something in it"):
            store.append(lease, [says("a"), event(QuestionAnswered("q", object()))])
        with pytest.raises(StoreError, match="half of a surrogate pair"):
            store.acquire("\udcff")
        assert store.read("s") == []


def test_too_many_at_once(path: Path) -> None:
    """The most events that one append takes are taken; one more is refused before anything is written."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        store.append(lease, [event(TurnStarted("m")) for _ in range(4000)])
        assert numbers(store) == list(range(1, 4001))
        with pytest.raises(StoreError, match="Append at most 4000 at once"):
            store.append(lease, [event(TurnStarted("m")) for _ in range(4001)])


def test_a_closed_store_says_so(path: Path) -> None:
    """After close() every use is refused; also for who was reading while it closed."""
    store = SQLiteStore(path)
    lease = store.acquire("s")
    taken = store._file._take(durable=False)
    store.close()
    store._file._give(taken, durable=False)
    for use in (
        lambda: store.append(lease, [says("x")]),
        lambda: store.acquire("s"),
        lambda: store.read("s"),
        lambda: store.inbox("s"),
        store.sessions,
    ):
        with pytest.raises(StoreError, match="is closed; open it again"):
            use()
    assert os.listdir(path.parent) == ["store.db"]


def test_no_more_connections_than_calls(path: Path) -> None:
    """Calls one after the other share one connection of each sort, and a burst of calls does not leave a crowd."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        for n in range(20):
            store.append(lease, [says("x")])
            store.append(lease, [accepted(f"m{n}")])
            store.read("s")
        assert len(store._file._open) == 2
        crowd = [store._file._take(durable=False) for _ in range(40)]
        for connection in crowd:
            store._file._give(connection, durable=False)
        assert len(store._file._open) == 17


def test_closing_while_others_write(path: Path) -> None:
    """close() while threads write: each append is whole or refused, no descriptor stays, and nobody hangs."""
    before = open_descriptors()
    for _ in range(10):
        store = SQLiteStore(path)
        started = threading.Barrier(4)
        reports: list[int] = []

        def write(name: str, store: SQLiteStore = store, reports: list[int] = reports) -> None:
            lease = store.acquire(name)
            start = len(store.read(name))
            started.wait(10)
            for done in count(start):
                try:
                    store.append(lease, [says("x", name)])
                except StoreError:
                    reports.append(done)
                    return

        threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        started.wait(10)
        store.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        with SQLiteStore(path) as again:
            assert sorted(info.events for info in again.sessions()) == sorted(done for done in reports if done)
    gc.collect()
    assert open_descriptors() == before


def test_importing_the_stores_does_not_import_sqlite() -> None:
    """Who keeps sessions in memory does not load SQLite."""
    code = """if True:
        import sys
        before = set(sys.modules)  # an environment may load things of its own at start-up
        from halter.stores import MemoryStore
        print({"sqlite3", "halter.stores.sqlite"} & (set(sys.modules) - before))
    """
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
