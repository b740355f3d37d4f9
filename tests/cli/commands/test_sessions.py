"""`halter sessions` and `halter why`, over stores that the program itself has filled."""

from __future__ import annotations

import os
import signal

import msgspec

from halter import Agent, ToolContext, tool
from halter.models import ToolCall
from halter.stores import SQLiteStore
from halter.testing import FakeProvider, ScriptedModel, answer, hang_mid_stream
from halter.views.timeline import Timeline
from tests.support.cli_program import WAIT, Home, OnTerminal, end, read_until


def stop_one(home: Home, provider: FakeProvider, session: str = "stopped") -> None:
    """Have a session with a turn that Ctrl+C has ended."""
    provider.script(hang_mid_stream(1, text="Once upon a "))
    with home.start("-p", "A story.", "--session", session) as program:
        assert program.stdout is not None
        read_until(program.stdout.fileno(), b"Once upon a ")
        assert end(program, signal.SIGINT).code == 130


def test_sessions_are_listed(home: Home, provider: FakeProvider) -> None:
    """Each session has a line: its id, when it was last used, its turns, what waits, and its first words."""
    provider.script(answer("a"), answer("b"), answer("c"))
    home.run("-p", "The first\nof several words that are too many for a line", "--session", "one")
    home.run("-p", "Second.", "--session", "two\x1b[31m")
    home.run("-p", "Again.", "--session", "one")
    ended = home.run("sessions")
    assert ended.code == 0
    head, first, second = ended.out.splitlines()
    assert head.split() == ["SESSION", "LAST", "USED", "TURNS", "WAITING", "FIRST", "MESSAGE"]
    assert first.split()[0] == "one"
    assert first.split()[3:5] == ["2", "-"]
    assert first.endswith("The first of several words …")
    assert second.startswith("two [31m")
    assert "\x1b" not in ended.out


def test_a_session_that_was_made_before_its_first_message_is_listed_by_that_message(home: Home) -> None:
    """The word that a session was made comes before its first words, and does not hide them."""
    with SQLiteStore(home.path / "sessions.db") as store:
        with Agent(ScriptedModel()).session("made", store) as session:
            assert session.record_created("halter")
        with Agent(ScriptedModel("Hello.")).session("made", store) as session:
            session.run("Good morning.")
            assert [message.text for message in session.history] == ["Good morning.", "Hello."]
    assert home.run("sessions").out.rstrip().endswith("Good morning.")


def test_without_sessions_there_is_nothing_to_list(home: Home) -> None:
    """Without a store that is said, nothing is made, and it is no error."""
    ended = home.run("sessions")
    assert (ended.code, ended.err) == (0, "")
    assert "No sessions yet" in ended.out
    assert list(home.path.iterdir()) == []
    assert home.run("why").code == 1


def test_why(home: Home, provider: FakeProvider) -> None:
    """The last stop is drawn in 80 columns of plain text: who asked, and how the request and the turn ended."""
    stop_one(home, provider)
    home.run("-p", "Go on.", "--session", "stopped")
    ended = home.run("why", "stopped")
    assert (ended.code, ended.err) == (0, "")
    assert "Stop requested by signal SIGINT (interrupt: SIGINT)" in " ".join(ended.out.split())
    assert "\x1b" not in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    request, turn = ended.out.splitlines()[-2:]
    assert request.startswith("request test")
    assert "cancelled" in request
    assert turn.startswith("turn")
    assert "interrupted" in turn


def test_which_session_is_meant(home: Home, provider: FakeProvider) -> None:
    """The beginning of an id is enough if it is only one's; without one the latest is meant."""
    stop_one(home, provider, "alpha")
    stop_one(home, provider, "alto")
    assert "Session alto" in home.run("why").out
    assert "Session alpha" in home.run("why", "alp").out
    ended = home.run("why", "al")
    assert ended.code == 1
    assert "2 sessions start with 'al'" in ended.err
    ended = home.run("why", "nobody")
    assert ended.code == 1
    assert "there is no session 'nobody'" in ended.err


