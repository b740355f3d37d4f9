"""What the store knows: `halter sessions` and `halter why`. Both only read, also while a session runs elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from halter.cli.output import complain, may_color, plain
from halter.cli.settings import SettingsError, load
from halter.cli.timeline import last_stop, render
from halter.errors import StoreError
from halter.events import EventData, MessageAccepted
from halter.stores import SQLiteStore

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from halter.stores.store import SessionInfo, Store

__all__ = ["PASSING", "NotFound", "describe_sessions", "find_session", "list_sessions", "tell_why"]

_WORDS: Final = 28  # of the first message, in characters
PASSING: Final = ("text.delta", "reasoning.delta", "tool.progress")
"""What a list has no use for, and long logs are made of."""
_BUT_TURNS: Final = sorted({str(kind.__struct_config__.tag) for kind in EventData.__args__} - {"turn.started"})


class NotFound(Exception):
    """What was asked for is not there; says what is."""


def list_sessions(options: argparse.Namespace) -> int:
    """Print a line for each session, the latest first. Returns the exit code."""
    try:
        with _open(options) as store:
            lines = describe_sessions(store)
    except NotFound as error:
        print(error)
        return 0
    except (SettingsError, StoreError) as error:
        return complain(error)
    for line in lines:
        print(line)
    return 0


def describe_sessions(store: Store, most: int | None = None) -> list[str]:
    """A line for each session, the latest first, below a line that names the columns."""
    rows = [_row(store, info) for info in _sessions(store)[:most]]
    if not rows:
        return ["There are no sessions yet."]
    wide = max(len("SESSION"), *(len(row[0]) for row in rows))
    lines = [f"{'SESSION':{wide}}  {'LAST USED':16}  TURNS  WAITING  FIRST WORDS"]
    for name, when, turns, waiting, words in rows:
        lines.append(f"{name:{wide}}  {when:16}  {turns:5}  {waiting:>7}  {words}")
    return lines


def _row(store: Store, info: SessionInfo) -> tuple[str, str, int, str, str]:
    turns = len(store.read(info.id, without=_BUT_TURNS))
    # A session begins with a message, or with the word that it was made.
    texts = [each.data.message.text for each in store.read(info.id, limit=2) if isinstance(each.data, MessageAccepted)]
    words = " ".join(texts[0].split()) if texts else ""
    words = words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated_at))
    return plain(info.id), when, turns, str(info.waiting or "-"), plain(words)


def _sessions(store: Store) -> list[SessionInfo]:
    """Those that somebody has opened; what an agent has others do is part of its own session."""
    known = {info.id: info for info in store.sessions()}
    return [info for name, info in known.items() if name.rpartition("/")[0] not in known]


def tell_why(options: argparse.Namespace) -> int:
    """Print the timeline of a session's last stop. Returns the exit code."""
    try:
        with _open(options) as store:
            session = find_session(store, options.session)
            stop = last_stop(store.read(session, without=PASSING))
    except (NotFound, SettingsError, StoreError) as error:
        return complain(error)
    if stop is None:
        print(f"No turn of session {plain(session)} was ever stopped.")
    elif options.json:
        print(msgspec.json.encode(stop).decode())
    else:
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        print(render(stop, color=may_color(), ascii_only=encoding != "utf8"))
    return 0


@contextlib.contextmanager
def _open(options: argparse.Namespace) -> Iterator[Store]:
    path = load({"store": options.store}).store
    if not path.exists():
        msg = f"There are no sessions yet: there is no store {path}."
        raise NotFound(msg)
    with SQLiteStore(path) as store:
        yield store


def find_session(store: Store, wanted: str | None) -> str:
    """The session that is meant: by its id, by how that begins, or the latest."""
    if wanted is None and (known := _sessions(store)):
        return known[0].id
    names = [info.id for info in store.sessions()]
    matches = [name for name in names if name.startswith(wanted or "")]
    if wanted in names:
        return wanted
    if len(matches) == 1:
        return matches[0]
    if matches:
        msg = f"{len(matches)} sessions begin with {wanted!r}: {', '.join(matches[:5])}"
        raise NotFound(msg)
    msg = f"there is no session {wanted!r}; `halter sessions` lists those that are" if wanted else "no sessions yet"
    raise NotFound(msg)
