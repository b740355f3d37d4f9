"""A limit on what a turn may cost, with sub-agents. The turn ends with its reason, and a new one may go on."""

from halter import Agent, Limits, tool
from halter.models import Finished, Price, ToolCall, Usage
from halter.testing import ScriptedModel


@tool
def read_next_file() -> str:
    """Read the next file."""
    return "… and there are more."


def answer(number):
    return [ToolCall(str(number), "read_next_file", "{}"), Usage(input_tokens=40_000), Finished("tool_calls")]


model = ScriptedModel(*map(answer, range(20)), name="my-model")  # or "openai:gpt-5", with halter[prices]
agent = Agent(
    model,
    [read_next_file],
    prices={"my-model": Price(input=0.50, output=2.00)},  # USD for a million tokens
    limits=Limits(cost=0.05, seconds=60),
)
with agent.session() as session:
    turn = session.run("Read all files.")
    print(f"{turn.status}: {turn.reason}, after {len(turn.outcomes)} files and ${turn.usage.cost:.2f}")
    turn = session.run()  # somebody looked at it, and lets it go on
    print(f"{turn.status}: {turn.reason}; the session has cost ${session.usage.cost:.2f}")
