"""A workspace, and attempts to get out of it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halter.toolbox.files.atomic import Draft, write_whole
from halter.toolbox.files.workspace import NotRegular, OutsideWorkspace, Workspace
from tests.support.processes import open_descriptors

SECRET = b"outside"


class Ground:
    """A workspace with links of all kinds, and a secret beside it."""

    def __init__(self, base: Path) -> None:
        self.root = base / "Root"
        self.outside = base / "outside"
        self.root.mkdir()
        self.outside.mkdir()
        (self.outside / "secret").write_bytes(SECRET)
        (self.root / "a" / "b").mkdir(parents=True)
        (self.root / "a" / "b" / "file").write_bytes(b"inside")
        for name, target in {
            "in": "a/b",
            "in_absolute": str(self.root / "a"),
            "a/up": "..",
            "a/b/file_link": "file",
            "out": "../outside",
            "out_absolute": str(self.outside),
            "out_file": "../outside/secret",
            "a/out_up": "../../outside",
            "loop": "loop",
            "ping": "pong",
            "pong": "ping",
            "dangling": "a/new",
            "to_root": ".",
            "etc": "/etc",
            "home": "~",
        }.items():
            (self.root / name).symlink_to(target)
        self.workspace = Workspace(self.root)

    def outside_is_untouched(self) -> bool:
        return os.listdir(self.outside) == ["secret"] and (self.outside / "secret").read_bytes() == SECRET


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """Whatever a walk meets, it closes what it opened."""
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def read(workspace: Workspace, path: str) -> bytes:
    descriptor = workspace.open(path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    "path",
    [
        "a/b/file", "./a/./b//file", "a/../a/b/file", "in/file", "in_absolute/b/file", "a/up/a/b/file", "a/b/file_link",
        "to_root/to_root/in/file", "in/../b/file", "{root}/a/b/file", "{root}/in/file", "a/b/file/",
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_descriptor", [True, False])
def test_what_is_inside_is_found(ground: Ground, path: str, by_descriptor: bool) -> None:
    """However it is spelled, and through links that lead inside, a file is found; `..` of a link is of its target."""
    workspace = Workspace(ground.root, by_descriptor=by_descriptor)
    assert read(workspace, path.format(root=ground.root)) == b"inside"
    assert workspace.lock_key(path.format(root=ground.root)) == str(ground.root / "a/b/file")


@pytest.mark.parametrize(
    "path",
    [
        "..", "../outside/secret", "a/../../outside/secret", "out/secret", "out_absolute/secret", "out_file",
        "a/out_up/secret", "a/up/../outside/secret", "/etc/passwd", "etc/passwd", "~/x", "~root/x",
        "{root}/../outside/secret", "{root}x/y", "", "a\0b", "//etc/passwd", "/",
        "in/../../../outside/secret", "to_root/../outside/secret", "{root}/out/secret",
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_descriptor", [True, False])
def test_what_leads_out_is_refused(ground: Ground, path: str, by_descriptor: bool) -> None:
    """No spelling, link, home directory or null character leads out, for reading or for writing."""
    workspace = Workspace(ground.root, by_descriptor=by_descriptor)
    path = path.format(root=ground.root)
    with pytest.raises(OutsideWorkspace, match=r"leads|is not a valid path"):
        workspace.open(path)
    with pytest.raises(OutsideWorkspace), workspace.find(path, make_parents=True) as place:
        write_whole(place, b"written")
    workspace.lock_key(path)
    assert ground.outside_is_untouched()


def test_circles_end(ground: Ground) -> None:
    """Links that go round in circles are an error, soon."""
    for path in ("loop", "ping", "loop/x"):
        with pytest.raises(OSError, match="too many links") as caught:
            ground.workspace.open(path)
        assert caught.value.errno == errno.ELOOP


def test_a_link_named_like_home_is_a_name(ground: Ground) -> None:
    """A link's text is walked as it is: `~` in it means a file of that name."""
    with pytest.raises(FileNotFoundError):
        ground.workspace.open("home")
    (ground.root / "~").write_bytes(b"tilde")
    assert read(ground.workspace, "home") == b"tilde"
    assert read(ground.workspace, "./~") == b"tilde"


