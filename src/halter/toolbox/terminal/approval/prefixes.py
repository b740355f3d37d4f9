"""Prefixes of commands that a person has allowed: `git push`, `npm test`.

A prefix is a list of words. It is compared with the words of simple commands, never with text. Each simple command of a
line must be covered. A prefix does not cover options that make a program start another one (`git fetch --upload-pack`).

A prefix of a program whose business is to run what it is given (interpreters, `sudo`, `xargs`, `ssh`) would allow
everything, so `check_prefix()` refuses it.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final, TypeAlias

from halter.toolbox.terminal.approval.wrappers import SHELLS, WRAPPERS, base_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halter.toolbox.terminal.approval.command_line import CommandLine

__all__ = ["Prefix", "check_prefix", "covers", "read_prefixes", "suggest_prefix"]

Prefix: TypeAlias = "tuple[str, ...]"

_INTERPRETERS: Final = frozenset(
    {
        "awk",
        "bun",
        "clojure",
        "deno",
        "ed",
        "elixir",
        "emacs",
        "erl",
        "ex",
        "expect",
        "find",
        "fd",
        "gawk",
        "gdb",
        "ghci",
    }
    | {
        "groovy",
        "irb",
        "java",
        "jshell",
        "jupyter",
        "lldb",
        "lua",
        "mawk",
        "nawk",
        "nix",
        "node",
        "nodejs",
        "npx",
        "nvim",
    }
    | {"osascript", "perl", "php", "pipx", "pwsh", "python", "pypy", "R", "rscript", "ruby", "scala", "sed", "sqlite3"}
    | {"tclsh", "ts-node", "tsx", "uvx", "vi", "vim", "wish", "ipython", "psql", "mysql", "bunx"}
)
# Builtins that run text, or change what later words mean.
_BUILTINS: Final = frozenset(
    {
        ".",
        "alias",
        "bind",
        "builtin",
        "command",
        "complete",
        "declare",
        "enable",
        "eval",
        "exec",
        "export",
        "hash",
        "let",
    }
    | {"local", "mapfile", "printf", "read", "readarray", "readonly", "set", "shopt", "source", "test", "[", "trap"}
    | {"typeset", "unalias", "unset", "wait"}
)
_RUN_ELSEWHERE: Final = frozenset(
    {
        "ansible",
        "at",
        "batch",
        "chroot",
        "crontab",
        "docker-compose",
        "entr",
        "less",
        "man",
        "more",
        "mosh",
        "nc",
        "ncat",
    }
    | {
        "pkexec",
        "rsync",
        "scp",
        "screen",
        "sftp",
        "socat",
        "ssh",
        "sshpass",
        "sudoedit",
        "tar",
        "telnet",
        "tmux",
        "vagrant",
    }
    | {"watch", "wget", "zip"}
)
_RUN_TEXT: Final = SHELLS | WRAPPERS | _INTERPRETERS | _BUILTINS | _RUN_ELSEWHERE
# Programs whose second word says what they do: the prefix must name it.
_WITH_COMMANDS: Final = frozenset(
    {"apt", "apt-get", "aws", "az", "brew", "bundle", "cargo", "conda", "docker", "dotnet", "flutter", "gcloud", "gem"}
    | {
        "gh",
        "git",
        "glab",
        "go",
        "gradle",
        "helm",
        "hg",
        "kubectl",
        "mvn",
        "npm",
        "pip",
        "pip3",
        "pnpm",
        "podman",
        "poetry",
    }
    | {"rustup", "svn", "systemctl", "terraform", "uv", "yarn", "hatch", "pdm"}
)
# Of those, commands that run whatever they are given, or need one more word.
_RUN_ANYTHING: Final = frozenset(
    {
        ("bundle", "exec"),
        ("conda", "run"),
        ("docker", "compose"),
        ("docker", "exec"),
        ("docker", "run"),
        ("git", "bisect"),
    }
    | {("git", "config"), ("git", "filter-branch"), ("git", "submodule"), ("git", "difftool"), ("git", "mergetool")}
    | {("go", "generate"), ("go", "run"), ("gh", "alias"), ("gh", "extension"), ("hatch", "run"), ("kubectl", "exec")}
    | {("kubectl", "run"), ("npm", "exec"), ("npm", "x"), ("pdm", "run"), ("pnpm", "dlx"), ("pnpm", "exec")}
    | {("podman", "exec"), ("podman", "run"), ("poetry", "run"), ("uv", "run"), ("uv", "tool"), ("yarn", "dlx")}
    | {("yarn", "exec"), ("dotnet", "run")}
)
_WITH_SCRIPTS: Final = frozenset({("npm", "run"), ("yarn", "run"), ("pnpm", "run"), ("npm", "run-script")})
# Options that name a program to start, also shortened, by program.
_STARTS: Final = {
    "cargo": re.compile(r"--config.*", re.DOTALL),
    "cc": (_COMPILER := re.compile(r"-(?:wrapper|specs|fplugin|B).*", re.DOTALL)),
    "clang": _COMPILER,
    "g++": _COMPILER,
    "gcc": _COMPILER,
    "git": re.compile(r"--(?:u|up|ex?|ope?)(?:=.*)?|--(?:upl|exe|ext|open|rece|conf|temp).*|-O.*", re.DOTALL),
    "go": re.compile(r"--?(?:exec|toolexec|vettool).*", re.DOTALL),
    "make": re.compile(r"--ev.*|-\w*E.*|\.?SHELL\w*[:+?!]*=.*", re.DOTALL),
    "rg": re.compile(r"--(?:pre|hostname-bin)(?:=.*)?", re.DOTALL),
    "sort": re.compile(r"--comp.*", re.DOTALL),
}
_GIT_STARTS: Final = {"clone": re.compile(r"-[cu].*", re.DOTALL), "rebase": re.compile(r"-x.*", re.DOTALL)}


def read_prefixes(prefixes: Iterable[str | Sequence[str]]) -> tuple[Prefix, ...]:
    """Prefixes as lists of words; a text is split as a shell would. Raises `ValueError` for one that is refused."""
    found: list[Prefix] = []
    for each in prefixes:
        try:
            words = tuple(shlex.split(each)) if isinstance(each, str) else tuple(each)
        except ValueError as error:
            raise ValueError(f"{each!r} is not a prefix of a command: {error}") from error
        check_prefix(words)
        found.append(words)
    return tuple(dict.fromkeys(found))


def check_prefix(words: Prefix) -> None:
    """Raise `ValueError`, with the reason, if commands that begin with these words cannot be allowed as a whole."""
    if why := _refusal(words):
        raise ValueError(f"the prefix {shlex.join(words)!r} cannot be allowed: {why}")


def _refusal(words: Prefix) -> str:
    if not words or not words[0]:
        return "it names no program"
    if not all(each.isprintable() for each in words):
        return "it has characters that cannot be seen"
    name = base_name(words[0])
    if name in _RUN_TEXT or re.sub(r"[\d.]+$", "", name) in _RUN_TEXT:
        return f"{name} runs whatever it is given"
    return _refusal_of_command(name, words) if name in _WITH_COMMANDS else ""


def _refusal_of_command(name: str, words: Prefix) -> str:
    if len(words) == 1 or words[1].startswith("-"):
        return f"add the command of {name}, as in {name + ' ' + _EXAMPLES.get(name, 'COMMAND')!r}"
    if (name, words[1]) in _RUN_ANYTHING:
        return f"{name} {words[1]} runs whatever it is given"
    if (name, words[1]) in _WITH_SCRIPTS and len(words) == 2:  # noqa: PLR2004
        return f"add the name of the script, as in {name + ' ' + words[1] + ' test'!r}"
    return ""


_EXAMPLES: Final = {"git": "push", "npm": "test", "cargo": "test", "go": "test", "pip": "install"}


def suggest_prefix(command: CommandLine) -> Prefix | None:
    """The prefix that a person may allow for a command like this; None if there is none."""
    if not command.words or command.assignments or command.redirections or "/" in command.name:
        return None  # the content of a file in the workspace may change
    name = command.name
    length = 1
    if name in _WITH_COMMANDS:
        second = command.words[1].text if len(command.words) > 1 and command.words[1].is_fixed else ""
        length = 3 if (name, second) in _WITH_SCRIPTS else 2
    words = command.words[:length]
    if len(words) < length or not all(each.is_fixed for each in words):
        return None
    prefix = tuple(each.text for each in words)
    return None if _refusal(prefix) or _starts_another(command) else prefix


def covers(prefix: Prefix, command: CommandLine) -> bool:
    """Whether a command begins with a prefix, and does not make its program start another one.

    Its redirections are not looked at.
    """
    begin = [each.text if each.is_fixed else None for each in command.words[: len(prefix)]]
    return begin == list(prefix) and not command.assignments and not _starts_another(command)


def _starts_another(command: CommandLine) -> bool:
    """Whether words of a command name another program, or may do so when they are expanded."""
    name, words = base_name(command.name), command.words[1:]
    starts = _STARTS.get(name)
    if starts is None:
        return False
    of_command = _GIT_STARTS.get(words[0].text) if name == "git" and words else None
    return any(
        not (each.is_fixed or each.is_no_option)
        or starts.fullmatch(each.text) is not None
        or (of_command is not None and of_command.fullmatch(each.text) is not None)
        for each in words
    )
