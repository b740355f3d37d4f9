"""The providers that models can be named by: one row for each, with its address, its key and what differs.

    PROVIDERS["groq"].key_variable      # "GROQ_API_KEY"

A row says which API a provider speaks (`wire`). Most speak OpenAI's chat completions, with differences that are fields
here. A provider on this machine needs no key, and its row says how to start it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from halter._own_keys import read_key

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PROVIDERS", "Provider", "azure_url", "find_provider", "guess_provider", "ollama_url"]

_OLLAMA_PORT: Final = 11434


class Provider(NamedTuple):
    """One provider. `url` is empty if only the user knows the address, in `url_variable`."""

    title: str
    wire: Literal["chat", "responses", "anthropic", "gemini"]
    key_variable: str
    url_variable: str
    url: str
    other_key_variable: str = ""
    """A second name for the same key."""
    start: str = ""
    """How to start it, for a server on this machine; such a server needs no key."""
    key_header: str = "authorization"
    limit: str = "max_tokens"
    """The name of the limit of the answer's length."""
    seed: str = "seed"
    has_stream_options: bool = True
    call_id_length: int = 0
    """If not 0, ids of calls must have exactly this many letters and digits."""
    answers_results: bool = False
    """Whether an answer of the model must stand between results and the user's next message."""
    needs_reasoning: bool = False
    """Whether each answer of the model must be sent back with its reasoning, which may be empty."""

    def find_url(self) -> str:
        """The address: that of the environment, or the usual one."""
        if self.url_variable == "OLLAMA_HOST":
            return f"{ollama_url()}/v1"
        return os.environ.get(self.url_variable) or self.url

    def find_key(self) -> str:
        """The key in the environment; empty if there is none."""
        return read_key(self.key_variable) or (read_key(self.other_key_variable) if self.other_key_variable else "")


def _chat(title: str, prefix: str, url: str) -> Provider:
    return Provider(title, "chat", f"{prefix}_API_KEY", f"{prefix}_BASE_URL", url)


def _on_this_machine(title: str, prefix: str, url: str, start: str) -> Provider:
    return _chat(title, prefix, url)._replace(start=start)


PROVIDERS: Final[dict[str, Provider]] = {
    "openai": _chat("OpenAI", "OPENAI", "https://api.openai.com/v1")._replace(limit="max_completion_tokens"),
    "openai-responses": _chat("OpenAI", "OPENAI", "https://api.openai.com/v1")._replace(wire="responses"),
    "anthropic": Provider(
        "Anthropic",
        "anthropic",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL",
        "https://api.anthropic.com",
        key_header="x-api-key",
    ),
    "gemini": Provider(
        "Gemini",
        "gemini",
        "GEMINI_API_KEY",
        "GOOGLE_GEMINI_BASE_URL",
        "https://generativelanguage.googleapis.com",
        other_key_variable="GOOGLE_API_KEY",
        key_header="x-goog-api-key",
    ),
    "openrouter": _chat("OpenRouter", "OPENROUTER", "https://openrouter.ai/api/v1"),
    "groq": _chat("Groq", "GROQ", "https://api.groq.com/openai/v1"),
    # It refuses fields that it does not know.
    "mistral": _chat("Mistral", "MISTRAL", "https://api.mistral.ai/v1")._replace(
        seed="random_seed", has_stream_options=False, call_id_length=9, answers_results=True
    ),
    "deepseek": _chat("DeepSeek", "DEEPSEEK", "https://api.deepseek.com/v1")._replace(needs_reasoning=True),
    "xai": _chat("xAI", "XAI", "https://api.x.ai/v1"),
    "together": _chat("Together", "TOGETHER", "https://api.together.xyz/v1"),
    "azure": Provider(
        "Azure OpenAI",
        "chat",
        "AZURE_OPENAI_API_KEY",
        "AZURE_OPENAI_ENDPOINT",
        "",
        key_header="api-key",
        limit="max_completion_tokens",
    ),
    "ollama": _on_this_machine(
        "Ollama", "OLLAMA", f"http://127.0.0.1:{_OLLAMA_PORT}/v1", "`ollama serve` starts it"
    )._replace(url_variable="OLLAMA_HOST"),
    "lmstudio": _on_this_machine(
        "LM Studio", "LMSTUDIO", "http://127.0.0.1:1234/v1", "`lms server start` starts its server"
    ),
    "vllm": _on_this_machine("vLLM", "VLLM", "http://127.0.0.1:8000/v1", "`vllm serve MODEL` starts it"),
}

_BEGINNINGS: Final = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude-": "anthropic",
    "gemini-": "gemini",
    "deepseek-": "deepseek",
    "grok-": "xai",
    "mistral-": "mistral",
    "ministral-": "mistral",
    "magistral-": "mistral",
    "codestral-": "mistral",
    "devstral-": "mistral",
}


def find_provider(name: str) -> Provider:
    """The provider of this name."""
    if name not in PROVIDERS:
        raise ValueError(f"there is no provider named {name!r}; known: {', '.join(PROVIDERS)}")
    return PROVIDERS[name]


def guess_provider(name: str) -> str | None:
    """The provider that is known for models of this name, for a name without one; None if there is none."""
    if ":" in name:
        return None
    return next((provider for beginning, provider in _BEGINNINGS.items() if name.startswith(beginning)), None)


def ollama_url(env: Mapping[str, str] = os.environ) -> str:
    """Where Ollama listens, as its own tools find it: a host without a port and a scheme means its usual port."""
    host = env.get("OLLAMA_HOST", "").strip().rstrip("/")
    if not host:
        return f"http://127.0.0.1:{_OLLAMA_PORT}"
    if "://" in host:
        return host
    return f"http://{host}" if ":" in host.rpartition("]")[2] else f"http://{host}:{_OLLAMA_PORT}"


def azure_url(endpoint: str, deployment: str) -> str:
    """Azure's URL for chat: of its current API, or of the dated one that OPENAI_API_VERSION names, as its SDK does."""
    endpoint = endpoint.removesuffix("/openai/v1")
    version = os.environ.get("OPENAI_API_VERSION")
    if version:
        return f"{endpoint}/openai/deployments/{deployment}/chat/completions?api-version={version}"
    return f"{endpoint}/openai/v1/chat/completions"
