"""For all tests of the gateway."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _times_as_they_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """python-telegram-bot warns of a change, and warnings are errors here; this is how it wants to be told of it."""
    monkeypatch.setenv("PTB_TIMEDELTA", "true")
