"""Who a Telegram bot asks, and whom it does not even listen to: approvals, questions, and strangers."""

from __future__ import annotations

from halter import tool
from halter.events import ApprovalAnswered
from halter.models import ToolCall
from halter.tools import ToolContext
from tests.support.gateway_client import Client, client_session
from tests.support.looped import looped
from tests.support.telegram_bot import SESSION, bot_of
from tests.support.telegram_server import USER


@tool(approval=True)
def erase(path: str) -> str:
    """Erase a file."""
    return f"{path} is gone"


def _erase(path: str = "notes.txt") -> ToolCall:
    return ToolCall("c1", "erase", f'{{"path": "{path}"}}')


@looped
async def test_an_approval_by_button() -> None:
    """A tool that needs approval asks with buttons; one press lets it run, and the buttons are gone."""
    async with bot_of(_erase(), "Done.", tools=[erase], approve="ask") as desk:
        await desk.server.say("Erase it.")
        asked = await desk.server.read("Allow erase?", "path: notes.txt")
        session = "Allow every call of erase in this session"
        assert [button["text"] for button in asked.buttons] == ["Deny", "Allow once", session]
        await desk.server.press(asked, "Allow once")
        await desk.server.read("✅ erase notes.txt · ", "Done.")
        await desk.server.until(lambda: not asked.buttons and "✅" in asked.text)
        await desk.server.until(lambda: "answerCallbackQuery" in desk.server.of())
        assert [each.by for each in desk.events() if isinstance(each, ApprovalAnswered)] == [f"telegram user {USER}"]


@looped
async def test_a_denial_by_button() -> None:
    """The other button denies, and the model is told."""
    async with bot_of(_erase(), "As you wish.", tools=[erase], approve="ask") as desk:
        await desk.server.say("Erase it.")
        asked = await desk.server.read("Allow erase?")
        await desk.server.press(asked, "Deny")
        await desk.server.read("🚫 erase notes.txt · denied", "As you wish.")
        await desk.server.until(lambda: not asked.buttons and "🚫" in asked.text)


@looped
async def test_a_stop_withdraws_an_approval() -> None:
    """A stop takes the buttons away; who presses one that was still to be seen is told that it is too late."""
    async with bot_of(_erase(), tools=[erase], approve="ask") as desk:
        await desk.server.say("Erase it.")
        asked = await desk.server.read("Allow erase?")
        buttons = list(asked.buttons)
        await desk.server.say("/stop")
        await desk.server.until(lambda: not asked.buttons and "🚫" in asked.text)
        asked.buttons = buttons
        await desk.server.press(asked, "Allow once")
        await desk.server.until(lambda: not asked.buttons)
        [call] = [call for call in desk.server.calls if call.method == "answerCallbackQuery"]
        assert call.fields["text"] == "This question is no longer open."


@looped
async def test_a_long_approval_is_read_to_its_end() -> None:
    """What is longer than a page can be denied at once, and allowed on its last page only; a stop withdraws it."""
    async with bot_of(_erase("x" * 3000), tools=[erase], approve="ask") as desk:
        await desk.server.say("Erase it.")
        asked = await desk.server.read("Allow erase?")
        buttons = list(asked.buttons)
        assert [button["text"] for button in buttons] == ["Next page", "Deny"]
        await desk.server.press(asked, "Next page")
        await desk.server.until(lambda: not asked.buttons)
        second = await desk.server.until(lambda: desk.server.with_button("Next page"))
        await desk.server.press(second, "Next page")
        last = await desk.server.until(lambda: desk.server.with_button("Allow once"))
        asked.buttons = [{"text": "Next page", "callback_data": buttons[0]["callback_data"]}]
        await desk.server.press(asked, "Next page")  # once more, too late: it must not mean another button
        await desk.server.say("/stop")
        await desk.server.until(lambda: not last.buttons and "🚫" in last.text)
        assert [each.granted for each in desk.events() if isinstance(each, ApprovalAnswered)] == [False]


