"""A Telegram bot, by the real library, against a server that speaks the Bot API: what people say and what they see."""

from __future__ import annotations

from halter import ToolContext, tool
from halter.events import MessageAccepted, MessageApplied, TurnFinished
from halter.models import ToolCall
from halter.models.errors import ProviderError
from halter.stores import MemoryStore
from halter.testing import Gate
from tests.support.gateway_client import Client, client_session
from tests.support.looped import looped
from tests.support.telegram_bot import SESSION, bot_of
from tests.support.telegram_server import BotServer


@looped
async def test_a_text_is_answered() -> None:
    """A message is a turn in the chat's own session, and its answer is a message in the chat."""
    async with bot_of("Paris.") as desk:
        number = await desk.server.say("What is the capital of France?")
        await desk.server.read("Paris.")
        assert desk.server.texts() == ["Paris."]
        await desk.server.acknowledged(number)
        [accepted] = [data for data in desk.events() if isinstance(data, MessageAccepted)]
        assert accepted.id.startswith(f"telegram-{number}-")
        assert desk.said() == ["What is the capital of France?"]
        assert desk.server.of("sendChatAction")


@looped
async def test_an_answer_grows_by_edits() -> None:
    """What the model says is shown while it says it, in one message, whose last text is the whole answer."""
    gate, second = Gate(), Gate()
    async with bot_of(["One, ", gate, "two, ", second, "three."]) as desk:
        await desk.server.say("Count.")
        message = await desk.server.read("One,")
        gate.open()
        await desk.server.until(lambda: message.text == "One, two,")
        second.open()
        await desk.server.until(lambda: message.text == "One, two, three.")
        assert len(desk.server.shown) == 1


@looped
async def test_a_text_steers_what_runs() -> None:
    """A message that comes in the middle of an answer goes into it, and the turn goes on below what was shown."""
    gate = Gate()
    async with bot_of(["Paris is ", gate], "Lyon, then.") as desk:
        await desk.server.say("Tell me about Paris.")
        await desk.server.read("Paris is")
        await desk.server.say("No, about Lyon.")
        await desk.server.read("Lyon, then.")
        assert desk.server.texts() == ["Paris is", "Lyon, then."]
        applied = [data for data in desk.events() if isinstance(data, MessageApplied)]
        assert [each.mode for each in applied] == ["queue", "steer"]


@looped
async def test_steer_as_a_command() -> None:
    """`/steer` steers also where another mode is set; when nothing runs, it says what becomes of it."""
    gate = Gate()
    async with bot_of("Hello.", ["One ", gate], "Two.", busy="queue") as desk:
        await desk.server.say("/steer hi")
        await desk.server.read("Hello.")
        await desk.server.read("no turn was running")
        await desk.server.say("Count.")
        await desk.server.read("One")
        await desk.server.say("/steer@halter_bot by twos")
        await desk.server.read("Two.")
        assert desk.said()[-1].endswith("by twos")


@looped
async def test_queued_messages_wait() -> None:
    """`/queue` says that it waits, and is answered in a turn of its own."""
    gate = Gate()
    async with bot_of(["One ", gate, "two."], "Three.") as desk:
        await desk.server.say("Count.")
        await desk.server.read("One")
        await desk.server.say("/queue And then?")
        await desk.server.read("Queued")
        gate.open()
        await desk.server.read("Three.")
        await desk.server.read("One two.")
        assert len([data for data in desk.events() if isinstance(data, TurnFinished)]) == 2


@looped
async def test_a_stop_in_the_middle() -> None:
    """`/stop` ends the turn, says what it has stopped and in how long, and what was shown stays."""
    gate = Gate()
    async with bot_of(["One, ", gate]) as desk:
        await desk.server.say("Count.")
        await desk.server.read("One,")
        await desk.server.say("/stop")
        answer = await desk.server.read("Stopped in", ": request scripted (cancelled).")
        await desk.server.read("One,", "⏹ stopped in")
        assert answer.text != desk.server.shown[0].text
        assert desk.model.streams[0].state in ("closed", "cancelled")
        await desk.server.say("/why")
        drawing = await desk.server.read(f"Session {SESSION}", "request scripted")
        assert drawing.fields["entities"][0]["type"] == "pre"


@looped
async def test_a_stop_of_nothing() -> None:
    """`/stop` with nothing running says so, and poisons nothing; `/why` knows of no stop."""
    async with bot_of("Hello.") as desk:
        await desk.server.say("/stop")
        await desk.server.read("Nothing was running.")
        await desk.server.say("/why")
        await desk.server.read("Nothing was stopped here.")
        await desk.server.say("Hi.")
        await desk.server.read("Hello.")


@looped
async def test_held_messages_go_on_by_a_button() -> None:
    """What waited when a stop came is held and shown; a button lets it go on, and is gone then."""
    gate = Gate()
    async with bot_of(["One, ", gate], "And two.") as desk:
        await desk.server.say("Count.")
        await desk.server.read("One,")
        await desk.server.say("/queue Go on.")
        await desk.server.read("Queued")
        await desk.server.say("/stop")
        held = await desk.server.read("Stopped", "1 message is held.")
        await desk.server.press(held, "Send held messages")
        await desk.server.read("And two.")
        await desk.server.until(lambda: not held.buttons and "Sent." in held.text)


