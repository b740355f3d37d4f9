"""Messages over a pipe."""

from __future__ import annotations

import os
import threading

import pytest

from halter.cancel.isolation.pipe_messages import MessageReader, MessageWriter


def test_messages_cross_whole_and_in_order() -> None:
    """What goes in comes out, large ones too."""
    inner, outer = os.pipe()
    reader, writer = MessageReader(inner), MessageWriter(outer)
    large = b"x" * 1_000_000
    thread = threading.Thread(target=lambda: (writer.write(1), writer.write(large), writer.close()))
    thread.start()
    assert (reader.read(), reader.read()) == (1, large)
    with pytest.raises(EOFError):
        reader.read()
    thread.join()
    reader.close()


def test_half_a_message_is_an_end() -> None:
    """The other side died in the middle of a message."""
    inner, outer = os.pipe()
    os.write(outer, b"\0\0\0\0\0\0\0\5ab")
    os.close(outer)
    reader = MessageReader(inner)
    with pytest.raises(EOFError):
        reader.read()
    reader.close()


def test_a_writer_that_is_busy_is_not_waited_for_for_ever() -> None:
    """A message that cannot be sent in time is an error, not a wait."""
    inner, outer = os.pipe()
    writer = MessageWriter(outer)
    writer._lock.acquire()
    with pytest.raises(TimeoutError):
        writer.write(1, 0.01)
    writer._lock.release()
    os.close(inner)
    with pytest.raises(BrokenPipeError):
        writer.write(1)
    writer.close()
