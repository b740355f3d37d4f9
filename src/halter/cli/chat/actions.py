"""What the user can do in the chat, by keys, commands or plain lines. Each action shows a notice.

A message is stored before it leaves the input line. If that fails, it stays in the line, with the error.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final, Protocol

from halter.cancel.loop_bridge import run_in_thread
from halter.cli.chat.input_line.file_references import attached_images
from halter.cli.chat.user_command import command_text
from halter.cli.settings import SettingsError
from halter.cli.settings_file import add_prefixes
from halter.errors import HalterError, SessionClosed
from halter.toolbox.memory import Memory
from halter.views.stop_phrases import StopPhrases
from halter.views.text import count

if TYPE_CHECKING:
    from halter.cli.chat.screen.styling import Tone
    from halter.cli.chat.screen.transcript import ChatTranscript
    from halter.cli.chat.session_host import SessionHost
    from halter.cli.chat.user_command import CommandResult
    from halter.events import Mode
    from halter.session.inbox import InboxMessage, Receipt
    from halter.views.items import Question

__all__ = ["Actions", "Screen"]

_DOUBLE_PRESS: Final = 2.0  # seconds within which a second Ctrl+C quits
_REPEAT_WINDOW: Final = 2.0  # seconds in which a repeated answer to a question is not sent as a message
_EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT
_ANSWERS: Final[dict[str, object]] = {
    "y": True,
    "yes": True,
    "s": "session",
    "session": "session",
    "a": "always",
    "always": "always",
    "n": False,
    "no": False,
}
_DENIED_WITH_REASON: Final = re.compile(r"(?:no|n)[ ,;:.]+(.+)", re.IGNORECASE | re.DOTALL)


class Screen(Protocol):
    """Where the notices are shown: the terminal UI, or plain lines."""

    line: str  # what is being typed
    transcript: ChatTranscript

    @property
    def is_shutting_down(self) -> bool:
        """Whether the program is about to end."""
        ...

    def notice(self, text: str, tone: Tone = "dim") -> None:
        """Show a notice until the next one."""
        ...

    def refresh(self) -> None:
        """Show what has changed."""
        ...

    @property
    def width(self) -> int:
        """The columns that can be written in."""
        ...

    def clear_line(self) -> None:
        """Clear the input line; the arrow keys bring it back."""
        ...

    def show_session(self) -> None:
        """Show the host's session, which has changed."""
        ...

    @property
    def theme(self) -> str:
        """The theme of the colours."""
        ...

    def use_theme(self, theme: str) -> None:
        """Use other colours from now on."""
        ...

    def load_model(self) -> None:
        """Start to load a model that runs on this machine, and show that."""
        ...

    def quit(self, code: int, why: str) -> None:
        """End the program."""
        ...

    def quit_now(self) -> None:
        """End the program without waiting for anything."""
        ...


