"""The terminal: Markdown as it streams, live calls, resizing, pasting, wide characters, no colour, few columns."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from halter.models import ToolCall
from halter.testing import FakeProvider, ScriptedReply, answer, hang_mid_stream, tool_calls
from tests.support.chat_screen import CTRL_D, ENTER, ESC, ChatScreen
from tests.support.cli_program import Home
from tests.support.tmux_screen import TmuxScreen

PAGE = """# A *title*

A paragraph with **bold** and `code`.

- one
- two

| a | b |
|---|---|
| 1 | 2 |

```python
def f():
    return 1
```

The end."""


def test_an_answer_is_drawn_block_by_block(home: Home, provider: FakeProvider) -> None:
    """Markdown is drawn as what it means, each block once, and what scrolls away is not drawn again."""
    chunks = [PAGE[at : at + 7] for at in range(0, len(PAGE), 7)]
    provider.script(answer(chunks=chunks, interval=0.002))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Show me.")
        chat.wait_for("The end.")
        chat.wait_ready()
        text = chat.text
    for drawn in ("A title", "A paragraph with bold and code.", "• one", "def f():", "return 1", "The end."):
        assert text.count(drawn) == 1, text
    assert "**" not in text
    assert "```" not in text
    assert "\x1b[1m" in chat.raw.decode()


def test_a_long_answer_stays_in_the_scrollback(home: Home, provider: FakeProvider) -> None:
    """Two hundred paragraphs and as many lines of code, more than the screen has: each is above, once and in order."""
    code = "\n".join(f"line_{number} = {number}" for number in range(200))
    text = "\n\n".join(f"Paragraph {number}." for number in range(200)) + f"\n\n```python\n{code}\n```\n\nThe end."
    provider.script(answer(chunks=[text[at : at + 50] for at in range(0, len(text), 50)]))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Much, please.")
        chat.wait_for("The end.")
        chat.wait_ready()
        lines = [line.strip() for line in chat.text.split("\n")]
    assert [line for line in lines if line.startswith("Paragraph")] == [f"Paragraph {n}." for n in range(200)]
    assert [line for line in lines if line.startswith("line_")] == [f"line_{n} = {n}" for n in range(200)]


def test_calls_have_a_live_line_that_becomes_their_outcome(home: Home, provider: FakeProvider) -> None:
    """Each running call has its line, with its argument, its time and what it reports; done, it is one line above."""
    provider.script(
        tool_calls([ToolCall("1", "add", '{"a": 1, "b": 2}'), ToolCall("2", "dig", '{"place": "the old garden"}')])
    )
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Go.")
        chat.wait_for("✓ add 1, 2 · ")
        chat.wait_for_match(r"⋯ dig the old garden · \d+\.\d s · one metre deep")
        chat.wait_for_match(r"test · running 1 tool · \d+\.\d s · (?:ctx|context) ")
        chat.type(ESC)
        chat.wait_for_match(r"■ dig the old garden · cancelled · .* · stopped in ")
        chat.wait_gone("one metre deep")


def test_many_calls_leave_room_for_the_line(home: Home, provider: FakeProvider) -> None:
    """Thirty calls on a screen of ten rows: some are shown, the others counted, and the line is there."""
    provider.script(tool_calls([ToolCall(str(n), "dig", f'{{"place": "hole {n}"}}') for n in range(30)]))
    with ChatScreen(home, rows=10) as chat:
        chat.wait_ready()
        chat.send("Go.")
        chat.wait_for("… and 28 more", "running 30 tools")
        chat.type("still here")
        chat.wait_for_line("> still here")
        chat.type(ESC)
        chat.wait_for("■ stopped in")


def test_resizing(home: Home, provider: FakeProvider) -> None:
    """After a resize the line, what is typed and what streams are drawn for the new size."""
    provider.script(hang_mid_stream(9, text="A sentence of many words that goes on and on. " * 3))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Go.")
        chat.wait_for("A sentence of many words")
        chat.type("typed before")
        chat.wait_for_line("> typed before")
        chat.resize(30, 40)
        chat.wait(lambda: any(line.endswith("that goes on") for line in chat.display), "narrow")
        chat.wait_for_line("> typed before")
        chat.resize(12, 100)
        chat.wait(lambda: any("goes on and on. A sentence" in line for line in chat.display), "the wide words")
        chat.type(" and after")
        chat.wait_for_line("> typed before and after")
        chat.type(ESC)
        chat.wait_for("■ stopped in")


WIDE = "Ein Satz mit 漢字 und 🙂 darin, der lange weitergeht. "


def test_resizing_leaves_nothing_behind(home: Home, provider: FakeProvider) -> None:
    """However narrow the terminal becomes in the middle of an answer: the area below the conversation is there once,
    and what was said is still above it.
    """
    provider.script(hang_mid_stream(8, text=WIDE * 8))
    with ChatScreen(home, rows=30, columns=100) as chat:
        chat.wait_ready()
        chat.send("Los.")
        chat.wait_for("» Los.", "Ein Satz mit 漢字")
        chat.type("getippt 漢字")
        chat.wait_for_line("> getippt 漢字")
        once = ("» Los.", "> getippt", "test · ")
        for columns in (70, 45, 31, 90, 52):
            seen = len(chat.raw)
            chat.resize(30, columns)
            chat.wait(lambda seen=seen: b"getippt" in chat.raw[seen:], f"a drawing for {columns} columns")
        chat.type(ESC)
        chat.wait_for("■ stopped in")
        chat.wait_ready()
        text = chat.text
    assert [text.count(each) for each in once] == [1, 1, 1], text


SAID = [f"What was said before, number {number}, is long enough for a narrow one to wrap it." for number in range(12)]
WORDS = [f"word{number} " for number in range(120)]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.parametrize(
    "sizes",
    [
        [(30, 75)],
        [(30, 130), (30, 70)],
        [(30, columns) for columns in (*range(97, 58, -3), *range(60, 120, 5))],
        [(24, 90), (36, 62), (20, 84)],
    ],
    ids=["narrower", "wider", "burst", "both"],
)
def test_a_terminal_that_wraps_again(
    home: Home, provider: FakeProvider, tmp_path: Path, sizes: list[tuple[int, int]]
) -> None:
    """Resized in the middle of an answer, a terminal that wraps its rows again has the area below the conversation
    once, and each line of the conversation once.
    """
    provider.script(answer("\n\n".join(SAID)), ScriptedReply(tuple(WORDS), fault="hang", after=len(WORDS)))
    with TmuxScreen(home, tmp_path, rows=30, columns=100) as chat:
        chat.wait_for(" · idle")
        chat.send("first")
        chat.wait_for("number 11", " · idle")
        chat.send("second")
        chat.wait_for("word119", " · answering")
        chat.type("typed")
        chat.wait_for("> typed")
        chat.resize(*sizes)
        # The answer is wrapped for the last width: no row has room for the next word.
        chat.wait(lambda: is_wrapped_for(sizes[-1][1], chat.display))
        chat.press("Escape")
        chat.wait_for("■ stopped in", " · idle")
        text = chat.text
    assert [text.count(each) for each in ("» first", "» second", "> typed", "test · ", "starting")] == [1, 1, 1, 1, 0]
    flat = "".join(text.split())
    assert [flat.count(each.replace(" ", "")) for each in SAID] == [1] * len(SAID), text
    assert flat.count("".join(WORDS).replace(" ", "")) == flat.count("word7word") == 1, text


def is_wrapped_for(columns: int, lines: list[str]) -> bool:
    """Whether the words fill the rows of this width."""
    rows = [line for line in lines if line.startswith("word")]
    full = max(map(len, rows), default=0)
    return columns - len("word119 ") <= full < columns


def test_pasting_two_thousand_lines(home: Home, provider: FakeProvider) -> None:
    """Two thousand pasted lines are one message; the line stays alive before they are sent, and after."""
    pasted = "\n".join(f"line {number} of what was pasted" for number in range(2000))
    provider.script(answer("That is much."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        threading.Thread(target=chat.paste, args=(pasted,), daemon=True).start()
        chat.wait_for_line("line 1999 of what was pasted")
        chat.type("!")
        chat.wait_for_line("line 1999 of what was pasted!")
        assert not provider.requests
        chat.type(ENTER)
        chat.wait_for("» line 0 of", "… and 1,980 more lines", "That is much.")
        chat.send("Thanks.")
        chat.wait_for("» Thanks.")
    assert provider.requests[0].body["messages"][-1]["content"] == f"{pasted}!"


def test_wide_characters(home: Home, provider: FakeProvider) -> None:
    """Characters of two columns are typed, sent, shown and wrapped as what they are; none is cut in half or doubled."""
    provider.script(answer("これは" * 40))
    with ChatScreen(home, columns=41) as chat:
        chat.wait_ready()
        chat.type("日本語 ünïcödé 🐴")
        chat.wait(lambda: "日" in "".join(chat.display), "wide characters in the line")
        chat.type(ENTER)
        chat.wait_for("こ")
        chat.wait_ready()
        lines = [line for line in chat.text.replace(" ", "").split("\n") if "これ" in line or "は" in line]
    assert provider.requests[0].body["messages"][-1]["content"] == "日本語 ünïcödé 🐴"
    assert "".join(lines) == "これは" * 40


@pytest.mark.parametrize("value", ["1", ""])
def test_colour(home: Home, provider: FakeProvider, value: str) -> None:
    """With NO_COLOR there is no colour and no bold anywhere; without it there is."""
    provider.script(answer("**Bold** and `code`.\n\n```python\nprint(1)\n```\n"))
    with ChatScreen(home, NO_COLOR=value) as chat:
        chat.wait_ready()
        chat.send("Go.")
        chat.wait_for("print(1)")
        chat.wait_ready()
        has_color = any(f"\x1b[{code}m" in chat.raw.decode() for code in ("1", "2", "1;36", "36", "1;36;40"))
    assert has_color != bool(value)


def test_what_a_model_says_is_not_obeyed(home: Home, provider: FakeProvider) -> None:
    """Escape sequences in an answer, a tool's name or a message are shown without what a terminal would obey."""
    provider.script(answer("before \x1b[2J\x1b]0;title\x07 after"))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Go.")
        chat.wait_for("after")
        chat.wait_ready()
        assert b"\x1b[2J" not in chat.raw
        assert b"\x1b]0;" not in chat.raw
        chat.type(CTRL_D)
        assert chat.end() == 0


