"""A Git repository of our own for a workspace: trees of it, the changes between two, and contents.

The repository is in our data folder, never in the workspace, and the user's own `.git` is not touched. The workspace is
the model's to write, so nothing in it may start a program: there are no hooks, no settings of the user or the system,
and no filters, whatever its `.gitattributes` says. Contents are kept byte for byte.

Every snapshot works on a copy of the index, which becomes the index if it succeeds. So a process that was killed leaves
no lock behind, and two sessions do not wait for each other: the index only saves time, and the last one is kept.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.context import current_token
from halter.cancel.processes.run import run_process_blocking
from halter.errors import CheckpointFailed
from halter.toolbox.files.checkpoints.changes import Entry, TurnChange
from halter.toolbox.files.checkpoints.records import make_private_folder, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["RepositoryUsage", "ShadowRepository", "Snapshot"]

_CONFIG: Final = """\
[core]
	repositoryformatversion = 0
	filemode = true
	symlinks = true
	bare = false
	logallrefupdates = false
	autocrlf = false
	safecrlf = false
	precomposeunicode = false
	protectNTFS = false
	protectHFS = false
	fsmonitor = false
	untrackedCache = false
	splitIndex = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	looseCompression = 0
	fsync = none
[gc]
	auto = 0
[maintenance]
	auto = false
[submodule]
	recurse = false
