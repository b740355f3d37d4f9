"""`halter doctor`: what it finds, what it says, and the code that scripts see."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from halter.cli.commands.doctor import findings
from halter.testing import FakeProvider, answer, status
from tests.support.cli_program import Home, OnTerminal
from tests.support.processes import run_python
from tests.support.without_capabilities import without_capabilities

MARKS = {"✓ ": "ok", "! ": "warn", "✗ ": "fail"}


def lines(text: str) -> dict[str, tuple[str, str]]:
    """State and text of each finding, by what it is about."""
    found = {}
    for line in text.splitlines():
        if line[:2] in MARKS:
            what, rest = line[2:].split(None, 1)
            found[what] = (MARKS[line[:2]], rest)
    return found


def test_all_is_well(home: Home, provider: FakeProvider) -> None:
    """With a model and a key all that is needed is there; nothing is made, nothing is asked, and the code is 0."""
    ended = home.run("doctor")
    assert (ended.code, ended.err) == (0, "")
    found = lines(ended.out)
    assert {what: state for what, (state, _) in found.items() if state == "fail"} == {}
    assert found["model"] == ("ok", "openai:test (set by HALTER_MODEL)")
    assert found["store"][0] == "ok"
    assert "\x1b" not in ended.out
    assert ended.out.splitlines()[-1].startswith("Ready")
    assert list(home.path.iterdir()) == []
    assert provider.requests == []


def test_a_key_that_is_not_set(tmp_path: Path) -> None:
    """A model without its key is what fails, and the variable is named."""
    ended = Home(tmp_path).run("doctor", "--model", "anthropic:x")
    assert ended.code == 1
    assert lines(ended.out)["model"] == ("fail", "anthropic:x (set by --model); ANTHROPIC_API_KEY is not set")
    assert "`halter login anthropic`" in ended.out
    assert "set ANTHROPIC_API_KEY" in ended.out


def test_a_checklist(home: Home) -> None:
    """Each problem has a command below it that fixes it, and the last line counts; the code is 1 until none is left."""
    home.write_module("1 / 0\n")
    (home.path / "config.toml").write_text("""
        fallbacks = ["nobody:x", "anthropic:y"]
        mcp.gone.command = ["/nonexistent"]
        agents.one.model = "none:x"
    """)
    (home.path / "text.db").write_text("no database " * 100)
    ended = home.run("doctor", "--store", str(home.path / "text.db"), HALTER_TOOLS="mytools:f")
    rows = ended.out.splitlines()
    problems = [number for number, line in enumerate(rows) if line.startswith("✗")]
    about = [rows[number].split()[1] for number in problems]
    assert about == ["model", "model", "tools", "mcp", "agents", "store"]
    for number in problems:
        assert rows[number + 1].strip().startswith("→ "), ended.out
    assert "`halter login anthropic`" in ended.out
    assert "`halter mcp remove NAME`" in ended.out
    assert rows[-1].startswith("6 problems to fix")
    assert ended.code == 1


def test_an_old_encoding(home: Home) -> None:
    """Where the output is not UTF-8, the marks are words."""
    ended = home.run("doctor", PYTHONIOENCODING="ascii")
    assert (ended.code, ended.err) == (0, "")
    assert "ok   model" in ended.out
    assert "Ready" in ended.out.splitlines()[-1]


def test_a_server_of_ones_own_needs_no_key(home: Home, provider: FakeProvider) -> None:
    """Where another server is named, a key that is not set is only a warning."""
    ended = home.run("doctor", OPENAI_API_KEY="")
    assert ended.code == 0
    assert lines(ended.out)["model"][0] == "warn"


@pytest.mark.parametrize(("name", "state"), [("nobody:x", "fail"), ("local", "warn"), ("ollama:none", "warn")])
def test_other_models(tmp_path: Path, name: str, state: str) -> None:
    """A name that is no model's fails; the embedded model, and one that Ollama does not have, are warned of."""
    ended = Home(tmp_path).run("doctor", "--model", name, OLLAMA_HOST="127.0.0.1:9")
    assert lines(ended.out)["model"][0] == state
    assert ended.code == (state == "fail")


def test_online(home: Home, provider: FakeProvider) -> None:
    """With --online the provider is asked once, and what it says is told."""
    provider.script(answer("ok"), status(401, "no such key"))
    ended = home.run("doctor", "--online")
    assert (ended.code, lines(ended.out)["online"]) == (0, ("ok", "openai:test answers"))
    ended = home.run("doctor", "--online")
    assert (ended.code, lines(ended.out)["online"][0]) == (1, "fail")
    assert "no such key" in ended.out


def test_settings_that_cannot_be_used(home: Home) -> None:
    """A mistake in the settings is told with its line, and what does not depend on them is looked at all the same."""
    (home.path / "config.toml").write_text("\nmodle = 1\n")
    ended = home.run("doctor")
    assert ended.code == 1
    found = lines(ended.out)
    assert found["settings"][0] == "fail"
    assert "config.toml, line 2" in found["settings"][1]
    assert "chromium" in found
    assert "model" not in found


