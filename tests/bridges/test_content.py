"""What the bridges make of the descriptions, results and errors of other libraries."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import agents
import pytest
from agents import FunctionTool, ToolOutputImage, ToolOutputText, WebSearchTool, function_tool
from agents.tool_context import ToolContext as AgentsContext
from langchain_core.tools import BaseTool, BaseToolkit, ToolException
from langchain_core.tools import tool as langchain_tool
from pydantic import BaseModel
from pydantic_ai import BinaryContent, FunctionToolset, ModelRetry, RunContext, ToolReturn
from pydantic_ai import Tool as PydanticAITool
from pydantic_ai.toolsets import PrefixedToolset

from halter import Agent
from halter.bridges import from_langchain, from_openai_agents, from_pydantic_ai
from halter.models import ToolCall
from halter.models.types import Image, Text
from halter.testing import ScriptedModel
from tests.support.bridged_tools import Bridge, every_bridge
from tests.support.stopped_calls import call

PNG = b"\x89PNG\r\n\x1a\n"
PNG_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


class Place(BaseModel):
    name: str
    inside: Place | None = None


def find(words: str, limit: int = 3) -> dict[str, Any]:
    """Find things.

    Args:
        words: what to look for.
        limit: how many to return.

    """
    if limit < 0:
        raise ValueError("limit is negative")
    return {"words": words, "limit": limit}


async def afind(words: str, limit: int = 3) -> dict[str, Any]:
    """Find things."""
    await asyncio.sleep(0)
    return find(words, limit)


@every_bridge
@pytest.mark.parametrize("fn", [find, afind])
def test_description_result_and_errors(bridge: Bridge, fn: Any) -> None:
    """The model is told name, description and parameters; a result is content, and an error a failed call."""
    tool = bridge(fn)
    assert tool.name == fn.__name__
    assert tool.description.startswith("Find things.")
    assert tool.spec.parameters["type"] == "object"
    assert {name: each["type"] for name, each in tool.spec.parameters["properties"].items()} == {
        "words": "string",
        "limit": "integer",
    }
    done = call(tool, words="a")
    assert (done.status, done.content) in [
        ("completed", '{"words":"a","limit":3}'),
        ("completed", '{"words": "a", "limit": 3}'),  # as LangChain writes it
    ]
    failed = call(tool, words="a", limit=-1)
    assert (failed.status, failed.detail) == ("failed", "ValueError: limit is negative")
    wrong = call(tool, words="a", limit="many")
    assert (wrong.status, wrong.content) == ("failed", "")
    assert tool.name in wrong.detail


@every_bridge
def test_models_as_parameters(bridge: Bridge) -> None:
    """Types of pydantic arrive as such, and their schemas have no references but recursive ones."""

    def visit(place: Place) -> str:
        """Visit a place."""
        assert isinstance(place, Place)
        return f"{place.name} in {place.inside and place.inside.name}"

    visit.__annotations__ = {"place": Place, "return": str}
    tool = bridge(visit)
    assert "#/$defs/visit.Place" in str(tool.spec.parameters)
    assert call(tool, place={"name": "a", "inside": {"name": "b", "inside": None}}).content == "a in b"


@every_bridge
def test_options(bridge: Bridge) -> None:
    """Those of @tool: a bridged tool has approval, a timeout and the rest."""
    tool = bridge(find, approval=True, timeout=5, on_steer="finish", grace=1)
    assert (tool.approval, tool.timeout, tool.on_steer, tool.grace) == (True, 5, "finish", 1)
    assert call(tool, words="a").status == "denied"


@every_bridge
def test_in_a_session(bridge: Bridge) -> None:
    """An agent uses it beside its other tools."""
    model = ScriptedModel([ToolCall("1", "find", '{"words": "a"}'), ToolCall("2", "afind", '{"words": "b"}')], "Done.")
    with Agent(model, [bridge(find), bridge(afind)]).session() as session:
        turn = session.run("Find.")
    assert [outcome.status for outcome in turn.outcomes] == ["completed", "completed"]


# -- LangChain --------------------------------------------------------------------------------------


class Own(BaseTool):
    name: str = "own tool"
    description: str = "Do it."

    def _run(self, number: int) -> str:
        return f"got {number}"


class OwnAsync(Own):
    async def _arun(self, number: int) -> str:
        return f"awaited {number}"


class Kit(BaseToolkit):
    def get_tools(self) -> list[BaseTool]:
        return [Own(), OwnAsync(name="other")]


def test_tools_as_classes_and_toolkits() -> None:
    """A name that providers refuse is changed; a class with _arun() is async."""
    first, second = from_langchain(Kit())
    assert [(each.name, each.kind) for each in (first, second)] == [("own_tool", "function"), ("other", "coroutine")]
    assert call(first, number=1).content == "got 1"
    assert call(second, number=2).content == "awaited 2"
    with pytest.raises(TypeError, match="takes tools and toolkits of LangChain, not <function find"):
        from_langchain(find)  # type: ignore[arg-type]


def test_langchain_errors_and_blocks() -> None:
    """An error that the tool handles is a failed call with its words; blocks of content are texts and images."""

    @langchain_tool
    def refuse() -> str:
        """Refuse."""
        raise ToolException("not today")

    refuse.handle_tool_error = True
    [tool] = from_langchain(refuse)
    assert call(tool).detail == "ForeignToolError: not today"

    @langchain_tool
    def look() -> list[Any]:
        """Look."""
        image = {"type": "image", "base64": base64.b64encode(PNG).decode(), "mime_type": "image/png"}
        return [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PNG_URL}}, image]

    [tool] = from_langchain(look)
    assert call(tool).content == [Text("see"), Image(PNG, media_type="image/png"), Image(PNG, media_type="image/png")]


# -- pydantic-ai ------------------------------------------------------------------------------------


def test_a_run_context_and_a_toolset() -> None:
    """Functions of a toolset get the deps of the session; options of the toolset count."""
    toolset: FunctionToolset[str] = FunctionToolset(timeout=5, requires_approval=True)

    @toolset.tool
    def who(ctx: RunContext[str], *, loud: bool) -> str:
        """Who it is."""
        return f"{ctx.deps.upper() if loud else ctx.deps} {ctx.tool_call_id}"

    [tool] = from_pydantic_ai(toolset)
    assert (tool.timeout, tool.approval) == (5, True)
    with Agent(ScriptedModel(ToolCall("7", "who", '{"loud": true}'), "x"), [tool], approve="auto").session(
        deps="ada"
    ) as session:
        assert session.run("Who?").outcomes[0].content == "ADA 7"


def test_pydantic_ai_results_and_errors() -> None:
    """Media are ours, and an error has its own words; arguments are checked by the tool's own validator, too."""

    def look() -> ToolReturn[str]:
        """Look."""
        return ToolReturn("see", content=["this:", BinaryContent(PNG, media_type="image/png")])

    def again() -> str:
        """Ask again."""
        raise ModelRetry("give another city")

    def even(ctx: RunContext[None], number: int) -> None:
        if number % 2:
            raise ModelRetry("number must be even")

    def halve(number: int) -> int:
        """Halve."""
        return number // 2

    [tool] = from_pydantic_ai(PydanticAITool(look))
    assert call(tool).content == [Text("see\nthis:"), Image(PNG, media_type="image/png")]
    [tool] = from_pydantic_ai(PydanticAITool(again))
    assert (call(tool).status, call(tool).detail) == ("failed", "ModelRetry: give another city")
    [tool] = from_pydantic_ai(PydanticAITool(halve, args_validator=even))
    assert call(tool, number=4).content == "2"
    assert call(tool, number=3).detail == "ModelRetry: number must be even"


