"""What requests cost, in USD.

A price is the user's own, or the model's own attribute `price`, or that of the package `genai-prices` (the extra
`prices`), which knows the list prices of many providers. It finds the provider by the model's `base_url`, so a server
that it does not know has no price, whatever its models are called. What is not known is None, and never a guess.

`genai-prices` takes a while to import, so that is done on a thread, once, beside the first request that needs it.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.threads import pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halter.cancel.token import CancellationToken
    from halter.models.types import Model, ModelSettings, Usage

__all__ = ["Price", "Prices"]

_log = logging.getLogger(__name__)
_MILLION: Final = 1_000_000
_LOAD_TIMEOUT: Final = 10.0  # seconds; a process that was forked while the package was loaded would wait for ever
_LOCAL: Final = ("https://127.", "https://localhost", "https://[::1]")


class Price(Struct, frozen=True, gc=False):
    """The price of a model: USD for a million tokens.

    `cached` is for input that came from a cache and `cache_write` for input that was written to one; without them, both
    cost what other input costs. Reasoning is output.
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None

    def cost(self, usage: Usage) -> float:
        """What these tokens cost."""
        cached = self.input if self.cached is None else self.cached
        cache_write = self.input if self.cache_write is None else self.cache_write
        plain = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
        total = plain * self.input + usage.cached_tokens * cached + usage.cache_write_tokens * cache_write
        return (total + usage.output_tokens * self.output) / _MILLION


class Prices:
    """The prices that an agent knows. *own* are by the name of the model, and win over all others."""

    __slots__ = ("_own",)

    def __init__(self, own: Mapping[str, Price] | None = None) -> None:
        self._own = dict(own or {})

    def cost(self, model: Model, name: str, usage: Usage, settings: ModelSettings) -> float | None:
        """What *usage* of a model costs; None if that is not known, or not loaded yet. *name* is the provider's."""
        if not (usage.input_tokens or usage.output_tokens):
            return 0.0
        price = self._price(model, name)
        if price is not None:
            try:
                return price.cost(usage)
            except OverflowError:  # a count of hundreds of digits, from a server that is broken
                return None
        if "service_tier" in settings.extra:  # other tiers have other prices
            return None
        return _listed_cost(model, name, usage)

    async def load(self, models: Iterable[Model], token: CancellationToken) -> None:
        """Wait until the prices of these models are loaded, or *token* is cancelled."""
        if self.start_loading(models):
            await _listed.loaded.wait_async(_LOAD_TIMEOUT, token=token)

    def start_loading(self, models: Iterable[Model]) -> bool:
        """Load the prices of these models if they need it, without waiting; False if there is nothing to wait for."""
        if _listed.loaded.is_set or all(self._price(each, "") or not _base_url(each) for each in models):
            return False
        _listed.start()
        return True

    def _price(self, model: Model, name: str) -> Price | None:
        price = self._own.get(model.name) or self._own.get(name) or getattr(model, "price", None)
        return price if isinstance(price, Price) else None


def _base_url(model: Model) -> str:
    """The public address of a model's provider; empty if it has none."""
    url = getattr(model, "base_url", "")
    return url if isinstance(url, str) and url.startswith("https://") and not url.startswith(_LOCAL) else ""


class _ListedPrices:
    """The package `genai-prices`, once it is loaded."""

    def __init__(self) -> None:
        self.loaded = OneShotEvent()
        self.package: Any = None  # None also if it is not installed
        self._lock = threading.Lock()
        self._is_started = False

    def start(self) -> None:
        with self._lock:
            is_first, self._is_started = not self._is_started, True
        if is_first:
            pool.submit(self._load)

    def _load(self) -> None:
        """Import it, with its data. A boundary: without prices, costs are not known, and nothing else."""
        try:
            import genai_prices
            from genai_prices.data_snapshot import get_snapshot

            get_snapshot()
            self.package = genai_prices
        except ImportError:
            _log.debug("genai-prices is not installed, so costs are not known")
        except Exception:  # noqa: BLE001
            _log.exception("genai-prices could not be loaded, so costs are not known")
        finally:
            self.loaded.set()


_listed: Final = _ListedPrices()


def _listed_cost(model: Model, name: str, usage: Usage) -> float | None:
    """The cost by list prices. A boundary: the package may refuse what a provider reports."""
    package, url = _listed.package, _base_url(model)
    if package is None or not url:
        return None
    used = package.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    for each in dict.fromkeys((name, model.name)):
        try:
            return float(package.calc_price(used, each, provider_api_url=url).total_price)
        except LookupError:
            continue
        except Exception:  # noqa: BLE001
            _log.exception("genai-prices has failed for %s", each)
            return None
    return None
