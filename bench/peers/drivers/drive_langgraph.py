"""LangGraph with LangChain's agent: cancel the task that iterates `astream()`; a SQLite checkpointer.

The library has no stop of its own for `astream()`: its `interrupt()` is a pause that the graph asks for itself, its
`request_drain()` waits for the end of a step, and `abort()` belongs to a stream that is marked as experimental. Runs
are cancelled by API on its platform only. So the task that reads the stream is cancelled, as asyncio intends. The
thread of the checkpointer is the conversation.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from protocol import (
    BASE_URL,
    INSTRUCTIONS,
    MODEL,
    STORE,
    Driver,
    blocking_tool,
    cooperative_tool,
    deaf_tool,
    process_tool,
    saw,
)

CONFIG = {"configurable": {"thread_id": "peers"}}


class LangGraphDriver(Driver):
    def __init__(self) -> None:
        self.agent = None
        self.task = None

    async def open(self) -> None:
        self.saver = AsyncSqliteSaver.from_conn_string(str(Path(STORE) / "langgraph.db"))
        self.agent = create_agent(
            ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key="none"),
            [tool(each) for each in (deaf_tool, cooperative_tool, process_tool, blocking_tool)],
            system_prompt=INSTRUCTIONS,
            checkpointer=await self.saver.__aenter__(),
        )

    async def turn(self, text: str) -> str:
        if self.agent is None:
            await self.open()
        self.task = asyncio.create_task(self.read(text))
        try:
            return await self.task
        except asyncio.CancelledError:
            return "stopped"

    async def read(self, text: str) -> str:
        answer = ""
        message = {"messages": [{"role": "user", "content": text}]}
        async for chunk, _ in self.agent.astream(message, CONFIG, stream_mode="messages"):
            if chunk.type == "AIMessageChunk":
                saw(chunk.text)
                answer += chunk.text
        return answer

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def close(self) -> None:
        if self.agent is not None:
            await self.saver.__aexit__(None, None, None)


LangGraphDriver().main()
