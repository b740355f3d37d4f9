# ruff: noqa: INP001  (a script, not a package)
"""Makes the pictures of the page in docs/page/: a real gateway, real tools, a real Chromium.

    python docs/page_pictures.py [SCENE ...]

Each scene is taken 1280 and 390 wide, light and dark. A scene is played once; the other forms open the same session.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402  (behind the path)
from playwright.sync_api import expect, sync_playwright  # noqa: E402  (behind the path)

from halter import Agent, Compaction  # noqa: E402
from halter.models import ToolCall  # noqa: E402
from halter.models.prices import Price  # noqa: E402
from halter.testing import Gate, ScriptedModel  # noqa: E402
from halter.toolbox import Checkpoints, Delegate, Files, Terminal, Todo  # noqa: E402
from halter.toolbox.sandbox.sandbox import Sandbox  # noqa: E402
from tests.support.web_page import House, Tab, context_of, launch  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser

_FOLDER = ROOT / "docs" / "page"
_FORMS: dict[str, dict[str, Any]] = {
    "wide-light": {"height": 860},
    "wide-dark": {"height": 860, "dark": True},
    "phone-light": {"phone": True},
    "phone-dark": {"phone": True, "dark": True},
}
_COLOURS = 128
_NAME = "gpt-5"
_PRICES = {_NAME: Price(input=1.25, output=10.0)}
_CODE = "def total(prices):\n    result = 0\n    for price in prices:\n        result -= price\n    return result\n"
_TEST = "from prices import total\n\nassert total([1, 2]) == 3\nprint('all passed')\n"
_PATCH = """--- a/prices.py
+++ b/prices.py
@@ -1,5 +1,5 @@
 def total(prices):
     result = 0
     for price in prices:
-        result -= price
+        result += price
     return result
