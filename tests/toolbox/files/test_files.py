"""Reading and writing files of a workspace."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halter import Agent, ToolOutcome
from halter.events import ToolProgress
from halter.models import Image, ToolCall
from halter.testing import Moment, ScriptedModel
from halter.toolbox.files import atomic
from halter.toolbox.files.atomic import Draft
from halter.toolbox.files.backend import FileChange, LocalBackend
from halter.toolbox.files.files import Files
from halter.toolbox.files.text_reader import show
from halter.toolbox.files.workspace import Workspace
from tests.support.batches import Probe, run
from tests.support.processes import open_files, run_python
from tests.support.stopped_calls import call, call_stopped, check, every_moment, every_reason, stop_everywhere
from tests.support.waiting import wait_until
from tests.support.without_capabilities import without_capabilities


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def text(tool: Any, **arguments: Any) -> str:
    outcome = call(tool, **arguments)
    assert outcome.status == "completed", outcome
    assert isinstance(outcome.content, str)
    return outcome.content


def error(tool: Any, **arguments: Any) -> str:
    outcome = call(tool, **arguments)
    assert outcome.status == "failed", outcome
    return outcome.detail


# -- reading -------------------------------------------------------------------------------------


def test_lines_have_their_numbers(files: Files, tmp_path: Path) -> None:
    """A text comes with numbered lines; a part of it says which part it is and how to go on."""
    (tmp_path / "f").write_text("one\ntwo\nthree\nfour")
    assert text(files.read_file, path="f") == "     1\tone\n     2\ttwo\n     3\tthree\n     4\tfour"
    assert text(files.read_file, path="f", start=2, lines=2) == (
        "     2\ttwo\n     3\tthree\n[lines 2 to 3 of 4; continue with start=4]"
    )
    assert text(files.read_file, path="f", start=4) == "     4\tfour\n[lines 4 to 4: the end of the file]"
    assert "has only 4 lines; there is no line 5" in error(files.read_file, path="f", start=5)
    (tmp_path / "empty").touch()
    assert text(files.read_file, path="empty") == "[the file is empty]"
    assert "only 0 lines" in error(files.read_file, path="empty", start=2)
    assert error(files.read_file, path="f", start=0)


def test_long_lines_and_long_texts_are_cut_honestly(files: Files, tmp_path: Path) -> None:
    """What is too long for one call says so, and how much it is; nothing is read into memory for that."""
    (tmp_path / "line").write_bytes("ä".encode() * 700_000 + b"\nnext\n")
    shown = text(files.read_file, path="line")
    assert "[... this line has 1,400,000 bytes]" in shown
    assert shown.count("ä") == 2000
    assert shown.endswith("     2\tnext")
    (tmp_path / "long").write_text("x" * 99 + "\n" + ("y" * 99 + "\n") * 5000)
    shown = text(files.read_file, path="long", lines=10_000)
    assert len(shown) < 81_000
    assert "more than 80,000 characters; lines 1 to 748 of 5,001; continue with start=749" in shown
    with open(tmp_path / "huge", "wb") as file:
        file.writelines([b"z" * 999 + b"\n"] * 40_000)
    assert "of more, in a file of 40,000,000 bytes; continue with start=3]" in text(
        files.read_file, path="huge", lines=2
    )
    assert text(files.read_file, path="huge", start=40_000).startswith(" 40000\tzzz")


def test_encodings_are_told(files: Files, tmp_path: Path) -> None:
    """UTF-8 is expected; a mark, UTF-16 or Latin-1 is read too, and said; what is binary is refused."""
    (tmp_path / "bom").write_bytes("ä\r\nö".encode("utf-8-sig"))
    assert text(files.read_file, path="bom") == "     1\tä\n     2\tö\n[the file begins with a byte order mark]"
    (tmp_path / "utf16").write_bytes("ä\nö".encode("utf-16"))
    assert text(files.read_file, path="utf16") == "     1\tä\n     2\tö\n[the file is UTF-16]"
    (tmp_path / "latin").write_bytes("ok\nä\nö".encode("latin-1"))
    assert text(files.read_file, path="latin") == (
        "     1\tok\n     2\tä\n     3\tö\n[some of it is not UTF-8 and is shown as Latin-1]"
    )
    (tmp_path / "binary").write_bytes(b"ELF\0\1\2")
    assert "binary is a binary file of 6 bytes" in error(files.read_file, path="binary")


@pytest.mark.parametrize(
    ("head", "kind"),
    [(b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF89a", "gif"), (b"RIFF1234WEBP", "webp")],
)
def test_pictures_are_parts(files: Files, tmp_path: Path, head: bytes, kind: str) -> None:
    """A picture is shown to the model as one, whatever its name; one that is too large is not."""
    (tmp_path / "picture").write_bytes(head + b"\0data")
    assert call(files.read_file, path="picture").content == [Image(head + b"\0data", media_type=f"image/{kind}")]
    (tmp_path / "picture").write_bytes(head + bytes(5_000_001))
    assert "the limit is 5,000,000" in error(files.read_file, path="picture")


def test_what_cannot_be_read_is_told(files: Files, tmp_path: Path) -> None:
    """Errors are words that a model can act upon."""
    os.mkfifo(tmp_path / "pipe")
    assert "pipe is a named pipe, not a file" in error(files.read_file, path="pipe")
    assert ". is a directory" in error(files.read_file, path=".")
    assert "leads out of the workspace" in error(files.read_file, path="../x")
    assert "No such file" in error(files.read_file, path="missing")


@given(lines=st.lists(st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8"), max_size=20), max_size=30))
def test_what_is_read_is_what_is_there(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """All the lines of any text are shown, each once, from wherever one starts."""
    root = tmp_path_factory.mktemp("texts")
    (root / "f").write_bytes("\n".join(lines).encode())
    files = LocalBackend(Workspace(root))
    expected = lines if lines and (len(lines) > 1 or lines[0]) else []
    if expected and not expected[-1]:
        expected = expected[:-1]
    if expected and expected[0].startswith("\ufeff"):
        expected = [expected[0][1:], *expected[1:]]
    for start in range(1, len(expected) + 1):
        with contextlib.closing(files.open("f")) as file:
            blocks = "\n".join(str(block) for block in show(file, "f", start, 7)).split("\n")
        shown = [line for line in blocks if not line.startswith("[")]
        wanted = expected[start - 1 : start + 6]
        assert shown == [f"{start + at:>6}\t{line}" for at, line in enumerate(wanted)]


@every_reason
@every_moment
def test_a_read_that_is_stopped_gives_what_it_has(files: Files, tmp_path: Path, moment: Moment, reason: str) -> None:
    """Whenever a read of a large file is stopped, what it gives are lines of the file, and nothing stays open."""
    (tmp_path / "f").write_bytes(b"line\n" * 3_000_000)
    before = open_files()
    outcome = call_stopped(
        files.read_file,
        moment,
        reason,
        middle=lambda: str(tmp_path / "f") in open_files(),
        path="f",
        start=2_990_000,
        lines=5000,
    )
    check(outcome, moment, reason)
    assert isinstance(outcome.content, str)
    assert all(line.endswith("\tline") or line.startswith("[") for line in outcome.content.splitlines())
    assert open_files() == before


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_read_can_be_stopped_everywhere(files: Files, tmp_path: Path, reason: str) -> None:
    """At every line of a read, a stop gives a beginning of what there is."""
    (tmp_path / "f").write_text("".join(f"line {number}\n" for number in range(1, 251)))
    whole = text(files.read_file, path="f", lines=220)
    before = open_files()

    def verify(outcome: ToolOutcome) -> None:
        assert isinstance(outcome.content, str)
        assert whole.startswith(outcome.content)
        assert open_files() == before

    assert stop_everywhere(lambda: (files.read_file, {"path": "f", "lines": 220}), verify, reason) > 50


# -- writing -------------------------------------------------------------------------------------


def test_a_file_is_made_and_replaced(files: Files, tmp_path: Path) -> None:
    """New directories are made, the mode of an old file is kept, and a link stays a link."""
    assert text(files.write_file, path="new/deep/f", content="one\ntwo") == "Created new/deep/f: 2 lines, 7 bytes."
    target = tmp_path / "new/deep/f"
    target.chmod(0o751)
    (tmp_path / "link").symlink_to("new/deep/f")
    assert text(files.write_file, path="link", content="ü\n") == "Replaced new/deep/f: 1 lines, 3 bytes."
    assert target.read_text() == "ü\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o751
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(target.parent) == ["f"]


def test_a_new_file_has_the_mode_that_new_files_have(files: Files, tmp_path: Path) -> None:
    """The umask decides, as for every program."""
    (tmp_path / "other").touch()
    text(files.write_file, path="f", content="")
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_cannot_be_written_leaves_nothing(files: Files, tmp_path: Path) -> None:
    """A failed write leaves no file, no directory and no temporary file."""
    (tmp_path / "d").mkdir()
    assert "d is a directory" in error(files.write_file, path="d", content="x")
    assert "leads out" in error(files.write_file, path="/tmp/x", content="x")
    assert "the limit is 10,000,000" in error(files.write_file, path="big", content="x" * 10_000_001)
    assert "too long" in error(files.write_file, path="new/" + "x" * 300, content="x")
    assert os.listdir(tmp_path) == ["d"]


def test_a_read_only_file_stays_as_it_is(tmp_path: Path) -> None:
    """Who made a file read-only meant it, though a rename could replace it."""
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o444)
    backend = LocalBackend(Workspace(tmp_path))
    with pytest.raises(PermissionError, match="f is read-only"):
        without_capabilities(lambda: backend.replace([FileChange("f", b"new", before="any")]))
    assert (tmp_path / "f").read_text() == "old"


@pytest.mark.parametrize("has_name", [False, True])
@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_write_is_whole_or_not_done(
    files: Files, tmp_path: Path, reason: str, has_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every line of a write, a stop leaves the old file or the new one, says which, and leaves nothing else; on
    systems where a draft cannot be without a name, too.
    """
    if has_name:
        monkeypatch.setattr(atomic, "_NAMELESS", 0)
    target = tmp_path / "sub" / "f"

    def prepare() -> tuple[Any, dict[str, Any]]:
        if target.exists():
            target.unlink()
            target.parent.rmdir()
        return files.write_file, {"path": "sub/f", "content": "new content"}

    def verify(outcome: ToolOutcome) -> None:
        is_written = target.exists()
        assert os.listdir(tmp_path) == (["sub"] if is_written else [])
        assert not is_written or target.read_text() == "new content"
        assert not is_written or os.listdir(target.parent) == ["f"]
        if outcome.status in ("completed", "partial"):
            assert ("Created sub/f" in outcome.content) == is_written
            assert ("Nothing was changed" in outcome.content) == (not is_written)

    before = open_files()
    assert stop_everywhere(prepare, verify, reason) > 50
    assert open_files() == before


