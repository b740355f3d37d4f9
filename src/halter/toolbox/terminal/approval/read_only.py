"""Which simple commands only read: programs that, with these options, write no file and start no other program.

A program is on the list with everything that it may be given, or with a rule about its words. A word that is not known
before bash has expanded it may become an option, so programs with options that write or start something need to know
all their words. Abbreviations of long options count as the option.

Git runs programs that the configuration of a repository names (filters, drivers, a file system monitor), and an agent
can make a repository. So Git's commands are on the list only where commands run in a sandbox.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from halter.toolbox.terminal.approval.command_line import Word
from halter.toolbox.terminal.approval.read_only_git import is_read_only_git

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halter.toolbox.terminal.approval.command_line import CommandLine

__all__ = ["is_read_only", "only_reads_files"]

# They read, whatever they are given.
_ANY_WORDS: Final = frozenset(
    {":", "arch", "b2sum", "base32", "base64", "basename", "cat", "cd", "cksum", "cmp", "comm", "cut", "df", "dirname"}
    | {
        "du",
        "echo",
        "egrep",
        "expand",
        "factor",
        "false",
        "fgrep",
        "fold",
        "free",
        "grep",
        "groups",
        "head",
        "id",
        "join",
    }
    | {
        "jq",
        "ls",
        "lscpu",
        "md5sum",
        "nl",
        "nproc",
        "numfmt",
        "od",
        "paste",
        "pgrep",
        "printenv",
        "ps",
        "pwd",
        "readlink",
    }
    | {"realpath", "rev", "seq", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "sleep", "stat"}
    | {"strings", "sum", "tac", "tail", "tr", "true", "tty", "type", "uname", "unexpand", "uptime", "wc", "which"}
    | {"whoami", "yes"}
)
# With --version alone they print it, and read nothing of the workspace before that.
_PRINT_VERSION: Final = frozenset(
    {
        "bash",
        "cc",
        "clang",
        "cmake",
        "curl",
        "docker",
        "g++",
        "gcc",
        "git",
        "java",
        "make",
        "mypy",
        "node",
        "npm",
    }
    | {
        "perl",
        "pip",
        "pip3",
        "python",
        "python3",
        "rg",
        "ruby",
        "ruff",
        "sqlite3",
        "tar",
        "uv",
    }
)
_VERSION: Final = Word("--version")
_FOLDERS: Final = ("/bin/", "/usr/bin/")
# Variables that change nothing but language and colour, and values that name no file.
_HARMLESS_VARIABLES: Final = frozenset({"LANG", "LC_ALL", "NO_COLOR", "COLUMNS"})
_HARMLESS_VALUE: Final = re.compile(r"[A-Za-z0-9]{0,10}(?:\.UTF-8|\.utf8)?")
_FIND_ACTS: Final = frozenset(
    {"-delete", "-exec", "-execdir", "-fls", "-fprint", "-fprint0", "-fprintf", "-ok", "-okdir"}
)
_SED_PRINTS: Final = re.compile(r"(?:(?:\d+|\$)(?:,(?:\+?\d+|\$))?p;?)+")
_AWK_ACTS: Final = re.compile(r"[|>@`]|system|getline|close|fflush")
_DATE_READS: Final = re.compile(
    r"\+.*|-u|-R|-I\w*|--utc|--universal|--rfc-email|--(?:iso-8601|rfc-3339)(?:=\w+)?", re.DOTALL
)
_PRINTF_ASSIGNS: Final = re.compile(r"%[^a-zA-Z%]*[hlLjtzq]*n")
_NUMBER: Final = re.compile(r"\d{1,3}")


def is_read_only(command: CommandLine, *, in_sandbox: bool) -> bool:
    """Whether this command only reads. Whatever is not known to do so does not."""
    if not only_reads_files(command):
        return False
    for name, value in command.assignments:
        if name not in _HARMLESS_VARIABLES or not value.is_fixed or not _HARMLESS_VALUE.fullmatch(value.text):
            return False
    if not command.words:
        return True
    program, words = _program(command.name), command.words[1:]
    if program in _ANY_WORDS or (program in _PRINT_VERSION and words == [_VERSION]):
        return True
    if program == "git":
        # A word that is not fixed equals no name of a command or option.
        texts = [each.text if each.is_fixed else f"{each.text}\0" for each in words]
        return in_sandbox and all(map(_is_known, words)) and is_read_only_git(texts)
    rule = _RULES.get(program)
    return rule is not None and rule(words)


def only_reads_files(command: CommandLine) -> bool:
    """Whether none of its redirections writes a file or connects to a server."""
    return all(_reads_or_drops(each.sign, each.target) for each in command.redirections)


def _program(name: str) -> str:
    """The name without the folder, if that is one of the system's."""
    folder = next((each for each in _FOLDERS if name.startswith(each)), "")
    return name[len(folder) :]


