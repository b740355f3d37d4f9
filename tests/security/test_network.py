"""The network of commands in the sandbox: none, unless the settings or an approval give it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halter import Agent, toolbox
from halter.models import ToolCall
from halter.testing import ScriptedModel
from halter.toolbox.sandbox import sandbox as module
from halter.toolbox.sandbox.namespaces import NamespacesUnavailable
from halter.toolbox.sandbox.sandbox import Sandbox, SandboxClosed
from halter.tools.approval import ApprovalRequest


@pytest.fixture
def server() -> Iterator[str]:
    """A command that connects to a server on this machine, which is outside of the sandbox."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        yield f"{sys.executable} -c \"import socket; socket.create_connection(('127.0.0.1', {port}))\" && echo reached"


class Asked:
    """Answers approvals for the network, keeps the questions, and allows everything else."""

    def __init__(self, *, answer: bool) -> None:
        self.reasons: list[str] = []
        self._answer = answer

    def __call__(self, request: ApprovalRequest) -> bool:
        if "network" not in request.reason:
            return True
        self.reasons.append(request.reason)
        return self._answer


def run(tools: list[Any], approve: Any, **arguments: object) -> str:
    """The result of one call of `terminal`."""
    model = ScriptedModel([ToolCall("1", "terminal", json.dumps(arguments))], "done")
    with Agent(model, tools, approve=approve).session() as session:
        outcome = session.run("go").outcomes[0]
    return f"{outcome.status}: {outcome.content}"


def test_a_command_without_network_is_told_how_to_ask(tmp_path: Path, server: str) -> None:
    """A command has no network, nobody is asked for it, and its result names the argument that asks."""
    asked = Asked(answer=True)
    result = run(toolbox.default(tmp_path), asked, command=server)
    assert "reached" not in result
    assert "call terminal again with the argument network" in result
    assert asked.reasons == []


def test_one_command_has_the_network_by_an_approval(tmp_path: Path, server: str) -> None:
    """The person is told what it is for, and a yes holds for that command alone."""
    asked = Asked(answer=True)
    arguments = [{"command": server, "network": "fetch the list"}, {"command": server}]
    model = ScriptedModel(*([ToolCall(str(at), "terminal", json.dumps(each))] for at, each in enumerate(arguments)), "")
    with Agent(model, toolbox.default(tmp_path), approve=asked).session() as session:
        first, second = [str(each.content) for each in session.run("go").outcomes]
    assert first == "reached\n[exit code 0]"
    assert "reached" not in second
    [reason] = asked.reasons
    assert reason.endswith("; it asks for the network: 'fetch the list'")


@pytest.mark.parametrize("approve", [None, "deny", Asked(answer=False)])
def test_without_a_yes_the_command_does_not_run(tmp_path: Path, server: str, approve: Any) -> None:
    """If nobody can be asked, or the answer is no, the command is not started."""
    result = run(toolbox.default(tmp_path), approve, command=f"touch ran; {server}", network="look")
    assert result.startswith("denied")
    assert not (tmp_path / "ran").exists()


def test_both_reasons_are_in_one_question(tmp_path: Path) -> None:
    """A destructive command that asks for the network is one question, which tells both."""
    asked = Asked(answer=False)
    run(toolbox.default(tmp_path), asked, command="rm -rf x", network="a\nb" * 200)
    [reason] = asked.reasons
    assert "rm" in reason
    assert "it asks for the network: 'a ba b" in reason
    assert len(reason) < 400
    assert "\n" not in reason


@pytest.mark.parametrize("has", ["network", "no sandbox"])
def test_nobody_is_asked_for_a_network_that_is_there(tmp_path: Path, server: str, has: str) -> None:
    """With the network for all commands, or without a sandbox, the argument changes nothing."""
    tools = toolbox.default(tmp_path, network=True) if has == "network" else toolbox.default(tmp_path, "off")
    asked = Asked(answer=False)
    assert "reached" in run(tools, asked, command=server)
    assert "reached" in run(tools, asked, command=server, network="look")
    assert asked.reasons == []


def test_with_the_network_files_are_restricted_as_before(tmp_path: Path, server: str) -> None:
    """The network widens nothing else: temporary files are those of the session, and the rest is read-only."""
    (tmp_path / "work").mkdir()
    command = f"{server}; echo $TMPDIR; echo x > $TMPDIR/x && echo x > ../outside"
    result = run(toolbox.default(tmp_path / "work"), Asked(answer=True), command=command, network="look")
    assert "reached" in result
    assert "it lets commands write only" in result
    assert "the argument network" not in result
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("means", ["namespaces", "landlock"])
def test_the_sandbox_with_network_shares_temporary_files(
    tmp_path: Path, server: str, means: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have one temporary folder, also where there are no namespaces, and end together."""

    def refuse(_: object) -> None:
        raise NamespacesUnavailable("as on a system that allows none")

    if means == "landlock":
        monkeypatch.setattr(module, "Namespaces", refuse)
    with contextlib.closing(Sandbox(tmp_path)) as sandbox:
        networked = sandbox.with_network()
        assert networked is sandbox.with_network() is networked.with_network()

        def has_run(which: Sandbox, command: str) -> bool:
            env = {**os.environ, **which.environment}
            process = which.popen(["bash", "-c", command], cwd=str(tmp_path), env=env, stderr=subprocess.DEVNULL)
            return process.wait(30) == 0

        assert has_run(sandbox, "echo x > $TMPDIR/file")
        assert not has_run(sandbox, server)
        assert has_run(networked, f"test -e $TMPDIR/file && {server}")
    with pytest.raises(SandboxClosed):
        networked.popen(["true"], cwd="/")
    with pytest.raises(SandboxClosed):
        sandbox.with_network()


def test_code_asks_for_the_network_by_the_terminal(tmp_path: Path, server: str) -> None:
    """Code that calls the tool is asked for like the model: it cannot give itself the network."""
    asked = Asked(answer=False)
    code = f"tools.terminal(command={server!r}, network='look around')"
    model = ScriptedModel([ToolCall("1", "execute_code", json.dumps({"code": code}))], "done")
    with Agent(model, toolbox.default(tmp_path), approve=asked).session() as session:
        outcome = session.run("go").outcomes[0]
    assert "This call was not allowed and not started" in outcome.detail
    [reason] = asked.reasons
    assert reason.endswith("; it asks for the network: 'look around'")
