"""What is said on the page and what comes back: answers, what waits, questions, and voice."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import av
import numpy
from playwright.sync_api import expect

from halter import ToolContext, tool
from halter.events import MessageAccepted
from halter.gateway import GatewayLimits
from halter.models import Audio, ToolCall
from halter.testing import Gate
from halter.toolbox import Checkpoints, Files
from tests.support.gateway_client import OWN
from tests.support.web_page import House, Tab

MakeHouse = Callable[..., House]
MakeTab = Callable[..., Tab]


@tool
async def pick(question: str, ctx: ToolContext) -> str:
    """Ask the person to pick one."""
    return f"picked {await ctx.ask(question, ['tea', 'coffee'])}"


@tool
async def wonder(question: str, ctx: ToolContext) -> str:
    """Ask the person anything."""
    return f"heard {await ctx.ask(question)}"


@tool(approval=True)
def remove(path: str) -> str:
    """Remove a file."""
    return f"{path} is gone"


def test_a_first_message_makes_a_session_and_the_answer_streams_in(house: MakeHouse, tab: MakeTab) -> None:
    """A session is made by its first message, which names it; the answer grows while it comes, and is Markdown."""
    gate = Gate()
    there = house(["## Plan\n\nFirst **this**, ", gate, "then `that`."])
    page = tab(there.address())
    assert page.session == ""
    expect(page.button("Send")).to_be_disabled()
    page.say("Make a plan.")
    expect(page.messages).to_have_text("Make a plan.")
    expect(page.answers.locator("strong")).to_have_text("this")
    expect(page.answers).not_to_contain_text("that")
    page.shoot("streaming")
    gate.open()
    expect(page.answers.locator("code")).to_have_text("that")
    expect(page.answers.locator("h3")).to_have_text("Plan")
    page.idle()
    expect(page.page.locator("#list .current .title")).to_have_text("Make a plan.")
    expect(page.page.locator("#title")).to_have_text("Make a plan.")
    assert there.kinds(page.session)[0] == "session.created"


def test_sessions_are_made_switched_and_removed(house: MakeHouse, tab: MakeTab) -> None:
    """New begins another session, a click goes back, what was written stays where it was, and Remove asks before."""
    there = house("One.", "Two.")
    page = tab(there.address())
    page.say("first")
    expect(page.answers).to_have_text("One.")
    first = page.session
    page.field.fill("not sent yet")
    page.button("New session").click()
    expect(page.page.locator(".welcome")).to_be_visible()
    expect(page.field).to_have_value("")
    page.say("second")
    expect(page.answers).to_have_text("Two.")
    expect(page.page.locator("#list li")).to_have_count(2)
    page.page.locator("#list .open", has_text="first").click()
    expect(page.answers).to_have_text("One.")
    expect(page.field).to_have_value("not sent yet")
    page.page.go_back()
    expect(page.answers).to_have_text("Two.")
    page.button("Remove first").click()
    page.button("Cancel").click()
    page.button("Remove first").click()
    page.page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.page.locator("#list li")).to_have_count(1)
    expect(page.answers).to_have_text("Two.")
    assert not there.store.read(first)


def test_what_is_done_elsewhere_is_seen_in_the_list(house: MakeHouse, tab: MakeTab) -> None:
    """A session that a program or another device has made, and that it works, is there after some seconds."""
    gate = Gate()
    there = house(["On it. ", gate])
    page = tab(there.address())
    page.page.clock.install()
    page.page.reload()
    expect(page.page.locator("#list li")).to_have_count(0)
    where, headers = f"{there.gateway.url}/v1/sessions", {"Authorization": f"Bearer {OWN}"}
    page.page.request.post(where, headers=headers, data={"id": "elsewhere"})
    page.page.request.post(f"{where}/elsewhere/messages", headers=headers, data={"text": "Go."})
    gate.wait_reached()
    page.page.clock.run_for(11_000)
    expect(page.page.locator("#list li[data-state=running]")).to_have_count(1)
    page.button("Stop all").click()
    expect(page.page.locator("#list li[data-state=idle]")).to_have_count(1)


def test_what_waits_can_be_edited_and_removed(house: MakeHouse, tab: MakeTab) -> None:
    """Queued messages are shown in their order; one is changed, one is taken out, and the rest come next."""
    gate = Gate()
    there = house(["Working. ", gate], "Next.")
    page = tab(there.address())
    page.say("begin")
    gate.wait_reached()
    for text in ("one", "two", "three"):
        page.say(text, "Queue")
    expect(page.waiting.locator(".text")).to_have_text(["one", "two", "three"])
    page.waiting.nth(0).get_by_role("button", name="Remove").click()
    expect(page.waiting).to_have_count(2)
    page.waiting.nth(0).get_by_role("button", name="Edit").click()
    page.page.get_by_label("Edit the message").fill("two, but better")
    page.button("Cancel").click()
    expect(page.waiting.nth(0).locator(".text")).to_have_text("two")
    page.waiting.nth(0).get_by_role("button", name="Edit").click()
    page.page.get_by_label("Edit the message").fill("two, but better")
    page.button("Save").click()
    expect(page.waiting.locator(".text")).to_have_text(["two, but better", "three"])
    gate.open()
    expect(page.messages).to_have_text(["begin", "two, but better", "three"])
    expect(page.waiting).to_have_count(0)


def test_an_edit_of_a_message_that_is_sent_meanwhile_is_kept(house: MakeHouse, tab: MakeTab) -> None:
    """A queued message is applied while its text is edited: the new text is in the field, and the field is not emptied.

    So it is if another session is opened in the middle of an edit: the text is there when the user comes back.
    """
    gates = [Gate(), Gate()]
    there = house(["Working. ", gates[0]], ["Next. ", gates[1]], "Last.")
    page = tab(there.address())
    page.say("begin")
    gates[0].wait_reached()
    page.say("first", "Queue")
    page.waiting.get_by_role("button", name="Edit").click()
    page.page.get_by_label("Edit the message").fill("first, but better")
    page.field.fill("And more.")
    gates[0].open()
    gates[1].wait_reached()
    expect(page.messages).to_have_text(["begin", "first"])
    expect(page.field).to_have_value("And more.\nfirst, but better")
    expect(page.page.locator(".notice")).to_contain_text("no longer queued")

    page.field.fill("")
    page.say("second", "Queue")
    page.waiting.get_by_role("button", name="Edit").click()
    page.page.get_by_label("Edit the message").fill("second, but better")
    session = page.session
    page.button("New session").click()
    expect(page.field).to_have_value("")
    page.page.evaluate("(id) => { location.hash = `session=${id}`; }", session)
    expect(page.field).to_have_value("second, but better")
    gates[1].open()
    expect(page.messages).to_have_text(["begin", "first", "second"])


def test_an_approval_is_given_or_refused_in_place(house: MakeHouse, tab: MakeTab) -> None:
    """A call that needs approval waits for Allow or Refuse beside it; only Allow runs it."""
    calls = (ToolCall("a", "remove", '{"path": "/one"}'), ToolCall("b", "remove", '{"path": "/two"}'))
    there = house(list(calls), "So be it.", tools=[remove], approve="ask")
    page = tab(there.address())
    page.say("tidy up")
    one, two = page.calls.filter(has_text="/one"), page.calls.filter(has_text="/two")
    one.get_by_role("button", name="Allow", exact=True).click()
    expect(one).to_have_attribute("data-state", "completed")  # it moves the buttons below it
    two.get_by_role("button", name="Deny").click()
    expect(page.answers).to_have_text("So be it.")
    expect(one.locator(".result pre")).to_have_text("/one is gone")
    expect(two).to_have_attribute("data-state", "denied")
    expect(page.button("Allow")).to_have_count(0)


def test_a_long_approval_is_read_to_its_end(house: MakeHouse, tab: MakeTab) -> None:
    """Nothing can be allowed before its end was on the screen; denying needs no reading, and may say why."""
    given = json.dumps({"path": "/x " * 3000})
    calls = [ToolCall(each, "remove", given) for each in ("a", "b", "c")]
    there = house(calls[0], calls[1], calls[2], "So be it.", tools=[remove], approve="ask")
    page = tab(there.address())
    page.say("tidy up")
    expect(page.button("Allow")).to_be_disabled()
    page.page.get_by_label("Why not").fill("not these")
    page.button("Deny").click()
    expect(page.calls.first).to_contain_text("the answer was no: not these")
    one = page.calls.nth(1)
    expect(page.button("Allow")).to_be_disabled()
    page.page.keyboard.press("Alt+q")
    page.page.keyboard.press("Enter")  # too early: it shows the end instead
    expect(page.button("Allow")).to_be_enabled()
    expect(one).to_have_attribute("data-state", "needs approval")
    page.button("Allow every call of remove in this session").click()
    expect(page.answers).to_have_text("So be it.")
    expect(page.calls.nth(2)).to_have_attribute("data-state", "completed")


def test_a_stop_withdraws_an_approval_on_the_page(house: MakeHouse, tab: MakeTab) -> None:
    """Its buttons are gone, and the call was denied."""
    there = house(ToolCall("a", "remove", '{"path": "/one"}'), tools=[remove], approve="ask")
    page = tab(there.address())
    page.say("tidy up")
    expect(page.button("Allow")).to_be_visible()
    page.button("Stop").click()
    expect(page.button("Allow")).to_have_count(0)
    expect(page.calls.first).to_have_attribute("data-state", "denied")


def test_an_approval_shows_what_cannot_be_seen(house: MakeHouse, tab: MakeTab) -> None:
    """Characters that reverse the order of others made a command look like another one."""
    given = json.dumps({"path": "a\u202etxt.sh\u2066 \u200bb\u00a0c \U000e0041"})
    there = house([ToolCall("a", "remove", given)], "So be it.", tools=[remove], approve="ask")
    page = tab(there.address())
    page.say("tidy up")
    expect(page.button("Allow")).to_be_visible()
    shown = r"a\u202etxt.sh\u2066 \u200bb\u00a0c \u{e0041}"
    expect(page.calls.locator(".given")).to_have_text(shown)
    expect(page.calls.locator(".arguments")).to_contain_text(shown)
    page.button("Deny").click()
    expect(page.answers).to_have_text("So be it.")


def test_a_question_is_answered_by_a_choice_a_line_or_a_message(house: MakeHouse, tab: MakeTab) -> None:
    """A tool's question shows its choices as buttons, or a line to write on; the next message answers it as well."""
    ask = '{"question": "What would you like?"}'
    there = house(
        ToolCall("1", "pick", ask), ToolCall("2", "wonder", ask), ToolCall("3", "wonder", ask), "Thank you.",
        tools=[pick, wonder],
    )  # fmt: skip
    page = tab(there.address())
    page.say("serve")
    page.button("tea").click()
    line = page.page.get_by_label("Your answer")
    line.fill("with milk")
    page.button("Answer").click()
    expect(page.page.locator(".question")).to_have_count(3)
    expect(page.page.locator(".question[data-state=open]")).to_have_count(1)
    page.say("and sugar", "Steer")
    expect(page.answers).to_have_text("Thank you.")
    expect(page.page.locator(".question .said")).to_have_text(["tea", "with milk", "and sugar"])
    expect(page.messages).to_have_count(1)
    expect(page.calls.locator(".result pre")).to_have_text(["picked tea", "heard with milk", "heard and sugar"])


