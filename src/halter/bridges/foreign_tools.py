"""What the bridges share: descriptions, images, and sync functions that other libraries would run in their own threads.

Those libraries run a sync function in a pool whose threads are joined at exit, so a function that never returns would
block the exit, and no stop would reach it. Here the coroutine of the library runs in a worker thread of Halter, in an
event loop without a pool: the function runs in that same thread, where it can be stopped.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

from halter.errors import HalterError
from halter.models.types import Image, ToolSpec
from halter.tools.context import ToolContext
from halter.tools.external import SpecTool, fit_name
from halter.tools.schema.arguments import BadArguments
from halter.tools.schema.json_schema import inline_object

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from pydantic_core import ValidationError

__all__ = ["ForeignToolError", "bad_arguments", "image_from_url", "make_spec", "make_tool"]

T = TypeVar("T")

_DATA_URL: Final = re.compile(
    r"data:(?P<type>[^;,]*)(?P<base64>(?:;[^;,]*)*;base64)?(?:;[^,]*)?,(?P<data>.*)", re.DOTALL
)


class ForeignToolError(HalterError):
    """A tool of another library has reported an error. The text is its own, for the model."""


def make_spec(name: str, description: str | None, parameters: Mapping[str, Any]) -> ToolSpec:
    """The description of a tool, with a name and a schema that every provider accepts."""
    return ToolSpec(fit_name(name), description or "", inline_object(parameters, prefix=fit_name(name)))


def make_tool(
    spec: ToolSpec,
    work: Callable[[dict[str, Any], ToolContext], Coroutine[Any, Any, Any]],
    options: Mapping[str, Any],
    *,
    is_async: bool,
) -> SpecTool:
    """Make a tool from a coroutine function. Unless it *is_async*, what it runs in a pool runs in the call's thread."""
    if is_async:
        return SpecTool(spec, work, **options)

    def call(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        with asyncio.Runner(loop_factory=_LoopWithoutPool) as runner:
            return runner.run(work(arguments, ctx))

    return SpecTool(spec, call, **options)


class _LoopWithoutPool(asyncio.SelectorEventLoop):
    """An event loop that runs functions for an executor in its own thread, at once."""

    def run_in_executor(self, _executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as exc:  # noqa: BLE001  (raised where the future is awaited, a stop as well)
            future.set_exception(exc)
        return future


def bad_arguments(tool: str, error: ValidationError) -> BadArguments:
    """Pydantic's error about the arguments of a call, in the words of our own tools."""
    problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
    why = f"The call of {tool} was not run because its arguments are wrong: {'; '.join(problems)}."
    return BadArguments(f"{why} Correct them and call again.")


def image_from_url(url: str) -> Image | str:
    """The image in a data URL; any other URL stays what it is, as text: nothing is fetched here."""
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return url
    media_type = found["type"] or "image/png"
    try:
        data = base64.b64decode(found["data"], validate=True) if found["base64"] else unquote_to_bytes(found["data"])
    except binascii.Error:
        return "(an image that cannot be decoded)"
    return Image(data, media_type=media_type)
