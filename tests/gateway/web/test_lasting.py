"""The page over reloads, in several tabs, over a broken connection, on a phone, by keyboard, and against bad words."""

from __future__ import annotations

import asyncio
import io
import json
import re
import struct
import time
import wave
import zlib
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from halter import ToolContext, tool
from halter.events import Event, MessageAccepted
from halter.models import ToolCall, UserMessage
from halter.models.types import Audio, Image
from halter.stores import MemoryStore, Write
from halter.testing import Gate
from tests.support.gateway_client import OWN
from tests.support.ports import held_ports
from tests.support.web_page import House, Tab

MakeHouse = Callable[..., House]
MakeTab = Callable[..., Tab]
_EVIL = '<img src=x onerror="window.hit = 1"><script>window.hit = 2</script>'


def _png(width: int, height: int) -> bytes:
    """A picture of this size, in one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80\x40\x20" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def _wav(seconds: int) -> bytes:
    """A recording of silence."""
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16_000 * seconds))
    return made.getvalue()


@tool
async def dig(ctx: ToolContext) -> str:
    """Dig for a long time."""
    ctx.report("digging")
    await asyncio.sleep(600)
    return "nothing"


@tool
def echo(text: str) -> str:
    """Say it again."""
    return text


@tool(approval=True)
def remove(path: str) -> str:
    """Remove a file."""
    return f"{path} is gone"


def test_a_reload_in_the_middle_of_a_turn_shows_everything_again(house: MakeHouse, tab: MakeTab) -> None:
    """Words, calls, what waits and what is written are there after a reload, and the turn was not disturbed."""
    gate = Gate()
    there = house(ToolCall("d", "dig", "{}"), ["I have **dug** ", gate, "enough."], tools=[dig])
    page = tab(there.address())
    page.say("dig")
    expect(page.calls.locator(".tail")).to_have_text("digging")
    page.page.reload()
    expect(page.calls.locator(".tail")).to_have_text("digging")
    page.say("faster", "Steer")
    expect(page.answers).to_have_text("I have dug")
    page.say("later", "Queue")
    page.field.fill("half a thou")
    expect(page.waiting.locator(".mode")).to_have_text("Queue")  # it was accepted
    page.page.reload()
    expect(page.answers.locator("strong")).to_have_text("dug")
    expect(page.waiting.locator(".text")).to_have_text("later")
    expect(page.field).to_have_value("half a thou")
    expect(page.messages).to_have_text(["dig", "Steerfaster"])
    expect(page.button("Stop")).to_be_visible()
    page.waiting.get_by_role("button", name="Remove").click()
    expect(page.waiting).to_have_count(0)
    gate.open()
    expect(page.answers).to_have_text("I have dug enough.")
    page.idle()


def test_pictures_and_sounds_are_fetched_when_they_come_into_sight(house: MakeHouse, tab: MakeTab) -> None:
    """Those of a message and of a result, also after a reload; one that cannot be fetched is named."""

    @tool
    def paint() -> list[Any]:
        """Paint, and hum."""
        return [Image(_png(30, 20)), Audio(_wav(2), media_type="audio/wav")]

    there = house(ToolCall("p", "paint", "{}"), "Painted.", tools=[paint])
    page = tab(there.address())
    where, headers = f"{there.gateway.url}/v1/sessions", {"Authorization": f"Bearer {OWN}"}
    page.page.request.post(where, headers=headers, data={"id": "pictures"})
    picture: Any = {"name": "a.png", "mimeType": "image/png", "buffer": _png(40, 10)}
    page.page.request.post(f"{where}/pictures/messages", headers=headers, multipart={"text": "So:", "image": picture})
    page.open(there.address("pictures"))
    for _ in range(2):
        expect(page.answers).to_have_text("Painted.")
        expect(page.messages.locator("img")).to_have_js_property("naturalWidth", 40)
        expect(page.calls.locator("img")).to_have_js_property("naturalWidth", 30)
        expect(page.calls.locator("audio")).to_have_js_property("duration", 2)
        page.page.reload()
    page.page.route("**/media/**", lambda route: route.abort())
    page.page.reload()
    expect(page.page.get_by_text("could not be fetched")).to_have_count(3)
    page.wrong.clear()  # that is what the browser complains of, and should


def test_two_tabs_show_the_same(house: MakeHouse, tab: MakeTab) -> None:
    """What is said, stopped and removed in one tab is seen in the other."""
    gate = Gate()
    there = house(["One, ", gate], "Done.")
    left = tab(there.address())
    right = tab(there.gateway.url, beside=left)
    left.page.bring_to_front()  # the browser draws the other one only now and then
    left.say("count")
    expect(left.answers).to_have_text("One,")
    right.page.bring_to_front()
    right.page.locator("#list .open", has_text="count").click()
    expect(right.answers).to_have_text("One,")
    right.say("from the right", "Queue")
    expect(left.waiting.locator(".text")).to_have_text("from the right")
    right.button("Stop").click()
    expect(left.waiting.locator(".mode")).to_have_text("Held")
    left.page.bring_to_front()
    left.button("Release").click()
    expect(left.answers.last).to_have_text("Done.")
    expect(right.answers.last).to_have_text("Done.")
    said = "[...document.querySelectorAll('.items')].map((node) => node.innerText)"
    assert left.page.evaluate(said) == right.page.evaluate(said)
    left.button("Remove count").click()
    left.page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(right.page.locator("#link")).to_have_text("This session was deleted")
    expect(right.page.locator("#list li")).to_have_count(0)
    for each in (left, right):
        each.wrong = [wrong for wrong in each.wrong if "404" not in wrong]


def test_a_lost_connection_is_made_again_and_nothing_is_lost(house: MakeHouse, tab: MakeTab) -> None:
    """While the gateway is away the page says so and keeps what is sent; afterwards it is there once."""
    with held_ports() as [port]:  # nobody else gets it while the gateway is away
        there = house("First.", port=port)
        page = tab(there.address())
        page.say("one")
        expect(page.answers).to_have_text("First.")
        there.close()
        expect(page.page.locator("#link")).to_contain_text("Connection lost")
        page.say("two")
        expect(page.waiting).to_contain_text("cannot be reached")
        page.shoot("lost")
        again = house("Second.", store=there.store, port=port)
        expect(page.answers).to_have_text(["First.", "Second."])
        expect(page.page.locator("#link")).to_be_empty()
        expect(page.messages).to_have_text(["one", "two"])
        expect(page.waiting).to_have_count(0)
        assert again.kinds(page.session).count("message.accepted") == 2
        page.wrong.clear()  # of the connections that failed


def test_another_log_under_the_same_name_is_shown_alone(house: MakeHouse, tab: MakeTab) -> None:
    """If the gateway comes back with another session of this name, nothing of the one before stays on the screen."""
    with held_ports() as [port]:  # nobody else gets it while the gateway is away
        there = house("Old.", port=port)
        page = tab(there.address())
        page.say("the old one")
        expect(page.answers).to_have_text("Old.")
        there.close()
        expect(page.page.locator("#link")).to_contain_text("Connection lost")
        store = MemoryStore()
        lease = store.acquire(page.session)
        message = MessageAccepted("m", "queue", UserMessage.of("the new one"))
        store.commit([Write(lease, [Event(1, time.time(), page.session, "", message)], 1)])
        store.release(lease)
        house("New.", store=store, port=port)
        expect(page.answers).to_have_text("New.")
        expect(page.messages).to_have_text("the new one")
        expect(page.page.locator(".turn")).to_have_count(1)
        page.wrong.clear()  # of the connections that failed


def test_on_a_phone_nothing_is_cut_off(house: MakeHouse, tab: MakeTab) -> None:
    """In a narrow window all buttons are within reach, nothing is wider than it, and sessions come from the side."""
    wide = f"```\n{'x' * 300}\n```\n\n| {' | '.join('abcdefghijklmnop')} |\n{'|---' * 16}|\n\n{'y' * 300}"
    gate = Gate()
    there = house([wide, gate], "Bye.")
    page = tab(there.address(), phone=True, dark=True)
    expect(page.button("New session")).to_be_hidden()
    page.say("hello " + "z" * 200)
    expect(page.answers.locator("table")).to_be_visible()
    page.field.fill("stop that")
    for name in ("Stop", "Steer", "Queue", "Stop and send", "Record a voice message"):
        expect(page.button(name)).to_be_in_viewport(ratio=1)
    page.shoot("phone")
    widths = "[document.documentElement, document.getElementById('log')].map((each) => each.scrollWidth)"
    assert page.page.evaluate(widths) == [390, 390]
    page.button("Stop").tap()
    expect(page.ends).to_contain_text("Stopped")
    page.button("Timeline").tap()
    expect(page.page.locator(".drawing svg")).to_be_visible()
    page.shoot("phone-timeline")
    page.page.get_by_role("button", name="Sessions").tap()
    page.button("New session").tap()
    expect(page.page.locator(".welcome")).to_be_visible()
    expect(page.button("New session")).to_be_hidden()


def test_everything_can_be_done_by_keyboard(house: MakeHouse, tab: MakeTab) -> None:
    """Sending in all ways, stopping, answering, the timeline and the sessions work without a pointer."""
    gate = Gate()
    ask = ToolCall("r", "remove", '{"path": "/x"}')
    there = house(["One ", gate], ["Two ", gate], ask, "Three.", ["Four ", gate], tools=[remove], approve="ask")
    page = tab(there.address())
    keys = page.page.keyboard

    def write(text: str, key: str) -> None:
        keys.type(text)
        keys.press(key)

    keys.press("/")
    write("count", "Enter")
    expect(page.answers).to_have_text("One")
    write("queued", "Control+Enter")
    expect(page.waiting.locator(".text")).to_have_text("queued")
    write("steered", "Enter")
    expect(page.answers.last).to_have_text("Two")
    keys.type("half")
    keys.press("Escape")
    expect(page.page.locator(".notice")).to_contain_text("Escape stops only if the message field is empty")
    expect(page.button("Stop")).to_be_visible()
    keys.press("Control+a")
    write("and now this", "Control+Shift+Enter")
    expect(page.button("Allow")).to_be_visible()
    keys.press("Alt+q")
    expect(page.button("Allow")).to_be_focused()
    expect(page.button("Allow")).to_be_enabled()
    keys.press("Enter")
    expect(page.answers.last).to_have_text("Three.")
    page.idle()
    keys.press("Alt+t")
    expect(page.page.locator(".drawing svg")).to_be_visible()
    keys.press("/")
    write("again", "Enter")
    expect(page.answers.last).to_have_text("Four")
    keys.press("Escape")
    page.idle()
    keys.press("Alt+n")
    expect(page.page.locator(".welcome")).to_be_visible()
    keys.press("Alt+ArrowDown")
    expect(page.answers.first).to_have_text("One")
    page.page.locator("#log").focus()
    keys.press("?")
    expect(page.page.get_by_role("dialog")).to_contain_text("Ctrl+Shift+Enter")
    page.shoot("help")
    keys.press("Escape")
    expect(page.page.get_by_role("dialog")).to_have_count(0)
    keys.press("Tab")
    assert _outline(page.page) != "none"


def _outline(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))


def test_what_a_model_or_a_person_writes_is_never_run(house: MakeHouse, tab: MakeTab) -> None:
    """Markup in answers, names of tools, arguments, results and titles is text; only http leads anywhere."""
    links = "[a](javascript:alert(1)) [b](data:text/html,x) ![c](https://example.com/c.png) <https://example.com/d>"
    answer = f"{_EVIL}\n\n{links}\n\n| {_EVIL} | b |\n|---|---|\n\n```{_EVIL}\n{_EVIL}\n```\n"
    echoed = ToolCall("2", "echo", json.dumps({"text": _EVIL}))
    there = house([answer, ToolCall("1", _EVIL, _EVIL)], echoed, _EVIL, tools=[echo])
    page = tab(there.address())
    page.say(_EVIL)
    expect(page.calls.locator("b")).to_have_text([re.compile("^_img_src_x_onerror_"), "echo"])
    expect(page.calls.last.locator(".result pre")).to_have_text(_EVIL)
    expect(page.answers.last).to_have_text(_EVIL)
    assert page.page.evaluate("window.hit") is None
    assert page.page.locator("#turns :is(img, script, iframe, [onerror])").count() == 0
    followed = page.page.locator(".answer a").evaluate_all("(all) => all.map((a) => a.href)")
    assert followed == ["https://example.com/c.png", "https://example.com/d"]
    expect(page.page.locator("#title")).to_have_text(_EVIL[:80])


def test_a_script_that_is_put_into_the_page_does_not_run(house: MakeHouse, tab: MakeTab) -> None:
    """The policy that comes with the page lets no inline script run, whoever manages to put one there."""
    there = house()
    page = tab(there.address())
    put = "Object.assign(document.createElement('script'), {text: 'window.hit = 1'})"
    page.page.evaluate(f"document.body.append({put})")
    assert page.page.evaluate("window.hit") is None
    assert any("Content Security Policy" in wrong for wrong in page.wrong)
    page.wrong.clear()
