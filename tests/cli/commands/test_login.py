"""`halter login`: a key is asked for without echo, checked and stored."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from halter.testing import FakeProvider
from tests.support.cli_program import Home, OnTerminal

MODELS = {"/v1/models": {"data": [{"id": "llama-small"}, {"id": "llama-large"}]}}


def test_a_key_is_typed_checked_and_stored(tmp_path: Path) -> None:
    """The key is not shown, one request checks it, the file is its owner's alone, and the next run uses it."""
    with FakeProvider(pages=MODELS) as provider:
        home = Home(tmp_path)
        home.env |= {"OPENAI_BASE_URL": provider.openai_url, "OLLAMA_HOST": "127.0.0.1:1"}
        with OnTerminal(home, "login", "openai") as program:
            program.read_until(b"Key for OpenAI (it is not shown): ")
            program.type(b"sk-very-secret\n")
            assert program.end() == 0
        assert b"OpenAI accepts this key" in program.shown
        assert b"sk-very-secret" not in program.shown
        file = tmp_path / "provider-keys.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert json.loads(file.read_text()) == {"OPENAI_API_KEY": "sk-very-secret"}
        assert provider.pages_read == ["/v1/models"]
        assert home.run("-p", "Say ok").out == "ok\n"
        assert provider.requests[-1].headers["authorization"] == "Bearer sk-very-secret"
        assert "key from `halter login`" in home.run("doctor").out


def test_other_providers_stay(tmp_path: Path) -> None:
    """A second key does not replace the first, and models to choose from are named."""
    with FakeProvider(pages=MODELS) as provider:
        home = Home(tmp_path)
        home.env |= {"OPENAI_BASE_URL": provider.openai_url, "GROQ_BASE_URL": provider.openai_url}
        assert home.run("login", "openai", stdin="sk-one\n").code == 0
        ended = home.run("login", "groq", stdin="gsk-two\n")
        assert ended.code == 0
        assert "--model groq:NAME, such as llama-small, llama-large" in ended.out
        stored = json.loads((tmp_path / "provider-keys.json").read_text())
        assert stored == {"OPENAI_API_KEY": "sk-one", "GROQ_API_KEY": "gsk-two"}


def test_the_names_of_models_are_text(tmp_path: Path) -> None:
    """A provider could write control sequences to the terminal by the names of its models."""
    with FakeProvider(pages={"/v1/models": {"data": [{"id": "small\x1b[2J\nlarge"}]}}) as provider:
        home = Home(tmp_path)
        home.env["GROQ_BASE_URL"] = provider.openai_url
        ended = home.run("login", "groq", stdin="gsk-key\n")
    assert "such as small [2J large;" in ended.out


def test_a_key_that_is_refused_is_not_stored(tmp_path: Path, provider: FakeProvider) -> None:
    """What the provider says is told without the key, and nothing is written."""
    home = Home(tmp_path)
    home.env["OPENAI_BASE_URL"] = provider.openai_url  # it has no such page
    ended = home.run("login", "openai", stdin="sk-wrong-secret\n")
    assert ended.code == 1
    assert "nothing was stored" in ended.err
    assert "sk-wrong-secret" not in ended.err
    assert not (tmp_path / "provider-keys.json").exists()


def test_what_cannot_be_logged_in_to(tmp_path: Path) -> None:
    """A provider that does not exist, one that needs no key, no key, and no address: each is told in one line."""
    home = Home(tmp_path)
    told = {
        ("login", "opnai"): "unknown provider 'opnai'; choose one of openai,",
        ("login", "ollama"): "Ollama needs no key",
        ("login", "openai"): "no key was given; nothing was stored",
        ("login", "azure"): "set AZURE_OPENAI_ENDPOINT first",
    }
    for arguments, said in told.items():
        ended = home.run(*arguments, stdin="\n")
        assert (ended.code, said in ended.err) == (1, True), ended
        assert ended.err.count("\n") == 1


def test_the_environment_comes_first(tmp_path: Path, provider: FakeProvider) -> None:
    """A key in the environment is used instead of the stored one; a damaged file stops nothing."""
    home = Home(tmp_path, provider)
    file = tmp_path / "provider-keys.json"
    for text in ('{"OPENAI_API_KEY": "sk-stored"}', "damaged"):
        file.write_text(text)
        assert home.run("-p", "Say ok").out == "ok\n"
        assert provider.requests[-1].headers["authorization"] == "Bearer any"
