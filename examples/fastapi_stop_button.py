"""A stop button in FastAPI: one route asks, another stops. If the client goes away, its turn ends too.

uvicorn fastapi_stop_button:app
curl -N -X POST 'localhost:8000/ask/anna?text=Tell+me+a+story'
curl -X POST localhost:8000/stop/anna          # from another terminal
"""

import json
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from halter import Agent, Session
from halter.asgi import stop_on_disconnect
from halter.testing import Gate, ScriptedModel

silence = Gate()
model = ScriptedModel(["Once upon a time ", silence], "I am listening.")  # yours: "openai:gpt-5"
agent = Agent(model)
sessions: dict[str, Session] = {}  # yours, beside it: store = halter.stores.SQLiteStore("sessions.db")
app = FastAPI()


def session_of(user: str) -> Session:
    if user not in sessions:
        sessions[user] = agent.session()  # yours: agent.session(user, store)
    return sessions[user]


@app.post("/ask/{user}")
async def ask(user: str, text: str, request: Request) -> StreamingResponse:
    session = session_of(user)

    async def answer() -> AsyncIterator[str]:
        async with stop_on_disconnect(request):
            async for event in session.stream(text):
                if event.kind == "text.delta":
                    yield json.dumps({"text": event.data.text}) + "\n"
                elif event.kind == "turn.finished":
                    yield json.dumps({"status": event.data.status, "reason": event.data.reason}) + "\n"

    return StreamingResponse(answer(), media_type="application/x-ndjson")


@app.post("/stop/{user}")
async def stop(user: str) -> dict[str, bool]:
    receipt = await sessions[user].astop() if user in sessions else None
    return {"stopped": receipt is not None and receipt.stopped}
