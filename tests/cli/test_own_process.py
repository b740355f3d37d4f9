"""The program's own process: its keys are not in its environment, and other processes cannot look into it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from halter.events import ToolFinished
from halter.models import ToolCall
from halter.testing import FakeProvider, answer, tool_calls
from tests.support.cli_program import Home, OnTerminal
from tests.support.processes import run_python

LOOK = """
import ctypes, json, os, subprocess
from halter import tool
from halter.toolbox.terminal.environment import without_secrets

OURS = ("OPENAI_API_KEY", "HALTER_KEY", "HALTER_CLUSTER", "AWS_SECRET_ACCESS_KEY")

@tool
def look() -> str:
    with open("/proc/self/environ") as file:
        initial = file.read()
    return json.dumps({
        "in os.environ": [name for name in OURS if name in os.environ],
        "in /proc": [word for word in initial.split("\\0") if "key-of-" in word],
        "inherited": [name for name in subprocess.check_output(["env"], text=True).split("\\n") if "key-of-" in name],
        "named": without_secrets(["OPENAI_API_KEY"]).get("OPENAI_API_KEY"),
        "home": os.environ["HALTER_HOME"] in initial,
        "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
    })
"""
SECRETS = {
    "OPENAI_API_KEY": "key-of-openai",
    "HALTER_KEY": "key-of-halter",
    "HALTER_CLUSTER": "nats://halter:key-of-nats@localhost:4222",
    "AWS_SECRET_ACCESS_KEY": "key-of-aws",
}


def test_keys_are_not_in_the_environment(home: Home, provider: FakeProvider) -> None:
    """Neither os.environ nor a child nor /proc has our keys; other secrets stay for the user's tools, but not in /proc.

    A key that a tool names is passed on.
    """
    home.write_module(LOOK)
    home.env |= SECRETS | {"HALTER_TOOLS": "mytools:look"}
    provider.script(tool_calls([ToolCall("1", "look", "{}")]), answer("Done."))
    ended = home.run("-p", "Look.")
    assert ended.code == 0, ended.err
    [result] = [each.data for each in home.events() if each.kind == "tool.finished"]
    assert isinstance(result, ToolFinished)
    assert json.loads(str(result.outcome.content)) == {
        "in os.environ": ["AWS_SECRET_ACCESS_KEY"],
        "in /proc": [],
        "inherited": ["AWS_SECRET_ACCESS_KEY=key-of-aws"],
        "named": "key-of-openai",
        "home": True,
        "dumpable": 0,
    }


def test_the_model_still_gets_its_key(home: Home, provider: FakeProvider) -> None:
    """The provider is sent the key that was taken out of the environment."""
    provider.script(answer("Hello."))
    assert home.run("-p", "Hi.", OPENAI_API_KEY="key-of-openai").code == 0
    assert provider.requests[0].headers["authorization"] == "Bearer key-of-openai"


def environ_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody but root can look")
def test_the_chat_and_the_gateway_do_it_too(home: Home) -> None:
    """When the chat and the gateway are there, their keys are gone from /proc."""
    home.env |= SECRETS
    with OnTerminal(home) as chat:
        chat.read_until(b"/help lists the rest")
        assert "key-of-" not in environ_of(chat.program.pid)
    home.env["HALTER_CLUSTER"] = ""  # there is none to connect to
    with home.start("serve", "--port", "0") as gateway:
        assert gateway.stdout is not None
        assert b"Halter serves at" in gateway.stdout.readline()
        assert "key-of-" not in environ_of(gateway.pid)


def test_the_library_leaves_the_environment_alone() -> None:
    """Importing Halter and making an agent changes neither the environment nor the process."""
    code = """
        import ctypes, os
        from halter import Agent, toolbox
        Agent("openai:gpt-5", toolbox.default("."))
        assert os.environ["OPENAI_API_KEY"] == "key-of-openai"
        assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1
    """
    ended = run_python(code, env=os.environ | SECRETS)
    assert ended.returncode == 0, ended.stderr
