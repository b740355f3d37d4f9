"""What a person does in the chat, by keys, by commands or by plain lines; and what each of it says that it did.

A message is in the store before it leaves the line. Where that fails, it stays in the line, beside the error.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from halter.cli.chat.words import count
from halter.errors import HalterError, SessionClosed

if TYPE_CHECKING:
    from halter.cli.chat.drawing import Tone
    from halter.cli.chat.host import Host
    from halter.cli.chat.view import Prompt, View
    from halter.events import Mode
    from halter.inbox import Letter, Receipt

__all__ = ["Actions", "Screen"]

_TWICE: Final = 2.0  # seconds within which a second Ctrl+C is one
_INTERRUPTED: Final = 130
_ANSWERS: Final = {"y": True, "yes": True, "n": False, "no": False}


class Screen(Protocol):
    """Where it is done: the face of the chat, or plain lines."""

    line: str  # what is being typed
    view: View

    @property
    def is_leaving(self) -> bool:
        """Whether the program is about to end."""
        ...

    def notice(self, text: str, tone: Tone = "dim") -> None:
        """Say something that need not stay."""
        ...

    def refresh(self) -> None:
        """Show what has changed."""
        ...

    @property
    def width(self) -> int:
        """The columns that can be written in."""
        ...

    def clear_line(self) -> None:
        """Take away what is being typed; the arrow keys bring it back."""
        ...

    def show_session(self) -> None:
        """Show the host's session, which is another one now."""
        ...

    def load_model(self) -> None:
        """Begin to load a model that runs here, and show that it is being loaded."""
        ...

    def leave(self, code: int, why: str) -> None:
        """End the program."""
        ...

    def leave_at_once(self) -> None:
        """End the program without waiting for anything."""
        ...


