"""Stopping and steering from the page, and what it shows of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import msgspec
from playwright.sync_api import Route, expect

from halter import Agent, ToolContext, tool
from halter.events import TurnFinished
from halter.models import ToolCall
from halter.testing import Gate, ScriptedModel
from halter.views.timeline import timeline_of
from tests.support.web_page import House, Tab

MakeHouse = Callable[..., House]
MakeTab = Callable[..., Tab]


@tool
async def dig(where: str, ctx: ToolContext) -> str:
    """Dig for a long time."""
    ctx.report(f"digging in the {where}\n")
    await asyncio.sleep(600)
    return "nothing"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def digs(call_id: str = "d", where: str = "garden") -> ToolCall:
    return ToolCall(call_id, "dig", f'{{"where": "{where}"}}')


def test_a_stop_in_the_middle_of_a_stream_keeps_what_was_said_and_holds_what_waits(
    house: MakeHouse, tab: MakeTab
) -> None:
    """Stop ends the turn: the words stay, it is said how long it took, and queued messages are held until released."""
    gate = Gate()
    there = house(["One, two, ", gate, "three"], "Yes, four.")
    page = tab(there.address())
    page.say("count")
    expect(page.answers).to_contain_text("One, two,")
    page.say("and then?", "Queue")
    page.say("are you sure?", "Queue")
    expect(page.waiting.locator(".mode")).to_have_text(["Queue", "Queue"])  # and not "Sending"
    page.button("Stop").click()
    page.idle()
    expect(page.ends).to_contain_text(re.compile(r"Stopped · took [\d.]+ m?s"))
    expect(page.answers).to_have_text("One, two,")
    expect(page.waiting.locator(".mode")).to_have_text(["Held", "Held"])
    expect(page.page.locator("#queue .head")).to_contain_text("2 held by the stop")
    page.shoot("stopped")
    page.waiting.nth(0).get_by_role("button", name="Remove").click()
    expect(page.waiting).to_have_count(1)
    page.button("Release").click()
    expect(page.answers.last).to_have_text("Yes, four.")
    expect(page.messages).to_have_text(["count", "are you sure?"])


def test_one_button_stops_every_session(house: MakeHouse, tab: MakeTab) -> None:
    """Stop all is there while another session works; then each has ended, and it is gone."""
    gates = [Gate() for _ in range(3)]
    there = house(*(["On and ", gate] for gate in gates))
    pages = [tab(there.address()) for _ in gates]
    for page, gate in zip(pages, gates, strict=True):
        page.say("go")
        gate.wait_reached()
    last = pages[-1]
    last.page.locator("#list li[data-state=running]").nth(2).wait_for()
    last.shoot("stop-all")
    last.button("Stop all").click()
    for page in pages:
        page.idle()
        expect(page.ends).to_contain_text("Stopped · took")
    expect(last.button("Stop all")).to_be_hidden()
    expect(last.page.locator("#list li[data-state=running]")).to_have_count(0)


def test_all_that_is_held_is_released_in_its_order(house: MakeHouse, tab: MakeTab) -> None:
    """Release all lets every held message go on, in the order in which they came."""
    gate, second = Gate(), Gate()
    there = house([gate], ["Both. ", second], "More.")
    page = tab(there.address())
    page.say("wait")
    gate.wait_reached()
    for text in ("one", "two"):
        page.say(text, "Queue")
    expect(page.waiting.locator(".mode")).to_have_text(["Queue", "Queue"])  # and not "Sending"
    page.button("Stop").click()
    page.button("Release all").click()
    second.open()
    expect(page.messages).to_have_text(["wait", "one", "two"])


def test_a_steer_breaks_a_tool_and_the_turn_goes_on(house: MakeHouse, tab: MakeTab) -> None:
    """A steer stops the running tool, says how long that took, and the same turn goes on with the new words."""
    there = house([ToolCall("a", "add", '{"a": 6, "b": 7}'), digs()], "The cellar, then.", tools=[dig, add])
    page = tab(there.address())
    page.say("find the treasure")
    digging = page.calls.filter(has_text="dig")
    expect(digging.locator(".tail")).to_contain_text("digging in the garden")
    expect(page.calls.filter(has_text="add")).to_have_attribute("data-state", "completed")
    page.shoot("tools")
    page.say("No, in the cellar.", "Steer")
    expect(page.answers).to_have_text("The cellar, then.")
    expect(digging).to_have_attribute("data-state", "cancelled")
    expect(digging.locator(".note")).to_contain_text("after the stop")
    expect(page.messages.last.locator(".mode")).to_have_text("Steer")
    expect(page.page.locator(".turn")).to_have_count(1)


def test_stop_and_send_starts_the_next_turn_with_the_words(house: MakeHouse, tab: MakeTab) -> None:
    """Stop and send ends the running turn, and its words begin the next one, before what waited longer is lost."""
    there = house(digs(), "Something else, then.", tools=[dig])
    page = tab(there.address())
    page.say("dig")
    expect(page.calls).to_have_attribute("data-state", "running")
    page.say("Do something else.", "Stop and send")
    expect(page.answers).to_have_text("Something else, then.")
    expect(page.page.locator(".turn")).to_have_count(2)
    expect(page.ends.first).to_contain_text("Stopped by a new message")
    expect(page.calls).to_have_attribute("data-state", "cancelled")


def test_a_stop_that_was_not_heard_is_said_again(house: MakeHouse, tab: MakeTab) -> None:
    """If the network swallows a stop, the page goes on saying it, for this turn and no other, until it is heard."""
    there = house(digs(), tools=[dig])
    page = tab(there.address())
    page.say("dig")
    expect(page.calls).to_have_attribute("data-state", "running")
    bodies: list[Any] = []

    def swallow(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        if len(bodies) == 1:
            route.abort()
        else:
            route.continue_()

    page.page.route("**/stop", swallow)
    page.button("Stop").click()
    page.idle()
    page.page.unroute("**/stop")
    assert bodies == [{}, {"expect_turn": there.store.read(page.session)[-1].turn}]
    page.wrong.clear()  # of the request that failed


def test_a_stop_that_was_not_heard_is_said_again_from_another_session(house: MakeHouse, tab: MakeTab) -> None:
    """Whoever asks for a stop and opens another session meanwhile still gets it."""
    there = house(digs(), tools=[dig])
    page = tab(there.address())
    page.say("dig")
    expect(page.calls).to_have_attribute("data-state", "running")
    session = page.session
    page.page.route("**/stop", lambda route: route.abort())
    with page.page.expect_event("requestfailed"):
        page.button("Stop").click()
    page.button("New session").click()
    expect(page.page.locator(".turn")).to_have_count(0)
    page.page.unroute("**/stop")
    for _ in range(200):
        if there.kinds(session)[-1] == "turn.finished":
            break
        page.page.wait_for_timeout(100)  # the browser is served meanwhile
    finished = there.store.read(session)[-1].data
    assert isinstance(finished, TurnFinished)
    assert finished.reason == "stop"
    page.wrong.clear()  # of the requests that failed


def test_a_session_keeps_its_place_when_stop_all_appears(house: MakeHouse, tab: MakeTab) -> None:
    """A row of the list is under the pointer, and the button comes with another session's turn."""
    gate = Gate()
    there = house("First.", ["On and ", gate])
    page = tab(there.address())
    page.say("first")
    page.idle()
    row = page.page.locator("#list li").first
    before = row.bounding_box()
    other = tab(there.address())
    other.say("go")
    gate.wait_reached()
    expect(page.page.locator("#list li")).to_have_count(2, timeout=20_000)
    page.button("Stop all").wait_for()
    assert page.page.locator("#list li").first.bounding_box() == before
    gate.open()
    other.idle()


