"""The exit guard: bounded, honest, and never silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

from halter import ExitGuard
from tests.support.processes import is_alive, run_python


class Program:
    """A program that runs until it gets a signal, and how it ended."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()

    def end_by(self, number: int | None = None) -> tuple[int, str, float]:
        """Its code, what it said on stderr, and how long it took from now."""
        start = time.monotonic()
        if number is not None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said, time.monotonic() - start


WEDGED = """
    import asyncio, sys, threading, time
    from halter import ExitGuard, run_blocking_async, run_process
    from halter.testing import deaf_process

    def wedge():
        while True:
            time.sleep(1000)

    async def main():
        pids = []
        ready = asyncio.Event()
        def on_output(text):
            pids.extend(text.split()[1:])
            if len(pids) == 20:
                ready.set()
        tasks = [asyncio.create_task(run_blocking_async(wedge)) for _ in range(50)]
        tasks += [asyncio.create_task(run_process(deaf_process(escape=True), on_output=on_output)) for _ in range(10)]
        await ready.wait()
        print(*(pid.decode() for pid in pids), flush=True)
        {ending}

    with ExitGuard(timeout=5.0):
        asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("ending", "number", "code"),
    [
        ("await asyncio.sleep(60)", signal.SIGTERM, 143),
        ("await asyncio.sleep(60)", signal.SIGINT, 130),
        ("await asyncio.sleep(60)", signal.SIGHUP, 129),
        ("sys.exit(3)", None, 3),
        ("pass", None, 0),
        ("raise ValueError('x')", None, 1),
        ("threading.Thread(target=wedge, name='careless').start()", None, 70),
    ],
)
def test_fifty_wedged_threads_and_ten_wedged_children_do_not_hold_it_up(
    ending: str, number: int | None, code: int
) -> None:
    """Whatever the intent to exit is, the program is gone soon after it, and so is every child, with an honest code."""
    program = Program(WEDGED.format(ending=ending))
    got, said, _ = program.end_by(number)
    assert got == code, said
    pids = [int(word) for word in program.first_line.split()]
    assert len(pids) == 20
    assert not any(is_alive(pid) for pid in pids)
    if number is not None:
        assert f"Shutting down ({signal.Signals(number).name})…" in said
    if code == 70:
        assert "waiting for" in said
        assert "Forced exit after 5 s; still waiting for thread careless." in said


@pytest.mark.alone
def test_a_clean_exit_says_nothing() -> None:
    """There is nothing to say about a program that just ends."""
    result = run_python("from halter import ExitGuard\nwith ExitGuard() as guard:\n    print(guard.remaining())")
    assert (result.returncode, result.stdout, result.stderr) == (0, "5.0\n", "")


def test_the_token_is_cancelled_with_shutdown() -> None:
    """The guard's token is cancelled with the intent to exit, and says why."""
    program = """
        import os, signal, threading
        from halter import ExitGuard
        with ExitGuard() as guard:
            def listen():
                guard.token.wait(10)
                print(guard.token.reason, guard.token.detail, guard.remaining() < 5, flush=True)
            thread = threading.Thread(target=listen)
            thread.start()
            os.kill(os.getpid(), signal.SIGTERM)
    """
    result = run_python(program)
    assert (result.returncode, result.stdout) == (143, "shutdown SIGTERM True\n")


def test_a_second_signal_leaves_at_once_and_says_what_it_waited_for() -> None:
    """Asked again during a stage that takes long: forced, with the code that says that something was left behind."""
    program = Program("""
        import threading
        from halter import ExitGuard
        guard = ExitGuard(timeout=60)
        with guard:
            try:
                print("ready", flush=True)
                threading.Event().wait(60)
            finally:
                with guard.stage("the session to be saved") as seconds:
                    assert seconds <= 60
                    print("saving", flush=True)
                    threading.Event().wait(60)
    """)
    program.process.send_signal(signal.SIGTERM)
    assert program.process.stdout is not None
    assert program.process.stdout.readline() == "saving\n"
    code, said, seconds = program.end_by(signal.SIGINT)
    assert code == 70
    assert "Forced exit after a second signal; still waiting for the session to be saved." in said
    assert seconds < 10


