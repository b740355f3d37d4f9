"""Print mode when nobody stops it: answers, tools, errors, settings and sessions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from halter.events import Event, TurnFinished
from halter.models import TextDelta, ToolCall
from halter.testing import FakeProvider, answer, drop, hang_before_first_byte, hang_mid_stream, raw, status, tool_calls
from halter.views.event_json import encode_event
from tests.support import without_landlock
from tests.support.cli_program import WAIT, Ended, Home, OnTerminal, end, without_slow_exit


def texts(provider: FakeProvider, number: int = 0) -> list[str]:
    """What the messages of a request say."""
    return [message["content"] for message in provider.requests[number].body["messages"] if message["role"] != "system"]


def test_the_answer_is_printed(home: Home, provider: FakeProvider) -> None:
    """The answer is all that is printed, its last line is ended, and the code is 0."""
    provider.script(answer("It is 42."))
    assert home.run("-p", "What is 6 times 7?") == Ended(0, "It is 42.\n", "")
    assert texts(provider) == ["What is 6 times 7?"]


def test_a_slow_exit_is_told(home: Home, provider: FakeProvider) -> None:
    """An exit that takes a while says what it waits for. A busy machine makes any exit slow, so tests that compare all
    that was said leave that line out.
    """
    (home.path / "sitecustomize.py").write_text("import atexit, time\natexit.register(time.sleep, 1.0)\n")
    provider.script(answer("Hello."), answer("Hello."))
    with home.start("-p", "Hi.") as program:
        _, said = program.communicate(timeout=60)
    assert said.decode().startswith("Shutting down: waiting for ")
    assert home.run("-p", "Hi.") == Ended(0, "Hello.\n", "")


@pytest.mark.parametrize(
    "args",
    [
        ["--print", "Hi."],
        ["-p", "--json", "Hi."],
        ["--json", "-p", "Hi."],
        ["-p", "--session", "new", "Hi."],
        ["Hi.", "-p"],
        ["-p", "--", "Hi."],
    ],
)
def test_the_text_may_stand_anywhere(home: Home, provider: FakeProvider, args: list[str]) -> None:
    """Wherever the options stand, the text is the text, and is not taken for a command."""
    assert home.run(*args).code == 0
    assert texts(provider) == ["Hi."]


@pytest.mark.parametrize(
    ("args", "asked"),
    [(["-p"], "from a pipe\n"), (["-p", "-"], "from a pipe\n"), (["-p", "Sum up:", "-"], "Sum up:\n\nfrom a pipe\n")],
)
def test_the_text_comes_from_standard_input(home: Home, provider: FakeProvider, args: list[str], asked: str) -> None:
    """Without a text, and where a "-" stands, what comes on standard input is asked."""
    assert home.run(*args, stdin="from a pipe\n").code == 0
    assert texts(provider) == [asked]


def test_without_a_text_nothing_is_asked(home: Home, provider: FakeProvider) -> None:
    """An empty text is an error that says where to give one, and no session is made."""
    ended = home.run("-p", " ")
    assert (ended.code, ended.out) == (1, "")
    assert "no text" in ended.err
    assert not (home.path / "sessions.db").exists()


def test_json_has_every_event_on_a_line(home: Home, provider: FakeProvider) -> None:
    """With --json each line is an event of the turn, as the log has it, and nothing else is printed."""
    provider.script(answer("Yes.\nNo."))
    ended = home.run("-p", "Well?", "--json")
    events = [msgspec.json.decode(line, type=Event) for line in ended.out.splitlines()]
    assert ended == Ended(0, ended.out, "")
    assert [event.kind for event in events][:4] == [
        "message.accepted",
        "turn.started",
        "message.applied",
        "request.started",
    ]
    assert events == home.events()
    assert isinstance(events[-1].data, TurnFinished)


def test_half_a_character_can_be_written_as_json() -> None:
    """What a model says may have half of a pair in it, as no UTF-8 can; JSON's escapes carry it."""
    event = Event(1, 2.0, "s", "t", TextDelta("\ud83d"))
    assert json.loads(encode_event(event)) == msgspec.to_builtins(event)


