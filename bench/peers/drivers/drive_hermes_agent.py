"""Hermes Agent as a library: `agent.interrupt()` from another thread; messages by `agent.steer()`; `SessionDB`.

The docstring of `interrupt()` says to call it from an input handler, and that running tools are told; tools ask
`tools.interrupt.is_interrupted()`. What `steer()` could not deliver comes back with the turn as `pending_steer`, and
its own command line makes that the next message; so does this driver. Calls run at once only of tools on a private list
of its own, and of MCP servers that opt in; so those of a registered tool run one after the other.
"""

from __future__ import annotations

import time
from pathlib import Path

from hermes_state import SessionDB
from protocol import (
    BASE_URL,
    INSTRUCTIONS,
    MODEL,
    STORE,
    TOOL_SECONDS,
    Driver,
    blocking_tool,
    deaf_tool,
    emit,
    process_tool,
    saw,
)
from run_agent import AIAgent
from tools.interrupt import is_interrupted
from tools.registry import registry


def cooperative_tool(n: int) -> str:
    """Wait for a while, and ask for an interrupt."""
    emit("tool", n=n)
    end = time.monotonic() + TOOL_SECONDS
    while time.monotonic() < end and not is_interrupted():
        time.sleep(0.02)
    return f"done {n}"


def register(function, *, is_async: bool = False) -> None:
    name = function.__name__
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    if is_async:

        async def handler(args, **_):
            return await function(args["n"])
    else:

        def handler(args, **_):
            return function(args["n"])

    schema = {"name": name, "description": function.__doc__, "parameters": parameters}
    registry.register(name, "peers", schema, handler, is_async=is_async)


class HermesDriver(Driver):
    def __init__(self) -> None:
        for function in (deaf_tool, cooperative_tool, process_tool):
            register(function)
        register(blocking_tool, is_async=True)
        self.store = SessionDB(Path(STORE) / "state.db")
        self.agent = AIAgent(
            base_url=BASE_URL,
            api_key="none",
            provider="custom",
            model=MODEL,
            enabled_toolsets=["peers"],
            quiet_mode=True,
            ephemeral_system_prompt=INSTRUCTIONS,
            skip_context_files=True,
            skip_memory=True,
            session_id="peers",
            session_db=self.store,
        )
        self.history = self.store.get_messages_as_conversation("peers")
        self.leftover = ""

    def turn(self, text: str) -> str:
        if self.leftover:
            text, self.leftover = f"{self.leftover}\n{text}", ""
        result = self.agent.run_conversation(text, conversation_history=self.history, stream_callback=_on_text)
        self.history = result["messages"]
        self.leftover = result.get("pending_steer") or ""
        return result.get("final_response") or "stopped"

    def stop(self) -> None:
        self.agent.interrupt()

    def send(self, text: str) -> None:
        self.agent.steer(text)

    def close(self) -> None:
        self.agent.close()


def _on_text(text: str | None) -> None:
    saw(text or "")


HermesDriver().main()
