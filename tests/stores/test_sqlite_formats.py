"""Files that an older Halter has written: they are upgraded when they are opened."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from halter.errors import StoreError, StoreReadOnly
from halter.events import MessageAccepted, MessageEdited, TurnStarted
from halter.models.types import TextDelta, UserMessage
from halter.stores import SessionInfo, SQLiteStore
from halter.stores.sqlite.owner import Owner
from tests.support.store_events import append, event, line, numbers, program, says, texts

FORMATS = Path(__file__).parent / "formats"  # written by the Halter of that time, as SQL
TABLES = "SELECT group_concat(name) FROM (SELECT name FROM sqlite_master WHERE type IN ('table', 'trigger') ORDER BY 1)"


@pytest.fixture(params=[1, 2])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript((FORMATS / f"{request.param}.sql").read_text())
    connection.close()
    return path


def ask(path: Path, sql: str) -> object:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchone()[0]
    finally:
        connection.close()


def test_an_older_file_is_read_and_goes_on(path: Path) -> None:
    """Events, times and the numbers of waiting messages are kept; its sessions are free and can be written."""
    before = [
        SessionInfo("talk", created_at=1000.5, updated_at=1006.25, events=11, waiting=1),
        SessionInfo("short", created_at=900.0, updated_at=900.0, events=2, waiting=2),
    ]
    for _ in range(2):  # the second time it is of today's format
        with SQLiteStore(path) as store:
            assert store.sessions() == before
            assert numbers(store, "talk") == list(range(1, 12))
            assert texts(store, "talk") == ["Hi", " there, \udc80"]
            assert [entry.time for entry in store.read("talk", 9)] == [1005.0, 1006.25]
            first, tenth = store.read("talk")[0], store.read("talk")[9]
            assert (first.turn, first.data) == ("", MessageAccepted("m1", "queue", UserMessage.of("hello")))
            assert tenth.data == MessageEdited("m3", UserMessage.of("now, edited"))
    with SQLiteStore(path) as store:
        for name, count in (("talk", 11), ("short", 2), ("empty", 0), ("erased", 0)):
            lease = store.acquire(name)
            assert lease.generation == 2
            append(store, lease, says("on", name), event(TurnStarted("m"), name), waiting=7)
            assert numbers(store, name) == list(range(1, count + 3))
        assert {info.waiting for info in store.sessions()} == {7}
    assert ask(path, "PRAGMA user_version") == 3
    assert ask(path, TABLES) == "log,session"


def test_only_one_upgrades(path: Path) -> None:
    """Threads that open an older file at the same moment all get it."""
    start, opened = threading.Barrier(4), []

    def open_it() -> None:
        start.wait(10)
        opened.append(SQLiteStore(path))

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [len(store.sessions()) for store in opened] == [2] * 4
    for store in opened:
        store.close()


def test_an_older_halter_that_still_runs_is_left_alone(path: Path) -> None:
    """While a process of the older Halter has it open nothing is changed, and the error names that process."""
    before = ask(path, TABLES)
    owner = Owner(str(path))
    with pytest.raises(StoreError, match=f"in use by an older Halter, in process {os.getpid()}; nothing was changed"):
        SQLiteStore(path)
    assert ask(path, TABLES) == before
    owner.let_go()
    with SQLiteStore(path) as store:
        assert len(store.sessions()) == 2


def test_a_kill_in_the_middle_of_an_upgrade(path: Path) -> None:
    """A process that is killed while it upgrades leaves the file as it was, and the next one upgrades it."""
    code = """
        import sqlite3
        from halter.stores.sqlite.statements import UPGRADE
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        for statement in UPGRADE:
            connection.execute(statement)
        print("upgraded, not committed")
        sys.stdin.readline()
    """
    with program(code, path) as process:
        assert line(process) == "upgraded, not committed"
        process.kill()
        process.wait()
    assert ask(path, "PRAGMA user_version") in {1, 2}
    with SQLiteStore(path) as store:
        assert [info.waiting for info in store.sessions()] == [1, 2]
        assert isinstance(store.read("talk")[3].data, TextDelta)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_an_older_file_that_is_read_only(path: Path, public_folder: Path) -> None:
    """An older file that may not be written cannot be upgraded: the error says so, and nothing changes."""
    path = Path(shutil.copy(path, public_folder))
    path.chmod(0o644)
    before = path.read_bytes()
    pid = os.fork()
    if not pid:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            SQLiteStore(path)
        except StoreReadOnly as error:
            os._exit(0 if "older format" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert path.read_bytes() == before
