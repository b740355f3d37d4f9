"""Generated streams: what providers send, and what servers that imitate them send, from a seed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

WORDS = [
    "plain",
    " words",
    "\n",
    "\r\n",
    "é",
    "日本語",
    "🐎",
    "\u2028",
    '"quoted"',
    "\\",
    "data: x",
    "[DONE]",
    "</x>",
    "\t",
    " ",
]
ENDS = [b"\n", b"\r\n", b"\r"]


@dataclass
class Expected:
    """What a stream says, known to its generator."""

    text: str = ""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    error: str = ""


def words(rng: Random, least: int = 0) -> str:
    """Make a text that is not easy to carry."""
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(least, 6)))


def split(rng: Random, text: str) -> list[str]:
    """Split a text anywhere."""
    pieces = []
    while text:
        size = rng.randint(1, max(1, min(len(text), 9)))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def split_bytes(rng: Random, data: bytes) -> list[bytes]:
    """Split bytes anywhere: one by one, in a piece, or at random."""
    mode = rng.random()
    if mode < 0.1:
        return [data]
    if mode < 0.2:
        return [bytes([byte]) for byte in data]
    pieces = []
    while data:
        size = rng.randint(1, rng.choice([3, 40, 400]))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def arguments(rng: Random) -> dict[str, Any]:
    """Make arguments of a call."""
    values = [words(rng), rng.randint(-9, 9), None, True, [words(rng)], {"deep": words(rng)}, 1.5]
    return {f"k{number}": rng.choice(values) for number in range(rng.randint(0, 3))}


def write(rng: Random, events: list[tuple[str, dict[str, Any] | str]], end: bytes) -> bytes:
    """Write events as bytes, with the freedoms that the format gives."""
    out = bytearray()
    # The SDKs keep an id for ever and then take a lone empty line for an event, which the standard does not.
    ids = rng.random() < 0.2
    for name, data in events:
        if rng.random() < 0.2:
            out += rng.choice([b": keep-alive", b":", b": OPENROUTER PROCESSING"]) + end
            if not ids and rng.random() < 0.5:
                out += end
        if name:
            out += b"event:" + rng.choice([b"", b" "]) + name.encode() + end
        pretty = not isinstance(data, str) and rng.random() < 0.1
        text = (
            data
            if isinstance(data, str)
            else json.dumps(data, indent=1 if pretty else None, ensure_ascii=rng.random() < 0.5)
        )
        for line in text.split("\n"):
            out += b"data:" + rng.choice([b"", b" "] if not pretty else [b" "]) + line.encode() + end
        if ids:
            out += b"id: 7" + end + b"unknown: field" + end
        out += end
    return bytes(out)


def openai_stream(rng: Random) -> tuple[list[tuple[str, dict[str, Any] | str]], Expected]:
    """Make a stream of chat completion chunks."""
    expected = Expected()
    deltas: list[dict[str, Any]] = []
    for piece in split(rng, words(rng)):
        expected.text += piece
        deltas.append({"content": piece})
    queues = []
    for index in range(rng.choice([0, 0, 1, 2, 3])):
        call = (f"call_{index}_{rng.randint(0, 999)}", f"tool{index}", arguments(rng))
        expected.calls.append(call)
        start: dict[str, Any] = {
            "index": index,
            "id": call[0],
            "type": "function",
            "function": {"name": call[1], "arguments": ""},
        }
        text = json.dumps(call[2])
        if rng.random() < 0.2:
            start["function"]["arguments"], text = text, ""
        queues.append([start] + [{"index": index, "function": {"arguments": piece}} for piece in split(rng, text)])
    interleave = rng.random() < 0.3
    if interleave:
        deltas += [{"tool_calls": [queue.pop(0)]} for queue in queues]
    while any(queues):
        queue = rng.choice([queue for queue in queues if queue]) if interleave else next(filter(None, queues))
        deltas.append({"tool_calls": [queue.pop(0)]})
    chunks = [{"role": "assistant", "content": rng.choice(["", None])}, *deltas]
    finish = (
        rng.choice(["length", "content_filter"]) if rng.random() < 0.1 else "tool_calls" if expected.calls else "stop"
    )
    events: list[tuple[str, dict[str, Any] | str]] = [("", _chunk(rng, delta)) for delta in chunks]
    if rng.random() < 0.1:
        expected.error = words(rng, 1).strip() or "overloaded"
        place = rng.randint(1, len(events))
        del events[place:]
        events.append(("", {"error": {"message": expected.error, "type": "server_error", "code": None}}))
        return events, expected
    events.append(("", _chunk(rng, {}, finish)))
    if rng.random() < 0.7:
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": None}
        events.append(("", _chunk(rng, None) | {"usage": usage}))
    events.append(("", "[DONE]"))
    return events, expected


def _chunk(rng: Random, delta: dict[str, Any] | None, finish: str | None = None) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    if delta is not None:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        if rng.random() < 0.3:
            choices[0] |= {"logprobs": None, "unknown_to_all": {"a": [1, None]}}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    if rng.random() < 0.3:
        chunk |= {"system_fingerprint": None, "obfuscation": "abc", "usage": None}
    return chunk


def anthropic_stream(rng: Random) -> tuple[list[tuple[str, dict[str, Any] | str]], Expected]:
    """Make a stream of message events."""
    expected = Expected()
    message: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    message |= {"stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    kinds = [rng.choice(["text", "tool", "thinking", "redacted"]) for _ in range(rng.randint(0, 4))]
    for index, kind in enumerate(kinds):
        events += _block(rng, index, kind, expected)
        if rng.random() < 0.3:
            events.append({"type": "ping"})
    if rng.random() < 0.1:
        expected.error = words(rng, 1).strip() or "Overloaded"
        del events[rng.randint(1, len(events)) :]
        events.append({"type": "error", "error": {"type": "overloaded_error", "message": expected.error}})
    else:
        stop = "tool_use" if expected.calls else rng.choice(["end_turn", "max_tokens", "stop_sequence"])
        usage = {"output_tokens": 9, "unknown": 1}
        events.append({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage})
        events.append({"type": "message_stop"})
    return [(event["type"], event) for event in events], expected


def _block(rng: Random, index: int, kind: str, expected: Expected) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    if kind == "text":
        block: dict[str, Any] = {"type": "text", "text": ""}
        for piece in split(rng, words(rng, 1)):
            expected.text += piece
            deltas.append({"type": "text_delta", "text": piece})
    elif kind == "tool":
        call = (f"toolu_{index}", f"tool{index}", arguments(rng))
        expected.calls.append(call)
        block = {"type": "tool_use", "id": call[0], "name": call[1], "input": {}}
        if call[2] or rng.random() < 0.5:
            deltas = [
                {"type": "input_json_delta", "partial_json": piece} for piece in ["", *split(rng, json.dumps(call[2]))]
            ]
    elif kind == "thinking":
        block = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in split(rng, words(rng, 1))]
        deltas.append({"type": "signature_delta", "signature": "c2lnbmVk"})
    else:
        block = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def responses_stream(rng: Random) -> tuple[list[tuple[str, dict[str, Any] | str]], Expected]:
    """Make a stream of the Responses API."""
    expected = Expected()
    shell: dict[str, Any] = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress"}
    shell |= {"output": [], "error": None, "incomplete_details": None, "tools": [], "parallel_tool_calls": True}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": shell}]
    items: list[dict[str, Any]] = []
    for index in range(rng.randint(0, 4)):
        item, middle = _item(rng, index, rng.choice(["message", "refusal", "call", "reasoning"]), expected)
        items.append(item)
        begun = item | {key: type(item[key])() for key in ("content", "summary", "arguments") if key in item}
        if "encrypted_content" in item:
            begun["encrypted_content"] = "incomplete"
        events.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        events += [event | {"output_index": index, "item_id": item["id"]} for event in middle]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    if rng.random() < 0.1:
        expected.error = words(rng, 1).strip() or "overloaded"
        del events[rng.randint(1, len(events)) :]
        error = {"code": "server_error", "message": expected.error}
        if rng.random() < 0.5:
            events.append({"type": "response.failed", "response": shell | {"status": "failed", "error": error}})
        else:
            events.append({"type": "error", "param": None} | error)
    else:
        usage = {"input_tokens": 5, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 3}, "unknown": 1}
        done = shell | {"status": "completed", "output": items, "usage": usage}
        events.append({"type": "response.completed", "response": done})
    return [(event["type"], event | {"sequence_number": number}) for number, event in enumerate(events)], expected


def _item(rng: Random, index: int, kind: str, expected: Expected) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One item of an output, and the events between its start and its end."""
    if kind == "call":
        call = (f"call_{index}", f"tool{index}", arguments(rng))
        expected.calls.append(call)
        text = json.dumps(call[2])
        item: dict[str, Any] = {"type": "function_call", "id": f"fc_{index}", "call_id": call[0], "name": call[1]}
        name = "response.function_call_arguments.delta"
        return item | {"arguments": text, "status": "completed"}, [
            {"type": name, "delta": piece} for piece in split(rng, text)
        ]
    text = words(rng, 1)
    if kind == "reasoning":
        item = {"type": "reasoning", "id": f"rs_{index}", "encrypted_content": f"secret{index}"}
        name = "response.reasoning_summary_text.delta"
        deltas = [{"type": name, "summary_index": 0, "delta": piece} for piece in split(rng, text)]
        return item | {"summary": [{"type": "summary_text", "text": text}]}, deltas
    what, key = ("output_text", "text") if kind == "message" else ("refusal", "refusal")
    part = {"type": what, key: text}
    expected.text += f"\n\n{text}" if expected.text else text
    item = {"type": "message", "id": f"msg_{index}", "role": "assistant", "status": "completed", "content": [part]}
    added = {"type": "response.content_part.added", "content_index": 0, "part": part | {key: ""}}
    delta = {"type": f"response.{what}.delta", "content_index": 0, "logprobs": []}
    return item, [added, *(delta | {"delta": piece} for piece in split(rng, text))]


