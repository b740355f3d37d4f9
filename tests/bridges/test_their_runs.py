"""Tools in runs of their own libraries, under a token of ours: they see it, and it ends what they wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agents import Agent as TheirAgent
from agents import OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool as langchain_tool
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai.models.test import TestModel

from halter import CancellationToken, current_token, run_process_blocking
from halter.models import ToolCall
from halter.testing import FakeProvider, answer, tool_calls

PROMPT = 30.0  # seconds, on a busy machine; the process would take 60


def _no_arguments(_: str) -> dict[str, object]:
    return {}


async def _langchain(work: Callable[[], str]) -> object:
    tool = langchain_tool(work)
    return await (RunnableLambda(_no_arguments) | tool).ainvoke("")


async def _pydantic_ai(work: Callable[[], str]) -> object:
    return await PydanticAIAgent(TestModel(), tools=[work]).run("Work.")


async def _openai_agents(work: Callable[[], str]) -> object:
    async with (
        FakeProvider(tool_calls([ToolCall("1", "work")]), answer("Done.")) as provider,
        AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="k", max_retries=0) as client,
    ):
        model = OpenAIChatCompletionsModel("m", client)
        agent = TheirAgent(name="theirs", tools=[function_tool(work)], model=model)
        return await Runner.run(agent, "Work.", run_config=RunConfig(tracing_disabled=True))


RUNS: dict[str, Callable[[Callable[[], str]], Awaitable[Any]]] = {
    "langchain": _langchain,
    "pydantic-ai": _pydantic_ai,
    "openai-agents": _openai_agents,
}


@pytest.mark.parametrize("library", RUNS)
def test_a_run_of_theirs_has_our_token(library: str) -> None:
    """In a thread of their pool `current_token()` is ours, and a process under it ends with it."""
    token = CancellationToken()
    begun = threading.Event()
    seen: list[Any] = []

    def work() -> str:
        """Work."""
        seen.append(current_token())
        result = run_process_blocking("echo begun; exec sleep 60", on_output=lambda _: begun.set())
        seen.append(result.cancelled)
        return result.stdout.decode()

    async def main() -> None:
        with token.bind():
            run = asyncio.ensure_future(RUNS[library](work))
        await asyncio.to_thread(begun.wait, PROMPT)
        token.cancel("stop")
        await asyncio.wait_for(run, PROMPT)

    asyncio.run(main())
    assert seen[0] is token
    assert seen[1] is True


@pytest.mark.parametrize("library", RUNS)
def test_a_scope_ends_a_run_of_theirs(library: str) -> None:
    """`async with token.scope()` around their run cancels it, and their coroutine is left."""
    token = CancellationToken()
    left = asyncio.Event()

    async def work() -> str:
        """Work."""
        try:
            token.cancel("stop")
            await asyncio.sleep(60)
        finally:
            left.set()
        return "done"

    async def main() -> str | None:
        try:
            async with token.scope():
                await RUNS[library](work)  # type: ignore[arg-type]
        except BaseException as stop:  # whatever leaves it, it must be our stop
            assert left.is_set()
            return getattr(stop, "reason", None)
        return None

    assert asyncio.run(main()) == "stop"
