"""Every command of `halter` in the documentation is one that there is, and the shell blocks that can run are run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from halter.cli.main import _parser, _print_parser
from halter.testing import FakeProvider, answer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
SHELL = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(halter(?: [^`]+)?)`")


class Command(NamedTuple):
    """A command line that begins with `halter`, and the page that has it."""

    page: Path
    words: tuple[str, ...]  # without "halter"

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: halter {' '.join(self.words)}"


def commands_of(page: Path) -> list[Command]:
    """The commands in a page's shell blocks and in its text. "a|b" stands for either, "[c]" for an optional word."""
    text = page.read_text("utf-8")
    lines = [line.removeprefix("$ ") for block in SHELL.findall(text) for line in block.splitlines()]
    lines += INLINE.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    found = []
    for line in lines:
        for part in re.split(r" \\?\| | && ", line):  # a pipe; in a table it is escaped
            words = shlex.split(re.sub(r"^(?:\w+=\S+ )+", "", part), comments=True)
            if words[:1] == ["halter"]:
                plain = [word.strip("[]").split("|")[0].rstrip("\\") for word in words[1:]]
                found.append(Command(page, tuple(plain)))
    return found


COMMANDS = sorted({command for page in PAGES for command in commands_of(page)})


def test_there_are_commands_in_the_documentation() -> None:
    """The README's are found, those in text and in tables too: else nothing is tested here."""
    found = {" ".join(command.words) for command in COMMANDS if command.page.name == "README.md"}
    assert {"", "serve", "why", "fetch-model", "-p text"} <= found


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_each_command_can_be_parsed(command: Command) -> None:
    """A command that was renamed, or an option that is gone, is found here."""
    is_print = {"-p", "--print"} & set(command.words)
    (_print_parser() if is_print else _parser()).parse_args(command.words)


def test_a_command_that_does_not_exist_is_found(tmp_path: Path) -> None:
    """The check can fail: an unknown command and an unknown option are refused, in a block and in the text."""
    page = tmp_path / "page.md"
    page.write_text("Use `halter fly NOW`.\n\n```sh\nTOKEN=x halter serve --wings | cat\n```\n")
    commands = commands_of(page)
    assert [command.words for command in commands] == [("serve", "--wings"), ("fly", "NOW")]
    for command in commands:
        with pytest.raises(SystemExit):
            _parser().parse_args(command.words)


def test_the_block_about_print_mode_runs(tmp_path: Path) -> None:
    """Each line of the block answers, with a provider that is not far away: also from a pipe, in a session, as JSON."""
    [block] = SHELL.findall((ROOT / "docs/reference/command-line.md").read_text("utf-8"))
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    with FakeProvider(default=answer("Fine.")) as provider:
        environment = os.environ | {
            "HALTER_HOME": str(tmp_path / "home"),
            "HALTER_MODEL": "openai:gpt-5",
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": provider.openai_url,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        lines = [line for line in block.splitlines() if line]
        for line in lines:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, (line, done.stderr)
            assert "Fine." in done.stdout, (line, done.stdout)
    assert len(provider.requests) == len(lines)