def test_why_while_it_runs(home: Home, provider: FakeProvider) -> None:
    """A session that another process has open can be looked at, and is not disturbed by it."""
    stop_one(home, provider)
    provider.script(hang_mid_stream(1, text="On it goes. "))
    with home.start("-p", "Go on.", "--session", "stopped") as program:
        assert program.stdout is not None
        read_until(program.stdout.fileno(), b"On it goes. ")
        assert "Stop requested by signal SIGINT" in home.run("why", "stopped").out
        assert end(program, signal.SIGTERM).code == 143
    assert "Stop requested by signal SIGTERM" in home.run("why", "stopped").out


def test_why_nothing_was_stopped(home: Home, provider: FakeProvider) -> None:
    """A session in which nothing was stopped says so."""
    home.run("-p", "Hi.", "--session", "calm")
    ended = home.run("why", "calm")
    assert (ended.code, ended.out) == (0, "No turn of session calm was stopped.\n")


def test_why_it_crashed(home: Home, provider: FakeProvider) -> None:
    """After kill -9 and the next start, it is told that nobody asked, and the request has no end that anybody saw."""
    provider.script(hang_mid_stream(1, text="Once upon a "))
    with home.start("-p", "A story.", "--session", "s") as program:
        assert program.stdout is not None
        read_until(program.stdout.fileno(), b"Once upon a ")
        os.kill(program.pid, signal.SIGKILL)
        program.wait(WAIT)
    home.run("-p", "Go on.", "--session", "s")
    ended = home.run("why", "s")
    assert "Nobody asked for a stop" in ended.out
    assert "crash" in ended.out
    timeline = msgspec.json.decode(home.run("why", "s", "--json").out, type=Timeline)
    assert timeline.asked_at is None
    assert timeline.spans[0].end is None


def test_colours_are_for_terminals(home: Home, provider: FakeProvider) -> None:
    """On a terminal the drawing has colours, but not if NO_COLOR is set."""
    stop_one(home, provider)
    with OnTerminal(home, "why", "stopped") as terminal:
        assert terminal.end() == 0
    assert b"\x1b[" in terminal.shown
    with OnTerminal(home, "why", "stopped", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    assert b"\x1b[" not in terminal.shown
    assert b"cancelled" in terminal.shown


def test_another_encoding(home: Home, provider: FakeProvider) -> None:
    """Where the output is not UTF-8 it is drawn in ASCII."""
    stop_one(home, provider)
    ended = home.run("why", "stopped", PYTHONIOENCODING="ascii")
    assert ended.code == 0
    assert ended.out.isascii()


def test_a_store_that_is_none(home: Home) -> None:
    """A store that cannot be read is told in a line."""
    (home.path / "sessions.db").write_text("no database " * 100)
    for command in ("sessions", "why"):
        ended = home.run(command)
        assert ended.code == 1
        assert ended.err.startswith("halter: ")
        assert "Traceback" not in ended.err


def test_what_an_agent_had_others_do_is_no_session_of_its_own(home: Home) -> None:
    """The session of a child is not listed and not the latest, but can be asked for."""

    @tool
    async def hand_on(ctx: ToolContext) -> str:
        """Have a child do it."""
        turn = await ctx.delegate(Agent(ScriptedModel("From the child.")), "Help.")
        return str(turn.text)

    with SQLiteStore(home.path / "sessions.db") as store:
        agent = Agent(ScriptedModel([ToolCall("1", "hand_on", "{}")], "Done."), [hand_on])
        with agent.session("parent", store) as session:
            assert session.run("Go.").status == "done"
        (child,) = [info.id for info in store.sessions() if info.id != "parent"]
    listed = home.run("sessions").out.splitlines()
    assert [line.split()[0] for line in listed] == ["SESSION", "parent"]
    assert "session parent" in home.run("why").out
    assert f"session {child}" in home.run("why", child).out