def test_home_inside_is_inside(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory that is in the workspace can be named as such."""
    monkeypatch.setenv("HOME", str(ground.root / "a"))
    assert read(ground.workspace, "~/b/file") == b"inside"


def test_a_root_that_is_a_link(ground: Ground, tmp_path: Path) -> None:
    """A root may be given through a link; absolute paths of either spelling are inside."""
    (tmp_path / "alias").symlink_to(ground.root)
    workspace = Workspace(tmp_path / "alias")
    for root in (tmp_path / "alias", ground.root):
        assert read(workspace, f"{root}/a/b/file") == b"inside"
    with pytest.raises(NotADirectoryError, match="is not a directory"):
        Workspace(ground.root / "a/b/file")


def test_what_is_no_file_is_refused_at_once(ground: Ground) -> None:
    """Pipes, sockets, devices and directories are named as what they are, and never waited for."""
    os.mkfifo(ground.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(ground.root / "socket"))
        for path, kind in {
            "pipe": "a named pipe",
            "socket": "a socket",
            "a": "a directory",
            ".": "a directory",
        }.items():
            with pytest.raises(NotRegular, match=f"is {kind}, not a file"):
                ground.workspace.open(path)
            with pytest.raises(NotRegular), ground.workspace.find(path) as place:
                Draft(place, b"x")
    with pytest.raises(NotRegular, match="a device"):
        Workspace("/dev").open("null")


def test_directories_are_made_and_taken_back(ground: Ground) -> None:
    """Missing directories are made on the way to a new file, and removed again if nothing comes of it."""
    with pytest.raises(FileNotFoundError, match="no such directory: 'new'"):
        ground.workspace.find("new/deep/file")
    with ground.workspace.find("new/deep/file", make_parents=True) as place:
        assert (ground.root / "new/deep").is_dir()
        place.undo_parents()
    assert not (ground.root / "new").exists()
    with pytest.raises(FileNotFoundError):
        ground.workspace.find("new/../x", make_parents=True)
    with pytest.raises(OSError, match="Not a directory"):
        ground.workspace.find("a/b/file/below", make_parents=True)
    with pytest.raises(OSError, match="too long"):
        ground.workspace.find("new/" + "x" * 300 + "/y", make_parents=True)
    assert not (ground.root / "new").exists()
    with ground.workspace.find("dangling") as place:
        write_whole(place, b"through")
    assert (ground.root / "a/new").read_bytes() == b"through"
    assert (ground.root / "dangling").is_symlink()


def test_claims_ignore_case_where_the_disk_does(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `A` and `a` are one file, they are one claim; where they are two, two."""
    assert ground.workspace.lock_key("a/X") != ground.workspace.lock_key("a/x")
    (ground.root.parent / "rOOT").symlink_to(ground.root)  # what such a disk looks like from here
    assert ground.workspace.lock_key("a/X") == ground.workspace.lock_key("a/x")


PARTS = st.sampled_from(
    [
        "..", ".", "", "a", "b", "file", "in", "in_absolute", "up", "out", "out_absolute", "out_file", "out_up",
        "to_root", "dangling", "loop", "ping", "etc", "home", "~", "new", "secret", "outside", "Root", "\0", "passwd",
        "file_link", "x" * 300,
    ]
)  # fmt: skip


@given(
    parts=st.lists(PARTS | st.text(max_size=3), max_size=8), start=st.sampled_from(["", "/", "~", "ROOT", "OUTSIDE"])
)
@settings(max_examples=300)
def test_no_path_leads_out(tmp_path_factory: pytest.TempPathFactory, parts: list[str], start: str) -> None:
    """Whatever path is made up, what is read through it is inside, and what is written is, too."""
    ground = Ground(tmp_path_factory.mktemp("ground"))
    begin = {"ROOT": str(ground.root), "OUTSIDE": str(ground.outside)}.get(start, start)
    path = "/".join([begin, *parts]) if begin else "/".join(parts)
    before = open_descriptors()
    real = os.path.realpath(ground.root / os.path.expanduser(path)) if "\0" not in path else ""
    try:
        data = read(ground.workspace, path)
        assert data == b"inside"
        assert real.startswith(f"{ground.root}/")
    except (OSError, ValueError):
        pass
    try:
        with ground.workspace.find(path, make_parents=True) as place:
            write_whole(place, b"inside")
    except (OSError, ValueError):
        pass
    ground.workspace.lock_key(path)
    assert ground.outside_is_untouched()
    assert sorted(os.listdir(ground.root.parent)) == ["Root", "outside"]
    assert open_descriptors() == before


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_link_swapped_in_the_middle_leads_nowhere(ground: Ground, what: str) -> None:
    """While somebody swaps a file, or its directory, for a link that leads out, and back, as fast as possible, nothing
    outside is ever read or written.
    """
    inner, target = ground.root / "swap", ground.root / "swap" / "secret"
    spare = ground.root / "spare"
    inner.mkdir()
    target.write_bytes(b"inside")
    is_over = threading.Event()
    rounds = 0

    def swap_file() -> None:
        os.symlink(ground.outside / "secret", spare)
        os.replace(spare, target)
        spare.write_bytes(b"inside")
        os.replace(spare, target)

    def swap_directory() -> None:
        os.rename(inner, spare)
        os.symlink(ground.outside, inner)
        os.unlink(inner)
        os.rename(spare, inner)

    def swap() -> None:
        nonlocal rounds
        while not is_over.is_set():
            (swap_file if what == "file" else swap_directory)()
            rounds += 1
            for _ in range(rounds % 50):  # so that the two do not march in step
                os.sched_yield()

    thread = threading.Thread(target=swap)
    thread.start()
    successes = 0
    try:
        for tries in itertools.count():
            if tries >= 1500 and rounds > 10 and successes:  # on a busy machine either thread may wait for long
                break
            with contextlib.suppress(OSError):
                assert read(ground.workspace, "swap/secret") == b"inside"
                successes += 1
            with contextlib.suppress(OSError), ground.workspace.find("swap/secret") as place:
                write_whole(place, b"inside")
                successes += 1
    finally:
        is_over.set()
        thread.join(10)
    assert ground.outside_is_untouched()