def test_a_voice_message_is_recorded_and_sent(house: MakeHouse, tab: MakeTab) -> None:
    """The microphone button records; sending it gives the gateway sound that can be decoded, and shows it as voice."""
    there = house("I heard you.", "Not this.")
    page = tab(there.address())
    page.button("Record a voice message").click()
    page.button("Discard").click()
    expect(page.page.locator("#recording")).to_be_hidden()
    page.button("Record a voice message").click()
    expect(page.page.locator("#recorded")).to_have_text(re.compile(r"0:(0[1-9]|[1-5]\d)"))
    page.shoot("recording")
    page.button("Send").click()
    expect(page.answers).to_have_text("I heard you.")
    expect(page.messages).to_contain_text("🎙️")
    sent = [event.data for event in there.store.read(page.session) if isinstance(event.data, MessageAccepted)]
    (sound,) = [part for part in sent[0].message.parts if isinstance(part, Audio)]
    with av.open(io.BytesIO(sound.data), "r") as file:
        loudest = max(numpy.abs(frame.to_ndarray()).max() for frame in file.decode(audio=0))
    assert sound.media_type == "audio/webm"
    assert loudest > 0.05, "it is silence"


_CLICK_SEND_TWICE = """async () => {
  const { stop } = MediaRecorder.prototype;
  const ended = new Promise((resolve) => {
    MediaRecorder.prototype.stop = function () {
      this.addEventListener("stop", resolve); // after the page's own listener
      stop.call(this);
    };
  });
  const send = document.querySelector("#send");
  send.click();
  send.click();
  await ended;
}"""


