"""What a running turn has used, and its limits, checked before each request. The deadline is the turn's token's.

A sub-agent's turn is part of the turn that has started it, also while it runs: before each of its requests the limits
of all turns above it are checked, too. So no turn spends more than its limit and one request of each running sub-agent.
A sub-agent in the background keeps the limits of the turn that has started it after that has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.errors import LimitReached, UnknownPrice
from halter.models.types import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.agent import Agent
    from halter.cancel.token import CancellationToken

__all__ = ["Spending"]


class Spending:
    """What one turn has used so far, with its sub-agents. Any thread may read it."""

    __slots__ = ("_above", "_agent", "_children", "_own")

    def __init__(self, agent: Agent, above: Spending | None = None) -> None:
        """*above* is that of the turn that has started this sub-agent."""
        self._agent = agent
        self._above = above
        self._children: list[Spending] = []  # only appended to, also from other threads
        self._own = Usage(cost=0.0)
        if above is not None:
            above._children.append(self)

    @property
    def total(self) -> Usage:
        """What the turn has used, with all of its sub-agents."""
        total = self._own
        for child in list(self._children):
            total += child.total
        return total

    def add(self, usage: Usage) -> None:
        """Count a request that has ended. Only the turn's own task calls this."""
        self._own += usage

    async def check(self, token: CancellationToken) -> None:
        """Raise `LimitReached` if this turn or one above has used enough, `UnknownPrice` if that cannot be known."""
        chain = list(self._chain())
        costs = [each._agent.limits.cost for each in chain if each._agent.limits.cost is not None]
        if costs:
            await self._check_prices(costs[0], token)
        for each in chain:
            whose = "the turn" if each is self else "the turn that started this sub-agent"
            each._check_tokens(whose)
            each._check_cost(whose)

    def _chain(self) -> Iterator[Spending]:
        spending: Spending | None = self
        while spending is not None:
            yield spending
            spending = spending._above

    def _check_tokens(self, whose: str) -> None:
        limit = self._agent.limits.tokens
        if limit is None:
            return
        total = self.total
        used = total.input_tokens + total.output_tokens
        if used >= limit:
            raise LimitReached(
                f"{whose} used {used} of {limit} tokens and was not done; run() continues it", "token_limit"
            )

    async def _check_prices(self, limit: float, token: CancellationToken) -> None:
        """Refuse models without a known price: their cost could not be limited."""
        agent = self._agent
        models = [agent.model, *agent.fallbacks]
        await agent.prices.load(models, token)
        token.raise_if_cancelled()
        one = Usage(input_tokens=1, output_tokens=1)
        unknown = [each.name for each in models if agent.prices.cost(each, each.name, one, agent.settings) is None]
        if unknown:
            raise UnknownPrice(
                f"the price of {unknown[0]!r} is not known, so the limit of ${limit:g} cannot be kept: install the "
                f"extra `prices`, or pass Agent(prices={{{unknown[0]!r}: Price(input=…, output=…)}})"
            )

    def _check_cost(self, whose: str) -> None:
        limit = self._agent.limits.cost
        if limit is None:
            return
        cost = self.total.cost
        if cost is None:
            raise UnknownPrice(
                f"what {whose} has cost so far is not known, so the limit of ${limit:g} cannot be kept: the provider "
                "answered with a model without a known price; pass Agent(prices=…)"
            )
        if cost >= limit:
            raise LimitReached(
                f"{whose} cost ${cost:.4f} of ${limit:g} and was not done; run() continues it", "cost_limit"
            )
