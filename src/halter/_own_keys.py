"""Keys from the environment, also after they were taken out of it.

The programs (`halter ...`) move our keys from the environment into memory when they start, so that no process that a
tool starts inherits them. The library leaves the environment alone.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["read_key", "take_from_environment", "with_taken"]

_OUR_KEYS: Final = (
    "HALTER_KEY",
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


def read_key(name: str) -> str:
    """The value of a variable that holds a key; empty if it is not set."""
    return os.environ.get(name) or _taken.get(name, "")


def with_taken() -> dict[str, str]:
    """The environment as it was before anything was taken out."""
    return {**os.environ, **_taken}


def take_from_environment() -> None:
    """Keep our keys in memory, and remove them from the environment."""
    for name in _OUR_KEYS:
        value = os.environ.pop(name, "")
        if value:
            _taken[name] = value
