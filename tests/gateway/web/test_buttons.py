"""Every button of the page is pressed in some test; here are those that no other test presses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Route, expect

import halter.gateway
from halter import tool
from halter.models import ToolCall
from halter.models.types import ReasoningDelta
from halter.testing import Gate
from halter.toolbox import Checkpoints, Files, Terminal
from tests.gateway.web.test_sessions import remove
from tests.support.web_page import House, Tab

MakeHouse = Callable[..., House]
MakeTab = Callable[..., Tab]

_WEB = Path(halter.gateway.__file__).parent / "web"
_MADE = re.compile(r'\bbutton\(\s*(?:"([^"]+)"|`([^`$]+))')  # a template, up to its first value
_LABELLED = re.compile(r'\bbutton\(""[^;]*?"aria-label": (?:"([^"]+)"|`([^`$]+))')
_MENU = re.compile(r'\["\w+", "([^"]+)", act\.\w+\]')
_HTML = re.compile(r"<button\b(.*?)>(.*?)</button>", re.DOTALL)


def _labels() -> set[str]:
    """What the buttons in the sources of the page are called."""
    found: set[str] = set()
    for path in _WEB.glob("*.js"):
        for pattern in (_MADE, _LABELLED, _MENU):
            for names in pattern.findall(path.read_text()):
                found.add(next(filter(None, names)) if isinstance(names, tuple) else names)
    for attributes, content in _HTML.findall((_WEB / "index.html").read_text()):
        label = re.search(r'aria-label="(.+?)"', attributes)
        found.add(label[1] if label else re.sub(r"<.+?>", "", content).strip())
    return {each.strip() for each in found}


def test_every_button_is_pressed_in_some_test() -> None:
    """A button that no test names is one that nobody would miss if it broke."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    labels = _labels()
    assert len(labels) > 45, labels
    assert not {label for label in labels if f'"{label}' not in tests and f'{label}"' not in tests}


@tool
def list_words(count: int) -> str:
    """Return many words."""
    return "\n".join(f"word {number}" for number in range(count))