def test_what_needs_a_run_of_pydantic_ai_is_refused() -> None:
    """Where the tool is made, with what to do instead."""
    with pytest.raises(TypeError, match="'find' has prepare="):
        from_pydantic_ai(PydanticAITool(find, prepare=lambda ctx, definition: None))
    with pytest.raises(TypeError, match=r"a plain function: pass Tool\(function\)"):
        from_pydantic_ai(find)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes Tool and FunctionToolset"):
        from_pydantic_ai(PrefixedToolset(FunctionToolset(), "a"))  # type: ignore[arg-type]


# -- openai-agents ----------------------------------------------------------------------------------


def test_openai_agents_context_and_options() -> None:
    """Its ToolContext has the session's deps; its timeout and its approval count, a function of approval always."""

    @function_tool(timeout=5, needs_approval=True)
    async def who(ctx: AgentsContext[str]) -> str:
        """Who it is."""
        return f"{ctx.context} {ctx.tool_call_id}"

    [tool] = from_openai_agents(who)
    assert (tool.timeout, tool.approval, list(tool.spec.parameters["properties"])) == (5, True, [])
    with Agent(ScriptedModel(ToolCall("7", "who"), "x"), [tool], approve="auto").session(deps="ada") as session:
        assert session.run("Who?").outcomes[0].content == "ada 7"


def test_openai_agents_results_and_errors() -> None:
    """Texts and images are ours; what a tool's own function says of an error is the error of a failed call."""

    @function_tool
    def look() -> Any:
        """Look."""
        return [
            ToolOutputText(text="see"),
            ToolOutputImage(image_url=PNG_URL),
            ToolOutputImage(image_url="https://x/y"),
        ]

    async def describe(context: Any, error: Exception) -> str:
        return f"sorry: {error}"

    @function_tool(failure_error_function=describe)
    def refuse() -> str:
        """Refuse."""
        raise ValueError("not today")

    [tool] = from_openai_agents(look)
    assert call(tool).content == [Text("see"), Image(PNG, media_type="image/png"), Text("https://x/y")]
    [tool] = from_openai_agents(refuse)
    outcome = call(tool)
    assert (outcome.status, outcome.detail) == ("failed", "ForeignToolError: sorry: not today")


def test_a_function_tool_by_hand() -> None:
    """One whose invocation is a coroutine of the user's own runs in a task."""

    async def invoke(context: AgentsContext[Any], arguments: str) -> str:
        return f"{context.tool_name} {arguments}"

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    [tool] = from_openai_agents(FunctionTool("by_hand", "Do it.", schema, invoke, strict_json_schema=False))
    assert (tool.kind, call(tool, a=1).content) == ("coroutine", 'by_hand {"a":1}')


def test_what_needs_a_run_of_openai_agents_is_refused() -> None:
    """Guardrails would be left out silently, and a hosted tool does not run here."""

    @agents.tool_input_guardrail
    def guard(data: Any) -> agents.ToolGuardrailFunctionOutput:
        return agents.ToolGuardrailFunctionOutput.allow()

    guarded = function_tool(find, strict_mode=False)
    guarded.tool_input_guardrails = [guard]
    with pytest.raises(TypeError, match="'find' has guardrails"):
        from_openai_agents(guarded)
    with pytest.raises(TypeError, match="'find' has is_enabled="):
        from_openai_agents(function_tool(find, strict_mode=False, is_enabled=lambda context, agent: True))
    with pytest.raises(TypeError, match="takes function tools; others run at OpenAI"):
        from_openai_agents(WebSearchTool())  # type: ignore[arg-type]
