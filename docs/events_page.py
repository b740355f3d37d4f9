"""Writes reference/events.md from the classes of the events: python docs/events_page.py. A test compares the two."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import sys
import tokenize
from pathlib import Path
from typing import Literal, get_args, get_origin

import msgspec

from halter.events import Event, EventData
from halter.models.answer import Answer
from halter.models.types import Audio, Image, Reasoning, Text, ToolCall, Usage, UserMessage
from halter.tools.approval import ApprovalRequest
from halter.tools.outcome import LateEnd, ToolOutcome

PAGE = Path(__file__).parent / "reference/events.md"
VALUES = (
    UserMessage, Text, Image, Audio, Answer, Reasoning, ToolCall, Usage, ToolOutcome, LateEnd, ApprovalRequest,
)  # fmt: skip
_BEGIN = """\
# Events

After this page you know every event, with its fields.

Everything that happens in a session is an event in its log. `stream()`, `subscribe()`, `session.events()`, the
gateway's streams and `halter -p --json` have the same ones. Python has them as classes of `halter.events`; as JSON each
is an object with these fields, and `type` in its `data` is its kind.

This page is made from the classes by `docs/events_page.py`.

"""


def page() -> str:
    """The whole page."""
    parts = [_BEGIN, _table(Event), "\n"]
    parts += [
        f"## {kind.__struct_config__.tag}\n\n`{kind.__name__}`. {_doc(kind)}\n\n{_table(kind)}\n"
        for kind in get_args(EventData)
    ]
    parts.append("## Values in events\n\n")
    parts += [f"### {kind.__name__}\n\n{_doc(kind)}\n\n{_table(kind)}\n" for kind in VALUES]
    return "".join(parts).rstrip("\n") + "\n"


def _doc(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


def _table(kind: type) -> str:
    """The fields of a class, with the comments behind them."""
    classes, comments = _source(kind.__module__)
    body = classes[kind.__name__]
    names = {each.name: each.encode_name for each in msgspec.structs.fields(kind)}
    rows = []
    for field, after in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or ast.unparse(field.annotation).startswith("ClassVar"):
            continue
        said = [comments[line] for line in range(field.lineno, (field.end_lineno or 0) + 1) if line in comments]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            said.append(" ".join(str(after.value.value).split()))
        said += _choices(kind, ast.unparse(field.annotation))
        encoded = names[ast.unparse(field.target)]
        if encoded != ast.unparse(field.target):
            said.append(f"In JSON: `{encoded}`.")
        has_default = field.value is not None and not isinstance(field.value, ast.Call)
        default = f" = {ast.unparse(field.value)}" if has_default else ""
        written = f"{ast.unparse(field.annotation)}{default}".replace("|", "\\|")
        meaning = ". ".join(each.rstrip(".") for each in said).replace("|", "\\|")
        rows.append(f"| `{ast.unparse(field.target)}` | `{written}` | {meaning} |\n")
    return "| field | type | |\n|---|---|---|\n" + "".join(rows) if rows else ""


def _choices(kind: type, annotation: str) -> list[str]:
    """The words that a field may have, if its type is a name for them."""
    known = getattr(sys.modules[kind.__module__], annotation, None)
    return [f"One of {', '.join(map(repr, get_args(known)))}."] if get_origin(known) is Literal else []


@functools.cache
def _source(module: str) -> tuple[dict[str, ast.ClassDef], dict[int, str]]:
    """The classes of a module by name, and its comments by line."""
    source = inspect.getsource(sys.modules[module])
    classes = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {
        token.start[0]: token.string.removeprefix("#").strip() for token in tokens if token.type == tokenize.COMMENT
    }
    return classes, comments


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
