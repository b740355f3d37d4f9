"""Files of another machine, over a real SSH connection: they are read, patched and searched as those of a workspace."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from halter import ToolOutcome
from halter.testing import Moment, Stop, ToolCalls
from halter.toolbox.files.files import Files
from halter.toolbox.remote.machine import ScriptResult
from halter.toolbox.remote.ssh_process import collect
from tests.support.allowing import allow
from tests.support.remote_calls import Work, machine_of, remote_of
from tests.support.ssh_server import PASSWORD, USER, SSHServer
from tests.support.stopped_calls import BEFORE_THE_END, GIVES_BACK, IN_THE_MIDDLE, OBEYS, is_over, patient
from tests.support.waiting import wait_until

FILES: dict[str, bytes] = {
    "a.txt": b"one\ntwo\nthree\n",
    "crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "sub/code.py": b"def f():\n    return 1\n\n\ndef g():\n    return 1\n",
    "sub/deep/needle.txt": b"a needle\nNEEDLE \xff here\n",
    "sub/deep/b l a n k.txt": b"needle (x)\n",
    "-dash": b"needle\n",
    "back\\slash": b"needle\n",
    "latin.txt": b"caf\xe9\n",
    "bom.txt": b"\xef\xbb\xbfb\xc3\xb6m\n",
    "utf16.txt": "zw\u00f6lf\nlines\n".encode("utf-16"),
    "binary": b"needle\0\n",
    "empty": b"",
    "open.txt": b"no end",
    "long.txt": b"x" * 9000 + b"\nshort\n",
    "many.txt": b"".join(b"line %d\n" % number for number in range(1, 50_001)),
    "picture": b"\x89PNG\r\n\x1a\n" + b"p" * 300_000,
    ".gitignore": b"*.log\n/ignored/\n!keep.log\n",
    "x.log": b"needle\n",
    "keep.log": b"needle\n",
    "ignored/needle": b"needle\n",
    "sub/.gitignore": b"deep/b*\n",
    ".git/needle": b"needle\n",
}
BLOCK = "<<<<<<< SEARCH\n{}=======\n{}>>>>>>> REPLACE\n"


class Twins:
    """The same files here and there, and the same calls on both."""

    def __init__(self, work: Work, here: Path, there: Path) -> None:
        self.work = work
        self.here = here
        self.there = there
        self.local = ToolCalls(*Files(here).tools)
        self.details = ("", "")
        self.plant()
        for root in (here, there):
            (root / "sub/link").symlink_to("../a.txt")

    def plant(self) -> None:
        """Have all files as they were."""
        for root in (self.here, self.there):
            for name, data in FILES.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            (root / "a.txt").chmod(0o751)

    def __call__(self, name: str, **arguments: Any) -> ToolOutcome:
        """Make a call on both; they have to come to the same, and to leave the same."""
        local, remote = self.local.call(name, **arguments), self.work(name, **arguments)
        assert (remote.status, remote.content) == (local.status, local.content)
        assert tree_of(self.there) == tree_of(self.here)
        self.details = (local.detail, remote.detail)
        return remote


def tree_of(root: Path) -> dict[str, tuple[bytes, int]]:
    found = [path for path in root.rglob("*") if path.is_file() and path.name != "known_hosts"]
    return {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode) for path in found}


@pytest.fixture
def twins(work: Work, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    return Twins(work, tmp_path_factory.mktemp("here"), tmp_path)


def test_files_are_read_as_here(twins: Twins) -> None:
    """Whatever a file is like and whichever of its lines are wanted, the result is that of a file here."""
    for name in FILES:
        twins("read_file", path=name)
    assert twins("read_file", path="many.txt", start=40_000, lines=3).status == "completed"
    assert str(twins("read_file", path="many.txt", start=49_999).content).endswith("the end of the file]")
    assert twins("read_file", path="many.txt", start=50_001).status == "failed"
    assert twins.details[0] == twins.details[1]
    twins("read_file", path="open.txt", start=2)
    assert twins.details[0] == twins.details[1]


PATCHES: list[tuple[str, str | None]] = [
    (BLOCK.format("two\n", "2\nzwei\n"), "a.txt"),
    (BLOCK.format("two\n", "2\n"), "crlf.txt"),
    (BLOCK.format("return 1\n", "return 2\n"), "sub/code.py"),
    (BLOCK.format("nothing like it\n", "x\n"), "a.txt"),
    (BLOCK.format("", "all new\n"), "new/er/file.txt"),
    (BLOCK.format("caf\n", "x\n"), "latin.txt"),
    (BLOCK.format("no end\n", "an end\n"), "open.txt"),
    (BLOCK.format("needle\n", "thread\n"), "-dash"),
    (BLOCK.format("needle\n", "x\n"), "binary"),
    (BLOCK.format("two\n", "2\n"), "sub/link"),
    ("--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n--- /dev/null\n+++ n\n@@ -0,0 +1 @@\n+n\n", None),
    ("--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-one\n+1\n--- empty\n+++ empty\n@@ -1 +1 @@\n-not there\n+x\n", None),
    ("--- a.txt\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-two\n-three\n", None),
    ("diff --git a/a.txt b/moved/to.txt\nrename from a.txt\nrename to moved/to.txt\n", None),
    ("--- nowhere\n+++ nowhere\n@@ -1 +1 @@\n-x\n+y\n", None),
]


def test_files_are_patched_as_here(twins: Twins) -> None:
    """A patch changes, makes, moves and deletes the same as here, and fails with the same words and nothing changed."""
    for changes, path in PATCHES:
        twins.plant()
        twins("patch", changes=changes, **({} if path is None else {"path": path}))
        assert twins.details[0] == twins.details[1]
        assert list(twins.there.rglob(".halter.*")) == []


def test_a_patch_that_cannot_be_put_in_place_is_taken_back(work: Work, tmp_path: Path) -> None:
    """If one file of several cannot be replaced, none is, and directories that were made for it are gone."""
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "folder/sub").mkdir(parents=True)
    new = "--- /dev/null\n+++ {}\n@@ -0,0 +1 @@\n+new\n"
    changes = f"--- a\n+++ a\n@@ -1 +1 @@\n-one\n+two\n{new.format('far/away')}{new.format('a/below/it')}"
    outcome = work("patch", changes=changes)
    assert outcome.status == "failed"
    assert "Nothing was changed" in outcome.detail
    assert (tmp_path / "a").read_text() == "one\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "folder", "known_hosts"]


def test_a_patch_of_what_has_changed_meanwhile_is_refused(work: Work, server: SSHServer, tmp_path: Path) -> None:
    """What somebody else has written between our look and our change is not overwritten."""
    bin_with(server, tmp_path, "mktemp", "echo theirs >>a.txt")
    (tmp_path / "a.txt").write_text("one\n")
    outcome = work("patch", changes=BLOCK.format("one\n", "two\n"), path="a.txt")
    assert outcome.status == "failed"
    assert "was changed in the meantime" in outcome.detail
    assert (tmp_path / "a.txt").read_text().startswith("one\ntheirs\n")


class Ended:
    """A connection on a slow machine: whatever it starts has ended before it can be given any input."""

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def create_process(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with self._connection.create_process(*args, **options) as process:
            await process.wait_closed()
            yield process


def test_a_script_that_has_ended_before_its_input_came_is_heard(server: SSHServer) -> None:
    """Was a defect: what it said was dropped, and the connection was said to have failed."""

    async def main() -> ScriptResult:
        options: Any = {"username": USER, "password": PASSWORD, "client_keys": (), "known_hosts": None}
        async with asyncssh.connect("127.0.0.1", server.port, **options) as connection:
            ended: Any = Ended(connection)
            return await collect(ended, "echo said; exit 3", b"unread")

    assert asyncio.run(asyncio.wait_for(main(), 30)) == ScriptResult(3, b"said\n", "")


SEARCHES: list[dict[str, Any]] = [
    {"pattern": "needle"},
    {"pattern": "needle", "ignore_case": True},
    {"pattern": "need.e( |$)"},
    {"pattern": "needle", "path": "sub"},
    {"pattern": "needle", "path": "sub/deep"},
    {"pattern": "needle", "path": "sub/deep/needle.txt"},
    {"pattern": "needle", "glob": "*.txt"},
    {"pattern": "line 4", "limit": 5},
    {"pattern": "*needle*", "kind": "name"},
    {"pattern": "sub/**", "kind": "name"},
    {"pattern": "*.log", "kind": "name", "ignore_case": True},
    {"pattern": "("},
]


def test_files_are_searched_as_here(twins: Twins) -> None:
    """The same matches in the same order, and the same files left out, for texts, expressions and names."""
    shutil.copy(twins.there / "known_hosts", twins.here)  # the server's own
    for arguments in SEARCHES:
        outcome = twins("search_files", **arguments)
        assert outcome.status == ("failed" if arguments["pattern"] == "(" else "completed")


def test_a_search_says_what_was_left_out(work: Work, server: SSHServer, tmp_path: Path) -> None:
    """Files that are too large, and names that cannot be asked for, are counted; nothing found is said as such."""
    (tmp_path / "large").write_bytes(b"needle\n" * 1_200_000)
    (tmp_path / "two\nlines").write_text("needle")
    text = work.text("search_files", pattern="needl[e]")
    assert "no line matches" in text
    assert "1 files not searched: larger than" in text
    assert "1 files not searched: could not be read" in text


def test_a_large_tree_takes_several_archives(work: Work, tmp_path: Path) -> None:
    """More than fits into one archive is read by several, and nothing is missed."""
    for number in range(4):
        (tmp_path / f"f{number}").write_bytes(b"x" * 4_000_000 + b"\nneedle\n")
    found = work.text("search_files", pattern="need.e").splitlines()
    assert found == [f"f{number}:2: needle" for number in range(4)]


# -- stops ---------------------------------------------------------------------------------------------------------


def bin_with(server: SSHServer, folder: Path, name: str, script: str) -> None:
    """Have a program run a script before it does what it is there for."""
    real = shutil.which(name)
    (folder / "bin").mkdir()
    (folder / "bin" / name).write_text(f'#!/bin/sh\n{script}\nexec {real} "$@"\n')
    (folder / "bin" / name).chmod(0o755)
    server.path = f"{folder / 'bin'}:{server.path}"


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many files, of which every hundredth has something to be found."""
    folder = tmp_path_factory.mktemp("trees")
    for number in range(1100):
        (folder / f"{number:04}").write_text("needle\n" if number % 100 == 0 else "hay\n")
    return folder


