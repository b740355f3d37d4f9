"""How tool calls are shown: changes as diffs, commands with their end, reads in a line, lists, and other agents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from halter import Agent
from halter.models import ToolCall
from halter.testing import Gate, ScriptedModel
from halter.toolbox import Delegate, Files, Terminal, Todo
from halter.tools.tool import Tool
from tests.support.web_page import House, Tab, context_of

MakeHouse = Callable[..., House]
MakeTab = Callable[..., Tab]

_DIFF = """--- a/prices.py
+++ b/prices.py
@@ -1,2 +1,2 @@ def total
 first
--- gone
+now
--- /dev/null
+++ b/new.py
@@ -0,0 +1 @@
+created
"""
_BLOCKS = """prices.py
<<<<<<< SEARCH
same
old
end
=======
same
new
newer
end
>>>>>>> REPLACE
"""


def call_of(name: str, **given: Any) -> ToolCall:
    call_of.count = getattr(call_of, "count", 0) + 1  # type: ignore[attr-defined]
    return ToolCall(f"call-{call_of.count}", name, json.dumps(given))  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """A page whose modules can be called."""
    house = House()
    context = context_of(browser)
    opened = context.new_page()
    opened.goto(house.address())
    yield opened
    context.close()
    house.close()


def _changes(page: Page, tool: str, given: dict[str, str]) -> Any:
    read = "(await import('/page/diff.js')).changesOf(tool, given)"
    return page.evaluate(f"async ([tool, given]) => {read}", [tool, given])


def test_a_unified_diff_is_read(page: Page) -> None:
    """Each file has its name and its lines with their numbers; a removed line that begins with dashes is no header."""
    changed, created = _changes(page, "patch", {"changes": _DIFF})
    assert (changed["path"], changed["change"]) == ("prices.py", "changed")
    assert [(line["mark"], line["text"]) for line in changed["lines"]] == [
        ("@", "def total"), (" ", "first"), ("-", "-- gone"), ("+", "now"),
    ]  # fmt: skip
    assert [line["now"] for line in changed["lines"]] == [None, 1, None, 2]
    assert (created["path"], created["change"]) == ("new.py", "created")
    assert len(created["lines"]) == 2


def test_search_and_replace_blocks_are_read(page: Page) -> None:
    """What a block removes and adds again at its ends is context, and the line before it names the file."""
    (file,) = _changes(page, "patch", {"changes": _BLOCKS})
    assert file["path"] == "prices.py"
    assert [(line["mark"], line["text"]) for line in file["lines"][1:]] == [
        (" ", "same"), ("-", "old"), ("+", "new"), ("+", "newer"), (" ", "end"),
    ]  # fmt: skip


@pytest.mark.parametrize("changes", ["", "nothing of a diff", "@@ broken @@", "<<<<<<< SEARCH"])
def test_what_is_no_patch_is_shown_as_it_was_written(page: Page, changes: str) -> None:
    """A patch that cannot be read breaks nothing: the call shows its arguments."""
    files = _changes(page, "patch", {"changes": changes}) or []
    assert not any(line["mark"] in "+-" for file in files for line in file["lines"])


def test_a_change_is_a_diff_before_and_after_it_is_allowed(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """The diff with its counts is there while it is asked about, and stays when the change was made."""
    (tmp_path / "prices.py").write_text("first\n-- gone\n")
    tools = [_asked(each) if each.name == "patch" else each for each in Files(tmp_path).tools]
    there = house(call_of("patch", changes=_DIFF), "Done.", tools=tools, approve="ask")
    shown = tab(there.address())
    shown.say("change it")
    call = shown.calls
    expect(call.locator(".ask")).to_contain_text("Change these 2 files?")
    for _ in range(2):
        expect(call.locator(".diff figcaption .path")).to_have_text(["prices.py", "new.py"])
        expect(call.locator("summary .added")).to_have_text("+2")
        expect(call.locator("summary .removed")).to_have_text("\N{MINUS SIGN}1")
        expect(call.locator(".diff ins")).to_contain_text(["now", "created"])
        expect(call.locator(".diff del")).to_contain_text(["-- gone"])
        expect(call.locator(".diff").first).to_be_visible()
        if shown.button("Allow").is_visible():
            shown.button("Allow").click()
            shown.idle()
    assert (tmp_path / "prices.py").read_text() == "first\nnow\n"


def _asked(tool: Tool[..., Any]) -> Tool[..., Any]:
    tool.approval = True
    return tool


def test_a_failed_command_looks_like_one(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """It has its exit code in red and its last lines; all of its output is there on demand."""
    command = "for i in $(seq 1 40); do echo line $i; done; exit 3"
    there = house(
        call_of("terminal", command=command), call_of("terminal", command="echo fine"), "Done.",
        tools=Terminal(tmp_path).tools, approve=lambda _: True,
    )  # fmt: skip
    shown = tab(there.address())
    shown.say("run it")
    shown.idle()
    bad, good = shown.calls.nth(0), shown.calls.nth(1)
    expect(bad.locator(".state")).to_have_text("exit code 3")
    expect(bad).to_have_class("call bad")
    expect(bad.locator(".tail")).to_contain_text("line 40")
    expect(bad.locator(".tail")).not_to_contain_text("line 20")
    expect(good.locator(".state")).to_have_text("done")
    expect(good.locator(".tail")).to_be_hidden()
    colours = "(each) => getComputedStyle(each.querySelector('.state')).color"
    assert bad.evaluate(colours) != good.evaluate(colours)
    bad.locator("summary").click()
    expect(bad.locator(".tail")).to_be_hidden()
    expect(bad.locator(".result pre")).to_contain_text("line 1\nline 2")
    bad.get_by_role("button", name="Copy").click()
    expect(bad.get_by_role("button", name="Copied")).to_be_visible()


def test_a_stopped_command_keeps_its_last_lines(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """What it had printed went away with the stop, just when one wanted to read it."""
    call = call_of("terminal", command="echo begun; sleep 60")
    shown = tab(house(call, tools=Terminal(tmp_path).tools, approve=lambda _: True).address())
    shown.say("run it")
    expect(shown.calls.locator(".tail")).to_have_text("begun")
    shown.button("Stop").click()
    shown.idle()
    expect(shown.calls.locator(".state")).to_have_text("partial")
    expect(shown.calls.locator(".tail")).to_contain_text("begun")


def test_the_last_lines_of_a_running_command_are_live(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """While a command runs, what it prints is seen without opening anything."""
    command = "echo begun; until [ -e go ]; do sleep 0.02; done; echo over"
    there = house(call_of("terminal", command=command), "Done.", tools=Terminal(tmp_path).tools, approve=lambda _: True)
    shown = tab(there.address())
    shown.say("run it")
    expect(shown.calls.locator(".tail")).to_have_text("begun")
    (tmp_path / "go").touch()
    shown.idle()
    expect(shown.calls.locator(".tail")).to_be_hidden()


def test_reads_and_searches_are_one_line(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """They say what was read, and how much was found; a click shows the rest."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    calls = [call_of("read_file", path="a.txt"), call_of("search_files", pattern="two")]
    there = house(calls, "Done.", tools=Files(tmp_path).tools)
    shown = tab(there.address())
    shown.say("look")
    shown.idle()
    expect(shown.calls.locator("summary b")).to_have_text(["Read", "Search"])
    expect(shown.calls.locator("summary .given")).to_have_text(["a.txt", "two"])
    expect(shown.calls.locator("summary .state")).to_have_text(["2 lines", "1 match"])
    assert shown.calls.first.bounding_box()["height"] < 34  # type: ignore[index]
    shown.calls.first.locator("summary").click()
    expect(shown.calls.first.locator(".result pre")).to_contain_text("two")


