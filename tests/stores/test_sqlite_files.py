"""Files that are removed or replaced while a store has them open: nothing is acknowledged that would be lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from halter.errors import StoreError, WriteRefused
from halter.stores import SQLiteStore
from tests.support.store_events import accepted, append, line, numbers, program, says, texts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def remove(path: Path) -> None:
    path.unlink()


def remove_all(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink()


def replace_by_empty_file(path: Path) -> None:
    path.unlink()
    path.touch()


def replace_by_copy(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def replace_by_another_store(path: Path) -> None:
    with SQLiteStore(path.with_name("another.db")) as another:
        append(another, another.acquire("s"), says("another"))
    path.with_name("another.db").replace(path)


def remove_wal(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def replace_wal(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()
    path.with_name(path.name + "-wal").touch()


@pytest.mark.parametrize(
    "harm",
    [remove, remove_all, replace_by_empty_file, replace_by_copy, replace_by_another_store, remove_wal, replace_wal],
)
def test_nothing_is_acknowledged_that_would_be_lost(path: Path, harm: Callable[[Path], None]) -> None:
    """Every write is refused from then on, with what to do, and it is nobody's fault but the file's."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        append(store, lease, says("a"))
        harm(path)
        for write in (
            lambda: append(store, lease, accepted("m"), waiting=1),
            lambda: append(store, lease, says("b")),
            lambda: store.acquire("new"),
            lambda: store.erase(lease),
        ):
            with pytest.raises(StoreError, match=r"was removed or replaced .*restart the program") as refused:
                write()
            assert not isinstance(refused.value, WriteRefused)


def test_a_file_that_comes_back_is_used_again(path: Path) -> None:
    """If the very file is put back, the store goes on as if nothing had been."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        append(store, lease, says("a"))
        os.rename(path, path.with_name("away"))
        with pytest.raises(StoreError):
            append(store, lease, says("b"))
        os.rename(path.with_name("away"), path)
        append(store, lease, says("c"))
        assert texts(store) == ["a", "c"]
    with SQLiteStore(path) as store:
        assert texts(store) == ["a", "c"]


def test_a_replaced_file_is_not_read_either(path: Path) -> None:
    """A new connection for reading would show another file's sessions; it is refused."""
    with SQLiteStore(path) as store:
        append(store, store.acquire("s"), says("a"))
        replace_by_another_store(path)
        store._file.close_idle()
        for read in (lambda: store.read("s"), store.sessions):
            with pytest.raises(StoreError, match="was removed or replaced"):
                read()


def test_who_uses_it_as_well_does_not_replace_it(path: Path) -> None:
    """Another process that opens, writes and closes the same file is not taken for harm, whoever closes it last."""
    code = """
        for n in range(3):
            with SQLiteStore(path) as store:
                append(store, store.acquire(sys.argv[2]), says("x", sys.argv[2]))
            print("done")
            sys.stdin.readline()
    """
    with SQLiteStore(path) as store, program(code, path, "theirs") as other:
        lease = store.acquire("s")
        for n in range(1, 4):
            assert line(other) == "done"
            append(store, lease, says("ours"))
            assert numbers(store, "theirs") == list(range(1, n + 1))
            assert other.stdin is not None
            other.stdin.write("go on\n")
            other.stdin.flush()
        assert numbers(store) == [1, 2, 3]


def test_a_store_that_closed_its_connections_goes_on(path: Path) -> None:
    """Before a fork all connections are closed, and SQLite removes its log with the last; then the store goes on."""
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        append(store, lease, says("a"))
        for text in "bc":
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
            append(store, lease, says(text))
        assert texts(store) == ["a", "b", "c"]
