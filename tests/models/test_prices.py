"""Prices: one's own, a model's, those of genai-prices; and None where nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from halter import CancellationToken
from halter.models import AnthropicModel, LocalModel, ModelSettings, OpenAIModel, Price, Usage
from halter.models.prices import Prices
from halter.testing import ScriptedModel
from tests.support.priced_models import not_installed
from tests.support.wires import run

genai_prices = pytest.importorskip("genai_prices")

PLAIN = ModelSettings()
USED = Usage(input_tokens=1_000, output_tokens=100, cached_tokens=200, cache_write_tokens=300)
OPENAI = "https://api.openai.com/v1"


def cost_of(model: Any, prices: Prices | None = None, *, name: str = "", settings: ModelSettings = PLAIN) -> Any:
    prices = prices or Prices()
    run(prices.load([model], CancellationToken()))
    return prices.cost(model, name or model.name, USED, settings)


def test_a_price_is_for_a_million_tokens() -> None:
    """Cached input and input that is written to a cache have prices of their own, or that of other input."""
    assert Price(1.0, 10.0).cost(USED) == pytest.approx((1_000 * 1.0 + 100 * 10.0) / 1e6)
    price = Price(input=1.0, output=10.0, cached=0.1, cache_write=2.0)
    assert price.cost(USED) == pytest.approx((500 * 1.0 + 200 * 0.1 + 300 * 2.0 + 100 * 10.0) / 1e6)


def test_a_count_that_is_nonsense_has_no_price() -> None:
    """A server that counted 400 digits of tokens made the turn fail with OverflowError."""
    prices = Prices({"m": Price(1.0, 1.0)})
    assert prices.cost(ScriptedModel(), "m", Usage(input_tokens=10**400), PLAIN) is None


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        (OpenAIModel("gpt-4o", base_url=OPENAI), "openai"),
        (AnthropicModel("claude-sonnet-4-5", base_url="https://api.anthropic.com"), "anthropic"),
    ],
)
def test_list_prices(model: Any, provider: str) -> None:
    """The price is that of genai-prices for the provider behind the model's address."""
    used = genai_prices.Usage(input_tokens=1_000, output_tokens=100, cache_read_tokens=200, cache_write_tokens=300)
    expected = genai_prices.calc_price(used, model.name, provider_id=provider).total_price
    assert cost_of(model) == pytest.approx(float(expected))
    assert cost_of(model) > 0


def test_the_providers_name_of_a_model_counts_too() -> None:
    """A gateway's own name for a model is not known, but the name that came with the answer is."""
    assert cost_of(OpenAIModel("my-alias", base_url=OPENAI), name="gpt-4o") > 0


@pytest.mark.parametrize(
    "model",
    [
        OpenAIModel("no-such-model", base_url=OPENAI),
        OpenAIModel("gpt-4o", base_url="http://127.0.0.1:9/v1"),
        OpenAIModel("gpt-4o", base_url="https://127.0.0.1:9/v1"),
        OpenAIModel("gpt-4o", base_url="https://models.example.com/v1"),
        ScriptedModel(name="gpt-4o"),
    ],
)
def test_what_is_not_known_is_none(model: Any) -> None:
    """A known name on an unknown server is no reason to guess."""
    assert cost_of(model) is None


def test_another_service_tier_has_another_price() -> None:
    """A request for another tier is not priced by the list; one's own price still is."""
    model = OpenAIModel("gpt-4o", base_url=OPENAI)
    flex = ModelSettings(extra={"service_tier": "flex"})
    assert cost_of(model, settings=flex) is None
    assert cost_of(model, Prices({"gpt-4o": Price(1.0, 1.0)}), settings=flex) is not None


def test_own_prices_win() -> None:
    """By the agent's name of the model, or the provider's; then comes the price of the model itself."""
    model = OpenAIModel("gpt-4o", base_url=OPENAI)
    own = Price(1_000.0, 0.0)
    assert cost_of(model, Prices({"gpt-4o": own})) == 1.0
    assert cost_of(model, Prices({"gpt-4o-2024-08-06": own}), name="gpt-4o-2024-08-06") == 1.0
    assert cost_of(LocalModel("any.gguf")) == 0.0
    assert cost_of(LocalModel("any.gguf"), Prices({"any": own})) == 1.0


def test_nothing_costs_nothing() -> None:
    """No tokens cost nothing, whatever the price would be."""
    assert Prices().cost(ScriptedModel(), "x", Usage(), PLAIN) == 0.0


def test_without_the_package_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `prices` is not needed: without it costs are None, and one's own prices work."""
    not_installed(monkeypatch)
    model = OpenAIModel("gpt-4o", base_url=OPENAI)
    assert cost_of(model) is None
    assert cost_of(model, Prices({"gpt-4o": Price(1_000.0, 0.0)})) == 1.0


def test_usage_adds_up() -> None:
    """A sum is known if all its parts are, and an estimate if one of them is."""
    one, two = Usage(1, 2, 3, 4, 5, cost=0.5), Usage(10, 20, 30, 40, 50, cost=0.25, is_estimated=True)
    assert one + two == Usage(11, 22, 33, 44, 55, cost=0.75, is_estimated=True)
    assert (one + Usage(1)).cost is None
    assert one + Usage() == one
    assert (Usage() + Usage()).cost == 0.0
