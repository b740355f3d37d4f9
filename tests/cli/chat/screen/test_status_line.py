"""The status line: model, state, context, tokens and cost, sandbox and approvals."""

from __future__ import annotations

import pytest

from halter.cli.chat.screen.status_line import SessionFigures, status_line, tokens_text
from halter.cli.chat.screen.styling import cells
from halter.cli.chat.screen.transcript import ChatTranscript
from halter.events import Event, TurnFinished, TurnStarted
from halter.models.types import Usage
from halter.session.compaction.compactor import ContextUsage

FIGURES = SessionFigures("gpt-5", ContextUsage(32_640, 272_000), Usage(40_000, 1_200, cost=0.312), "workspace", "ask")


def one_turn() -> ChatTranscript:
    transcript = ChatTranscript()
    ended = TurnFinished("done", usage=Usage(3_000, 400, cost=0.02))
    events: list[TurnStarted | TurnFinished] = [TurnStarted("gpt-5"), ended]
    for seq, data in enumerate(events, 1):
        transcript.apply(Event(seq, float(seq), "s", "t", data))
    return transcript


def test_everything_is_in_it() -> None:
    """On a wide terminal all figures are there, in words."""
    line, tone = status_line(one_turn(), FIGURES, "", 130)
    assert line == (
        "gpt-5 · idle · context 12% of 272k · turn 3.4k tokens $0.02 · session 41.2k tokens $0.31 · "
        "sandbox workspace · approvals ask"
    )
    assert tone == "dim"


def test_every_figure_has_a_word() -> None:
    """Where it is narrow, too, one can tell the tokens of the turn from those of the session."""
    line, _ = status_line(one_turn(), FIGURES, "", 100)
    assert " · turn 3.4k $0.02 · all 41.2k $0.31 · " in line


@pytest.mark.parametrize("width", range(20, 121))
def test_it_fits(width: int) -> None:
    """On a narrow terminal the words become short, then tokens are left out, and last the rest; the state never."""
    line, _ = status_line(one_turn(), FIGURES, "", width)
    assert cells(line) <= width
    assert line.startswith("gpt-5 · idle")
    if width >= 60:
        assert "ctx 12%" in line or "context 12%" in line
        assert line.endswith("ask")


def test_a_nearly_full_context_is_a_warning() -> None:
    """From four fifths on, the line is a warning."""
    full = FIGURES._replace(context=ContextUsage(250_000, 272_000))
    assert status_line(one_turn(), full, "", 120)[1] == "warn"


def test_tokens_are_short() -> None:
    """Numbers of tokens take at most five characters."""
    numbers = {0: "0", 812: "812", 3_400: "3.4k", 99_999: "100.0k", 128_000: "128k", 1_047_576: "1.0M"}
    assert {number: tokens_text(number) for number in numbers} == numbers
