"""The list of what is to do, and the notes that outlive sessions."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halter import Agent, ToolOutcome
from halter.models import ToolCall
from halter.testing import Moment, ScriptedModel
from halter.toolbox.memory import Memory, _parsed, _written
from halter.toolbox.todo import Todo
from tests.support.batches import Probe, run
from tests.support.processes import open_files, run_python
from tests.support.stopped_calls import call, call_stopped, check, every_moment, every_reason, stop_everywhere


def test_a_list_lasts_as_long_as_its_session() -> None:
    """Items are added, changed and shown; another session has a list of its own."""
    model = ScriptedModel(
        [
            ToolCall("1", "todo", '{"add": ["write", "test\\n it"]}'),
            ToolCall("2", "todo", '{"number": 1, "state": "done"}'),
        ],
        "a",
        ToolCall("3", "todo", '{"number": 2, "state": "doing", "text": "test it well"}'),
        "b",
    )
    agent = Agent(model, Todo().tools)
    with agent.session() as session:
        first = session.run("go")
        assert first.outcomes[1].content == "[x] 1. write\n[ ] 2. test it\n(1 of 2 left)"
        second = session.run("go on")
        assert second.outcomes[0].content == "[x] 1. write\n[>] 2. test it well\n(1 of 2 left)"
    with Agent(ScriptedModel(ToolCall("1", "todo"), "c"), Todo().tools).session() as session:
        assert session.run("go").outcomes[0].content == "The list is empty."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"number": 1}, "no item 1; the list has 0"),
        ({"state": "done"}, "number is missing"),
        ({"add": [" "]}, "an item cannot be empty"),
        ({"add": ["x"] * 201}, "at most 200 items"),
        ({"number": 1, "state": "finished"}, "state"),
    ],
)
def test_what_a_list_cannot_do_is_told(arguments: dict[str, Any], words: str) -> None:
    """A wrong change changes nothing and says why."""
    outcome = call(Todo().todo, **arguments)
    assert outcome.status == "failed"
    assert words in outcome.detail


@every_reason
@every_moment
def test_a_list_that_is_stopped(moment: Moment, reason: str) -> None:
    """A stop finds a change of the list done or not begun."""
    outcome = call_stopped(Todo().todo, moment, reason, add=["one"])
    check(outcome, moment, reason)
    assert outcome.content in ("", "[ ] 1. one\n(1 of 1 left)")


def test_notes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes are added, replaced and removed by a piece of them, in a file that people can read."""
    monkeypatch.setenv("HALTER_HOME", str(tmp_path / "home"))
    memory = Memory().memory
    assert call(memory, action="read").content == "There are no notes yet."
    assert call(memory, action="add", text="likes tea\nand honey").content == "Done. 1 notes, 24 of 20,000 characters."
    assert call(memory, action="add", text="likes tea\nand honey").content == "This note already exists."
    call(memory, action="add", text="dislikes rain")
    assert (tmp_path / "home/memory.md").read_text() == "- likes tea\n  and honey\n- dislikes rain\n"
    call(memory, action="replace", match="tea", text="likes coffee")
    call(memory, action="remove", match="rain")
    assert call(Memory(tmp_path / "home/memory.md").memory, action="read").content == "- likes coffee"
    assert os.listdir(tmp_path / "home") == ["memory.md"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"action": "remove", "match": "like"},
            "2 notes contain 'like'; pass a longer part:\n- likes a\n- likes b",
        ),
        ({"action": "replace", "match": "x", "text": "y"}, "no note contains 'x':\n- likes a\n- likes b"),
        ({"action": "add"}, "text is missing: add needs the new note"),
        ({"action": "remove"}, "needs a part of the note"),
        ({"action": "add", "text": "x" * 2001}, "2000"),
        ({"action": "forget"}, "action"),
    ],
)
def test_what_notes_cannot_do_is_told(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    """A wrong change changes nothing and says why."""
    (tmp_path / "m").write_text("- likes a\n- likes b\n")
    outcome = call(Memory(tmp_path / "m").memory, **arguments)
    assert outcome.status == "failed"
    assert words in outcome.detail
    assert (tmp_path / "m").read_text() == "- likes a\n- likes b\n"


def test_notes_are_bounded(tmp_path: Path) -> None:
    """When there is no room for another note, that is said, and the old ones stay."""
    memory = Memory(tmp_path / "m")
    outcomes = [call(memory.memory, action="add", text=f"{number:04}" * 500) for number in range(10)]
    assert [outcome.status for outcome in outcomes] == ["completed"] * 9 + ["failed"]
    assert "remove some first" in outcomes[-1].detail
    assert len(memory.read()) == 9


@given(notes=st.lists(st.text().map(str.strip).filter(bool), max_size=5))
def test_notes_are_read_as_they_were_written(notes: list[str]) -> None:
    """Whatever a note's text, what is written and read again is written the same way: nothing drifts."""
    once = _parsed(_written(notes))
    assert len(once) <= len(notes)
    assert _parsed(_written(once)) == once
    plain = [note for note in notes if note.isprintable() and "- " not in note]
    assert _parsed(_written(plain)) == plain


def test_notes_that_are_not_utf8_are_not_damaged(tmp_path: Path) -> None:
    """A file that an editor had saved in another encoding lost its letters with the next note; it is left as it is."""
    path = tmp_path / "notes"
    path.write_bytes(data := "- Grüße\n".encode("latin-1"))
    for arguments in ({"action": "add", "text": "x"}, {"action": "remove", "match": "Gr"}):
        outcome = call(Memory(path).memory, **arguments)
        assert outcome.status == "failed"
        assert "notes is not UTF-8; convert it first" in outcome.detail
    assert path.read_bytes() == data
    assert "Gr" in Memory(path).read()[0]


@pytest.mark.parametrize("count", [45, 500])
def test_notes_over_the_limit_can_be_removed(tmp_path: Path, count: int) -> None:
    """Notes that a person had written beyond the limit could not be made fewer by the tool that asked for that."""
    path = tmp_path / "notes"
    path.write_text("".join(f"- note {number} {'x' * 490}\n" for number in range(count)))
    memory = Memory(path).memory
    assert "the limit is 20,000" in call(memory, action="add", text="one more").detail
    assert call(memory, action="remove", match=f"note {count - 1} ").status == "completed"
    assert path.read_text().count("- note ") == count - 1


def test_many_write_at_once(tmp_path: Path) -> None:
    """Threads and processes that note things at the same time lose none of them."""
    path = tmp_path / "m"

    async def batch(name: str) -> list[ToolOutcome]:
        calls = [ToolCall(str(n), "memory", f'{{"action": "add", "text": "{name}{n}"}}') for n in range(10)]
        return await Probe(Memory(path).memory, calls=calls).run()

    threads = [threading.Thread(target=lambda name=name: run(batch(name))) for name in "abc"]
    for thread in threads:
        thread.start()
    program = "import sys; from halter.toolbox.memory import Memory\n"
    program += "for n in range(10): Memory(sys.argv[1]).memory('add', f'p{n}')"
    assert run_python(program, str(path)).returncode == 0
    for thread in threads:
        thread.join(30)
    assert sorted(Memory(path).read()) == sorted(f"{name}{n}" for name in "abcp" for n in range(10))


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_note_is_whole_or_not_made(tmp_path: Path, reason: str) -> None:
    """At every line of a change of the notes, a stop leaves the old notes or the new ones, and says which."""
    path = tmp_path / "sub" / "m"
    path.parent.mkdir()

    def prepare() -> tuple[Any, dict[str, Any]]:
        path.write_text("- old\n")
        return Memory(path).memory, {"action": "replace", "match": "old", "text": "new"}

    def verify(outcome: ToolOutcome) -> None:
        assert os.listdir(path.parent) == ["m"]
        is_done = path.read_text() == "- new\n"
        assert is_done or path.read_text() == "- old\n"
        if outcome.status in ("completed", "partial"):
            assert str(outcome.content).startswith("Done." if is_done else "Nothing was changed")

    before = open_files()
    assert stop_everywhere(prepare, verify, reason) > 50
    assert open_files() == before


@every_reason
@every_moment
def test_a_note_that_is_stopped(tmp_path: Path, moment: Moment, reason: str) -> None:
    """Whenever a note is stopped, the file is whole."""
    (tmp_path / "m").write_text("- old\n")
    outcome = call_stopped(Memory(tmp_path / "m").memory, moment, reason, action="add", text="new")
    check(outcome, moment, reason)
    assert (tmp_path / "m").read_text() in ("- old\n", "- old\n- new\n")
    assert os.listdir(tmp_path) == ["m"]
