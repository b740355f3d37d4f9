"""The state of a `SessionDisplay` as plain values, to be compared with what the page's reducer has."""

from __future__ import annotations

from typing import Any

from halter.views.items import (
    CallItem,
    ChildItem,
    CompactionItem,
    MessageItem,
    Question,
    ReasoningItem,
    RetryItem,
    TextItem,
    TurnDisplay,
)
from halter.views.session_view import SessionDisplay

# The same for the page's `SessionDisplay`.
DUMP_JS = """
const item = (each) => ({
  message: () => ["message", each.text, each.mode, each.voice, each.interrupted ?? []],
  text: () => ["text", each.text, each.live, each.superseded],
  thought: () => ["reasoning", each.text],
  retry: () => ["retry", each.error, each.model, each.attempt, each.hadText],
  compaction: () => ["compaction", each.how, each.before, each.after],
  call: () => ["call", each.id, each.name, each.state, each.progress, each.reason, each.after,
               each.approval?.state ?? null, each.late !== null,
               ...(each.diff || each.exitCode !== null ? [each.diff, each.exitCode] : [])],
  question: () => ["question", each.id, each.question, each.state, each.value, each.said],
  child: () => ["child", each.agent, each.task, each.state, each.reason,
                ...(each.calls ? [each.calls, each.tool, each.arguments] : [])],
})[each.kind]();
const turn = (each) => ({
  id: each.id,
  status: each.status,
  reason: each.reason,
  stop: each.stopping?.reason ?? null,
  ended: each.ended,
  after: each.after,
  phase: each.phase,
  rolled_back: each.rolledBack,
  tokens: each.tokens,
  cost: each.usage.cost,
  items: each.items.map(item),
  spans: each.spans.list.map((span) => [span.kind, span.name, span.start, span.end, span.how, span.late]),
});
const dump = (display) => ({
  state: display.state,
  agent: display.agent,
  title: display.title,
  tokens: display.tokens,
  cost: display.usage.cost,
  queue: [...display.queue.values()].map((each) =>
    [each.id, each.text, each.mode, each.state, each.preparing, each.voice, each.note]),
  questions: [...display.questions.keys()],
  turns: display.turns.map(turn),
});
"""


def dump(display: SessionDisplay) -> dict[str, Any]:
    return {
        "state": display.state,
        "agent": display.agent,
        "title": display.title,
        "tokens": display.usage.input_tokens + display.usage.output_tokens,
        "cost": display.usage.cost,
        "queue": [
            [each.id, each.text, each.mode, each.state, each.preparing, each.is_voice, each.note]
            for each in display.queue.values()
        ],
        "questions": list(display.questions),
        "turns": [_turn(each) for each in display.turns],
    }


def _turn(turn: TurnDisplay) -> dict[str, Any]:
    return {
        "id": turn.id,
        "status": turn.status,
        "reason": turn.reason,
        "stop": turn.stop.reason if turn.stop is not None else None,
        "ended": turn.ended,
        "after": turn.after,
        "phase": turn.phase,
        "rolled_back": turn.is_rolled_back,
        "tokens": turn.usage.input_tokens + turn.usage.output_tokens,
        "cost": turn.usage.cost,
        "items": [_item(each) for each in turn.items],
        "spans": [[span.kind, span.name, span.start, span.end, span.how, span.late] for span in turn.spans.all],
    }


def _item(item: object) -> list[Any]:  # noqa: PLR0911  (one for each kind)
    match item:
        case MessageItem():
            return ["message", item.text, item.mode, item.is_voice, item.interrupted]
        case TextItem():
            return ["text", item.text, item.is_live, item.is_superseded]
        case ReasoningItem():
            return ["reasoning", item.text]
        case RetryItem():
            return ["retry", item.error, item.model, item.attempt, item.had_text]
        case CallItem():
            approval = item.approval.state if item.approval is not None else None
            late = item.late is not None
            ended = [item.reason, item.after, approval, late]
            ended += [item.diff, item.exit_code] if item.diff or item.exit_code is not None else []
            return ["call", item.id, item.name, item.state, item.progress, *ended]
        case Question():
            return ["question", item.id, item.text, item.state, item.value, item.said]
        case ChildItem():
            work = [item.calls, item.tool, item.arguments] if item.calls else []
            return ["child", item.agent, item.task, item.state, item.reason, *work]
        case CompactionItem():
            return ["compaction", item.how, item.before, item.after]
    raise AssertionError(item)
