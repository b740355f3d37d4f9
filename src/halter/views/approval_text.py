"""What the user is shown before a call is allowed, and what they may answer: the same in every interface.

The reason comes first, then the whole call: nothing is cut off, and invisible characters are shown as escapes. A long
call is shown in pages, and can be allowed only when the last one was shown. The page of the gateway has the same rule
in JavaScript (`gateway/web/calls.js`).
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.views.diff_text import patch_counts, patch_tones
from halter.views.text import make_visible

if TYPE_CHECKING:
    from halter.views.items import Question

__all__ = ["ApprovalAnswer", "approval_answers", "approval_pages", "approval_title", "page_tones", "session_text"]

_TAB_WIDTH: Final = 4
_PROMPTS: Final = {
    "terminal": "Run this command?",
    "execute_code": "Run this code?",
    "patch": "Make these changes?",
    "write_file": "Write this file?",
}
_CHANGING: Final = frozenset({"patch", "write_file"})
_PAGE_LINES: Final = 20
_PAGE_LENGTH: Final = 1500  # characters: they fit on a small screen, and into a message of a chat platform


class ApprovalAnswer(NamedTuple):
    """One of the answers that a face offers."""

    key: str  # what is typed for it
    label: str
    value: bool | str  # for `session.answer()`


def approval_title(question: Question) -> str:
    """The question in one line. The reason comes first: it is the most important part."""
    reason = f"{make_visible(question.text)}. " if question.text else ""
    prompt = _PROMPTS.get(question.tool) or f"Allow {make_visible(question.tool)}?"
    return f"{reason}{prompt}{_counts(question)}"


def _counts(question: Question) -> str:
    """The files and counts of a change that a call would make, as far as its arguments have them."""
    path = question.arguments.get("path")
    name = f" {make_visible(path)}" if isinstance(path, str) and question.tool in _CHANGING else ""
    changes = question.arguments.get("changes") if question.tool == "patch" else None
    if question.tool == "write_file":
        content = str(question.arguments.get("content", ""))
        return f"{name} +{content.count(chr(10)) + (not content.endswith(chr(10)))}"
    return f"{name} {patch_counts(changes.split(chr(10)))}".rstrip() if isinstance(changes, str) else name


def page_tones(question: Question, pages: list[str]) -> list[list[str]]:
    """How the lines of the pages look: a change as a diff, anything else as a warning."""
    lines = [line for page in pages for line in page.split("\n")]
    tones: list[str]
    if question.tool == "patch":
        tones = [tone or "warn" for tone in patch_tones(lines)]
    elif question.tool == "write_file":
        first = next((at for at, line in enumerate(lines) if line.startswith("content: ")), len(lines))
        tones = ["warn"] * first + ["added"] * (len(lines) - first)
    else:
        tones = ["warn"] * len(lines)
    found = iter(tones)
    return [[next(found) for _ in page.split("\n")] for page in pages]


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
        first, *others = [make_visible(line.expandtabs(_TAB_WIDTH)) for line in text.split("\n")]
        lines += [f"{make_visible(name)}: {first}", *others]
    return lines


def approval_answers(question: Question, *, may_keep: bool) -> list[ApprovalAnswer]:
    """The possible answers, from the least to the most; *may_keep*: this user may change the settings."""
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
