"""Which commands of Git only read, by their words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_read_only_git"]

_READS: Final = frozenset(
    {"blame", "cat-file", "check-ignore", "cherry", "count-objects", "describe", "diff", "diff-index", "diff-tree"}
    | {"for-each-ref", "grep", "log", "ls-files", "ls-tree", "merge-base", "name-rev", "rev-list", "rev-parse"}
    | {"shortlog", "show", "show-branch", "show-ref", "status", "var", "whatchanged"}
)
# Options that write a file or start a program, of any of these commands.
_ACTS: Final = (
    "--edit-description",
    "--exec",
    "--ext-diff",
    "--filters",
    "--help",
    "--open-files-in-pager",
    "--output",
    "--show-signature",
    "--textconv",
)
_SIGNATURE: Final = "%G"  # in a format: asks gpg
_BRANCH: Final = re.compile(
    r"-[alrv]{1,4}|--(?:all|color|contains|ignore-case|list|merged|no-color|no-merged|remotes|show-current|verbose)"
    r"|--(?:contains|format|merged|no-contains|no-merged|points-at|sort)=.*"
)
_TAG: Final = re.compile(r"-l|-n\d*|--(?:list|ignore-case)|--(?:contains|format|merged|no-merged|points-at|sort)=.*")
_CONFIG: Final = frozenset({"--get", "--get-all", "--get-regexp", "--list", "-l"})
_CONFIG_PLACES: Final = frozenset({"--global", "--local", "--name-only", "--show-origin", "--show-scope", "--system"})


def is_read_only_git(words: list[str]) -> bool:
    """Whether `git` with these words only reads. A repository's configuration may still name programs for it."""
    rest = list(words)
    while rest[:1] in (["-C"], ["--no-pager"], ["--no-optional-locks"]):
        rest = rest[2 if rest[0] == "-C" else 1 :]
    if not rest or any(map(_acts, rest[1:])):
        return False
    name, options = rest[0], rest[1:]
    if name in _READS:
        return not (name == "grep" and any(re.match(r"-\w*O", each) for each in options))
    rule = _RULES.get(name)
    return rule is not None and rule(options)


def _acts(word: str) -> bool:
    option = word.partition("=")[0]
    is_option = option.startswith("--") and option != "--"
    return (is_option and any(each.startswith(option) for each in _ACTS)) or _SIGNATURE in word


def _branch(words: list[str]) -> bool:
    is_list = any(each in ("--list", "-l") for each in words)
    return all(_BRANCH.fullmatch(each) or (is_list and not each.startswith("-")) for each in words)


def _tag(words: list[str]) -> bool:
    is_list = any(each in ("--list", "-l") for each in words)
    return all(_TAG.fullmatch(each) or (is_list and not each.startswith("-")) for each in words)


def _config(words: list[str]) -> bool:
    reads = [each for each in words if each in _CONFIG]
    others = [each for each in words if each.startswith("-") and each not in _CONFIG | _CONFIG_PLACES]
    return bool(reads) and not others


_RULES: Final[dict[str, Callable[[list[str]], bool]]] = {
    "branch": _branch,
    "config": _config,
    "reflog": lambda words: words[:1] in ([], ["show"]),
    "remote": lambda words: words in ([], ["-v"]) or words[:1] == ["get-url"],
    "stash": lambda words: words[:1] in (["list"], ["show"]),
    "tag": _tag,
    "worktree": lambda words: words[:1] == ["list"],
}
