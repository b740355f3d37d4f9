"""What only the store in NATS does: fencing, lost answers, servers that die, leases that end by time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from bench.cluster_proxy import Links
from halter import Agent, Turn
from halter.errors import LeaseLost, SessionOwned, StoreError
from halter.events import MessageEdited
from halter.models.types import Audio, UserMessage
from halter.stores import NATSStore, Write
from halter.stores.nats import streams
from halter.stores.nats.names import Names, session_of, token_of
from halter.stores.nats.node import Node
from halter.testing import Gate, ScriptedModel
from tests.support.nats_server import NATSServer, signal_server
from tests.support.ports import held_ports
from tests.support.processes import wait_dead
from tests.support.store_events import append, event, numbered, says, texts
from tests.support.waiting import wait_until

_OWNER = """
import sys
from halter.stores import NATSStore, Write
from tests.support.store_events import append, numbered, says

store = NATSStore(sys.argv[1], prefix=sys.argv[2], lease_seconds=3.0)
lease = store.acquire("s")
append(store, lease, says("first"))
print("ready", flush=True)
sys.stdin.readline()
try:
    store.commit([Write(lease, numbered(2, says("late")), 0)])
except Exception as error:
    print(type(error).__name__, flush=True)
else:
    print("written", flush=True)
"""


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NATSServer]:
    """A server that a test may kill."""
    with NATSServer(tmp_path) as server:
        yield server


def expire(store: NATSStore) -> None:
    """Remove the store's node from the servers, as if it had not renewed its key; the store does not know."""
    node = store._node
    assert node is not None
    renewing = node._renewing
    assert renewing is not None

    async def remove() -> None:
        renewing.cancel()  # it would put the key back
        await asyncio.wait([renewing])
        await store._nodes.delete(node.id)

    store._run(remove)


@contextlib.contextmanager
def impatient(store: NATSStore, seconds: float = 0.3) -> Iterator[None]:
    """Have the store give up soon what is not answered, in this block only: all else may take its time."""
    before = store.patience
    store.patience = store._writer._patience = seconds
    try:
        yield
    finally:
        store.patience = store._writer._patience = before


class Cable:
    """A connection to the server that can be cut behind a request: it arrives, and its answer does not come back."""

    def __init__(self, server: NATSServer) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.is_cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._server.port))
            except OSError:
                return
            self._open += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=[*pair, pair[0] is far], daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(65536):
                if is_answer and self.is_cut.is_set() and b'"seq"' in data:
                    self.is_cut.clear()
                    break
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            shut_down(each)

    def close(self) -> None:
        self._listener.close()
        for each in self._open:
            shut_down(each)
            each.close()


def shut_down(connection: socket.socket) -> None:
    """Wake a thread that reads from it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("name", ["plain-1_A", "two words", "a.b*c>", "=", "", "ü", "\udcff", "x" * 200])
def test_every_session_id_is_a_token(name: str) -> None:
    """A token has no character that NATS gives a meaning, and leads back to the id."""
    token = token_of(name)
    assert session_of(token) == name
    assert token.isascii()
    assert not set(token) & set(" .*>\t\r\n")


def test_ids_with_special_characters_are_apart(nats_server: NATSServer, tmp_path: Path) -> None:
    """Ids with dots, stars and spaces are sessions like others."""
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        names = ["a.b", "a.*", "a b", "ä", "a"]
        for name in names:
            append(store, store.acquire(name), says(name, name))
        assert {info.id for info in store.sessions()} == set(names)
        assert all(texts(store, name) == [name] for name in names)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_every_owner_is_listed_every_time(
    nats_server: NATSServer, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of owners was now and then empty: the client's mark of its end could come before the first entry."""
    monkeypatch.setattr(streams, "_PULL", 2)  # so that a list has several pages, the last one full or not
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        leases = [store.acquire(f"session {number}") for number in range(count)]
        for _ in range(60):
            assert {name: owner.generation for name, owner in store.owners().items()} == {
                lease.session: 1 for lease in leases
            }
            assert len(store.nodes()) == 1
        store.release(leases[0])
        assert len(store.owners()) == count - 1
        expire(store)
        assert store.nodes() == {}