def test_a_main_thread_that_never_comes_round_to_its_handler_does_not_keep_the_program() -> None:
    """The system delivers the signal while the main thread is stuck: the clock starts all the same."""
    program = Program("""
        import signal, threading
        from halter import ExitGuard

        def tell_when_main_is_asleep(main=threading.get_native_id()):
            asleep = 0
            while asleep < 20:
                with open(f"/proc/self/task/{main}/stat") as file:
                    asleep = asleep + 1 if file.read().rpartition(")")[2].split()[0] == "S" else 0
                threading.Event().wait(0.005)
            print("ready", flush=True)

        with ExitGuard(timeout=0.3):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # so nothing interrupts the wait below
            threading.Thread(target=tell_when_main_is_asleep, daemon=True).start()
            threading.Event().wait(60)
    """)
    code, said, _ = program.end_by(signal.SIGTERM)
    assert code == 70
    assert "Shutting down (SIGTERM)…" in said
    assert "Forced exit after 0.3 s" in said


def test_tasks_are_cancelled_where_asyncio_runs() -> None:
    """A signal ends tasks in their own way: `finally` runs, nothing is printed, and the code is the signal's."""
    program = Program("""
        import asyncio
        from halter import ExitGuard
        async def child():
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                print("child cleaned up", flush=True)
        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                await asyncio.sleep(0)
                print("ready", flush=True)
        with ExitGuard():
            asyncio.run(main())
    """)
    code, said, _ = program.end_by(signal.SIGINT)
    assert code == 130
    assert "Traceback" not in said
    assert said.startswith("Shutting down (SIGINT)…")


@pytest.mark.parametrize("iterations", [0, 1, 2, 4])
def test_tasks_that_start_a_process_end_too(iterations: int) -> None:
    """The task with which asyncio starts it was cancelled as well; the start never ended, and the exit was forced."""
    ended = run_python(f"""
        import asyncio, os, signal
        from asyncio.subprocess import PIPE
        from halter import ExitGuard
        async def start():
            process = await asyncio.create_subprocess_exec("sleep", "60", stdin=PIPE, stdout=PIPE)
            try:
                await process.wait()
            finally:
                process.kill()
                await process.wait()
        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(start())
                for _ in range({iterations}):
                    await asyncio.sleep(0)
                os.kill(os.getpid(), signal.SIGINT)
        with ExitGuard():
            asyncio.run(main())
    """)
    assert ended.returncode == 130, ended.stderr


def test_a_program_that_has_asyncio_but_is_not_in_it_is_interrupted_as_any_other() -> None:
    """Having imported asyncio is not running it."""
    program = Program("""
        import asyncio, threading
        from halter import ExitGuard
        with ExitGuard():
            print("ready", flush=True)
            threading.Event().wait(60)
    """)
    assert program.end_by(signal.SIGTERM)[0] == 143


def test_a_program_that_can_end_what_it_does_is_told_and_nothing_is_raised_in_it() -> None:
    """With on_signal the first signal is handed over; the program ends in its own way, with the signal's code."""
    program = Program(
        """
        import threading
        from halter import ExitGuard
        stop = threading.Event()
        def end(number):
            stop.set()
            return True
        with ExitGuard(on_signal=end):
            print("ready", flush=True)
            assert stop.wait(30)
            print("ended by itself", flush=True)
        """
    )
    assert program.process.stdout is not None
    program.process.send_signal(signal.SIGTERM)
    out, said = program.process.communicate(timeout=30)
    assert (program.process.returncode, out) == (143, "ended by itself\n")
    first, *more = said.splitlines()
    assert first == "Shutting down (SIGTERM)…"
    # On a busy machine the end may take so long that it says what it waits for.
    assert all(line.startswith("Shutting down: waiting for ") for line in more), more