def test_one_call_is_stopped_and_the_turn_goes_on(house: MakeHouse, tab: MakeTab) -> None:
    """Stop this ends one call; the other runs on, and so does the turn."""
    there = house([digs("1", "garden"), digs("2", "cellar")], "Enough.", tools=[dig])
    page = tab(there.address())
    page.say("dig twice")
    garden, cellar = page.calls.filter(has_text="garden"), page.calls.filter(has_text="cellar")
    for each in (garden, cellar):
        expect(each.locator(".tail")).to_be_visible()  # it moves the buttons below it
    expect(cellar).to_have_attribute("data-state", "running")
    garden.get_by_role("button", name="Stop this").click()
    expect(garden).to_have_attribute("data-state", "cancelled")
    expect(cellar).to_have_attribute("data-state", "running")
    cellar.get_by_role("button", name="Stop this").click()
    expect(page.answers).to_have_text("Enough.")


def test_the_timeline_draws_the_stop_across_what_ran(house: MakeHouse, tab: MakeTab) -> None:
    """The timeline has a bar for each request, tool and child, the stop as a line, and how long each took to end."""
    helper = Agent(ScriptedModel(["I look. ", Gate()]), name="helper")

    @tool
    async def delegate(task: str, ctx: ToolContext) -> str:
        """Have another agent do it."""
        return str((await ctx.delegate(helper, task)).text)

    there = house([digs(), ToolCall("h", "delegate", '{"task": "look"}')], tools=[dig, delegate])
    page = tab(there.address())
    page.say("work")
    expect(page.page.locator(".child")).to_have_attribute("data-state", "running")
    expect(page.calls.filter(has_text="dig")).to_have_attribute("data-state", "running")
    page.button("Stop").click()
    page.idle()
    expect(page.page.locator(".child")).to_have_attribute("data-state", "interrupted")
    page.button("Timeline").click()
    drawing = page.page.locator(".drawing svg")
    expect(drawing.locator("line.cut")).to_have_count(1)
    names = drawing.locator("g.span .name")
    expect(names.last).to_have_text("turn")
    assert {"tool dig", "tool delegate", "child helper"} <= set(names.all_text_contents())
    for name in ("tool dig", "child helper", "turn"):
        row = drawing.locator("g.span").filter(has_text=re.compile(f"^.*{name}"))
        expect(row.locator(".tail")).to_have_text(re.compile(r"\+[\d.]+ m?s$"))
    page.shoot("timeline")
    if page.page.locator(".timeline .small").inner_text() == "Whole turn":
        page.button("Whole turn").click()
    expect(drawing.locator("g.span.request")).to_have_count(1)
    page.button("Around the stop").click()
    page.button("Timeline").click()
    expect(drawing).to_be_hidden()


def test_the_page_reads_a_turn_as_the_command_line_does(house: MakeHouse, tab: MakeTab) -> None:
    """The spans that the page draws are those that `halter why` tells, of the same log."""
    there = house([ToolCall("a", "add", '{"a": 1, "b": 2}'), digs()], ["Well. ", Gate()], tools=[dig, add])
    page = tab(there.address())
    page.say("work")
    expect(page.calls.filter(has_text="dig")).to_have_attribute("data-state", "running")
    page.say("go on", "Steer")
    expect(page.answers).to_have_text("Well.")
    page.button("Stop").click()
    page.idle()
    events = there.store.read(page.session)
    ours = page.page.evaluate(
        """async (events) => {
          const { SessionDisplay } = await import("/page/session_view.js");
          const state = new SessionDisplay();
          for (const event of events) state.apply(event);
          const turn = state.turns[0];
          return { status: turn.status, after: turn.after, asked_at: turn.stopping.at, spans: turn.spans.list };
        }""",
        msgspec.to_builtins(events),
    )
    theirs: dict[str, Any] = msgspec.to_builtins(timeline_of(events, events[-1].turn))
    assert ours == {name: theirs[name] for name in ("status", "after", "asked_at", "spans")}
