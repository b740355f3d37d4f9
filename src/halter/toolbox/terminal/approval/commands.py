"""Which shell commands are destructive, and therefore need approval.

`danger_in(command)` returns why a command needs approval, or "". It splits the command as a shell would, looks through
`sudo`, `env`, `xargs`, `find -exec`, `sh -c`, `eval`, `ssh`, pipes, lists and substitutions, and reports:

- deleting without asking: `rm` with -r or -f, `find -delete`, `shred`, `rsync --delete`
- disks: `mkfs`, `fdisk` and the like, `dd of=` or a redirection to a device, overwriting files of the system
- the machine: `shutdown`, `reboot`, `kill -9 -1`, fork bombs
- permissions: `chmod`, `chown`, `chgrp` with -R on `/`, the home directory or the system's directories
- git: `push --force` and deletions, `reset --hard`, `clean -f`, `checkout -f`, `branch -D`, `stash drop`
- running code straight from the network or from a decoder: `curl … | sh`, `sh -c "$(curl …)"`
- data: `DROP`, `TRUNCATE`, a `DELETE` without `WHERE`, `dropdb`, `FLUSHALL`
- infrastructure: `terraform destroy`, `kubectl delete`, `docker … prune`

This is a safety net, not a sandbox. It catches what a model writes in good faith. It does not know the values of
variables, does not read scripts and programs (`python -c`, `make clean`, `./tidy.sh`), and can be circumvented. To make
something impossible, use a container, another user, or leave out the tool.
"""

from __future__ import annotations

import re
from typing import Final

from halter.toolbox.terminal.approval.programs import RULES, is_device, is_system_file
from halter.toolbox.terminal.approval.shell_parser import Simple, UnparsableCommand, read_commands
from halter.toolbox.terminal.approval.wrappers import MAX_COMMANDS, SHELLS, base_name, unwrap

_MAX_DEPTH: Final = 8
_MAX_PIPED: Final = 50
# A function that pipes itself into itself, in the background. Each word is tried once: a text may be very long.
_BODY: Final = r"\s*[{(](?=[^})]*&)[^})]*?(?<![\w.-])\1\s*\|\s*\1(?![\w.-])"
_FORK_BOMBS: Final = (
    re.compile(r"(?<![\w:.@-])([\w:.@-]++)\s*+\(\s*+\)" + _BODY),
    re.compile(r"\bfunction\s++([\w:.@-]++)" + _BODY),
)
_FETCHERS: Final = frozenset({"curl", "wget", "fetch", "aria2c", "http", "https", "nc", "ncat", "lynx"})
_DECODERS: Final = frozenset({"base64", "base32", "xxd", "uudecode", "openssl", "rev"})
_INTERPRETERS: Final = SHELLS | {"python", "perl", "ruby", "node", "php"}
_CLIENTS: Final = frozenset(
    {"psql", "mysql", "mariadb", "sqlite3", "sqlcmd", "sqlplus", "cqlsh", "clickhouse-client", "duckdb"}
    | {"mongo", "mongosh"}
)
_SQL: Final = re.compile(
    r"\b(drop\s+(database|schema|table|keyspace|user|role)\b|truncate\s+(table\s+)?\w|delete\s+from\s+[\w.\"`]+\s*(;|$))"
    r"|dropDatabase\s*\(|\.drop\s*\(|deleteMany\s*\(\s*\{\s*\}",
    re.IGNORECASE,
)
_WRITERS: Final = frozenset({"tee", "cp", "mv", "install", "ln", "truncate"})


def danger_in(command: str) -> str:
    """Why this shell command needs approval; "" if nothing destructive was found."""
    return _check(command, 0)


def _check(text: str, depth: int) -> str:
    if depth > _MAX_DEPTH:
        return "it is nested too deeply to be checked"
    if any(bomb.search(text) for bomb in _FORK_BOMBS):
        return "it is a fork bomb"
    try:
        commands = read_commands(text)
    except (UnparsableCommand, RecursionError) as error:
        return f"it cannot be parsed: {error}"
    upstream: list[Simple] = []
    for command in commands:
        if not command.is_piped:
            upstream = []
        if why := _check_command(command, upstream, depth):
            return why
        upstream.append(command)
        if len(upstream) > _MAX_PIPED:
            return "its pipes are too long to be checked"
    return ""


