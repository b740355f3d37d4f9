"""What can be typed beside messages: files, commands for the shell, notes, and lines of other sessions."""

from __future__ import annotations

import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.cli.chat.input_line.file_references import Completion, attached_images, complete_reference
from halter.cli.chat.input_line.history import InputHistory
from halter.cli.program_name import program_name
from halter.testing import FakeProvider, answer
from tests.support.chat_screen import CTRL_C, CTRL_D, CTRL_R, CTRL_U, ENTER, ESC, TAB, ChatScreen
from tests.support.cli_program import Home

PNG = b"\x89PNG\r\n\x1a\n rest"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with some files, which is the current one."""
    folder = tmp_path / "work"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("")
    (folder / "src" / "deep" / "needle.txt").write_text("")
    (folder / "my notes.md").write_text("")
    (folder / ".hidden").write_text("")
    (folder / "shot.png").write_bytes(PNG)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, provider: FakeProvider, workspace: Path) -> Home:
    home = Home(tmp_path / "home", provider)
    home.path.mkdir()
    home.launcher = ["env", "-C", str(workspace)]
    home.env["SHELL"] = "/bin/sh"
    return home


@pytest.fixture
def chat(home: Home) -> Iterator[ChatScreen]:
    with ChatScreen(home) as chat:
        chat.wait_ready()
        yield chat


def sent(provider: FakeProvider, number: int = 1) -> object:
    """The last message of a request."""
    return provider.wait_for_request(number).body["messages"][-1]["content"]


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("workspace")
@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("see @s", Completion(4, ["@shot.png", "@src/"])),
        ("@src/", Completion(0, ["@src/deep/", "@src/main.py"])),
        ("@SRC/M", Completion(0, [])),
        ("@My", Completion(0, ['@"my notes.md"'])),
        ('@"my n', Completion(0, ['@"my notes.md"'])),
        ("@.h", Completion(0, ["@.hidden"])),
        ("@nothing", Completion(0, [])),
        ("@no/such/folder/", Completion(0, [])),
        ("mail me@s", None),
        ("@s and", None),
    ],
)
def test_files_that_a_reference_may_mean(before: str, found: Completion | None) -> None:
    """A name after an @ is completed from its folder; folders end with a slash, names with spaces are in quotes."""
    assert complete_reference(before) == found


@pytest.mark.usefixtures("workspace")
def test_files_below_are_found_by_a_part_of_their_name() -> None:
    """Tab finds a file in a folder below if nothing here begins so."""
    assert complete_reference("@needle", deep=True) == Completion(0, ["@src/deep/needle.txt"])


@pytest.mark.usefixtures("workspace")
@pytest.mark.parametrize("text", ["@shot.png", "What is in shot.png?", "'shot.png'", "see (@shot.png).", "./shot.png"])
def test_images_are_attached(text: str) -> None:
    """An image is attached however it is named; what is no image, or no file, is not."""
    (image,) = attached_images(f"{text} and gone.png and src/main.py")
    assert (image.data, image.media_type) == (PNG, "image/png")


def test_a_reference_in_the_chat(chat: ChatScreen, provider: FakeProvider) -> None:
    """Files are shown as one types, Tab completes and sends nothing, and an image goes with the message."""
    chat.type("Look at @s")
    chat.wait_for("@shot.png  @src/")
    chat.type("h" + TAB)
    chat.wait_for_line("> Look at @shot.png")
    assert not provider.requests
    chat.type(ENTER)
    content = sent(provider)
    assert isinstance(content, list)
    assert [part["type"] for part in content] == ["text", "image_url"]


# -- commands and notes --------------------------------------------------------------------------


def test_a_command_of_the_user(chat: ChatScreen, provider: FakeProvider) -> None:
    """It has a terminal, its output is on the screen and goes with the next message, with its exit code."""
    chat.type("!test -t 1 && echo on a terminal; exit 3" + ENTER)
    chat.wait_for("on a terminal\n", "exit code 3; its output will be sent with your next message")
    chat.send("What was that?")
    content = str(sent(provider))
    assert content.startswith("What was that?\n\nI ran `test -t 1 && echo on a terminal; exit 3`:\n\non a terminal\n")
    assert content.endswith("[exit code 3]")


def test_output_that_was_not_sent(home: Home, provider: FakeProvider) -> None:
    """What a command has shown is not lost if the chat ends before the next message: the next run has it as a held
    message, which starts no turn by itself.
    """
    provider.script(answer("First answer."), answer("Second answer."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("First.")
        chat.wait_for("First answer.")
        chat.wait_ready()
        chat.send("!echo wonder | tr e E")
        chat.wait_for("its output will be sent with your next message")
        chat.type(CTRL_D)
        assert chat.end() == 0
        assert "The output of your commands is saved" in chat.text
    with ChatScreen(home, "--continue") as chat:
        chat.wait_for("held      I ran `echo wonder | tr e E`")
        chat.wait_ready()
        assert len(provider.requests) == 1
        chat.type(ENTER)
        chat.wait_for("Second answer.")
        assert "wondEr" in str(sent(provider, 2))


def test_output_without_a_conversation(home: Home) -> None:
    """A command alone makes no session."""
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("!echo wonder | tr e E")
        chat.wait_for("its output will be sent with your next message")
        chat.type(CTRL_D)
        assert chat.end() == 0
    assert home.events() == []


def test_a_command_is_stopped_as_in_any_terminal(chat: ChatScreen, provider: FakeProvider) -> None:
    """Ctrl+C ends the command and not the chat; keys go to it meanwhile, and none is lost afterwards."""
    chat.type("!read line; echo got $line | cat - /dev/tty" + ENTER)  # what is printed says that cat is running
    chat.wait_gone("idle")
    chat.type("words" + ENTER)
    chat.wait_for("got words")
    chat.type(CTRL_C)
    chat.wait_for("its output will be sent with your next message")
    chat.wait_ready()
    chat.send("Go on.")
    assert "got words" in str(sent(provider))


def test_a_command_that_leaves_its_terminal_and_ignores_the_hang_up(chat: ChatScreen, provider: FakeProvider) -> None:
    """It is killed: the chat waited for such a command as long as it ran."""
    chat.type("!trap '' HUP; exec </dev/null >/dev/null 2>&1; sleep 1000" + ENTER)
    chat.wait_for("stopped; its output will be sent with your next message")
    chat.wait_ready()


def test_a_note(chat: ChatScreen, home: Home, provider: FakeProvider) -> None:
    """A note is kept in the file of the tool `memory`, is not sent, and the model is told it in the next session."""
    chat.type("#We use tabs." + ENTER)
    chat.wait_for("# saved in")
    assert "- We use tabs." in (home.path / "memory.md").read_text()
    assert not provider.requests
    assert home.run("-p", "Hi.").code == 0
    assert "We use tabs." in provider.requests[0].body["messages"][0]["content"]


def test_what_is_no_note_and_no_command(chat: ChatScreen, provider: FakeProvider) -> None:
    """Pasted lines, and a line that begins with a space, are messages."""
    chat.paste("# Title\nText")
    chat.wait_for_line("Text")
    chat.type(ENTER)
    assert sent(provider) == "# Title\nText"
    chat.wait_ready()
    chat.type(" !important" + ENTER)
    assert sent(provider, 2) == " !important"


# -- what was typed before -----------------------------------------------------------------------


def test_lines_of_other_sessions_are_found(home: Home, provider: FakeProvider) -> None:
    """Ctrl+R finds what was typed in an earlier run; Enter takes it into the line, and does not send it."""
    provider.script(answer("One."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("find the needle in the hay")
        chat.wait_for("One.")
        chat.wait_ready()
        chat.type(CTRL_D)
        assert chat.end() == 0
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.type(CTRL_R + "needle")
        chat.wait_for_line("> find the needle in the hay")
        chat.type(ENTER)
        chat.wait_gone("search your input")
        chat.type("big ")  # the cursor is where it was found
        chat.wait_for_line("> find the big needle in the hay")
        chat.type(CTRL_U + CTRL_R + "needle")
        chat.wait_for("search your input")
        chat.type(ESC)
        chat.wait_gone("search your input")
        assert len(provider.requests) == 1


def test_the_file_of_lines(tmp_path: Path) -> None:
    """Only its owner may read it; what is damaged or repeated is left out; a file that cannot be used is no error."""
    path = tmp_path / "history.jsonl"
    history = InputHistory(path)
    for line in ("one", "two\nlines", "two\nlines"):
        history.store_string(line)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with path.open("a") as file:
        file.write("damaged\n")
    assert list(InputHistory(path).load_history_strings()) == ["two\nlines", "one"]
    nowhere = InputHistory(tmp_path / "no" / "folder")
    nowhere.store_string("x")
    assert list(nowhere.load_history_strings()) == []


def test_a_byte_that_is_not_text(home: Home, provider: FakeProvider) -> None:
    """A line with a byte that is not UTF-8 was sent again by each Enter, Ctrl+C failed, and it broke the exit."""
    provider.script(answer("One."), answer("Two."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.type("caf\udce9 and cake")
        chat.wait_for_line("and cake")
        chat.type(ENTER)
        chat.wait_for("One.")
        chat.wait_ready()
        chat.type("half" + ENTER)
        chat.wait_for("Two.")
        assert sent(provider, 2) == "half"
        chat.wait_ready()
        chat.type("caf\udce9 again" + CTRL_C)
        chat.wait_notice("line cleared")
        chat.type("caf\udce9 not sent")
        chat.wait_for_line("not sent")
        chat.program.send_signal(signal.SIGTERM)
        assert chat.end() == 143
        assert "Not sent: caf? not sent" in chat.text
    assert "caf? and cake" in InputHistory(home.path / "history.jsonl").load_history_strings()


# -- sessions ------------------------------------------------------------------------------------


def test_the_latest_session_and_one_by_its_beginning(home: Home, provider: FakeProvider) -> None:
    """`--continue` continues the latest; an id may be given by its beginning; one that fits several is an error."""
    for name in ("alpha", "alps", "beta"):
        assert home.run("-p", f"I am {name}.", "--session", name).code == 0
    assert home.run("-p", "Go on.", "--continue").code == 0
    assert "I am beta." in str(provider.requests[-1].body["messages"])
    assert home.run("-p", "Go on.", "--session", "alph").code == 0
    assert "I am alpha." in str(provider.requests[-1].body["messages"])
    ended = home.run("-p", "Go on.", "--session", "al")
    assert (ended.code, "2 sessions start with 'al'" in ended.err) == (1, True)


def test_a_session_is_picked(home: Home, provider: FakeProvider) -> None:
    """`--resume` shows the sessions; typing searches, Enter opens the chosen one, Esc leaves."""
    for name in ("first", "second"):
        assert home.run("-p", f"About {name}.", "--session", name).code == 0
    with ChatScreen(home, "--resume") as chat:
        chat.wait_for("Which session?", "> second", "first")
        chat.type("\x1b[B")
        chat.wait_for("> first")
        chat.type("second")
        chat.wait_for("search: second", "> second")
        chat.type(ENTER)
        chat.wait_for("» About second.")
        chat.wait_ready()
    with ChatScreen(home, "--resume") as chat:
        chat.wait_for("Which session?")
        chat.type(ESC)
        assert chat.end() == 0
    with ChatScreen(home, "--resume", "fir") as chat:
        chat.wait_for("» About first.")


@pytest.mark.parametrize(
    ("started", "env", "name"),
    [
        ("{bin}/halter", {"PATH": "{bin}"}, "halter"),
        ("{bin}/halter", {"PATH": "{bin}", "UV_RUN_RECURSION_DEPTH": "1"}, "uv run halter"),
        ("{bin}/halter", {"PATH": "/nowhere"}, "{bin}/halter"),
        ("-c", {}, "halter"),
    ],
)
def test_the_command_in_hints(tmp_path: Path, started: str, env: dict[str, str], name: str) -> None:
    """A hint names the command as it was typed: from the PATH, by uv, or by its path."""
    script = tmp_path / "halter"
    script.write_text("")
    script.chmod(0o755)
    filled = {key: value.format(bin=tmp_path) for key, value in env.items()}
    assert program_name(started.format(bin=tmp_path), filled) == name.format(bin=tmp_path)
