"""What the tests of a cluster are given."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nats_server import NATSServer


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NATSServer]:
    """A NATS server with JetStream, for all tests that bring their own prefix."""
    with tempfile.TemporaryDirectory() as folder, NATSServer(Path(folder)) as server:
        yield server


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """A prefix that no other test uses."""
    return tmp_path.name