def test_what_others_print_is_said_above(home: Home, provider: FakeProvider) -> None:
    """A tool of the user's that prints, or warns, does not write into the picture: its lines are above it."""
    home.write_module(
        "import logging, sys\nfrom halter import tool\n"
        "@tool\ndef shout() -> str:\n    'Shout.'\n    print('printed by a tool')\n"
        "    logging.getLogger('mine').warning('warned by a tool')\n    print('no end', end='')\n    return 'ok'\n"
        "tools = [shout]\n"
    )
    provider.script(tool_calls([ToolCall("1", "shout", "{}")]), answer("Done."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Shout.")
        chat.wait_for("printed by a tool", "warned by a tool", "Done.")
        chat.wait_ready()
        lines = chat.text.split("\n")
        assert "printed by a tool" in lines
        assert "warned by a tool" in lines
        chat.type(CTRL_D)
        assert chat.end() == 0
        assert "Traceback" not in chat.text


def test_the_terminal_is_left_as_it_was(home: Home, provider: FakeProvider) -> None:
    """After the end the terminal echoes and knows lines again, and pasting is not bracketed any more."""
    import termios

    with ChatScreen(home) as chat:
        chat.wait_ready()
        flags = termios.tcgetattr(chat.file)[3]
        assert not flags & (termios.ECHO | termios.ICANON)
        chat.type(CTRL_D)
        assert chat.end() == 0
        flags = termios.tcgetattr(chat.file)[3]
        assert flags & termios.ECHO
        assert flags & termios.ICANON
        assert chat.raw.rfind(b"\x1b[?2004l") > chat.raw.rfind(b"\x1b[?2004h")
