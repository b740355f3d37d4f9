"""Settings: where they come from, which one holds, and what is said of those that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from halter._data_paths import find_paths
from halter.cli.settings import Settings, SettingsError, load


def write(home: Path, text: str) -> dict[str, str]:
    """Write the file; gives the environment in which it is found."""
    (home / "config.toml").write_text(text)
    return {"HALTER_HOME": str(home)}


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    """Without a file, variables and flags, all settings are the defaults, and nothing is made on the disk."""
    configuration = load({}, {"HALTER_HOME": str(tmp_path / "none")})
    assert configuration.settings == Settings()
    assert set(configuration.origins.values()) == {"default"}
    assert not (tmp_path / "none").exists()


def test_places_by_xdg_and_by_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """HALTER_HOME moves the file and the data; else they are where the system keeps such files."""
    assert find_paths({"HALTER_HOME": "/h"}) == (Path("/h/config.toml"), Path("/h"))
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert find_paths({}) == (Path("/c/halter/config.toml"), Path.home() / ".local/share/halter")


def test_flags_are_above_the_environment_and_that_above_the_file(tmp_path: Path) -> None:
    """The file sets, the environment overrides it, and a flag overrides both; each says where it came from."""
    env = write(tmp_path, '# mine\nmodel = "a:1"\nbusy = "queue"\nmax_steps = 3\n') | {
        "HALTER_MODEL": "a:2",
        "HALTER_BUSY": "interrupt",
        "HALTER_FALLBACKS": "b:1, b:2",
        "HALTER_EXIT_TIMEOUT": "1.5",
        "HALTER_STORE": "",
    }
    configuration = load({"model": "a:3", "store": None}, env)
    settings = configuration.settings
    assert (settings.model, settings.busy, settings.max_steps) == ("a:3", "interrupt", 3)
    assert (settings.fallbacks, settings.exit_timeout) == (("b:1", "b:2"), 1.5)
    origins = configuration.origins
    assert origins["model"] == "--model"
    assert origins["busy"] == "HALTER_BUSY"
    assert origins["max_steps"] == f"{tmp_path}/config.toml, line 4"
    assert origins["store"] == "default"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model = "x"\nmodle = "y"\n', "line 2: unknown setting 'modle'; did you mean 'model'?"),
        ("\n\nmax-steps = 3\n", "line 3: unknown setting 'max-steps'; did you mean 'max_steps'?"),
        ("qqq = 1\n", "line 1: unknown setting 'qqq'. Known settings: model, fallbacks"),
        ("[modle]\nx = 1\n", "line 1: unknown setting 'modle'"),
        ('busy = "stear"\n', "line 1: busy: invalid enum value 'stear'; must be one of 'steer', 'interrupt', 'queue'"),
        ("# a\nmax_steps = 0\n", "line 2: max_steps: expected int >= 1"),
        ('max_steps = "3"\n', "line 1: max_steps: expected int, got str"),
        ('fallbacks = ["a", 2]\n', "line 1: fallbacks[1]: expected str, got int"),
        ('instructions = """\nbusy = 1\n"""\nbusy = 2\n', "line 4: busy: expected str, got int"),
        ("model = \n", "line 1, column 9: invalid TOML: Invalid value"),
        ('model = "x"\nmodel = "y"\n', "line 2"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    """Whatever is wrong in the file, the error names the file, the line, and what would be right."""
    with pytest.raises(SettingsError) as capture_output:
        load({}, write(tmp_path, text))
    assert str(capture_output.value).startswith(f"{tmp_path}/config.toml, line ")
    assert said in str(capture_output.value)


def test_a_mistake_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    """A variable that cannot be understood is named, as is a flag."""
    env = {"HALTER_HOME": str(tmp_path)}
    with pytest.raises(SettingsError, match="HALTER_MAX_STEPS: max_steps: expected int"):
        load({}, env | {"HALTER_MAX_STEPS": "many"})
    with pytest.raises(SettingsError, match="--exit-timeout: exit_timeout: expected float > 0"):
        load({"exit_timeout": "0"}, env)


def test_a_file_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    """A directory in the place of the file, or bytes that are no text, are said and not passed over."""
    (tmp_path / "config.toml").write_bytes(b"model = '\xff'")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load({}, {"HALTER_HOME": str(tmp_path)})
    (tmp_path / "config.toml").unlink()
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(SettingsError, match=r"cannot read .*: Is a directory"):
        load({}, {"HALTER_HOME": str(tmp_path)})


def test_the_store_is_where_it_was_set_or_with_the_data(tmp_path: Path) -> None:
    """A path that was set is taken as it is; the default is made where the data is, for this user alone."""
    assert load({"store": "/x/y.db"}, {"HALTER_HOME": str(tmp_path)}).store == Path("/x/y.db")
    home = tmp_path / "new" / "home"
    configuration = load({}, {"HALTER_HOME": str(home)})
    assert configuration.store == home / "sessions.db"
    assert not home.exists()
    assert configuration.make_store() == configuration.store
    assert home.stat().st_mode & 0o777 == 0o700
