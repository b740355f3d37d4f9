"""docs/explanation/architecture.md says where the code is: its files exist, and both walks pass them in that order."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.testing import FakeProvider, hang_mid_stream
from tests.support.chat_screen import ESC, ChatScreen
from tests.support.cli_program import Home

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "halter"
PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
STEER, STOP = (
    re.findall(r"^\d+\. `([\w/]+\.py)` `(\w+)\(\)`", section, re.MULTILINE) for section in PAGE.split("\n## ")[1:3]
)

# Python imports this when it starts. It notes the calls of the functions that the page names, in their order.
RECORDER = """
import os, sys, threading
SOURCES, NAMED = {sources!r}, {named!r}
file = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(frame, event, _):
    code = frame.f_code
    if event == "call" and (code.co_filename.removeprefix(SOURCES), code.co_name) in NAMED:
        os.write(file, (code.co_filename.removeprefix(SOURCES) + " " + code.co_name + "\\n").encode())
threading.setprofile(note)
sys.setprofile(note)
"""

STEERED = """
import sys, threading
from halter import Agent
from halter.models import OpenAIModel
from halter.stores import SQLiteStore
from halter.testing import FakeProvider, answer, hang_mid_stream

with FakeProvider() as provider, SQLiteStore(sys.argv[1]) as store:
    provider.script(hang_mid_stream(after=2, text="Paris is the capital"), answer("Lyon, then."))
    model = OpenAIModel("any", base_url=provider.openai_url, api_key="none")
    with Agent(model).session("s", store) as session, session.subscribe() as subscription:
        def person():
            while subscription.get().kind != "text.delta":
                pass
            session.steer("No, about Lyon.")
        threading.Thread(target=person).start()
        assert session.run("About Paris.").text == "Lyon, then."
"""


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Have the programs that are started with this folder as PYTHONPATH note what they call, in this file."""
    file = tmp_path / "calls"
    file.touch()
    recorder = RECORDER.format(sources=f"{SOURCES}/", named={*STEER, *STOP}, file=str(file))
    (tmp_path / "sitecustomize.py").write_text(recorder)
    return file


def calls_since(record: Path, first: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """What was called, from the first step of a walk on."""
    calls = [(path, name) for path, name in (line.split() for line in record.read_text().splitlines())]
    return iter(calls[calls.index(first) :])


def test_both_walks_name_at_most_eight_files() -> None:
    """A newcomer follows a steer and a stop through at most eight files each."""
    for walk in (STEER, STOP):
        assert len(walk) == len({path for path, _ in walk})
        assert 5 <= len(walk) <= 8


def test_every_file_on_the_page_exists() -> None:
    """Whatever the page names can be opened: a file that was moved or renamed is found here."""
    named = set(re.findall(r"\b[\w/]+\.(?:py|js)\b", PAGE)) | set(re.findall(r"\bscripts/\w+", PAGE))
    assert {path for path, _ in [*STEER, *STOP]} <= named
    assert [path for path in sorted(named) if not ((SOURCES / path).exists() or (ROOT / path).exists())] == []


def test_each_class_has_a_name_of_its_own() -> None:
    """A name means one thing in the whole package: three classes were called `Link`, and three `Answer`."""
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCES)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_a_steer_passes_the_files_in_the_order_of_the_page(tmp_path: Path, record: Path) -> None:
    """From steer() to the history, the code goes the way that the page describes."""
    command = [sys.executable, "-c", STEERED, str(tmp_path / "sessions.db")]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, check=True, timeout=60)
    calls = calls_since(record, STEER[0])
    assert [step for step in STEER if step not in calls] == []  # each is searched for behind the one before


def test_a_stop_passes_the_files_in_the_order_of_the_page(tmp_path: Path, record: Path) -> None:
    """From the key to the closed socket, the code goes the way that the page describes."""
    with FakeProvider() as provider:
        provider.script(hang_mid_stream(after=2, text="Once upon a time"))
        with ChatScreen(Home(tmp_path, provider)) as chat:
            chat.wait_ready()
            chat.send("Tell me a story.")
            chat.wait_state("answering")
            chat.type(ESC)
            provider.wait_for_close(1)
    calls = calls_since(record, STOP[0])
    assert [step for step in STOP if step not in calls] == []