def _check_command(command: Simple, upstream: list[Simple], depth: int) -> str:
    for target in command.targets:
        if is_device(target) or is_system_file(target):
            return f"it overwrites {target}"
    wrapped = unwrap(command.words)
    if len(wrapped) >= MAX_COMMANDS:
        return "it is nested too deeply to be checked"
    for argv in wrapped:
        name, args = base_name(argv[0]), argv[1:]
        why = _named(name, args) or _fed(name, args, command, upstream, depth) or _scripted(name, args, command, depth)
        if why:
            return why
    return ""


def _named(name: str, args: list[str]) -> str:
    """What the program and its options say."""
    rule = RULES.get(name) or (RULES["mkfs"] if name.startswith("mkfs") else None)
    why = rule(args) if rule is not None else ""
    if not why and name in _WRITERS and args:
        targets = [arg for arg in args if not arg.startswith("-")]
        targets = targets if name in ("tee", "truncate") else targets[-1:]
        found = next((target for target in targets if is_device(target) or is_system_file(target)), "")
        why = f"it overwrites {found}" if found else ""
    return why


def _fed(name: str, args: list[str], command: Simple, upstream: list[Simple], depth: int) -> str:
    """What a shell or a database client is given to run on its standard input."""
    is_interpreter = _without_version(name) in _INTERPRETERS and _reads_input(name, args)
    if not is_interpreter and name not in _CLIENTS:
        return ""
    if is_interpreter:
        sources = {base_name(argv[0]) for each in upstream for argv in unwrap(each.words)}
        if sources & _FETCHERS or _fetches(command.inner):
            return f"it runs code from the network with {name}"
        if sources & _DECODERS and name in SHELLS:
            return f"it runs decoded code with {name}"
    given = [*command.fed, *(word for each in upstream for word in [" ".join(each.words[1:]), *each.fed])]
    if is_interpreter and name in SHELLS:
        return next((why for each in given if (why := _check_leniently(each, depth))), "")
    if not is_interpreter and (found := next(filter(None, map(_SQL.search, [" ".join(args), *given])), None)):
        return f"it deletes data: {found[0].strip()}"
    return ""


def _check_leniently(text: str, depth: int) -> str:
    """Check text that is printed to a shell; text that is not a command does nothing there."""
    why = _check(text.replace("\\n", "\n"), depth + 1)
    return "" if why.startswith("it cannot be parsed") else why


def _scripted(name: str, args: list[str], command: Simple, depth: int) -> str:
    """What a shell is given to run as an argument."""
    if name in {"eval", "source", ".", *SHELLS} and _fetches(command.inner):
        return f"it runs code from the network with {name}"
    if name == "eval":
        return _check(" ".join(args), depth + 1)
    if name == "trap" and args:
        return _check(args[0], depth + 1)
    if name in SHELLS:
        script = _script_of(args)
        return _check(script, depth + 1) if script is not None else ""
    if name == "ssh":
        return _check(" ".join(_after_host(args)), depth + 1)
    return ""


def _script_of(args: list[str]) -> str | None:
    """The text after the -c of a shell, also in `-lc` and `-o pipefail -c`."""
    for at, arg in enumerate(args):
        if re.fullmatch(r"-\w*c\w*", arg):
            return next((each for each in args[at + 1 :] if not re.match(r"[-+]\w", each)), None)
    return None


def _after_host(args: list[str]) -> list[str]:
    """The command: options may stand before and after the host."""
    return _after_ssh_options(_after_ssh_options(args)[1:])


def _after_ssh_options(args: list[str]) -> list[str]:
    takes_value = set("bcDEeFIiJLlmOopQRSWw")
    at = 0
    while at < len(args) and args[at].startswith("-"):
        at += 2 if args[at][1:2] in takes_value and len(args[at]) == 2 else 1  # noqa: PLR2004  (-i FILE, not -iFILE)
    return args[at:]


def _reads_input(name: str, args: list[str]) -> bool:
    """Whether an interpreter with these arguments runs its standard input, and not a file, a text or a module."""
    if name in SHELLS and "-s" in args:
        return True
    if name in SHELLS and _script_of(args) is not None:
        return False
    if any(re.match(r"-[cmenr]", arg) for arg in args) and name not in SHELLS:
        return False
    files = [arg for arg in args if not arg.startswith("-") or arg == "-"]
    return not files or files[0] in ("-", "/dev/stdin", "\0")


def _fetches(inner: list[str]) -> bool:
    for text in inner:
        try:
            commands = read_commands(text)
        except (UnparsableCommand, RecursionError):
            return True  # unknown, so assume the worst
        names = {base_name(argv[0]) for each in commands for argv in unwrap(each.words)}
        if names & (_FETCHERS | _DECODERS):
            return True
    return False


def _without_version(name: str) -> str:
    return re.sub(r"[\d.]+$", "", name)
