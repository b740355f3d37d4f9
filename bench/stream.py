"""CPU per streamed chunk, from the socket to a piece of text: bare aiohttp + msgspec, Halter, and the openai SDK.

Halter twice: the bare wire, `model.stream()`, and a whole request, `ModelCall`, with its token, watchdogs and the
answer put together, from the socket to the `text.delta` event. The goals are for the latter.

    python bench/stream.py [--chunks 5000] [--rounds 5] [--paced]

One server in a process of its own sends the same stream to all; only the client's CPU time is counted. Rounds are
interleaved and the best of each is taken. Goals: Halter at most 3 times bare, and the SDK at least 10 times Halter.
The server writes each event for itself, as fast as it can. With `--paced` it rests between events, so that each costs
the client a wake-up of its loop and a read: the operating system's price, the same for all, which hides the rest.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from halter.cancel import CancellationToken
from halter.models import ModelCall, ModelRequest, OpenAIModel, TextDelta, UserMessage, aclose_clients

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection

BARE_GOAL = 3.0
SDK_GOAL = 10.0


def serve(pipe: Connection, chunks: int, *, paced: bool) -> None:
    """Serve the stream, one write for each event."""
    asyncio.run(_serve(pipe, chunks, paced=paced))


async def _serve(pipe: Connection, chunks: int, *, paced: bool) -> None:
    events = _events(chunks)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        await reader.readexactly(int(lengths[0].partition(b":")[2]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in events:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.0002 if paced else 0)
        writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _events(chunks: int) -> list[bytes]:
    shell = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 0, "model": "bench"}

    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return b"data: " + json.dumps({**shell, "choices": [choice]}).encode() + b"\n\n"

    return [
        event({"role": "assistant", "content": ""}),
        *(event({"content": f" word{number}"}) for number in range(chunks)),
        event({}, "stop"),
        b"data: [DONE]\n\n",
    ]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


async def bare(url: str) -> int:
    """Read the stream with nothing but the two libraries that Halter stands on."""
    decode = msgspec.json.Decoder(_Chunk).decode
    size = 0
    body = {"model": "bench", "messages": [{"role": "user", "content": "go"}], "stream": True}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/chat/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                text = decode(line[6:]).choices[0].delta.content
                if text:
                    size += len(text)
    return size


async def wire(url: str) -> int:
    """Read it with Halter's wire alone."""
    model = OpenAIModel("bench", base_url=url, api_key="none")
    size = 0
    async for event in model.stream(ModelRequest([UserMessage.of("go")])):
        if isinstance(event, TextDelta):
            size += len(event.text)
    await aclose_clients()
    return size


async def request(url: str) -> int:
    """Read it as a turn does: a request under a token, its events handed on."""
    model = OpenAIModel("bench", base_url=url, api_key="none")
    size = 0

    def show(event: object) -> None:
        nonlocal size
        if isinstance(event, TextDelta):
            size += len(event.text)

    token = CancellationToken()
    answer = await ModelCall(model, ModelRequest([UserMessage.of("go")]), token=token, emit=show).run()
    if len(answer.text) != size:
        message = f"{size} characters were shown, and {len(answer.text)} are in the answer"
        raise SystemExit(message)
    await aclose_clients()
    return size


async def sdk(url: str) -> int:
    """Read it with OpenAI's own client."""
    from openai import AsyncOpenAI

    size = 0
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        stream = await client.chat.completions.create(
            model="bench", messages=[{"role": "user", "content": "go"}], stream=True
        )
        async for chunk in stream:
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                size += len(text)
    return size


def measure(client: Callable[[str], Awaitable[int]], url: str) -> tuple[float, int]:
    """Give the CPU seconds that one stream costs, and how much text it gave."""

    async def run() -> tuple[float, int]:
        started = time.process_time()
        size = await client(url)
        return time.process_time() - started, size

    return asyncio.run(run())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--paced", action="store_true")
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(theirs, options.chunks), kwargs={"paced": options.paced}, daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}"
    os.environ["NO_PROXY"] = "127.0.0.1"
    clients = {"bare aiohttp + msgspec": bare, "halter, wire": wire, "halter, request": request, "openai SDK": sdk}
    best: dict[str, float] = {}
    sizes: set[int] = set()
    for client in clients.values():
        measure(client, url)  # imports and first connections are not what is measured
    for _ in range(options.rounds):
        for name, client in clients.items():
            cpu, size = measure(client, url)
            best[name] = min(cpu, best.get(name, cpu))
            sizes.add(size)
    server.terminate()
    if len(sizes) != 1:
        message = f"the clients did not read the same text: {sizes} characters"
        raise SystemExit(message)
    unit = best["halter, request"]
    for name, cpu in best.items():
        print(f"{name:24} {cpu / options.chunks * 1e6:8.1f} µs CPU per chunk   {cpu / unit:6.2f} x halter, request")
    to_bare, to_sdk = unit / best["bare aiohttp + msgspec"], best["openai SDK"] / unit
    is_met = to_bare <= BARE_GOAL and to_sdk >= SDK_GOAL
    print(f"halter / bare = {to_bare:.2f} (goal: at most {BARE_GOAL:g})   {'ok' if to_bare <= BARE_GOAL else 'MISSED'}")
    print(f"SDK / halter  = {to_sdk:.1f} (goal: at least {SDK_GOAL:g})   {'ok' if to_sdk >= SDK_GOAL else 'MISSED'}")
    print("PASS" if is_met else "FAIL")
    if not is_met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
