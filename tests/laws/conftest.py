"""What the laws are given."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A place in memory, if there is one: kill -9 loses nothing there either, and no disk has to be waited for."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)