def test_a_recording_is_sent_once_if_send_is_pressed_twice(house: MakeHouse, tab: MakeTab) -> None:
    """Two clicks in a row send one voice message, whole, and complain about nothing."""
    there = house("I heard you.", "Not this.")
    page = tab(there.address())
    page.button("Record a voice message").click()
    expect(page.page.locator("#recorded")).to_have_text(re.compile(r"0:(0[1-9]|[1-5]\d)"))
    page.page.evaluate(_CLICK_SEND_TWICE)
    expect(page.answers).to_have_text("I heard you.")
    expect(page.messages).to_have_count(1)
    assert page.page.locator(".notice").all_inner_texts() == []  # at once: a notice goes away by itself
    sent = [event for event in there.store.read(page.session) if isinstance(event.data, MessageAccepted)]
    assert len(sent) == 1


def test_a_microphone_is_asked_for_once(house: MakeHouse, tab: MakeTab) -> None:
    """While the browser asks the user for the microphone, typing does not bring the button back."""
    page = tab(house("Hello.").address())
    page.page.evaluate("() => { navigator.mediaDevices.getUserMedia = () => new Promise(() => {}); }")
    mic = page.button("Record a voice message")
    mic.click()
    expect(mic).to_be_disabled()
    page.field.fill("Meanwhile")
    expect(page.button("Send")).to_be_enabled()
    expect(mic).to_be_disabled()


