"""A server, what a session keeps, and calls of the tools for that server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.tools.resources import SessionResources
from tests.support.remote_calls import Work
from tests.support.ssh_server import SSHServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SSHServer]:
    with SSHServer(tmp_path) as server:
        yield server


@pytest.fixture
def resources() -> Iterator[SessionResources]:
    resources = SessionResources()
    yield resources
    resources.close()


@pytest.fixture
def work(server: SSHServer, resources: SessionResources) -> Work:
    return Work(server, resources)
