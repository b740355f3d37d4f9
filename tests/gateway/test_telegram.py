"""A Telegram bot, by the real library, against a server that speaks the Bot API: what people say and what they see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from halter import tool
from halter.events import MessageAccepted, MessageApplied, TurnFinished
from halter.models import Image, ToolCall, UserMessage
from halter.models.errors import ProviderError
from halter.stores import MemoryStore
from halter.testing import Gate
from halter.tools import ToolContext
from tests.gateway.botkit import SESSION, bot_of
from tests.gateway.botserver import USER, BotServer
from tests.gateway.kit import Client, client_session
from tests.tools.looped import looped


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
async def test_a_long_answer_is_cut_into_messages() -> None:
    """No message has more than 4096 UTF-16 units, nothing is lost, and the cuts are between lines."""
    lines = [f"{number} " + "🐎" * 60 for number in range(200)]
    async with bot_of("\n".join(lines)) as desk:
        await desk.server.say("Horses!")
        await desk.server.until(lambda: "\n".join(desk.server.texts()) == "\n".join(lines))
        assert len(desk.server.shown) > 5


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
        answer = await desk.server.read("Stopped in", "ms: request scripted (cancelled).")
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
        await desk.server.press(held, "Go on with what is held")
        await desk.server.read("And two.")
        await desk.server.until(lambda: not held.buttons and "They go on." in held.text)


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
        asked = await desk.server.read("May erase run?", "path: notes.txt")
        assert [button["text"] for button in asked.buttons] == ["Allow", "Deny"]
        await desk.server.press(asked, "Allow")
        await desk.server.read("erase: completed", "Done.")
        await desk.server.until(lambda: not asked.buttons and "✅" in asked.text)
        await desk.server.until(lambda: "answerCallbackQuery" in desk.server.of())


@looped
async def test_a_denial_by_button() -> None:
    """The other button denies, and the model is told."""
    async with bot_of(_erase(), "As you wish.", tools=[erase], approve="ask") as desk:
        await desk.server.say("Erase it.")
        asked = await desk.server.read("May erase run?")
        await desk.server.press(asked, "Deny")
        await desk.server.read("erase: denied", "As you wish.")
        await desk.server.until(lambda: not asked.buttons and "🚫" in asked.text)


@looped
async def test_a_stop_withdraws_an_approval() -> None:
    """A stop takes the buttons away; who presses one that was still to be seen is told that it is too late."""
    async with bot_of(_erase(), tools=[erase], approve="ask") as desk:
        await desk.server.say("Erase it.")
        asked = await desk.server.read("May erase run?")
        buttons = list(asked.buttons)
        await desk.server.say("/stop")
        await desk.server.until(lambda: not asked.buttons and "🚫" in asked.text)
        asked.buttons = buttons
        await desk.server.press(asked, "Allow")
        await desk.server.until(lambda: not asked.buttons)
        [call] = [call for call in desk.server.calls if call.method == "answerCallbackQuery"]
        assert call.fields["text"] == "This is not asked any more."


@looped
async def test_an_approval_that_is_answered_elsewhere() -> None:
    """If somebody allows it on the page, the buttons in the chat are gone as well."""
    async with bot_of(_erase(), "Done.", tools=[erase], approve="ask") as desk:
        await desk.server.say("Erase it.")
        asked = await desk.server.read("May erase run?")
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
async def test_a_photo_is_a_picture_for_the_model() -> None:
    """The largest size of a photo is fetched, and its caption is the text; so is a picture that is sent as a file."""
    async with bot_of("A horse.", "A cow.") as desk:
        desk.server.files |= {"small": b"s", "large": b"the large one", "png": b"a file"}
        sizes = [{"file_id": name, "file_unique_id": name, "width": 1, "height": 1} for name in ("small", "large")]
        await desk.server.say(photo=sizes, caption="What is this?")
        await desk.server.read("A horse.")
        document = {"file_id": "png", "file_unique_id": "png", "mime_type": "image/png"}
        await desk.server.say(document=document)
        await desk.server.read("A cow.")
        users = [message for message in desk.model.requests[-1].messages if isinstance(message, UserMessage)]
        assert [part.data for each in users for part in each.parts if isinstance(part, Image)] == [
            b"the large one",
            b"a file",
        ]
        assert users[0].text == "What is this?"


@looped
async def test_an_album_is_one_message() -> None:
    """Pictures that were sent as one are one message, in their order, and what was said behind them is behind them."""
    async with bot_of("Three horses.", "Horses.") as desk:
        for name in ("a", "b", "c"):
            desk.server.files[name] = name.encode()
            photo = [{"file_id": name, "file_unique_id": name, "width": 1, "height": 1}]
            caption: dict[str, Any] = {"caption": "What are these?"} if name == "a" else {}
            await desk.server.say(photo=photo, media_group_id="1", **caption)
        await desk.server.acknowledged(await desk.server.say("In one word."))
        await desk.server.read("Horses.")
        accepted = [data.message for data in desk.events() if isinstance(data, MessageAccepted)]
        assert [message.text for message in accepted] == ["What are these?", "In one word."]
        assert [part.data for part in accepted[0].parts if isinstance(part, Image)] == [b"a", b"b", b"c"]


@looped
async def test_what_can_not_be_passed_on_is_said() -> None:
    """A sticker, a video, a photo that Telegram does not give or that is too large: nothing is dropped in silence."""
    async with bot_of() as desk:
        desk.server.files["huge"] = bytes(20_000_001)
        for name in ("gone", "huge"):
            await desk.server.say(photo=[{"file_id": name, "file_unique_id": name, "width": 1, "height": 1}])
        await desk.server.read("could not be fetched", "Telegram does not give it")
        await desk.server.read("could not be fetched", "larger than 20,000,000 bytes")
        video = {"file_id": "v", "file_unique_id": "v", "width": 1, "height": 1, "duration": 1}
        await desk.server.say(video=video, caption="look")
        await desk.server.read("a video: it was not passed on")
        await desk.server.say("/queue")
        await desk.server.read("What is to be said goes behind it")
        await desk.server.say("/start")
        await desk.server.read("/stop – stop it, now")  # noqa: RUF001
        assert not any(isinstance(data, MessageAccepted) for data in desk.events())


@looped
async def test_strangers_are_turned_away() -> None:
    """Who is not on the list is told a number for the owner, once; nothing is accepted, fetched, pressed or stopped."""
    async with bot_of(_erase(), "Done.", tools=[erase], approve="ask") as desk:
        await desk.server.say("Hello?", chat=666, user=666)
        await desk.server.read("add 666 to `users` in [telegram]", chat=666)
        await desk.server.say("Erase it.")
        asked = await desk.server.read("May erase run?")
        await desk.server.press(asked, "Allow", user=666)
        await desk.server.until(lambda: "answerCallbackQuery" in desk.server.of())
        await desk.server.acknowledged(await desk.server.say("/stop", user=666))
        await desk.server.acknowledged(await desk.server.say("Hello?", chat=666, user=666))
        assert len(desk.server.texts(666)) == 1
        assert asked.buttons
        await desk.server.press(asked, "Allow")
        await desk.server.read("Done.")
        assert not desk.store.read("telegram-666")


@looped
async def test_an_empty_list_is_nobody() -> None:
    """A bot without users lets nobody in."""
    async with bot_of(users=()) as desk:
        await desk.server.say("Hello?")
        await desk.server.read(f"add {USER} to")
        assert not desk.events()


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


@looped
async def test_too_fast() -> None:
    """When Telegram says 429, nothing is sent to that chat for as long as it says, and then all is there."""
    async with bot_of(["A", "B", "C"], tools=[]) as desk:
        refused: list[float] = []

        def refuse(call: Any) -> tuple[int, dict[str, Any]] | None:
            if call.method != "sendMessage" or refused:
                return None
            refused.append(call.at)
            return 429, {"parameters": {"retry_after": 1}}

        desk.server.refuse = refuse
        await desk.server.say("Go.")
        await desk.server.read("ABC")
        times = [call.at for call in desk.server.calls if call.method in ("sendMessage", "editMessageText")]
        assert times[0] == refused[0]
        assert times[1] - times[0] >= 1


@looped
async def test_edits_keep_their_pace() -> None:
    """However fast the model is, a message is changed once in the time that is set; and at last it is whole."""
    gates = [Gate() for _ in range(12)]
    script = [step for gate in gates for step in ("word ", gate)]
    async with bot_of(script, every=0.2) as desk:
        await desk.server.say("Go.")
        for gate in gates:
            await gate.await_reached()
            gate.open()
        await desk.server.read("word " * 11 + "word")
        times = [call.at for call in desk.server.calls if call.method in ("sendMessage", "editMessageText")]
        assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.19
        assert len(times) <= 4


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
            await server.read("A new conversation begins.")
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
async def test_a_stop_does_not_wait_for_a_download() -> None:
    """A stop behind a photo that is slow to fetch stops what runs at once, and the photo is held when it comes."""
    gate = Gate()
    async with bot_of(["One ", gate], "It is a horse.") as desk:
        await desk.server.say("Count.")
        await desk.server.read("One")
        desk.server.may_download.clear()
        desk.server.files["p"] = b"photo"
        photo = await desk.server.say(photo=[{"file_id": "p", "file_unique_id": "p", "width": 1, "height": 1}])
        await desk.server.until(lambda: "getFile" in desk.server.of())
        await desk.server.say("What is it?")
        await desk.server.say("/stop")
        await desk.server.read("Stopped in")
        assert desk.server.offset <= photo  # it is not safe yet
        desk.server.may_download.set()
        await desk.server.acknowledged(await desk.server.say("/help"))
        held = await desk.server.read("This came behind your stop.", "2 messages are held.")
        finished = [data for data in desk.events() if isinstance(data, TurnFinished)]
        assert [data.reason for data in finished] == ["stop"]
        await desk.server.press(held, "Go on with what is held")
        await desk.server.read("It is a horse.")


@looped
async def test_a_session_of_no_chat() -> None:
    """A session that somebody has named like those of the bot, but for which there is no chat, is shown nowhere."""
    async with bot_of("Hello.", "Hi.") as desk:
        async with client_session(desk.gateway) as http:
            client = Client(http)
            await client.create("telegram-nowhere")
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
async def test_telegram_is_found_again() -> None:
    """When Telegram fails, or another poller is in the way, it is asked again, and nothing is lost."""
    async with BotServer() as server:
        failures: Iterator[tuple[int, dict[str, Any]]] = iter([(500, {}), (409, {})])
        server.refuse = lambda call: next(failures, None) if call.method in ("getMe", "getUpdates") else None
        async with bot_of("Hello.", server=server):
            await server.say("Hi.")
            await server.read("Hello.")


@looped
async def test_a_refused_token() -> None:
    """With a wrong token the bot ends with a word in the log, and the gateway goes on."""
    async with BotServer() as server:
        server.refuse = lambda call: (401, {"description": "Unauthorized"})
        async with bot_of(server=server) as desk:
            await server.until(lambda: "getMe" in server.of())
            async with client_session(desk.gateway) as http:
                assert (await Client(http).ask("GET", "/healthz")).status == 200


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
