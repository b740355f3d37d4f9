"""Halter in a notebook: the cells of `docs/guides/notebooks.md`, and the stop button, in a real kernel."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.test_docs import ROOT, blocks_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client", "ignore::ResourceWarning")
WAITING = """
import threading
from halter import Agent
from halter.testing import Gate, ScriptedModel

middle = Gate()
session = Agent(ScriptedModel(["It was a dark and ", middle], "It was a sunny day.")).session()
threading.Thread(target=lambda: (middle.wait_reached(), print("in the middle", flush=True))).start()
"""


class Notebook:
    """A kernel, and the cells that were run in it."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager = manager
        self._client = client
        self.shown = ""

    def run(self, code: str, when_shown: str = "", then: Callable[[], object] = lambda: None) -> str:
        """Run a cell. Returns the name of the error that ended it, or "". *then* is called when it shows a text."""
        errors: list[str] = []

        def see(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                self.shown += content["text"]
                if when_shown and when_shown in content["text"]:
                    then()
            elif message["msg_type"] == "error":
                errors.append(content["ename"])

        self._client.execute_interactive(code, output_hook=see, timeout=60)
        return errors[0] if errors else ""

    def press_stop(self) -> None:
        """Interrupt the kernel, as the button of the notebook does."""
        self._manager.interrupt_kernel()


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    # Not over TCP: the ports would be picked long before the kernel binds them, and may be somebody else's by then.
    # The path of a socket must be short, and tmp_path may be too long for it.
    with tempfile.TemporaryDirectory(prefix="kernel-") as sockets:
        manager = KernelManager(transport="ipc", ip=f"{sockets}/kernel")
        assert manager.kernel_spec is not None
        manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        manager.start_kernel(cwd=str(tmp_path))
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=60)
            yield Notebook(manager, client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
            manager.cleanup_resources()


def test_the_cells_of_the_page_work(notebook: Notebook) -> None:
    """Each cell of the guide, one after the other, does what the page says."""
    cells = [block for block in blocks_of(ROOT / "docs/guides/notebooks.md") if block.kind == "cell"]
    assert cells
    for cell in cells:
        assert notebook.run(cell.code) == "", f"{cell}: {notebook.shown}"
    assert "Hello." in notebook.shown
    assert "interrupted stop" in notebook.shown


def test_the_stop_button_of_the_notebook_stops_the_turn(notebook: Notebook) -> None:
    """Interrupting the kernel ends `run()`; the turn is sealed with what was said, and the next cell goes on."""
    assert notebook.run(WAITING) == ""
    assert notebook.run('session.run("Tell me a story.")', "in the middle", notebook.press_stop) == "KeyboardInterrupt"
    assert (
        notebook.run("assert session.turn.status == 'interrupted'; assert session.turn.text == 'It was a dark and '")
        == ""
    )
    assert notebook.run('print(session.run("Something brighter.").text)') == ""
    assert "It was a sunny day." in notebook.shown
