"""One Chromium for one session: started by the first call, on an event loop of its own, ended with the session.

Two kinds of processes come with it: Chromium's own and Playwright's driver. They are one process tree, and so are ended
together and looked for until none is left; should we be killed, the guardian does that. All they write is in one
temporary folder, which is removed after them.
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
_GRACE: Final = 0.2
_SETTLE: Final = 0.05
# What Chromium needs to know of where it is. The rest of our environment, with the secrets, is not its business.
_ENVIRONMENT: Final = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
)
# Past a proxy these would make connections of their own.
_PREFIX: Final = "halter-browser-"
# Chromium makes a socket in there, whose path must not have more than 103 bytes, or it does not start.
_ROOM: Final = 103 - len(f"/{_PREFIX}12345678/org.chromium.Chromium.123456/SingletonSocket")
_SHORT: Final = "/tmp"  # noqa: S108  (a folder of a random name is made in it)
_NO_WAY_AROUND: Final = ("--disable-quic", "--webrtc-ip-handling-policy=disable_non_proxied_udp")


class Options(NamedTuple):
    """How the browser is to be."""

    executable: str | None
    headless: bool
    allow_private: bool
    allowed: tuple[str, ...]
    limit: int
    timeout: float
    args: tuple[str, ...]
    sandbox: Sandbox | None = None


class Chromium:
    """The browser of one session, from the side of the calls. `close()` it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._home = LoopThread("halter-browser")
        self._life: _ChromiumRun | None = None
        self._lock = asyncio.Lock()  # of the browser's loop: one call at a time
        self._closing = threading.Lock()
        _open.add(self)

    async def do(self, work: Callable[[Tab], Coroutine[Any, Any, T]]) -> T:
        """Have something done on the page. A stop leaves at once, and has the page stopped behind it."""
        return await self._home.do(lambda: self._in_turn(work))

    def stream(self, work: Callable[[Tab, Callable[[str], None]], Coroutine[Any, Any, None]]) -> AsyncIterator[str]:
        """Do it likewise, and give what it emits as it comes."""
        return self._home.stream(lambda emit: self._in_turn(lambda tab: work(tab, emit)))

    async def _in_turn(self, work: Callable[[Tab], Coroutine[Any, Any, T]]) -> T:
        async with self._lock:
            tab = await self._ready()
            try:
                await tab.be_there()
                return await work(tab)
            except asyncio.CancelledError:
                if self._life is not None and not self._life.is_dead:
                    await tab.recover()  # the stopped call has returned already; the next one waits for this
                raise

    async def _ready(self) -> Tab:
        if self._life is None or self._life.is_dead:
            if self._life is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._life.say_goodbye(), _CLOSE_SECONDS)
                await run_blocking_async(self._life.end, token=NEVER)
            self._life = _ChromiumRun(self._options)
        # Who is stopped here leaves; the browser is started all the same, for the next call.
        return await asyncio.shield(self._life.started)

    def close(self) -> None:
        """End it all. Bounded; from any thread, at any time, more than once."""
        with self._closing:
            with contextlib.suppress(LoopClosed, TimeoutError):
                self._home.do_blocking(self._say_goodbye, _CLOSE_SECONDS)
            self._home.close(patience=0.3)
            if self._life is not None:
                self._life.end()

    async def _say_goodbye(self) -> None:
        if self._life is not None:
            await self._life.say_goodbye()


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
        self._folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_place())
        self._mark = new_cookie()
        self._keep_folder = guardian.watch_folder(self._folder)
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
        self.started.add_done_callback(self._look_at)

    def _look_at(self, started: asyncio.Future[Tab]) -> None:
        if started.cancelled() or started.exception() is not None:
            self.is_dead = True

    def _new_tree(self, *others: int) -> ProcessTree:
        tree = ProcessTree(others, cookie=self._mark.encode())
        registry.add(tree)
        return tree

    async def _start(self) -> Tab:
        options = self._options
        executable = find_executable(options.executable)
        async with asyncio.timeout(_START_SECONDS):
            self._playwright = _playwright()
            driver = await self._playwright.__aenter__()
            self._watch.enter_context(watching(self._learn_drivers(), self._die))
            self._context = await self._launch(driver, executable)
            self._context.on("close", lambda _: self._die())
            tab = Tab(self._context, self._proxy, limit=options.limit, timeout=options.timeout)
            await tab.start()
        return tab

    def _learn_drivers(self) -> set[int]:
        """Find Playwright's driver. It has no mark, as it is started with our own environment; but in this thread."""
        drivers = set(children_of_thread(threading.get_native_id())) - self._others
        known, self._tree = self._tree, self._new_tree(*drivers)
        registry.remove(known)
        return drivers

    async def _launch(self, driver: Any, executable: str) -> Any:
        options = self._options
        args = [*options.args, *_NO_WAY_AROUND]
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
                env={**environment, self._mark: "1"},
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

    def _die(self) -> None:
        self.is_dead = True

    async def say_goodbye(self) -> None:
        """Ask it to end, on its loop."""
        self.is_dead = True
        self._watch.close()
        if self._proxy is not None:
            self._proxy.close()
        if not self.started.done():
            # Playwright drops tasks that fail because its driver is killed; that was us, and is no error to tell of.
            asyncio.get_running_loop().set_exception_handler(_note)
            self.started.cancel()
            self._learn_drivers()
            await run_blocking_async(self._kill, token=NEVER)  # then whatever it waits for ends
        with contextlib.suppress(Exception):  # a boundary: it is ended in any case
            if self._context is not None:
                await self._context.close()
            if self._playwright is not None:
                await self._playwright.__aexit__()
        await asyncio.sleep(_SETTLE)  # in which asyncio hears of the ends of processes and pipes, and closes its side

    def _kill(self) -> None:
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
        self._keep_folder()


def _place() -> str:
    """Where the folder is made: the usual place, or a shorter one if that is too far away."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _ROOM or not os.access(_SHORT, os.W_OK) else _SHORT


def _note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _log.debug("left behind by a browser that was ended while it started: %s", context)


def _playwright() -> Any:
    need("browser", "playwright")
    from playwright.async_api import async_playwright

    return async_playwright()


def find_executable(given: str | None) -> str:
    """Where Chromium is; an error that says how to get it."""
    for name in (given,) if given is not None else NAMES:
        if found := shutil.which(name):
            return found
    looked_for = given if given is not None else ", ".join(NAMES)
    raise PageFailed(
        f"Chromium was not found (looked for {looked_for}). Install it, for example with `apt-get install chromium`, "
        "or pass its path: Browser(executable=...)"
    )
