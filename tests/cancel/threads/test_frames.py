"""What a thread is doing now."""

from __future__ import annotations

import gc
import threading

from halter.cancel.threads.frames import frame_of
from tests.support.processes import run_python


def test_the_frame_is_that_of_the_thread() -> None:
    """A thread's innermost frame while it runs, and nothing once it has ended; garbage is collected as before."""
    is_there, release = threading.Event(), threading.Event()

    def wait_here() -> None:
        is_there.set()
        release.wait(10)

    thread = threading.Thread(target=wait_here)
    thread.start()
    is_there.wait(10)
    frame = frame_of(thread.ident or 0)
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    release.set()
    thread.join(10)
    assert "wait_here" in names
    assert frame_of(0) is None
    assert gc.isenabled()
    gc.disable()
    try:
        frame_of(0)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_garbage_collection_meanwhile_blocks_nobody() -> None:
    """A finalizer that started a thread inside ``sys._current_frames()`` blocked the whole process for ever."""
    program = """
        import gc, threading
        from halter.cancel.threads.frames import frame_of

        class Garbage:
            def __init__(self):
                self.myself = self
            def __del__(self):
                threading.Thread(target=int).start()
                if looks < 200:
                    Garbage()

        looks = 0
        gc.set_threshold(1)
        Garbage()
        for looks in range(1, 201):
            assert frame_of(threading.get_ident()) is not None
        print("looked")
    """
    result = run_python(program)
    assert result.stdout == "looked\n", result.stderr
