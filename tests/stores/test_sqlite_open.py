"""Which files become a store, which are refused, and what is said then."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from halter.errors import StoreCorrupt, StoreError, StoreTooNew
from halter.stores import SQLiteStore
from tests.support.store_events import accepted, append, line, output, program, says, texts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


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
    connection.execute("PRAGMA user_version = 4")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match="Upgrade halter"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    """A file without a byte in it, as tempfile makes them, is made a store."""
    path.touch()
    with SQLiteStore(path) as store:
        append(store, store.acquire("s"), says("x"))


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
        append(store, store.acquire("s"), says("x"))
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
            append(store, store.acquire(name), *(says("x" * 500, name) for _ in range(200)))
    content = bytearray(path.read_bytes())
    content[-20000:-4096] = b"\xff" * (20000 - 4096)
    path.write_bytes(content)
    with SQLiteStore(path) as store:
        assert len(store.read("a", limit=50)) == 50
        with pytest.raises(StoreCorrupt, match="is damaged"):
            store.read("b")


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
        append(store, store.acquire("s"), accepted("m"), says("x"))
    assert os.listdir(tmp_path) == [name]


def test_only_its_user_can_read_it(path: Path) -> None:
    """The file, and all that is put beside it, is for the user alone, whatever the umask."""
    before = os.umask(0)
    try:
        with SQLiteStore(path) as store:
            append(store, store.acquire("s"), accepted("m"))
            modes = {name: stat.S_IMODE((path.parent / name).stat().st_mode) for name in os.listdir(path.parent)}
    finally:
        os.umask(before)
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}


# Files of other users

NOBODY = """
os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""


@pytest.fixture
def public(public_folder: Path) -> Path:
    """The path of a store with one session in it, that everybody can read, in a directory that everybody can enter."""
    path = public_folder / "store.db"
    with SQLiteStore(path) as store:
        append(store, store.acquire("s"), accepted("m"), says("hello"))
    path.chmod(0o644)
    return path


READING = """
with SQLiteStore(path) as store:
    assert texts(store) == ["hello"]
    assert [info.id for info in store.sessions()] == ["s"]
    for name in ("s", "new"):
        try:
            store.acquire(name)
        except StoreReadOnly as error:
            assert "cannot be written" in str(error)
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
        append(store, lease, says("one more"))
        with program(NOBODY + code.replace("\n        ", "\n"), public) as reader:
            assert line(reader) == "2"
            append(store, lease, says("and more"))
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