def test_a_to_do_list_is_a_list(house: MakeHouse, tab: MakeTab) -> None:
    """Its items are shown with their states, without opening anything."""
    there = house(
        call_of("todo", add=["find it", "mend it"]), call_of("todo", number=1, state="done"), "Done.",
        tools=Todo().tools,
    )  # fmt: skip
    shown = tab(there.address())
    shown.say("plan")
    shown.idle()
    items = shown.calls.last.locator(".todo li")
    expect(items).to_have_text(["done: find it", "open: mend it"])
    expect(items.first).to_be_visible()
    expect(shown.calls.last.locator("summary")).to_contain_text("1 of 2 left")


def test_other_agents_show_their_task_and_what_they_do(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """Each child has its task, its state, and the last call that it has started."""
    (tmp_path / "a.txt").write_text("one\n")
    gate = Gate()
    script = ScriptedModel(call_of("read_file", path="a.txt"), ["Hm. ", gate])
    child = Agent(script, Files(tmp_path).tools, name="reader")
    task = {"agent": "reader", "task": "Read a.txt."}
    there = house(call_of("delegate", tasks=[task]), "Done.", tools=Delegate([child]).tools)
    shown = tab(there.address())
    shown.say("have it read")
    one = shown.page.locator(".child")
    expect(one.locator(".task")).to_have_text("Read a.txt.")
    expect(one.locator(".doing")).to_have_text("1 call · read_file a.txt")
    expect(one.locator(".state")).to_have_text("running")
    gate.open()
    shown.idle()
    expect(one.locator(".state")).to_have_text("done")
    expect(one.locator(".doing")).to_have_text("1 call")


def test_code_has_colours_and_task_lists_have_boxes(house: MakeHouse, tab: MakeTab) -> None:
    """Code of a known language is coloured when it is complete, and copied without its colours."""
    code = '# a note\ndef f(x: int) -> str:\n    return "é" * 42'
    there = house(f"```python\n{code}\n```\n\n- [x] done\n- [ ] open\n")
    shown = tab(there.address())
    shown.say("write")
    shown.idle()
    block = shown.answers.locator("pre code")
    expect(block).to_have_text(code)
    expect(block.locator(".of-comment")).to_have_text("# a note")
    expect(block.locator(".of-word")).to_have_text(["def", "return"])
    expect(block.locator(".of-string")).to_have_text('"é"')
    expect(block.locator(".of-number")).to_have_text("42")
    boxes = shown.answers.get_by_role("checkbox")
    assert [each.is_checked() for each in boxes.all()] == [True, False]
    shown.button("Copy").click()
    expect(shown.button("Copied")).to_be_visible()