def test_tools_are_used(home: Home, provider: FakeProvider) -> None:
    """Tools that the settings name are called, and what the steps say is on lines of its own."""
    home.write_module("def multiply(a: int, b: int) -> int:\n    'Multiply.'\n    return a * b\n")
    (home.path / "config.toml").write_text('tools = ["mytools:multiply"]\n')
    provider.script(tool_calls([ToolCall("1", "multiply", '{"a": 6, "b": 7}')], text="Let me see."), answer("42."))
    assert home.run("-p", "6 times 7?") == Ended(0, "Let me see.\n42.\n", "")
    assert provider.requests[1].body["messages"][-1]["content"] == "42"


@pytest.mark.parametrize(("named", "offered"), [("none", set()), ("mytools:one, todo", {"one", "todo"})])
def test_tools_of_the_command_line(home: Home, provider: FakeProvider, named: str, offered: set[str]) -> None:
    """`--tools` replaces the tools of the settings by others, or by none."""
    home.write_module("def one() -> int:\n    'One.'\n    return 1\n")
    (home.path / "config.toml").write_text('tools = ["default"]\n')
    provider.script(answer("Hello."))
    assert home.run("-p", "Hi.", "--tools", named).out == "Hello.\n"
    assert {each["function"]["name"] for each in provider.requests[0].body.get("tools", [])} == offered


def test_settings_of_the_model_and_limits(home: Home, provider: FakeProvider) -> None:
    """Options go with the request and bound the turn; a model that is silent for too long is given up."""
    (home.path / "config.toml").write_text("[model_settings]\nseed = 7\ntop_p = 0.9\n")
    provider.script(tool_calls([ToolCall("1", "nothing", "{}")]))
    ended = home.run("-p", "Hi.", "--max-steps", "1", "--temperature", "0.5", "--top-p", "0.8")
    assert ended.code == 1
    assert "1 step" in ended.err
    body = provider.requests[0].body
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 0.8, 7)
    provider.script(hang_before_first_byte(), *[answer("Hello.")] * 4)  # on a busy machine one may be late, too
    ended = home.run("-p", "Hi.", "--first-byte-timeout", "1")
    assert (ended.code, ended.out) == (0, "Hello.\n")
    ended = home.run("-p", "Hi.", "--max-steps", "none")
    assert ended == Ended(1, "", "halter: --max-steps: limits.steps: expected int, got str\n")


def test_a_question_of_a_tool_is_answered(home: Home, provider: FakeProvider) -> None:
    """The model asked the user, and the program waited for ever: nobody is there who could answer."""
    provider.script(tool_calls([ToolCall("1", "clarify", '{"question": "Which one?"}')]), answer("The first."))
    assert home.run("-p", "Choose.", "--tools", "clarify").out == "The first.\n"
    assert "nobody can be asked" in texts(provider, 1)[-1]


def test_what_needs_approval_is_denied(home: Home, provider: FakeProvider) -> None:
    """Nobody can be asked in print mode: the tool is not run, and the model is told why. The settings may allow it."""
    home.write_module("from halter import tool\n@tool(approval=True)\ndef wipe() -> str:\n    return 'wiped'\n")
    home.env |= {"HALTER_TOOLS": "mytools:wipe"}
    provider.script(tool_calls([ToolCall("1", "wipe", "{}")]), answer("I may not."))
    assert home.run("-p", "Wipe it.") == Ended(0, "I may not.\n", "")
    assert "not allowed" in provider.requests[1].body["messages"][-1]["content"]
    provider.script(tool_calls([ToolCall("1", "wipe", "{}")]), answer("Done."))
    assert home.run("-p", "Wipe it.", HALTER_APPROVE="auto").out == "Done.\n"
    assert provider.requests[3].body["messages"][-1]["content"] == "wiped"


def test_without_a_sandbox_tools_that_start_processes_are_off(home: Home, provider: FakeProvider) -> None:
    """On a system that has none, one line says so, and --sandbox off turns them on."""
    home.launcher = [sys.executable, without_landlock.__file__]
    home.env["HALTER_TOOLS"] = "default"
    provider.script(answer("Hello."), answer("Hello."))
    ended = home.run("-p", "Hi.")
    assert [line for line in ended.err.splitlines() if "No sandbox" in line] == [ended.err.strip()]
    assert home.run("-p", "Hi.", "--sandbox", "off").err == ""
    offered = [{tool["function"]["name"] for tool in each.body["tools"]} for each in provider.requests]
    assert offered[1] - offered[0] == {"terminal", "process", "execute_code"}


