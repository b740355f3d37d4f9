"""The page for everybody: axe-core finds nothing wrong with contrast, labels, roles and the order of headings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from halter.models import ToolCall
from halter.testing import Gate
from halter.toolbox import Checkpoints, Files, Terminal, Todo
from tests.support.web_page import House, Tab

MakeHouse = Callable[..., House]
MakeTab = Callable[..., Tab]

_AXE = Path(__file__).parents[3] / ".venv" / "js" / "node_modules" / "axe-core" / "axe.min.js"
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
_ANSWER = """# Title

Some text with a [link](https://example.com), `code`, and a list:

- [x] done
- [ ] open

```python
# a comment
def f(x): return "text" + str(42)
```

| a | b |
|---|---|
| 1 | 2 |

> quoted
"""


@pytest.fixture(scope="module")
def axe() -> str:
    if not _AXE.exists():
        pytest.skip("there is no axe-core here; `scripts/setup --group dev` installs it where npm is present")
    return _AXE.read_text("utf-8")


def _check(page: Page, axe: str) -> None:
    page.evaluate(axe)
    run = "(rules) => axe.run({ runOnly: rules }).then((all) => all.violations)"
    found: list[dict[str, Any]] = page.evaluate(run, _RULES)
    told = [(each["id"], node["html"][:160], node["failureSummary"]) for each in found for node in each["nodes"]]
    assert not told


def _call(name: str, **given: object) -> ToolCall:
    return ToolCall(f"{name} {len(str(given))}", name, json.dumps(given))


@pytest.mark.parametrize("form", [{}, {"dark": True}, {"phone": True}, {"phone": True, "dark": True}], ids=str)
def test_axe_finds_nothing(house: MakeHouse, tab: MakeTab, tmp_path: Path, axe: str, form: dict[str, bool]) -> None:
    """Neither in an empty session, nor with calls, diffs, an approval, a failed command, or in the dialogs."""
    (tmp_path / "a.txt").write_text("one\n")
    patch = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n"
    gate = Gate()
    tools = [*Checkpoints(tmp_path).watch([*Files(tmp_path).tools, *Terminal(tmp_path).tools]), *Todo().tools]
    there = house(
        [_call("todo", add=["one", "two"]), _call("read_file", path="a.txt")],
        _call("terminal", command="echo no >&2; touch x; exit 3"),
        _call("patch", changes=patch),
        _ANSWER,
        ["Waiting ", gate],
        tools=tools,
        approve="ask",
    )
    shown = tab(there.address(), **form)
    page = shown.page
    page.emulate_media(reduced_motion="reduce")
    expect(page.locator(".welcome")).to_be_visible()
    expect(page.locator("#status")).to_be_visible()
    _check(page, axe)
    shown.say("do it")
    expect(shown.button("Allow")).to_be_enabled()
    _check(page, axe)
    shown.button("Allow").click()
    expect(shown.answers).to_be_visible()
    shown.idle()
    page.locator(".call.bad summary").click()
    _check(page, axe)
    for name in ("Rename", "Changed files"):
        shown.button("Session menu").click()
        _check(page, axe)
        page.get_by_role("menuitem", name=name).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        _check(page, axe)
        page.keyboard.press("Escape")
    page.keyboard.press("Alt+s")
    _check(page, axe)
    page.keyboard.press("Escape")
    shown.say("wait")
    gate.wait_reached()
    shown.say("later", "Queue")
    expect(shown.waiting).to_have_count(1)
    shown.button("Stop").click()
    shown.idle()
    shown.button("Timeline").last.click()
    _check(page, axe)
    page.keyboard.press("?")
    _check(page, axe)


def test_nothing_moves_for_who_does_not_want_it(house: MakeHouse, tab: MakeTab) -> None:
    """With reduced motion there are no animations, also while a turn runs."""
    gate = Gate()
    there = house(["One ", gate])
    shown = tab(there.address(), dark=True)
    shown.page.emulate_media(reduced_motion="reduce")
    shown.say("go")
    gate.wait_reached()
    assert shown.page.evaluate("document.getAnimations().length") == 0
    gate.open()
    shown.idle()
