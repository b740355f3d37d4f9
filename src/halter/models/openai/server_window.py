"""The context window that an OpenAI-compatible server was started with, where the server says it.

OpenAI's own server does not. vLLM, OpenRouter, Groq, Mistral and LM Studio say it in the list of models, llama.cpp in
its properties, and Ollama for models that are loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from halter.models.errors import UNREADABLE, ModelError
from halter.models.http.client import get

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

__all__ = ["ask_server"]

_SECONDS: Final = 2.0  # for all of it: the turn waits
_MAX_BYTES: Final = 4_000_000  # the list of a large provider has half a megabyte
_OK: Final = 200
_IN_LIST: Final = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length")


async def ask_server(base_url: str, name: str, headers: Mapping[str, str], *, tls: ssl.SSLContext | bool) -> int | None:
    """Ask a server for the window of one of its models; None if it does not say it, or not in time."""
    import asyncio  # loaded by now, and half of what `from halter import Agent` would cost

    headers = {**headers, "accept": "application/json"}
    root = base_url.removesuffix("/v1")
    pages: list[tuple[str, Callable[[Any, str], Any]]] = [
        (f"{base_url}/models", _in_list),
        (f"{root}/props", _in_properties),
        (f"{root}/api/ps", _in_loaded),
    ]
    try:
        async with asyncio.timeout(_SECONDS):
            for url, find in pages:
                window = find(await _read(url, headers, tls=tls), name)
                if isinstance(window, int) and window > 0:
                    return window
    except (ModelError, TimeoutError):
        pass  # the request that follows has its own errors and retries
    return None


async def _read(url: str, headers: Mapping[str, str], *, tls: ssl.SSLContext | bool) -> Any:  # noqa: ANN401
    """The JSON at a URL; None if there is none."""
    reply = await get(url, headers=headers, tls=tls)
    try:
        if reply.status != _OK:
            return None
        body = await reply.read_all(_MAX_BYTES)
    finally:
        reply.close()
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return None


def _in_list(data: Any, name: str) -> Any:  # noqa: ANN401
    model = _named(data, "data", ("id",), name)
    return next((model[key] for key in _IN_LIST if model.get(key)), None)


def _in_properties(data: Any, _: str) -> Any:  # noqa: ANN401
    settings = data.get("default_generation_settings") if isinstance(data, dict) else None
    return settings.get("n_ctx") if isinstance(settings, dict) else None


def _in_loaded(data: Any, name: str) -> Any:  # noqa: ANN401
    return _named(data, "models", ("name", "model"), name).get("context_length")


def _named(data: Any, key: str, names: tuple[str, ...], name: str) -> dict[str, Any]:  # noqa: ANN401
    """The entry for a model in a list of them; empty if there is none."""
    entries = data.get(key) if isinstance(data, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and any(entry.get(each) in (name, f"{name}:latest") for each in names):
            return entry
    return {}