def test_a_voice_message_is_understood_and_steers(house: MakeHouse, tab: MakeTab) -> None:
    """What was said into the microphone is transcribed by the gateway, shown as voice, and steers the running turn."""
    gate = Gate()
    there = house(["Looking at this map. ", gate], "The other one, then.")
    page = tab(there.address())
    page.say("look")
    gate.wait_reached()
    page.button("Record a voice message").click()
    expect(page.page.locator("#recorded")).to_have_text(re.compile(r"0:(0[3-9]|[1-5]\d)"))
    page.button("Steer").click()
    expect(page.answers.last).to_have_text("The other one, then.", timeout=30_000)
    expect(page.messages.last).to_contain_text(re.compile("🎙️ “.*look", re.IGNORECASE))
    expect(page.messages.last.locator(".mode")).to_have_text("Steer")
    expect(page.page.locator(".turn")).to_have_count(1)


def test_a_message_that_is_being_transcribed_says_so(house: MakeHouse, tab: MakeTab) -> None:
    """A voice message that waits to be understood shows its state, and then what was heard."""
    there = house()
    page = tab(there.address())
    accepted = {
        "id": "v", "mode": "queue", "type": "message.accepted", "preparing": "transcribing",
        "message": {"type": "user", "parts": [{"type": "audio", "href": "/v1/x", "media_type": "audio/ogg"}]},
    }  # fmt: skip
    edited = {
        "id": "v", "type": "message.edited", "message": {"type": "user", "parts": [{"type": "text", "text": "Hello."}]}
    }  # fmt: skip
    shown = page.page.evaluate(
        """async ([accepted, edited]) => {
          const { SessionDisplay } = await import("/page/session_view.js");
          const { QueueView } = await import("/page/queue.js");
          const state = new SessionDisplay(), node = document.createElement("div"), seen = [];
          const view = new QueueView(node, {}, () => {});
          for (const [at, data] of [accepted, edited].entries()) {
            state.running = {};
            state.apply({ seq: at + 1, time: 1, session: "s", turn: "", data });
            view.render(state, []);
            seen.push(node.querySelector(".text").textContent);
          }
          return seen;
        }""",
        [accepted, edited],
    )
    assert shown == ["🎙️ Transcribing…", "🎙️ “Hello.”"]


