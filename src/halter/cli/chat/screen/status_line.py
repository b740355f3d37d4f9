"""The last line of the chat: model, state, context, tokens and cost, sandbox and approvals, as far as there is room."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cli.chat.screen.styling import cells, short
from halter.views.text import elapsed

if TYPE_CHECKING:
    from halter.cli.chat.screen.transcript import ChatTranscript
    from halter.models.types import Usage
    from halter.session.compaction.compactor import ContextUsage

__all__ = ["SessionFigures", "brief_usage", "context_text", "status_line", "tokens_text"]

_MODEL_WIDTH: Final = 30  # columns
_THOUSAND: Final = 1_000
_MANY: Final = 100_000
_NEARLY_FULL: Final = 0.8  # of the context: then it is shown as a warning
_CENT: Final = 0.01


class SessionFigures(NamedTuple):
    """What the status line shows of a session, in addition to the transcript."""

    model: str
    context: ContextUsage
    usage: Usage
    sandbox: str  # empty if there are no tools that start processes
    approve: str


def tokens_text(number: int) -> str:
    """A number of tokens, short: 812, 3.4k, 128k, 1.0M."""
    if number < _THOUSAND:
        return str(number)
    if number < _MANY:
        return f"{number / _THOUSAND:.1f}k"
    if number < _THOUSAND * _THOUSAND:
        return f"{number // _THOUSAND}k"
    return f"{number / _THOUSAND / _THOUSAND:.1f}M"


def brief_usage(usage: Usage, unit: str = "") -> str:
    """Tokens and cost: "3.4k $0.02"."""
    tokens = f"{tokens_text(usage.input_tokens + usage.output_tokens)}{unit}"
    if not usage.cost:
        return tokens
    return f"{tokens} ${usage.cost:.2f}" if usage.cost >= _CENT else f"{tokens} ${usage.cost:.4f}"


def context_text(context: ContextUsage) -> tuple[str, str]:
    """How full the context is, in a long and in a short form."""
    if not context.window:
        text = tokens_text(context.tokens)
        return f"context {text}", f"ctx {text}"
    share = f"{100 * context.tokens / context.window:.0f}%"
    return f"context {share} of {tokens_text(context.window)}", f"ctx {share}"


def status_line(transcript: ChatTranscript, figures: SessionFigures, doing: str, width: int) -> tuple[str, str]:
    """The line, and its tone."""
    display = transcript.display
    state = doing or transcript.status
    if display.running is not None:
        state = f"{state} · {elapsed(time.time() - display.running.started)}"
    context = figures.context
    model = short(figures.model, _MODEL_WIDTH)
    parts = [_StatusPart(model, model, 0), _StatusPart(state, state, 0), _StatusPart(*context_text(context), 1)]
    turn = display.turns[-1] if display.turns else None
    if turn is not None and turn.usage.input_tokens + turn.usage.output_tokens:
        parts.append(_StatusPart(f"turn {brief_usage(turn.usage, ' tokens')}", f"turn {brief_usage(turn.usage)}", 4))
    if figures.usage.input_tokens + figures.usage.output_tokens:
        text = brief_usage(figures.usage)
        parts.append(_StatusPart(f"session {brief_usage(figures.usage, ' tokens')}", f"all {text}", 5))
    if figures.sandbox:
        parts.append(_StatusPart(f"sandbox {figures.sandbox}", figures.sandbox, 3))
    parts.append(_StatusPart(f"approvals {figures.approve}", figures.approve, 2))
    is_nearly_full = bool(context.window) and context.tokens >= _NEARLY_FULL * (context.window or 1)
    return _fitting(parts, width), "warn" if is_nearly_full else "dim"


class _StatusPart(NamedTuple):
    long: str
    brief: str
    rank: int  # the highest is left out first


def _fitting(parts: list[_StatusPart], width: int) -> str:
    """As many parts as fit: by rank they become brief one after another, and then are left out."""
    shown = {part: part.long for part in parts}
    for part in sorted(parts, key=lambda part: -part.rank):
        if cells(" · ".join(shown.values())) > width:
            shown[part] = part.brief
    for part in sorted(parts, key=lambda part: -part.rank):
        if part.rank and cells(" · ".join(shown.values())) > width:
            del shown[part]
    return short(" · ".join(shown.values()), width)
