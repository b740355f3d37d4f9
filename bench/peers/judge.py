"""What the request after a stop says: is the history valid, and is what was seen and said still in it."""

from __future__ import annotations

import json

__all__ = ["all_text", "defects_of"]


def content_text(message: dict) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or () if isinstance(part, dict))


def all_text(messages: list[dict], role: str = "") -> str:
    return "\n".join(content_text(message) for message in messages if not role or message.get("role") == role)


def defects_of(messages: list[dict]) -> list[str]:
    """Why OpenAI's chat completions would refuse these messages; nothing if they are valid."""
    found = []
    open_calls: set[str] = set()
    for message in messages:
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                found.append("a tool result without its call")
            open_calls.discard(message.get("tool_call_id"))
            continue
        if open_calls:
            found.append(f"{len(open_calls)} tool calls without a result")
            open_calls = set()
        if role == "assistant":
            calls = message.get("tool_calls") or []
            open_calls = {call["id"] for call in calls}
            for call in calls:
                try:
                    json.loads(call["function"]["arguments"])
                except ValueError:
                    found.append("arguments that are not JSON")
            if not calls and not content_text(message) and not message.get("refusal"):
                found.append("an assistant message without content")
    if open_calls:
        found.append(f"{len(open_calls)} tool calls without a result")
    return found