class Held:
    """A program on the machine that waits when it is run for the *count*th time, until it is let go."""

    def __init__(self, server: SSHServer, name: str, count: int) -> None:
        self._count = count
        self._runs = server.home / "runs"
        self._gate = server.home / "gate"
        os.mkfifo(self._gate)
        script = f"echo x >>{self._runs}\n[ $(wc -l <{self._runs}) -eq {count} ] && cat {self._gate}"
        bin_with(server, server.home, name, script)

    def is_waiting(self) -> bool:
        return self._runs.exists() and len(self._runs.read_text().split()) == self._count

    def let_go(self) -> None:
        if self.is_waiting():
            os.close(os.open(self._gate, os.O_RDWR | os.O_NONBLOCK))
            self._gate.unlink()


class Forest:
    """Many files, and a machine that stops to read them in the middle of a search."""

    def __init__(self, trees: Path, held: Held) -> None:
        self.trees = trees
        self.held = held
        self.found = [f"{trees}/{number:04}:1: needle" for number in range(0, 1000, 100)]


@pytest.fixture
def forest(server: SSHServer, trees: Path) -> Iterator[Forest]:
    held = Held(server, "tar", 3)
    yield Forest(trees, held)
    held.let_go()


@pytest.mark.parametrize("reason", ["stop", "steer"])
@pytest.mark.parametrize("moment", BEFORE_THE_END)
def test_a_stopped_read_gives_control_back(server: SSHServer, tmp_path: Path, reason: str, moment: Moment) -> None:
    """A read that the machine does not answer ends at its stop, and the connection is used again."""
    (tmp_path / "file").write_text("there")
    held = Held(server, "tail", 1)
    try:
        with ToolCalls(*patient(remote_of(server).tools), approve=allow) as calls:
            stop = Stop(reason, moment, wait=lambda: wait_until(held.is_waiting))
            outcome = calls.call_stopped(stop, "read_file", path="file")
            assert outcome.status in ({"cancelled"} if moment in IN_THE_MIDDLE else OBEYS[moment])
            assert outcome.reason == reason
            assert calls.call("terminal", command="echo on").content == "on\n[exit code 0]"
            assert server.connections == 1
    finally:
        held.let_go()


