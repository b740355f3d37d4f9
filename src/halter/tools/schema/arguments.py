"""A model's arguments: parsed, checked against the type hints, and converted for the function.

Whatever the model sends, the result is arguments that fit or ``BadArguments``, whose text is written for the model:
which parameter is wrong, what was expected, and what the tool takes.

Unambiguous mistakes of models are corrected: empty text or ``null`` for no arguments; a string with the JSON of the
arguments, or of a parameter that is not a string (``"[1, 2]"``, ``"5"``); ``5.0`` for an integer, which JSON Schema
allows; ``null`` for an optional parameter. Nothing else is converted.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from halter.tools.schema.json_schema import Schema, brief

if TYPE_CHECKING:
    from halter.tools.schema.hints import Hint

_POSITION: Final = re.compile(r" \(byte (\d+)\)$")
_WHERE: Final = re.compile(r"^(?P<what>.*) - at `(key in )?\$(?P<where>.*)`$", re.DOTALL)
_EXCERPT: Final = 20  # bytes shown on each side of a syntax error
_MAX_LENGTH: Final = 2_000  # characters of a message


class BadArguments(ValueError):
    """The arguments of a call do not fit the tool. The text tells the model how to correct them."""


class Argument(NamedTuple):
    """One parameter of a tool."""

    name: str
    hint: Hint
    schema: Schema
    is_required: bool


def read_arguments(tool: str, wanted: list[Argument], raw: str) -> dict[str, Any]:
    """Return the arguments for a call, or raise BadArguments."""
    try:
        given = _parse(raw)
        found, problems = _fit(wanted, given)
    except BadArguments as error:
        raise BadArguments(_message(tool, wanted, [str(error)])) from None
    if problems:
        raise BadArguments(_message(tool, wanted, problems))
    return found


def read_object(tool: str, raw: str) -> dict[str, Any]:
    """Return the arguments for a call whose receiver checks them itself: any JSON object. Else raise BadArguments."""
    try:
        return _parse(raw)
    except BadArguments as error:
        raise BadArguments(
            f"The call of {tool} was not run because its arguments are wrong: {error}. Correct them and call again."
        ) from None


def _parse(raw: str) -> dict[str, Any]:
    if not raw.strip():
        return {}
    value = decode_json(raw)
    if isinstance(value, str):
        value = decode_json(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadArguments(f"the arguments must be one JSON object, not {_json_type(value)}")
    return value


def decode_json(text: str) -> Any:
    """Read JSON that a model wrote; BadArguments says what is wrong with it."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        msg = "the JSON is nested too deeply"
    except UnicodeEncodeError:
        msg = "the JSON contains characters that are not Unicode"
    except msgspec.DecodeError as error:  # not JSON, or numbers that are too large
        msg = _syntax_error(text, str(error))
    raise BadArguments(msg)


def _syntax_error(text: str, problem: str) -> str:
    position = _POSITION.search(problem)
    if position is None:
        if "truncated" in problem:
            return f"the JSON ends too early, after {len(text)} characters"
        return f"the JSON cannot be read: {problem}"
    at = int(position[1])
    data = text.encode()
    before = data[max(0, at - _EXCERPT) : at].decode(errors="ignore")
    after = data[at : at + _EXCERPT].decode(errors="ignore")
    line, column = data.count(b"\n", 0, at) + 1, at - (data.rfind(b"\n", 0, at) + 1) + 1
    reason = problem[: position.start()].removeprefix("JSON is malformed: ")
    return f"the JSON is malformed at line {line}, column {column}, between {before!r} and {after!r}: {reason}"


def _fit(wanted: list[Argument], given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    found: dict[str, Any] = {}
    problems: list[str] = []
    for argument in wanted:
        if argument.name not in given:
            if argument.is_required:
                problems.append(f"{argument.name} is missing: expected {brief(argument.schema)}")
            continue
        value = given[argument.name]
        try:
            found[argument.name] = convert_value(argument.hint, value)
        except BadArguments as error:
            if value is not None or argument.is_required:
                problems.append(f"{argument.name}{located_problem(str(error))}")
    names = [argument.name for argument in wanted]
    problems += [_unknown(name, names) for name in given if name not in names]
    return found, problems


def _unknown(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"there is no parameter {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def convert_value(hint: Hint, value: Any) -> Any:
    """Convert a value to the type, with unambiguous mistakes corrected; BadArguments if it does not fit."""
    try:
        return _attempt(hint, value)
    except BadArguments as first:
        for other in _alternatives(value):
            try:
                return _attempt(hint, other)
            except BadArguments:
                continue
        raise first from None


def _attempt(hint: Hint, value: Any) -> Any:
    """Check one value. A boundary: constructors and validators of the user's types may raise anything."""
    try:
        return hint.convert(value)
    except Exception as error:
        raise BadArguments(str(error) or type(error).__name__) from error


def _alternatives(value: Any) -> list[Any]:
    """What the model may have meant by a value that does not fit."""
    found = []
    if isinstance(value, str) and value.strip():
        try:
            value = decode_json(value)
        except BadArguments:
            return []
        found.append(value)
    try:
        whole = _integers(value)
    except RecursionError:
        return found
    if whole is not value:
        found.append(whole)
    return found


def _integers(value: Any) -> Any:
    """The value with integers for floats such as 5.0; the same object if there are none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        items = [_integers(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if isinstance(value, dict):
        entries = {key: _integers(item) for key, item in value.items()}
        return entries if any(entries[key] is not item for key, item in value.items()) else value
    return value


def located_problem(text: str) -> str:
    """Msgspec's message with the location first: `Expected int, got str - at $.a` is `.a: expected int, got str`."""
    matched = _WHERE.match(text)
    where, what = (matched["where"], matched["what"]) if matched else ("", text)
    return f"{where}: {what[:1].lower()}{what[1:]}"


def _json_type(value: Any) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return kinds.get(type(value), "null")


def _message(tool: str, wanted: list[Argument], problems: list[str]) -> str:
    takes = ", ".join(
        f"{each.name} ({brief(each.schema)}{', required' if each.is_required else ''})" for each in wanted
    )
    problem = "; ".join(problems)
    if len(problem) > _MAX_LENGTH:
        problem = problem[:_MAX_LENGTH] + " ..."
    expected = f"It takes: {takes[:_MAX_LENGTH]}." if wanted else "It takes no parameters."
    why = f"The call of {tool} was not run because its arguments are wrong: {problem}."
    return f"{why} {expected} Correct them and call again."
