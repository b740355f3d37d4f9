"""What a person is shown who has to allow a call, and what they may answer: the same in every face.

The reason comes first, then the whole call: nothing is cut off, and what cannot be seen is shown as an escape. A long
call is shown in pages, and a face takes a yes only when the last one was shown. The page of the gateway has the same
rule in JavaScript (`gateway/web/calls.js`).
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.views.text import make_visible

if TYPE_CHECKING:
    from halter.views.items import Question

__all__ = ["ApprovalAnswer", "approval_answers", "approval_pages", "approval_title", "session_text"]

_TAB: Final = 4
_PAGE_LINES: Final = 20
_PAGE_LENGTH: Final = 1500  # characters: they fit on a small screen, and into a message of a chat platform


class ApprovalAnswer(NamedTuple):
    """One of the answers that a face offers."""

    key: str  # what is typed for it
    label: str
    value: bool | str  # for `session.answer()`


def approval_title(question: Question) -> str:
    """The question in one line. The reason comes first: it is what must be read."""
    reason = f"{make_visible(question.text)}. " if question.text else ""
    return f"{reason}Allow {make_visible(question.tool)}?"


def approval_pages(question: Question) -> list[str]:
    """The title and all arguments, in pages. There is always one."""
    pages: list[list[str]] = [[]]
    left = _PAGE_LENGTH
    for line in [approval_title(question), *_argument_lines(question)]:
        rest, is_begun = line, False
        while rest or not is_begun:
            if not left or len(pages[-1]) == _PAGE_LINES:
                pages.append([])
                left = _PAGE_LENGTH
            pages[-1].append(rest[:left])
            rest, left, is_begun = rest[left:], left - len(rest[:left]), True
    return ["\n".join(page) for page in pages]


def _argument_lines(question: Question) -> list[str]:
    """One line for each argument, more for a text of several lines."""
    lines: list[str] = []
    for name, value in question.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        first, *others = [make_visible(line.expandtabs(_TAB)) for line in text.split("\n")]
        lines += [f"{make_visible(name)}: {first}", *others]
    return lines


def approval_answers(question: Question, *, may_keep: bool) -> list[ApprovalAnswer]:
    """What may be answered, from the least to the most; *may_keep*: this person may change the settings."""
    answers = [ApprovalAnswer("n", "Deny", value=False), ApprovalAnswer("y", "Allow once", value=True)]
    answers.append(ApprovalAnswer("s", f"Allow {session_text(question)} in this session", "session"))
    if may_keep and question.prefixes:
        answers.append(ApprovalAnswer("a", f"Always allow {_prefix_text(question)}", "always"))
    return answers


def session_text(question: Question) -> str:
    """What an answer for the session allows."""
    if question.prefixes:
        return _prefix_text(question)
    return f"every call of {make_visible(question.tool)}" if question.covers == "tool" else "exactly this call"


def _prefix_text(question: Question) -> str:
    return ", ".join(f"`{make_visible(shlex.join(each))} …`" for each in question.prefixes)
