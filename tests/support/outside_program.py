"""A program as users write it: `scripts/release` checks its types with mypy and pyright, against the wheel."""

from __future__ import annotations

from dataclasses import dataclass

from halter import Agent, CancellationToken, Limits, Receipt, Session, ToolContext, Turn, run_blocking, tool
from halter.models import OpenAIModel, ToolCall
from halter.stores import SQLiteStore
from halter.testing import ScriptedModel


@dataclass
class Review:
    """What a customer thinks."""

    mood: str


@tool
def add(a: int, b: int, ctx: ToolContext) -> int:
    """Add two numbers."""
    ctx.report("adding")
    return a + b


def length(text: str) -> int:
    return len(text)


def main() -> None:
    """Use what the README uses."""
    token: CancellationToken = CancellationToken(timeout=5.0)
    number: int = run_blocking(length, "text", token=token)
    assert number == 4
    model = ScriptedModel(ToolCall("1", "add", '{"a": 1, "b": 2}'), "Three.")
    agent = Agent(model, [add], instructions="Be brief.", limits=Limits(seconds=60), output=str)
    with agent.session() as session:
        opened: Session = session
        receipt: Receipt = opened.queue("Hello.")
        turn: Turn = opened.run()
        text: str = turn.text
        print(text, receipt.state, [outcome.status for outcome in turn.outcomes])


def others(path: str) -> Session:
    """Use what needs a network, without running it."""
    model = OpenAIModel("gpt-5", api_key="none")
    return Agent(model, output=Review).session("id", SQLiteStore(path))


if __name__ == "__main__":
    main()