"""
_calls = iter(range(1_000))


def _call(name: str, **given: object) -> ToolCall:
    return ToolCall(f"call-{next(_calls)}", name, json.dumps(given))


class Stage:
    """A workspace with a small repository, and the house of one scene."""

    def __init__(
        self, *script: object, others: tuple[Agent, ...] = (), ask_for: str = "", window: int = 128_000
    ) -> None:
        self.workspace = Path(tempfile.mkdtemp()) / "shop"
        self.workspace.mkdir()
        (self.workspace / "prices.py").write_text(_CODE)
        (self.workspace / "test_prices.py").write_text(_TEST)
        terminal = Terminal(self.workspace, sandbox=Sandbox(self.workspace, "workspace"))
        tools = Checkpoints(self.workspace).watch([*Files(self.workspace).tools, *terminal.tools])
        for tool in tools:
            tool.approval = tool.name == ask_for
        tools += [*Todo().tools, *(Delegate(others).tools if others else [])]
        model = ScriptedModel(*script, name=_NAME)  # type: ignore[arg-type]
        agent = Agent(model, tools, approve="ask", prices=_PRICES, compaction=Compaction(window=window))
        self.house = House(agent=agent)


_LOOK = [_call("read_file", path="prices.py"), _call("search_files", pattern="total")]
_RUN = "python3 test_prices.py"


def _first_run(_page: Tab) -> None:
    pass


def _diff(page: Tab) -> None:
    page.say("The test of total() fails. Fix it.")
    expect(page.button("Allow")).to_be_enabled()


def _failed(page: Tab) -> None:
    page.say("Run the tests.")
    page.idle()


def _children(page: Tab) -> None:
    page.say("Have the fix reviewed and tested.")
    expect(page.page.locator(".doing:visible")).to_have_count(2)


def _steer(page: Tab) -> None:
    page.say("Explain what the test does.")
    expect(page.answers).to_contain_text("It")
    page.say("Shorter, please.", "Steer")
    page.idle()


def _stop(page: Tab) -> None:
    page.say("Run the slow tests.")
    expect(page.calls.locator(".tail").first).to_contain_text("test 3")
    page.say("Then commit it.", "Queue")
    expect(page.waiting).to_have_count(1)
    page.button("Stop").click()
    page.idle()


def _compaction(page: Tab) -> None:
    for text in ("Read all of it. " * 100, "And the rest. " * 100):
        page.say(text)
        page.idle()
    page.button("Session menu").click()
    page.page.get_by_role("menuitem", name="Compact the context").click()
    page.say("Now go on.")
    expect(page.page.locator(".compaction")).to_be_visible()
    page.idle()


def _undo(page: Tab) -> None:
    page.say("Fix the sign.")
    page.idle()


def _open_undo(page: Tab) -> None:
    page.button("Undo").click()
    expect(page.page.get_by_role("dialog")).to_be_visible()


def _open_settings(page: Tab) -> None:
    page.page.keyboard.press("Alt+s")
    expect(page.page.get_by_role("dialog")).to_be_visible()


def _open_timeline(page: Tab) -> None:
    page.button("Timeline").last.click()


def _nothing(_page: Tab) -> None:
    pass


def _child(name: str, *script: object) -> Agent:
    folder = Path(tempfile.mkdtemp())
    (folder / "prices.py").write_text(_CODE)
    return Agent(ScriptedModel(*script), Files(folder).tools, name=name)


_TASKS = [
    {"agent": "reviewer", "task": "Review prices.py: is the fix of total() complete?"},
    {"agent": "tester", "task": "Write tests for total() with empty lists and negative prices."},
]
_SLOW = "for i in 1 2 3 4 5 6 7 8 9; do echo test $i passed; sleep 0.4; done"
_LONG = [f"{word} " for word in ("It calls `total()` with two prices and compares the sum. " * 6).split()]


def _scenes() -> dict[str, tuple[Stage, Callable[[Tab], None], Callable[[Tab], None]]]:
    """Each scene: its stage, what is played once, and what is opened in each form."""
    others = (
        _child("reviewer", _call("read_file", path="prices.py"), ["Hm. ", Gate()]),
        _child("tester", _call("search_files", pattern="def total"), ["Hm. ", Gate()]),
    )
    long = "A long answer about many files. " * 120
    return {
        "first-run": (Stage("Hello."), _first_run, _nothing),
        "diff": (Stage(_LOOK, _call("patch", changes=_PATCH), "Done.", ask_for="patch"), _diff, _nothing),
        "failed-command": (
            Stage(_call("terminal", command=_RUN), "It fails: the sign in `total()` is wrong."), _failed, _nothing
        ),
        "children": (Stage(_call("delegate", tasks=_TASKS), "Done.", others=others), _children, _nothing),
        "steer": (Stage([*_LONG, Gate()], "It adds up two prices."), _steer, _nothing),
        "stop": (
            Stage([_call("terminal", command=_SLOW), _call("read_file", path="prices.py")]), _stop, _open_timeline
        ),
        "compaction": (Stage(long, long, "The summary.", "Going on.", window=9_000), _compaction, _nothing),
        "undo": (Stage(_call("patch", changes=_PATCH), "The sign is right now."), _undo, _open_undo),
        "settings": (Stage("Hello."), _first_run, _open_settings),
    }  # fmt: skip


def _take(browser: Browser, name: str, stage: Stage, play: Callable[[Tab], None], show: Callable[[Tab], None]) -> None:
    os.environ["HOME"] = str(stage.workspace.parent)  # the page then calls the workspace `~/shop`
    first = Tab(context_of(browser, height=860).new_page()).open(stage.house.address())
    play(first)
    session = first.session
    for form, options in _FORMS.items():
        tab = Tab(context_of(browser, **options).new_page())
        tab.page.emulate_media(reduced_motion="reduce")
        tab.open(stage.house.address(session))
        expect(tab.page.locator("#status")).to_be_visible()
        expect(tab.page.locator(".turn").last if session else tab.page.locator(".welcome")).to_be_visible()
        show(tab)
        tab.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)))")
        file = _FOLDER / f"{name}-{form}.png"
        tab.page.screenshot(path=file, scale="css")
        with Image.open(file) as picture:
            picture.convert("RGB").quantize(_COLOURS).save(file, optimize=True)
        tab.page.context.close()
    if session and first.button("Stop").is_visible():
        first.button("Stop").click()
    first.page.context.close()


def main() -> None:
    """Take all pictures, or those that are named."""
    _FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = launch(driver)
        for name, (stage, play, show) in _scenes().items():
            if not sys.argv[1:] or name in sys.argv[1:]:
                _take(browser, name, stage, play, show)
            stage.house.close()
        browser.close()


if __name__ == "__main__":
    main()
