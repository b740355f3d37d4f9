"""What a client asks for, in either protocol of OpenAI."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halter.gateway.http.errors import Problem

if TYPE_CHECKING:
    from halter.gateway.openai.conversation import SentConversation
    from halter.gateway.openai.requested_output import RequestedOutput

__all__ = ["TurnRequest", "refuse_tools"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A turn to run. `has_usage`: a stream of chat completions ends with the usage."""

    model: str
    conversation: SentConversation
    instructions: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # fields of `ModelSettings`
    output: RequestedOutput | None = None  # what the answer has to be; None: text
    is_streamed: bool = False
    has_usage: bool = False


def refuse_tools(tools: list[Any] | None, choice: object, name: str) -> None:
    """Raise `Problem` if the client wants the model to call its own tools."""
    if tools and choice != "none":
        msg = f'the agent has its own tools, which the gateway runs: leave out {name}, or set the choice to "none"'
        raise Problem(422, msg, field=name, kind="tools")
