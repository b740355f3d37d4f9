"""MCP servers and the browser, which libraries start for us, in a sandbox."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from halter.testing import ToolCalls
from halter.toolbox.browser.browser import Browser
from halter.toolbox.browser.chromium import NAMES
from halter.toolbox.mcp.mcp import MCP
from halter.toolbox.sandbox.sandbox import Sandbox
from halter.tools.resources import SessionResources
from tests.support.processes import is_alive
from tests.support.web_site import Site

# Written without the SDK, which takes a second to import.
SERVER = """
import json, os, sys

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    if request["method"] == "initialize":
        result = {"capabilities": {"tools": {}}, "serverInfo": {"name": "server", "version": "1"}}
        result["protocolVersion"] = request["params"]["protocolVersion"]
    elif request["method"] == "tools/list":
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        result = {"tools": [{"name": "write", "inputSchema": schema}]}
    else:
        try:
            open(request["params"]["arguments"]["path"], "w").close()
            said = f"written by {os.getpid()}"
        except OSError as error:
            said = str(error)
        result = {"content": [{"type": "text", "text": said}]}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


def test_an_mcp_server_writes_the_workspace_alone(tmp_path: Path) -> None:
    """It works in the sandbox, cannot write elsewhere, and is gone when the connection is closed."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "server.py").write_text(SERVER)
    sandbox = Sandbox(workspace)
    with MCP.stdio(sys.executable, ["server.py"], cwd=str(workspace), sandbox=sandbox, mode="legacy") as server:
        tools = server.tools()
        inside = str(ToolCalls(*tools).call("write", path="file").content)
        outside = str(ToolCalls(*tools).call("write", path="../file").content)
    sandbox.close()
    assert (workspace / "file").exists()
    assert "Permission denied" in outside
    assert not (tmp_path / "file").exists()
    assert not is_alive(int(inside.rpartition(" ")[2].strip("'\")]")))


def mounts_of(pid: int) -> str:
    """The mount namespace of a process; empty if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


@pytest.mark.skipif(not any(map(shutil.which, NAMES)), reason="there is no Chromium here")
def test_the_browser_works_in_a_sandbox(tmp_path: Path) -> None:
    """Pages are reached through our proxy; secrets cannot be opened; nothing of it is left."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("SECRET")
    site = Site()
    browser = Browser(allow_private=[site.host], sandbox=Sandbox(tmp_path, hidden=[tmp_path / "secret"]))
    resources = SessionResources()
    calls = ToolCalls(*browser.tools, resources=resources)
    try:
        assert site.url in str(calls.call("browser_navigate", url=site.url).content)
        secret = str(calls.call("browser_navigate", url=f"file://{tmp_path}/secret/key"))
        chromium = resources.keep(browser._open)._run
        assert chromium is not None
        processes = list(chromium._tree.members())
        places = {mounts_of(pid) for pid in processes} - {""}
    finally:
        resources.close()
        site.close()
    assert "SECRET" not in secret
    assert places - {mounts_of(os.getpid())}  # Chromium is where files are hidden
    assert not any(map(is_alive, processes))
