"""Models by their name: "openai:gpt-5", "anthropic:NAME", "ollama:NAME", "local".

A provider's module is imported when one of its models is named: at every start, all of them would cost too much.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from halter.models.types import Model, ModelEvent, ModelRequest

_PORT: Final = 11434
_OLLAMA: Final = f"http://127.0.0.1:{_PORT}"


def find_model(model: Model | str) -> Model:
    """Return *model*, or the one of this name."""
    if not isinstance(model, str):
        if not callable(getattr(model, "stream", None)):
            msg = f"a model must have a stream() method, or be a name such as 'openai:gpt-5'; this is {model!r:.80}"
            raise TypeError(msg)
        return model if hasattr(model, "name") else _Named(model)
    provider, _, name = model.partition(":")
    if provider == "local" and not name:
        from halter.models.local.model import LocalModel

        return LocalModel()
    if not name or provider not in ("openai", "anthropic", "ollama"):
        msg = (
            f"there is no model named {model!r}; write 'openai:NAME', 'anthropic:NAME', 'ollama:NAME' or 'local', or "
            "pass a Model object"
        )
        raise ValueError(msg)
    if provider == "anthropic":
        from halter.models.anthropic import AnthropicModel

        return AnthropicModel(name)
    from halter.models.openai.chat import OpenAIModel

    if provider == "openai":
        return OpenAIModel(name)
    return OpenAIModel(name, base_url=f"{ollama_url()}/v1", api_key="ollama")


class _Named:
    """A user's own model that does not say what it is called: by the name of its class, and otherwise as it is."""

    def __init__(self, model: Model) -> None:
        self.name = type(model).__name__
        self._model = model

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        return self._model.stream(request)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (its limits, or whatever else it has)
        return getattr(self._model, name)


def ollama_url(env: Mapping[str, str] = os.environ) -> str:
    """Where Ollama listens, as its own tools find it: a host without a port and a scheme means its usual port."""
    host = env.get("OLLAMA_HOST", "").strip().rstrip("/")
    if not host:
        return _OLLAMA
    if "://" in host:
        return host
    return f"http://{host}" if ":" in host.rpartition("]")[2] else f"http://{host}:{_PORT}"
