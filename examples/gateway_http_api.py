"""The gateway in your own program, and its HTTP API: send a message, read the events, stop."""

import asyncio
import json
import secrets

import aiohttp

from halter import Agent
from halter.gateway import Gateway, Keys
from halter.stores import MemoryStore
from halter.testing import Gate, ScriptedModel

KEY = secrets.token_urlsafe(16)


async def events(http, path):
    """The events of a session, from the first one on; a client that comes back asks for those after its last."""
    async with http.get(f"{path}/events", timeout=aiohttp.ClientTimeout(total=None)) as stream:
        async for line in stream.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


async def client(url):
    path = "/v1/sessions/numbers"
    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {KEY}"}) as http:
        await http.post("/v1/sessions", json={"id": "numbers"})
        await http.post(f"{path}/messages", json={"id": "m1", "text": "Count."})  # once, also if it is sent again
        async for event in events(http, path):
            data = event["data"]
            if data["type"] == "text.delta":
                print(data["text"])
                async with http.post(f"{path}/stop", json={"wait": True}) as stopped:
                    print("stopped:", (await stopped.json())["stopped"])
            elif data["type"] == "turn.finished":
                print(data["status"], data["reason"])
                break


async def main():
    agent = Agent(ScriptedModel(["One, two, three …", Gate()]))  # or Agent("openai:gpt-5", toolbox.default("."))
    async with Gateway(agent, MemoryStore(), Keys(own=KEY)) as gateway:  # or SQLiteStore("sessions.db")
        await client(gateway.url)


asyncio.run(main())
