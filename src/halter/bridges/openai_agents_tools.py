"""Function tools of openai-agents. A coroutine function runs in a task, any other in a worker thread of Halter."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halter._extras import need
from halter.bridges.foreign_tools import ForeignToolError, image_from_url, make_spec, make_tool
from halter.models.types import Text
from halter.tools.context import ToolContext

if TYPE_CHECKING:
    from halter.tools.external import SpecTool

need("bridges", "agents")

from agents.tool import (  # noqa: E402  (after the check, which says how to get it)
    FunctionTool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    default_tool_error_function,
    resolve_function_tool_failure_error_function,
    set_function_tool_failure_error_function,
)
from agents.tool_context import ToolContext as AgentsContext  # noqa: E402

__all__ = ["from_openai_agents"]

# Set by function_tool() for a plain function, which it runs with asyncio.to_thread().
_IS_SYNC: Final = "__agents_sync_function_tool__"


def from_openai_agents(*tools: FunctionTool, **options: Any) -> list[SpecTool]:
    """Tools for `Agent(tools=...)` from function tools of openai-agents.

    *options* are those of `@tool` except `name` and `isolate`. A tool's `timeout_seconds` and `needs_approval` become
    `timeout` and `approval`; a function as `needs_approval` asks for each call. In a `ToolContext` of that library,
    `context` is what the session has as `deps`. An error is a failed call, not a result with a text about it.
    """
    for each in tools:
        if not isinstance(each, FunctionTool):
            raise TypeError(f"from_openai_agents() takes function tools; others run at OpenAI, such as {each!r}")
        if each.tool_input_guardrails or each.tool_output_guardrails:
            raise TypeError(
                f"{each.name!r} has guardrails, which only a run of openai-agents applies: remove them first"
            )
        if each.is_enabled is not True:
            raise TypeError(f"{each.name!r} has is_enabled=, which needs a run of openai-agents: decide it yourself")
    return [_bridged(each, options) for each in tools]


def _bridged(tool: FunctionTool, options: dict[str, Any]) -> SpecTool:
    spec = make_spec(tool.name, tool.description, tool.params_json_schema)
    is_sync = bool(getattr(tool.on_invoke_tool, _IS_SYNC, False))
    raising = set_function_tool_failure_error_function(copy.copy(tool), None)

    async def call(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Make one call. A boundary: whatever the tool raises may have words of its own for the model."""
        written = msgspec.json.encode(arguments).decode()
        context = AgentsContext(ctx.deps, tool_name=tool.name, tool_call_id=ctx.call_id, tool_arguments=written)
        try:
            return _content(await raising.on_invoke_tool(context, written))
        except Exception as error:
            message = await _own_message(tool, context, error)
            if message is None:
                raise
            raise ForeignToolError(message) from error

    own: dict[str, Any] = {"approval": bool(tool.needs_approval)}
    if tool.timeout_seconds is not None:
        own["timeout"] = tool.timeout_seconds
    return make_tool(spec, call, {**own, **options}, is_async=not is_sync)


async def _own_message(tool: FunctionTool, context: AgentsContext[Any], error: Exception) -> str | None:
    """The message of the tool's own `failure_error_function` for an error; None if it has only the default."""
    describe = resolve_function_tool_failure_error_function(tool, context)
    if describe is None or describe is default_tool_error_function:
        return None
    message = describe(context, error)
    return str(await message if inspect.isawaitable(message) else message)


def _content(result: Any) -> Any:
    """What a tool returned, with texts and images as ours."""
    if isinstance(result, (list, tuple)):
        return [_content(each) for each in result]
    if isinstance(result, ToolOutputText):
        return Text(result.text)
    if isinstance(result, ToolOutputImage):
        found = image_from_url(result.image_url) if result.image_url else f"(an image at OpenAI: {result.file_id})"
        return Text(found) if isinstance(found, str) else found
    if isinstance(result, ToolOutputFileContent):
        name = result.filename or result.file_url or result.file_id or "without a name"
        return Text(f"(a file, which is not supported: {name})")
    return result