def test_long_results_and_diffs_are_shown_whole(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """Of a long result and of a long file the beginning is shown, and the rest on a click."""
    text = "\n".join(f"line {number}" for number in range(500))
    written = json.dumps({"path": "a.txt", "content": text})
    calls = [ToolCall("1", "list_words", '{"count": 5000}'), ToolCall("2", "write_file", written)]
    page = tab(house(calls, "Done.", tools=[list_words, *Files(tmp_path).tools]).address())
    page.say("Go.")
    page.idle()
    long = page.calls.filter(has_text="list_words")
    long.locator("summary").first.click()
    expect(long).not_to_contain_text("word 4999")
    long.get_by_role("button", name=re.compile("^Show all .* characters")).click()
    expect(long).to_contain_text("word 4999")
    diff = page.page.locator(".diff")
    page.calls.filter(has=diff).locator("summary").first.click()
    expect(diff.locator("ins")).to_have_count(400)
    diff.get_by_role("button", name="Show all 500 lines").click()
    expect(diff.locator("ins")).to_have_count(500)


def test_what_was_thought_is_folded(house: MakeHouse, tab: MakeTab) -> None:
    """The thoughts of a model are shown on a click."""
    page = tab(house([ReasoningDelta("Hm, a greeting."), "Hello."]).address())
    page.say("Hi.")
    page.idle()
    thought = page.page.locator(".thought p")
    expect(thought).to_be_hidden()
    page.page.get_by_text("Thinking", exact=True).click()
    expect(thought).to_have_text("Hm, a greeting.")


def test_an_answer_is_copied(house: MakeHouse, tab: MakeTab) -> None:
    """The whole answer of a turn, as it was written; while it is written there is no button."""
    gate = Gate()
    page = tab(house(["**One** ", gate, "more."]).address(), phone=False)
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.say("Hi.")
    expect(page.answers).to_contain_text("One")
    expect(page.button("Copy the answer")).to_be_hidden()
    gate.open()
    page.idle()
    page.button("Copy the answer").click()
    expect(page.button("Copy the answer")).to_contain_text("Copied")
    assert page.page.evaluate("navigator.clipboard.readText()") == "**One** more."


def test_a_turn_is_undone_and_its_files_kept(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """*Keep the files* takes the turn out of the conversation and leaves what it has written."""
    tools = Checkpoints(tmp_path).watch(Files(tmp_path).tools)
    write = ToolCall("1", "write_file", '{"path": "a.txt", "content": "new"}')
    page = tab(house(write, "Done.", tools=tools).address())
    page.say("Go.")
    page.idle()
    page.button("Undo").click()
    page.button("Keep the files").click()
    expect(page.ends).to_contain_text("Removed from the conversation")
    expect(page.button("Redo the file changes")).to_be_hidden()
    assert (tmp_path / "a.txt").read_text() == "new"


def test_a_refused_message_is_sent_again(house: MakeHouse, tab: MakeTab) -> None:
    """A message that the gateway has refused stays, with its reason, until it is sent again."""
    page = tab(house("One.", "Two.").address())
    page.say("first")
    page.idle()
    problem = {"status": 422, "json": {"title": "Unprocessable", "detail": "Not now."}}
    refuse: Callable[[Route], Any] = lambda route: route.fulfill(**problem)  # type: ignore[arg-type]  # noqa: E731
    page.page.route("**/messages", refuse)
    page.say("second")
    expect(page.waiting).to_contain_text("Not now.")
    page.page.unroute_all()
    page.button("Send again").click()
    expect(page.answers).to_have_text(["One.", "Two."])
    assert "422" in page.wrong.pop()  # the browser tells of each refusal


def test_the_buttons_around_the_conversation(house: MakeHouse, tab: MakeTab) -> None:
    """Help, the settings, the choice of files, and on a phone the list and what is beside it."""
    page = tab(house("One.").address(), phone=True)
    dialog = page.page.get_by_role("dialog")
    expect(page.page.locator("#status").get_by_label("Model")).to_have_value("scripted")  # the agents have come
    page.button("Sessions").tap()
    page.button("Help and keyboard shortcuts").tap()
    expect(dialog).to_contain_text("Ctrl+Enter")
    dialog.get_by_role("button", name="Close").tap()
    page.button("Settings").tap()
    expect(dialog).to_contain_text("halter config show")
    dialog.get_by_role("button", name="Close").tap()
    page.page.locator("#shade").tap(position={"x": 380, "y": 400})
    expect(page.page.locator("#shade")).to_be_hidden()
    with page.page.expect_file_chooser() as chooser:
        page.button("Attach files").tap()
    assert chooser.value.is_multiple()


def test_an_approval_says_why_in_a_sentence(house: MakeHouse, tab: MakeTab) -> None:
    """The reason began with a small letter, as no sentence does."""
    page = tab(house(ToolCall("1", "remove", '{"path": "/x"}'), "Done.", tools=[remove], approve="ask").address())
    page.say("Go.")
    expect(page.page.locator(".why")).to_have_text(re.compile("^[A-Z]"))
    page.button("Allow").click()
    page.idle()


def test_a_prefix_is_allowed_for_always(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """*Always allow* names the prefix, runs the command, and has the gateway keep the prefix."""
    kept: list[tuple[str, ...]] = []
    call = ToolCall("1", "terminal", '{"command": "touch made.txt"}')
    tools = Terminal(tmp_path).tools
    page = tab(house(call, "Done.", tools=tools, approve="ask", keep_prefixes=kept.extend).address())
    page.say("Go.")
    page.page.get_by_role("button", name="Always allow `touch").click()
    page.idle()
    assert (tmp_path / "made.txt").exists()
    assert [prefix[0] for prefix in kept] == ["touch"]
