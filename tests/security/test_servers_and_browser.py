"""MCP servers and the browser, which libraries start for us, in a sandbox."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from halter.toolbox.browser.browser import Browser
from halter.toolbox.browser.chromium import NAMES
from halter.toolbox.mcp.mcp import MCP
from halter.toolbox.sandbox.sandbox import Sandbox
from tests.helpers import is_alive
from tests.toolbox.browser.site import Site
from tests.toolbox.browser.test_browser import Surfer
from tests.toolbox.one_call import OneCall

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
        inside = str(OneCall(list(tools), "write", '{"path": "file"}').run_now().content)
        outside = str(OneCall(list(tools), "write", '{"path": "../file"}').run_now().content)
    sandbox.close()
    assert (workspace / "file").exists()
    assert "Permission denied" in outside
    assert not (tmp_path / "file").exists()
    assert not is_alive(int(inside.rpartition(" ")[2].strip("'\")]")))


@pytest.mark.skipif(not any(map(shutil.which, NAMES)), reason="there is no Chromium here")
def test_the_browser_works_in_a_sandbox(tmp_path: Path) -> None:
    """Pages are reached through our proxy; secrets cannot be opened; nothing of it is left."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("SECRET")
    site = Site()
    surfer = Surfer(Browser(allow_private=[site.host], sandbox=Sandbox(tmp_path, hidden=[tmp_path / "secret"])), site)
    try:
        assert site.url in surfer.home()
        processes = surfer.family().members()
        assert any(os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt") for pid in processes)
        assert "SECRET" not in str(surfer.run("navigate", url=f"file://{tmp_path}/secret/key"))
    finally:
        surfer.close()
        site.close()
    assert not any(map(is_alive, processes))
