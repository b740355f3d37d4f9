"""Programs that run another program: `sudo rm`, `env X=1 rm`, `find . -exec rm {} +`; and what they run."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "fish", "csh", "tcsh"})

# Words of the shell's own grammar that stand before a command.
_KEYWORDS: Final = frozenset(
    {"!", "{", "}", "then", "do", "else", "elif", "if", "while", "until"}
    | {"in", "function", "coproc", "case", "[[", "fi"}
)
# Programs that run their arguments, and their own options that take a value.
_PREFIXES: Final = {
    "sudo": "ugpCDhrRtTU",
    "doas": "uC",
    "su": "",
    "env": "uSC",
    "command": "",
    "builtin": "",
    "exec": "a",
    "nohup": "",
    "nice": "n",
    "ionice": "cnpPu",
    "time": "fo",
    "timeout": "ks",
    "stdbuf": "ioe",
    "setsid": "",
    "unshare": "",
    "chroot": "",
    "watch": "nd",
    "xargs": "adEIiLlnPs",
    "parallel": "jaI",
    "strace": "eopsu",
    "ltrace": "eopsu",
    "setarch": "",
    "taskset": "",
    "chrt": "",
    "flock": "wEc",
    "script": "c",
    "caffeinate": "t",
    "busybox": "",
    "toybox": "",
    "gdb": "",
    "proxychains": "f",
    "firejail": "",
    "bwrap": "",
    "runuser": "ugGc",
    "systemd-run": "pu",
}
WRAPPERS: Final = frozenset(_PREFIXES)
# How many arguments of their own come before the program.
_LEADING: Final = {"timeout": 1, "chroot": 1, "taskset": 1, "chrt": 1, "flock": 1}
# Tools with commands of their own: `docker exec box rm -rf /`, `kubectl exec pod -- rm -rf /`.
_CONTAINER_TOOLS: Final = frozenset({"docker", "podman", "kubectl", "nerdctl", "lxc"})
_RUN_IN_CONTAINERS: Final = frozenset({"rm", "sh", "bash", "dd", "sudo", "shred", "env", "xargs", "find"})
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")
MAX_COMMANDS: Final = 16  # commands found in one; if there are as many, not all were found


def base_name(word: str) -> str:
    """The name of a program, wherever it is said to be."""
    return PurePosixPath(word).name or word


def unwrap(words: list[str]) -> list[list[str]]:
    """The commands that *words* run, from the outermost to the innermost. Each has at least a name."""
    found: list[list[str]] = []
    todo = [words]
    while todo and len(found) < MAX_COMMANDS:
        argv = _without_grammar(todo.pop())
        if not argv:
            continue
        found.append(argv)
        todo += _run_by(base_name(argv[0]), argv[1:])
    return found


def _without_grammar(words: list[str]) -> list[str]:
    at = 0
    while at < len(words) and (words[at] in _KEYWORDS or _ASSIGNMENT.match(words[at]) or not words[at]):
        has_name = words[at] in ("function", "coproc") and words[at + 2 : at + 3] == ["{"]  # function NAME {
        at += 2 if has_name else 1
    return words[at:]


def _run_by(name: str, args: list[str]) -> list[list[str]]:
    """What a program with these arguments runs."""
    if name == "find":
        return [args[at + 1 :] for at, arg in enumerate(args) if arg in {"-exec", "-execdir", "-ok", "-okdir"}]
    if name in _CONTAINER_TOOLS and {"exec", "run"} & set(args):
        # It is unknown where their own options end: any word may be the program's name.
        return [args[at:] for at, arg in enumerate(args) if base_name(arg) in _RUN_IN_CONTAINERS][:1]
    if name in {"su", "runuser", "script", "flock"} and "-c" in args:
        return [["sh", *args[args.index("-c") :]]]
    if name == "env":
        split = next((at for at, arg in enumerate(args) if arg in {"-S", "--split-string"}), None)
        if split is not None:
            return [["sh", "-c", *args[split + 1 : split + 2]]]
    return _after_options(args, _PREFIXES[name], _LEADING.get(name, 0)) if name in _PREFIXES else []


def _after_options(args: list[str], takes_value: str, leading: int) -> list[list[str]]:
    """Where the program may begin. Only the prefix knows whether a long option takes the next word: both ways."""
    found: list[list[str]] = []
    at = 0
    while at < len(args):
        arg = args[at]
        if arg == "--":
            at += 1
            break
        if arg.startswith("--") and "=" not in arg:
            found.append(args[at + 2 + leading :])
        if arg.startswith("-") and arg != "-":
            at += 2 if len(arg) == 2 and arg[1] in takes_value else 1  # noqa: PLR2004  (-u NAME, not -uNAME)
        elif _ASSIGNMENT.match(arg) or arg == "-":
            at += 1
        else:
            break
    return [*found, args[at + leading :]]
