"""`halter sessions` and `halter why`. Both only read, and work while a session runs in another process."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from halter.cli.output import may_color, print_error
from halter.cli.settings import SettingsError, flags_of, load
from halter.errors import StoreError
from halter.events import MessageAccepted, TurnStarted
from halter.events.event import kinds_except
from halter.stores import SQLiteStore
from halter.views.text import escape_controls, shorten, single_line
from halter.views.timeline import last_stop, render

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from halter.stores.base import SessionInfo, Store

__all__ = [
    "FREQUENT_EVENTS",
    "NotFound",
    "describe_sessions",
    "find_session",
    "list_sessions",
    "session_rows",
    "show_why",
    "wanted_session",
]

_MAX_WORDS: Final = 28  # characters of the first message
FREQUENT_EVENTS: Final = ("text.delta", "reasoning.delta", "tool.progress")
"""Frequent events that lists do not need."""
_ALL_BUT_TURN_STARTED: Final = kinds_except(TurnStarted)


class NotFound(Exception):
    """There is no such session; the message says which there are."""


def list_sessions(options: argparse.Namespace) -> int:
    """Print a line for each session, last used first. Returns the exit code."""
    try:
        with _open(options) as store:
            lines = describe_sessions(store)
    except NotFound as error:
        print(error)
        return 0
    except (SettingsError, StoreError) as error:
        return print_error(error)
    for line in lines:
        print(line)
    return 0


def describe_sessions(store: Store, limit: int | None = None) -> list[str]:
    """A header and a line for each session, last used first."""
    rows = session_rows(store, limit)
    if not rows:
        return ["No sessions yet."]
    width = max(len("SESSION"), *(len(single_line(name)) for name, _ in rows))
    return [f"{'SESSION':{width}}  {'LAST USED':16}  TURNS  WAITING  FIRST MESSAGE", *(line for _, line in rows)]


def session_rows(store: Store, limit: int | None = None) -> list[tuple[str, str]]:
    """The id of each session and its line, last used first."""
    infos = _sessions(store)[:limit]
    rows = [_row(store, info) for info in infos]
    width = max(len("SESSION"), *(len(row[0]) for row in rows)) if rows else 0
    lines = [
        f"{name:{width}}  {when:16}  {turns:5}  {waiting:>7}  {words}" for name, when, turns, waiting, words in rows
    ]
    return [(info.id, line) for info, line in zip(infos, lines, strict=True)]


def _row(store: Store, info: SessionInfo) -> tuple[str, str, int, str, str]:
    turns = len(store.read(info.id, without=_ALL_BUT_TURN_STARTED))
    # The first event is a message, or `session.created`.
    texts = [each.data.message.text for each in store.read(info.id, limit=2) if isinstance(each.data, MessageAccepted)]
    words = shorten(texts[0], _MAX_WORDS) if texts else ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated_at))
    return single_line(info.id), when, turns, str(info.waiting or "-"), single_line(words)


def _sessions(store: Store) -> list[SessionInfo]:
    """All sessions but child sessions."""
    known = {info.id: info for info in store.sessions()}
    return [info for name, info in known.items() if name.rpartition("/")[0] not in known]


def show_why(options: argparse.Namespace) -> int:
    """Print the timeline of a session's last stop. Returns the exit code."""
    try:
        with _open(options) as store:
            session = find_session(store, options.session)
            stop = last_stop(store.read(session, without=FREQUENT_EVENTS))
    except (NotFound, SettingsError, StoreError) as error:
        return print_error(error)
    if stop is None:
        print(f"No turn of session {single_line(session)} was stopped.")
    elif options.json:
        print(escape_controls(msgspec.json.encode(stop)).decode())
    else:
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        print(render(stop, color=may_color(), ascii_only=encoding != "utf8"))
    return 0


@contextlib.contextmanager
def _open(options: argparse.Namespace) -> Iterator[Store]:
    path = load(flags_of(options)).store
    if not path.exists():
        msg = f"No sessions yet: {path} does not exist."
        raise NotFound(msg)
    with SQLiteStore(path) as store:
        yield store


def wanted_session(store: Store, wanted: str | None, *, latest: bool = False) -> str | None:
    """The session that the options of the command line mean; None for a new one.

    *wanted* is an id or the start of one; an unknown id begins a session. Raises `NotFound` if several ids start with
    it, or if there is no latest session.
    """
    if latest:
        return find_session(store, None)
    if not wanted:
        return None
    names = [info.id for info in store.sessions()]
    return find_session(store, wanted) if any(name.startswith(wanted) for name in names) else wanted


def find_session(store: Store, wanted: str | None) -> str:
    """A session by its id, by the start of it, or the last used one."""
    if wanted is None and (known := _sessions(store)):
        return known[0].id
    names = [info.id for info in store.sessions()]
    matches = [name for name in names if name.startswith(wanted or "")]
    if wanted in names:
        return wanted
    if len(matches) == 1:
        return matches[0]
    if matches:
        msg = f"{len(matches)} sessions start with {wanted!r}: {', '.join(matches[:5])}"
        raise NotFound(msg)
    msg = f"there is no session {wanted!r}; `halter sessions` lists them" if wanted else "no sessions yet"
    raise NotFound(msg)
