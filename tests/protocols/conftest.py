"""A provider, a home that leads to it, and a folder to work in."""

from __future__ import annotations

from pathlib import Path

import pytest

from halter.testing import FakeProvider
from tests.cli.conftest import provider as provider
from tests.support.cli_program import Home


@pytest.fixture
def home(tmp_path: Path, provider: FakeProvider) -> Home:
    folder = tmp_path / "home"
    folder.mkdir()
    return Home(folder, provider)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder
