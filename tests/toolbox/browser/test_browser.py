"""The browser, with a real Chromium and a real web site on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from halter import Agent, ToolOutcome
from halter.cancel.processes.tree import ProcessTree
from halter.events.tools import ToolStarted
from halter.models import Image, ToolCall
from halter.testing import MOMENTS, Moment, ScriptedModel, Stop, ToolCalls
from halter.toolbox.browser import page as page_module
from halter.toolbox.browser.browser import Browser
from halter.toolbox.browser.chromium import NAMES, Chromium, find_executable
from halter.toolbox.browser.proxy import FilteringProxy
from halter.toolbox.http.addresses import Rules
from halter.tools.resources import SessionResources
from tests.support.processes import is_alive, wait_dead
from tests.support.stopped_calls import IN_THE_MIDDLE, PATIENT, STOP_OR_STEER, patient
from tests.support.waiting import wait_until
from tests.support.web_site import WEDGE, Site


class Surfer:
    """A browser with a resources, as a session has one, and a site to look at."""

    def __init__(self, browser: Browser, site: Site) -> None:
        self.browser = browser
        self.site = site
        self.resources = SessionResources()

    @property
    def chromium(self) -> Chromium:
        return self.resources.keep(self.browser._open)

    def run(self, name: str, stop: Stop | None = None, **arguments: Any) -> ToolOutcome:
        calls = ToolCalls(*self.browser.tools, resources=self.resources, grace=PATIENT)
        self.calls = calls
        return calls.call_stopped(stop, f"browser_{name}", **arguments)

    def text(self, name: str, **arguments: Any) -> str:
        outcome = self.run(name, **arguments)
        assert outcome.status == "completed", outcome
        return str(outcome.content)

    def home(self) -> str:
        return self.text("navigate", url=self.site.url)

    def wedge(self) -> None:
        """Have the page hang, in a script without an end."""
        self.site.seen.clear()
        assert self.text("console", expression=WEDGE) == "1"
        wait_until(lambda: "/wedged" in self.site.seen)

    def family(self) -> ProcessTree:
        life = self.chromium._run
        assert life is not None
        return life._tree

    def close(self) -> None:
        self.resources.close(PATIENT)


def ref_of(what: str, snapshot: str) -> str:
    found = re.search(rf"{re.escape(what)}.*? \[(e\d+)\]", snapshot)
    assert found is not None, snapshot
    return found[1]


@pytest.fixture(scope="module", autouse=True)
def _needs_chromium() -> None:
    if not any(map(shutil.which, NAMES)):
        say = pytest.fail if os.environ.get("HALTER_EVERY_TEST") else pytest.skip
        say("there is no Chromium here; as root, `scripts/setup --group dev` installs it")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    opened = Site()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def surfer(site: Site) -> Iterator[Surfer]:
    """A browser that lasts for all tests which leave it well; the site is all of this machine that it may reach."""
    one = Surfer(Browser(allow_private=[site.host]), site)
    yield one
    one.close()


@pytest.fixture
def fresh(site: Site) -> Iterator[Surfer]:
    one = Surfer(Browser(allow_private=[site.host]), site)
    yield one
    one.close()


def test_it_starts_where_temporary_files_are_far_away(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chromium refuses to start if the path of its socket is too long, as it was with some settings of TMPDIR."""
    far = tmp_path / ("a" * 60)
    far.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    one = Surfer(Browser(allow_private=[site.host]), site)
    try:
        assert site.url in one.home()
    finally:
        one.close()


def test_a_page_is_shown_as_elements_with_names(surfer: Surfer) -> None:
    """Opening a page tells where one is and what is on it; what can be acted on has a name."""
    text = surfer.home()
    assert f"Opened {surfer.site.url}/ (HTTP 200)" in text
    assert "Page: Home" in text
    assert re.search(r'heading "Welcome" \[level=1\] \[e\d+\]', text)
    assert re.search(r'link "the second page" \[e\d+\]', text)
    assert "Page: Home" in surfer.text("snapshot")


