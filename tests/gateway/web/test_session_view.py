"""The page's reducer of events, in the browser that runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.support.display_dump import DUMP_JS
from tests.support.web_page import House, context_of
from tests.views.test_session_view import CASES


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    house = House()
    context = context_of(browser)
    opened = context.new_page()
    opened.goto(house.address())
    yield opened
    context.close()
    house.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_fixture(page: Page, case: dict[str, object]) -> None:
    """The page shows the same state as the other faces, after each step of events."""
    states = page.evaluate(
        f"""async (steps) => {{
          const {{ SessionDisplay }} = await import("/page/session_view.js");
          {DUMP_JS}
          const display = new SessionDisplay();
          return steps.map(({{ events }}) => {{
            for (const event of events) display.apply(event);
            return JSON.stringify(dump(display));
          }});
        }}""",
        case["steps"],
    )
    assert [json.loads(state) for state in states] == [step["expect"] for step in case["steps"]]  # type: ignore[attr-defined]