def _reads_or_drops(sign: str, target: Word) -> bool:
    if not target.is_fixed:
        return False
    if sign == "<":
        return not target.text.startswith("/dev/") or target.text == "/dev/null"  # /dev/tcp/HOST/PORT connects
    return target.text == "/dev/null"


def _is_known(word: Word) -> bool:
    """Whether a word is an option only if it looks like one."""
    return word.is_fixed or word.is_no_option


def _has(words: Iterable[Word], letters: str, *names: str) -> bool:
    """Whether an option is there: a letter, also in a bundle, or a long name, also shortened."""
    for word in words:
        text = word.text
        if text.startswith("--"):
            option = text.partition("=")[0]
            if option != "--" and any(name.startswith(option) for name in names):
                return True
        elif text.startswith("-") and any(letter in text for letter in letters):
            return True
    return False


def _without(letters: str, *names: str) -> Callable[[list[Word]], bool]:
    """A rule for programs that read unless one of these options is there."""
    return lambda words: all(map(_is_known, words)) and not _has(words, letters, *names)


def _one_operand(letters: str = "") -> Callable[[list[Word]], bool]:
    """A rule for programs that write to a second operand."""

    def rule(words: list[Word]) -> bool:
        is_sure = all(each.kind != "pattern" for each in words)
        operands = [each for each in words if not each.text.startswith("-") or each.text == "-"]
        return _without(letters)(words) and is_sure and len(operands) <= 1 and not any(e.text == "--" for e in words)

    return rule


def _find(words: list[Word]) -> bool:
    return all(map(_is_known, words)) and not any(each.text in _FIND_ACTS for each in words)


def _sed(words: list[Word]) -> bool:
    """Only `sed -n 10,20p FILE…`: the language can write files and run commands."""
    if len(words) < 2 or words[0].text not in ("-n", "-nE", "-En") or not (words[0].is_fixed and words[1].is_fixed):  # noqa: PLR2004
        return False
    return _SED_PRINTS.fullmatch(words[1].text) is not None and all(each.is_no_option for each in words[2:])


def _awk(words: list[Word]) -> bool:
    """A program without pipes, redirections and calls that run something; then files."""
    rest = list(words)
    while rest and rest[0].is_fixed and rest[0].text.startswith("-F"):
        if rest[0].text == "-F" and not all(each.is_fixed for each in rest[1:2]):
            return False  # it may become several words, and the program is another then
        rest = rest[2 if rest[0].text == "-F" else 1 :]
    if not rest or not rest[0].is_fixed or rest[0].text.startswith("-") or _AWK_ACTS.search(rest[0].text):
        return False
    return all(each.is_no_option for each in rest[1:])


def _date(words: list[Word]) -> bool:
    rest = list(words)
    while rest:
        if not rest[0].is_fixed:
            return False
        if (
            rest[0].text in ("-d", "--date", "-r", "--reference")
            and len(rest) > 1
            and rest[1].kind in ("fixed", "joined")
        ):
            rest = rest[2:]
        elif _DATE_READS.fullmatch(rest[0].text):
            rest = rest[1:]
        else:
            return False
    return True


def _test(words: list[Word]) -> bool:
    """All words must be known: `-v` and `-R` evaluate what is in a subscript."""
    return all(map(_is_known, words)) and not any(each.text in ("-v", "-R") for each in words)


def _printf(words: list[Word]) -> bool:
    """`-v` writes a variable, and evaluates its subscript; so does `%n` in a format."""
    return bool(words) and words[0].is_fixed and words[0].is_no_option and not _PRINTF_ASSIGNS.search(words[0].text)


_RULES: Final[dict[str, Callable[[list[Word]], bool]]] = {
    "[": _test,
    "awk": _awk,
    "column": _without(""),
    "command": lambda words: bool(words) and words[0].is_fixed and words[0].text in ("-v", "-V"),
    "date": _date,
    "diff": _without("l", "--paginate"),
    "env": lambda words: not words,
    "exit": lambda words: not words or (len(words) == 1 and _NUMBER.fullmatch(words[0].text) is not None),
    "file": _without("CzZm", "--compile", "--magic-file", "--uncompress", "--uncompress-noreport"),
    "find": _find,
    "gawk": _awk,
    "hostname": lambda words: not words,
    "mawk": _awk,
    "printf": _printf,
    "rg": _without("z", "--pre", "--search-zip", "--hostname-bin"),
    "sed": _sed,
    "sort": _without("oT", "--output", "--compress-program", "--temporary-directory"),
    "test": _test,
    "tree": _without("oR", "--output"),
    "uniq": _one_operand(),
    "xxd": _one_operand("r"),
}