class Actions:
    """The actions of one chat."""

    def __init__(self, host: SessionHost, screen: Screen) -> None:
        settings = host.configuration.settings
        self.busy: Mode = settings.busy
        self.late: list[str] = []  # messages typed after the session was closed
        self._phrases = StopPhrases(settings.stop_phrases)
        self._host = host
        self._screen = screen
        self._outputs: list[str] = []  # of the user's own commands, sent with the next message
        self._edited = ""  # the queued message that is being edited
        self._pressed = -_DOUBLE_PRESS  # when Ctrl+C was last pressed
        self._typed_for: Question | None = None  # the question that was open when the line was begun
        self._answered: tuple[float, Question | None] = (-_REPEAT_WINDOW, None)  # the last answered approval, and when

    # -- messages ----------------------------------------------------------------------------------------------------

    def begin_line(self) -> None:
        """Note the open question when the user starts to type: "y" must not answer a later one."""
        self._typed_for = self._screen.transcript.display.question

    def send(self, text: str, mode: Mode | None = None) -> bool:
        """Send a line that is not a command, or answer a question with it; False if it stays in the line."""
        if self._edited:
            return self._end_edit(text)
        question = self._open_question()
        if not text.strip():
            if question is not None and self._screen.transcript.pages_left(question):
                self._show_next_page(question)
            else:
                self._release()
            return True
        if question is not None and mode is None:
            if question.kind == "approval" and (answer := _approval_answer(text)) is not None:
                return self._approve(question, answer)
            text = _chosen(question, text)
        elif mode is None and self._host.session.is_running and self._repeats_answer(text):
            why = "the question was already answered (Alt+Enter sends it as a message)"
            self._screen.notice(f"{text.strip()!r} was not sent: {why}", "warn")
            return True
        is_choice = question is not None and text in (question.choices or ())
        if mode is None and self._host.session.is_running and not is_choice and self._phrases.are_all(text):
            self.stop(f"stop phrase {text.strip()!r}")
            return True
        return self.post(text, mode or self._mode_for(question))

    def _open_question(self) -> Question | None:
        """The question that a line may answer; None if it was answered, and that is not in the log yet."""
        question = self._screen.transcript.display.question
        answered = self._answered[1]
        return None if question is not None and answered is not None and question.id == answered.id else question

    def _repeats_answer(self, text: str) -> bool:
        """Whether a line only repeats the answer to a closed question: a second "y" must not steer the turn."""
        when, answered = self._answered
        closed = self._typed_for or (answered if time.monotonic() - when <= _REPEAT_WINDOW else None)
        if closed is None:
            return False
        if closed.kind == "approval":
            return text.strip().casefold() in _ANSWERS
        return _chosen(closed, text) in (closed.choices or ())

    def _mode_for(self, question: Question | None) -> Mode:
        """The delivery mode of a line: a steer if a question is open, because a steer answers it."""
        is_asked = question is not None and question.kind != "approval"
        return "steer" if is_asked else self.busy

    def post(self, text: str, mode: Mode) -> bool:
        """Post a message, with the images that it names and the output of the user's own commands.

        False if it could not be stored.
        """
        full_text = "\n\n".join([text, *self._outputs])
        images = attached_images(text)
        try:
            receipt = self._host.post([full_text, *images] if images else full_text, mode)
        except SessionClosed:
            if not self._screen.is_shutting_down:
                raise
            self.late.append(text)
            self._screen.notice("saved for the next run")
            return True
        except HalterError as error:
            self._screen.notice(f"not sent: {error}", "bad")
            return False
        self._outputs.clear()
        attached = f"{count(len(images), 'image')} attached" if images else ""
        self._screen.notice("; ".join(filter(None, [self._delivery_text(receipt), attached])))
        self._screen.refresh()
        return True

    def add_output(self, ran: CommandResult) -> None:
        """Keep the output of a command of the user for the next message."""
        self._outputs.append(command_text(ran))
        how = "" if not ran.code else f"exit code {ran.code}; " if ran.code > 0 else "stopped; "
        tone = "warn" if ran.code else "dim"
        self._screen.transcript.say(f"{how}its output will be sent with your next message", tone, "  ")

    def take_outputs(self) -> list[str]:
        """Take the output of the user's own commands since the last message."""
        outputs, self._outputs = self._outputs, []
        return outputs

    async def remember(self, note: str) -> None:
        """Add a note to the memory, which agents with tools have in every session."""
        memory = Memory()
        try:
            result = await run_in_thread(lambda: memory.add(note))
        except (OSError, ValueError) as error:
            self._screen.transcript.say(f"the note was not saved: {error}", "bad")
        else:
            text = "saved" if result.startswith("Done") else "already saved"
            self._screen.transcript.say(f"{text} in {memory.path}: {note}", "dim", "# ")
        self._screen.refresh()

    def _delivery_text(self, receipt: Receipt) -> str:
        if self._screen.is_shutting_down:
            return "saved for the next run"
        if not self._host.session.is_running or receipt.state == "applied":
            return ""
        if receipt.mode == "steer":
            return "steering"
        if receipt.mode == "queue":
            return f"queued: {receipt.note or 'sent when this turn ends'}"
        return ""

    def _show_next_page(self, question: Question) -> None:
        """Show the next page of an approval."""
        self._screen.transcript.show_page(question)
        self._screen.refresh()

    def _approve(self, question: Question, answer: object) -> bool:
        if self._typed_for is None or self._typed_for.id != question.id:
            # It appeared while this was being typed, and may not have been read.
            self._typed_for = question
            self._screen.notice("this question appeared while you typed: press Enter again to answer it", "warn")
            return False
        is_denial = answer is False or isinstance(answer, dict)
        if not is_denial and self._screen.transcript.pages_left(question):
            self._show_next_page(question)
            self._screen.notice("read it to the end first", "warn")
            return True
        if answer == "always" and not question.prefixes:
            self._screen.notice("this cannot be allowed permanently: answer y, s or n", "warn")
            return False
        if not self._host.session.answer(question.id, answer, by="terminal"):
            self._screen.notice("that question is no longer open", "warn")
            return True
        self._answered = (time.monotonic(), question)
        if answer == "always":
            self._save_prefixes(question)
        return True

    def _save_prefixes(self, question: Question) -> None:
        """Write the prefixes that were allowed permanently to the settings file."""
        path = self._host.configuration.paths.config
        try:
            add_prefixes(path, question.prefixes)
        except (SettingsError, ValueError) as error:
            self._screen.transcript.say(f"allowed for this session only: {error}", "bad")
        else:
            self._screen.transcript.say(f"added to approve_prefixes in {path}")
        self._screen.refresh()

    def _release(self) -> None:
        """Release held messages, and serve the session again if serving had failed."""
        self._host.serve()
        if not any(pending.state == "held" for pending in self._host.session.inbox):
            return
        try:
            self._screen.notice(f"{count(self._host.session.release(), 'held message')} sent")
        except HalterError as error:
            self._screen.notice(f"not sent: {error}", "bad")

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, how: str) -> None:
        """Stop the turn and hold queued messages."""
        receipt = self._host.session.stop(detail=how)
        held = sum(pending.state == "held" for pending in self._host.session.inbox)
        kept = f"; {count(held, 'message')} held" if held else ""
        if receipt.stopped:
            self._screen.notice(f"stopping{kept}", "warn")
        elif receipt.turn_id:
            self._screen.notice(f"{receipt.note}{kept}")
        else:
            self._screen.notice(f"nothing is running{kept}")

    def escape(self) -> None:
        """Stop the turn; if none is running, end the editing of a queued message."""
        if self._edited and not self._host.session.is_running:
            self._edited = ""
            self._screen.clear_line()
            self._screen.notice("message unchanged")
            return
        self.stop("Esc")

    def press_ctrl_c(self) -> None:
        """Clear the line, or else stop the turn; twice: quit; once more: quit at once."""
        if self._screen.is_shutting_down:
            self._screen.quit_now()
            return
        if self._screen.line:
            self._screen.clear_line()
            was_edited, self._edited = self._edited, ""
            self._pressed = -_DOUBLE_PRESS
            self._screen.notice("message unchanged" if was_edited else "line cleared; press Up to get it back")
            return
        now = time.monotonic()
        if now - self._pressed <= _DOUBLE_PRESS:
            self._screen.quit(_EXIT_INTERRUPTED, "Ctrl+C")
            return
        self._pressed = now
        if self._host.session.is_running:
            self.stop("Ctrl+C")
        else:
            self._screen.notice("Nothing is running. Press Ctrl+C again to quit.")

    def cancel_edit(self) -> None:
        """End the editing of a queued message without changing it."""
        self._edited = ""

    # -- editing queued messages -------------------------------------------------------------------------------------

    def edit_last(self) -> None:
        """Edit the last queued message, or the one before the edited one. It stays queued meanwhile."""
        waiting = list(self._host.session.inbox)
        if not waiting:
            self._screen.notice("no messages are queued")
            return
        if self._screen.line and not self._edited:
            self._screen.notice("the line is not empty: send it or clear it with Ctrl+C")
            return
        pending = _previous(waiting, self._edited)
        self._edited = pending.id
        self._screen.line = pending.text
        self._screen.notice("press Enter to change the queued message, or empty the line to remove it")

    def _end_edit(self, text: str) -> bool:
        edited, self._edited = self._edited, ""
        inbox = self._host.session.inbox
        try:
            is_done = inbox.edit(edited, text) if text.strip() else inbox.remove(edited)
        except HalterError as error:
            self._edited = edited
            self._screen.notice(f"not changed: {error}", "bad")
            return False
        if is_done:
            self._screen.notice("changed" if text.strip() else "removed")
        else:
            self._screen.notice("it was sent in the meantime; press Enter to send this as a new message", "warn")
        return is_done


def _previous(pending_messages: list[InboxMessage], message_id: str) -> InboxMessage:
    """The message before the one with this id; the last one if there is none."""
    ids = [pending.id for pending in pending_messages]
    return pending_messages[ids.index(message_id) - 1] if message_id in ids else pending_messages[-1]


def _approval_answer(text: str) -> object | None:
    """The answer to an approval that a line contains; None if it is a message."""
    words = text.strip()
    if found := _DENIED_WITH_REASON.fullmatch(words):
        return {"deny": found[1].strip()}
    return _ANSWERS.get(words.casefold())


def _chosen(question: Question, text: str) -> str:
    """The choice with this number, or the text itself."""
    word = text.strip()
    if question.choices and word.isdecimal() and 1 <= int(word) <= len(question.choices):
        return question.choices[int(word) - 1]
    return text
