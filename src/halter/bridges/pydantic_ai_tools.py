"""Tools of pydantic-ai. A coroutine function runs in a task, any other in a worker thread of Halter."""

from __future__ import annotations

import contextlib
import inspect
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import msgspec

from halter._extras import need
from halter.bridges.foreign_tools import ForeignToolError, bad_arguments, make_spec, make_tool
from halter.models.types import Audio, Image
from halter.tools.context import ToolContext

if TYPE_CHECKING:
    from halter.tools.external import SpecTool

need("bridges", "pydantic_ai")

from pydantic_ai import Agent, RunContext, Tool  # noqa: E402  (after the check, which says how to get it)
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred  # noqa: E402
from pydantic_ai.messages import BinaryContent, ToolReturn  # noqa: E402
from pydantic_ai.models.test import TestModel  # noqa: E402
from pydantic_ai.toolsets import FunctionToolset  # noqa: E402
from pydantic_ai.usage import RunUsage  # noqa: E402
from pydantic_core import ValidationError  # noqa: E402

__all__ = ["from_pydantic_ai"]


def from_pydantic_ai(*tools: Tool[Any] | FunctionToolset[Any], **options: Any) -> list[SpecTool]:
    """Tools for `Agent(tools=...)` from tools and function toolsets of pydantic-ai.

    *options* are those of `@tool` except `name` and `isolate`. A tool's own `timeout`, `sequential` and
    `requires_approval` become `timeout`, `exclusive` and `approval`. In a `RunContext`, `deps` are those of the
    session; there is no run of pydantic-ai around it.
    """
    found: list[SpecTool] = []
    for each in tools:
        if isinstance(each, FunctionToolset):
            found += [_bridged(tool, options, each) for tool in each.tools.values()]
        elif isinstance(each, Tool):
            found.append(_bridged(each, options))
        else:
            hint = "a plain function: pass Tool(function)" if inspect.isroutine(each) else f"{each!r}"
            raise TypeError(f"from_pydantic_ai() takes Tool and FunctionToolset of pydantic-ai, not {hint}")
    return found


def _bridged(tool: Tool[Any], options: dict[str, Any], toolset: FunctionToolset[Any] | None = None) -> SpecTool:
    if tool.prepare is not None:
        raise TypeError(
            f"{tool.name!r} has prepare=, which needs a run of pydantic-ai: leave it out, and decide yourself"
        )
    schema = tool.function_schema
    spec = make_spec(tool.name, tool.description, schema.json_schema)

    async def call(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        context = _run_context(tool, ctx)
        checked = _checked(tool, arguments)
        try:
            # A sync function runs in the executor of its loop, which is the call's own thread, and not in a pool.
            with contextlib.nullcontext() if schema.is_async else Agent.using_thread_executor(Executor()):
                if tool.args_validator is not None:
                    verdict = tool.args_validator(context, **checked)
                    if inspect.isawaitable(verdict):
                        await verdict
                return _content(await schema.call(checked, context))
        except (ApprovalRequired, CallDeferred) as error:
            why = f"the tool raised {type(error).__name__}, which needs a run of pydantic-ai; use approval=True"
            raise ForeignToolError(why) from error

    owners: list[Any] = [tool] if toolset is None else [tool, toolset]
    own: dict[str, Any] = {
        "exclusive": any(each.sequential for each in owners),
        "approval": any(each.requires_approval for each in owners),
        "timeout": next((each.timeout for each in owners if each.timeout is not None), None),
    }
    return make_tool(spec, call, {**own, **options}, is_async=schema.is_async)


def _run_context(tool: Tool[Any], ctx: ToolContext) -> RunContext[Any]:
    return RunContext(deps=ctx.deps, model=TestModel(), usage=RunUsage(), tool_call_id=ctx.call_id, tool_name=tool.name)


def _checked(tool: Tool[Any], arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        checked: dict[str, Any] = tool.function_schema.validator.validate_json(msgspec.json.encode(arguments))
    except ValidationError as error:
        raise bad_arguments(tool.name, error) from None
    return checked


def _content(result: Any) -> Any:
    """What a tool returned, with media as ours."""
    if isinstance(result, ToolReturn):
        extra = result.content
        further = [] if extra is None else [extra] if isinstance(extra, str) else list(extra)
        result = [result.return_value, *further] if further else result.return_value
    if isinstance(result, (list, tuple)) and any(isinstance(each, BinaryContent) for each in result):
        return [_content(each) for each in result]
    if isinstance(result, BinaryContent):
        if result.is_image:
            return Image(result.data, media_type=result.media_type)
        if result.is_audio:
            return Audio(result.data, media_type=result.media_type)
        return f"({len(result.data):,} bytes of {result.media_type}, which is not supported)"
    return result
