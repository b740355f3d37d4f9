"""Searching what was said in earlier sessions."""

from __future__ import annotations

import importlib.util
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halter import Agent, CancellationToken, ToolContext, ToolOutcome
from halter.events import Event, MessageAccepted
from halter.models import ToolCall, UserMessage
from halter.stores import MemoryStore, Write
from halter.testing import Moment, ScriptedModel
from halter.toolbox.session_search import SessionSearch, _terms
from tests.support.processes import open_files
from tests.support.stopped_calls import call, call_stopped, check, every_moment, every_reason, stop_everywhere


def talk(store: Any, session: str, *turns: tuple[str, str]) -> None:
    """Have a conversation in a session."""
    with Agent(ScriptedModel(*[answer for _, answer in turns])).session(session, store=store) as one:
        for question, _ in turns:
            one.run(question)


def told(search: SessionSearch, query: str, **arguments: Any) -> str:
    outcome = call(search.session_search, query=query, **arguments)
    assert outcome.status == "completed", outcome
    assert isinstance(outcome.content, str)
    return outcome.content


def fill(store: Any, sessions: int, messages: int) -> None:
    """Many sessions with many messages each, without the talking."""
    for number in range(sessions):
        lease = store.acquire(f"s{number}")
        for start in range(0, messages, 100):
            texts = range(start, start + 100)
            events = [
                Event(
                    at + 1,
                    0.0,
                    lease.session,
                    "",
                    MessageAccepted(f"m{at}", "queue", UserMessage.of(f"needle {at} hay")),
                )
                for at in texts
            ]
            store.commit([Write(lease, events, start + 100)])
        store.release(lease)


@pytest.fixture(params=["memory", "beside", "given"])
def searching(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[MemoryStore, SessionSearch]:
    """A store and its search, with the index in memory, beside the store's file, or where it was told."""
    store = MemoryStore()
    if request.param == "beside":
        store.path = tmp_path / "store.db"  # type: ignore[attr-defined]
        return store, SessionSearch(store)
    return store, SessionSearch(store, None if request.param == "memory" else tmp_path / "index")


def test_both_sides_are_found(searching: tuple[MemoryStore, SessionSearch]) -> None:
    """What people and models said is found by its words, with session and time; what is new is found too."""
    store, search = searching
    talk(store, "tea", ("Which tea do I like?", "You like the green tea from Uji."))
    talk(store, "rain", ("Will it rain?", "Only in the Café."))
    assert "session tea, assistant: You like the **green** tea from Uji." in told(search, "GREEN")
    assert "session tea, user: Which tea" in told(search, "which tea").replace("*", "")
    assert "session rain" in told(search, "cafe")
    assert told(search, '"tea green"') == "No matches."
    assert told(search, "green rain").startswith("[No message contains all of these words; these contain some.]\n")
    assert told(search, "tea", session="rain") == "No matches."
    assert len(told(search, "tea", limit=1).splitlines()) == 1
    talk(store, "tea", ("And coffee?", "None."))
    assert "coffee" in told(search, "coffee")


def test_the_running_session_is_not_searched(tmp_path: Path) -> None:
    """An agent finds the old session, and not the question that it is asked."""
    store = MemoryStore()
    talk(store, "old", ("remember the zebra", "I will"))
    model = ScriptedModel(ToolCall("1", "session_search", '{"query": "zebra"}'), "done")
    with Agent(model, SessionSearch(store).tools).session("new", store=store) as session:
        content = session.run("what about the zebra").outcomes[0].content
    assert isinstance(content, str)
    assert "session old, user: remember the **zebra**" in content
    assert len(content.splitlines()) == 1


def test_what_was_taken_back_is_not_found(searching: tuple[MemoryStore, SessionSearch]) -> None:
    """Removed and edited messages, and turns that were rolled back, are found as they are now, or not at all."""
    store, search = searching
    with Agent(ScriptedModel("answer one", "answer two")).session("s", store=store) as session:
        session.run("first")
        session.run("second")
        assert "answer" in told(search, "two")
        session.rollback()
        first, second = session.queue("penguin"), session.queue("walrus")
        assert "penguin" in told(search, "penguin")
        session.inbox.edit(first.id, "pelican")
        session.inbox.remove(second.id)
    assert told(search, "two") == "No matches."
    assert told(search, "second") == "No matches."
    assert told(search, "penguin") == "No matches."
    assert told(search, "walrus") == "No matches."
    assert "**pelican**" in told(search, "pelican")
    assert "answer **one**" in told(search, "one")


def test_an_index_is_private_and_can_be_lost(tmp_path: Path) -> None:
    """The file is its owner's; one that is broken, of another version, or gone is made again."""
    store = MemoryStore()
    talk(store, "s", ("zebra", "yes"))
    index = tmp_path / "index"
    for broken in (None, b"", b"this is no database" * 100):
        if broken is not None:
            index.write_bytes(broken)
        assert "zebra" in told(SessionSearch(store, index), "zebra")
        assert stat.S_IMODE(index.stat().st_mode) == 0o600 or broken is not None
    index.unlink()
    assert "zebra" in told(SessionSearch(store, index), "zebra")
    assert os.listdir(tmp_path) == ["index"]


def test_an_index_that_broke_in_the_middle_is_made_again(tmp_path: Path) -> None:
    """Pages that a power cut has torn are found at a search: it says so, and the next one has an index again."""
    store = MemoryStore()
    fill(store, 2, 500)
    index = tmp_path / "index"
    search = SessionSearch(store, index)
    told(search, '"needle 7"')
    with index.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(index.stat().st_size - 4096))
    outcome = call(search.session_search, query='"needle 7"')
    assert outcome.status == "failed"
    assert "will be rebuilt: search again" in outcome.detail
    assert len(told(search, '"needle 7"').splitlines()) == 2


