"""What a person is shown who has to allow a call: the tool, the reason, and all arguments, with nothing hidden."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from halter.views.text import make_visible

if TYPE_CHECKING:
    from halter.views.items import Question

__all__ = ["approval_arguments", "approval_title"]

_TAB: Final = 4


def approval_title(question: Question) -> str:
    """The question in one line. The reason comes first: it is what must be read."""
    reason = f" ({make_visible(question.text)})" if question.text else ""
    return f"Allow {make_visible(question.tool)}?{reason}"


def approval_arguments(question: Question, max_length: int | None = None) -> str:
    """One line for each argument, more for a text of several lines. What is cut off at *max_length* is counted."""
    lines = []
    for name, value in question.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        shown = "\n".join(make_visible(line.expandtabs(_TAB)) for line in text.split("\n"))
        lines.append(f"{make_visible(name)}: {shown}")
    whole = "\n".join(lines)
    if max_length is None or len(whole) <= max_length:
        return whole
    return f"{whole[:max_length]}\n… {len(whole) - max_length:,} more characters not shown"