@pytest.mark.parametrize("reason", ["stop", "steer"])
@pytest.mark.parametrize("moment", BEFORE_THE_END)
def test_a_stopped_search_gives_its_matches(server: SSHServer, forest: Forest, reason: str, moment: Moment) -> None:
    """Whenever the stop comes, a search gives what it has found by then, and the connection is used again."""
    with ToolCalls(*patient(remote_of(server).tools), approve=allow) as calls:
        stop = Stop(reason, moment, wait=lambda: wait_until(forest.held.is_waiting))
        outcome = calls.call_stopped(stop, "search_files", pattern="need.e", path=str(forest.trees))
        assert outcome.status in GIVES_BACK[moment]
        assert outcome.reason == reason
        if moment in IN_THE_MIDDLE:
            assert str(outcome.content).splitlines() == forest.found
        assert calls.call("terminal", command="echo on").content == "on\n[exit code 0]"
        assert server.connections == 1


def test_a_lost_connection_keeps_the_matches(work: Work, server: SSHServer, forest: Forest) -> None:
    """If the connection breaks in a search it fails with that, and what was found by then is there."""

    def cut() -> None:
        wait_until(forest.held.is_waiting)
        server.drop()

    thread = threading.Thread(target=cut)
    thread.start()
    outcome = work("search_files", pattern="need.e", path=str(forest.trees))
    thread.join(10)
    assert outcome.status == "failed"
    assert "connection" in outcome.detail
    assert str(outcome.content).splitlines() == forest.found


