"""`halter -p`: run one turn, print its answer as it comes, and exit with a code that says how it ended.

A stop loses nothing: the answer so far stays on the screen, and in the store, where the session can continue with it.
The first signal stops the turn, and the exit takes at most `exit_timeout`; a second signal exits at once.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Final

from halter.cancel import CancellationToken, ExitGuard
from halter.cli.output import EXIT_PIPE_CLOSED, Output, print_error
from halter.cli.program_name import program_name
from halter.cli.settings import SettingsError, flags_of, load
from halter.views.text import CANNOT_ASK, single_line

if TYPE_CHECKING:
    import argparse

    from halter.cli.settings import Configuration
    from halter.events import Event
    from halter.session.session import Session
    from halter.session.turn import Turn

__all__ = ["print_turn"]

_SIGNAL_GRACE: Final = 2.0  # seconds at most for output that is under way when a signal comes
# Imports make many objects and no garbage: a collection for every 700 of them would take a tenth of the start.
_GC_THRESHOLD: Final = 50_000
_REASONS: Final = {signal.SIGINT: "interrupt"}  # other signals: "shutdown"


def print_turn(options: argparse.Namespace) -> int:
    """Run one turn. Returns the exit code."""
    try:
        configuration = load(flags_of(options))
    except SettingsError as error:
        return print_error(error)
    output = Output()
    gc.set_threshold(_GC_THRESHOLD)
    with ExitGuard(configuration.settings.exit_timeout, say=output.announce) as guard:
        # Everything slow is below, where signals are handled.
        text = _read_text(options.text)
        if not text.strip():
            sys.exit(print_error("no text: pass it after -p or on standard input"))
        code = _PrintRun(guard, output, configuration, options).run(text)
        gc.freeze()  # skip the last garbage collection, which takes 50 ms
        sys.exit(code)
    return 0


def _read_text(parts: list[str]) -> str:
    """The text of the message. "-" or no argument: read standard input."""
    texts = [_read_stdin() if part == "-" else part for part in parts or ["-"]]
    return "\n\n".join(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts)


def _read_stdin() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace") if sys.stdin is not None else ""


class _PrintRun:
    """One run of the program."""

    def __init__(
        self, guard: ExitGuard, output: Output, configuration: Configuration, options: argparse.Namespace
    ) -> None:
        self._guard = guard
        self._configuration = configuration
        self._options = options
        self._output = output
        self._session: Session | None = None
        # The parent of the turn: if it is cancelled before the turn starts, the turn ends at once.
        self._parent = CancellationToken(name="print")
        self._is_signalled = False
        self._write_error: OSError | None = None

    def run(self, text: str) -> int:
        """Open the store and the session, and run the turn. A boundary: errors are printed in one line."""
        with self._guard.hold_signals():
            from halter.cli.agent_factory import make_agent, start_lines
            from halter.cli.commands.sessions import NotFound, wanted_session
            from halter.cli.model_choice import NoModel, choose_model
            from halter.errors import HalterError
            from halter.stores import SQLiteStore

        say = self._output.say
        try:
            with self._guard.hold_signals():
                choice = choose_model(self._configuration)
                agent = make_agent(self._configuration, choice, can_ask=False)
            for line in start_lines(self._configuration, choice, is_script=True):
                say(line)
            with SQLiteStore(self._configuration.make_store()) as store:
                wanted = wanted_session(store, self._options.session, latest=self._options.latest)
                if wanted and not store.read(wanted, limit=1):
                    say(f"halter: session {wanted!r} does not exist yet; starting it.")
                with agent.session(wanted, store) as session:
                    return self._run_turn(session, text)
        except (HalterError, NoModel, NotFound, OSError, SettingsError) as error:
            return print_error(error)

    def _run_turn(self, session: Session, text: str) -> int:
        with self._guard.hold_signals():
            from halter.cli.commands.event_printer import EventPrinter
            from halter.events import QuestionAsked

        self._session = session
        self._guard.on_signal = self._on_signal
        printer = EventPrinter(session, self._output, self._on_closed, as_json=self._options.json)
        questions = session.subscribe(only=(QuestionAsked,), on_events=lambda events: _answer(session, events))
        with self._parent.bind(), questions:
            turn = session.run(text)
        if self._is_signalled:
            self._output.announced.wait(self._signal_grace())  # the turn may end before the exit was announced
        printer.end()
        with self._guard.stage("the answer to be read"):
            CancellationToken.any_of(printer.done, self._guard.token).wait()
            printer.done.wait(self._signal_grace())  # after a signal, do not wait for a slow reader
        self._print_end(turn)
        return self._code(turn)

    def _signal_grace(self) -> float:
        return min(_SIGNAL_GRACE, self._guard.remaining() / 2)

    def _on_signal(self, number: int) -> bool:
        """Stop the turn, in a signal handler."""
        name = signal.Signals(number).name
        self._is_signalled = True
        self._stop(_REASONS.get(signal.Signals(number), "shutdown"), name, f"signal {name}")
        return True

    def _on_closed(self, error: OSError) -> None:
        """Stop the turn, in the printer's thread: the output cannot be written."""
        self._write_error = error
        self._stop("disconnect", f"cannot write the output: {error.strerror}", "closed output")

    def _stop(self, reason: str, detail: str, by: str) -> None:
        if self._session is not None:
            self._session.interrupt(reason=reason, detail=detail, by=by)
        self._parent.cancel(reason, detail=detail)  # if it has not started

    def _print_end(self, turn: Turn) -> None:
        """Print how the turn ended, unless it is simply done."""
        lost = self._write_error
        if turn.status == "done":
            if lost is None or lost.errno == errno.EPIPE:
                return
            result = f"the answer could not be written ({lost.strerror})"
        elif turn.status == "failed":
            result = f"the turn failed ({turn.reason}): {turn.detail or turn.error}"
        else:
            result = f"the turn was stopped ({turn.reason}: {turn.detail})"
        assert self._session is not None
        kept = "the answer so far is saved" if turn.text else "the message is saved"
        name = shlex.quote(single_line(self._session.id))
        self._output.say(f"halter: {result}; {kept} in session {name}.")
        self._output.say(
            f"        `{program_name()} --session {name} -p TEXT` continues it; "
            f"`{program_name()} why {name}` shows how it ended."
        )
        if turn.status == "failed" and "is not set" in result:  # the key of a provider
            self._output.say(f"        `{program_name()} login PROVIDER` asks for a key and stores it.")

    def _code(self, turn: Turn) -> int:
        lost = self._write_error
        if turn.status == "failed" or (lost is not None and lost.errno != errno.EPIPE):
            return 1
        if lost is not None:
            return EXIT_PIPE_CLOSED
        return 0 if turn.status == "done" else 128 + signal.SIGINT


def _answer(session: Session, asked: list[Event]) -> None:
    """Answer the questions of tools: nobody is there who could. In other threads, as the caller is the writer's."""
    from halter.cancel.threads import pool
    from halter.errors import HalterError

    def answer(question_id: str) -> None:
        with contextlib.suppress(HalterError):  # the turn is over, or the store has failed
            session.answer(question_id, CANNOT_ASK)

    for event in asked:
        pool.submit(functools.partial(answer, event.data.id))  # type: ignore[union-attr]  # of the subscribed kind
