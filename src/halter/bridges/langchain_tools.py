"""Tools of LangChain. A tool with a coroutine runs in a task, any other in a worker thread of Halter."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from halter._extras import need
from halter.bridges.foreign_tools import ForeignToolError, bad_arguments, image_from_url, make_spec
from halter.models.types import Part, Text
from halter.tools.context import ToolContext
from halter.tools.external import SpecTool

if TYPE_CHECKING:
    from collections.abc import Iterator

need("bridges", "langchain_core")

from langchain_core.tools import BaseTool, BaseToolkit  # noqa: E402  (after the check, which says how to get it)
from pydantic import ValidationError  # noqa: E402

__all__ = ["from_langchain"]


def from_langchain(*tools: BaseTool | BaseToolkit, **options: Any) -> list[SpecTool]:
    """Tools for `Agent(tools=...)` from tools and toolkits of LangChain.

    *options* are those of `@tool` except `name` and `isolate`. Arguments that LangGraph would inject, such as its
    state, are not there: a call of a tool that needs them fails.
    """
    found: list[SpecTool] = []
    for each in tools:
        if isinstance(each, BaseToolkit):
            found += from_langchain(*each.get_tools(), **options)
        elif isinstance(each, BaseTool):
            found.append(_bridged(each, options))
        else:
            raise TypeError(f"from_langchain() takes tools and toolkits of LangChain, not {each!r}")
    return found


def _bridged(tool: BaseTool, options: dict[str, Any]) -> SpecTool:
    spec = make_spec(tool.name, tool.description, _parameters(tool))

    def call(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        with _translated_errors(tool):
            return _content(tool.invoke(_request(tool, arguments, ctx)))

    async def acall(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        with _translated_errors(tool):
            return _content(await tool.ainvoke(_request(tool, arguments, ctx)))

    return SpecTool(spec, acall if _is_async(tool) else call, **options)


def _parameters(tool: BaseTool) -> dict[str, Any]:
    """The schema of what the model gives, without injected arguments. LangChain takes models of both pydantics."""
    given: Any = tool.tool_call_schema
    if not isinstance(given, dict):
        given = given.model_json_schema() if hasattr(given, "model_json_schema") else given.schema()
    return {key: value for key, value in given.items() if key not in ("title", "description")}


def _is_async(tool: BaseTool) -> bool:
    """Whether it has a coroutine; otherwise LangChain's ainvoke() would run its function in a pool."""
    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun  # noqa: SLF001  (what a tool overrides to be async)


@contextlib.contextmanager
def _translated_errors(tool: BaseTool) -> Iterator[None]:
    """Report wrong arguments as our own tools do. A function's own ValidationError stays what it is."""
    try:
        yield
    except ValidationError as error:
        if error.title != getattr(tool.args_schema, "__name__", None):
            raise
        raise bad_arguments(tool.name, error) from None


def _request(tool: BaseTool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
    return {"type": "tool_call", "id": ctx.call_id, "name": tool.name, "args": arguments}


def _content(result: Any) -> Any:
    """The content of LangChain's message. One that reports an error raises it."""
    content = getattr(result, "content", result)
    if isinstance(content, list):
        content = [_part(block) for block in content]
    if getattr(result, "status", "") == "error":
        texts = [content] if isinstance(content, str) else [each.text for each in content if isinstance(each, Text)]
        raise ForeignToolError("\n".join(texts) or "the tool failed without an error message")
    return content


def _part(block: Any) -> Part:
    """One block of a message: a text, an image, or what its type is."""
    if isinstance(block, str):
        return Text(block)
    kind = block.get("type")
    if kind == "text":
        return Text(str(block.get("text", "")))
    if kind == "image_url":
        url = block.get("image_url")
        found = image_from_url(str(url.get("url", "") if isinstance(url, dict) else url))
    elif kind == "image" and "base64" in block:
        found = image_from_url(f"data:{block.get('mime_type', '')};base64,{block['base64']}")
    else:
        found = str(block.get("url") or f"(content of type {kind}, which is not supported)")
    return Text(found) if isinstance(found, str) else found
