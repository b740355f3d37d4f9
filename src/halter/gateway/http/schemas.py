"""The JSON bodies of requests and responses, as structs; the OpenAPI document is made from them."""

from __future__ import annotations

import asyncio
import functools
import math
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from halter.events import Mode
from halter.gateway.http.errors import Problem, problem_of_validation
from halter.gateway.http.media import detect_audio, is_sound
from halter.models.image_types import IMAGE_TYPES
from halter.models.types import Audio, Image, Part, Text
from halter.tools.file_history import RestoredFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import BodyPartReader, MultipartReader, StreamReader, web

    from halter.gateway.sessions.limits import GatewayLimits
    from halter.session.inbox import InboxMessage, Receipt

__all__ = [
    "AnswerBody",
    "AnswerCommand",
    "AnswerView",
    "Body",
    "Command",
    "EditBody",
    "EditCommand",
    "InboxMessageView",
    "MessageBody",
    "MessageCommand",
    "MessageForm",
    "Name",
    "ReceiptView",
    "RemoveCommand",
    "RollbackBody",
    "RollbackCommand",
    "StopAllBody",
    "StopBody",
    "StopCommand",
    "StoppedView",
    "Word",
    "decode",
    "read_body",
    "read_file",
    "read_form",
    "view_inbox_message",
    "view_receipt",
]

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~:@-]{0,127}\Z", max_length=128)]
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
MAX_WAIT: Final = 60.0
_MAX_PARTS: Final = 100  # of one form
_UNNAMED: Final = "application/octet-stream"  # the type of a body for which the client names none
_UNKNOWN: Final = frozenset({"", _UNNAMED})


