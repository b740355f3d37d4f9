"""Pieces of text are written in their order, once, however many wait for the writer."""

from __future__ import annotations

from collections.abc import Sequence

from halter import Agent
from halter.errors import WriteRefused
from halter.events import RequestStarted, TurnStarted
from halter.models import ReasoningDelta, TextDelta
from halter.session.log import EventLog, Transaction
from halter.session.text_pieces import TextPieces
from halter.stores import MemoryStore, Write
from halter.testing import ScriptedModel


class RefusingOnce(MemoryStore):
    """A store that refuses the first commit with text in it, of several commands, as if one of them were at fault."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def commit(self, writes: Sequence[Write]) -> None:
        [write] = writes
        kinds = [event.kind for event in write.events]
        if not self.refused and {"text.delta", "reasoning.delta"} <= set(kinds):
            self.refused += 1
            raise WriteRefused("one of them is at fault", write.lease.session)
        super().commit(writes)


def test_text_of_a_commit_that_is_tried_again_is_not_lost() -> None:
    """Pieces of text that were taken for a commit that was refused are written when their command is tried alone."""
    store = RefusingOnce()
    turn = Agent(ScriptedModel([ReasoningDelta("Hm."), "one ", "two ", "three"])).session("s", store).run("hi")
    assert (turn.status, store.refused) == ("done", 1)
    words = [event.data.text for event in store.read("s") if isinstance(event.data, TextDelta)]
    assert "".join(words) == "one two three"


def test_text_is_written_once_if_an_effect_has_more_of_it_written() -> None:
    """An effect of a batch may wait for a command; a piece of text that this batch has written is not written again."""
    store = MemoryStore()
    first, second = (EventLog(name, store, store.acquire(name)) for name in ("first", "second"))
    second.run(lambda tx: tx.write("t", TurnStarted("model"), RequestStarted("model", 1)))
    pieces = TextPieces(TextDelta, "t")
    pieces.texts.append("one ")

    def have_more_written() -> None:
        pieces.texts.append("two")
        second.run(pieces.write)

    def decide(tx: Transaction) -> None:
        tx.after_commit(have_more_written)

    first.writer.add(first.command(decide))
    first.writer.submit(second.command(pieces.write))
    words = [event.data.text for event in store.read("second") if isinstance(event.data, TextDelta)]
    assert words == ["one ", "two"]
    assert second.view.history.text == "one two"


def test_many_pieces_at_once_are_joined_also_if_the_first_is_empty() -> None:
    """A model yielded an empty piece and then a burst: none of it was written, so nobody saw the answer grow."""
    store = MemoryStore()
    burst = [TextDelta(""), *[TextDelta(f"{number} ") for number in range(100)]]
    turn = Agent(ScriptedModel(burst)).session("s", store).run("hi")
    text = "".join(f"{number} " for number in range(100))
    assert (turn.status, turn.text) == ("done", text)
    written = [event.data.text for event in store.read("s") if isinstance(event.data, TextDelta)]
    assert "".join(written) == text
    assert len(written) < 65
