"""Tests of a tool and of an agent, without a provider: run this file, or let pytest find its tests."""

from halter import Agent, ToolContext, tool
from halter.models import OpenAIModel, ToolCall
from halter.testing import FakeProvider, ScriptedModel, answer, interrupt_everywhere, status

saved: list[str] = []


@tool
def save(text: str, ctx: ToolContext) -> str:
    """Save a text, completely or not at all."""
    ctx.token.raise_if_cancelled()
    saved.append(text)
    return "saved"


def agent(model):
    return Agent(model, [save], instructions="You save what you are told.")


def test_the_agent_saves():
    """With a model that follows a script, a turn is exact, and needs no network."""
    model = ScriptedModel(ToolCall("1", "save", '{"text": "milk"}'), "I have saved it.")
    with agent(model).session() as session:
        assert session.run("Save milk.").text == "I have saved it."
    assert saved.pop() == "milk"
    assert model.requests[0].instructions == "You save what you are told."


def test_a_stop_at_every_point_leaves_all_or_nothing():
    """The same turn again and again, with a stop at another point each time."""

    def scenario(token):
        model = ScriptedModel(ToolCall("1", "save", '{"text": "milk"}'), "I have saved it.")
        with token.bind(), agent(model).session() as session:
            turn = session.run("Save milk.")
            kept = [outcome for outcome in turn.outcomes if outcome.status == "completed"]
            assert len(kept) <= len(saved)
            saved.clear()

    report = interrupt_everywhere(scenario, repeat=1)
    print(f"stopped at {len(report.points)} points")


def test_an_overloaded_provider_is_asked_again():
    """A real server on this machine fails as it is told to, and records what it was sent."""
    with FakeProvider(status(529, retry_after=0.01), answer("Hello.")) as provider:
        with agent(OpenAIModel("any", base_url=provider.openai_url, api_key="none")).session() as session:
            assert session.run("Hi.").text == "Hello."
        assert len(provider.requests) == 2


if __name__ == "__main__":
    test_the_agent_saves()
    test_a_stop_at_every_point_leaves_all_or_nothing()
    test_an_overloaded_provider_is_asked_again()
    print("all passed")