def test_two_at_once_index_once(tmp_path: Path) -> None:
    """Several that search for the first time at the same moment find each message once."""
    store = MemoryStore()
    fill(store, 3, 500)
    for index in (None, tmp_path / "index"):
        searches = (
            [SessionSearch(store, index)] * 4 if index is None else [SessionSearch(store, index) for _ in range(4)]
        )
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda each=each: found.append(told(each, '"needle 7"'))) for each in searches
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [len(each.splitlines()) for each in found] == [3] * 4


@given(st.text())
def test_no_query_is_an_error_of_ours(query: str) -> None:
    """Whatever is asked for, it is searched or refused in words."""
    store = MemoryStore()
    search = SessionSearch(store)
    if _terms(query):
        with search._index.connected() as connection:
            assert search._index.find(connection, " ".join(_terms(query)), None, "", 10) == []
    else:
        outcome = call(search.session_search, query=query)
        assert "the query has no words" in outcome.detail


@pytest.mark.skipif(
    importlib.util.find_spec("halter.stores.sqlite.store") is None, reason="there is no such store here"
)
def test_sessions_in_a_file_are_found(tmp_path: Path) -> None:
    """The sessions of a SQLite store are found, from a store that was opened again, too."""
    from halter.stores import SQLiteStore

    with SQLiteStore(tmp_path / "db") as store:
        talk(store, "s", ("zebra", "a striped answer"))
    with SQLiteStore(tmp_path / "db") as store:
        assert "**striped**" in told(SessionSearch(store, tmp_path / "db-search"), "striped")


@every_reason
@every_moment
@pytest.mark.parametrize("is_file", [True, False])
def test_a_search_that_is_stopped(tmp_path: Path, moment: Moment, reason: str, is_file: bool) -> None:
    """Whenever a search is stopped while it makes its index, nothing stays open, and the next goes on from there."""
    store = MemoryStore()
    fill(store, 5, 1000)
    search = SessionSearch(store, tmp_path / "index" if is_file else None)
    before = open_files()
    middle = (tmp_path / "index").exists if is_file else None
    outcome = call_stopped(search.session_search, moment, reason, middle=middle, query='"needle 999"')
    check(outcome, moment, reason)
    assert open_files() == before
    assert len(told(search, '"needle 999"').splitlines()) == 5


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_search_can_be_stopped_everywhere(tmp_path: Path, reason: str) -> None:
    """At every line of a search, a stop leaves an index that the next search can use."""
    store = MemoryStore()
    talk(store, "s", ("zebra", "yes"), ("lion", "zebra"))
    count = 0

    def prepare() -> tuple[Any, dict[str, Any]]:
        nonlocal count
        count += 1
        return SessionSearch(store, tmp_path / str(count)).session_search, {"query": "zebra"}

    def verify(outcome: ToolOutcome) -> None:
        assert outcome.content == "" or len(str(outcome.content).splitlines()) == 2
        again = "\n".join(SessionSearch(store, tmp_path / str(count)).session_search("zebra", context))
        assert len(again.splitlines()) == 2

    context = ToolContext(CancellationToken(), call_id="again", is_async=False)
    before = open_files()
    assert stop_everywhere(prepare, verify, reason) > 50
    assert open_files() == before
