"""The list of all sessions, loaded or not, and the search in them."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.loop_bridge import run_in_thread
from halter.events import SessionChanged
from halter.events.event import kinds_except
from halter.gateway.sessions.live_session import agent_of, owner_of, title_of
from halter.toolbox.session_search import SessionSearch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from halter.gateway.http.keys import Key
    from halter.stores.base import SessionInfo, Store

__all__ = ["Catalog", "ListedSession"]

_MAX_FOUND: Final = 200  # messages that a search returns
_ALL_BUT_CHANGES: Final = kinds_except(SessionChanged)


class ListedSession(NamedTuple):
    """A session in a list."""

    info: SessionInfo
    agent: str  # empty if it is not known
    title: str


class Catalog:
    """The sessions of a store, as lists and searches show them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._titles = _ChosenTitles(store)
        self._index = SessionSearch(store)

    async def list(self, limit: int, key: Key, only: Collection[str] | None = None) -> list[ListedSession]:
        """The last used sessions that *key* may use; *only* those, in that order."""
        found = await run_in_thread(lambda: [*itertools.islice(self._list(key, only), limit)])
        if only is not None:
            order = [*only]
            found.sort(key=lambda each: order.index(each.info.id))
        return found

    async def search(self, words: str, key: Key, limit: int) -> dict[str, str]:
        """The sessions that *key* may use and that have *words* in their messages or title, with a snippet of each."""
        return await run_in_thread(lambda: self._search(words, key, limit))

    def _search(self, words: str, key: Key, limit: int) -> dict[str, str]:
        found = {each.info.id: "" for each in self._list(key) if words.casefold() in each.title.casefold()}
        for hit in self._index.find(words, limit=_MAX_FOUND):
            found.setdefault(hit.session.partition("/")[0], hit.snippet)
        allowed = {each.info.id for each in self._list(key, found)}
        return dict(itertools.islice(((each, text) for each, text in found.items() if each in allowed), limit))

    def _list(self, key: Key, only: Collection[str] | None = None) -> Iterator[ListedSession]:
        for info in self._store.sessions():
            if "/" in info.id or (only is not None and info.id not in only):
                continue
            first = self._store.read(info.id, limit=2)
            if key.may_use(owner_of(first)):
                yield ListedSession(info, agent_of(first), self._titles.find(info) or title_of(first))


class _ChosenTitles:
    """The titles that users have given to sessions. Each event is read once, and of most of them only the kind."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, int, str]] = {}  # when the session began, the last event, the title

    def find(self, info: SessionInfo) -> str:
        """The title that somebody has given to a session; empty if nobody has."""
        with self._lock:
            began, seen, title = self._known.get(info.id, (info.created_at, 0, ""))
            if began != info.created_at:  # another session with the name of one that was deleted
                seen, title = 0, ""
            if seen < info.events:
                for event in self._store.read(info.id, seen, without=_ALL_BUT_CHANGES):
                    if isinstance(event.data, SessionChanged) and event.data.title:
                        title = event.data.title
                self._known[info.id] = (info.created_at, info.events, title)
            return title