def test_a_program_that_has_nothing_to_end_yet_is_interrupted_as_any_other() -> None:
    """If on_signal says that it ends nothing, as during start-up, the signal raises."""
    program = Program(
        """
        import time
        from halter import ExitGuard
        with ExitGuard(on_signal=lambda number: False):
            print("ready", flush=True)
            time.sleep(100)
        """
    )
    code, _, _ = program.end_by(signal.SIGINT)
    assert code == 130


def test_a_handler_that_has_raised_raises_no_more() -> None:
    """The handler raises once. A second signal is left to the watching thread."""
    guard = ExitGuard()
    guard._has_raised = True
    guard._on_signal(signal.SIGTERM, None)
    assert guard.remaining() == 5.0
    guard._reader.close()
    guard._writer.close()


def test_timeout_of_coreutils_asks_once() -> None:
    """`timeout 1 program` sends SIGTERM to the program and to its group: that is one request, not a forced exit."""
    program = """
        import os, signal, time
        from halter import ExitGuard
        def save(number):
            os.kill(os.getpid(), signal.SIGTERM)
            return False
        with ExitGuard(on_signal=save) as guard:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(100)
            finally:
                guard.token.wait()
                print("saved", flush=True)
    """
    result = run_python(program)
    assert (result.returncode, result.stdout) == (143, "saved\n")


def test_a_held_signal_raises_at_the_end_of_the_block() -> None:
    """In a hold_signals() block nothing is raised: an exception in the middle of an import may be lost."""
    program = """
        import os, signal
        from halter import ExitGuard
        with ExitGuard() as guard:
            with guard.hold_signals():
                os.kill(os.getpid(), signal.SIGINT)
                guard.token.wait()  # the clock has started
                print("whole", flush=True)
            print("not reached")
    """
    result = run_python(program)
    assert (result.returncode, result.stdout) == (130, "whole\n")


def test_a_block_without_a_signal_holds_nothing() -> None:
    """After the block a signal raises at once."""
    program = Program(
        """
        import time
        from halter import ExitGuard
        with ExitGuard() as guard:
            with guard.hold_signals():
                pass
            print("ready", flush=True)
            time.sleep(100)
        """
    )
    code, _, _ = program.end_by(signal.SIGTERM)
    assert code == 143


def test_a_forced_exit_flushes_what_was_printed() -> None:
    """Output in the buffer is not lost, and a broken stream or say() does not keep us."""
    program = """
        import sys, threading
        from halter import ExitGuard
        def say(text):
            raise OSError("the terminal is gone")
        with ExitGuard(timeout=0.2, say=say):
            print("in the buffer", end="")
            sys.stderr.close()
            threading.Thread(target=threading.Event().wait).start()
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    result = run_python(program, env=environment)
    assert (result.returncode, result.stdout) == (70, "in the buffer")


def test_many_threads_are_counted_and_not_listed() -> None:
    """Three names, and how many more."""
    program = """
        import threading
        from halter import ExitGuard
        with ExitGuard(timeout=0.2):
            for number in range(5):
                threading.Thread(target=threading.Event().wait, name=f"careless {number}").start()
    """
    result = run_python(program)
    assert result.returncode == 70
    assert "careless 2, 2 more threads" in result.stderr


def test_code_that_never_lets_go_of_pythons_lock_is_ended_too() -> None:
    """A catastrophic regular expression, at exit: faulthandler ends it, without Python's help, with code 1."""
    program = """
        import atexit, re
        from halter import ExitGuard
        atexit.register(re.match, r"(a+)+$", "a" * 60 + "b")
        with ExitGuard(timeout=1.0):
            pass
    """
    result = run_python(program)
    assert result.returncode == 1
    assert "Timeout" in result.stderr


