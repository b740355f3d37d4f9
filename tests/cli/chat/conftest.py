"""A home whose agent has tools that run until they are stopped, ask, or need to be allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from halter.testing import FakeProvider
from tests.support.cli_program import Home

TOOLS = '''
import asyncio, threading
from halter import ToolContext, tool


@tool
async def dig(place: str, ctx: ToolContext) -> str:
    """Dig until stopped."""
    ctx.report("one metre deep")
    await asyncio.sleep(1000)
    return "done"


@tool
async def search(query: str):
    """Search, and find one thing at once."""
    yield "found one"
    print("found by", query)
    await asyncio.sleep(1000)


@tool
def wedge() -> str:
    """Hear nothing."""
    print("wedged now")  # so that a test knows that it is in here
    threading.Event().wait(1000)
    return "done"


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask which."""
    return str(await ctx.ask("Which colour?", ["red", "blue"]))


@tool(approval=True)
def launch(what: str) -> str:
    """Launch something."""
    return f"launched {what}"


@tool(approval=True)
def guarded(what: str) -> str:
    """Do something that needs approval."""
    return f"did {what}"


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


tools = [dig, search, wedge, ask, launch, guarded, add]
'''


@pytest.fixture
def home(tmp_path: Path, provider: FakeProvider) -> Home:
    home = Home(tmp_path, provider)
    home.write_module(TOOLS)
    home.env["HALTER_TOOLS"] = "mytools:tools"
    return home
