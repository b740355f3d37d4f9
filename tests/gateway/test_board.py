"""What is to be seen in a chat, whatever its platform does: in order, newest first, and tried again."""

from __future__ import annotations

from collections.abc import Sequence

from halter.gateway.platforms.board import Board
from halter.gateway.platforms.pace import Bucket, Pace
from halter.gateway.platforms.places import Places
from halter.gateway.platforms.platform import Button, Refused, Unreachable
from tests.tools.looped import looped


class Wall:
    """A platform on which everything can be seen, and which fails as it is told to."""

    name = "wall"
    users = ()
    busy = "steer"
    longest = 10
    every = 0.001
    a_second = 1_000

    def __init__(self, *failures: Exception | None) -> None:
        self.messages: list[str] = []
        self.buttons: list[Sequence[Button]] = []
        self._failures = list(failures)

    def _fail(self) -> None:
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure

    async def send(self, place: str, text: str, buttons: Sequence[Button], *, fixed: bool) -> str:
        self._fail()
        self.messages.append(text)
        self.buttons.append(buttons)
        return str(len(self.messages) - 1)

    async def edit(self, place: str, message: str, text: str, buttons: Sequence[Button]) -> None:
        self._fail()
        self.messages[int(message)] = text
        self.buttons[int(message)] = buttons


def board_on(wall: Wall) -> Board:
    return Board(wall, "here", Pace(wall.every, Bucket(1_000, 1_000)))  # type: ignore[arg-type]


@looped
async def test_notes_appear_in_their_order() -> None:
    """What was said first is first, also if it changes meanwhile; and its last state is what is seen at last."""
    wall = Wall()
    board = board_on(wall)
    text = ["a"]
    note = board.pin(lambda: text[0])
    board.say("b")
    board.say("c")
    text[0] = "A"
    note.settle()
    await board.flush()
    assert wall.messages == ["A", "b", "c"]
    assert board.is_idle


@looped
async def test_what_can_not_be_reached_is_tried_again() -> None:
    """A platform that is away for a moment shows everything afterwards, once."""
    wall = Wall(Unreachable("away"))
    board = board_on(wall)
    board.say("a")
    board.say("b")
    await board.flush()
    assert wall.messages == ["a", "b"]


@looped
async def test_what_is_refused_is_given_up() -> None:
    """One note that the platform will never show does not hold up the next."""
    wall = Wall(Refused("gone"))
    board = board_on(wall)
    board.say("a")
    board.say("b")
    await board.flush()
    assert wall.messages == ["b"]
    assert board.is_idle


@looped
async def test_a_defect_of_a_platform_is_not_the_end() -> None:
    """If a platform fails in a way that it should not, what comes later is shown."""
    wall = Wall(ZeroDivisionError())
    board = board_on(wall)
    board.say("a")
    await board.flush()
    board.say("b")
    await board.flush()
    assert wall.messages == ["b"]


@looped
async def test_a_text_that_becomes_shorter() -> None:
    """What has become too much is not left standing as if it were said; the buttons are below the last of it."""
    wall = Wall()
    board = board_on(wall)
    text = ["one two three four"]
    note = board.pin(lambda: text[0], [Button("x", "x")])
    await board.flush()
    assert wall.messages == ["one two", "three four"]
    assert [len(buttons) for buttons in wall.buttons] == [0, 1]
    text[0] = "five"
    note.settle()
    await board.flush()
    assert wall.messages == ["five", "…"]
    assert not any(wall.buttons)


@looped
async def test_nothing_to_be_read_is_not_shown() -> None:
    """A text of blanks makes no message: platforms refuse it."""
    wall = Wall()
    board = board_on(wall)
    board.say(" \n ")
    await board.flush()
    assert wall.messages == []


def test_all_places_share_a_limit() -> None:
    """Many chats at once do not have more messages in one second than the platform allows."""
    wall = Wall()
    wall.a_second = 30
    places = Places(wall)  # type: ignore[arg-type]
    paces = [places[str(number)].board._pace for number in range(100)]
    shown = 0
    for pace in paces:
        if pace.delay(is_change=False) == 0:
            pace.take()
            shown += 1
    assert 10 <= shown < 30
    assert paces[-1].delay(is_change=False) > 0
