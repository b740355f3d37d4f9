"""Models whose price is known, and the package with the prices while it is slow to load."""

from __future__ import annotations

import importlib.abc
import sys
import threading
from typing import TYPE_CHECKING, Any

from halter.models import prices
from halter.testing import ScriptedModel
from tests.support.sessions import AT_MOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

PACKAGE = "genai_prices"


class PublicModel(ScriptedModel):
    """A scripted model that says it is one of OpenAI's."""

    base_url = "https://api.openai.com/v1"

    def __init__(self, *script: Any, name: str = "gpt-4o") -> None:
        super().__init__(*script, name=name)


class _SlowImport(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == PACKAGE:
            self.begun.set()
            self.may_end.wait(AT_MOST)


def slow_import(monkeypatch: pytest.MonkeyPatch) -> Iterator[_SlowImport]:
    """Forget the package, and have its next import wait."""
    finder = _SlowImport()
    for name in [each for each in sys.modules if each.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.setattr(prices, "_listed", prices._ListedPrices())
    yield finder
    finder.may_end.set()
    assert prices._listed.loaded.wait(AT_MOST) or not finder.begun.is_set()


def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the package's import fail, as if it were not installed."""
    monkeypatch.setitem(sys.modules, PACKAGE, None)  # this is how Python marks it
    monkeypatch.setattr(prices, "_listed", prices._ListedPrices())
