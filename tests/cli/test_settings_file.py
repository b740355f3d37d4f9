"""The settings file, changed by the program: only the one setting, and safely."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from halter.cli.settings import SettingsError, load
from halter.cli.settings_file import add_prefixes

PUSH = ("git", "push")


@pytest.mark.parametrize(
    "before",
    [
        "",
        "# mine\nbusy = 'queue'  # so\n",
        "busy = 'queue'",
        "[telegram]\ntoken = 'x'\n",
        "approve_prefixes = ['npm test']\n[telegram]\ntoken = 'x'\n",
        "approve_prefixes = [\n  'npm test',  # tests\n]\nbusy = 'queue'\n",
        "approve_prefixes = []",
    ],
)
def test_a_prefix_is_added(tmp_path: Path, before: str) -> None:
    """Everything else stays as it was; only the owner may read the file; to add it again changes nothing."""
    path = tmp_path / "home" / "config.toml"
    if before:
        path.parent.mkdir()
        path.write_text(before)
    add_prefixes(path, [PUSH])
    old, new = tomllib.loads(before), tomllib.loads(path.read_text())
    assert new == old | {"approve_prefixes": [*old.get("approve_prefixes", []), "git push"]}
    assert ("# mine" in path.read_text()) == ("# mine" in before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    seen = path.read_text()
    add_prefixes(path, [PUSH])
    assert path.read_text() == seen
    configuration = load(env={"HALTER_HOME": str(path.parent)})
    assert "git push" in configuration.settings.approve_prefixes


def test_a_file_that_is_no_toml_is_left_alone(tmp_path: Path) -> None:
    """The error says what to add by hand."""
    path = tmp_path / "config.toml"
    path.write_text("busy = \n")
    with pytest.raises(SettingsError, match="add git push to approve_prefixes"):
        add_prefixes(path, [PUSH])
    assert path.read_text() == "busy = \n"


def test_a_prefix_that_allows_everything_is_refused(tmp_path: Path) -> None:
    """By the program, and when it was written by hand, with its place."""
    path = tmp_path / "config.toml"
    with pytest.raises(ValueError, match="bash runs whatever it is given"):
        add_prefixes(path, [("bash",)])
    path.write_text('busy = "queue"\napprove_prefixes = ["sudo"]\n')
    with pytest.raises(SettingsError, match=r"line 2: approve_prefixes: .*'sudo' cannot be allowed: sudo runs"):
        load(env={"HALTER_HOME": str(tmp_path)})
