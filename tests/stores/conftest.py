"""What the tests of stores are given."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nats_server import NATSServer


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users can enter. Not pytest's: each pytest that starts closes the folder of all to others."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NATSServer]:
    """A NATS server with JetStream, for all tests that bring their own prefix."""
    with tempfile.TemporaryDirectory() as folder, NATSServer(Path(folder)) as server:
        yield server
