"""A server, what a session keeps, and calls of the tools for that server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.toolbox.remote import ssh_process
from halter.toolbox.remote.ssh import SSHMachine
from halter.tools.resources import SessionResources
from tests.support.remote_calls import Work, machine_of
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


@pytest.fixture
def beating(server: SSHServer, monkeypatch: pytest.MonkeyPatch) -> SSHMachine:
    """A machine with fast heartbeats, which bears a silence of 3 seconds: those of a busy machine may be late."""
    monkeypatch.setattr(ssh_process, "_MAX_MISSED", 14)
    machine = machine_of(server, keepalive=0.25)
    machine._options["keepalive_count_max"] = 14  # SSH has heartbeats of its own
    return machine
