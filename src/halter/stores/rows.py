"""Events as rows of a log, and back: what stores that keep them outside of this process write."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import msgspec

from halter.errors import NotStorable, StoreCorrupt, StoreTooNew
from halter.events import EventData, kind_of

if TYPE_CHECKING:
    from halter.stores.base import Write

__all__ = ["from_body", "to_rows"]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EventData | list[EventData]).decode
_KINDS = {kind.__struct_config__.tag for kind in EventData.__args__}


def to_rows(write: Write) -> list[tuple[int, float, str, str, str]]:
    """The number of the last event, time, turn, kind and body: events of one time and turn share a row.

    Raises `NotStorable`.
    """
    rows = []
    for (at, turn), group in itertools.groupby(write.events, key=lambda event: (event.time, event.turn)):
        events = list(group)
        kinds = {kind_of(event.data): None for event in events}
        data = [event.data for event in events]
        try:
            body = _body(data if len(data) > 1 else data[0])
        except (TypeError, ValueError, RecursionError) as error:
            msg = f"{' or '.join(kinds)} contains something that cannot be stored ({error}); nothing was written"
            raise NotStorable(msg, write.lease.session) from error
        rows.append((events[-1].seq, at, turn, next(iter(kinds)) if len(kinds) == 1 else "", body))
    return rows


def from_body(session: str, seq: int, kind: str, body: str) -> list[EventData]:
    """The events of a row whose last event has the number *seq*."""
    try:
        data = _decode(body)
    except msgspec.MsgspecError as error:
        data = _unescaped(session, seq, kind, body, error)
    return data if isinstance(data, list) else [data]


def _body(data: EventData | list[EventData]) -> str:
    try:
        return _encode(data).decode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, as in the name of a file that is not UTF-8. Only JSON's escapes can carry it.
        return json.dumps(msgspec.to_builtins(data))


def _unescaped(session: str, seq: int, kind: str, body: str, error: Exception) -> Any:
    """Read what `_body()` had to escape. Anything else is damaged, or of a newer Halter."""
    plain: Any = None
    try:
        plain = json.loads(body)
        return msgspec.convert(plain, EventData | list[EventData])
    except (ValueError, msgspec.MsgspecError):
        pass
    which = f"event {seq} of session {session!r}{'' if kind else ', or one that was written with it,'}"
    for each in [kind] if kind else _kinds(plain):
        if each not in _KINDS:
            msg = f"{which} is {each!r}, which only a newer Halter knows; upgrade halter"
            raise StoreTooNew(msg) from error
    msg = f"{which} is damaged: {error}"
    raise StoreCorrupt(msg) from error


def _kinds(plain: object) -> list[str]:
    events = plain if isinstance(plain, list) else []
    return [str(event.get("type")) for event in events if isinstance(event, dict)]
