"""The inbox: messages that wait, what their receipts say, and that nothing of them is lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from halter import Agent, Receipt
from halter.models import AnthropicModel, Audio, Image, OpenAIModel, Text, UserMessage
from halter.stores import MemoryStore, Store
from halter.testing import FakeProvider, Gate
from tests.support.background import Background, RunningTurn
from tests.support.hooked_store import HookedStore
from tests.support.looped import looped
from tests.support.sessions import AT_MOST, agent_of, data_of, kinds, model_of, said, session_of
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until

PICTURE = Image(b"\x89PNG\r\n\x1a\n picture")
SOUND = Audio(b"RIFF sound")


# -- receipts ------------------------------------------------------------------------------------------------------


def test_a_receipt_follows_its_message() -> None:
    """A receipt says accepted, then applied and in which turn."""
    with session_of("ok") as session:
        receipt = session.post("x")
        assert (receipt.state, receipt.mode, receipt.turn_id, receipt.note) == ("accepted", "queue", "", "")
        assert receipt.id
        assert not receipt.stopped
        turn = session.run()
        assert (receipt.state, receipt.turn_id) == ("applied", turn.id)


def test_the_same_id_is_the_same_message() -> None:
    """A message that is sent again with its id is applied once, and both receipts say the same, also later."""
    with session_of("one", "two") as session:
        first = session.post("x", id="m1")
        again = session.post("x", id="m1")
        assert first.id == again.id == "m1"
        assert len(session.inbox) == 1
        turn = session.run()
        later = session.post("x", id="m1")
        assert later.state == again.state == "applied"
        assert later.turn_id == turn.id
        assert len(session.inbox) == 0
        assert said(session.history) == ["x"]


def test_an_interrupt_that_is_sent_again_stops_once() -> None:
    """An interrupt whose answer was lost, and which is sent again in the next turn, does not stop that one."""
    gates = [Gate(), Gate()]
    with session_of(["one", gates[0]], ["two", gates[1]]) as session:
        running = RunningTurn(session)
        gates[0].wait_reached()
        assert session.post("x", "interrupt", id="m1").stopped
        assert running.end().status == "interrupted"
        running = RunningTurn(session, None)
        gates[1].wait_reached()
        again = session.post("x", "interrupt", id="m1")
        assert again.state == "applied"
        gates[1].open()
        assert running.end().status == "done"


def test_ids_are_known_after_a_restart() -> None:
    """A message that was applied before the program ended is not accepted again by its id."""
    store = MemoryStore()
    agent = agent_of("one", "two")
    with agent.session("s", store) as session:
        session.post("x", id="m1")
        session.run()
        session.post("y", id="m2")
    with agent.session("s", store) as session:
        assert session.post("x", id="m1").state == "applied"
        assert session.post("y", id="m2").state == "accepted"
        assert [letter.id for letter in session.inbox] == ["m2"]
        session.run()
        assert said(session.history) == ["x", "y"]


def test_many_threads_that_post_one_id_are_one_message() -> None:
    """The same id from many threads at once is accepted once."""
    with session_of("ok") as session:
        barrier = threading.Barrier(8)

        def post() -> Receipt:
            barrier.wait(AT_MOST)
            return session.post("x", id="same")

        receipts = [each.result() for each in [Background(post) for _ in range(8)]]
        assert {receipt.id for receipt in receipts} == {"same"}
        assert len(data_of(session, "message.accepted")) == 1


def test_messages_of_many_threads_are_all_there_in_order() -> None:
    """Threads that post at the same time lose nothing, and each one's messages keep their order."""
    with session_of("ok") as session:

        def post(name: str) -> None:
            for number in range(100):
                session.post(f"{name} {number}")

        for each in [Background(lambda name=name: post(name)) for name in "abcd"]:
            each.result()
        texts = [letter.text for letter in session.inbox]
        assert len(texts) == 400
        for name in "abcd":
            assert [text for text in texts if text[0] == name] == [f"{name} {number}" for number in range(100)]
        session.run()
        assert said(session.history) == texts


