"""What the tests of sessions are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.stores import MemoryStore, SQLiteStore, Store


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each kind of store: one whose commands run where they are given, and one whose run on a worker thread."""
    store: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db")
    yield store
    store.close()