class Body(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request body. Unknown fields are errors."""


class MessageForm(Body):
    """The fields of a message with parts: its text may be missing."""

    text: str = ""
    id: Name | None = None
    mode: Mode = "queue"
    expect_turn: Word | None = None


class MessageBody(Body):
    """A message. The same `id` again is the same message. `expect_turn` names the turn that is meant."""

    text: Annotated[str, Meta(min_length=1)]
    id: Name | None = None
    mode: Mode = "queue"
    expect_turn: Word | None = None


class _AnyStop(Body):
    """What every stop may say.

    `wait`: answer when the turn is over; true for as long as that takes (a minute at the most), or so many seconds.
    """

    reason: Annotated[str, Meta(min_length=1, max_length=64)] = "stop"
    wait: bool | Annotated[float, Meta(ge=0, le=MAX_WAIT)] = False

    @property
    def patience(self) -> float:
        """How many seconds to wait for the end."""
        if isinstance(self.wait, bool):
            return MAX_WAIT if self.wait else 0.0
        return 0.0 if math.isnan(self.wait) else self.wait


class StopBody(_AnyStop):
    """A stop: of the turn, of one call, or of the turn and all that goes on in the background."""

    scope: Literal["turn", "call", "all"] = "turn"
    call_id: Word | None = None
    expect_turn: Word | None = None


class StopAllBody(_AnyStop):
    """A stop of every session: of its turn, or of that and of all that goes on in the background."""

    scope: Literal["turn", "all"] = "turn"


class RollbackBody(Body):
    """A rollback. With `files`, the files that the turn has changed are restored, where nobody changed them since.

    `expect_turn` names the turn that is meant: if another one is the last, nothing is done.
    """

    files: bool = False
    expect_turn: Word | None = None


class EditBody(Body):
    """A change of a message that waits: another text, or `state: "accepted"`, which releases it."""

    text: Annotated[str, Meta(min_length=1)] | None = None
    state: Literal["accepted"] | None = None


class AnswerBody(Body):
    """The answer to an approval or to a question.

    An approval takes true or "yes", "session", "always" (admins only), false, "no" or {"deny": "why"}.
    """

    value: Any


class MessageCommand(MessageBody, tag="message", kw_only=True):
    """A message, over a WebSocket."""

    ref: Any = None


class StopCommand(StopBody, tag="stop", kw_only=True):
    """A stop, over a WebSocket."""

    ref: Any = None


class RollbackCommand(RollbackBody, tag="rollback", kw_only=True):
    """A rollback, over a WebSocket."""

    ref: Any = None


class AnswerCommand(AnswerBody, tag="answer", kw_only=True):
    """An answer, over a WebSocket; `request` is what was asked."""

    request: str
    ref: Any = None


class EditCommand(EditBody, tag="edit", kw_only=True):
    """A change of a message that waits, over a WebSocket."""

    message: str
    ref: Any = None


class RemoveCommand(Body, tag="remove", kw_only=True):
    """A message to be taken out, over a WebSocket."""

    message: str
    ref: Any = None


Command: TypeAlias = MessageCommand | StopCommand | RollbackCommand | AnswerCommand | EditCommand | RemoveCommand


class ReceiptView(Struct, kw_only=True):
    """What became of a message, or of a stop. `finished`: whether the turn that it has stopped is over."""

    session: str
    id: str
    state: Literal["accepted", "applied", "held", "removed"]
    mode: Literal["queue", "steer", "interrupt", "rollback", "stop"]
    turn_id: str = ""
    stopped: bool = False
    finished: bool = False
    note: str = ""
    files: RestoredFiles | None = None  # what a rollback with files has done to them


class StoppedView(Struct, kw_only=True, omit_defaults=True):
    """How many turns a stop of every session has stopped, and how many of them are over.

    `recorded`: how many sessions are on nodes that do not answer. They are stopped before anything else runs in them.
    """

    stopped: int
    finished: int
    recorded: int = 0


class InboxMessageView(Struct, kw_only=True):
    """A message that waits. `parts` counts what it has beside its text, by kind.

    `preparing` is what is being done to it before it can be applied, such as "transcribing".
    """

    id: str
    mode: Literal["queue", "steer", "interrupt", "rollback", "stop"]
    state: Literal["accepted", "applied", "held", "removed"]
    text: str
    parts: dict[str, int]
    preparing: str
    note: str
    accepted_at: float


class AnswerView(Struct, kw_only=True):
    """An answer has reached who asked."""

    answered: bool


def view_receipt(session: str, receipt: Receipt, *, finished: bool = False) -> ReceiptView:
    """A receipt as it is sent."""
    return ReceiptView(
        session=session,
        id=receipt.id,
        state=receipt.state,
        mode=receipt.mode,
        turn_id=receipt.turn_id,
        stopped=receipt.stopped,
        finished=finished,
        files=receipt.files,
        note=receipt.note,
    )


def view_inbox_message(pending: InboxMessage) -> InboxMessageView:
    """A message that waits, as it is sent."""
    parts: dict[str, int] = {}
    for part in pending.message.parts if pending.message is not None else ():
        if not isinstance(part, Text):
            kind = str(part.__struct_config__.tag)
            parts[kind] = parts.get(kind, 0) + 1
    return InboxMessageView(
        id=pending.id,
        mode=pending.mode,
        state=pending.state,
        text=pending.text,
        parts=parts,
        preparing=pending.preparing,
        note=pending.note,
        accepted_at=pending.accepted_at,
    )


# -- reading ---------------------------------------------------------------------------------------------------------


def decode(data: bytes | str, kind: Any) -> Any:  # noqa: ANN401  (of the kind that was asked for)
    """Read JSON as *kind*. Raises `Problem`, which names the field."""
    try:
        return _decoder(kind).decode(data)
    except msgspec.MsgspecError as error:
        raise problem_of_validation(error) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}", field="body", kind="json") from error


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401  (one for each kind of body that there is)
    return msgspec.json.Decoder(kind)


async def read_body(request: web.Request, kind: type[Any], limits: GatewayLimits, *, may_be_empty: bool = False) -> Any:  # noqa: ANN401
    """The body of a request, as *kind*. Raises `Problem`."""
    _check_head(request, "application/json", limits.body, is_named=request.content_type != _UNNAMED)
    data = await _read(request.content, limits.body, limits.body_timeout) if request.body_exists else b""
    return kind() if may_be_empty and not data else decode(data, kind)


async def read_file(request: web.Request, kind: str, limits: GatewayLimits) -> bytes:
    """A body that is a file of this media type. Raises `Problem`."""
    _check_head(request, kind, limits.upload)
    return await _read(request.content, limits.upload, limits.upload_timeout)


def _check_head(request: web.Request, kind: str, limit: int, *, is_named: bool = True) -> None:
    """Check the media type of a body, if it *is_named*, and the length that the client announces."""
    if is_named and request.content_type != kind:
        raise Problem(415, f"send {kind}, not {request.content_type}", field="Content-Type", kind="media")
    if (request.content_length or 0) > limit:
        raise _too_large(limit)


async def _read(content: StreamReader, limit: int, seconds: float) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in content.iter_any():
                data += piece
                if len(data) > limit:
                    raise _too_large(limit)
    except TimeoutError as error:
        raise _too_slow() from error
    return bytes(data)


async def read_form(request: web.Request, limits: GatewayLimits) -> tuple[MessageForm, list[Part]]:
    """A message with parts: the form's fields, and the pictures and recordings, in their order. Raises `Problem`."""
    _check_head(request, "multipart/form-data", limits.upload)
    fields: dict[str, str] = {}
    parts: list[Part] = []
    count = 0
    try:
        async with asyncio.timeout(limits.upload_timeout):
            reader = await request.multipart()
            while (part := await _next(reader)) is not None:
                count += 1
                if count > _MAX_PARTS:
                    raise Problem(413, f"the limit is {_MAX_PARTS} parts", field="body", kind="too-large")
                data = await _read_part(part, request.content, limits)
                if part.name in ("image", "audio"):
                    parts.append(_part(part.name, part.headers, data))
                else:
                    fields[part.name or ""] = data.decode()
    except TimeoutError as error:
        raise _too_slow() from error
    except UnicodeDecodeError as error:
        raise Problem(422, "not UTF-8", field="text", kind="field") from error
    except (ValueError, AssertionError, RuntimeError) as error:  # what aiohttp's reader raises for broken forms
        raise Problem(400, "malformed form", field="body", kind="form") from error
    try:
        form = msgspec.convert(fields, MessageForm)
    except msgspec.ValidationError as error:
        raise problem_of_validation(error) from error
    return form, parts


async def _next(reader: MultipartReader) -> BodyPartReader | None:
    from aiohttp import BodyPartReader

    part = await reader.next()
    if part is not None and not isinstance(part, BodyPartReader):
        raise Problem(400, "nested forms are not supported", field="body", kind="form")
    return part


async def _read_part(part: BodyPartReader, body: StreamReader, limits: GatewayLimits) -> bytes:
    data = bytearray()
    while True:
        chunk = await part.read_chunk()
        data += chunk
        if body.total_bytes > limits.upload:  # what has arrived of the whole body, with the headers of its parts
            raise _too_large(limits.upload)
        if not chunk:
            return bytes(part.decode(data)) if part.headers.get("Content-Transfer-Encoding") else bytes(data)


def _part(name: str, headers: Mapping[str, str], data: bytes) -> Part:
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not data:
        raise Problem(422, "this part is empty", field=name, kind="field")
    if name == "image":
        if kind not in IMAGE_TYPES:
            raise Problem(415, f"an image must be one of {', '.join(sorted(IMAGE_TYPES))}", field=name, kind="media")
        return Image(data, media_type=kind)
    if kind in _UNKNOWN:  # as sent by `curl -F`, which knows the types of images only
        kind = detect_audio(data)
    if not is_sound(kind):
        raise Problem(
            415,
            "this is not audio: send audio/ogg or another audio/… type",
            field=name,
            kind="media",
        )
    return Audio(data, media_type=kind)


def _too_slow() -> Problem:
    return Problem(408, "the body was not received in time", field="body", kind="too-slow")


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the limit is {limit:,} bytes", field="body", kind="too-large")
