"""Tools that are described by others."""

from __future__ import annotations

from typing import Any

import pytest

from halter import ToolContext
from halter.models.types import ToolSpec
from halter.tools import collect_tools
from halter.tools.external import SpecTool
from halter.tools.schema.arguments import BadArguments
from tests.support.batches import Probe, calls_of, run, statuses

SPEC = ToolSpec("remote", "Do it elsewhere.", {"type": "object", "properties": {"a": {"type": "integer"}}})


async def call(arguments: dict[str, Any], ctx: ToolContext) -> str:
    return f"{ctx.call_id}: {arguments}"


def test_a_tool_is_what_its_spec_says() -> None:
    """The model is told the spec as it was given, and the function gets the arguments as they came."""
    remote = SpecTool(SPEC, call, timeout=5)
    assert remote.spec is SPEC
    assert (remote.name, remote.description, remote.timeout) == ("remote", "Do it elsewhere.", 5)

    async def main() -> None:
        outcomes = await Probe(remote, calls=calls_of("remote", arguments='{"a": "not checked", "b": 1}')).run()
        assert statuses(outcomes) == ["completed"]
        assert outcomes[0].content == "call_0: {'a': 'not checked', 'b': 1}"

    run(main())


@pytest.mark.parametrize("raw", ["[1]", "5", '{"a": '])
def test_arguments_must_be_an_object(raw: str) -> None:
    """What is no JSON object is refused, with the name of the tool and what to do."""
    with pytest.raises(BadArguments, match=r"The call of remote was not run.*Correct them"):
        SpecTool(SPEC, call).bind_arguments(raw)
    assert SpecTool(SPEC, call).bind_arguments("") == {"arguments": {}}


def test_a_function_of_another_shape_is_refused() -> None:
    """The mistake is told where the tool is made."""

    async def without(arguments: dict[str, Any]) -> None: ...

    with pytest.raises(TypeError, match=r"takes \(arguments, ctx: ToolContext\)"):
        SpecTool(SPEC, without)  # type: ignore[arg-type]


def test_two_of_one_name_are_an_error() -> None:
    """As with all tools, one has to be given another name."""

    async def other(arguments: dict[str, Any], ctx: ToolContext) -> None: ...

    with pytest.raises(ValueError, match="two tools are named 'remote'"):
        collect_tools([SpecTool(SPEC, call), SpecTool(SPEC, other)])