def test_a_list_that_nobody_answers_is_asked_for_again(
    nats_server: NATSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that had just started accepted the request for a list before anybody listened to it, and it failed."""
    lost: list[str] = []
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        store.join()
        publish = store._client.publish

        async def delete_consumer_first(subject: str, *rest: Any, **options: Any) -> None:
            if subject.startswith("$JS.API.CONSUMER.MSG.NEXT.") and not lost:
                lost.append(subject)
                stream, consumer = subject.split(".")[-2:]
                await store._client.jetstream().delete_consumer(stream, consumer)
            await publish(subject, *rest, **options)

        monkeypatch.setattr(store._client, "publish", delete_consumer_first)
        assert len(store.nodes()) == 1
        assert lost


def test_the_server_refuses_an_owner_whose_session_was_taken(nats_server: NATSServer, tmp_path: Path) -> None:
    """An old owner that believes to own a session writes nothing, however soon it tries, and learns that it is lost."""
    with (
        NATSStore(nats_server.url, prefix=tmp_path.name) as old,
        NATSStore(nats_server.url, prefix=tmp_path.name) as new,
    ):
        kept, lost = old.acquire("kept"), old.acquire("s")
        append(old, lost, says("first"))
        with pytest.raises(SessionOwned, match="is open on node"):
            new.acquire("s")
        expire(old)
        lease = new.acquire("s")
        with pytest.raises(LeaseLost):
            old.commit([Write(kept, numbered(1, says("k", "kept")), 0), Write(lost, numbered(2, says("late")), 0)])
        append(new, lease, says("second"))
        assert texts(new) == ["first", "second"]
        assert old.read("kept") == []


def test_a_write_in_flight_does_not_follow_a_new_owner(nats_server: NATSServer, tmp_path: Path) -> None:
    """Two stores want one session: what each has written is there once, in order, and nothing after the loss."""
    written: list[str] = []
    with (
        NATSStore(nats_server.url, prefix=tmp_path.name) as one,
        NATSStore(nats_server.url, prefix=tmp_path.name) as two,
    ):
        lease = one.acquire("s")

        def write() -> None:
            for number in range(1, 1_000):
                try:
                    one.commit([Write(lease, numbered(number, says(str(number))), 0)])
                except LeaseLost:
                    return
                written.append(str(number))

        writing = threading.Thread(target=write)
        writing.start()
        wait_until(lambda: len(written) > 5)
        expire(one)
        taken = two.acquire("s")
        at = len(texts(two))
        append(two, taken, says("new owner"))
        writing.join(30)
        assert texts(two) == [*written, "new owner"]
        assert len(written) == at


def test_a_commit_whose_answer_is_lost_is_written_once(nats_server: NATSServer, tmp_path: Path) -> None:
    """The connection breaks after the server has written: the commit is tried again, and found there."""
    cable = Cable(nats_server)
    try:
        with NATSStore(cable.url, prefix=tmp_path.name) as store:
            leases = {name: store.acquire(name) for name in ("a", "b")}
            for number in range(1, 4):
                cable.is_cut.set()
                store.commit(
                    [Write(lease, numbered(number, says(str(number), name)), 0) for name, lease in leases.items()]
                )
                assert not cable.is_cut.is_set()
            for name in leases:
                assert texts(store, name) == ["1", "2", "3"]
    finally:
        cable.close()


def test_a_commit_that_arrives_after_it_was_given_up(nats_server: NATSServer, tmp_path: Path) -> None:
    """A split ended after the writer had given up: the servers wrote the commit, and the owner could never write again.

    It is found in the log, and the next one follows it.
    """
    with Links() as links:
        port = links.add("a", nats_server.port)
        with NATSStore(f"nats://127.0.0.1:{port}", prefix=tmp_path.name) as store:
            lease = store.acquire("s")
            append(store, lease, says("first"))
            links.hold(["a"])
            with impatient(store), pytest.raises(StoreError, match="does not answer"):
                store.commit([Write(lease, numbered(2, says("late")), 0)])
            links.go(["a"])
            assert texts(store) == ["first", "late"]
            store.commit([Write(lease, numbered(3, says("next")), 0)])
            assert texts(store) == ["first", "late", "next"]


def test_a_log_is_erased_after_a_commit_that_arrived_late(nats_server: NATSServer, tmp_path: Path) -> None:
    """The commit was given up, and written nevertheless: erasing the log said that the lease was lost."""
    with Links() as links:
        port = links.add("a", nats_server.port)
        with NATSStore(f"nats://127.0.0.1:{port}", prefix=tmp_path.name) as store:
            lease = store.acquire("s")
            append(store, lease, says("first"))
            links.hold(["a"])
            with impatient(store), pytest.raises(StoreError, match="does not answer"):
                store.commit([Write(lease, numbered(2, says("late")), 0)])
            links.go(["a"])
            wait_until(lambda: store.last_number("s") == 2)
            store.erase(lease)
            assert texts(store) == []


def test_a_commit_that_arrives_after_the_log_was_read_again(nats_server: NATSServer, tmp_path: Path) -> None:
    """What an owner read after a commit without an answer stays true: if it arrives later, the server refuses it."""
    arrived = queue.SimpleQueue[bytes]()
    with Links() as links, NATSStore(nats_server.url, prefix=tmp_path.name) as watching:
        urls = [f"nats://127.0.0.1:{links.add(name, nats_server.port)}" for name in ("a", "b")]
        # The connection counts as broken 1.5 s after the hold at the earliest, when the commit was given up.
        options: dict[str, Any] = {"dont_randomize": True, "ping_interval": 1.5, "max_outstanding_pings": 1}
        with NATSStore(urls, prefix=tmp_path.name, **options) as store:
            lease = store.acquire("s")
            append(store, lease, says("first"))
            watching._run(lambda: listen(watching, "s", arrived))
            links.hold(["a"])
            with impatient(store), pytest.raises(StoreError, match="does not answer"):
                store.commit([Write(lease, numbered(2, says("late")), 0)])
            wait_until(lambda: is_connected_to(store, urls[1]))
            assert texts(store) == ["first"]
            links.go(["a"])
            while b"late" not in arrived.get(timeout=20):
                pass
            store.commit([Write(lease, numbered(2, says("next")), 0)])
            assert texts(store) == ["first", "next"]


def is_connected_to(store: NATSStore, url: str) -> bool:
    now = store._client.connected_url
    return store._client.is_connected and now is not None and now.geturl() == url


async def listen(store: NATSStore, session: str, arrived: queue.SimpleQueue[bytes]) -> None:
    """Hear of what arrives for a log, whether it is stored or refused."""

    async def hear(message: Msg) -> None:
        arrived.put(message.data)

    await store._client.subscribe(store.names.log(session), cb=hear)
    await store._client.flush()


def test_a_server_that_is_killed_and_comes_back(own_server: NATSServer) -> None:
    """A commit waits for a server that starts again, and nothing is lost or written twice."""
    with NATSStore(own_server.url, patience=20) as store:
        lease = store.acquire("s")
        append(store, lease, says("before"))
        own_server.kill()
        back = threading.Timer(0.3, own_server.start)
        back.start()
        append(store, lease, says("after"))
        back.join()
        assert texts(store) == ["before", "after"]


def test_without_a_server_only_the_first_request_is_waited_for(own_server: NATSServer) -> None:
    """Was a defect: with NATS gone, each session waited out the patience in turn, and a stop took a minute."""

    def is_answered() -> bool:
        with contextlib.suppress(StoreError):
            return store.last_number("s") == 0
        return False

    with NATSStore(own_server.url, patience=20) as store:
        own_server.kill()
        with impatient(store), pytest.raises(StoreError):
            store.last_number("s")
        began = time.monotonic()
        for _ in range(10):
            assert not is_answered()
        assert time.monotonic() - began < 15
        own_server.start()
        wait_until(is_answered)
        own_server.kill()  # and from here on a request is patient again
        back = threading.Timer(0.3, own_server.start)
        back.start()
        assert is_answered()
        back.join()


def test_two_who_need_a_node_at_once_get_the_same(nats_server: NATSServer, tmp_path: Path) -> None:
    """Was a defect: join() and acquire() at the same time made two nodes, and one of them was never ended."""
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:

        async def both() -> tuple[Node, Node]:
            return await asyncio.gather(store._living_node(), store._living_node())

        one, other = store._run(both)
        assert one is other


def test_a_node_that_cannot_reach_the_server_stops_in_time(own_server: NATSServer) -> None:
    """The running turn is stopped before its lease can end, and the session goes on when the server is back."""
    with NATSStore(own_server.url, lease_seconds=3.0) as store:
        session = Agent(ScriptedModel(Gate())).session("s", store)
        turns: list[Turn] = []
        running = threading.Thread(target=lambda: turns.append(session.run("wait")))
        running.start()
        wait_until(lambda: session.is_running and session.events()[-1].kind == "request.started")
        with impatient(store):
            signal_server(own_server, signal.SIGSTOP)
            try:
                began = time.monotonic()
                running.join(30)
                assert time.monotonic() - began < 20
            finally:
                signal_server(own_server, signal.SIGCONT)
        assert session.token.reason == "lease_lost"
        assert turns[0].status != "done"
        session.close()
        again = Agent(ScriptedModel("an answer")).session("s", store)
        assert again.run("once more").text == "an answer"
        again.close()


def test_a_killed_owner_is_replaced_once_its_lease_has_ended(nats_server: NATSServer, tmp_path: Path) -> None:
    """After kill -9 the session is owned for as long as the lease lasts, and then free; its log is whole."""
    owner = start_owner(nats_server, tmp_path.name)
    with NATSStore(nats_server.url, prefix=tmp_path.name, lease_seconds=3.0) as store:
        owner.kill()
        wait_dead(owner.pid)
        lease = take(store, "s")
        append(store, lease, says("second"))
        assert texts(store) == ["first", "second"]
    finish(owner)


def test_an_owner_that_was_suspended_writes_nothing(nats_server: NATSServer, tmp_path: Path) -> None:
    """A process that slept through the end of its lease wakes up, tries to write, and is refused."""
    owner = start_owner(nats_server, tmp_path.name)
    with NATSStore(nats_server.url, prefix=tmp_path.name, lease_seconds=3.0) as store:
        owner.send_signal(signal.SIGSTOP)
        lease = take(store, "s")
        append(store, lease, says("second"))
        assert owner.stdin is not None
        owner.stdin.write("\n")
        owner.stdin.flush()
        owner.send_signal(signal.SIGCONT)
        assert owner.stdout is not None
        assert owner.stdout.readline() == "LeaseLost\n"
        assert texts(store) == ["first", "second"]
    finish(owner)


def start_owner(server: NATSServer, prefix: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", _OWNER, server.url, prefix]
    root = Path(__file__).parents[2]
    owner = subprocess.Popen(argv, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    return owner


def finish(owner: subprocess.Popen[Any]) -> None:
    owner.communicate(timeout=30)


def take(store: NATSStore, name: str) -> Any:
    """Take a session as soon as it is free."""
    taken = []

    def is_free() -> bool:
        try:
            taken.append(store.acquire(name))
        except SessionOwned:
            return False
        return True

    wait_until(is_free, 30)
    return taken[0]


def test_a_large_recording_is_stored_in_parts(nats_server: NATSServer, tmp_path: Path) -> None:
    """What is larger than a message of NATS may be comes back whole, and what follows it too."""
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        lease = store.acquire("s")
        large = event(MessageEdited("m", UserMessage.of("listen", Audio(bytes(range(256)) * 12_000))))
        written = append(store, lease, says("before"), large)
        more = append(store, lease, says("after"))
        assert store.read("s") == written + more
        assert store.read("s", 2) == more


def test_reading_from_the_middle_of_a_long_log(nats_server: NATSServer, tmp_path: Path) -> None:
    """The place in a long log is found, wherever it is, also when other sessions write in between."""
    with NATSStore(nats_server.url, prefix=tmp_path.name) as store:
        lease, other = store.acquire("s"), store.acquire("other")
        for number in range(1, 301):
            writes = [Write(lease, numbered(2 * number - 1, says(str(2 * number - 1)), says(str(2 * number))), 0)]
            if number % 3 == 0:
                writes.append(Write(other, numbered(number // 3, says("o", "other")), 0))
            store.commit(writes)
        for after in (1, 2, 3, 299, 300, 301, 598, 599, 600, 601):
            assert [each.seq for each in store.read("s", after)] == list(range(after + 1, 601))
        assert [each.seq for each in store.read("s", 100, limit=3)] == [101, 102, 103]


def test_no_server_is_said_so() -> None:
    """Where no server listens, the error says what is needed, and comes soon."""
    with held_ports() as [port], pytest.raises(StoreError, match="is it running, with JetStream"):
        NATSStore(f"nats://127.0.0.1:{port}", patience=0.5)


def test_a_try_that_is_given_up_leaves_no_connection() -> None:
    """A server that says nothing: the connection to it stayed open until the garbage collector found it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with pytest.raises(StoreError, match="does not answer"):
            NATSStore(f"nats://127.0.0.1:{listening.getsockname()[1]}", patience=0.2)
        with listening.accept()[0] as peer:
            peer.settimeout(10)
            assert peer.recv(1) == b""


def test_a_stream_of_another_program_is_refused(nats_server: NATSServer, tmp_path: Path) -> None:
    """It is not written to, the error says what to do, and the connection is closed."""

    async def occupy() -> None:
        client = await nats.connect(nats_server.url)
        await client.jetstream().add_stream(name=Names(tmp_path.name).stream, subjects=[Names(tmp_path.name).logs])
        await client.close()

    asyncio.run(occupy())
    with pytest.raises(StoreError, match="was not created by Halter; use another prefix"):
        NATSStore(nats_server.url, prefix=tmp_path.name)
    gc.collect()  # what is not closed would warn now


def test_closing_without_a_server_is_bounded(own_server: NATSServer) -> None:
    """A store closes within seconds, whatever became of its server."""
    store = NATSStore(own_server.url)
    store.acquire("s")
    own_server.kill()
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 10
    with pytest.raises(StoreError, match="closed"):
        store.read("s")


def test_a_session_moves_from_one_process_to_another(nats_server: NATSServer, tmp_path: Path) -> None:
    """A session that was closed on one node is opened on another, with its whole history."""
    with (
        NATSStore(nats_server.url, prefix=tmp_path.name) as one,
        NATSStore(nats_server.url, prefix=tmp_path.name) as two,
    ):
        with Agent(ScriptedModel("first answer")).session("s", one) as session:
            assert session.run("first").text == "first answer"
        with Agent(ScriptedModel("second answer")).session("s", two) as session:
            assert session.run("second").text == "second answer"
            assert [message.text for message in session.history] == ["first", "first answer", "second", "second answer"]
