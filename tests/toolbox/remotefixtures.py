"""A server, what a session keeps, and calls of the tools for that server: a plugin of their tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.tools.keep import Keeper
from tests.toolbox.remotekit import Work
from tests.toolbox.sshserver import SSHServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SSHServer]:
    with SSHServer(tmp_path) as server:
        yield server


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.close()


@pytest.fixture
def work(server: SSHServer, keeper: Keeper) -> Work:
    return Work(server, keeper)
