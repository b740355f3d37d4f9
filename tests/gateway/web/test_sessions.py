"""What can be done with sessions and messages on the page, and what is always in sight."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from halter import Agent, Compaction, tool
from halter.models import Image, ToolCall, Usage
from halter.models.prices import Price
from halter.models.types import UserMessage
from halter.testing import Gate, ScriptedModel
from halter.toolbox import Checkpoints, Files
from tests.support.gateway_client import OWN
from tests.support.pdf import pdf_of
from tests.support.web_page import House, Tab

MakeHouse = Callable[..., House]
MakeTab = Callable[..., Tab]

_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGD4DwABBAEAX+XDSwAAAABJRU5ErkJggg=="
)

_PRICES = {"first": Price(input=500.0, output=500.0)}


@tool(approval=True)
def remove(path: str) -> str:
    """Remove a file."""
    return f"{path} is gone"


def _menu(page: Tab, name: str) -> None:
    page.button("Session menu").click()
    page.page.get_by_role("menuitem", name=name).click()


def test_before_a_key_is_there_only_the_dialog_is_shown(house: MakeHouse, tab: MakeTab) -> None:
    """Nothing can be pressed but what gives a key; with the key, the page is there."""
    there = house("Hello.")
    page = tab(there.address(), phone=False, dark=True)
    fresh = page.page.context.browser.new_context()  # type: ignore[union-attr]
    one = fresh.new_page()
    one.goto(there.gateway.url)
    expect(one.get_by_role("dialog")).to_contain_text("Enter a key")
    assert one.get_by_role("button").all_inner_texts() == ["Continue"]
    one.get_by_role("textbox", name="Key").fill(OWN)
    one.get_by_role("button", name="Continue").click()
    expect(one.locator("#text")).to_be_visible()
    expect(one.get_by_role("button", name="Send", exact=True)).to_be_visible()
    fresh.close()


def test_what_is_always_in_sight(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """The model, how full the context is, tokens and cost of turn and session, the sandbox, and who approves."""
    usage = Usage(input_tokens=900, output_tokens=100)
    model = ScriptedModel(["One.", usage], ["Two.", usage], name="first")
    agent = Agent(model, Files(tmp_path).tools, approve="ask", prices=_PRICES, compaction=Compaction(window=10_000))
    there = house(agent=agent)
    page = tab(there.address())
    status = page.page.locator("#status")
    expect(status.get_by_label("Model")).to_have_value("first")
    expect(status).to_contain_text("asks you")
    page.say("hello")
    page.idle()
    expect(page.ends).to_contain_text("1,000 tokens · $0.50")
    expect(status.locator(".usage")).to_have_text("1k tokens · $0.50")
    expect(status.locator(".meter")).to_have_text(re.compile(r"^1\d %$"))
    page.say("again")
    page.idle()
    expect(status.locator(".usage")).to_have_text("2k tokens · $1.00")
    status.locator(".meter").click()
    expect(page.page.get_by_role("dialog")).to_contain_text("of 10,000 tokens")
    page.button("Compact now").click()
    expect(page.page.locator(".notice")).to_contain_text("compacted before the next request")


@pytest.mark.parametrize("phone", [False, True])
def test_send_stays_where_it_is_while_the_page_loads(
    house: MakeHouse, tab: MakeTab, tmp_path: Path, *, phone: bool
) -> None:
    """The row below the field came later and moved Send from under the pointer, so that a click on it was lost.

    On a phone it has two rows: the model, the context and the approvals are wider than the screen.
    """
    model = ScriptedModel("Hello.", name="a-model-with-a-name-as-long-as-this")
    there = house(agent=Agent(model, Files(tmp_path).tools, approve="ask"))
    page = tab(there.address(), phone=phone)
    page.say("hi")
    page.idle()
    expect(page.page.locator("#status .meter")).to_be_visible()
    asked: list[Route] = []
    page.page.route("**/v1/agents", lambda route: asked.append(route))  # noqa: PLW0108  (Playwright wants a function of Python)
    with page.page.expect_request("**/v1/agents"):
        page.page.reload()
    expect(page.button("Send")).to_be_visible()
    before = page.button("Send").bounding_box()
    [request] = asked
    request.continue_()
    expect(page.page.locator("#status .meter")).to_be_visible()
    assert page.button("Send").bounding_box() == before
    page.page.unroute("**/v1/agents")


def test_a_compaction_is_seen(house: MakeHouse, tab: MakeTab) -> None:
    """It is a line in the conversation with the sizes before and after."""
    there = house("One. " * 300, "Two. " * 300, "The summary.", "Three.")
    page = tab(there.address())
    for text in ("first " * 200, "second " * 200):
        page.say(text)
        page.idle()
    _menu(page, "Compact the context")
    page.say("third")
    expect(page.page.locator(".compaction")).to_contain_text("Context compacted from about")
    page.idle()


def test_the_first_screen_says_what_the_agent_has(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """Which tools it has, and in which folder they work; or that it has none."""
    page = tab(house(agent=Agent(ScriptedModel(), Files(tmp_path).tools)).address())
    expect(page.page.locator(".welcome .where")).to_have_text(
        f"Tools in {tmp_path}: read_file, write_file, patch, search_files"
    )
    page = tab(house("Hello.").address())
    expect(page.page.locator(".welcome .where")).to_contain_text("no tools")
    page.say("hello")
    expect(page.answers).to_have_text("Hello.")
    expect(page.page.locator(".welcome")).to_have_count(0)


def test_the_model_is_chosen(house: MakeHouse, tab: MakeTab) -> None:
    """For a session before its first message, and between two turns: the next message waits until it is changed."""
    first, second = ScriptedModel("One.", name="first"), ScriptedModel("Two.", name="second")
    there = house(agent=Agent(first, fallbacks=[second]))
    page = tab(there.address())
    model = page.page.get_by_label("Model")
    expect(model).to_have_value("first")
    model.select_option("second")
    page.say("hello")
    expect(page.answers).to_have_text("Two.")
    page.idle()
    expect(model).to_have_value("second")
    slow: list[Route] = []
    page.page.route(
        f"**/v1/sessions/{page.session}",
        lambda route: slow.append(route) if route.request.method == "PATCH" else route.continue_(),
    )
    model.select_option("first")
    page.say("hello again")
    expect(page.waiting).to_contain_text("Sending")
    slow[0].continue_()
    expect(page.answers).to_have_text(["Two.", "One."])
    page.page.unroute_all()
    page.idle()
    expect(model).to_have_value("first")


def test_files_are_attached(house: MakeHouse, tab: MakeTab) -> None:
    """By the button, by pasting and by dropping; pictures are seen, text files fold, others are refused."""
    there = house("Seen.")
    page = tab(there.address())
    chips = page.page.locator("#attached li")
    files: list[Any] = [
        {"name": "a.png", "mimeType": "image/png", "buffer": _PNG},
        {"name": "b.py", "mimeType": "text/x-python", "buffer": b"print(1)\nprint(2)\n"},
        {"name": "c.pdf", "mimeType": "application/pdf", "buffer": pdf_of("The first page.", "The second.")},
        {"name": "broken.pdf", "mimeType": "application/pdf", "buffer": b"%PDF"},
        {"name": "d.bin", "mimeType": "", "buffer": b"\0\1"},
    ]
    page.page.locator("#files").set_input_files(files)
    notices = page.page.locator(".notice")
    said = ["broken.pdf: it cannot be read as a PDF", "neither a picture nor text"]
    expect(notices).to_contain_text(said, timeout=60_000)  # two processes read the PDFs
    expect(chips).to_have_text(["a.png", "b.py", "c.pdf"])
    assert "422" in page.wrong.pop()  # the browser tells of each refusal
    give = """([kind, name]) => {
      const data = new DataTransfer();
      data.items.add(new File(["one\\n"], name, { type: "text/plain" }));
      const [target, event] = kind === "paste"
        ? [document.getElementById("text"), new ClipboardEvent("paste", { clipboardData: data, bubbles: true })]
        : [document.querySelector("main"), new DragEvent("drop", { dataTransfer: data, bubbles: true })];
      target.dispatchEvent(event);
    }"""
    page.page.evaluate(give, ["paste", "pasted.txt"])
    expect(chips).to_have_count(4)
    page.page.evaluate(give, ["drop", "dropped.txt"])
    expect(chips).to_have_text(["a.png", "b.py", "c.pdf", "pasted.txt", "dropped.txt"])
    page.button("Remove pasted.txt").click()
    expect(chips).to_have_count(4)
    page.say("Look at these.")
    expect(chips).to_have_count(0)
    expect(page.messages.locator("img")).to_have_js_property("naturalWidth", 1)
    expect(page.messages.locator(".content > p")).to_have_text("Look at these.")
    expect(page.messages.locator("summary")).to_have_text(["b.py (2 lines)", "c.pdf (3 lines)", "dropped.txt (1 line)"])
    page.idle()
    (sent,) = there.model.requests[0].messages
    assert isinstance(sent, UserMessage)
    assert [type(part) for part in sent.parts][1:] == [Image]
    assert "print(1)\nprint(2)" in sent.text
    assert "The first page.\n\nThe second." in sent.text


def test_previews_of_pictures_are_let_go_of(house: MakeHouse, tab: MakeTab) -> None:
    """The browser kept each picture that was ever attached, until the page was closed."""
    page = tab(house("Seen.").address())
    page.page.evaluate(
        """() => {
          window.kept = new Set();
          const { createObjectURL, revokeObjectURL } = URL;
          URL.createObjectURL = (blob) => { const made = createObjectURL(blob); kept.add(made); return made; };
          URL.revokeObjectURL = (made) => { kept.delete(made); revokeObjectURL(made); };
        }"""
    )
    pictures: list[Any] = [{"name": f"{n}.png", "mimeType": "image/png", "buffer": _PNG} for n in range(2)]
    page.page.locator("#files").set_input_files(pictures)
    expect(page.page.locator("#attached li")).to_have_count(2)
    assert page.page.evaluate("kept.size") == 2
    page.button("Remove 0.png").click()
    assert page.page.evaluate("kept.size") == 1
    page.say("Look.")
    page.idle()
    expect(page.messages.locator("img")).to_have_js_property("naturalWidth", 1)
    assert page.page.evaluate("kept.size") == 1  # the picture in the conversation
    page.button("New session").click()
    expect(page.messages).to_have_count(0)
    page.page.wait_for_function("kept.size === 0")


def test_a_copied_message_keeps_its_icon(house: MakeHouse, tab: MakeTab) -> None:
    """The icon of the button turned into the word "Copied", and then into nothing for good."""
    page = tab(house("One.").address(), phone=False)
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.say("Copy me.")
    page.idle()
    copy = page.button("Copy the message")
    drawn = copy.locator("path").get_attribute("d")
    copy.click()
    expect(copy.locator("path")).not_to_have_attribute("d", str(drawn))
    assert page.page.evaluate("navigator.clipboard.readText()") == "Copy me."
    expect(copy.locator("path")).to_have_attribute("d", str(drawn))


def test_a_message_waits_for_its_files(house: MakeHouse, tab: MakeTab) -> None:
    """One that is sent while a file is being read goes with the file; what cannot be read, like a folder, is told."""
    there = house("Seen.")
    page = tab(there.address())
    page.field.fill("Look at this.")
    page.page.evaluate(
        """() => {
          const read = Blob.prototype.text;
          Blob.prototype.text = function () {
            return this.name === "folder" ? Promise.reject(new DOMException("", "NotReadableError")) : read.call(this);
          };
          for (const name of ["folder", "late.txt"]) {
            const data = new DataTransfer();
            data.items.add(new File(["one\\n"], name));
            document.querySelector("main").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
          }
          document.getElementById("send").click();
        }"""
    )
    expect(page.page.locator(".notice")).to_have_text("folder: it cannot be read")
    expect(page.messages.locator("summary")).to_have_text("late.txt (1 line)")
    expect(page.messages.locator(".content > p")).to_have_text("Look at this.")


def test_a_message_is_edited_and_tried_again(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """The last turn is replaced; if it has changed files, the page asks what to do with them."""
    tools = Checkpoints(tmp_path).watch(Files(tmp_path).tools)
    write = ToolCall("1", "write_file", json.dumps({"path": "a.txt", "content": "x"}))
    there = house("One.", "Two.", write, "Three.", "Four.", tools=tools)
    page = tab(there.address())
    page.say("hello")
    page.idle()
    page.messages.last.hover()
    page.button("Try again").click()
    expect(page.answers.last).to_have_text("Two.")
    page.idle()
    expect(page.page.locator(".turn[data-status=rolled_back]")).to_have_count(1)
    page.messages.last.hover()
    page.button("Edit and send again").last.click()
    area = page.page.get_by_label("Edit the message")
    expect(area).to_have_value("hello")
    area.fill("write")
    page.page.keyboard.press("Enter")
    expect(page.answers.last).to_have_text("Three.")
    page.idle()
    assert (tmp_path / "a.txt").exists()
    page.messages.last.hover()
    page.button("Try again").last.click()
    page.button("Restore the files").click()
    expect(page.answers.last).to_have_text("Four.")
    page.idle()
    assert not (tmp_path / "a.txt").exists()
    assert [message.text for message in there.model.requests[-1].messages] == ["write"]


def test_a_branch_goes_on_from_an_earlier_message(house: MakeHouse, tab: MakeTab) -> None:
    """It is a session of its own with what was before; an edit of an earlier message begins one, too."""
    there = house("One.", "Two.", "Other.", "Third.")
    page = tab(there.address())
    for text in ("first", "second"):
        page.say(text)
        page.idle()
    old = page.session
    page.messages.first.hover()
    page.button("Edit and send again").first.click()
    page.page.get_by_label("Edit the message").fill("different")
    page.button("Send").first.click()
    expect(page.answers).to_have_text(["Other."])  # a list waits while there are still two
    assert page.session != old
    expect(page.messages.locator(".content")).to_have_text(["different"])
    page.page.go_back()
    expect(page.answers).to_have_text(["One.", "Two."])
    page.messages.last.hover()
    page.button("Branch from here").last.click()
    expect(page.answers).to_have_text(["One.", "Third."])
    expect(page.page.locator("#title")).to_have_text("first (branch)")


def test_a_session_is_renamed_and_found(house: MakeHouse, tab: MakeTab) -> None:
    """The title is changed everywhere; the search finds titles and what was said, and an empty one shows all."""
    there = house("Made of hemp.", "Nothing.")
    page = tab(there.address())
    page.say("what is it made of")
    page.idle()
    _menu(page, "Rename")
    page.page.get_by_label("Title").fill("Ropes")
    page.page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(page.page.locator("#title")).to_have_text("Ropes")
    expect(page.page.locator("#list .current .title")).to_have_text("Ropes")
    page.button("New session").click()
    page.say("something else")
    page.idle()
    titles = page.page.locator("#list .title")
    expect(titles).to_have_count(2)
    page.page.keyboard.press("Alt+k")
    for words, title in (("hem", "Ropes"), ("rop", "Ropes"), ("something", "something else")):
        page.page.get_by_label("Search the sessions").fill(words)
        expect(titles).to_have_text([title])
    page.page.get_by_label("Search the sessions").fill("nowhere")
    expect(page.page.locator("#nothing")).to_be_visible()
    page.page.get_by_label("Search the sessions").fill("")
    expect(titles).to_have_count(2)


def test_a_conversation_is_exported(house: MakeHouse, tab: MakeTab) -> None:
    """As Markdown for people, and with all events as JSON."""
    there = house("The **answer**.")
    page = tab(there.address())
    page.say("a question")
    page.idle()
    read: dict[str, Any] = {}
    for name in ("Export as Markdown", "Export as JSON"):
        with page.page.expect_download() as waiting:
            _menu(page, name)
        read[waiting.value.suggested_filename] = Path(waiting.value.path()).read_text()
    assert "**You:** a question\n\nThe **answer**." in read["a-question.md"]
    assert [event["data"]["type"] for event in json.loads(read["a-question.json"])] == there.kinds(page.session)


def test_an_export_has_each_event_once_after_the_key_was_changed(house: MakeHouse, tab: MakeTab) -> None:
    """With another key the events come again from the first one on; the export had all of them twice."""
    there = house("The answer.")
    page = tab(there.address())
    page.say("a question")
    page.idle()
    page.button("Settings").click()
    page.button("Use another key").click()
    page.page.get_by_role("dialog").get_by_label("Key").fill(OWN)
    with page.page.expect_response("**/events") as answered:
        page.button("Continue").click()
    assert answered.value.ok
    expect(page.page.locator("#link")).to_have_attribute("data-state", "live")
    with page.page.expect_download() as waiting:
        _menu(page, "Export as JSON")
    exported = json.loads(Path(waiting.value.path()).read_text())
    assert [event["seq"] for event in exported] == list(range(1, len(exported) + 1))


def test_the_changed_files_are_one_diff_with_undo(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """What all turns have changed is shown; the last turn can be undone from there."""
    tools = Checkpoints(tmp_path).watch(Files(tmp_path).tools)
    writes = [ToolCall(str(n), "write_file", json.dumps({"path": f"{n}.txt", "content": f"{n}\n"})) for n in (1, 2)]
    there = house(writes[0], "One.", writes[1], "Two.", tools=tools)
    page = tab(there.address())
    for text in ("first", "second"):
        page.say(text)
        page.idle()
    page.page.keyboard.press("Alt+d")
    dialog = page.page.get_by_role("dialog")
    expect(dialog.locator(".path")).to_have_text(["1.txt", "2.txt"])
    expect(dialog.locator("ins")).to_contain_text(["1", "2"])
    dialog.get_by_role("button", name="Undo the last turn").click()
    page.button("Restore the files").click()
    expect(page.page.locator(".turn[data-status=rolled_back]")).to_have_count(1)
    assert (tmp_path / "1.txt").exists()
    assert not (tmp_path / "2.txt").exists()
    with page.page.expect_response("**/rollback/undo"):
        page.button("Redo the file changes").click()
    expect(page.page.locator("#said")).to_have_text("1 file restored.")
    assert (tmp_path / "2.txt").exists()


def test_what_needs_its_user_is_told(house: MakeHouse, tab: MakeTab) -> None:
    """In the list, in the tab's title also from another session, and by a notification if that was wished for."""
    there = house(ToolCall("1", "remove", '{"path": "/x"}'), "Done.", tools=[remove], approve="ask")
    page = tab(there.address(), phone=False, dark=False, height=800)
    page.page.context.grant_permissions(["notifications"])
    page.page.evaluate(
        """() => {
          window.told = [];
          window.Notification = class extends EventTarget {
            static permission = "default";
            static asked = 0;
            static async requestPermission() { this.asked += 1; return (this.permission = "granted"); }
            constructor(title, options) { super(); window.told.push([title, options.body]); }
            close() {}
          };
          document.hasFocus = () => false;
        }"""
    )
    page.page.keyboard.press("Alt+s")
    assert page.page.evaluate("Notification.asked") == 0
    page.page.get_by_label("Notify me").check()
    page.button("Close").click()
    assert page.page.evaluate("Notification.asked") == 1
    page.say("tidy up")
    expect(page.page.locator("#list li")).to_have_attribute("data-state", "needs you")
    expect(page.page.locator("#list .when")).to_have_text("needs you")
    expect(page.page).to_have_title(re.compile(r"^\(!\) tidy up"))
    assert page.page.evaluate("window.told") == [["Halter needs you", "tidy up"]]
    page.button("New session").click()
    expect(page.page.locator("#list .when")).to_have_text("needs you")
    expect(page.page).to_have_title("(!) Halter")
    page.page.locator("#list .open").click()
    expect(page.button("Allow")).to_be_enabled()
    page.page.keyboard.press("Alt+q")
    page.page.keyboard.press("Enter")
    expect(page.answers).to_have_text("Done.")
    page.idle()
    expect(page.page).to_have_title("tidy up · Halter")


