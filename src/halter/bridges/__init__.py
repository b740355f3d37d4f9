"""Tools of other libraries as tools of Halter: LangChain, pydantic-ai and openai-agents.

    from halter.bridges import from_langchain

    agent = Agent("openai:gpt-5", from_langchain(search, calculator))

A bridged tool runs as any other: a function on a worker thread of Halter, a coroutine in a task. So it is stopped in
bounded time, `halter.current_token()` in it is the token of its call, and what it returns after a stop is recorded as
late. Needs the other library: pip install 'halter[bridges]' installs all three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports

if TYPE_CHECKING:
    from halter.bridges.foreign_tools import ForeignToolError as ForeignToolError
    from halter.bridges.langchain_tools import from_langchain as from_langchain
    from halter.bridges.openai_agents_tools import from_openai_agents as from_openai_agents
    from halter.bridges.pydantic_ai_tools import from_pydantic_ai as from_pydantic_ai

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "foreign_tools": ["ForeignToolError"],
        "langchain_tools": ["from_langchain"],
        "openai_agents_tools": ["from_openai_agents"],
        "pydantic_ai_tools": ["from_pydantic_ai"],
    },
)
