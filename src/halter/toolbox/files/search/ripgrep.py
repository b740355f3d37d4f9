"""Runs `rg`, which searches directories and bytes. It comes with the `ripgrep` package.

Only places are used: the number of a line, and where it begins. The time is linear in what is read, whatever the
expression, and a stop kills the process.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sysconfig
from typing import TYPE_CHECKING, Final

from halter.cancel.context import current_token
from halter.cancel.processes.run import run_process_blocking

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cancel.token import CancellationToken
    from halter.toolbox.files.search.search import Query

__all__ = ["files_below", "lines_below", "lines_in"]

_COMMON: Final = ("--no-config", "--no-messages", "--color=never")
_LINES: Final = ("--no-heading", "--line-number", "--byte-offset", "--max-columns=1", "--crlf", "--encoding=none")
# Read .gitignore files of the tree, and no other rules. Ordered, and therefore in one thread.
_TREE: Final = (
    "--hidden",
    "--no-require-git",
    "--no-ignore-dot",
    "--no-ignore-exclude",
    "--no-ignore-global",
    "--no-ignore-parent",
    "--glob=!.git",
    "--null",
    "--sort=path",
)
_LINE: Final = re.compile(rb"(?:(?:\./)?([^\0]+)\0)?(\d+):(\d+):")
_SIMPLE_GLOB: Final = re.compile(r"[\w.*?{},-]+")
_FAILED: Final = 2  # exit code; 1 is that nothing matches


def lines_in(data: bytes, query: Query) -> list[tuple[int, int]]:
    """The matching lines of a text: the number of each, from 1 on, and where it begins."""
    found: list[tuple[int, int]] = []

    def on_match(line: bytes) -> None:
        if place := _LINE.match(line):
            found.append((int(place[2]), int(place[3])))

    if data:
        limit = f"--max-count={query.limit}"
        _run([*_LINES, *_pattern(query), "--text", "--no-filename", limit, "-"], b"\n", on_match, data=data)
    return found


def lines_below(
    directory: str, query: Query, on_match: Callable[[str, int, int], object], token: CancellationToken
) -> bool:
    """Call *on_match* with the path, number and offset of each matching line; False if something could not be read.

    Cancelling *token* ends the search.
    """

    def on_line(line: bytes) -> None:
        place = _LINE.match(line)
        if place is not None and place[1] is not None:  # else it says something about a binary file
            on_match(os.fsdecode(place[1]), int(place[2]), int(place[3]))

    options = [*_TREE, *_LINES, "--with-filename", *_pattern(query), *_type(query.glob), "."]
    return _run(options, b"\n", on_line, directory, token)


def files_below(directory: str, on_match: Callable[[str], object]) -> bool:
    """Call *on_match* with the path of each file that is not ignored; False if something could not be read."""

    def on_path(path: bytes) -> None:
        on_match(os.fsdecode(path.removeprefix(b"./")))

    return _run([*_TREE, "--files", "."], b"\0", on_path, directory)


def _pattern(query: Query) -> list[str]:
    return [*(["--ignore-case"] if query.ignore_case else []), f"--regexp={query.pattern}"]


def _type(glob: str | None) -> list[str]:
    """Options that make `rg` skip files by name, to be faster; not --glob, which would include ignored files."""
    if glob is None or _SIMPLE_GLOB.fullmatch(glob) is None:
        return []
    return [f"--type-add=wanted:{glob}", "--type=wanted"]


def _run(
    options: list[str],
    separator: bytes,
    on_match: Callable[[bytes], object],
    directory: str | None = None,
    token: CancellationToken | None = None,
    data: bytes | None = None,
) -> bool:
    """Run it to its end or to the stop; False if it could not read everything."""
    rest = b""
    token = current_token() if token is None else token

    def on_output(piece: bytes) -> None:
        nonlocal rest
        *records, rest = (rest + piece).split(separator)
        for record in records:
            if token.is_cancelled:
                return
            on_match(record)

    result = run_process_blocking(
        [_program(), *_COMMON, *options], cwd=directory, token=token, input=data, on_output=on_output, max_output=10_000
    )
    if result.returncode is None or result.returncode < _FAILED:
        return True
    if result.stderr:
        raise ValueError(_problem(result.stderr))
    return False


def _problem(stderr: bytes) -> str:
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[-1])
    return f"not a valid regular expression: {reason}. To search for a literal text, escape special characters with \\"


@functools.cache
def _program() -> str:
    """The path of `rg`: that of the package, or else another."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    scripts = os.pathsep.join(sysconfig.get_path("scripts", scheme) for scheme in schemes)
    found = shutil.which("rg", path=scripts) or shutil.which("rg")
    if found is None:
        raise FileNotFoundError("searching files needs ripgrep: pip install ripgrep")
    return found
