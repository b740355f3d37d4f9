"""Who is alive: told by a lock that goes with its process."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from halter.errors import SessionOwned
from halter.stores import SQLiteStore
from halter.stores.sqlite import owner
from halter.stores.sqlite.owner import Owner, is_alive, pid_of, remove_dead


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def test_an_owner_lives_until_it_lets_go(database: str) -> None:
    """An owner is alive, in the eyes of its own process too, and dead when it has let go; it names its process."""
    one = Owner(database)
    assert is_alive(database, one.id)
    assert pid_of(one.id) == os.getpid()
    one.let_go()
    one.let_go()
    assert not is_alive(database, one.id)
    assert os.listdir(Path(database).parent) == []


def test_who_looks_is_not_taken_for_the_owner(database: str) -> None:
    """Two who look at a dead owner at the same moment both find it dead."""
    path = Path(f"{database}-owner-1-dead")
    path.touch()
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not is_alive(database, "1-dead")
    assert not path.exists()


def test_leftovers_are_removed_and_the_living_are_not(database: str) -> None:
    """What dead owners of this store left is removed; the living, and files that only look alike, stay."""
    folder = Path(database).parent
    for name in ("store.db-owner-1-dead", "store.db-owner-2-dead", "store.db-ownership", "other.db-owner-1-dead"):
        (folder / name).touch()
    one = Owner(database)
    remove_dead(database)
    assert sorted(os.listdir(folder)) == ["other.db-owner-1-dead", f"store.db-owner-{one.id}", "store.db-ownership"]
    one.let_go()


def test_a_file_that_was_removed_before_it_was_locked(database: str) -> None:
    """An owner whose new file somebody took for a dead one's, before it was locked, notices."""
    file = os.open(f"{database}-owner-1-new", os.O_RDWR | os.O_CREAT)
    assert not is_alive(database, "1-new")
    assert not owner._lock(file)
    os.close(file)


def test_owners_come_while_others_clear_up(database: str) -> None:
    """However often leftovers are removed meanwhile, an owner that was made is alive until it lets go."""
    done = threading.Event()
    dead: list[str] = []

    def clear_up() -> None:
        while not done.is_set():
            remove_dead(database)

    def come_and_go() -> None:
        for _ in range(200):
            one = Owner(database)
            if not is_alive(database, one.id):
                dead.append(one.id)
            one.let_go()

    cleaners = [threading.Thread(target=clear_up) for _ in range(2)]
    owners = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in cleaners + owners:
        thread.start()
    for thread in owners:
        thread.join(60)
    done.set()
    for thread in cleaners:
        thread.join(60)
    assert dead == []
    assert os.listdir(Path(database).parent) == []


def test_a_dead_owner_whose_lock_is_still_held_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that died while it was starting a child leaves its lock with that for a moment; then it is free."""
    path = tmp_path / "store.db"
    code = f"""
        import os, sys
        from halter.stores import SQLiteStore
        store = SQLiteStore({str(path)!r})
        store.acquire("s")
        held = os.dup(store._owner._file)
        os.set_inheritable(held, True)
        os.posix_spawn("/bin/sh", ["sh", "-c", "echo up; read line"], os.environ, file_actions=[])
        os.kill(os.getpid(), 9)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        assert program.stdout.readline() == "up\n"
        assert program.wait(30) == -signal.SIGKILL
        with SQLiteStore(path) as store:
            with pytest.raises(SessionOwned):
                store.acquire("s")  # it does not end
            monkeypatch.setattr("halter.stores.sqlite.store._DEAD_OWNER_TIMEOUT", 30.0)  # for a busy machine
            program.stdin.write("now\n")
            program.stdin.flush()
            assert store.acquire("s").generation == 2
