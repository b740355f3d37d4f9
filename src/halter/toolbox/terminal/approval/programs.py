"""What single programs destroy, by their options. See `commands.py`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HARMLESS_DEVICES: Final = re.compile(r"/dev/(null|zero|full|stdout|stderr|stdin|tty|(?:fd|shm|pts|tcp|udp)/.*)$")
_SYSTEM: Final = r"/(?:bin|boot|dev|etc|lib|lib32|lib64|opt|proc|root|sbin|srv|sys|usr|var|home|Users|System|Library)"
_SYSTEM_FILE: Final = re.compile(
    r"/(?:boot|bin|sbin|lib|lib64|etc|usr/(?:bin|sbin|lib)|proc/sys|sys)/.+|/proc/sysrq-trigger"
)
_WHOLE_TREE: Final = re.compile(rf"(?:/+\*?|~[\w.-]*/*\*?|\$\{{?HOME\}}?/*\*?|{_SYSTEM}/*\*?|\.\.(?:/\.\.)*/?)$")


def is_device(path: str) -> bool:
    """Whether writing to *path* writes to a device that holds something."""
    path = _plain(path)
    return path.startswith("/dev/") and _HARMLESS_DEVICES.match(path) is None


def is_system_file(path: str) -> bool:
    return _SYSTEM_FILE.fullmatch(_plain(path)) is not None


def _plain(path: str) -> str:
    return re.sub(r"/(?:\./|/)+", "/", path)


def has_option(args: list[str], letters: str = "", *names: str) -> bool:
    """Whether one of the options is there, alone or in a bundle such as -fr; long ones also shortened, as GNU does."""
    for arg in args:
        if arg == "--":
            return False
        if arg.startswith("--"):
            option = arg.partition("=")[0]
            if any(option == name or (len(option) > 4 and name.startswith(option)) for name in names):  # noqa: PLR2004
                return True
        elif arg.startswith("-") and any(letter in arg[1:] for letter in letters):
            return True
    return False


def _rm(args: list[str]) -> str:
    if has_option(args, "rR", "--recursive"):
        return "rm -r deletes whole directories"
    return "rm -f deletes without asking" if has_option(args, "f", "--force") else ""


def _find(args: list[str]) -> str:
    return "find -delete deletes whatever it finds" if "-delete" in args else ""


def _dd(args: list[str]) -> str:
    target = next((arg[3:] for arg in args if arg.startswith("of=")), "")
    return f"dd writes over {target}" if is_device(target) or is_system_file(target) else ""


def _rights(name: str) -> Callable[[list[str]], str]:
    def rule(args: list[str]) -> str:
        if not has_option(args, "R", "--recursive"):
            return ""
        whole = next((arg for arg in args if _WHOLE_TREE.match(_plain(arg))), "")
        return f"{name} -R changes everything below {whole}" if whole else ""

    return rule


def _kill(args: list[str]) -> str:
    targets = list(args)
    if targets and targets[0] in {"-s", "-n", "--signal"}:
        targets = targets[2:]
    elif targets and targets[0].startswith("-") and targets[0] != "--" and len(targets) > 1:
        targets = targets[1:]
    return "kill -1 ends every process" if "-1" in targets and len(args) > 1 else ""


def _git(args: list[str]) -> str:
    rest = list(args)
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path"} else 1 :]
    if not rest:
        return ""
    name, options = rest[0], rest[1:]
    rule = _GIT.get(name)
    return rule(options) if rule is not None else ""


def _git_push(args: list[str]) -> str:
    if has_option(args, "f", "--force", "--force-with-lease", "--mirror"):
        return "git push --force overwrites what others have pushed"
    refs = [arg for arg in args if not arg.startswith("-")][1:]
    if any(ref.startswith("+") for ref in refs):
        return "git push of a +ref overwrites what others have pushed"
    if has_option(args, "d", "--delete", "--prune") or any(ref.startswith(":") for ref in refs):
        return "git push deletes a branch or tag for everybody"
    return ""


def _git_clean(args: list[str]) -> str:
    if has_option(args, "n", "--dry-run"):
        return ""
    return "git clean -f deletes files that are not in the repository" if has_option(args, "f", "--force") else ""


def _git_stash(args: list[str]) -> str:
    return "git stash drop deletes changes that are stored nowhere else" if args[:1] in (["drop"], ["clear"]) else ""


def _git_checkout(args: list[str]) -> str:
    is_all = "." in args or ("--" in args and args[-1:] != ["--"])
    if has_option(args, "f", "--force") or is_all:
        return "it discards uncommitted changes"
    return ""


def _git_restore(args: list[str]) -> str:
    is_index_only = has_option(args, "S", "--staged") and not has_option(args, "W", "--worktree")
    return "" if is_index_only else "git restore discards uncommitted changes"


def _first(words: Mapping[str, str]) -> Callable[[list[str]], str]:
    """A rule for programs whose first word says what they do."""

    def rule(args: list[str]) -> str:
        plain = [arg for arg in args if not arg.startswith("-")]
        return next((why for phrase, why in words.items() if _contains(plain, phrase.split())), "")

    return rule


def _contains(words: list[str], phrase: list[str]) -> bool:
    """Whether the words of the phrase follow each other; values of options may come before them."""
    return any(words[at : at + len(phrase)] == phrase for at in range(len(words)))


def _option(why: str, letters: str = "", *names: str) -> Callable[[list[str]], str]:
    return lambda args: why if has_option(args, letters, *names) else ""


def _always(why: str) -> Callable[[list[str]], str]:
    def rule(args: list[str]) -> str:
        return "" if args in (["--help"], ["--version"], ["-h"], ["-V"]) else why

    return rule


def _partitions(args: list[str]) -> str:
    only_lists = has_option(args, "l", "--list", "--print", "--help", "--version")
    return "" if only_lists else "it changes the partitions of a disk"


_GIT: Final[dict[str, Callable[[list[str]], str]]] = {
    "push": _git_push,
    "reset": _option("git reset --hard discards uncommitted changes", "", "--hard"),
    "clean": _git_clean,
    "checkout": _git_checkout,
    "switch": _option("it discards uncommitted changes", "f", "--force", "--discard-changes"),
    "restore": _git_restore,
    "branch": _option("git branch -D deletes commits that may be nowhere else", "D"),
    "stash": _git_stash,
    "filter-branch": _always("it rewrites the whole history"),
    "filter-repo": _always("it rewrites the whole history"),
    "update-ref": _option("it deletes a ref", "d"),
    "reflog": _first(dict.fromkeys(("expire", "delete"), "it deletes the record of lost commits")),
}
_docker = _first(
    {
        f"{noun} {verb}": "it deletes containers or their data"
        for noun in ("system", "volume", "image", "container")
        for verb in ("prune", "rm")
    }
)


def _aws(args: list[str]) -> str:
    is_all = "rb" in args or ("rm" in args and "--recursive" in args)
    return "it deletes stored objects" if "s3" in args and is_all else ""


_ENDS_MACHINE: Final = "it shuts down or restarts this machine"
_MAKES_DISK: Final = "it erases a disk"
RULES: Final[dict[str, Callable[[list[str]], str]]] = {
    "rm": _rm,
    "grm": _rm,
    "find": _find,
    "shred": _always("shred makes files unrecoverable"),
    "srm": _always("srm makes files unrecoverable"),
    "wipe": _always("wipe makes files unrecoverable"),
    "wipefs": _option(_MAKES_DISK, "ao", "--all", "--offset"),
    "rsync": _option("rsync --delete deletes what the source does not have", "", "--delete", "--remove-source-files"),
    "mkfs": _always(_MAKES_DISK),
    "mke2fs": _always(_MAKES_DISK),
    "mkswap": _always(_MAKES_DISK),
    "newfs": _always(_MAKES_DISK),
    "blkdiscard": _always(_MAKES_DISK),
    "cryptsetup": _first({"luksFormat": _MAKES_DISK, "erase": _MAKES_DISK}),
    "fdisk": _partitions,
    "sfdisk": _partitions,
    "gdisk": _partitions,
    "sgdisk": _partitions,
    "cfdisk": _partitions,
    "parted": _partitions,
    "diskutil": _first({"eraseDisk": _MAKES_DISK, "eraseVolume": _MAKES_DISK, "partitionDisk": _MAKES_DISK}),
    "lvremove": _always(_MAKES_DISK),
    "vgremove": _always(_MAKES_DISK),
    "zpool": _first({"destroy": _MAKES_DISK}),
    "zfs": _first({"destroy": _MAKES_DISK}),
    "dd": _dd,
    "shutdown": lambda args: "" if args[:1] == ["-c"] else _always(_ENDS_MACHINE)(args),
    "reboot": _always(_ENDS_MACHINE),
    "poweroff": _always(_ENDS_MACHINE),
    "halt": _always(_ENDS_MACHINE),
    "init": lambda args: _ENDS_MACHINE if args[:1] in (["0"], ["6"]) else "",
    "telinit": lambda args: _ENDS_MACHINE if args[:1] in (["0"], ["6"]) else "",
    "systemctl": _first(dict.fromkeys(("poweroff", "reboot", "halt", "kexec", "suspend", "rescue"), _ENDS_MACHINE)),
    "kill": _kill,
    "killall5": _always("it ends every process"),
    "chmod": _rights("chmod"),
    "chown": _rights("chown"),
    "chgrp": _rights("chgrp"),
    "git": _git,
    "dropdb": _always("it deletes a database"),
    "dropuser": _always("it deletes a user of the database"),
    "mysqladmin": _first({"drop": "it deletes a database"}),
    "redis-cli": lambda args: next((f"it deletes data: {a}" for a in args if a.lower() in {"flushall", "flushdb"}), ""),
    "kubectl": _first({"delete": "it deletes cluster resources", "drain": "it drains a cluster node"}),
    "helm": _first(dict.fromkeys(("uninstall", "delete"), "it deletes cluster resources")),
    "terraform": _first({"destroy": "it deletes the infrastructure"}),
    "tofu": _first({"destroy": "it deletes the infrastructure"}),
    "docker": _docker,
    "podman": _docker,
    "aws": _aws,
    "gsutil": lambda args: "it deletes stored objects" if "rm" in args and has_option(args, "rR") else "",
    "crontab": _option("crontab -r deletes all timed jobs", "r"),
    "iptables": _option("it removes firewall rules", "F", "--flush"),
    "nft": _first({"flush": "it removes firewall rules"}),
    "userdel": _always("it deletes a user"),
    "deluser": _always("it deletes a user"),
}
