"""Models by their name: "openai:gpt-5", "anthropic:NAME", "ollama:NAME" and so on for all of `PROVIDERS`, or "local".

A provider's module is imported when one of its models is named: at every start, all of them would cost too much.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from halter.models.providers import PROVIDERS, guess_provider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from halter.models.http.wire import HTTPModel
    from halter.models.types import Model, ModelEvent, ModelRequest

_CLASSES: Final = {
    "chat": ("halter.models.openai.chat", "OpenAIModel"),
    "responses": ("halter.models.openai.responses", "OpenAIResponsesModel"),
    "anthropic": ("halter.models.anthropic", "AnthropicModel"),
    "gemini": ("halter.models.gemini", "GeminiModel"),
}


def find_model(model: Model | str) -> Model:
    """Return *model*, or the one of this name."""
    if not isinstance(model, str):
        if not callable(getattr(model, "stream", None)):
            raise TypeError(
                f"a model must have a stream() method, or be a name such as 'openai:gpt-5'; this is {model!r:.80}"
            )
        return model if hasattr(model, "name") else _Named(model)
    provider, _, name = model.partition(":")
    if provider == "local" and not name:
        from halter.models.local.model import LocalModel

        return LocalModel()
    if not name or provider not in PROVIDERS:
        raise ValueError(_unknown(model))
    made: HTTPModel = model_class(provider)(name, provider=provider)
    return made


def model_class(provider: str) -> type[Any]:
    """The class for models of a provider."""
    module, kind = _CLASSES[PROVIDERS[provider].wire]
    found: type[Any] = getattr(import_module(module), kind)
    return found


def _unknown(model: str) -> str:
    guess = guess_provider(model)
    likely = f" Did you mean '{guess}:{model}'?" if guess else ""
    return (
        f"there is no model named {model!r}.{likely} Write 'openai:NAME', 'local' or pass a Model object. "
        f"Providers: {', '.join(PROVIDERS)}"
    )


class _Named:
    """A user's own model that does not say what it is called: by the name of its class, and otherwise as it is."""

    def __init__(self, model: Model) -> None:
        self.name = type(model).__name__
        self._model = model

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        return self._model.stream(request)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (its limits, or whatever else it has)
        return getattr(self._model, name)
