"""Long logs in NATS: their commits are merged when a session is opened, and nothing that readers see changes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from halter.errors import StoreError
from halter.models.types import TextDelta
from halter.stores import Lease, NATSStore, Write
from halter.stores.nats import log_writer
from tests.stores.test_nats import Cable
from tests.support.nats_server import NATSServer
from tests.support.store_events import numbered, says, texts
from tests.support.waiting import wait_until


def commit(store: NATSStore, lease: Lease, first: int, last: int) -> None:
    """Commit events one by one; the text of each is its number."""
    for number in range(first, last + 1):
        store.commit([Write(lease, numbered(number, says(str(number), lease.session)), 0)])


def expected(last: int) -> list[str]:
    return [str(number) for number in range(1, last + 1)]


def messages(store: NATSStore) -> int:
    """How many messages the logs of this store have on the server."""
    count: int = store.state()["state"]["messages"]
    return count


def test_a_long_log_is_merged_when_it_is_opened(nats_server: NATSServer, tmp_path: Path) -> None:
    """Loading a session of many commits took a message for each of them; after one load it takes a few."""
    last = log_writer.MERGE_COMMITS + 20
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        commit(store, store.acquire("s"), 1, last)
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        assert messages(store) > last
        lease = store.acquire("s")
        wait_until(lambda: messages(store) < 5)
        before = store.sessions()[0]
        commit(store, lease, last + 1, last + 3)
        assert texts(store) == expected(last + 3)
        after = store.sessions()[0]
        assert (after.created_at, after.events) == (before.created_at, last + 3)
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        assert texts(store) == expected(last + 3)
        assert [each.data for each in store.read("s", after=last, limit=2)] == [
            TextDelta(str(last + 1)),
            TextDelta(str(last + 2)),
        ]


def test_commits_and_readers_beside_a_merge(
    nats_server: NATSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session is written while its log is merged: every reader sees each event once, in order."""
    monkeypatch.setattr(log_writer, "MERGE_COMMITS", 5)
    wrong: list[list[str]] = []
    done = threading.Event()

    def read(store: NATSStore) -> None:
        seen = 0
        while not done.is_set():
            found = texts(store)
            if found != expected(len(found)) or len(found) < seen:
                wrong.append(found)
            seen = len(found)
            paged = [each.seq for each in store.read("s", after=max(seen - 3, 0), limit=2)]
            if paged != list(range(max(seen - 3, 0) + 1, max(seen - 3, 0) + 1 + len(paged))):
                wrong.append([str(each) for each in paged])

    last = 0
    with NATSStore(nats_server.url, prefix=tmp_path.name) as watching:
        reader = threading.Thread(target=read, args=[watching])
        reader.start()
        try:
            for _ in range(20):
                with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
                    lease = store.acquire("s")
                    commit(store, lease, last + 1, last + 10)
                last += 10
        finally:
            done.set()
            reader.join(30)
        assert not wrong
        assert texts(watching) == expected(last)
        assert messages(watching) < last  # merges have happened


def test_a_merge_whose_answer_is_lost(nats_server: NATSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks while a log is merged: it is written once, and the next commit follows it."""
    monkeypatch.setattr(log_writer, "MERGE_COMMITS", 5)
    last = 0
    cable = Cable(nats_server)
    try:
        for _ in range(8):
            with NATSStore(cable.url, prefix=tmp_path.name) as store:
                lease = store.acquire("s")
                cable.is_cut.set()  # the next answer: to the merge, or to the commit
                commit(store, lease, last + 1, last + 6)
                last += 6
                assert texts(store) == expected(last)
    finally:
        cable.close()


def test_a_log_that_was_merged_and_not_purged(
    nats_server: NATSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies between the merge and the purge leaves both: readers get each event once."""
    monkeypatch.setattr(log_writer, "MERGE_COMMITS", 5)
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        commit(store, store.acquire("s"), 1, 30)
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        purge_is_denied(store)
        before = messages(store)
        lease = store.acquire("s")
        wait_until(lambda: messages(store) > before + 1)  # the fence, and what was merged
        commit(store, lease, 31, 35)
        monkeypatch.setattr("halter.stores.nats.log_reader._FEW", 0)  # search for the place, as in a long log
        for after in range(36):
            with NATSStore(nats_server.url, prefix=tmp_path.name) as reader:
                assert [each.seq for each in reader.read("s", after=after)] == list(range(after + 1, 36))
                assert [each.seq for each in reader.read("s", after=after, limit=4)] == [
                    *range(after + 1, min(after + 5, 36))
                ]


def purge_is_denied(store: NATSStore) -> None:
    """Have the server refuse every purge of the store's stream from now on."""
    config = store.state()["config"] | {"deny_purge": True}
    subject = f"$JS.API.STREAM.UPDATE.{store.names.stream}"
    answer = store._run(lambda: store._client.request(subject, json.dumps(config).encode(), 5))
    assert "error" not in json.loads(answer.data)


def test_a_log_that_is_erased_while_it_is_merged(
    nats_server: NATSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was erased does not come back, however far the merge had come."""
    monkeypatch.setattr(log_writer, "MERGE_COMMITS", 5)
    for number in range(10):
        name = f"s{number}"
        with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
            commit(store, store.acquire(name), 1, 10)
        with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
            lease = store.acquire(name)
            store.erase(lease)
            commit(store, lease, 1, 2)
            assert texts(store, name) == ["1", "2"]


def test_a_new_owner_beside_a_merge(nats_server: NATSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner whose session was taken cannot merge any more: the server refuses it, and the log is the new owner's."""
    monkeypatch.setattr(log_writer, "MERGE_COMMITS", 5)
    last = 10
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        commit(store, store.acquire("s"), 1, last)
    for _ in range(8):
        with (
            NATSStore(nats_server.url, prefix=tmp_path.name) as old,
            NATSStore(nats_server.url, prefix=tmp_path.name) as new,
        ):
            lost = old.acquire("s")
            old.release(lost)
            lease = new.acquire("s")
            commit(new, lease, last + 1, last + 6)
            last += 6
            with pytest.raises(StoreError):
                commit(old, lost, last + 1, last + 1)
            assert texts(new) == expected(last)