@pytest.mark.parametrize("reason", ["stop", "steer"])
@pytest.mark.parametrize("moment", BEFORE_THE_END)
def test_a_stopped_patch_is_whole_or_not_done(server: SSHServer, tmp_path: Path, reason: str, moment: Moment) -> None:
    """Whenever the stop comes, both files are as they were or as they shall be, and no draft is left."""
    with ToolCalls(*patient(remote_of(server).tools), approve=allow) as calls:
        pair = Pair(tmp_path)
        stop = Stop(reason, moment, wait=lambda: wait_until(lambda: pair.has_draft() or is_over(calls)))
        outcome = calls.call_stopped(stop, "patch", changes=pair.changes)
        assert outcome.status in GIVES_BACK[moment] | ({"completed"} if moment in IN_THE_MIDDLE else set()), outcome
        is_new = pair.judge()
        if outcome.status in ("not_started", "cancelled", "completed"):
            assert is_new == (outcome.status == "completed")


def test_a_patch_whose_connection_is_lost_is_whole_or_not_done(work: Work, server: SSHServer, tmp_path: Path) -> None:
    """If the connection breaks in the middle the machine itself sees to it that all is done, or nothing."""
    pair = Pair(tmp_path)

    def cut() -> None:
        wait_until(pair.has_draft)
        server.drop()

    thread = threading.Thread(target=cut)
    thread.start()
    outcome = work("patch", changes=pair.changes)
    thread.join(10)
    is_new = pair.judge()
    assert outcome.status in ("failed", "completed")
    assert is_new or outcome.status == "failed"


class Pair:
    """Two large files, and a patch of both."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths = [folder / "one", folder / "two"]
        for path in self._paths:
            path.write_text("x" * 1_900_000 + "\nold\n")
        self.changes = "".join(f"--- {each.name}\n+++ {each.name}\n@@ -2 +2 @@\n-old\n+new\n" for each in self._paths)

    def has_draft(self) -> list[Path]:
        return list(self._folder.glob(".halter.*"))

    def judge(self) -> bool:
        """Wait until nothing is underway, and say whether both are new; fails if they differ."""
        wait_until(lambda: not self.has_draft())
        ends = [path.read_text()[1_900_000:] for path in self._paths]
        assert ends in (["\nold\n"] * 2, ["\nnew\n"] * 2)
        return ends[0] == "\nnew\n"


def test_names_of_a_machines_files_are_claimed(server: SSHServer) -> None:
    """Calls of one batch on one file of a machine run in turn; those on files of two machines do not wait."""
    one = remote_of(server)
    other = type(one)(machine_of(server, directory="b"))
    write = {"path": "x/../a", "content": ""}
    assert one.files.write_file.paths(write) == one.files.patch.paths({"changes": BLOCK.format("", "x\n"), "path": "a"})
    assert one.files.write_file.paths(write) != other.files.write_file.paths(write)
    assert one.files.search_files.paths({"pattern": "x", "path": "a"}) == []