def test_elements_are_acted_on_by_their_names(surfer: Surfer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A click follows a link, back goes back, a text is typed and sent, a key is pressed."""
    snapshot = surfer.home()
    assert "the second page's text" in surfer.text("click", ref=ref_of('link "the second page"', snapshot))
    back = surfer.text("back")
    assert "Page: Home" in back
    pressed = surfer.text("click", ref="[" + ref_of('button "press me"', back) + "]")  # as it stands in the snapshot
    assert 'heading "Pressed"' in pressed
    field = ref_of('textbox "search"', pressed)
    assert "halters" in surfer.text("type", ref=field, text="halters")
    with monkeypatch.context() as patch:
        patch.setattr(page_module, "_NAVIGATION_DELAY", 10.0)  # it ends as soon as the navigation starts
        assert "at /found?q=reins" in surfer.text("type", ref=field, text="reins", submit=True)
    surfer.text("back")
    assert "Pressed Tab" in surfer.text("press", key="Tab")


def test_names_of_an_old_snapshot_are_refused(surfer: Surfer) -> None:
    """A name means one element for ever: not another one of a new page, and not one that was removed."""
    old = ref_of('button "removable"', surfer.home())
    new = surfer.home()
    outcome = surfer.run("click", ref=old)
    assert outcome.status == "failed"
    assert f"{old} is not in the last snapshot" in outcome.detail
    removable = ref_of('button "removable"', new)
    surfer.text("console", expression="document.querySelectorAll('button')[4].remove()")
    gone = surfer.run("click", ref=removable)
    assert f"{removable} is no longer on the page" in gone.detail
    assert "is not a reference" in surfer.run("click", ref="the button").detail


def test_the_window_is_scrolled_and_pictured(surfer: Surfer) -> None:
    """Scrolling tells what is in view, and a picture is a picture."""
    surfer.home()
    assert surfer.text("scroll", direction="down", pixels=500).startswith("The window shows 500 to 1300 of")
    assert surfer.text("scroll", direction="up", pixels=500).startswith("The window shows 0 to 800 of")
    for full_page in (False, True):
        content = surfer.run("screenshot", full_page=full_page).content
        assert isinstance(content[0], Image)
        assert content[0].data is not None
        assert content[0].data.startswith(b"\x89PNG")


def test_the_console_is_read_and_used(surfer: Surfer) -> None:
    """Lines and uncaught errors are kept until they are cleared; an expression has a value or fails."""
    surfer.text("console", clear=True)
    surfer.home()
    assert "warning: mind the gap" in surfer.text("console")
    assert surfer.text("console", expression="[1, {a: 2}]") == '[1,{"a":2}]'
    assert "nowhere is not defined" in surfer.run("console", expression="nowhere").detail
    surfer.text("console", expression="setTimeout(() => { throw new Error('broken') }, 0), 1")
    wait_until(lambda: "uncaught: broken" in surfer.text("console"))
    surfer.text("console", clear=True)
    assert surfer.text("console") == "(the console is empty)"


def test_dialogs_and_windows_are_told(surfer: Surfer) -> None:
    """A dialog does not block the page, and a window that was opened becomes the page."""
    snapshot = surfer.home()
    assert "dismissed: 'hello there'" in surfer.text("click", ref=ref_of('button "alert"', snapshot))
    surfer.run("click", ref=ref_of('button "window"', surfer.home()))
    wait_until(lambda: "Page: Two" in surfer.text("snapshot"))
    surfer.text("console", expression="window.close()")
    wait_until(lambda: "Page: Home" in surfer.text("snapshot"))


def test_what_cannot_be_opened_is_told(surfer: Surfer) -> None:
    """A server that hangs up, and addresses that are no web pages, are errors with words, and harm nothing."""
    assert "could not be opened: Page.goto: net::ERR_" in surfer.run("navigate", url=f"{surfer.site.url}/drop").detail
    for url in ("file:///etc/passwd", "chrome://settings", "javascript:1", "data:text/html,x", "view-source:http://x"):
        outcome = surfer.run("navigate", url=url)
        assert "only http:// and https:// addresses" in outcome.detail
    assert "Page: Home" in surfer.home()


def test_private_addresses_are_refused(surfer: Surfer) -> None:
    """Our own machine, the link and private nets are refused, however they are written, as are redirects to them."""
    other = Site()
    try:
        for url in (
            other.url,
            other.url.replace("127.0.0.1", "localhost"),
            other.url.replace("127.0.0.1", "0x7f.1"),
            other.url.replace("127.0.0.1", "[::ffff:127.0.0.1]"),
            "http://169.254.169.254/latest",
            "http://10.0.0.1",
            f"https://{other.host}",
            f"{surfer.site.url}/to/{other.host}",
        ):
            outcome = surfer.run("navigate", url=url)
            assert outcome.status == "failed"
            assert "private addresses are refused" in outcome.detail, url
        assert other.seen == []
    finally:
        other.close()
    assert "Page: Home" in surfer.home()


def test_what_a_page_wants_of_private_addresses_is_refused_too(surfer: Surfer) -> None:
    """Pictures, frames, scripts and web sockets pass the same gate; the page is shown, with a word on what was not."""
    other = Site()
    try:
        surfer.site.pages["/nosy"] = (
            f"<title>Nosy</title><img src='{other.url}/img'><iframe src='{other.url}/frame'></iframe>"
            f"<script>fetch('{other.url}/fetch', {{mode: 'no-cors'}}); new WebSocket('ws://{other.host}/ws')</script>"
        )
        text = surfer.text("navigate", url=f"{surfer.site.url}/nosy")
        assert "Page: Nosy" in text
        assert "Refused (not public)" in text
        assert other.host in text
        assert other.seen == []
    finally:
        other.close()


@pytest.mark.parametrize(
    "target",
    [
        "127.0.0.1:80",
        "10.1.2.3:80",
        "169.254.169.254:80",
        "168.63.129.16:80",
        "0.0.0.0:80",
        "100.64.0.1:80",
        "[::1]:80",
        "[fd00::1]:80",
        "[::127.0.0.1]:80",
        "[::ffff:10.0.0.1]:80",
        "[64:ff9b:1::a00:1]:80",
        "[fec0::1]:80",
        "[2002:7f00:1::]:80",
        "8.8.8.8:25",
    ],
)
def test_the_proxy_has_the_rules_of_all_tools(target: str) -> None:
    """What the fetching tools may not reach, the browser may not either: it is refused before it is connected to."""

    async def ask() -> bytes:
        proxy = FilteringProxy(Rules())
        reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
        try:
            writer.write(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            return await reader.read()
        finally:
            writer.close()
            proxy.close()

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 403 ")


def test_encrypted_pages_pass_the_proxy(tmp_path: Path) -> None:
    """TLS goes through the proxy from end to end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    site = Site(context)
    one = Surfer(Browser(allow_private=[site.host], args=["--ignore-certificate-errors"]), site)
    try:
        assert "Page: Home" in one.home()
    finally:
        one.close()
        site.close()


def test_everything_may_be_allowed(site: Site) -> None:
    """With allow_private=True there is no proxy."""
    one = Surfer(Browser(allow_private=True), site)
    try:
        assert "Page: Home" in one.home()
    finally:
        one.close()


# -- stopping ---------------------------------------------------------------------------------------

# For each tool what it is called with, and whether the page hangs beforehand so that it can be met in its middle.
CALLS: dict[str, Callable[[str], dict[str, Any]]] = {
    "snapshot": lambda _: {},
    "click": lambda ref: {"ref": ref},
    "type": lambda ref: {"ref": ref, "text": "halters"},
    "press": lambda _: {"key": "a"},
    "scroll": lambda _: {"direction": "down"},
    "screenshot": lambda _: {},
    "console": lambda _: {"expression": "1 + 1"},
}


def stop_with_page(surfer: Surfer, moment: Moment, reason: str) -> Stop:
    """A stop in whose middle the call has the page, which hangs."""

    def has_page() -> bool:
        is_started = any(isinstance(event, ToolStarted) for event in surfer.calls.events)
        return is_started and surfer.chromium._lock.locked()

    return Stop(reason, moment, wait=lambda: wait_until(has_page))


@pytest.mark.parametrize("reason", STOP_OR_STEER)
@pytest.mark.parametrize("name", CALLS)
def test_a_stop_at_any_moment_leaves_the_browser_usable(surfer: Surfer, name: str, reason: str) -> None:
    """Before it starts, as it starts, in the middle of a page that hangs, at the end: the next call finds it well."""
    for moment in MOMENTS:
        field = ref_of('textbox "search"', surfer.home())
        if moment in IN_THE_MIDDLE:
            surfer.wedge()
        outcome = surfer.run(name, stop_with_page(surfer, moment, reason), **CALLS[name](field))
        expected = {"before": {"not_started"}, "end": {"completed"}, "start": {"cancelled", "partial"}}
        assert outcome.status in expected.get(moment, {"cancelled"}), (moment, outcome)
        assert outcome.reason == (None if moment == "end" else reason)
    assert "Page: Home" in surfer.home()


@pytest.mark.parametrize("reason", STOP_OR_STEER)
def test_a_stop_while_a_page_loads(surfer: Surfer, reason: str) -> None:
    """A page that had answered is told of as partial, one that had not gives nothing; the next one opens."""
    site = surfer.site
    for moment in MOMENTS:
        for path, status in (("/endless", "partial"), ("/hang", "cancelled")):
            surfer.home()
            site.seen.clear()

            def is_there(path: str = path) -> bool:
                is_told = any("Opened" in each for each in surfer.calls.reports)
                return path in site.seen and (path == "/hang" or is_told)

            stop = Stop(reason, moment, wait=lambda: wait_until(is_there))
            outcome = surfer.run("navigate", stop, url=f"{site.url}{path if moment != 'end' else '/two'}")
            expected = {"before": "not_started", "start": "cancelled", "end": "completed"}
            assert outcome.status == expected.get(moment, status), (moment, path, outcome)
            if outcome.status == "partial":
                assert outcome.content == f"Opened {site.url}/endless (HTTP 200)"
    assert "Page: Home" in surfer.home()


@pytest.mark.parametrize("reason", STOP_OR_STEER)
def test_a_stop_on_the_way_back(surfer: Surfer, reason: str) -> None:
    """Going back to a page that does not answer this time can be stopped, and another one opened."""
    site = surfer.site
    for moment in MOMENTS:
        surfer.home()  # a request of the round before that is still on its way has been seen by then
        site.seen.clear()
        surfer.text("navigate", url=f"{site.url}/hang-again")
        surfer.home()
        if moment == "end":
            site.seen.clear()
        stop = Stop(reason, moment, wait=lambda: wait_until(lambda: site.seen.count("/hang-again") == 2))
        outcome = surfer.run("back", stop)
        expected = {"before": "not_started", "end": "completed"}
        assert outcome.status == expected.get(moment, "cancelled"), (moment, outcome)
    assert "Page: Home" in surfer.home()


def test_a_click_that_still_waits_is_never_made(surfer: Surfer) -> None:
    """A button that cannot be clicked yet is waited for; after a stop it may become ready, and is not clicked."""
    site = surfer.site
    snapshot = surfer.home()
    site.seen.clear()
    stop = stop_with_page(surfer, "middle", "stop")
    assert surfer.run("click", stop, ref=ref_of('button "not yet"', snapshot)).status == "cancelled"
    surfer.text("console", expression="document.getElementById('late').disabled = false, 1")
    surfer.text("console", expression="new Promise(done => setTimeout(() => done(1), 300))")
    assert "/clicked" not in site.seen


def test_a_stop_while_the_browser_starts(fresh: Surfer) -> None:
    """The start goes on for the next call, and closing in the middle of it leaves nothing."""
    stop = Stop("stop", wait=lambda: wait_until(lambda: fresh.chromium._run is not None))
    outcome = fresh.run("navigate", stop, url=fresh.site.url)
    assert outcome.status == "cancelled"
    assert "Page: Home" in fresh.home()


def test_closing_leaves_nothing(fresh: Surfer) -> None:
    """Closed with its session: no process, no folder, no thread; closing again does nothing, and a call fails."""
    fresh.home()
    life = fresh.chromium._run
    assert life is not None
    chromium = fresh.chromium
    pids = list(fresh.family().members())
    assert len(pids) > 3
    fresh.close()
    assert not [pid for pid in pids if is_alive(pid)]
    assert not Path(life._folder).exists()
    wait_until(lambda: chromium._loop._thread not in threading.enumerate())
    chromium.close()
    fresh.resources = SessionResources()
    fresh.resources.keep(fresh.browser._open).close()
    assert "was closed" in fresh.run("snapshot").detail


def test_closing_while_it_starts_leaves_nothing(fresh: Surfer) -> None:
    """A session that is closed while its browser starts leaves no process behind."""
    found: list[ToolOutcome] = []
    thread = threading.Thread(target=lambda: found.append(fresh.run("snapshot")))
    thread.start()
    wait_until(lambda: fresh.chromium._run is not None)
    life = fresh.chromium._run
    assert life is not None
    fresh.close()
    thread.join(30)
    assert found[0].status == "failed"
    assert not life._tree.members()
    assert not Path(life._folder).exists()


def test_a_window_that_was_closed_is_replaced(fresh: Surfer) -> None:
    """When the last window is closed, the next call has a new one."""
    fresh.home()
    life = fresh.chromium._run
    assert life is not None
    fresh.chromium._loop.do_blocking(life.started.result()._page.close, 10)
    assert "Page: Home" in fresh.home()


@pytest.mark.parametrize("victim", ["--remote-debugging-pipe", "run-driver"])
def test_a_browser_that_died_is_started_again(fresh: Surfer, victim: str) -> None:
    """When Chromium or Playwright's driver is killed, the next call starts another."""
    assert "there is no previous page" in fresh.run("back").detail
    fresh.home()
    life = fresh.chromium._run
    assert life is not None
    for pid in life._tree.members():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if victim in words and not any(word.startswith("--type=") for word in words):
            os.kill(pid, 9)
            break
    wait_until(lambda: life.is_dead)
    assert "Page: Home" in fresh.home()
    assert not life._tree.members()


@pytest.mark.parametrize("how", ["kill", "end"])
def test_an_owner_that_is_killed_or_just_ends_leaves_nothing(site: Site, how: str) -> None:
    """A program that ends with a browser open leaves no Chromium, no driver and no folder behind."""
    code = """
        import json, os, signal, sys
        sys.path.insert(0, sys.argv[2])
        from tests.toolbox.browser.test_browser import Surfer
        from tests.support.web_site import Site
        from halter.toolbox.browser.browser import Browser
        one = Surfer(Browser(allow_private=True), None)
        one.text("navigate", url=sys.argv[1])
        print(one.chromium._run._folder, *one.family().members(), flush=True)
        if sys.argv[3] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), site.url, str(Path(__file__).parents[3]), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    folder, *pids = ended.stdout.split()
    assert len(pids) > 3, ended.stderr
    for pid in pids:
        wait_dead(int(pid), 30)
    wait_until(lambda: not Path(folder).exists(), 20)


def test_sessions_have_browsers_of_their_own(site: Site) -> None:
    """An agent uses the tools as any other, and a turn that is stopped is followed by one that works."""
    browser = Browser(allow_private=[site.host])
    opening = ToolCall("1", "browser_navigate", json.dumps({"url": f"{site.url}/hang"}))
    again = ToolCall("2", "browser_navigate", json.dumps({"url": site.url}))
    site.seen.clear()
    with Agent(ScriptedModel(opening, again, "seen"), patient(browser.tools)).session() as session:

        def stop() -> None:
            wait_until(lambda: "/hang" in site.seen, 30)
            session.interrupt("the other page")

        thread = threading.Thread(target=stop)
        thread.start()
        first = session.run("look")
        thread.join(30)
        second = session.run()
        assert (first.status, first.outcomes[0].status) == ("interrupted", "cancelled")
        assert second.text == "seen"
        assert "Page: Home" in str(second.outcomes[0].content)


def test_a_missing_chromium_is_told_clearly(site: Site) -> None:
    """The error says what was looked for and how to get it; a program that is none says that it could not start."""
    one = Surfer(Browser("no-such-chromium"), site)
    outcome = one.run("snapshot")
    one.close()
    assert "apt-get install chromium" in outcome.detail
    two = Surfer(Browser("/bin/false"), site)
    outcome = two.run("snapshot")
    two.close()
    assert "/bin/false could not be started" in outcome.detail
    assert find_executable("sh").endswith("/sh")
