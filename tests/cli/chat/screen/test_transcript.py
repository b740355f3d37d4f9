"""The chat as text for a terminal."""

from __future__ import annotations

from halter.cli.chat.notices import Notice
from halter.cli.chat.screen.live_area import LiveArea
from halter.cli.chat.screen.transcript import ChatTranscript
from halter.events import Event, EventData, TurnStarted
from halter.events.tools import ApprovalAnswered, ApprovalAsked
from halter.tools.approval import ApprovalRequest


def transcript_of(*happened: EventData) -> ChatTranscript:
    transcript = ChatTranscript()
    for seq, data in enumerate(happened, 1):
        transcript.apply(Event(seq, float(seq), "s", "t", data))
    return transcript


def test_an_approval_hides_nothing() -> None:
    """A long command was cut, and with it what was dangerous and why it was asked."""
    command = "echo " + "x " * 300 + "; rm -rf ~/"
    request = ApprovalRequest(
        call_id="c", tool="terminal", arguments={"command": command}, reason="deletes directories", id="a"
    )
    transcript = transcript_of(TurnStarted("m"), ApprovalAsked(request))
    (notice,) = transcript.take_finished()
    assert isinstance(notice, Notice)
    assert "deletes directories" in notice.text
    assert "rm -rf ~/" in notice.text
    shown = LiveArea(24, 80, color=False).question(transcript.display.question, 0)
    assert "deletes directories" in shown[0]
    assert transcript.status == "needs you"


def test_an_approval_shows_what_cannot_be_seen() -> None:
    """An escape sequence is not obeyed, and characters that reverse the order of others are shown as what they are."""
    command = "ls\r\x1b[2Kpwd \u202etxt.sh\u2066\u200b"
    request = ApprovalRequest(call_id="c", tool="terminal", arguments={"command": command}, reason="\u202ex", id="a")
    (notice,) = transcript_of(TurnStarted("m"), ApprovalAsked(request)).take_finished()
    assert isinstance(notice, Notice)
    assert notice.text.splitlines() == [
        r"\u202ex. Run this command?",
        r"command: ls\r\x1b[2Kpwd \u202etxt.sh\u2066\u200b",
    ]


def test_an_answered_approval() -> None:
    """How it was answered is written down."""
    request = ApprovalRequest(call_id="c", tool="terminal", id="a")
    transcript = transcript_of(
        TurnStarted("m"), ApprovalAsked(request), ApprovalAnswered("a", "c", granted=True, note="ok")
    )
    assert [each.text for each in transcript.take_finished() if isinstance(each, Notice)] == [
        "this tool needs approval. Run this command?",
        "terminal: allowed (ok)",
    ]
    assert transcript.status == "waiting for the model"


def test_a_plain_yes_is_said_once() -> None:
    """That it was approved is not said a second time behind "allowed"."""
    request = ApprovalRequest(call_id="c", tool="terminal", id="a")
    answered = ApprovalAnswered("a", "c", granted=True, note="approved")
    shown = transcript_of(TurnStarted("m"), ApprovalAsked(request), answered).take_finished()
    assert isinstance(shown[-1], Notice)
    assert shown[-1].text == "terminal: allowed"
