"""All laws at once: half a minute of `bench/soak.py`, and that its oracle would notice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.soak_oracle import Oracle
from halter import Agent, ToolContext, tool
from halter.stores import SQLiteStore
from halter.testing import ScriptedModel
from tests.support.background import RunningTurn
from tests.support.sessions import call, data_of
from tests.support.waiting import wait_until

SOAK = Path(__file__).parents[2] / "bench" / "soak.py"
Reports = list[dict[str, Any]]


def test_a_soak_violates_nothing() -> None:
    """Whatever threads say to sessions whose process is killed again and again, all that was acknowledged is so."""
    run = subprocess.run(
        [sys.executable, str(SOAK), "--seconds=25", "--seed=14"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask."""
    return str(await ctx.ask("Which one?"))


def a_life(path: Path) -> Reports:
    """Three messages, one of them edited and one removed, and a question that was answered; and the reports of that."""
    reports: Reports = []
    with SQLiteStore(path) as store:
        with Agent(ScriptedModel(call("asks"), "Done."), tools=[asks]).session("s0-0", store) as session:
            for id_, text in (("m1", "<1>"), ("m2", "<2>"), ("m3", "<3>")):
                reports.append({"kind": "post", "session": "s0-0", "id": id_, "text": text})
                session.post(text, "queue", id_)
                reports.append({"kind": "accepted", "id": id_})
            assert session.inbox.edit("m2", "<2b>")
            reports += ({"kind": kind, "id": "m2", "text": "<2b>"} for kind in ("edit", "edited"))
            assert session.inbox.remove("m3")
            reports.append({"kind": "removed", "id": "m3"})
            running = RunningTurn(session, None)
            wait_until(lambda: data_of(session, "question.asked"))
            (asked,) = data_of(session, "question.asked")
            assert session.answer(asked.id, "this one")
            reports.append({"kind": "answered", "session": "s0-0", "id": asked.id, "value": "this one"})
            assert running.end().status == "done"
    return reports


def test_the_oracle_is_content_with_a_plain_life(tmp_path: Path) -> None:
    """Where all is as it was acknowledged, nothing is violated."""
    oracle = Oracle()
    for report in a_life(tmp_path / "store.db"):
        oracle.take(report)
    oracle.judge(str(tmp_path / "store.db"))
    assert oracle.violations == []
    assert (oracle.counts["log applied"], oracle.counts["log removed"]) == (2, 1)


def lost(reports: Reports) -> None:
    reports += [{"kind": "post", "session": "s0-0", "id": "m4", "text": "<4>"}, {"kind": "accepted", "id": "m4"}]


def edit_lost(reports: Reports) -> None:
    reports += ({"kind": kind, "id": "m1", "text": "<1b>"} for kind in ("edit", "edited"))


def edit_by_nobody(reports: Reports) -> None:
    reports[:] = [report for report in reports if report["kind"] not in ("edit", "edited")]


def removal_lost(reports: Reports) -> None:
    reports.append({"kind": "removed", "id": "m1"})


def other_text(reports: Reports) -> None:
    reports[0]["text"] = "<other>"


def other_session(reports: Reports) -> None:
    reports[0]["session"] = "s1-0"


def other_answer(reports: Reports) -> None:
    reports[-1]["value"] = "another"


def answer_lost(reports: Reports) -> None:
    reports[-1]["id"] = "unknown"


def said_by_nobody(reports: Reports) -> None:
    reports[:] = [report for report in reports if report.get("id") != "m1"]


def turn_lost(reports: Reports) -> None:
    reports += ({"kind": kind, "session": "s0-0", "text": "<own>"} for kind in ("text", "text applied"))


@pytest.mark.parametrize(
    ("falsify", "notices"),
    [
        (lost, "was accepted, and is lost"),
        (edit_lost, "was edited to {'<1b>'}, which is lost"),
        (edit_by_nobody, "nobody has edited message m2"),
        (removal_lost, "was removed, and then"),
        (other_text, "in the log"),
        (other_session, "was said to s1-0"),
        (other_answer, "was taken, and the log says"),
        (answer_lost, "0 times in the log"),
        (said_by_nobody, "nobody has said message m1"),
        (turn_lost, "is not in the log"),
    ],
)
def test_the_oracle_notices(tmp_path: Path, falsify: Callable[[Reports], None], notices: str) -> None:
    """If the log is not what was acknowledged, the oracle says so."""
    reports = a_life(tmp_path / "store.db")
    falsify(reports)
    oracle = Oracle()
    for report in reports:
        oracle.take(report)
    oracle.judge(str(tmp_path / "store.db"))
    assert any(notices in violation for violation in oracle.violations), oracle.violations


def test_the_oracle_reads_the_log(tmp_path: Path) -> None:
    """A turn that is open, a missing number, and a call with no result or with two are seen in the log itself."""
    a_life(tmp_path / "store.db")
    with SQLiteStore(tmp_path / "store.db") as store:
        events = store.read("s0-0")
    oracle = Oracle()
    oracle._judge_log("s0-0", [event for event in events if event.kind != "turn.finished"])
    assert any("is open, and nobody runs it" in each for each in oracle.violations)
    oracle = Oracle()
    oracle._judge_log("s0-0", [event for event in events if event.kind != "tool.finished"])
    assert any("have gaps" in each for each in oracle.violations)
    assert any("without a result" in each for each in oracle.violations)
    oracle = Oracle()
    oracle._judge_log("s0-0", [each for event in events for each in [event] * (1 + (event.kind == "tool.finished"))])
    assert any("several results" in each for each in oracle.violations)