@every_reason
@every_moment
def test_a_write_that_is_stopped(files: Files, tmp_path: Path, moment: Moment, reason: str) -> None:
    """Whenever a large write is stopped, the file is the old one or the new one, whole."""
    (tmp_path / "f").write_text("old")
    content = "new\n" * 2_000_000
    outcome = call_stopped(files.write_file, moment, reason, path="f", content=content)
    check(outcome, moment, reason)
    now = (tmp_path / "f").read_text()
    assert now == content if outcome.status == "completed" else now in ("old", content)
    assert os.listdir(tmp_path) == ["f"]


def test_a_write_that_waits_for_its_disk_is_left_and_takes_itself_back(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes for ever holds up nobody; and when it is done, the write sees that it was stopped."""
    (tmp_path / "f").write_text("old")
    arrived, gate = threading.Event(), threading.Event()

    def slow(_descriptor: int) -> None:
        arrived.set()
        assert gate.wait(30)

    monkeypatch.setattr(os, "fsync", slow)

    async def main() -> ToolOutcome:
        probe = Probe(files.write_file, calls=[ToolCall("1", "write_file", '{"path": "f", "content": "new"}')])
        (outcome,) = await probe.stopped_when(arrived.is_set)
        assert outcome.status == "abandoned"
        gate.set()
        wait_until(lambda: probe.late)
        return outcome

    outcome = run(main())
    assert outcome.late.content == "Nothing was changed: the stop came first."
    assert (tmp_path / "f").read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_write_outlives_no_kill(tmp_path: Path) -> None:
    """A process that is killed in the middle of a write leaves the old file, and nothing beside it."""
    (tmp_path / "f").write_text("old")
    ended = run_python(
        """
        import os, signal, sys
        from halter.toolbox.files.atomic import Draft
        from halter.toolbox.files.workspace import Workspace
        with Workspace(sys.argv[1]).find("f") as place:
            Draft(place, b"new")
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        str(tmp_path),
    )
    assert ended.returncode == -9
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "old"


