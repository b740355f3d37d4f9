"""One Chromium for one session: started by the first call, on an event loop of its own, ended with the session.

Two kinds of processes come with it: Chromium's own and Playwright's driver. They are one process tree, and so are ended
together, until none is left; if our process is killed, the guardian ends them. All their files are in one temporary
folder, which is removed after them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import shlex
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from halter._extras import need
from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.loop_thread import LoopClosed, LoopThread
from halter.cancel.processes import guardian, registry
from halter.cancel.processes.proc_table import children_of_thread
from halter.cancel.processes.tree import ProcessTree, new_cookie
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.toolbox.browser.page import PageFailed, Tab
from halter.toolbox.browser.proxy import FilteringProxy
from halter.toolbox.http.addresses import Rules
from halter.toolbox.process_exit import watching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from halter.toolbox.sandbox.sandbox import Sandbox

T = TypeVar("T")

_log = logging.getLogger(__name__)
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_START_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 1.5  # for Chromium to end by itself
_GRACE: Final = 0.2  # seconds
_SETTLE: Final = 0.05  # seconds
# The variables that Chromium needs. It does not get the rest of our environment, which may contain secrets.
_ENVIRONMENT: Final = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR",
)  # fmt: skip
_PREFIX: Final = "halter-browser-"
# Bytes. Chromium creates a socket in its folder, and does not start if the path of that is longer than 103 bytes.
_MAX_PARENT: Final = 103 - len(f"/{_PREFIX}12345678/org.chromium.Chromium.123456/SingletonSocket")
_SHORT_PARENT: Final = "/tmp"  # noqa: S108  (a folder of a random name is made in it)
# QUIC and WebRTC would bypass the proxy.
_NO_PROXY_BYPASS: Final = ("--disable-quic", "--webrtc-ip-handling-policy=disable_non_proxied_udp")


class Options(NamedTuple):
    """The options of a `Browser`."""

    executable: str | None
    headless: bool
    allow_private: bool
    allowed: tuple[str, ...]
    limit: int
    timeout: float
    args: tuple[str, ...]
    sandbox: Sandbox | None = None


class Chromium:
    """The browser of one session, for its tool calls. `close()` it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop = LoopThread("halter-browser")
        self._run: _ChromiumRun | None = None
        self._lock = asyncio.Lock()  # of the browser's loop: one call at a time
        self._closing = threading.Lock()
        _open.add(self)

    async def do(self, work: Callable[[Tab], Coroutine[Any, Any, T]]) -> T:
        """Run *work* on the page. At a stop this returns at once, and the page is stopped afterwards."""
        return await self._loop.do(lambda: self._run_exclusively(work))

    def stream(self, work: Callable[[Tab, Callable[[str], None]], Coroutine[Any, Any, None]]) -> AsyncIterator[str]:
        """Run *work* likewise, and yield what it emits."""
        return self._loop.stream(lambda emit: self._run_exclusively(lambda tab: work(tab, emit)))

    async def _run_exclusively(self, work: Callable[[Tab], Coroutine[Any, Any, T]]) -> T:
        async with self._lock:
            tab = await self._ready()
            try:
                await tab.ensure_page()
                return await work(tab)
            except asyncio.CancelledError:
                if self._run is not None and not self._run.is_dead:
                    await tab.recover()  # the stopped call has returned already; the next one waits for this
                raise

    async def _ready(self) -> Tab:
        if self._run is None or self._run.is_dead:
            if self._run is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_SECONDS):
                        await self._run.shut_down()
                await run_in_thread(self._run.end)
            self._run = _ChromiumRun(self._options)
        # A call that is stopped here returns; the browser still starts, for the next call.
        return await asyncio.shield(self._run.started)

    def close(self) -> None:
        """End it all. Bounded; from any thread, at any time, more than once."""
        with self._closing:
            with contextlib.suppress(LoopClosed):
                try:
                    self._loop.do_blocking(self._shut_down, _CLOSE_SECONDS)
                except TimeoutError:
                    self._kill()
            self._loop.close(patience=0.3)
            if self._run is not None:
                self._run.end()

    async def _shut_down(self) -> None:
        if self._run is not None:
            await self._run.shut_down()

    def _kill(self) -> None:
        """End the processes while the loop still runs: asyncio notices it, and closes its side of the pipes."""
        if self._run is not None:
            self._run.kill()
        with contextlib.suppress(TimeoutError):
            self._loop.do_blocking(lambda: asyncio.sleep(_SETTLE), _CLOSE_SECONDS)


_open: Final[weakref.WeakSet[Chromium]] = weakref.WeakSet()


def _close_all() -> None:
    """At the end of the process: close browsers of sessions that were not closed, to remove their folders."""
    for each in list(_open):
        with contextlib.suppress(Exception):  # a boundary
            each.close()


atexit.register(_close_all)