@looped
async def test_an_update_that_is_delivered_twice() -> None:
    """It is applied once: before it was acknowledged, after that, and by the next gateway."""
    store = MemoryStore()
    async with BotServer() as server:
        server.acknowledges = False
        async with bot_of("Hello.", server=server, store=store) as desk:
            number = await server.say("Hi.")
            await server.read("Hello.")
            polls = len(server.of("getUpdates"))
            await server.until(lambda: len(server.of("getUpdates")) > polls)
            update = server.update(number)
            server.acknowledges = True
            await server.acknowledged(number)
            await server.deliver_again(number, update)
            await server.acknowledged(await server.say("/stop"))
            assert desk.said() == ["Hi."]
        await server.deliver_again(number, update)
        async with bot_of("Yes?", server=server, store=store) as desk:
            await server.say("Again.")
            await server.read("Yes?")
            assert desk.said() == ["Hi.", "Again."]


@tool
async def dig(ctx: ToolContext) -> str:
    """Dig."""
    ctx.report("one metre deep")
    await ctx.token.wait_async()
    ctx.token.raise_if_cancelled()
    return "never"


@looped
async def test_a_tool_call_is_a_line_of_its_own() -> None:
    """While a tool works, the message of the turn tells how far it is; and at last how it ended."""
    async with bot_of(["Let me dig.", ToolCall("c1", "dig", "{}")], tools=[dig]) as desk:
        await desk.server.say("Dig.")
        message = await desk.server.read("Let me dig.\n🔧 dig · one metre deep")
        await desk.server.say("/stop")
        await desk.server.read("Stopped in", "tool dig (cancelled)")
        await desk.server.until(lambda: "⏹ dig · cancelled" in message.text and "⏹ stopped in" in message.text)


@looped
async def test_a_retry_replaces_what_was_said() -> None:
    """When a request breaks in the middle and is made again, the chat shows the second answer, and only that."""
    gate = Gate()
    broken = ProviderError("lost", should_retry=True)
    async with bot_of(["First ", gate, broken], "Second.") as desk:
        await desk.server.say("Go.")
        message = await desk.server.read("First")
        gate.open()
        await desk.server.until(lambda: message.text == "Second.")
        assert len(desk.server.shown) == 1


@looped
async def test_a_failed_turn_says_so() -> None:
    """If the provider refuses, the chat is told why."""
    async with bot_of(ProviderError("no such model", status=404)) as desk:
        await desk.server.say("Go.")
        await desk.server.read("⚠️", "no such model")


@looped
async def test_a_new_conversation() -> None:
    """`/new` stops what runs and begins another session. What was said before it belongs to the old one, for ever."""
    gate = Gate()
    store = MemoryStore()
    async with BotServer() as server:
        async with bot_of(["One ", gate], "Hello.", server=server, store=store) as desk:
            first = await server.say("Count.")
            old = server.update(first)
            await server.read("One")
            number = await server.say("/new")
            order = server.update(number)["message"]["message_id"]
            await server.read("New conversation.")
            await server.read("One", "⏹")
            await server.say("Hi.")
            await server.read("Hello.")
            assert desk.said() == ["Hi."]
            assert desk.events(f"{SESSION}~{order}")
        await server.deliver_again(first, old)
        async with bot_of("Still here.", server=server, store=store) as desk:
            await server.say("And now?")
            await server.read("Still here.")
            assert desk.said() == ["Hi.", "And now?"]
            accepted = [data for data in desk.events() if isinstance(data, MessageAccepted)]
            assert len(accepted) == 1


@looped
async def test_a_session_of_no_chat() -> None:
    """A session of the store that is named like those of the bot, but has no chat, is shown nowhere."""
    async with bot_of("Hello.", "Hi.") as desk:
        async with client_session(desk.gateway) as http:
            client = Client(http)
            await desk.gateway.registry.create("telegram-nowhere", None)
            await client.post("Hi.", "telegram-nowhere")
            await client.finished("telegram-nowhere")
        await desk.server.say("Hi.")
        await desk.server.read("Hi.")
        assert len(desk.server.shown) == 1


@looped
async def test_groups_and_topics() -> None:
    """Each topic of a group is a session of its own, is answered there, and a command for another bot is not ours."""
    async with bot_of("Hello.") as desk:
        topic = {"message_thread_id": 5, "is_topic_message": True}
        await desk.server.acknowledged(await desk.server.say("/stop@other_bot", chat=-100, **topic))
        await desk.server.say("Hi.", chat=-100, **topic)
        message = await desk.server.read("Hello.", chat=-100)
        assert message.fields["message_thread_id"] == "5"
        assert desk.events("telegram--100:5")
        assert len(desk.server.shown) == 1


@looped
async def test_the_end_of_the_gateway() -> None:
    """At its end a turn that runs is stopped, the chat is told, and Telegram is told what was received."""
    gate = Gate()
    async with BotServer() as server:
        async with bot_of(["One ", gate], server=server):
            number = await server.say("Count.")
            await server.read("One")
        await server.read("One", "⏹ stopped")
        assert server.offset > number


@looped
async def test_a_page_beside_the_chat() -> None:
    """What somebody says to the session over HTTP is answered in the chat as well: it is one conversation."""
    async with bot_of("Hello.", "Again.") as desk:
        await desk.server.say("Hi.")
        await desk.server.read("Hello.")
        async with client_session(desk.gateway) as http:
            assert (await Client(http).post("And?", SESSION)).status == 202
        await desk.server.read("Again.")