def test_drafts_where_there_are_no_descriptors(tmp_path: Path) -> None:
    """Without descriptors a draft has a temporary name beside its target, and is whole or not done all the same."""
    workspace = Workspace(tmp_path, by_descriptor=False)
    with workspace.find("new/f", make_parents=True) as place:
        draft = Draft(place, b"one")
        assert len(os.listdir(tmp_path / "new")) == 1
        draft.discard()
        draft.discard()
        assert os.listdir(tmp_path / "new") == []
        Draft(place, b"two").commit()
        assert os.listdir(tmp_path / "new") == ["f"]
    files = Files(workspace)
    assert text(files.read_file, path="new/f") == "     1\ttwo"
    assert text(files.search_files, pattern="t.o") == "new/f:1: two"
    assert text(files.search_files, pattern="f", kind="name") == "new/f"
    assert "+1 -1" in text(files.patch, changes="new/f\n<<<<<<< SEARCH\ntwo\n=======\nthree\n>>>>>>> REPLACE")


# -- side by side --------------------------------------------------------------------------------


def test_calls_on_one_file_run_in_turn(files: Files, tmp_path: Path) -> None:
    """A write, a patch and a read of one file in one batch, however it is spelled, happen in the order of the calls."""
    (tmp_path / "link").symlink_to("f")
    calls = [
        ToolCall("1", "write_file", '{"path": "f", "content": "one\\n"}'),
        ToolCall("2", "patch", '{"changes": "--- a/link\\n+++ b/link\\n@@ -1 +1 @@\\n-one\\n+two\\n"}'),
        ToolCall("3", "read_file", f'{{"path": "{tmp_path}/f"}}'),
        ToolCall("4", "write_file", '{"path": "./f", "content": "three\\n"}'),
        ToolCall("5", "read_file", '{"path": "link"}'),
    ]

    async def main() -> list[ToolOutcome]:
        return await Probe(*files.tools, calls=calls).run()

    for _ in range(20):
        outcomes = run(main())
        assert [each.status for each in outcomes] == ["completed"] * 5, outcomes
        assert (outcomes[2].content, outcomes[4].content) == ("     1\ttwo", "     1\tthree")


