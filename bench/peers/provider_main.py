"""The fake provider in a process of its own: the same replies for every system, chosen by the last tag of the user.

Commands and answers are lines of JSON. `time.monotonic()` is one clock for all processes of a machine, so its times
can be compared with those of the drivers.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

from halter.models import ToolCall
from halter.testing import (
    FakeProvider,
    ScriptedReply,
    answer,
    hang_before_first_byte,
    tool_calls,
)

if TYPE_CHECKING:
    from halter.testing import SeenRequest

CHUNKS = 2000  # of the stream whose CPU time is measured
SLOW_CHUNKS = 10_000
BRIEF_CHUNKS, BRIEF_INTERVAL = 10, 0.01
CALLS = {"deaf": 8, "cooperative": 8, "process": 8, "blocking": 1}


def words(count: int) -> tuple[str, ...]:
    """Different words: LiteLLM takes a hundred equal chunks for a model that repeats itself, and asks again."""
    return tuple(f"word{n} " for n in range(count))


def texts(message: dict) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return " ".join(part.get("text") or "" for part in content or () if isinstance(part, dict))


def reply_to(request: SeenRequest) -> ScriptedReply:
    messages = request.body.get("messages", [])
    users = [at for at, message in enumerate(messages) if re.search(r"\[\[\w+\]\]", texts(message))]
    tag = re.findall(r"\[\[(\w+)\]\]", texts(messages[users[-1]]))[-1] if users else ""
    has_results = bool(users) and any(message["role"] == "tool" for message in messages[users[-1] :])
    tools = {each["function"]["name"] for each in request.body.get("tools") or ()}
    # smolagents ends a turn by a call of this tool, and by nothing else.
    end = (ToolCall("call_final", "final_answer", '{"answer": "ok"}'),) if "final_answer" in tools else ()
    plain = {
        "slow": ScriptedReply(words(SLOW_CHUNKS), interval=0.05),
        "silent": hang_before_first_byte(),
        "hang": ScriptedReply(("one ", "two ", "three ", "four ", "five ", "six"), fault="hang", after=5),
        "brief": ScriptedReply(words(BRIEF_CHUNKS), end, interval=BRIEF_INTERVAL),
        "chunks": ScriptedReply(words(CHUNKS), end),
    }
    if tag in plain:
        return plain[tag]
    if tag in CALLS and not has_results:
        return tool_calls([ToolCall(f"call_{n}", f"{tag}_tool", json.dumps({"n": n})) for n in range(CALLS[tag])])
    return tool_calls(end) if end else answer("ok")


def main() -> None:
    pages = {"/v1/models": {"object": "list", "data": [{"id": "gpt-4o-mini", "object": "model"}]}}
    with FakeProvider(default=reply_to, pages=pages) as provider:
        print(json.dumps({"url": provider.openai_url}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "wait_requests":
                try:
                    seen = provider.wait_for_request(command["n"], command["timeout"])
                    print(json.dumps({"received": seen.received}), flush=True)
                except TimeoutError:
                    print(json.dumps({"received": None}), flush=True)
            else:
                fields = ("received", "finished", "closed", "pieces", "body", "path")
                requests = [{name: getattr(each, name) for name in fields} for each in provider.requests]
                print(json.dumps({"requests": requests[command["first"] :]}), flush=True)


if __name__ == "__main__":
    main()
