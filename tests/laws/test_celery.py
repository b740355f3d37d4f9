"""Celery: a task that is revoked while a tool of Halter runs in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halter.events import TurnFinished
from halter.stores import SQLiteStore
from tests.support.processes import wait_dead
from tests.support.waiting import wait_until
from tests.test_docs import GOOD

TASKS = """
import json
import time
import uuid
from pathlib import Path

from celery import Celery
from kombu.transport import filesystem
from kombu.utils.json import dumps

import revoking  # the example of the docs


def put(channel, queue, payload, **_options):
    # Kombu's own writes the file in place, so that a worker may find it empty, and lose the message.
    path = Path(channel.data_folder_out, f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg")
    new = path.with_name(f"{path.name}.new")  # the worker passes over such names
    new.write_text(dumps(payload))
    new.rename(path)


filesystem.Channel._put = put
here = Path(__file__).parent
app = Celery("tasks", broker="filesystem://", backend=f"file://{here}/results")
app.conf.broker_transport_options = {
    "data_folder_in": f"{here}/queue", "data_folder_out": f"{here}/queue", "control_folder": f"{here}/control",
}

@app.task
def add(one, two):
    return one + two

@app.task
def ask(session_id):
    from halter import Agent
    from halter.models import ToolCall
    from halter.stores import SQLiteStore
    from halter.testing import ScriptedModel
    from halter.toolbox import Terminal

    command = f"echo $$ > {here}/{session_id}.tmp; mv {here}/{session_id}.tmp {here}/{session_id}.pid; sleep 100"
    model = ScriptedModel([ToolCall("call", "terminal", json.dumps({"command": command}))], "Done.")
    agent = Agent(model, tools=Terminal(here).tools, approve=lambda request: True)
    with SQLiteStore(here / "sessions.db") as store, agent.session(session_id, store) as session:
        session.run("Wait for it.")
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with the tasks, and a worker with one process that runs them."""
    [example] = [block.code for block in GOOD if "celery" in block.code]
    (tmp_path / "revoking.py").write_text(example)
    (tmp_path / "tasks.py").write_text(TASKS)
    for name in ("results", "queue", "control"):
        (tmp_path / name).mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    import tasks  # type: ignore[import-not-found]

    log = tmp_path / "log"
    with log.open("w") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "1", "-l", "INFO"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: "ready." in log.read_text(), 60)
        yield tasks
    finally:
        worker.kill()  # its processes are told by the system; a wedged pool would not end in any other way
        worker.wait()
        sys.modules.pop("tasks", None)
        sys.modules.pop("revoking", None)


@pytest.mark.filterwarnings("ignore")  # Celery's own
def test_a_task_can_be_revoked_again_and_again(tasks: Any, tmp_path: Path) -> None:
    """With the lines of the docs, the pool goes on after each revocation, the turn is sealed, and its process is dead.

    Without them the pool was wedged after one to four.
    """
    for number in range(5):
        name = f"session-{number}"
        asked = tasks.ask.delay(name)
        wait_until((tmp_path / f"{name}.pid").exists, 30)
        tasks.app.control.revoke(asked.id, terminate=True)
        assert tasks.add.delay(number, 1).get(timeout=30) == number + 1
        wait_dead(int((tmp_path / f"{name}.pid").read_text()))
        with SQLiteStore(tmp_path / "sessions.db") as store:
            *_, end = (event.data for event in store.read(name) if isinstance(event.data, TurnFinished))
        assert end.status == "interrupted", end
