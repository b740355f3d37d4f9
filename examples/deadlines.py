"""Deadlines: of a turn, of one call, and of everything below a token of yours."""

import time

from halter import Agent, CancellationToken, Limits, tool
from halter.models import ToolCall
from halter.testing import Gate, ScriptedModel


@tool(timeout=0.3)
def slow_search(query: str) -> str:
    """Search for something, slowly."""
    time.sleep(5)
    return f"nothing about {query}"


# One call: it times out, the turn goes on, and the model is told.
model = ScriptedModel(ToolCall("1", "slow_search", '{"query": "halters"}'), "The search took too long.")
with Agent(model, [slow_search]).session() as session:
    turn = session.run("Search for halters.")
    print(turn.outcomes[0].status, "|", turn.text)

# One turn: at its deadline everything stops, and what there was is kept.
model = ScriptedModel(["Let me think. ", Gate()])  # a model that falls silent
with Agent(model, limits=Limits(seconds=3)).session() as session:
    turn = session.run("Think.")
    print(turn.status, turn.reason, "|", turn.text)

# A token of yours: it ends every turn, request and process that is begun below it.
request = CancellationToken(timeout=0.3)
model = ScriptedModel(["Let me think. ", Gate()])
with request.bind(), Agent(model).session() as session:
    turn = session.run("Think.")
    print(turn.status, turn.reason)