def test_stores(home: Home, provider: FakeProvider) -> None:
    """A store is opened and counted; one that is none fails, as does a place where none can be."""
    home.run("-p", "Hi.")
    assert lines(home.run("doctor").out)["store"] == ("ok", f"{home.path}/sessions.db, 1 sessions")
    (home.path / "text.db").write_text("no database " * 100)
    ended = home.run("doctor", "--store", str(home.path / "text.db"))
    assert (ended.code, lines(ended.out)["store"][0]) == (1, "fail")
    assert "--store PATH" in ended.out


def test_a_store_that_cannot_be_written(home: Home, provider: FakeProvider) -> None:
    """A store that can be read only fails, and so does a directory that cannot have one."""
    home.run("-p", "Hi.")
    home.path.chmod(0o500)
    try:
        for options in [], ["--store", str(home.path / "new.db")]:
            ended = without_capabilities(lambda options=options: home.run("doctor", *options))
            assert lines(ended.out)["store"][0] == "fail"
    finally:
        home.path.chmod(0o700)


def test_tools(home: Home) -> None:
    """Tools are loaded to see whether they can be; one that is not there, or whose module fails, fails."""
    home.write_module("def f() -> None:\n    pass\nboth = [f, f]\n")
    assert lines(home.run("doctor", HALTER_TOOLS="mytools:both").out)["tools"] == ("ok", "2: f, f")
    assert lines(home.run("doctor", HALTER_TOOLS="mytools:none").out)["tools"][0] == "fail"
    home.write_module("1 / 0\n")
    found = lines(home.run("doctor", HALTER_TOOLS="mytools:f").out)["tools"]
    assert found == ("fail", "mytools:f: ZeroDivisionError: division by zero")


def test_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any model, browser or extra it is told how to get each; only the model is needed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    for name in list(os.environ):
        if name.startswith(("OPENAI_", "ANTHROPIC_", "HALTER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HALTER_HOME", str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {finding.what: finding for finding in findings({})}
    assert [what for what, finding in found.items() if finding.state == "fail"] == ["model"]
    assert (found["local"].state, found["chromium"].state) == ("warn", "warn")
    assert "fetch-model" in found["local"].fix
    found = {finding.what: finding for finding in findings({"model": "local"})}
    assert "not installed" in found["model"].text


def test_fallbacks(home: Home) -> None:
    """A fallback is looked at as the model is."""
    ended = home.run("doctor", HALTER_FALLBACKS="anthropic:x")
    assert ended.code == 1
    assert "anthropic:x (a fallback); ANTHROPIC_API_KEY is not set" in ended.out


def test_terminals(home: Home) -> None:
    """On a terminal it has colours and says which one it is; one that can do nothing is warned of."""
    with OnTerminal(home, "doctor") as terminal:
        assert terminal.end() == 0
    assert "\x1b[32m✓".encode() in terminal.shown
    assert b"xterm, " in terminal.shown
    with OnTerminal(home, "doctor", TERM="dumb", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    assert b"! terminal" in terminal.shown


def test_importing_halter_does_not_import_the_command_line() -> None:
    """The command line is for those who type it."""
    code = (
        "import sys, halter\nfrom halter import Session\nprint([name for name in sys.modules if 'halter.cli' in name])"
    )
    assert run_python(code).stdout.strip() == "[]"


def test_instructions_that_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AGENTS.md and skills are named, so that one sees what the model is told; what cannot be read is a warning."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALTER_HOME", str(tmp_path / "data"))
    skill = tmp_path / ".agents/skills/pdf"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\ndescription: Read PDF files.\n---\n")
    (tmp_path / "CLAUDE.md").write_text("Use tabs.")
    [found] = [each for each in findings({}) if each.what == "prompt"]
    assert (found.state, found.text) == ("ok", f"{tmp_path}/CLAUDE.md, {skill}")
    (tmp_path / "AGENTS.md").write_bytes(b"\xff")
    [found] = [each for each in findings({}) if each.what == "prompt"]
    assert (found.state, found.fix) == ("warn", f"{tmp_path}/AGENTS.md is left out: it is not UTF-8")


def test_a_path_with_control_characters(home: Home, tmp_path: Path) -> None:
    """The folder of a cloned repository could write control sequences to the terminal of who ran `halter doctor` in it:
    what is wrong with its files was printed as it is.
    """
    folder = tmp_path / "a\x1b]0;title\x07b"
    folder.mkdir()
    (folder / "AGENTS.md").write_bytes(b"\xff")
    home.launcher = ["env", "-C", str(folder)]
    ended = home.run("doctor")
    assert "is left out: it is not UTF-8" in " ".join(ended.out.split())
    assert "\x1b" not in ended.out
