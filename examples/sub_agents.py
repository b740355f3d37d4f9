"""An agent that asks two others at once. A stop of its turn stops them too, whatever they are doing."""

from halter import Agent
from halter.models import ToolCall
from halter.testing import ScriptedModel
from halter.toolbox import Delegate

historian = Agent(ScriptedModel("Founded in 43 BC."), name="historian", instructions="You know dates.")
geographer = Agent(ScriptedModel("On the Rhône."), name="geographer", instructions="You know places.")
team = Delegate([historian, geographer])

tasks = '{"tasks": [{"agent": "historian", "task": "Lyon?"}, {"agent": "geographer", "task": "Lyon?"}]}'
model = ScriptedModel(ToolCall("1", "delegate", tasks), "Lyon: founded in 43 BC, on the Rhône.")  # or "openai:gpt-5"

with Agent(model, team.tools).session() as session:
    for event in session.stream_sync("Tell me about Lyon."):
        if event.kind == "child.started":
            print(f"asked: {event.data.agent}")
    print(session.turn.text)
