"""`halter login PROVIDER`: asks for a key without showing it, checks it with one request, and stores it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from halter.cli.model_choice import DEFAULTS
from halter.cli.output import print_error
from halter.cli.provider_keys import store_provider_key
from halter.models.providers import PROVIDERS
from halter.views.text import single_line

if TYPE_CHECKING:
    from halter.models.http.wire import HTTPModel
    from halter.models.providers import Provider

__all__ = ["login"]

_TIMEOUT: Final = 15.0  # seconds for the provider's answer
_MAX_BYTES: Final = 5_000_000  # of the answer
_REFUSED: Final = (401, 403)  # statuses
_FIRST_ERROR: Final = 400  # statuses from here on are errors
# Listing the models costs nothing. OpenRouter's list needs no key, so its page about the key is requested instead.
_MODEL_LISTS: Final = {"anthropic": "/v1/models", "gemini": "/v1beta/models", "chat": "/models", "responses": "/models"}
_OTHER_PATHS: Final = {"openrouter": "/key", "azure": "/openai/v1/models"}


class _LoginFailed(Exception):
    """The key was not accepted, or could not be checked; the message says why."""


class _Listed(msgspec.Struct):
    id: str = ""
    name: str = ""


class _Models(msgspec.Struct):
    data: list[_Listed] = []
    models: list[_Listed] = []


def login(name: str) -> int:
    """Ask for the key of a provider, check it and store it. Returns the exit code."""
    try:
        provider = _provider(name)
        key = _ask(provider.title)
        models = asyncio.run(_check(name, key))
        path = store_provider_key(provider.key_variable, key)
    except (KeyboardInterrupt, EOFError):
        return print_error("nothing was stored")
    except _LoginFailed as error:
        return print_error(error)
    except (OSError, msgspec.MsgspecError) as error:
        return print_error(f"the key was accepted but could not be stored: {error}")
    print(f"{provider.title} accepts this key. It is stored in {path}; only you can read that file.")
    default = DEFAULTS.get(provider.key_variable, "") if name in ("openai", "anthropic") else ""
    if default:
        print(f"`halter` now uses {default}; --model {name}:NAME uses another.")
    else:
        some = f", such as {', '.join(models[:5])}" if models else ""
        print(f"Choose a model with --model {name}:NAME{some}; to keep it, set `model` in the settings.")
    return 0


def _provider(name: str) -> Provider:
    """The provider of this name. Raises `_LoginFailed` if it has no key."""
    provider = PROVIDERS.get(name)
    if provider is None:
        known = ", ".join(each for each, row in PROVIDERS.items() if not row.start)
        raise _LoginFailed(f"unknown provider {name!r}; choose one of {known}")
    if provider.start:
        raise _LoginFailed(f"{provider.title} needs no key: {provider.start}, and --model {name}:NAME uses it")
    if not provider.find_url():
        raise _LoginFailed(f"set {provider.url_variable} first: the address of {provider.title}")
    return provider


def _ask(title: str) -> str:
    """The key: typed without echo, or read from a pipe."""
    if sys.stdin is not None and sys.stdin.isatty():
        import getpass

        key = getpass.getpass(f"Key for {title} (it is not shown): ")
    else:
        key = sys.stdin.readline() if sys.stdin is not None else ""
    key = key.strip()
    if not key:
        raise _LoginFailed("no key was given; nothing was stored")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise _LoginFailed("this is not a key: it contains spaces or unusual characters; nothing was stored")
    return key


async def _check(name: str, key: str) -> list[str]:
    """Request the provider's models with this key; returns their names. Raises `_LoginFailed`."""
    from halter.models.errors import ModelError
    from halter.models.http.client import aclose_clients, get
    from halter.models.http.wire import read_refusal
    from halter.models.registry import model_class

    provider = PROVIDERS[name]
    model: HTTPModel = model_class(name)("any", provider=name, api_key=key)
    url = model.base_url + _OTHER_PATHS.get(name, _MODEL_LISTS[provider.wire])
    try:
        async with asyncio.timeout(_TIMEOUT):
            reply = await get(url, headers=model.auth_headers())
            if reply.status >= _FIRST_ERROR:
                error = await read_refusal(reply, [key])
                if reply.status in _REFUSED:
                    raise _LoginFailed(f"{provider.title} did not accept this key: {error}; nothing was stored")
                raise _LoginFailed(f"{provider.title} could not check this key: {error}; nothing was stored")
            body = await reply.read_all(_MAX_BYTES)
            await reply.finish()
    except TimeoutError:
        raise _LoginFailed(f"{provider.title} did not answer within {_TIMEOUT:g} s; nothing was stored") from None
    except ModelError as error:
        raise _LoginFailed(f"{provider.title} could not be reached: {error}; nothing was stored") from error
    finally:
        await aclose_clients()
    try:
        found = msgspec.json.decode(body, type=_Models)
    except msgspec.MsgspecError:
        return []
    return [single_line(each.id or each.name).removeprefix("models/") for each in (*found.data, *found.models)]
