"""`halter config`, and the rest of the command line."""

from __future__ import annotations

import stat
import subprocess
import sys
import tomllib

from halter.cli.settings import Settings
from halter.testing import FakeProvider
from tests.support.cli_program import WAIT, Ended, Home, OnTerminal


def test_path(home: Home) -> None:
    """It prints where the file is, also when there is none."""
    assert home.run("config", "path") == Ended(0, f"{home.path}/config.toml\n", "")


def test_show(home: Home) -> None:
    """It prints every setting as it holds, as TOML, and where it was set."""
    (home.path / "config.toml").write_text('busy = "queue"\ninstructions = "Say \\"no\\",\\nand ü."\n')
    ended = home.run("config", "show", HALTER_FALLBACKS="a:b,c:d")
    shown = tomllib.loads(ended.out)
    assert list(shown) == list(Settings.__struct_fields__)
    assert (shown["busy"], shown["instructions"]) == ("queue", 'Say "no",\nand ü.')
    assert shown["fallbacks"] == ["a:b", "c:d"]
    assert f'busy = "queue"  # {home.path}/config.toml, line 1\n' in ended.out
    assert 'model = "openai:test"  # HALTER_MODEL\n' in ended.out
    assert "limits = { steps = 50 }  # default\n" in ended.out


def test_show_below_the_home(home: Home) -> None:
    """A file below the home is named as one writes it."""
    (home.path / "config.toml").write_text('busy = "queue"\n')
    shown = home.run("config", "show", HOME=str(home.path.parent)).out
    assert f'busy = "queue"  # ~/{home.path.name}/config.toml, line 1\n' in shown


def test_show_on_a_terminal(home: Home) -> None:
    """On a terminal what was set stands out from what was not."""
    with OnTerminal(home, "config", "show") as terminal:
        assert terminal.end() == 0
    assert b'\x1b[1mmodel = "openai:test"\x1b[0m  \x1b[2m# HALTER_MODEL\x1b[0m' in terminal.shown
    assert b"\x1b[2mnetwork = false\x1b[0m" in terminal.shown


def test_secrets_are_not_shown(home: Home) -> None:
    """Settings that are secrets, or a URL with a password, are hidden."""
    (home.path / "config.toml").write_text('transcriber = "http://me:pass@host/v1"\n[telegram]\ntoken = "1:secret"\n')
    shown = tomllib.loads(home.run("config", "show").out)
    assert (shown["transcriber"], shown["telegram"]["token"]) == ("[hidden]", "[hidden]")
    assert shown["telegram"]["server"] == "https://api.telegram.org"


def test_edit(home: Home) -> None:
    """A new file has every setting in it, as a comment; a mistake that the editor leaves is told with its line."""
    assert home.run("config", "edit", EDITOR="true").code == 0
    text = (home.path / "config.toml").read_text()
    uncommented = "\n".join(line.removeprefix("# ") for line in text.splitlines()[1:])
    assert list(tomllib.loads(uncommented)) == list(Settings.__struct_fields__)
    home.write_module("import sys\nopen(sys.argv[1], 'a').write('modle = 1\\n')\n")
    ended = home.run("config", "edit", VISUAL=f"{sys.executable} -m mytools")
    assert ended.code == 1
    assert f"line {len(text.splitlines()) + 1}: unknown setting 'modle'" in ended.err


def test_only_the_owner_may_read_the_file(home: Home) -> None:
    """It may contain the token of a bot; it was readable for all, and again after an editor had replaced it."""
    path = home.path / "config.toml"
    home.write_module("import os, sys\nos.unlink(sys.argv[1])\nopen(sys.argv[1], 'w').close()\n")
    for editor in ("true", f"{sys.executable} -m mytools", "false"):
        home.run("config", "edit", EDITOR=editor)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, editor


def test_an_editor_that_fails(home: Home) -> None:
    """An editor that fails, or is not there, is told."""
    assert home.run("config", "edit", EDITOR="false") == Ended(1, "", "halter: false exited with code 1\n")
    ended = home.run("config", "edit", EDITOR="/no/such/editor")
    assert ended.code == 1
    assert "No such file" in ended.err


def test_what_is_not_a_command(home: Home) -> None:
    """A command that does not exist is answered with those that do."""
    ended = home.run("seshuns")
    assert ended.code == 2
    assert "sessions" in ended.err


def test_a_reader_that_goes(home: Home, provider: FakeProvider) -> None:
    """When nobody reads the list, it ends without a word."""
    command = f'"{sys.executable}" -m halter config show; echo "code $?" >&2'
    with subprocess.Popen(
        ["sh", "-c", command], env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.close()
        assert program.stderr is not None
        said = program.stderr.read()
        program.wait(WAIT)
    assert said == b"code 141\n"
