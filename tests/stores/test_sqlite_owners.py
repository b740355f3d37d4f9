"""Who owns a session of a SQLite file: between processes, after a kill, and after a fork."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from halter.errors import LeaseLost, SessionOwned
from halter.stores import SQLiteStore
from tests.support.processes import open_descriptors
from tests.support.store_events import accepted, append, line, numbers, output, program, says, texts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def _owners(path: Path) -> list[str]:
    return [name for name in os.listdir(path.parent) if "-owner-" in name]


HOLDER = """
store = SQLiteStore(path)
lease = store.acquire("s")
append(store, lease, says("theirs"))
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
        assert _tell(holder, "append(store, lease, says('late'))") == "LeaseLost"
        assert _tell(holder, "store.release(lease)") == "done"
        append(store, lease, says("ours"))
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
        append(store, lease, says("ours"))
        assert texts(store) == ["theirs", "ours"]


def test_a_process_that_only_sleeps_keeps_its_session(path: Path) -> None:
    """A process that is stopped, however long, still owns its session, and writes on when it is continued."""
    with program(HOLDER, path) as holder, SQLiteStore(path) as store:
        assert line(holder) == "owned"
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(SessionOwned):
            store.acquire("s")
        holder.send_signal(signal.SIGCONT)
        assert _tell(holder, "append(store, lease, says('awake'))") == "done"
        assert texts(store) == ["theirs", "awake"]


def test_a_stale_owner_is_fenced_out(path: Path) -> None:
    """An owner that was taken for dead, and is not, writes nothing any more: the newer generation does."""
    with program(HOLDER, path) as holder, SQLiteStore(path) as store:
        assert line(holder) == "owned"
        (path.parent / next(name for name in _owners(path) if f"-{holder.pid}-" in name)).unlink()
        lease = store.acquire("s")
        assert _tell(holder, "append(store, lease, says('stale'), accepted('m'))") == "LeaseLost"
        assert _tell(holder, "store.close()") == "done"
        append(store, lease, says("ours"))
        assert texts(store) == ["theirs", "ours"]


def test_two_stores_of_one_process(path: Path) -> None:
    """Two stores on one file in one process are two owners."""
    with SQLiteStore(path) as one, SQLiteStore(path) as two:
        lease = one.acquire("s")
        with pytest.raises(SessionOwned, match="in this process"):
            two.acquire("s")
        with pytest.raises(LeaseLost):
            append(two, lease, says("with a lease that is not its own"))
        two.release(lease)
        append(one, lease, says("x"))
        one.close()
        assert two.acquire("s").generation == 2


def test_processes_fight_for_one_session(path: Path) -> None:
    """Of processes that acquire, write and release one session as fast as they can, one at a time has it."""
    code = """
        with SQLiteStore(path) as store:
            done = 0
            while done < 60:
                try:
                    lease = store.acquire("s")
                except SessionOwned:
                    continue
                done += 1
                append(store, lease, says(sys.argv[2]), says(sys.argv[2]))
                store.release(lease)
        print("done")
    """
    with program(code, path, "a") as one, program(code, path, "b") as two, program(code, path, "c") as three:
        assert [line(process) for process in (one, two, three)] == ["done"] * 3
    with SQLiteStore(path) as store:
        found = texts(store)
        assert found[::2] == found[1::2]
        assert sorted(found) == ["a"] * 120 + ["b"] * 120 + ["c"] * 120
        assert store.acquire("s").generation == 181


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
    append(store, store.acquire("s"), accepted("m"))
    del store
    gc.collect()
    assert open_descriptors() == before
    assert os.listdir(path.parent) == ["store.db"]
    with SQLiteStore(path) as store:
        store.acquire("s")


def test_a_process_that_just_ends_leaves_nothing(path: Path) -> None:
    """A program that ends without close() says nothing and leaves only the store."""
    assert output("store = SQLiteStore(path); append(store, store.acquire('s'), accepted('m'))", path) == ""
    assert os.listdir(path.parent) == ["store.db"]


def test_processes_write_at_the_same_time(path: Path) -> None:
    """Processes that write to one file as fast as they can wait for each other, and lose nothing."""
    code = """
        with SQLiteStore(path) as store:
            lease = store.acquire(sys.argv[2])
            for n in range(300):
                store.commit([Write(lease, numbered(2 * n + 1, accepted(str(n)), says(str(n))), 0)])
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
        append(store, lease, says("a"))
        for use in (
            lambda: append(store, lease, says("b")),
            lambda: store.read("s"),
            lambda: store.acquire("t"),
            store.sessions,
        ):
            assert "StoreError" in (said := _in_child(use))
            assert "open a store of your own in the forked child" in said
        assert _in_child(store.close) == "None"
        assert len(_owners(path)) == 1
        append(store, lease, says("c"))
        assert texts(store) == ["a", "c"]


def test_a_forked_child_opens_its_own(path: Path) -> None:
    """A forked child can open the same file for itself; its parent's sessions are the parent's."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        append(store, lease, says("a"))

        def child() -> list[str]:
            with SQLiteStore(path) as own:
                append(own, own.acquire("child"), says("x", "child"))
                with pytest.raises(SessionOwned, match=f"process {os.getppid()};"):
                    own.acquire("s")
                return texts(own)

        assert _in_child(child) == "['a']"
        append(store, lease, says("b"))
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
            os.write(1, b"child\\n")  # in one piece: both write to one pipe
            time.sleep(60)
        os.write(1, f"{child} {other.pid}\\n".encode())
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
        taken = store._file._take(store._file._writers)  # as a call in another thread has it
        assert "Start the process with spawn" in _in_child(lambda: SQLiteStore(path))
        store._file._put_back(store._file._writers, taken)
        assert _in_child(lambda: SQLiteStore(path).close()) == "None"