def gemini_stream(rng: Random) -> tuple[list[tuple[str, dict[str, Any] | str]], Expected]:
    """Make a stream of Gemini's own API."""
    expected = Expected()
    parts: list[dict[str, Any]] = []
    for index in range(rng.randint(0, 4)):
        kind = rng.choice(["text", "thought", "call", "signed"])
        if kind == "call":
            call = (f"id_{index}", f"tool{index}", arguments(rng))
            expected.calls.append(call)
            part: dict[str, Any] = {"functionCall": {"id": call[0], "name": call[1], "args": call[2]}}
            parts.append(part if rng.random() < 0.5 else part | {"thoughtSignature": "c2lnbmVk"})
            continue
        pieces = [{"text": piece} for piece in split(rng, words(rng, 1))]
        if kind == "thought":
            pieces = [piece | {"thought": True} for piece in pieces]
        else:
            expected.text += "".join(piece["text"] for piece in pieces)
        if kind == "signed":
            pieces.append({"text": "", "thoughtSignature": "dGV4dA=="})
        parts += pieces
    chunks: list[dict[str, Any]] = []
    while parts:
        size = rng.randint(1, 3)
        content = {"role": "model", "parts": parts[:size]}
        chunks.append({"candidates": [{"content": content, "index": 0}], "modelVersion": "m"})
        parts = parts[size:]
    if rng.random() < 0.1:
        expected.error = words(rng, 1).strip() or "overloaded"
        del chunks[rng.randint(0, len(chunks)) :]
        chunks.append({"error": {"code": 503, "message": expected.error, "status": "UNAVAILABLE"}})
    else:
        usage = {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}
        candidate = {"content": {"role": "model", "parts": []}, "finishReason": rng.choice(["STOP", "MAX_TOKENS"])}
        chunks.append({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m"})
    return [("", chunk) for chunk in chunks], expected
