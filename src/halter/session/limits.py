"""The limits of a turn, checked before each of its requests. The deadline is not here: the turn's token has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.errors import LimitReached, UnknownPrice
from halter.models.types import Usage

if TYPE_CHECKING:
    from halter.agent import Agent
    from halter.session.turn import Turn

__all__ = ["check_cost", "check_tokens"]


def check_tokens(agent: Agent, usage: Usage) -> None:
    """Raise `LimitReached` if the turn has used its tokens."""
    limit, used = agent.limits.tokens, usage.input_tokens + usage.output_tokens
    if limit is not None and used >= limit:
        raise LimitReached(
            f"the turn used {used} of {limit} tokens and was not done; run() continues it", "token_limit"
        )


async def check_cost(agent: Agent, turn: Turn) -> None:
    """Raise `LimitReached` if the turn has cost too much, `UnknownPrice` if that cannot be known."""
    limit = agent.limits.cost
    if limit is None:
        return
    models = [agent.model, *agent.fallbacks]
    await agent.prices.load(models, turn.token)
    turn.token.raise_if_cancelled()
    one = Usage(input_tokens=1, output_tokens=1)
    unknown = [each.name for each in models if agent.prices.cost(each, each.name, one, agent.settings) is None]
    if unknown:
        raise UnknownPrice(
            f"the price of {unknown[0]!r} is not known, so the limit of ${limit:g} cannot be kept: install the extra "
            f"`prices`, or pass Agent(prices={{{unknown[0]!r}: Price(input=…, output=…)}})"
        )
    if turn.usage.cost is None:
        raise UnknownPrice(
            f"what the turn has cost so far is not known, so the limit of ${limit:g} cannot be kept; a sub-agent has a "
            "model without a known price: pass Agent(prices=…) there"
        )
    if turn.usage.cost >= limit:
        raise LimitReached(
            f"the turn cost ${turn.usage.cost:.4f} of ${limit:g} and was not done; run() continues it", "cost_limit"
        )
