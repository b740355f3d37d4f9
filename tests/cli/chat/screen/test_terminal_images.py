"""Images that tools return, in terminals that can show them."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest

from halter.cli.chat.screen.terminal_images import image_protocol, image_sequence
from halter.models import Image, ToolCall
from halter.testing import FakeProvider, answer, tool_calls
from tests.support.chat_screen import ChatScreen
from tests.support.cli_program import Home


def png(width: int = 2, height: int = 2) -> bytes:
    """A grey picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(each % 251 for each in range(width)) for _ in range(height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")


PLOT = f"""
from halter import tool
from halter.models import Image

@tool
def plot() -> Image:
    'Draw a plot.'
    return Image(data={png()!r})

TOOLS = [plot]
"""


SENT = base64.b64encode(png())


@pytest.mark.parametrize(
    ("env", "image"),
    [
        (
            {"TERM_PROGRAM": "WezTerm"},
            b"\x1b]1337;File=inline=1;size=%d;preserveAspectRatio=1:%s\x07" % (len(png()), SENT),
        ),
        ({"TERM": "xterm-kitty"}, b"\x1b_Ga=T,f=100,m=0;%s\x1b\\" % SENT),
    ],
)
def test_a_plot_is_shown(home: Home, provider: FakeProvider, env: dict[str, str], image: bytes) -> None:
    """The image stands below the line of its call, once, and the conversation goes on below it."""
    home.write_module(PLOT)
    provider.script(tool_calls([ToolCall("1", "plot", "{}")]), answer("There it is."))
    home.env |= {"TMUX": "", "KITTY_WINDOW_ID": "", "TERM_PROGRAM": "", "HALTER_TOOLS": "mytools:TOOLS"} | env
    with ChatScreen(home, TERM=env.get("TERM", "xterm-256color")) as chat:
        chat.wait_ready()
        chat.send("draw")
        chat.wait_for("✓ plot")
        chat.wait(lambda: b"There it is." in chat.raw)
        assert bytes(chat.raw).count(image) == 1
        assert bytes(chat.raw).index(image) < bytes(chat.raw).index(b"There it is.")


@pytest.mark.parametrize(
    "env",
    [{}, {"TERM": "xterm-256color"}, {"TERM_PROGRAM": "WezTerm", "TMUX": "/tmp/tmux"}, {"TERM": "screen-256color"}],
)
def test_other_terminals_get_none(env: dict[str, str]) -> None:
    """A terminal that would show the bytes as text is sent nothing."""
    assert image_protocol(env) is None
    assert image_sequence(Image(data=png()), None) == ""


def test_what_a_terminal_cannot_show_is_left_out() -> None:
    """That is an image that is only a URL, one that is too large, and for kitty any that is no PNG."""
    assert image_sequence(Image(url="https://example.com/x.png"), "iterm2") == ""
    assert image_sequence(Image(data=bytes(3_000_000)), "iterm2") == ""
    assert image_sequence(Image(data=b"GIF89a", media_type="image/gif"), "kitty") == ""
    assert image_sequence(Image(data=png()[:12]), "kitty") == ""


def test_kitty_gets_a_large_image_in_pieces() -> None:
    """No piece is larger than it wants, all but the last say that more comes, and a high image is made smaller."""
    data = png(100, 500)
    first, *others = image_sequence(Image(data=data), "kitty").split("\x1b\\")[:-1]
    assert first.startswith("\x1b_Ga=T,f=100,r=20,m=1;")
    pieces = [each.partition(";")[2] for each in (first, *others)]
    assert base64.b64decode("".join(pieces)) == data
    assert max(map(len, pieces)) <= 4096
    assert [each.startswith("\x1b_Gm=1;") for each in others] == [True] * (len(others) - 1) + [False]
