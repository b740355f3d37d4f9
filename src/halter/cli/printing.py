"""Print mode: one turn, its answer on standard output as it comes, and an exit code that says how it ended.

A stop keeps what was said: on the screen, on a line that is ended, and in the store, where the session goes on with it.
The first signal stops the turn, by name; leaving takes `exit_timeout` at the most, and a second one leaves at once.
"""

from __future__ import annotations

import gc
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Final

from halter.cancel import CancellationToken, ExitGuard
from halter.cli.output import Output, complain, plain
from halter.cli.settings import SettingsError, load

if TYPE_CHECKING:
    import argparse

    from halter.cli.settings import Configuration
    from halter.session import Session
    from halter.turn import Turn

__all__ = ["print_turn"]

PIPE_CLOSED: Final = 141  # as if by SIGPIPE, which Python ignores
_MOMENT: Final = 0.2
# Imports make many objects and no garbage: to look through them every 700 takes a tenth of the start.
_OBJECTS: Final = 50_000
_REASONS: Final = {signal.SIGINT: "interrupt"}  # others end the program: "shutdown"


def print_turn(options: argparse.Namespace) -> int:
    """Run one turn as the command line asks for it. Returns the exit code."""
    try:
        configuration = load({"model": options.model, "store": options.store})
    except SettingsError as error:
        return complain(error)
    output = Output()
    gc.set_threshold(_OBJECTS)
    with ExitGuard(configuration.settings.exit_timeout, say=output.announce) as guard:
        # All that takes a while is below, where a signal is heard.
        text = _read_text(options.text)
        if not text.strip():
            sys.exit(complain("there is no text to answer: give it with -p, or on standard input"))
        code = _Run(guard, output, configuration, options).run(text)
        gc.freeze()  # or Python looks through all that was imported once more before it ends: 50 ms for nothing
        sys.exit(code)
    return 0


def _read_text(parts: list[str]) -> str:
    """Put the text together; "-" stands for what comes on standard input, and so does nothing at all."""
    texts = [_read_stdin() if part == "-" else part for part in parts or ["-"]]
    return "\n\n".join(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts)


def _read_stdin() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace") if sys.stdin is not None else ""


class _Run:
    """One run of the program."""

    def __init__(
        self, guard: ExitGuard, output: Output, configuration: Configuration, options: argparse.Namespace
    ) -> None:
        self._guard = guard
        self._configuration = configuration
        self._options = options
        self._output = output
        self._session: Session | None = None
        self._around = CancellationToken(name="print")  # of the turn: cancelled before it begins, it ends at once
        self._is_signalled = False
        self._pipe_is_closed = False

    def run(self, text: str) -> int:
        """Open what is needed, and run the turn. A boundary: what can go wrong is told, in a line."""
        from halter.cli.agents import make_agent  # noqa: PLC0415  (all that follows takes a while to import)
        from halter.cli.choose import NoModel, choose  # noqa: PLC0415
        from halter.errors import HalterError  # noqa: PLC0415
        from halter.stores import SQLiteStore  # noqa: PLC0415

        say = self._output.say
        try:
            choice = choose(self._configuration)
            agent = make_agent(self._configuration, choice, can_ask=False)
            for line in choice.lines:
                say(line)
            with SQLiteStore(self._configuration.make_store()) as store:
                wanted = self._options.session
                if wanted and not store.read(wanted, limit=1):
                    say(f"halter: there was no session {wanted!r}; it begins now.")
                with agent.session(wanted, store) as session:
                    return self._run_turn(session, text)
        except (HalterError, NoModel, OSError, SettingsError) as error:
            return complain(error)

    def _run_turn(self, session: Session, text: str) -> int:
        from halter.cli.printer import Printer  # noqa: PLC0415  (as above)

        self._session = session
        self._guard.on_signal = self._on_signal
        printer = Printer(session, self._output, self._on_gone, as_json=self._options.json)
        with self._around.bind():
            turn = session.run(text)
        if self._is_signalled:
            self._output.announced.wait(_MOMENT)  # the turn may be over before anybody has said that it is to end
        printer.end()
        with self._guard.stage("the answer to be read"):
            CancellationToken.any_of(printer.done, self._guard.token).wait()
            printer.done.wait(_MOMENT)  # who wants to leave waits no longer for a reader
        self._tell(turn)
        return self._code(turn)

    def _on_signal(self, number: int) -> bool:
        """Stop the turn, in a signal's handler."""
        name = signal.Signals(number).name
        self._is_signalled = True
        self._stop(_REASONS.get(signal.Signals(number), "shutdown"), name, f"signal {name}")
        return True

    def _on_gone(self, error: OSError) -> None:
        """Stop the turn, in the printer's thread: nobody reads its answer."""
        self._pipe_is_closed = True
        self._stop("disconnect", f"the output can not be written: {error.strerror}", "whoever read the output")

    def _stop(self, reason: str, detail: str, by: str) -> None:
        turn = self._session.turn if self._session is not None else None
        if turn is not None:
            turn.cancel(reason, detail=detail, by=by)
        self._around.cancel(reason, detail=detail)  # if it has not begun

    def _tell(self, turn: Turn) -> None:
        """Say what happened, if that is not simply the answer."""
        if turn.status == "done":
            return
        if turn.status == "failed":
            what = f"the turn failed ({turn.reason}): {turn.detail or turn.error}"
        else:
            what = f"the turn was stopped ({turn.reason}: {turn.detail})"
        assert self._session is not None
        kept = "what was said until then is kept" if turn.text else "the message is kept"
        name = shlex.quote(plain(self._session.id))
        self._output.say(f"halter: {what}; {kept} in session {name}.")
        self._output.say(f"        `halter --session {name} -p TEXT` goes on, `halter why {name}` shows how it ended.")

    def _code(self, turn: Turn) -> int:
        if turn.status == "done":
            return 0
        if turn.status == "failed":
            return 1
        return PIPE_CLOSED if self._pipe_is_closed else 128 + signal.SIGINT