@pytest.mark.parametrize(("argument", "code"), [("'message'", 1), ("None", 0), ("5", 5), ("", 0)])
def test_the_code_of_sys_exit_is_kept(argument: str, code: int) -> None:
    """sys.exit() means what it always means."""
    assert (
        run_python(f"import sys\nfrom halter import ExitGuard\nwith ExitGuard():\n    sys.exit({argument})").returncode
        == code
    )


def test_the_first_intent_starts_the_clock() -> None:
    """A later one does not set it back; and whatever codes were asked for, a thread that is left behind means 70."""
    program = """
        import threading
        from halter import ExitGuard
        with ExitGuard(timeout=0.3) as guard:
            guard.intend(4, "asked by the program")
            threading.Event().wait(0.1)
            guard.intend(5, "asked again")
            assert guard.remaining() < 0.21
            threading.Thread(target=threading.Event().wait).start()
    """
    assert run_python(program).returncode == 70


def test_in_another_thread_than_the_main_one_signals_are_left_alone() -> None:
    """Only the main thread may set handlers; the guard bounds the exit all the same."""
    program = """
        import signal, threading
        from halter import ExitGuard
        def work():
            with ExitGuard(timeout=0.2):
                print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
                threading.Thread(target=threading.Event().wait).start()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """
    result = run_python(program)
    assert (result.returncode, result.stdout) == (70, "True\n")


def test_a_bad_timeout_is_refused() -> None:
    """As everywhere."""
    bad: Any = -1
    with pytest.raises(ValueError, match="timeout must be zero or more"):
        ExitGuard(timeout=bad)


def test_a_signal_in_a_program_that_has_a_loop_elsewhere_is_raised() -> None:
    """Where asyncio is loaded and no loop runs in the main thread, a signal is an exception, as anywhere."""
    program = Program(
        """
        import asyncio, time
        from halter.cancel import ExitGuard

        with ExitGuard(timeout=5):
            print("ready", flush=True)
            time.sleep(60)
        """
    )
    code, _, _ = program.end_by(signal.SIGTERM)
    assert code == 143


def test_a_signal_that_is_somebody_elses_is_no_wish_to_leave() -> None:
    """A program that hears of its terminal's size by SIGWINCH, or of the time by SIGALRM, goes on; it was taken for the
    wish to exit, and the program was ended five seconds later.
    """
    program = """
        import signal, sys
        from halter import ExitGuard
        heard = []
        with ExitGuard(timeout=30) as guard:
            for number in (signal.SIGWINCH, signal.SIGALRM):
                signal.signal(number, lambda number, _: heard.append(number))
                signal.raise_signal(number)
            told = guard.token.wait(0.3)  # it would have been at once
            print(len(heard), told)
            guard.intend(3, "now")
            signal.raise_signal(signal.SIGWINCH)  # and does not hurry it, either
            guard.token.wait()
            sys.exit(0)
    """
    result = run_python(program)
    assert result.stdout == "2 False\n"
    assert "Forced exit" not in result.stderr
    assert result.returncode == 0


def test_a_signal_that_comes_while_the_block_is_entered_is_announced() -> None:
    """The handlers are there, and the block is not: it ends as from within, with what there is to say and to end."""
    program = Program(
        """
        import os, signal, sys, time
        from halter import ExitGuard
        install = signal.signal
        def signal_at_the_end(number, handler):
            install(number, handler)
            if number == signal.SIGHUP:  # the last one
                os.kill(os.getpid(), signal.SIGTERM)
        signal.signal = signal_at_the_end
        def say_late(text):
            time.sleep(0.2)
            print(text, file=sys.stderr)
        print("ready", flush=True)
        with ExitGuard(say=say_late):
            print("in the block", file=sys.stderr)
        """
    )
    code, said, _ = program.end_by()
    assert (code, said) == (128 + signal.SIGTERM, "Shutting down (SIGTERM)…\n")