def test_settled_waits_until_a_message_is_applied() -> None:
    """settled() gives False when its time is over, and True as soon as the message is applied, in any thread."""
    with session_of("ok") as session:
        receipt = session.post("x")
        assert not receipt.settled(0.01)
        waiting = Background(lambda: receipt.settled(AT_MOST))
        session.run()
        assert waiting.result()
        assert receipt.settled(0)


def test_settled_of_an_interrupt_waits_for_the_end_of_the_turn() -> None:
    """When settled() of an interrupt comes back, the turn that it stopped is sealed."""
    gate = Gate()
    with session_of(["one", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        receipt = session.interrupt()
        assert receipt.settled(AT_MOST)
        assert not session.is_running
        assert kinds(session.events())[-1] == "turn.finished"
        assert receipt.turn_id == running.end().id


@pytest.mark.parametrize("how", ["held", "removed"])
def test_settled_comes_back_when_a_message_is_held_or_removed(how: str) -> None:
    """settled() does not wait for a turn that a message will not have."""
    with session_of() as session:
        receipt = session.post("x")
        waiting = Background(lambda: receipt.settled(AT_MOST))
        if how == "held":
            session.stop()
        else:
            session.inbox.remove(receipt.id)
        assert waiting.result()
        assert receipt.state == how


def test_settled_waits_again_after_a_release() -> None:
    """A held message is settled; released, it is not, until it is applied."""
    with session_of("ok") as session:
        receipt = session.post("x")
        session.stop()
        assert receipt.settled(0)
        session.release()
        assert not receipt.settled(0)
        waiting = Background(lambda: receipt.settled(AT_MOST))
        session.run()
        assert waiting.result()


@looped
async def test_settled_can_be_awaited() -> None:
    """settled_async() waits in the loop, without blocking the turn that it waits for."""
    async with session_of("ok") as session:
        receipt = session.post("x")
        waiting = asyncio.create_task(receipt.settled_async())
        await session.arun()
        await waiting
        assert receipt.state == "applied"


def test_settled_of_an_interrupt_with_a_text_waits_for_both() -> None:
    """An interrupt with a text is settled when its turn is over and its message is applied."""
    gate = Gate()
    with session_of(["one", gate], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        receipt = session.interrupt("x")
        running.end()
        assert not receipt.settled(0.01)  # the turn is over, the message waits
        assert session.run().status == "done"
        assert receipt.settled(0)


# -- editing -------------------------------------------------------------------------------------------------------


def test_a_message_that_waits_can_be_changed() -> None:
    """edit() changes what is applied, keeps the message's place, and is in the log."""
    with session_of("ok") as session:
        one, two = session.post("one"), session.post("two")
        assert session.inbox.edit(one.id, ["uno", PICTURE])
        assert [letter.id for letter in session.inbox] == [one.id, two.id]
        assert session.inbox[0].text == "uno"
        session.run()
        assert session.history[0] == UserMessage([Text("uno"), PICTURE])
        assert len(data_of(session, "message.edited")) == 1


def test_a_message_that_is_gone_cannot_be_changed() -> None:
    """edit() and remove() of a message that was applied, or never came, do nothing and say so."""
    with session_of("ok") as session:
        receipt = session.post("x")
        session.run()
        before = len(session.events())
        assert not session.inbox.edit(receipt.id, "y")
        assert not session.inbox.remove(receipt.id)
        assert not session.inbox.remove("nobody")
        assert len(session.events()) == before
        assert receipt.state == "applied"


def test_a_message_that_was_removed_is_never_applied() -> None:
    """remove() takes a message out for good: its receipt says so, and a restart does not bring it back."""
    store = MemoryStore()
    agent = agent_of("ok")
    with agent.session("s", store) as session:
        gone, kept = session.post("gone", id="m"), session.post("kept")
        assert session.inbox.remove(gone.id)
        assert gone.state == "removed"
        assert [letter.id for letter in session.inbox] == [kept.id]
    with agent.session("s", store) as session:
        assert session.post("gone", id="m").state == "removed"
        session.run()
        assert said(session.history) == ["kept"]


def test_the_inbox_can_be_read_like_a_list() -> None:
    """len(), iteration and indices give what waits, in order."""
    with session_of() as session:
        session.post("one")
        session.post("two")
        assert len(session.inbox) == 2
        assert [letter.text for letter in session.inbox] == ["one", "two"]
        assert session.inbox[-1].text == "two"
        assert session.inbox[0].accepted_at > 0
        assert "one" in repr(session.inbox[0])


# -- held messages -------------------------------------------------------------------------------------------------


def test_a_stop_holds_what_was_queued_and_newer_messages_pass() -> None:
    """After a stop the queued messages are shown as held; a newer one is applied before them, and they stay."""
    gate = Gate()
    with session_of(["one", gate], "two", "three") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        held = [session.queue("a"), session.queue("b")]
        session.stop()
        assert running.end().status == "interrupted"
        assert [receipt.state for receipt in held] == ["held", "held"]
        assert session.run("c").text == "two"
        assert said(session.history)[-1].endswith("c")
        assert [letter.text for letter in session.inbox] == ["a", "b"]
        assert session.release() == 2
        assert session.run().text == "three"
        assert said(session.history)[-2:] == ["a", "b"]
        judge_session(session, model_of(session).requests)


def test_one_held_message_can_be_released_alone() -> None:
    """release(id) lets one go on, and the others stay held."""
    with session_of("ok") as session:
        one, two = session.post("one"), session.post("two")
        session.stop()
        assert session.release("nobody") == 0
        assert session.release(two.id) == 1
        assert (one.state, two.state) == ("held", "accepted")
        session.run()
        assert said(session.history) == ["two"]
        assert [letter.text for letter in session.inbox] == ["one"]


def test_an_interrupt_holds_nothing() -> None:
    """interrupt() stops the turn and leaves what was queued to the next one, in order."""
    gate = Gate()
    with session_of(["one", gate], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.queue("a")
        session.interrupt("b")
        running.end()
        assert [letter.state for letter in session.inbox] == ["accepted", "accepted"]
        session.run()
        assert [text.splitlines()[-1] for text in said(session.history)] == ["begin", "a", "b"]


def test_held_messages_are_held_after_a_restart() -> None:
    """What a stop has held does not start by itself when the program comes back."""
    store = MemoryStore()
    agent = agent_of("ok")
    with agent.session("s", store) as session:
        session.post("x")
        session.stop()
    with agent.session("s", store) as session:
        assert [letter.state for letter in session.inbox] == ["held"]
        assert session.release() == 1
        assert session.run().status == "done"


def test_held_messages_can_be_changed_and_removed() -> None:
    """A held message is as editable as one that waits, and stays held."""
    with session_of() as session:
        one, two = session.post("one"), session.post("two")
        session.stop()
        assert session.inbox.edit(one.id, "uno")
        assert session.inbox.remove(two.id)
        assert [(letter.text, letter.state) for letter in session.inbox] == [("uno", "held")]


def test_the_store_knows_what_waits() -> None:
    """The store tells how many messages wait in each session, held ones included."""
    store = MemoryStore()
    with agent_of("ok").session("s", store) as session:
        session.post("one")
        session.stop()
        session.steer("two")
        assert [info.waiting for info in store.sessions()] == [2]
        session.run()
        assert [info.waiting for info in store.sessions()] == [1]


# -- typed messages ------------------------------------------------------------------------------------------------


def test_pictures_and_sounds_travel_from_the_inbox_into_the_request() -> None:
    """A message of text, picture and sound is the same in inbox, history and request, and after a restart."""
    store = MemoryStore()
    agent = agent_of("one", "two")
    with agent.session("s", store) as session:
        session.post(["what is this?", PICTURE, SOUND])
    with agent.session("s", store) as session:
        assert session.inbox[0].message == UserMessage([Text("what is this?"), PICTURE, SOUND])
        session.run()
        assert model_of(session).requests[0].messages == [UserMessage([Text("what is this?"), PICTURE, SOUND])]
        session.run(SOUND)
        assert session.history[-2] == UserMessage([SOUND])
        judge_session(session, model_of(session).requests)


@pytest.mark.parametrize("mode", ["steer", "interrupt", "queue", "rollback"])
def test_a_voice_message_during_a_turn_keeps_its_sound_in_every_mode(mode: str) -> None:
    """A message without any text is delivered whole, however it is sent."""
    gate = Gate()
    with session_of(["one", gate], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        receipt = session.post(SOUND, mode)  # type: ignore[arg-type]
        gate.open()
        if running.end().text != "two":
            session.run()
        assert receipt.state == "applied"
        parts = [part for message in session.history if isinstance(message, UserMessage) for part in message.parts]
        assert parts.count(SOUND) == 1
        judge_session(session, model_of(session).requests)


def test_the_wires_carry_what_was_posted() -> None:
    """A picture and a sound reach the provider: both by OpenAI's wire; by Anthropic's, the sound is told in words."""
    with FakeProvider() as provider:
        openai = OpenAIModel("m", base_url=provider.openai_url, api_key="k")
        anthropic = AnthropicModel("m", base_url=provider.anthropic_url, api_key="k")
        for model in (openai, anthropic):
            with Agent(model).session() as session:
                assert session.run(["look and listen", PICTURE, SOUND]).text == "ok"
        one, other = (request.body["messages"][0]["content"] for request in provider.requests)
        assert [part["type"] for part in one] == ["text", "image_url", "input_audio"]
        assert [part["type"] for part in other] == ["text", "image", "text"]


@pytest.mark.parametrize(
    "nothing", ["", "  \n", [], [""], UserMessage([]), UserMessage.of(" "), None, 7, [7], b"bytes"], ids=repr
)
def test_a_message_with_nothing_in_it_is_refused(nothing: Any) -> None:
    """What no provider would take is refused where it is posted, with a word on what a message is."""
    with session_of() as session:
        for give in (session.post, session.steer, session.run if nothing is not None else session.post):
            with pytest.raises(ValueError, match="a message must be a text"):
                give(nothing)
        assert session.events() == []
        receipt = session.post("x")
        with pytest.raises(ValueError, match="a message must be a text"):
            session.inbox.edit(receipt.id, nothing)


def test_empty_texts_beside_a_picture_are_left_out() -> None:
    """A picture with an empty caption is a picture."""
    with session_of("ok") as session:
        session.run(["", PICTURE])
        assert session.history[0] == UserMessage([PICTURE])


def test_settled_does_not_hang_when_a_hold_could_not_be_written() -> None:
    """A message that a full store could not hold is as it was: it is settled when it is held, or applied, later."""
    store = HookedStore()
    with agent_of("answer").session("s", store) as session:
        receipt = session.queue("x")
        waiting = Background(receipt.settled)
        store.fill_up("message.held")
        stop = session.stop()
        assert "could not be held" in stop.note
        assert (receipt.state, receipt.settled(0)) == ("accepted", False)
        store.empty()
        session.stop()
        assert waiting.result() is True
        session.release()
        waiting = Background(receipt.settled)
        session.run()
        assert waiting.result() is True
        assert receipt.state == "applied"


def test_settled_does_not_hang_when_the_session_is_closed(store: Store) -> None:
    """Whoever waits for a message, in a thread or in a loop, is told at close() that it is not settled."""
    session = agent_of("answer").session("s", store)
    receipt = session.queue("x")
    waiting = [Background(receipt.settled), Background(lambda: asyncio.run(receipt.settled_async()))]
    wait_until(lambda: session._log._watched)
    session.close()
    assert [each.result() for each in waiting] == [False, False]
    assert Background(receipt.settled).result() is False


def test_settled_does_not_hang_when_the_end_of_the_turn_could_not_be_written() -> None:
    """A turn whose end a full store could not take has ended for whoever waits for its stop."""
    store, gate = HookedStore(), Gate()
    with agent_of(["half ", gate], "next").session("s", store) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        store.fill_up("turn.finished")
        receipt = session.stop()
        assert Background(receipt.settled).result() is True
        assert running.end().status == "failed"
        store.empty()
        assert session.run("next").text == "next"
        judge_session(session)