def test_the_settings(house: MakeHouse, tab: MakeTab) -> None:
    """The colours are chosen and stay after a reload; the dialog tells what the session may do."""
    there = house("Hi.", tools=[remove], approve="ask")
    page = tab(there.address())
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.page.evaluate(paper)
    expect(page.page.locator("#status").get_by_label("Model")).to_have_value("scripted")  # the agents have come
    page.button("Settings").click()
    dialog = page.page.get_by_role("dialog")
    expect(dialog).to_contain_text("remove")
    dialog.get_by_label("Colours").select_option("dark")
    page.button("Close").click()
    page.page.reload()
    expect(page.field).to_be_visible()
    assert page.page.evaluate(paper) != light
    page.button("Settings").click()
    dialog.get_by_label("Colours").select_option("")
    page.button("Use another key").click()
    expect(dialog).to_contain_text("Enter a key")
    page.button("Cancel").click()
    page.say("hello")
    expect(page.answers).to_have_text("Hi.")


def test_a_second_agent_can_be_chosen_for_a_new_session(house: MakeHouse, tab: MakeTab) -> None:
    """With several agents a new session has a choice, and keeps it."""
    gate = Gate()
    gate.open()
    first = Agent(ScriptedModel("One."), name="first")
    there = house(agent={"first": first, "second": Agent(ScriptedModel(["Two.", gate]), name="second")})
    page = tab(there.address())
    page.page.get_by_label("Agent").select_option("second")
    page.say("hello")
    expect(page.answers).to_have_text("Two.")
    expect(page.page.get_by_label("Agent")).to_be_hidden()
