"""What the processes of a sandbox may read, write and reach, by its mode.

- `workspace`: read everything but secrets, write the workspace and a private folder for temporary files. In the
  workspace, what runs later outside of the sandbox is read-only: Git's hooks and configuration, and our own settings.
- `read-only`: the same, and the workspace is read-only too.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from halter._data_paths import find_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Mode = Literal["workspace", "read-only", "off"]

# In the home directory: keys, tokens and passwords.
_SECRETS: Final = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker/config.json",
    ".config/gh",
    ".config/hub",
    ".config/glab-cli",
    ".config/gcloud",
    ".config/rclone",
    ".config/op",
    ".config/google-chrome",
    ".config/chromium",
    ".mozilla",
    ".thunderbird",
    ".local/share/keyrings",
    ".password-store",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".terraform.d/credentials.tfrc.json",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".halter",
)
# Readable by root alone, for when we are root.
_SYSTEM_SECRETS: Final = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/root/.ssh",
)
# Folders in which programs create sockets, now or later, that run commands for any client: D-Bus, tmux, screen.
_SOCKET_FOLDERS: Final = ("/run/user", "/run/dbus", "/run/screen", "/tmp/.X11-unix")  # noqa: S108
_TEMPORARY: Final = "/tmp"  # noqa: S108
_BOUND_SOCKETS: Final = "/proc/self/net/unix"
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "shm")
_TERMINALS: Final = (Path("/dev/pts"), Path("/dev/ptmx"))
_OUR_SETTINGS: Final = ".halter"  # in the workspace
_MAX_PATH: Final = 8192  # bytes of a path in a file of Git
_PROTECTED_IN_GIT: Final = ("hooks", "config", "config.worktree")  # they name programs that Git runs


@dataclass(frozen=True)
class Policy:
    """Paths and network of a sandbox."""

    temporary: Path
    writable: tuple[Path, ...]
    terminals: tuple[Path, ...]  # writable too, but in namespaces there are others in their place
    read_only: tuple[Path, ...]  # inside of what is writable
    pinned: tuple[Path, ...]  # cannot be moved away, which would circumvent `read_only`
    hidden: tuple[Path, ...]
    sockets: tuple[Path, ...]  # of other programs, which would do for a process what it may not do itself
    network: bool

    def readable(self) -> list[Path]:
        """All that may be read, for a sandbox that can only allow: everything but the hidden paths.

        What is beside a hidden path is listed one by one, so what is created there later cannot be read.
        """
        return list(without_hidden(set(self.hidden)))


def policy_for(mode: Mode, workspace: Path, temporary: Path, *, network: bool, hidden: Iterable[Path] = ()) -> Policy:
    """The policy of a mode that is not "off". *hidden* are further paths that cannot be read."""
    workspace = workspace.resolve()
    git = _git_folders(workspace) if mode == "workspace" else []  # only then it may have to make a folder
    home = Path.home()
    ours = find_paths()
    places = [*(home / name for name in _SECRETS), *map(Path, _SYSTEM_SECRETS), ours.config.parent, ours.data, *hidden]
    writable = [temporary.resolve(), *(Path("/dev") / name for name in _DEVICES)]
    cgroup = os.environ.get("HALTER_CGROUP")
    if cgroup:  # a process enters its control group by itself
        writable.append(Path(cgroup))
    protected: list[Path] = []
    if mode == "workspace":
        # A folder inside gets no rule of its own: a process could put a link in its place before the rule is made.
        writable += [workspace, *(each for each in git if not each.is_relative_to(workspace))]
        protected = [workspace / _OUR_SETTINGS]
        if (workspace / ".git").is_file():  # of a worktree: it names the repository, whose configuration names programs
            protected.append(workspace / ".git")
        repositories = [each for folder in git for each in (folder, *_submodules(folder / "modules"))]
        protected += [folder / name for folder in repositories for name in _PROTECTED_IN_GIT]
    hidden_paths = {each.resolve() for each in places if os.path.exists(each)}  # noqa: PTH110  (raises nothing)
    return Policy(
        temporary.resolve(),
        tuple(writable),
        _TERMINALS,
        tuple(each.resolve() for each in protected if each.exists()),
        tuple(git),
        # A workspace inside of a hidden folder would be hidden too, so that folder is not hidden.
        tuple(sorted(each for each in hidden_paths if not workspace.is_relative_to(each))),
        tuple(sorted(each for each in _sockets(workspace) if not workspace.is_relative_to(each))),
        network,
    )


def _sockets(workspace: Path) -> set[Path]:
    """The Unix sockets that exist now, outside of the workspace, and folders in which more are made."""
    found = {Path(each) for each in _SOCKET_FOLDERS} | set(Path(_TEMPORARY).glob("tmux-*"))
    try:
        text = Path(_BOUND_SOCKETS).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        text = ""
    for line in text.splitlines()[1:]:
        path = line.partition(" /")[2]  # abstract ones begin with @
        if path:
            found.add(Path(f"/{path}"))
    kept = {each for each in found if os.path.exists(each) and not each.is_relative_to(workspace)}  # noqa: PTH110
    return {each for each in kept if not any(other in kept for other in each.parents)}


def _git_folders(workspace: Path) -> list[Path]:
    """The folders of Git that belong to the workspace. Those of a worktree are somewhere else."""
    place = workspace / ".git"
    try:
        if place.is_symlink():
            return []
        if place.is_dir():
            with contextlib.suppress(OSError):
                (place / "hooks").mkdir(exist_ok=True)  # one that does not exist cannot be made read-only
            return [place]
        # Only a folder that Git itself made for this worktree counts. Whatever else `.git` says, a process may have
        # written it.
        folder = (workspace / _read_line(place).removeprefix("gitdir:").strip()).resolve()
        if folder.is_relative_to(workspace):
            return []
        common = (folder / _read_line(folder / "commondir")).resolve()
        points_back = Path(_read_line(folder / "gitdir")) == place
        return [common] if points_back and folder.parent == common / "worktrees" else []
    except (OSError, ValueError, RuntimeError):  # the last: a loop of links, before Python 3.13
        return []


def _read_line(path: Path) -> str:
    """The path that a file of Git has. Blocks on nothing, even if a process put a pipe there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.fsdecode(os.read(descriptor, _MAX_PATH)).strip()
    finally:
        os.close(descriptor)


def _submodules(folder: Path) -> Iterator[Path]:
    """The repositories of submodules, which have hooks and configuration of their own."""
    try:
        entries = [Path(each.path) for each in os.scandir(folder) if each.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in entries:
        if (entry / "HEAD").exists():
            yield entry
            yield from _submodules(entry / "modules")
        else:  # the name of a submodule may have slashes in it
            yield from _submodules(entry)


def without_hidden(hidden: set[Path]) -> Iterator[Path]:
    """Everything but the hidden paths, in as few paths as possible."""
    return _without(Path("/"), hidden)


def _without(folder: Path, hidden: set[Path]) -> Iterator[Path]:
    """The folder, if nothing below it is hidden; else the entries of it that are not."""
    if folder in hidden:
        return
    if not any(each.is_relative_to(folder) for each in hidden):
        yield folder
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if not entry.is_symlink():  # a rule would be for what it points to, which may be hidden
            yield from _without(entry, hidden)