@pytest.mark.parametrize("tools", ["mytools:no", "nomodule:x", "notthere"])
def test_a_tool_that_is_not_there_is_an_error(home: Home, provider: FakeProvider, tools: str) -> None:
    """A tool that cannot be found is told with where it was set, before anything is asked."""
    home.write_module("")
    ended = home.run("-p", "Hi.", HALTER_TOOLS=tools)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("halter: HALTER_TOOLS: ")
    assert f"tool '{tools}'" in ended.err
    assert provider.requests == []


def test_a_refusal_is_told(home: Home, provider: FakeProvider) -> None:
    """A provider that says no: its words on standard error, code 1, and the message is saved in the session."""
    provider.script(status(401, "no such key"))
    ended = home.run("-p", "Hi.")
    assert (ended.code, ended.out) == (1, "")
    assert "no such key" in ended.err
    assert "Traceback" not in ended.err
    assert home.events()[-1].kind == "turn.finished"
    command, _, rest = ended.err.split("`")[1].partition(" -m halter ")  # what it says that one can do
    assert command == "python"
    args = rest.split()
    assert home.run(*args).code == 0
    assert "Hi." in str(texts(provider, 1))
    assert "TEXT" in str(texts(provider, 1))


def test_a_missing_key_is_told_with_the_cure(home: Home) -> None:
    """A new user read that a variable is not set, and not that a command asks for the key and stores it."""
    ended = home.run("-p", "Hi.", "--model", "groq:any")
    assert (ended.code, ended.out) == (1, "")
    assert "GROQ_API_KEY is not set" in ended.err
    assert "login PROVIDER` asks for a key and stores it" in ended.err


def test_garbage_is_told(home: Home, provider: FakeProvider) -> None:
    """What is no answer at all is an error in words, however often it comes."""
    garbage = raw(b"data: {nonsense\n\n", b"\x00\xff\xfe")
    provider.script(garbage, garbage, garbage)
    ended = home.run("-p", "Hi.")
    assert (ended.code, ended.out) == (1, "")
    assert "halter: the turn failed" in ended.err
    assert "Traceback" not in ended.err


def test_an_answer_that_begins_again_says_so(home: Home, provider: FakeProvider) -> None:
    """When a connection is lost in the middle and the answer starts again, it does so on a line of its own."""
    provider.script(drop(1, text="Half an answ"), answer("The whole answer."))
    ended = home.run("-p", "Hi.")
    assert (ended.code, ended.out) == (0, "Half an answ\nThe whole answer.\n")
    assert "the answer starts again" in ended.err


def test_a_session_goes_on(home: Home, provider: FakeProvider) -> None:
    """With --session the conversation goes on where it was; a new name begins one, and that is said."""
    provider.script(answer("Noted."), answer("Seven."))
    first = home.run("-p", "Remember seven.", "--session", "numbers")
    assert (first.code, first.out) == (0, "Noted.\n")
    assert "session 'numbers' does not exist yet" in first.err
    assert home.run("-p", "Which number?", "--session", "numbers") == Ended(0, "Seven.\n", "")
    assert texts(provider, 1) == ["Remember seven.", "Noted.", "Which number?"]


def test_two_programs_on_one_session(home: Home, provider: FakeProvider) -> None:
    """A session that another process has open is refused before anything is accepted, and that one is not disturbed."""
    provider.script(hang_mid_stream(1, text="Slowly"))
    with home.start("-p", "One.", "--session", "s") as first:
        provider.wait_for_pieces(1, timeout=WAIT)
        second = home.run("-p", "Two.", "--session", "s")
        assert (second.code, second.out) == (1, "")
        assert f"is open in process {first.pid}" in second.err
        assert end(first, signal.SIGINT)[:2] == (130, "Slowly\n")
    assert len(provider.requests) == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_a_reader_who_comes_late_gets_it_all(home: Home, provider: FakeProvider, as_json: bool) -> None:
    """A reader who is more behind than anybody keeps in memory for him gets every word, once and in order."""
    words = [f"{number} " for number in range(30_000)]
    provider.script(answer(chunks=words))
    with home.start("-p", "Count.", *["--json"] * as_json) as program:
        home.wait_until_sealed()
        ended = end(program)
    assert ended.code == 0
    if as_json:
        events = [msgspec.json.decode(line, type=Event) for line in ended.out.splitlines()]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert events == home.events()
    else:
        assert ended.out == "".join(words) + "\n"