@looped
async def test_a_denial_with_a_reason() -> None:
    """/deny answers the open approval, and the model reads why; without one it says that there is nothing to deny."""
    async with bot_of(_erase(), "As you wish.", tools=[erase], approve="ask") as desk:
        await desk.server.say("/deny why not")
        await desk.server.read("There is nothing to deny.")
        await desk.server.say("Erase it.")
        asked = await desk.server.read("Allow erase?")
        await desk.server.say("/deny keep the notes")
        await desk.server.read("As you wish.")
        await desk.server.until(lambda: not asked.buttons and "keep the notes" in asked.text)
        [answered] = [each for each in desk.events() if isinstance(each, ApprovalAnswered)]
        assert answered.note == "the answer was no: keep the notes"


@looped
async def test_an_approval_that_is_answered_elsewhere() -> None:
    """If somebody allows it on the page, the buttons in the chat are gone as well."""
    async with bot_of(_erase(), "Done.", tools=[erase], approve="ask") as desk:
        await desk.server.say("Erase it.")
        asked = await desk.server.read("Allow erase?")
        request = asked.buttons[0]["callback_data"].partition("/")[0]
        async with client_session(desk.gateway) as http:
            answered = await Client(http).ask("POST", f"/v1/sessions/{SESSION}/answers/{request}", {"value": True})
            assert answered.status == 200
        await desk.server.until(lambda: not asked.buttons and "✅" in asked.text)
        await desk.server.read("Done.")


@tool
async def paint(ctx: ToolContext) -> str:
    """Paint."""
    return f"painted {await ctx.ask('Which colour?', ['red', 'blue'])}"


@tool
async def name_it(ctx: ToolContext) -> str:
    """Give it a name."""
    return f"named {await ctx.ask('Which name?')}"


@looped
async def test_choices_are_buttons() -> None:
    """A question with choices has a button for each, and the one that is pressed is the answer."""
    async with bot_of(ToolCall("c1", "paint", "{}"), "It is blue.", tools=[paint]) as desk:
        await desk.server.say("Paint.")
        asked = await desk.server.read("❓ Which colour?")
        await desk.server.press(asked, "blue")
        await desk.server.read("It is blue.")
        await desk.server.until(lambda: not asked.buttons and asked.text.endswith("✅ blue"))
        [result] = [message.text for message in desk.model.requests[-1].messages if message.text.startswith("painted")]
        assert result == "painted blue"


@looped
async def test_a_question_is_answered_by_a_text() -> None:
    """The next message is the answer to an open question, and no message beside that."""
    async with bot_of(ToolCall("c1", "name_it", "{}"), "Nice.", tools=[name_it]) as desk:
        await desk.server.say("Name it.")
        asked = await desk.server.read("❓ Which name?")
        await desk.server.say("Rosinante")
        await desk.server.read("Nice.")
        await desk.server.until(lambda: asked.text.endswith("✅ Rosinante"))
        assert desk.said() == ["Name it."]


@looped
async def test_strangers_are_turned_away() -> None:
    """Who is not on the list is told a number for the owner, once; nothing is accepted, fetched, pressed or stopped."""
    async with bot_of(_erase(), "Done.", tools=[erase], approve="ask") as desk:
        await desk.server.say("Hello?", chat=666, user=666)
        await desk.server.read("add 666 to `users` in [telegram]", chat=666)
        await desk.server.say("Erase it.")
        asked = await desk.server.read("Allow erase?")
        await desk.server.press(asked, "Allow once", user=666)
        await desk.server.until(lambda: "answerCallbackQuery" in desk.server.of())
        await desk.server.acknowledged(await desk.server.say("/stop", user=666))
        await desk.server.acknowledged(await desk.server.say("Hello?", chat=666, user=666))
        assert len(desk.server.texts(666)) == 1
        assert asked.buttons
        await desk.server.press(asked, "Allow once")
        await desk.server.read("Done.")
        assert not desk.store.read("telegram-666")


@looped
async def test_an_empty_list_is_nobody() -> None:
    """A bot without users lets nobody in."""
    async with bot_of(users=()) as desk:
        await desk.server.say("Hello?")
        await desk.server.read(f"add {USER} to")
        assert not desk.events()
