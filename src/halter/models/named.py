"""Models by their name: "openai:gpt-5", "anthropic:NAME", "ollama:NAME", "local"."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from halter.models.anthropic import AnthropicModel
from halter.models.local import LocalModel
from halter.models.openai import OpenAIModel

if TYPE_CHECKING:
    from halter.models.model import Model

_OLLAMA: Final = "http://127.0.0.1:11434"


def find_model(model: Model | str) -> Model:
    """Return *model*, or the one of this name."""
    if not isinstance(model, str):
        if not callable(getattr(model, "stream", None)):
            msg = f"a model has a stream() method, or is a name such as 'openai:gpt-5'; this is {model!r:.80}"
            raise TypeError(msg)
        return model
    provider, _, name = model.partition(":")
    if provider == "local" and not name:
        return LocalModel()
    if not name or provider not in ("openai", "anthropic", "ollama"):
        msg = (
            f"no model is called {model!r}; write 'openai:NAME', 'anthropic:NAME', 'ollama:NAME' or 'local', or give a "
            "Model object"
        )
        raise ValueError(msg)
    if provider == "anthropic":
        return AnthropicModel(name)
    if provider == "openai":
        return OpenAIModel(name)
    return OpenAIModel(name, base_url=f"{_ollama_url()}/v1", api_key="ollama")


def _ollama_url() -> str:
    """Where Ollama listens, as its own tools find it."""
    host = os.environ.get("OLLAMA_HOST", "").strip().rstrip("/")
    if not host:
        return _OLLAMA
    return host if "://" in host else f"http://{host}"
