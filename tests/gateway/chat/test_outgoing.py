"""What is to be seen in a chat, whatever its platform does: in order, newest first, and tried again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from halter.gateway.chat.adapter import Button, PlatformUnreachable, SendRejected
from halter.gateway.chat.conversations import Conversations
from halter.gateway.chat.outgoing import OutgoingQueue
from halter.gateway.chat.send_rate import SendRate
from halter.gateway.token_bucket import TokenBucket
from tests.support.looped import looped


class Wall:
    """A platform on which everything can be seen, and which fails as it is told to."""

    name = "wall"
    users = ()
    busy = "steer"
    max_length = 10
    edit_interval = 0.001
    max_rate = 1_000

    def __init__(self, *failures: Exception | None) -> None:
        self.messages: list[str] = []
        self.buttons: list[Sequence[Button]] = []
        self._failures = list(failures)

    def _fail(self) -> None:
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure

    async def send(self, chat_id: str, text: str, buttons: Sequence[Button], *, monospace: bool) -> str:
        self._fail()
        self.messages.append(text)
        self.buttons.append(buttons)
        return str(len(self.messages) - 1)

    async def edit(self, chat_id: str, message: str, text: str, buttons: Sequence[Button]) -> None:
        self._fail()
        self.messages[int(message)] = text
        self.buttons[int(message)] = buttons


def queue_on(wall: Wall) -> OutgoingQueue:
    return OutgoingQueue(wall, "here", SendRate(wall.edit_interval, TokenBucket(1_000, 1_000)))  # type: ignore[arg-type]


@looped
async def test_notes_appear_in_their_order() -> None:
    """What was said first is first, also if it changes meanwhile; and its last state is what is seen at last."""
    wall = Wall()
    outgoing = queue_on(wall)
    text = ["a"]
    note = outgoing.add(lambda: text[0])
    outgoing.say("b")
    outgoing.say("c")
    text[0] = "A"
    note.finish()
    await outgoing.flush()
    assert wall.messages == ["A", "b", "c"]
    assert outgoing.is_idle


@looped
async def test_what_cannot_be_reached_is_tried_again() -> None:
    """A platform that is away for a moment shows everything afterwards, once."""
    wall = Wall(PlatformUnreachable("away"))
    outgoing = queue_on(wall)
    outgoing.say("a")
    outgoing.say("b")
    await outgoing.flush()
    assert wall.messages == ["a", "b"]


@looped
async def test_what_is_refused_is_given_up() -> None:
    """One note that the platform will never show does not hold up the next."""
    wall = Wall(SendRejected("gone"))
    outgoing = queue_on(wall)
    outgoing.say("a")
    outgoing.say("b")
    await outgoing.flush()
    assert wall.messages == ["b"]
    assert outgoing.is_idle


@looped
async def test_a_defect_of_a_platform_is_not_the_end() -> None:
    """If a platform fails in a way that it should not, what comes later is shown."""
    wall = Wall(ZeroDivisionError())
    outgoing = queue_on(wall)
    outgoing.say("a")
    await outgoing.flush()
    outgoing.say("b")
    await outgoing.flush()
    assert wall.messages == ["b"]


@looped
async def test_a_text_that_becomes_shorter() -> None:
    """What has become too much is not left standing as if it were said; the buttons are below the last of it."""
    wall = Wall()
    outgoing = queue_on(wall)
    text = ["one two three four"]
    note = outgoing.add(lambda: text[0], [Button("x", "x")])
    await outgoing.flush()
    assert wall.messages == ["one two", "three four"]
    assert [len(buttons) for buttons in wall.buttons] == [0, 1]
    text[0] = "five"
    note.finish()
    await outgoing.flush()
    assert wall.messages == ["five", "…"]
    assert not any(wall.buttons)


@looped
async def test_nothing_to_be_read_is_not_shown() -> None:
    """A text of blanks makes no message: platforms refuse it."""
    wall = Wall()
    outgoing = queue_on(wall)
    outgoing.say(" \n ")
    await outgoing.flush()
    assert wall.messages == []


def test_all_places_share_a_limit() -> None:
    """Many chats at once do not have more messages in one second than the platform allows."""
    wall = Wall()
    wall.max_rate = 30
    conversations = Conversations(wall)  # type: ignore[arg-type]
    paces = [conversations[str(number)].outgoing._rate for number in range(100)]
    shown = 0
    began = time.monotonic()
    for rate in paces:
        if rate.delay(is_edit=False) == 0:
            rate.take()
            shown += 1
    assert 10 <= shown <= 10 + 20 * (time.monotonic() - began)  # a burst, and what a busy machine gives time for
    for rate in paces[:-1]:
        rate.take()
    assert paces[-1].delay(is_edit=False) > 0
