"""Pictures and other things that people send to a Telegram bot."""

from __future__ import annotations

from typing import Any

from halter.events import MessageAccepted, TurnFinished
from halter.models import Image, UserMessage
from halter.testing import Gate
from tests.support.looped import looped
from tests.support.telegram_bot import bot_of


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
        await desk.server.read("orses.")  # of one turn with both messages, or of the first of two
        accepted = [data.message for data in desk.events() if isinstance(data, MessageAccepted)]
        assert [message.text for message in accepted] == ["What are these?", "In one word."]
        assert [part.data for part in accepted[0].parts if isinstance(part, Image)] == [b"a", b"b", b"c"]


@looped
async def test_what_cannot_be_passed_on_is_said() -> None:
    """A sticker, a video, a photo that Telegram does not give or that is too large: nothing is dropped in silence."""
    async with bot_of() as desk:
        desk.server.files["huge"] = bytes(20_000_001)
        for name in ("gone", "huge"):
            await desk.server.say(photo=[{"file_id": name, "file_unique_id": name, "width": 1, "height": 1}])
        await desk.server.read("could not be downloaded", "Telegram did not deliver it")
        await desk.server.read("could not be downloaded", "larger than 20,000,000 bytes")
        video = {"file_id": "v", "file_unique_id": "v", "width": 1, "height": 1, "duration": 1}
        await desk.server.say(video=video, caption="look")
        await desk.server.read("a video, so it was not sent to the agent")
        await desk.server.say("/queue")
        await desk.server.read("Write the text after the command")
        await desk.server.say("/start")
        await desk.server.read("/stop – stop it now")  # noqa: RUF001
        assert not any(isinstance(data, MessageAccepted) for data in desk.events())


@looped
async def test_the_first_command_tells_what_the_gateway_has_to_say() -> None:
    """Every chat of Telegram begins with /start: its answer says that there is no sandbox."""
    async with bot_of(notices=["No sandbox: this kernel is too old."]) as desk:
        await desk.server.say("/start")
        await desk.server.read("/stop – stop it now", "No sandbox: this kernel is too old.")  # noqa: RUF001


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
        held = await desk.server.read("This arrived after your stop.", "2 messages are held.")
        finished = [data for data in desk.events() if isinstance(data, TurnFinished)]
        assert [data.reason for data in finished] == ["stop"]
        await desk.server.press(held, "Send held messages")
        await desk.server.read("It is a horse.")
