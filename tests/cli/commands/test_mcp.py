"""`halter mcp`: servers in the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from halter.cli.settings import load
from tests.support.cli_program import Home


def test_servers_come_and_go(tmp_path: Path) -> None:
    """A command and an address are added, listed and removed; the rest of the file stays as it is."""
    home = Home(tmp_path)
    file = tmp_path / "config.toml"
    file.write_text('# mine\nbusy = "queue"\n\n[limits]\nsteps = 5  # few')
    assert home.run("mcp", "add", "files", "npx", "-y", "some server", "--flag").code == 0
    assert home.run("mcp", "add", "there", "https://example.org/mcp?key=secret").code == 0
    settings = load(env={"HALTER_HOME": str(tmp_path)}).settings
    assert settings.mcp["files"].command == ("npx", "-y", "some server", "--flag")
    assert settings.mcp["there"].url == "https://example.org/mcp?key=secret"
    listed = home.run("mcp", "list").out
    assert "npx -y 'some server' --flag" in listed
    assert "secret" not in listed
    assert home.run("mcp", "remove", "files").code == 0
    assert home.run("mcp", "remove", "there").code == 0
    assert file.read_text() == '# mine\nbusy = "queue"\n\n[limits]\nsteps = 5  # few\n'
    assert "No MCP servers" in home.run("mcp", "list").out


@pytest.mark.parametrize(
    "command", [("docker", "run", "-p", "8080:80", "image"), ("npx", "-y", "-p", "package", "server", "--print")]
)
def test_a_server_whose_command_has_our_options(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Its `-p` was taken for print mode: the command was sent to the model, and no server was added."""
    assert Home(tmp_path).run("mcp", "add", "web", *command).code == 0
    assert load(env={"HALTER_HOME": str(tmp_path)}).settings.mcp["web"].command == command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "x"), "usage: halter mcp add NAME URL"),
        (("add", "a b", "c"), "a name consists of 1 to 32 letters"),
        (("add", "known", "c"), "the table [mcp.known] already exists"),
        (("remove", "gone"), "there is no table [mcp.gone]"),
        (("remove", "known"), "remove mcp.known with `halter config edit`"),
        (("remove",), "usage: halter mcp remove NAME"),
    ],
)
def test_what_cannot_be_done(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """It is told in one line, and the file stays as it is; a table that is written otherwise is not touched."""
    text = 'mcp.known = { command = ["c"] }\n'
    (tmp_path / "config.toml").write_text(text)
    ended = Home(tmp_path).run("mcp", *arguments)
    assert (ended.code, said in ended.err, ended.err.count("\n")) == (1, True, 1), ended
    assert (tmp_path / "config.toml").read_text() == text