def test_a_mistake_in_the_settings_is_told_with_its_line(home: Home, provider: FakeProvider) -> None:
    """A settings file that cannot be used ends the program before it begins, with the file, the line and the cure."""
    (home.path / "config.toml").write_text('busy = "queue"\nmodle = "x"\n')
    said = f"halter: {home.path}/config.toml, line 2: unknown setting 'modle'; did you mean 'model'?\n"
    assert home.run("-p", "Hi.") == Ended(1, "", said)


@pytest.mark.parametrize("name", ["nobody:x", "openai:"])
def test_a_model_that_does_not_exist_is_told(home: Home, name: str) -> None:
    """A name that is no model's is answered with how names look."""
    ended = home.run("-p", "Hi.", "--model", name)
    assert (ended.code, ended.out) == (1, "")
    assert "Write 'openai:NAME'" in ended.err


def test_the_provider_of_a_well_known_model_is_guessed(home: Home) -> None:
    """A name without a provider works where the name says whose it is, and a line says what was guessed."""
    ended = home.run("-p", "Hi.", "--model", "gpt-5")
    assert (ended.code, ended.out) == (0, "ok\n")
    assert "openai:gpt-5" in ended.err


def test_a_store_that_cannot_be_used_is_told(home: Home) -> None:
    """A store in a directory that does not exist, and a file that is none, are told in a line."""
    ended = home.run("-p", "Hi.", "--store", str(home.path / "no" / "where.db"))
    assert ended.code == 1
    assert "there is no directory" in ended.err
    (home.path / "text.db").write_text("this is no database, and long enough to be sure of that. " * 20)
    ended = home.run("-p", "Hi.", "--store", str(home.path / "text.db"))
    assert ended.code == 1
    assert "not a SQLite database" in ended.err


def test_the_embedded_model_answers_where_nothing_is_set(tmp_path: Path) -> None:
    """With no key, no settings and no network the embedded model answers, and three lines say what it is."""
    with Home(tmp_path).start("-p", "Say hi.", OLLAMA_HOST="127.0.0.1:9") as program:
        assert program.stdout is not None
        assert program.stdout.read(1)
        ended = end(program, signal.SIGINT)  # some of its answers are long
    first, second, third = ended.err.splitlines()[:3]
    assert "embedded model" in first
    assert "no tools" in second
    assert "OPENAI_API_KEY" in third


def test_a_closed_output_is_no_place_to_write_to(home: Home, provider: FakeProvider) -> None:
    """With its output closed from the beginning it answers nobody, and writes into no file that has the number now."""
    provider.script(answer("To nobody."))
    command = f'exec "{sys.executable}" -m halter -p Hi. >&-'
    ended = subprocess.run(["sh", "-c", command], env=home.env, timeout=60, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, without_slow_exit(ended.stderr.decode())) == (0, "")
    assert [event.kind for event in home.events()][-1] == "turn.finished"


def test_an_answer_that_cannot_be_written_is_an_error(home: Home, provider: FakeProvider) -> None:
    """The turn was done before the disk was found to be full: the program said nothing, and ended with code 0."""
    provider.script(answer("An answer."))
    command = f'exec "{sys.executable}" -m halter -p Hi. >/dev/full'
    ended = subprocess.run(["sh", "-c", command], env=home.env, timeout=WAIT, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, b"No space left on device" in ended.stderr) == (1, True), ended
    assert home.events()[-1].kind == "turn.finished"


def test_a_pipe_that_does_not_block_gets_all_of_the_answer(home: Home, provider: FakeProvider) -> None:
    """Some programs make their own end non-blocking, and with it ours: a full pipe was taken for a closed one."""
    text = "0123456789" * 20_000
    provider.script(answer(text))
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with subprocess.Popen([sys.executable, "-m", "halter", "-p", "Hi."], env=home.env, stdout=writing) as program:
        os.close(writing)
        home.wait_until_sealed()
        with open(reading) as pipe:
            assert pipe.read() == f"{text}\n"
        assert program.wait(WAIT) == 0


def test_a_terminal_is_not_told_what_to_do(home: Home, provider: FakeProvider) -> None:
    """On a terminal, controls in an answer are left out; in a pipe the answer is as it came."""
    text = "red \x1b[31mand\x07 \u009b2J done\n"
    provider.script(answer(text), answer(text))
    with OnTerminal(home, "-p", "Hi.") as terminal:
        assert terminal.end() == 0
    assert without_slow_exit(terminal.shown.decode()) == "red [31mand 2J done\r\n"
    assert home.run("-p", "Hi.").out == text
