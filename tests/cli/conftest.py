"""A provider, and a home that leads to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.testing import FakeProvider
from tests.support.cli_program import Home


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider() as provider:
        yield provider


@pytest.fixture
def home(tmp_path: Path, provider: FakeProvider) -> Home:
    return Home(tmp_path, provider)