class _ChromiumRun:
    """One run of Chromium, from its start to its end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_parent_folder())
        self._cookie = new_cookie()
        self._unwatch_folder = guardian.watch_folder(self._folder)
        self._others = set(children_of_thread(threading.get_native_id()))
        self._tree = self._new_tree()
        self._proxy: FilteringProxy | None = None
        self._sandbox: Sandbox | None = None
        self._playwright: Any = None
        self._context: Any = None
        self._watch = contextlib.ExitStack()
        self._has_ended = False
        self.is_dead = False
        self.started = asyncio.ensure_future(self._start())
        self.started.add_done_callback(self._on_started)

    def _on_started(self, started: asyncio.Future[Tab]) -> None:
        if started.cancelled() or started.exception() is not None:
            self.is_dead = True

    def _new_tree(self, *others: int) -> ProcessTree:
        tree = ProcessTree(others, cookie=self._cookie.encode())
        registry.add(tree)
        return tree

    async def _start(self) -> Tab:
        options = self._options
        executable = find_executable(options.executable)
        async with asyncio.timeout(_START_SECONDS):
            self._playwright = _playwright()
            driver = await self._playwright.__aenter__()
            self._watch.enter_context(watching(self._find_drivers(), self._on_exit))
            self._context = await self._launch(driver, executable)
            self._context.on("close", lambda _: self._on_exit())
            tab = Tab(self._context, self._proxy, limit=options.limit, timeout=options.timeout)
            await tab.start()
        return tab

    def _find_drivers(self) -> set[int]:
        """Find Playwright's driver. It has no cookie, as it has our own environment; but this thread has started it."""
        drivers = set(children_of_thread(threading.get_native_id())) - self._others
        known, self._tree = self._tree, self._new_tree(*drivers)
        registry.remove(known)
        return drivers

    async def _launch(self, driver: Any, executable: str) -> Any:
        options = self._options
        args = [*options.args, *_NO_PROXY_BYPASS]
        ports: list[int] = []
        if not options.allow_private:
            self._proxy = FilteringProxy(Rules(allow=options.allowed))
            ports.append(await self._proxy.start())
            args += [f"--proxy-server=http://127.0.0.1:{ports[0]}", "--proxy-bypass-list=<-loopback>"]
        program = executable
        if options.sandbox is not None:
            program = await run_blocking_async(self._confined, executable, ports, token=NEVER)  # bounded
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        for name in ("TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            environment[name] = self._folder
        try:
            return await driver.chromium.launch_persistent_context(
                f"{self._folder}/profile",
                executable_path=program,
                headless=options.headless,
                chromium_sandbox=os.geteuid() != 0,  # Chromium has no sandbox for root, and refuses to start with one
                args=args,
                env={**environment, self._cookie: "1"},
                artifacts_dir=f"{self._folder}/artifacts",
                accept_downloads=False,
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
                viewport={"width": 1280, "height": 800},
                timeout=_START_SECONDS * 1000,
            )
        except Exception as error:
            raise PageFailed(
                f"{executable} could not be started: {str(error).partition('Call log:')[0].strip()}"
            ) from error

    def _confined(self, executable: str, ports: list[int]) -> str:
        """A script that starts Chromium in a sandbox: it writes its own folder, and connects to our proxy alone."""
        assert self._options.sandbox is not None
        self._sandbox = self._options.sandbox.for_folder(self._folder, network=True)
        # Chromium's own sandbox, which it has for all users but root, writes there to make its namespaces.
        writable = [] if os.geteuid() == 0 else ["/proc"]
        command = self._sandbox.command([executable], ports=ports, writable=writable)
        script = Path(self._folder) / "chromium"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        script.chmod(0o700)
        return str(script)

    def _on_exit(self) -> None:
        self.is_dead = True

    async def shut_down(self) -> None:
        """Ask it to end, on its loop."""
        self.is_dead = True
        self._watch.close()
        if self._proxy is not None:
            self._proxy.close()
        if not self.started.done():
            # Playwright drops tasks that fail because its driver is killed. We kill it, so that is not an error.
            asyncio.get_running_loop().set_exception_handler(_log_leftover)
            self.started.cancel()
            self._find_drivers()
            await run_in_thread(self.kill)  # then whatever it waits for ends
        with contextlib.suppress(Exception):  # a boundary: it is ended in any case
            if self._context is not None:
                await self._context.close()
            if self._playwright is not None:
                await self._playwright.__aexit__()
        await asyncio.sleep(_SETTLE)  # for asyncio to notice the end of processes and pipes, and close its side

    def kill(self) -> None:
        """End all its processes."""
        registry.stop(self._tree, 0.0)

    def end(self) -> None:
        """Make sure that nothing is left: no process, no folder. Blocks for as long as that takes, which is bounded."""
        if self._has_ended:
            return
        self._has_ended = True
        self.is_dead = True
        registry.stop(self._tree, _GRACE)
        if self._sandbox is not None:
            self._sandbox.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._unwatch_folder()


def _parent_folder() -> str:
    """Where the folder is created: in the usual place, or in one with a shorter path if that is too long."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _MAX_PARENT or not os.access(_SHORT_PARENT, os.W_OK) else _SHORT_PARENT


def _log_leftover(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _log.debug("left behind by a browser that was ended while it started: %s", context)


def _playwright() -> Any:
    need("browser", "playwright")
    from playwright.async_api import async_playwright

    return async_playwright()


def find_executable(given: str | None) -> str:
    """The path of Chromium. Raises `PageFailed`, which says how to get it."""
    for name in (given,) if given is not None else NAMES:
        if found := shutil.which(name):
            return found
    names = given if given is not None else ", ".join(NAMES)
    raise PageFailed(
        f"Chromium was not found (looked for {names}). Install it, for example with `apt-get install chromium`, "
        "or pass its path: Browser(executable=...)"
    )
