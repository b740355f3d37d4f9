"""How many tokens fit into a model's context: what is set on the model, what its server says, or a table of names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from halter.models.errors import ContextTooLong
    from halter.models.types import Model

__all__ = ["ask_context_window", "known_context_window", "own_context_window", "window_in_error"]

# By the beginning of the name, after a prefix such as "anthropic/": the first that fits counts. For models whose
# servers do not say it. Too much is corrected by the provider's refusal, and too little would refuse what fits: so only
# names whose models are alike. The input's limit where that is less than the whole context.
_TABLE: Final = (
    ("claude-", 200_000),
    ("gpt-5", 272_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
    ("gemini-", 1_048_576),
)
# As OpenAI and vLLM, Anthropic, and llama.cpp write it.
_IN_ERROR: Final = re.compile(
    r"maximum context length is (\d+)|tokens > (\d+) maximum|context (?:size|length|window)[^\d\n]{0,16}(\d+)|"
    r"\"n_ctx\":\s*(\d+)",
    re.IGNORECASE,
)


def own_context_window(model: Model) -> int | None:
    """The window that is set on the model, or that its server has said before; None if neither."""
    window: int | None = getattr(model, "context_window", None)
    return window


def known_context_window(model: Model) -> int | None:
    """The window as far as it is known without asking: the model's own, else by its name, else None."""
    return own_context_window(model) or _by_name(model.name)


async def ask_context_window(model: Model) -> int | None:
    """The model's window; asked of its server if the model has a method `ask_context_window()`. None if it is unknown.

    Ours is bounded; run it under a token, since a user's own may not be.
    """
    ask: Any = getattr(model, "ask_context_window", None)
    if own_context_window(model) is None and ask is not None:
        return await ask() or _by_name(model.name)
    return known_context_window(model)


def window_in_error(error: ContextTooLong) -> int | None:
    """The window that a provider names in its refusal."""
    found = _IN_ERROR.search(error.message) or _IN_ERROR.search(error.body)
    return int(next(filter(None, found.groups()))) if found else None


def _by_name(name: str) -> int | None:
    plain = name.rpartition("/")[2]
    return next((window for prefix, window in _TABLE if plain.startswith(prefix)), None)