def test_people_see_what_was_changed(files: Files, tmp_path: Path) -> None:
    """A write and a patch report a diff of what they have changed; the model gets a line."""
    (tmp_path / "f").write_text("1\n2\n3\n")
    calls = [
        ToolCall("1", "write_file", json.dumps({"path": "f", "content": "1\ntwo\n3\n"})),
        ToolCall("2", "write_file", json.dumps({"path": "new", "content": "x\n"})),
        ToolCall(
            "3",
            "patch",
            json.dumps({"path": "f", "changes": "<<<<<<< SEARCH\n3\n=======\n3\n4\n>>>>>>> REPLACE"}),
        ),
    ]
    probe = Probe(*files.tools, calls=calls)
    run(probe.run())
    told = {event.call_id: event.text for event in probe.told(ToolProgress) if event.is_diff}
    assert told["1"] == "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n"
    assert told["2"] == "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
    assert told["3"] == "--- a/f\n+++ b/f\n@@ -1,3 +1,4 @@\n 1\n two\n 3\n+4\n"


def test_an_agent_uses_them(tmp_path: Path) -> None:
    """In a session, a model writes a file and reads it, and finds it again."""
    model = ScriptedModel(
        ToolCall("1", "write_file", '{"path": "f.txt", "content": "needle\\n"}'),
        ToolCall("2", "search_files", '{"pattern": "needle"}'),
        "done",
    )
    with Agent(model, Files(tmp_path).tools).session() as session:
        turn = session.run("go")
    assert [outcome.content for outcome in turn.outcomes] == ["Created f.txt: 1 lines, 7 bytes.", "f.txt:1: needle"]
    assert threading.active_count() < 50