def test_a_message_that_is_refused_is_kept_and_can_be_taken_back(house: MakeHouse, tab: MakeTab) -> None:
    """What the gateway does not take yet is shown with the reason; taking it back puts the words into the field."""
    there = house("One.", limits=GatewayLimits(session_messages=1))
    page = tab(there.address())
    page.say("first")
    expect(page.answers).to_have_text("One.")
    page.say("second")
    expect(page.waiting).to_contain_text("too many messages per minute for this session")
    page.shoot("refused")
    page.button("Take back").click()
    expect(page.field).to_have_value("second")
    expect(page.waiting).to_have_count(0)
    page.wrong = [each for each in page.wrong if "429" not in each]


def test_a_key_is_asked_for_and_leaves_the_address(house: MakeHouse, tab: MakeTab) -> None:
    """The key is taken out of the address at once; without one, or with a wrong one, the page asks."""
    there = house("Hello.")
    page = tab(there.gateway.url + "/", dark=True)
    key = page.page.get_by_role("dialog").get_by_label("Key")
    key.fill("wrong")
    page.button("Continue").click()
    expect(page.page.get_by_role("dialog")).to_contain_text("not accepted")
    key.fill("the-key-of-the-tests")
    key.press("Enter")
    page.say("hi")
    expect(page.answers).to_have_text("Hello.")
    page.page.goto(there.address(page.session))
    expect(page.answers).to_have_text("Hello.")
    assert "key" not in page.page.url
    page.wrong = [each for each in page.wrong if "401" not in each]


def test_a_wrong_key_in_the_address_does_not_replace_the_right_one(house: MakeHouse, tab: MakeTab) -> None:
    """Any site can link to the page with any key: that took the kept one away."""
    there = house("Hello.", "Again.")
    page = tab(there.address())
    page.say("hi")
    expect(page.answers).to_have_text("Hello.")
    wrong = f"{there.gateway.url}/#key=wrong&session={page.session}"
    page.page.goto(wrong)  # in the open page
    expect(page.page.locator(".notice")).to_contain_text("not accepted")
    page.page.goto("about:blank")
    page.page.goto(wrong)
    expect(page.page.locator(".notice")).to_contain_text("not accepted")
    page.say("again")
    expect(page.answers.nth(1)).to_have_text("Again.")
    assert "key" not in page.page.url
    page.wrong = [each for each in page.wrong if "401" not in each]


def test_what_the_gateway_tells_at_the_start_stays_until_it_is_dismissed(house: MakeHouse, tab: MakeTab) -> None:
    """That there is no sandbox is shown once, and not again with each list of sessions."""
    page = tab(house("One.", notices=["No sandbox: this kernel is too old."]).address())
    notice = page.page.locator(".notice")
    expect(notice).to_have_text("No sandbox: this kernel is too old.")
    page.say("Hi.")
    page.idle()
    expect(notice).to_have_count(1)
    notice.get_by_role("button", name="Dismiss").click()
    expect(notice).to_have_count(0)


def test_undo_shows_the_changed_files_first(house: MakeHouse, tab: MakeTab, tmp_path: Path) -> None:
    """Undo shows the diff and can be left; it restores the files, and they can be brought back."""
    file = tmp_path / "workspace" / "a.txt"
    file.parent.mkdir()
    file.write_text("old\n")
    tools = Checkpoints(file.parent, folder=tmp_path / "data").watch(Files(file.parent).tools)
    write = ToolCall("c1", "write_file", '{"path": "a.txt", "content": "new\\n"}')
    page = tab(house(write, "Done.", tools=tools).address())
    page.say("Go.")
    expect(page.answers).to_have_text("Done.")
    dialog = page.page.get_by_role("dialog")
    page.button("Undo").click()
    expect(dialog.locator(".diff ins")).to_have_text("new")
    dialog.get_by_role("button", name="Cancel").click()
    assert file.read_text() == "new\n"
    page.button("Undo").click()
    dialog.get_by_role("button", name="Restore the files").click()
    expect(page.ends).to_contain_text("Removed from the conversation")
    assert file.read_text() == "old\n"
    expect(page.page.locator("#said")).to_have_text("1 file restored.")
    with page.page.expect_response("**/rollback/undo"):
        page.button("Redo the file changes").click()
    assert file.read_text() == "new\n"
