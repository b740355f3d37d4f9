"""A tool that asks the user: `clarify`. A choice, a text or a voice message answers; a stop withdraws the question."""

from __future__ import annotations

from typing import Any, Final

from halter.models.types import Part
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

__all__ = ["Clarify"]

_MAX_CHOICES: Final = 20


class Clarify:
    """Questions to the user. It keeps nothing; one object serves any number of sessions."""

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """All of them, for `Agent(tools=...)`."""
        return [self.clarify]

    @tool
    async def clarify(self, question: str, ctx: ToolContext, choices: list[str] | None = None) -> object:
        """Ask the user a question and wait for the answer. Use it only for what you cannot find out or decide yourself.

        Args:
            question: the question, in one or two sentences.
            choices: answers to choose from; the user may give another answer.

        """
        if not question.strip():
            raise ValueError("the question is empty")
        offered = _checked(choices)
        answer = await ctx.ask(question, offered)
        if isinstance(answer, list) and any(isinstance(each, Part) for each in answer):
            return answer  # a picture, or a voice
        return _chosen(answer, offered)


def _checked(choices: list[str] | None) -> list[str] | None:
    if not choices:
        return None
    named = list(dict.fromkeys(each.strip() for each in choices if each.strip()))
    if len(named) > _MAX_CHOICES:
        raise ValueError(f"too many choices: {len(named)}; pass at most {_MAX_CHOICES}, or none")
    return named or None


def _chosen(answer: object, choices: list[str] | None) -> str:
    """The answer as the model reads it: a choice in its own words, even if it was given by its number."""
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    text = "" if answer is None else str(answer).strip()
    if not text:
        return "[the user did not answer]"
    by_words = {each.casefold(): each for each in choices or ()}
    if text.casefold() in by_words:
        return by_words[text.casefold()]
    bare = text.rstrip(".)")
    if choices and bare.isdecimal() and 1 <= int(bare) <= len(choices):
        return choices[int(bare) - 1]
    return text
