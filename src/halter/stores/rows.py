"""Events as rows of a log, and back: what stores that keep them outside of this process write."""

from __future__ import annotations

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
    events = write.events
    start = 0
    for end, event in enumerate(events, 1):
        if end < len(events) and events[end].turn == event.turn and events[end].time == event.time:
            continue
        data = [each.data for each in events[start:end]]
        try:
            body = _body(data if len(data) > 1 else event.data)
        except (TypeError, ValueError, RecursionError) as error:
            kinds = " or ".join(dict.fromkeys(map(kind_of, data)))
            raise NotStorable(
                f"{kinds} contains something that cannot be stored ({error}); nothing was written", write.lease.session
            ) from error
        kind = kind_of(event.data) if len(set(map(type, data))) == 1 else ""
        rows.append((event.seq, event.time, event.turn, kind, body))
        start = end
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
            raise StoreTooNew(f"{which} is {each!r}, which only a newer Halter knows; upgrade halter") from error
    raise StoreCorrupt(f"{which} is damaged: {error}") from error


def _kinds(plain: object) -> list[str]:
    events = plain if isinstance(plain, list) else []
    return [str(event.get("type")) for event in events if isinstance(event, dict)]