def test_a_signal_that_the_guard_sends_again_never_counts_as_the_second_one() -> None:
    """The main thread may get it much later: here it blocks the signal, and sleeps, while another thread gets it."""
    program = Program(
        """
        import signal, sys, time
        from halter import ExitGuard
        with ExitGuard(timeout=30):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            try:
                print("ready", flush=True)
                time.sleep(1.5)
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
                time.sleep(1)
        """
    )
    code, said, _ = program.end_by(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert "Forced" not in said


def test_a_hangup_that_is_told_twice_is_one() -> None:
    """A terminal that is closed sends SIGHUP to the session's leader and to the group in front, which may be the same
    process: that is no second wish, and what is being saved is saved. Another signal still is one.
    """
    program = """
        import signal, sys, threading
        from halter import ExitGuard
        with ExitGuard(timeout=20.0, on_signal=lambda number: True) as guard:
            print(flush=True)
            guard.token.wait()
            for _ in range(3):
                signal.raise_signal(signal.SIGHUP)
            threading.Event().wait(0.3)  # it would have been ended at once
            print("saved", flush=True)
            if "again" in sys.argv:
                signal.raise_signal(signal.SIGTERM)
                threading.Event().wait(20)
    """
    for again, said, code in (("", "", 129), ("again", "Forced exit after a second signal", 70)):
        run = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), again],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert run.stdout is not None
        run.stdout.readline()
        run.send_signal(signal.SIGHUP)
        out, errors = run.communicate(timeout=30)
        assert (run.returncode, out) == (code, "saved\n")
        assert said in errors


@pytest.mark.parametrize("again", [False, True])
def test_a_signal_that_another_thread_received_still_interrupts_the_main_thread(again: bool) -> None:
    """The system may give a signal to a thread that is just starting a process. The main thread then went on waiting,
    and Ctrl+C did nothing; and that it is passed on does not count as being asked twice.
    """
    program = f"""
        import queue, signal, sys, threading
        from halter import ExitGuard
        again = {again}
        def wait_here():
            queue.SimpleQueue().get()
        def receive():
            main = threading.main_thread()
            while sys._current_frames()[main.ident].f_code.co_name != "wait_here" or not is_asleep(main):
                pass
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            if again:
                interrupted.wait()
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        def is_asleep(thread):
            with open(f"/proc/self/task/{{thread.native_id}}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "S"
        interrupted = threading.Event()
        with ExitGuard(timeout=20.0) as guard:
            threading.Thread(target=receive).start()
            try:
                wait_here()
            finally:
                print("interrupted", flush=True)
                interrupted.set()
                threading.Event().wait(20 if again else 0.5)
    """
    result = run_python(program)
    assert (result.returncode, result.stdout) == (70 if again else 130, "interrupted\n")


@pytest.mark.parametrize("losses", [1, 3])
def test_an_exception_that_a_finalizer_has_swallowed_is_raised_again(losses: int) -> None:
    """Python drops what a signal handler raises in a finalizer; the program ends all the same, at once."""
    program = f"""
        import os, signal, time
        from halter import ExitGuard

        class Swallows:
            def __init__(self, again):
                self.again = again

            def __del__(self):
                if self.again:
                    self.next = Swallows(self.again - 1)
                if self.again == {losses}:
                    os.kill(os.getpid(), signal.SIGINT)
                while True:
                    time.sleep(0.01)

        with ExitGuard(timeout=20.0):
            Swallows({losses})
            while True:
                time.sleep(0.01)
    """
    start = time.monotonic()
    result = run_python(program)
    assert result.returncode == 130, result.stderr
    assert result.stderr.startswith("Shutting down (SIGINT)…\n")
    assert "Traceback" not in result.stderr
    assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    ("ending", "shown"),
    [("pass", ""), ("sys.exit(3)", ""), ("sys.exit('no')", "no\n"), ("raise ValueError('no')", "ValueError: no\n")],
)
def test_what_is_left_behind_is_named_and_means_70(ending: str, shown: str) -> None:
    """Whatever the program asked for; and what Python would have printed about its end is printed too."""
    program = f"""
        import sys
        from halter import ExitGuard
        from halter.cancel.exit import add_ending
        add_ending(lambda seconds: ["a turn"] if seconds > 0 else [])
        with ExitGuard(timeout=30):
            {ending}
    """
    result = run_python(program)
    assert result.returncode == 70
    assert "Left behind: a turn.\n" in result.stderr
    assert shown in result.stderr


