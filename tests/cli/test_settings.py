"""Settings: where they come from, which one holds, and what is said of those that cannot be used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from halter import Limits
from halter._data_paths import find_paths
from halter.cli.settings import RequestSettings, Settings, SettingsError, flag_for, load, table_flags
from halter.cli.settings_values import line_of
from halter.models import ModelSettings


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
    env = write(tmp_path, '# mine\nmodel = "a:1"\nbusy = "queue"\nvoice_timeout = 3\n') | {
        "HALTER_MODEL": "a:2",
        "HALTER_BUSY": "interrupt",
        "HALTER_FALLBACKS": "b:1, b:2",
        "HALTER_EXIT_TIMEOUT": "1.5",
        "HALTER_STORE": "",
    }
    configuration = load({"model": "a:3", "store": None}, env)
    settings = configuration.settings
    assert (settings.model, settings.busy, settings.voice_timeout) == ("a:3", "interrupt", 3)
    assert (settings.fallbacks, settings.exit_timeout) == (("b:1", "b:2"), 1.5)
    origins = configuration.origins
    assert origins["model"] == "--model"
    assert origins["busy"] == "HALTER_BUSY"
    assert origins["voice_timeout"] == f"{tmp_path}/config.toml, line 4"
    assert origins["store"] == "default"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model = "x"\nmodle = "y"\n', "line 2: unknown setting 'modle'; did you mean 'model'?"),
        ("\n\nlog-level = 3\n", "line 3: unknown setting 'log-level'; did you mean 'log_level'?"),
        ("[limits]\nsteps = 5\nstep = 3\n", "line 3: unknown setting 'limits.step'; did you mean 'steps'?"),
        ("[limits]\nqqq = 3\n", "line 2: unknown setting 'limits.qqq'. Known settings: steps, seconds, tokens"),
        ("limits = { steps = 5, qqq = 3 }\n", "line 1: unknown setting 'limits.qqq'"),
        ("limits.steps = 0\n", "line 1: limits: steps must be at least 1, not 0"),
        ("limits = 3\n", "line 1: limits: expected a table, got int"),
        (
            '[model_settings]\ntemperature = 1\nreasoning = "hard"\n',
            "line 3: model_settings.reasoning: invalid enum value 'hard'; must be one of 'minimal', 'low', 'medium'",
        ),
        ('[model_settings]\nseed = "x"\n', "line 2: model_settings.seed: expected int | null, got str"),
        ("[model_settings]\nstale_timeout = 0\n", "line 2: model_settings.stale_timeout: expected float > 0"),
        ("qqq = 1\n", "line 1: unknown setting 'qqq'. Known settings: model, fallbacks"),
        ("[modle]\nx = 1\n", "line 1: unknown setting 'modle'"),
        ('busy = "stear"\n', "line 1: busy: invalid enum value 'stear'; must be one of 'steer', 'interrupt', 'queue'"),
        ("# a\nvoice_timeout = 0\n", "line 2: voice_timeout: expected float > 0"),
        ('voice_timeout = "3"\n', "line 1: voice_timeout: expected float, got str"),
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
    with pytest.raises(SettingsError, match=r"HALTER_LIMITS_STEPS: limits\.steps: expected int"):
        load({}, env | {"HALTER_LIMITS_STEPS": "many"})
    with pytest.raises(SettingsError, match="--exit-timeout: exit_timeout: expected float > 0"):
        load({"exit_timeout": "0"}, env)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
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


def test_each_key_of_a_table_is_set_on_its_own(tmp_path: Path) -> None:
    """The file, the environment and flags may each set some keys of a table, and each key says where it came from."""
    text = '[limits]\nsteps = 3\nseconds = 60\n[model_settings]\nstop = ["END"]\nextra = { user = "me" }\nseed = 1\n'
    env = write(tmp_path, text) | {"HALTER_LIMITS_SECONDS": "5", "HALTER_MODEL_SETTINGS_STOP": "a, b"}
    configuration = load({"limits.tokens": "700", "model_settings.temperature": "0.5"}, env)
    assert configuration.settings.limits == Limits(steps=3, seconds=5.0, tokens=700)
    wanted = configuration.settings.model_settings.for_agent
    assert wanted == ModelSettings(stop=["a", "b"], extra={"user": "me"}, seed=1, temperature=0.5)
    assert configuration.origins["limits"] == f"{tmp_path}/config.toml, line 2, HALTER_LIMITS_SECONDS, --max-tokens"
    with pytest.raises(SettingsError, match=r"--max-tokens: limits.tokens: expected int \| null"):
        load({"limits.tokens": "many"}, env)


def test_every_limit_and_model_setting_has_an_option() -> None:
    """A field that is added to either class is an option, unless its value is a list or a table."""
    assert {path[1] for path in table_flags("limits")} == {each.name for each in dataclasses.fields(Limits)}
    assert [flag_for(path) for path in table_flags("limits")][:3] == ["--max-steps", "--max-seconds", "--max-tokens"]
    missing = set(RequestSettings.__struct_fields__) - {path[1] for path in table_flags("model_settings")}
    assert missing == {"stop", "extra"}


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ('a = """\n[t]\nk = 1\n"""\n[t]\nk = 2\n', ("t", "k"), 6),
        ('k = 1\n[t]\n"k" = [\n1,\n]\n', ("t", "k"), 3),
        ("[t.one]\nk = 1\n[t.two]\nk = 2\n", ("t", "two", "k"), 4),
        ("[t.one]\nk = 1\n[t.two]\nk = 2\n", ("t", "two"), 3),
        ("x = 1\n[t]\nq = { k = 1 }\n", ("t", "q", "k"), 3),
        ("[[t]]\nx = 1\n[[t]]\nk = 1\n", ("t", "k"), 4),
    ],
)
def test_the_line_of_a_key_in_a_table(text: str, path: tuple[str, ...], line: int) -> None:
    """The same key in another table, or in a text, is not taken for it."""
    assert line_of(path, text) == line