class Actions:
    """What can be done."""

    def __init__(self, host: Host, screen: Screen) -> None:
        settings = host.configuration.settings
        self.busy: Mode = settings.busy
        self.late: list[str] = []  # messages that came when the session was closed
        self._phrases = {phrase.casefold() for phrase in settings.stop_phrases}
        self._host = host
        self._screen = screen
        self._edited = ""  # the message that is in the line to be changed
        self._pressed = -_TWICE  # when Ctrl+C was
        self._typed_for = ""  # the question that was open when the line was begun

    # -- messages ----------------------------------------------------------------------------------------------------

    def begin_line(self) -> None:
        """Note what is asked as somebody begins to type: "y" is no answer to what comes up later."""
        prompt = self._screen.view.prompt
        self._typed_for = prompt.id if prompt is not None else ""

    def send(self, text: str, mode: Mode | None = None) -> bool:
        """Do what a line says that is no command; False if it is to stay in the line."""
        if self._edited:
            return self._end_edit(text)
        if not text.strip():
            self._release()
            return True
        prompt = self._screen.view.prompt
        if prompt is not None and mode is None:
            if prompt.is_approval and text.strip().casefold() in _ANSWERS:
                return self._approve(prompt, granted=_ANSWERS[text.strip().casefold()])
            text = _chosen(prompt, text)
        is_choice = prompt is not None and text in (prompt.choices or ())
        if mode is None and self._host.session.is_running and not is_choice and self._means_stop(text):
            self.stop(f"the word {text.strip()!r}")
            return True
        return self.post(text, mode or self._mode_for(prompt))

    def _mode_for(self, prompt: Prompt | None) -> Mode:
        """As what a line is sent. One that interrupts is never an answer, so with a question open it waits instead."""
        is_asked = prompt is not None and not prompt.is_approval
        return "queue" if is_asked and self.busy == "interrupt" else self.busy

    def _means_stop(self, text: str) -> bool:
        return text.strip().rstrip(".!").casefold() in self._phrases

    def post(self, text: str, mode: Mode) -> bool:
        """Leave a message for the agent; False if it could not be kept."""
        try:
            receipt = self._host.post(text, mode)
        except SessionClosed:
            if not self._screen.is_leaving:
                raise
            self.late.append(text)
            self._screen.notice("kept for the next time")
            return True
        except HalterError as error:
            self._screen.notice(f"not sent: {error}", "bad")
            return False
        self._screen.notice(self._what_became(receipt))
        self._screen.refresh()
        return True

    def _what_became(self, receipt: Receipt) -> str:
        if self._screen.is_leaving:
            return "kept for the next time"
        if not self._host.session.is_running or receipt.state == "applied":
            return ""
        if receipt.mode == "steer":
            return "steering"
        if receipt.mode == "queue":
            return f"queued: {receipt.note or 'sent when this turn is over'}"
        return ""

    def _approve(self, prompt: Prompt, *, granted: bool) -> bool:
        if self._typed_for != prompt.id:
            # It came up while this was being typed, and may never have been read.
            self._typed_for = prompt.id
            self._screen.notice("this was asked while you typed: Enter again answers it", "warn")
            return False
        if not self._host.session.answer(prompt.id, granted):
            self._screen.notice("that is not asked any more", "warn")
        return True

    def _release(self) -> None:
        """Let held messages go on; and try again what had failed."""
        self._host.serve()
        if not any(letter.state == "held" for letter in self._host.session.inbox):
            return
        try:
            self._screen.notice(f"{count(self._host.session.release(), 'held message')} sent")
        except HalterError as error:
            self._screen.notice(f"not sent: {error}", "bad")

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, how: str) -> None:
        """Stop the turn, and hold what waits."""
        receipt = self._host.session.stop(detail=how)
        held = sum(letter.state == "held" for letter in self._host.session.inbox)
        kept = f"; {count(held, 'message')} held" if held else ""
        if receipt.stopped:
            self._screen.notice(f"stopping{kept}", "warn")
        elif receipt.turn_id:
            self._screen.notice(f"{receipt.note}{kept}")
        else:
            self._screen.notice(f"nothing runs{kept}")

    def escape(self) -> None:
        """Stop the turn; if nothing runs, leave a message that was to be edited as it was."""
        if self._edited and not self._host.session.is_running:
            self._edited = ""
            self._screen.clear_line()
            self._screen.notice("the message stays as it was")
            return
        self.stop("Esc")

    def press_ctrl_c(self) -> None:
        """Clear the line; else stop the turn; twice, leave; and once more, at once."""
        if self._screen.is_leaving:
            self._screen.leave_at_once()
            return
        if self._screen.line:
            self._screen.clear_line()
            was_edited, self._edited = self._edited, ""
            self._pressed = -_TWICE
            self._screen.notice("the message stays as it was" if was_edited else "line cleared; Up brings it back")
            return
        now = time.monotonic()
        if now - self._pressed <= _TWICE:
            self._screen.leave(_INTERRUPTED, "Ctrl+C")
            return
        self._pressed = now
        if self._host.session.is_running:
            self.stop("Ctrl+C")
        else:
            self._screen.notice("nothing runs; Ctrl+C once more leaves")

    def leave_edit(self) -> None:
        """Leave a message that is in the line to be changed as it is."""
        self._edited = ""

    # -- editing what waits ------------------------------------------------------------------------------------------

    def edit_last(self) -> None:
        """Take the last message that waits into the line, or the one before that; it waits on meanwhile."""
        waiting = list(self._host.session.inbox)
        if not waiting:
            self._screen.notice("no message waits")
            return
        if self._screen.line and not self._edited:
            self._screen.notice("the line is not empty: send it, or clear it with Ctrl+C")
            return
        letter = _before(waiting, self._edited)
        self._edited = letter.id
        self._screen.line = letter.text
        self._screen.notice("Enter changes this message where it waits; an empty line removes it")

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
            self._screen.notice("it was sent before you were done; Enter sends this as another message", "warn")
        return is_done


def _before(letters: list[Letter], message_id: str) -> Letter:
    """The message in front of the one of this id; the last, if there is none."""
    ids = [letter.id for letter in letters]
    return letters[ids.index(message_id) - 1] if message_id in ids else letters[-1]


def _chosen(prompt: Prompt, text: str) -> str:
    """The choice that a number stands for; else the text as it is."""
    word = text.strip()
    if prompt.choices and word.isdecimal() and 1 <= int(word) <= len(prompt.choices):
        return prompt.choices[int(word) - 1]
    return text