def test_what_was_started_after_the_block_is_ended_too() -> None:
    """A thread that went on starts something: that is ended when the interpreter exits, or named."""
    program = """
        from halter import ExitGuard
        from halter.cancel.exit import add_ending
        with ExitGuard(timeout=30):
            pass
        add_ending(lambda seconds: ["a process"])
    """
    result = run_python(program)
    assert result.returncode == 70
    assert "Left behind: a process.\n" in result.stderr


def test_a_signal_to_a_forked_child_is_the_childs() -> None:
    """A tool's pool of processes sends SIGTERM to its workers: that ended the program, or the worker swallowed it."""
    program = """
        import atexit, os, signal, time
        from halter import ExitGuard
        from halter.cancel.exit import add_ending
        def end(seconds):
            print("ended", flush=True)
            return []
        add_ending(end)
        with ExitGuard(on_signal=lambda number: True) as guard:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                child = os.fork()
                if not child:
                    signal.alarm(20)
                    try:
                        os.kill(os.getpid(), number)
                        time.sleep(60)
                    except KeyboardInterrupt:
                        atexit._run_exitfuncs()
                        os._exit(3)
                status = os.waitpid(child, 0)[1]
                print(os.waitstatus_to_exitcode(status), flush=True)
            print(guard.token.wait(0.3), flush=True)  # it would have been cancelled at once
    """
    result = run_python(program)
    assert (result.returncode, result.stdout) == (0, "-15\n-1\n3\nFalse\nended\nended\n"), result.stderr


@pytest.mark.parametrize("callback", ["lambda: threading.Event().wait()", "lambda: sys.exit(1)"])
def test_a_callback_that_hangs_or_exits_does_not_disarm_the_guard(callback: str) -> None:
    """A callback of the token ran in the watching thread: a client whose close() hung took the announcement, the second
    signal and the code with it.
    """
    program = Program(f"""
        import sys, threading, time
        from halter import ExitGuard
        with ExitGuard(timeout=60) as guard:
            guard.token.on_cancel({callback})
            try:
                print("ready", flush=True)
                threading.Event().wait()
            finally:
                print("interrupted", flush=True)
                threading.Event().wait()
    """)
    program.process.send_signal(signal.SIGTERM)
    assert program.process.stdout is not None
    assert program.process.stdout.readline() == "interrupted\n"
    code, said, _ = program.end_by(signal.SIGINT)
    assert code == 70
    assert "Shutting down (SIGTERM)…" in said
    assert "Forced exit after a second signal" in said


def test_where_no_thread_can_be_started_the_token_is_cancelled_all_the_same() -> None:
    """The limit of threads may be reached just when the user presses Ctrl+C."""
    program = """
        import os, signal, threading
        from halter import ExitGuard
        def start(thread):
            raise RuntimeError("can't start new thread")
        with ExitGuard() as guard:
            threading.Thread.start = start
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                guard.token.wait()
            finally:
                print(guard.token.wait(20), flush=True)
    """
    result = run_python(program)
    assert (result.returncode, result.stdout) == (143, "True\n")


def test_a_forced_exit_ends_whatever_fails_in_it() -> None:
    """An error while processes were ended killed the watching thread, and the program never ended."""
    program = """
        import threading
        from halter import ExitGuard
        from halter.cancel.processes import registry
        def fail():
            raise OSError("no descriptor is free")
        with ExitGuard(timeout=0.2) as guard:
            registry.add_source(fail)
            guard.intend(0, "the program is done")
            threading.Event().wait()
    """
    result = run_python(program)
    assert result.returncode == 70
    assert "Forced exit after 0.2 s" in result.stderr
