"""Keys from the environment, also after they were taken out of it.

The programs (`halter ...`) move our keys from the environment into memory when they start, so that no process that a
tool starts inherits them. The library leaves the environment alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["is_stored", "read_key", "take_from_environment", "use_stored", "with_taken"]

_OUR_KEYS: Final = (
    "HALTER_KEY",
    "HALTER_CLUSTER",  # a setting; it may have a password
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "OPENROUTER_API_KEY",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
    "DEEPSEEK_API_KEY",
    "XAI_API_KEY",
    "TOGETHER_API_KEY",
    "AZURE_OPENAI_API_KEY",
    "OLLAMA_API_KEY",
    "LMSTUDIO_API_KEY",
    "VLLM_API_KEY",
    "TELEGRAM_BOT_TOKEN",
    "BRAVE_API_KEY",
    "TAVILY_API_KEY",
)
_taken: Final[dict[str, str]] = {}
_stored: Final[dict[str, str]] = {}


def read_key(name: str) -> str:
    """The value of a variable that holds a key; empty if it is not set."""
    return os.environ.get(name) or _taken.get(name) or _stored.get(name, "")


def use_stored(keys: Mapping[str, str]) -> None:
    """Use these keys where the environment has none."""
    _stored.clear()
    _stored.update(keys)


def is_stored(name: str) -> bool:
    """Whether the value of a variable that holds a key is one of those that were stored."""
    return name in _stored and not (os.environ.get(name) or _taken.get(name))


def with_taken() -> dict[str, str]:
    """The environment as it was before anything was taken out, and the stored keys."""
    return {**_stored, **os.environ, **_taken}


def take_from_environment() -> None:
    """Keep our keys in memory, and remove them from the environment."""
    for name in _OUR_KEYS:
        value = os.environ.pop(name, "")
        if value:
            _taken[name] = value