"""
# Above every `.gitattributes`: no filters, no conversion of line ends, encodings and keywords.
_ATTRIBUTES: Final = "* -text -eol -crlf -ident -filter -working-tree-encoding\n"
# Keys and passwords are not copied. The last one is what our own writes leave behind when the power fails.
_EXCLUDED: Final = """\
.env
.env.*
!.env.example
*.pem
*.key
*.p12
*.pfx
*.keystore
id_rsa
id_dsa
id_ecdsa
id_ed25519
.netrc
.npmrc
.pypirc
.pgpass
.git-credentials
.ssh/
.gnupg/
.aws/
.halter-*.tmp
"""
_MAX_LIST: Final = 64_000_000  # bytes of names
_CHUNK: Final = 2_000  # names that are added at once; what was added stays after a timeout
_MAX_READ: Final = 16_000_000  # bytes of contents in memory
_MAX_TRIES: Final = 2  # a file may change while it is read
_GRACE: Final = 0.2  # seconds for a Git process to end after a stop
_KEEP_SINCE: Final = "1.hour.ago"  # newer objects may be about to be used by another process
_TRACKED: Final = frozenset({b"C", b"R"})  # changed and removed, in a list of names
_LIST: Final = ("git", "ls-files", "-t", "-o", "-m", "-d", "--exclude-standard", "-z")
_LIST_IGNORED: Final = ("git", "ls-files", "-o", "-i", "--directory", "--exclude-standard", "-z")
_DROP: Final = ("git", "update-index", "-z", "--force-remove", "--stdin")
_ADD: Final = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
_ADD_MANY: Final = ("-c", "core.bigFileThreshold=1", "-c", "core.compression=1", *_ADD)
_BULK_FROM: Final = 200  # names
_BULK_ADD: Final = (2, 37)  # the first version of Git that can do it


class Snapshot(NamedTuple):
    """The workspace at one moment."""

    tree: str
    note: str  # what is not in it
    left_out: list[bytes]  # the names of that, without those that are ignored


class RepositoryUsage(NamedTuple):
    """The size of a repository."""

    objects: int  # those that are not in packs
    packs: int
    size: int  # bytes


class ShadowRepository:
    """The repository *folder* for the workspace *root*."""

    def __init__(self, git: str, folder: Path, root: Path, *, max_file: int, max_size: int) -> None:
        self._folder = folder
        self._root = root
        self._index = folder / "index"
        self._max_file = max_file
        self._max_size = max_size
        self._env = {
            "PATH": f"{Path(git).parent}:/usr/bin:/bin",
            "LC_ALL": "C",
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "GIT_DIR": str(folder),
            "GIT_WORK_TREE": str(root),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LITERAL_PATHSPECS": "1",
        }

    def snapshot(self, ref: str, *, refresh: bool = False) -> Snapshot:
        """Keep the workspace as it is now, under the name *ref*.

        With *refresh*, files that were touched and not changed are not compared again next time. That takes longer.
        """
        self._prepare()
        for left in reversed(range(_MAX_TRIES)):
            try:
                return self._snapshot(ref, refresh=refresh)
            except CheckpointFailed:
                if not left:
                    raise
        raise AssertionError

    def _snapshot(self, ref: str, *, refresh: bool) -> Snapshot:
        index = self._index.with_name(f"index-{secrets.token_hex(8)}")
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(self._index, index)  # with its time, by which Git sees what has changed since
            if refresh:
                self._run(["/bin/sh", "-c", "git update-index -q --refresh || true"], index=index)
            names = self._names(index)
            if names.dropped:
                self._run(_DROP, _joined(names.dropped), index=index)
            add = _ADD_MANY if len(names.added) > _BULK_FROM and self._has_bulk_add() else _ADD
            while len(names.added) > _CHUNK:
                self._run(["git", *add], _joined(names.added[:_CHUNK]), index=index)
                self._save_index(index)
                del names.added[:_CHUNK]
            script = f"git {' '.join(add)} && exec git write-tree" if names.added else "exec git write-tree"
            tree = self._run(["/bin/sh", "-c", script], _joined(names.added), index=index).decode().strip()
            self._write(ref, f"{tree}\n")
            index.replace(self._index)
        finally:
            for left in self._index.parent.glob(f"{index.name}*"):
                left.unlink(missing_ok=True)
        return Snapshot(tree, names.note, names.left_out)

    def _has_bulk_add(self) -> bool:
        """Whether this Git can add many files as one pack, which is much faster."""
        version = self._run(["git", "version"]).decode().removeprefix("git version ").split(".")
        return tuple(int(each) for each in version[:2] if each.isdecimal()) >= _BULK_ADD

    def _save_index(self, index: Path) -> None:
        copy = index.with_name(f"{index.name}-copy")
        shutil.copy2(index, copy)
        copy.replace(self._index)

    # -- what has changed --------------------------------------------------------------------------------------------

    def _names(self, index: Path) -> _ChangedNames:
        """The names that differ from the index."""
        listed = self._run([*_LIST, *self._excluded()], index=index, limit=_MAX_LIST)
        return _sort(self._root, listed, self._max_file, self._check_size)

    def _excluded(self) -> list[str]:
        own = self._root / ".git" / "info" / "exclude"
        return ["--exclude-from=.git/info/exclude"] if own.is_file() else []

    def ignored(self) -> list[bytes]:
        """The names that are ignored, those of directories with a slash at the end."""
        names = self._run([*_LIST_IGNORED, *self._excluded()], limit=_MAX_LIST).split(b"\0")[:-1]
        # Git also lists a directory that has nothing but ignored names, followed by these. It is not ignored itself.
        following = zip(names, [*names[1:], b""], strict=False)
        return [name for name, after in following if not (name.endswith(b"/") and after.startswith(name))]

    def _check_size(self, size: int) -> None:
        if size > self._max_size:
            raise CheckpointFailed(f"the workspace has more than {self._max_size // 1_000_000:,} MB to keep")
        if size > shutil.disk_usage(self._folder).free // 2:
            raise CheckpointFailed("the disk of the data folder is almost full")

    def changes(self, before: str, after: str) -> list[TurnChange]:
        """What differs between two trees."""
        if before == after:
            return []
        out = self._run(["git", "diff-tree", "-r", "-z", "--raw", "--no-renames", before, after], limit=_MAX_LIST)
        fields = out.split(b"\0")
        return [_change(*pair) for pair in zip(fields[0::2], fields[1::2], strict=False)]

    def read(self, blobs: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Contents, by their hashes. Those that are missing are left out."""
        wanted = list(dict.fromkeys(blobs))
        if not wanted:
            return
        out = self._run(["git", "cat-file", "--batch-check"], "\n".join(wanted).encode() + b"\n", limit=_MAX_LIST)
        sizes = [(line[0], int(line[2])) for line in map(str.split, out.decode().splitlines()) if line[1] == "blob"]
        for group in _groups(sizes):
            limit = sum(size + 100 for _, size in group) * 2  # half of it is for the end
            data = "\n".join(blob for blob, _ in group).encode() + b"\n"
            out = self._run(["git", "cat-file", "--batch"], data, limit=limit)
            for blob, size in group:
                start = out.index(b"\n") + 1
                yield blob, out[start : start + size]
                out = out[start + size + 1 :]

    # -- upkeep ------------------------------------------------------------------------------------------------------

    def forget(self, refs: Sequence[str]) -> None:
        """Remove snapshots. Objects that only they had are removed by `tidy()`."""
        for ref in refs:
            (self._folder / ref).unlink(missing_ok=True)

    def usage(self) -> RepositoryUsage:
        """The size of the repository."""
        lines = self._run(["git", "count-objects", "-v"]).decode().splitlines()
        found = {name: int(value) for name, _, value in (line.partition(": ") for line in lines) if value.isdecimal()}
        return RepositoryUsage(found["count"], found["packs"], (found["size"] + found["size-pack"]) * 1024)

    def tidy(self) -> None:
        """Pack the objects, and remove what no snapshot has. May take long; a stop at any time does no harm."""
        script = f"git repack -A -d -q --unpack-unreachable={_KEEP_SINCE} && git prune --expire={_KEEP_SINCE}"
        self._run(["/bin/sh", "-c", script])

    def _prepare(self) -> None:
        """Make the repository, if there is none. The configuration is written last, and every time if it differs."""
        config = self._folder / "config"
        with contextlib.suppress(OSError):
            if config.read_text(encoding="utf-8") == _CONFIG:
                return
        make_private_folder(self._folder)
        self._run(["git", "init", "-q", "--template=", "--object-format=sha1"])
        for name, text in (("info/attributes", _ATTRIBUTES), ("info/exclude", _EXCLUDED), ("config", _CONFIG)):
            self._write(name, text)

    def _write(self, name: str, text: str) -> None:
        """Replace a small file of the repository, such as a ref."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), draft_folder=self._folder)

    # -- processes ---------------------------------------------------------------------------------------------------

    def _run(
        self, argv: Sequence[str], data: bytes = b"", *, index: Path | None = None, limit: int = 1_000_000
    ) -> bytes:
        """Run a command in the workspace, under the current token. Raises CheckpointFailed or Cancelled."""
        env = self._env | ({} if index is None else {"GIT_INDEX_FILE": str(index)})
        cwd = self._root if self._root.is_dir() else self._folder
        result = run_process_blocking(argv, cwd=cwd, env=env, input=data, grace=_GRACE, max_output=limit)
        if result.cancelled:
            current_token().raise_if_cancelled()
        if result.returncode != 0:
            lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
            raise CheckpointFailed(f"git failed: {lines[-1] if lines else f'exit code {result.returncode}'}")
        if result.truncated:
            raise CheckpointFailed("the workspace has too many files")
        return result.stdout


class _ChangedNames(NamedTuple):
    added: list[bytes]  # and those that were removed
    dropped: list[bytes]  # no longer of a kind that checkpoints keep
    left_out: list[bytes]
    note: str


def _sort(root: Path, listed: bytes, max_file: int, check_size: Callable[[int], object]) -> _ChangedNames:
    """Sort the names that Git lists into what is kept and what is not."""
    added: dict[bytes, None] = {}
    dropped: dict[bytes, None] = {}
    links: dict[bytes, bool] = {b"": False}
    base = os.fsencode(root)
    left_out: list[bytes] = []
    large = unreadable = repositories = size = 0
    for line in listed.split(b"\0"):
        tag, name = line[:1], line[2:]
        is_tracked = tag in _TRACKED
        if not name or name in added or name in dropped:
            continue
        if name.endswith(b"/"):
            repositories += 1
            left_out.append(name)
            continue
        folder = os.path.dirname(name)  # noqa: PTH120  (bytes)
        found = None if is_tracked and _is_below_link(base, folder, links) else _lstat(base + b"/" + name)
        if found is None:
            (dropped if is_tracked else {})[name] = None
        elif stat.S_ISLNK(found.st_mode):
            added[name] = None
        elif not stat.S_ISREG(found.st_mode):
            dropped[name] = None
        elif found.st_size > max_file or not os.access(base + b"/" + name, os.R_OK):
            large += found.st_size > max_file
            unreadable += found.st_size <= max_file
            left_out.append(name)
            if is_tracked:
                dropped[name] = None
        else:
            size += found.st_size
            added[name] = None
    check_size(size)
    notes = [
        f"{number} {kind}"
        for number, kind in (
            (large, f"over {max_file // 1_000_000} MB"),
            (unreadable, "unreadable"),
            (repositories, "nested Git repositories"),
        )
        if number
    ]
    note = f"not covered: {', '.join(notes)}" if notes else ""
    return _ChangedNames(list(added), list(dropped), left_out, note)


def _is_below_link(base: bytes, folder: bytes, known: dict[bytes, bool]) -> bool:
    """Whether a directory on the way is a link: what is below it is somewhere else."""
    if folder not in known:
        above = os.path.dirname(folder)  # noqa: PTH120  (bytes)
        known[folder] = _is_below_link(base, above, known) or os.path.islink(base + b"/" + folder)  # noqa: PTH114
    return known[folder]


def _lstat(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _joined(names: Iterable[bytes]) -> bytes:
    return b"".join(name + b"\0" for name in names)


def _change(raw: bytes, name: bytes) -> TurnChange:
    old_kind, new_kind, old, new, _ = raw.decode().removeprefix(":").split(" ")
    before = None if old_kind == "000000" else Entry(old_kind, old)
    after = None if new_kind == "000000" else Entry(new_kind, new)
    return TurnChange(os.fsdecode(name), before, after)


def _groups(sizes: Iterable[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """Contents that are read at once."""
    group: list[tuple[str, int]] = []
    total = 0
    for blob, size in sizes:
        if group and total + size > _MAX_READ:
            yield group
            group, total = [], 0
        group.append((blob, size))
        total += size
    if group:
        yield group
