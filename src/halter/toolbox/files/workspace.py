"""A workspace: one directory that no path written by a model leads out of.

A path is walked one component at a time, from a descriptor of the root, and no step follows a link on its own: a link
is read and its text is walked like any other path, from where it stands. `..` goes back to a directory that was walked
through, never by the file system, and at the root it is an error. So there is no moment between a check and a use in
which a link could be put in the way: whatever is swapped, each step either finds something below a directory that we
hold open, or fails.

Not covered: a directory that is moved out of the workspace while we hold it open stays open; hard links and mounts in
the workspace are part of it.

Where the system cannot open files relative to a descriptor (Windows), a path is resolved and then checked, which leaves
such a moment: there, do not share a workspace with a user you do not trust.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["NotRegular", "OutsideWorkspace", "Place", "Workspace"]

_MAX_LINKS: Final = 40  # as in Linux
_MAX_TRIES: Final = 8
_BY_DESCRIPTOR: Final = {os.open, os.stat, os.readlink, os.mkdir} <= os.supports_dir_fd
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY: Final = getattr(os, "O_DIRECTORY", 0) | _NOFOLLOW
# Passing through a directory needs no right to list it.
_PASS: Final = getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY
# Never wait for the other end of a pipe, and never get a terminal to be controlled by.
_READ: Final = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_IS_LINK: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK, getattr(errno, "EFTYPE", errno.ELOOP)})
_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


class OutsideWorkspace(PermissionError):
    """A path leads out of the workspace, or is not a valid path."""


class NotRegular(OSError):
    """Not a regular file but a directory, a device or a pipe."""


class Workspace:
    """The directory *root*, and what is below it."""

    def __init__(self, root: str | os.PathLike[str], *, by_descriptor: bool = _BY_DESCRIPTOR) -> None:
        """Use an existing directory. *by_descriptor* is False where the system cannot do better: see above."""
        given = Path(root).expanduser().absolute()
        self.root = Path(os.path.realpath(given))
        if not self.root.is_dir():
            raise NotADirectoryError(f"{given} is not a directory; a workspace must exist")
        # As the system spells it, and as it was given: people and models use either.
        self._roots = [self.root.parts, given.parts]
        self._by_descriptor = by_descriptor

    def __repr__(self) -> str:
        return f"Workspace({str(self.root)!r})"

    def find(self, path: str | os.PathLike[str], *, make_parents: bool = False) -> Place:
        """Walk to *path*, which need not exist; its directories must, unless they are to be made.

        The place holds a descriptor: use it in a `with` block. Raises OutsideWorkspace, or an OSError that says at
        which directory the walk ended.
        """
        parts = self._components(os.fspath(path))
        if not self._by_descriptor:
            return self._find_by_path(parts, make_parents=make_parents)
        walk = _Walk(self, parts, make_parents=make_parents)
        try:
            return walk.run()
        except BaseException:
            walk.undo()
            raise

    def open(self, path: str | os.PathLike[str]) -> int:
        """Open a regular file for reading: a descriptor, which the caller closes."""
        for left in reversed(range(_MAX_TRIES)):
            with self.find(path) as place:
                try:
                    return place.open()
                except OSError as error:
                    # It became a link after it was found: walk again, a bounded number of times.
                    if error.errno != errno.ELOOP or not left:
                        raise
        raise AssertionError

    def check(self, path: str | os.PathLike[str]) -> None:
        """Raise OutsideWorkspace if *path* leads out of the workspace. Its directories need not exist."""
        with contextlib.suppress(FileNotFoundError), self.find(path):
            pass

    def resolve(self, path: str | os.PathLike[str]) -> Path:
        """Where *path* leads now, as an absolute path: to name it or to compare it, not to open it."""
        with self.find(path) as place:
            return self.root.joinpath(place.path)

    def lock_key(self, path: str | os.PathLike[str]) -> str:
        """The same text for the same file, however its path is written.

        A path that cannot be walked is its own key; opening it raises the error.
        """
        try:
            found = str(self.resolve(path))
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                return self._folded(os.path.normpath(self.root.joinpath(*self._components(os.fspath(path)))))
            return self._folded(os.path.normpath(self.root / os.fspath(path).replace("\0", "")))
        return self._folded(found)

    def _folded(self, path: str) -> str:
        return path.casefold() if self._ignores_case else path

    @property
    def _ignores_case(self) -> bool:
        name = self.root.name
        twin = self.root.with_name(name.swapcase()) if name.swapcase() != name else None
        try:
            return twin is not None and twin.samefile(self.root)
        except OSError:
            return False

    def _components(self, path: str) -> list[str]:
        """The components of a path below the root, links and `..` among them."""
        if not path or "\0" in path:
            raise OutsideWorkspace(
                f"{path!r} is not a valid path: " + ("it contains a null character" if path else "it is empty")
            )
        home = os.path.expanduser(path)  # noqa: PTH111  (Path("a/../b") is not that path when a is a link)
        below = self.below(home)
        if below is None:
            raise _outside(path, self.root)
        return below

    def below(self, path: str) -> list[str] | None:
        """The components below the root, of a relative path or of an absolute one inside; None if it is outside."""
        if not os.path.isabs(path):  # noqa: PTH117  (see above)
            return _split(path)
        parts = (Path(path).anchor, *_split(path))
        for root in self._roots:
            if parts[: len(root)] == root:
                return list(parts[len(root) :])
        return None

    def _find_by_path(self, parts: list[str], *, make_parents: bool) -> Place:
        """Resolve, then check: the best that can be done without descriptors."""
        written = "/".join(parts)
        target = Path(os.path.realpath(os.path.join(self.root, *parts)))  # noqa: PTH118  (pathlib drops what `..` needs)
        if not target.is_relative_to(self.root):
            raise _outside(written, self.root)
        made = []
        if make_parents:
            missing = [each for each in target.parents if not each.exists()]
            for each in reversed(missing):
                each.mkdir()
                made.append(MadeDirectory(None, str(each)))
        if target != self.root and not target.parent.is_dir():
            raise _missing(written, target.parent.relative_to(self.root).as_posix())
        return Place(None, str(target), target.relative_to(self.root).as_posix(), made)


class MadeDirectory:
    """A directory that was made on the way to a place, and that can be removed again."""

    def __init__(self, parent: int | None, name: str) -> None:
        self._parent = parent
        self._name = name

    def undo(self) -> None:
        """Remove it again, unless something was put into it meanwhile."""
        with contextlib.suppress(OSError):
            os.rmdir(self._name, dir_fd=self._parent)
        self.keep()

    def keep(self) -> None:
        if self._parent is not None:
            os.close(self._parent)
            self._parent = None


class Place:
    """A name in a directory that is held open. Nothing that is done here follows a link."""

    def __init__(self, directory: int | None, name: str, path: str, made: list[MadeDirectory] | None = None) -> None:
        self.directory = directory  # None where there are no descriptors; then the name is an absolute path
        self.name = name
        self.path = path  # below the root, as it was walked: for people
        self._made = made or []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it. Directories that were made for it stay, unless `undo_parents()` removed them."""
        for made in self._made:
            made.keep()
        self._made = []
        if self.directory is not None:
            os.close(self.directory)
            self.directory = None

    def undo_parents(self) -> None:
        """Remove the directories that were made on the way here, if they are still empty."""
        for made in reversed(self._made):
            made.undo()
        self._made = []

    def stat(self) -> os.stat_result | None:
        """What is there, or None."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self) -> int:
        """Open the regular file that is there for reading. A pipe or a device is not even opened, let alone waited for.

        Raises an OSError with ELOOP if it has become a link since it was found.
        """
        self.check_regular(os.stat(self.name, dir_fd=self.directory, follow_symlinks=False))
        descriptor = os.open(self.name, _READ, dir_fd=self.directory)
        try:
            self.check_regular(os.fstat(descriptor))  # it may be another one by now
            if hasattr(os, "set_blocking"):
                os.set_blocking(descriptor, True)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def open_directory(self) -> int:
        """Open the directory that is there, to be listed."""
        return os.open(self.name, os.O_RDONLY | _DIRECTORY, dir_fd=self.directory)

    def check_regular(self, found: os.stat_result) -> None:
        """Refuse anything but a regular file."""
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, "became a link while it was opened", self.path)
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
            raise NotRegular(f"{self.path or '.'} is {kind}, not a file")


class _Walk:
    """One walk from the root to a place. The stack holds a descriptor of each directory that was walked into."""

    def __init__(self, workspace: Workspace, parts: list[str], *, make_parents: bool) -> None:
        self._workspace = workspace
        self._written = "/".join(parts)
        self._left = collections.deque(parts)
        self._makes = make_parents
        self._links = 0
        self._stack = [os.open(workspace.root, _PASS)]
        self._names: list[str] = []
        self._made: list[MadeDirectory] = []

    def run(self) -> Place:
        while self._left:
            part = self._left.popleft()
            if part == "..":
                self._go_up()
            elif self._left:
                self._go_down(part)
            elif not self._follow(part):
                return self._place(part)
        return self._place(".")

    def _place(self, name: str) -> Place:
        directory = self._stack.pop()
        self._close()
        path = "/".join(self._names if name == "." else [*self._names, name])
        made, self._made = self._made, []
        return Place(directory, name, path or ".", made)

    def _go_up(self) -> None:
        if not self._names:
            raise _outside(self._written, self._workspace.root)
        os.close(self._stack.pop())
        self._names.pop()

    def _go_down(self, part: str) -> None:
        try:
            directory = os.open(part, _PASS, dir_fd=self._stack[-1])
        except FileNotFoundError:
            if not self._makes or ".." in self._left:
                raise _missing(self._written, "/".join([*self._names, part])) from None
            directory = self._make(part)
        except OSError as error:
            if error.errno not in _IS_LINK or not self._follow(part):
                self._explain(error, part)
                raise
            return
        self._stack.append(directory)
        self._names.append(part)

    def _make(self, part: str) -> int:
        above = self._stack[-1]
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=above)
            self._made.append(MadeDirectory(os.dup(above), part))
        return os.open(part, _PASS, dir_fd=above)

    def _follow(self, part: str) -> bool:
        """If *part* is a link, put its target in its place."""
        try:
            target = os.readlink(part, dir_fd=self._stack[-1])
        except OSError:
            return False
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, "too many links, or a loop of links", self._written)
        if os.path.isabs(target):  # noqa: PTH117  (pathlib would drop the `..` of its text)
            below = self._workspace.below(target)
            if below is None:
                raise _outside(self._written, self._workspace.root, link="/".join([*self._names, part]))
            for directory in self._stack[1:]:
                os.close(directory)
            del self._stack[1:]
            self._names.clear()
            self._left.extendleft(reversed(below))
        else:
            self._left.extendleft(reversed(_split(target)))
        return True

    def _explain(self, error: OSError, part: str) -> None:
        error.filename = "/".join([*self._names, part])

    def _close(self) -> None:
        for directory in self._stack:
            os.close(directory)
        self._stack.clear()

    def undo(self) -> None:
        """Close everything, and remove the directories that were made."""
        for made in reversed(self._made):
            made.undo()
        self._close()


def _split(path: str) -> list[str]:
    separators = path.replace(os.altsep, os.sep) if os.altsep else path
    parts = [part for part in separators.split(os.sep) if part not in ("", ".")]  # noqa: PTH206  (a Path has lost some)
    drive = os.path.splitdrive(path)[0]
    return parts[1:] if drive and parts and parts[0] == drive else parts


def _outside(path: str, root: Path, link: str = "") -> OutsideWorkspace:
    through = f", through the link {link!r}," if link else ""
    return OutsideWorkspace(f"{path!r} leads{through} out of the workspace; only files below {root} can be used")


def _missing(path: str, directory: str) -> FileNotFoundError:
    return FileNotFoundError(f"{path!r}: no such directory: {directory!r}")
