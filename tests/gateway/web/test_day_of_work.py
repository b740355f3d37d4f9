"""A day of work on the page: a failing test in a small repository is fixed, and the fix is undone and brought back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from halter import Agent
from halter.models import OpenAIModel, ToolCall
from halter.testing import FakeProvider, answer, tool_calls
from halter.toolbox import Checkpoints, Files, Terminal
from tests.support.web_page import House, Tab

MakeHouse = Callable[..., House]
MakeTab = Callable[..., Tab]

_WRONG = "def total(prices):\n    result = 0\n    for price in prices:\n        result -= price\n    return result\n"
_TEST = "from prices import total\n\nassert total([1, 2]) == 3\nassert total([]) == 0\nprint('all passed')\n"
_RUN = f"{sys.executable} -B test_prices.py"  # bytecode of a file that changed within the second would be stale


class _Hand:
    """Counts what the user has to do."""

    def __init__(self, page: Tab) -> None:
        self.page = page
        self.clicks = self.questions = self.messages = 0

    def say(self, text: str) -> None:
        self.page.field.fill(text)
        self.page.page.keyboard.press("Enter")
        self.messages += 1

    def click(self, name: str) -> None:
        self.page.button(name).last.click()
        self.clicks += 1

    def allow_for_session(self) -> None:
        ask = self.page.page.locator(".ask:visible")
        ask.get_by_role("button", name="in this session").click()
        self.questions += 1
        self.clicks += 1
        expect(ask).to_have_count(0)


def _patch(old: str, new: str) -> str:
    return f"prices.py\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def test_a_failing_test_is_fixed_and_undone(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """Read, search, patch, run, fail, patch, run, pass, undo, redo: one message, one question, and four clicks."""
    (tmp_path / "prices.py").write_text(_WRONG)
    (tmp_path / "test_prices.py").write_text(_TEST)
    count = iter(range(100))

    def call(name: str, **given: object) -> ToolCall:
        return ToolCall(f"call_{next(count)}", name, json.dumps(given))

    with FakeProvider() as provider:
        steps = (
            [call("read_file", path="prices.py"), call("search_files", pattern="total")],
            [call("patch", changes=_patch("    result = 0", "    result = 1"))],
            [call("terminal", command=_RUN)],
            [call("patch", changes=_patch("    result = 1", "    result = 0"))],
            [call("patch", changes=_patch("        result -= price", "        result += price"))],
            [call("terminal", command=_RUN)],
        )
        provider.script(*map(tool_calls, steps), answer("The sign was wrong. The test passes now."))
        tools = Checkpoints(tmp_path).watch([*Files(tmp_path).tools, *Terminal(tmp_path).tools])
        model = OpenAIModel("fake", base_url=provider.openai_url, api_key="none")
        there = house(agent=Agent(model, tools, approve="ask"))
        page = tab(there.address())
        hand = _Hand(page)
        hand.say("The test of total() fails. Fix it.")
        hand.allow_for_session()
        expect(page.answers).to_be_visible(timeout=60_000)  # after many calls, and two processes among them
        page.idle()
        states = page.calls.locator("summary .state")
        expect(states).to_contain_text(["5 lines", "matches", "done", "exit code 1", "done", "done", "done"])
        expect(page.calls.nth(3).locator(".tail")).to_contain_text("AssertionError")
        expect(page.calls.nth(6).locator(".result")).to_contain_text("all passed")
        assert "result += price" in (tmp_path / "prices.py").read_text()
        hand.click("Undo")
        expect(page.page.get_by_role("dialog").locator(".diff del")).to_contain_text(["result -= price"])
        hand.click("Restore the files")
        expect(page.page.locator(".turn[data-status=rolled_back]")).to_have_count(1)
        assert (tmp_path / "prices.py").read_text() == _WRONG
        with page.page.expect_response("**/rollback/undo"):
            hand.click("Redo the file changes")
        assert "result += price" in (tmp_path / "prices.py").read_text()
    assert (hand.messages, hand.questions, hand.clicks) == (1, 1, 4)
