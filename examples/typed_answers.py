"""Answers as values of a dataclass. One that does not fit goes back to the model with the error."""

from dataclasses import dataclass
from typing import Literal

from halter import Agent
from halter.testing import ScriptedModel


@dataclass
class Ticket:
    """What a customer wants."""

    kind: Literal["bug", "question", "praise"]
    urgent: bool
    summary: str


model = ScriptedModel(  # or "openai:gpt-5"
    '{"kind": "complaint", "urgent": true, "summary": "It does not stop."}',
    '{"kind": "bug", "urgent": true, "summary": "It does not stop."}',
)
with Agent(model, output=Ticket).session() as session:
    ticket = session.run("I pressed stop, and it just went on!").raise_for_error().output
    print(f"{ticket.kind}, {'urgent' if ticket.urgent else 'can wait'}: {ticket.summary}")
    print(f"{len(model.requests)} requests")
