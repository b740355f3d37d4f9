"""Compaction: makes room in the model's context, by shortening old results and summarising old turns.

It happens before a request that would fill the context, after a provider has refused one as too long, and when somebody
asks for it. It is a step of the turn: it runs under the turn's token, and the turn goes on by itself afterwards.

Nothing is written until the summary is complete. Then one command writes one `context.compacted`, unless the
conversation has changed meanwhile. So a stop, a steer or a crash at any point leaves the history as it was. If the
request for the summary fails, the beginning of the conversation is left out, and a note for the model says so.

A compaction that frees too little is not repeated at once: the next one waits until half of the rest is used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.agent import Compaction
from halter.cancel.detach import run_detached
from halter.events import ContextCompacted, SummaryDiscarded
from halter.models.context_window import ask_context_window, known_context_window, own_context_window, window_in_error
from halter.models.errors import ContextTooLong
from halter.models.model_call import ModelCall
from halter.models.tokens import message_tokens, prompt_tokens, text_tokens
from halter.models.types import Usage
from halter.session.compaction.plan import Planner
from halter.session.compaction.prefix import note_text
from halter.session.compaction.summary import summary_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from halter.agent import Agent
    from halter.cancel.token import CancellationToken
    from halter.events import CompactionReason
    from halter.models.types import Message
    from halter.session.compaction.plan import CompactionPlan
    from halter.session.history_view import HistoryView
    from halter.session.log import EventLog

__all__ = ["Compactor", "ContextUsage", "context_usage"]

_log = logging.getLogger(__name__)
_DEFAULT: Final = Compaction()
_GRACE: Final = 0.1  # seconds for a question about the window to end after a stop
_MIN_WINDOW: Final = 2_000  # tokens; no model has less, so a shorter request needs no question to the provider
_DEFAULT_WINDOW: Final = 8_192  # tokens, for `compact()` with a model whose window is not known
_MIN_SCALE: Final = 0.5  # the bounds of our estimate for one token that the provider counted:
_MAX_SCALE: Final = 4.0  # some servers report made-up counts
_NO_USAGE: Final = Usage()
_REFUSALS: Final = frozenset({"refusal", "content_filter"})


class ContextUsage(NamedTuple):
    """How full the context is: the tokens of the next request, and the model's window if it is known."""

    tokens: int
    window: int | None


class _Window(NamedTuple):
    """How many tokens fit: as reported by the model or its server, and the size of a request that was refused."""

    reported: int | None
    refused: int  # 0 if none was

    @property
    def size(self) -> int | None:
        return min(self.reported or self.refused, self.refused) if self.refused else self.reported


class Compactor:
    """Compacts one session, as long as nobody else runs turns in it."""

    def __init__(
        self,
        agent: Agent,
        instructions: str,
        log: EventLog,
        write: Callable[[HistoryView, ContextCompacted], Awaitable[bool]],
        write_discarded: Callable[[SummaryDiscarded], object],
    ) -> None:
        """*write* writes the event, unless the conversation is no longer the one that was compacted; then False.

        *write_discarded* records what a summary has used that is not used itself, without waiting.
        """
        self._agent = agent
        self._instructions = instructions
        self._log = log
        self._write = write
        self._write_discarded = write_discarded
        self._usage = _NO_USAGE  # of the requests for summaries since the last record

    async def make_room(self, token: CancellationToken) -> None:
        """Compact if the next request would fill the context. Raises `ContextTooLong` if nothing would help."""
        if self._agent.compaction is None and not self._log.compaction_requested:
            return
        view = self._log.view.history
        tokens = request_tokens(self._agent, self._instructions, view)
        window = await self._find_window(view, tokens, token)
        if self._log.compaction_requested:
            self._log.compaction_requested = False
            done = None
            try:
                done = await self._compact(view, "asked", window, token)
            finally:
                if done is None and token.reason == "steer":  # the next step does it
                    self._log.compaction_requested = True
            return
        size = window.size
        if size is None or tokens < self._trigger(view, size):
            return
        done = await self._compact(view, "full", window, token)
        tokens = done.after if done is not None else tokens
        if tokens * 3 // 4 > size:  # the estimate is high; a request that may fit is tried
            raise ContextTooLong(self._explain(self._log.view.history, tokens, size))

    async def make_room_after(self, error: ContextTooLong, token: CancellationToken) -> bool:
        """Compact after a provider has refused a request as too long; False if there is nothing left to compact."""
        if self._agent.compaction is None:
            return False
        view = self._log.view.history
        tokens = request_tokens(self._agent, self._instructions, view)
        window = await self._find_window(view, tokens, token)
        refused = min(filter(None, (tokens, window.refused, window_in_error(error))))
        return await self._compact(view, "too_long", window._replace(refused=refused), token) is not None

    async def compact(self, token: CancellationToken) -> ContextCompacted | None:
        """Compact now; None if there is nothing to compact."""
        view = self._log.view.history
        window = await self._find_window(view, request_tokens(self._agent, self._instructions, view), token)
        return await self._compact(view, "asked", window, token)

    # -- the window --------------------------------------------------------------------------------------------------

    async def _find_window(self, view: HistoryView, tokens: int, token: CancellationToken) -> _Window:
        """The window. The provider is asked for it once the conversation is long enough for it to matter."""
        settings, model = self._agent.compaction or _DEFAULT, self._agent.model
        reported = settings.window or own_context_window(model)
        if reported is None and tokens >= _MIN_WINDOW:
            reported = await self._ask_window(token)
        record = view.prefix.record if view.prefix is not None else None
        # What was refused counts as long as the model and its window are the same.
        is_same = record is not None and record.model == model.name and record.window == (reported or 0)
        return _Window(reported, record.refused if record is not None and is_same else 0)

    async def _ask_window(self, token: CancellationToken) -> int | None:
        """Ask the provider, by code that may be a user's: a stop does not wait for it."""
        answers: list[int | None] = []

        async def ask() -> None:
            answers.append(await ask_context_window(self._agent.model))

        await run_detached(ask, token, grace=_GRACE, name="ask_context_window() of the model")
        return answers[0]

    def _limit(self, window: int) -> int:
        """The tokens of a request at which it is time to compact."""
        settings = self._agent.compaction or _DEFAULT
        output = self._agent.settings.max_output_tokens or 0
        return max(min(int(window * settings.at), window - output), window // 4)

    def _trigger(self, view: HistoryView, window: int) -> int:
        """The limit; after a compaction that could not get far below it, half of the rest of the window."""
        limit = self._limit(window)
        after = view.prefix.record.after if view.prefix is not None else 0
        return max(limit, (after + window) // 2) if after < window else limit

    def _explain(self, view: HistoryView, tokens: int, window: int) -> str:
        agent = self._agent
        prompt = prompt_tokens(self._instructions, agent.tool_specs)
        last = max((message_tokens(each) for each in view.messages[-2:]), default=0)
        return (
            f"the next request has about {tokens:,} tokens and cannot be compacted further; the context of "
            f"{agent.model.name!r} has {window:,}. Instructions and tools are about {prompt:,} of them, the largest of "
            f"the newest messages {last:,}. Send a shorter message, or use a model with a larger context"
        )

    # -- the compaction ----------------------------------------------------------------------------------------------

    async def _compact(
        self, view: HistoryView, why: CompactionReason, window: _Window, token: CancellationToken
    ) -> ContextCompacted | None:
        """Compact the conversation of *view*; None if there was nothing to gain, or it has changed meanwhile."""
        try:
            return await self._plan_and_write(view, why, window, token)
        finally:
            unused, self._usage = self._usage, _NO_USAGE
            if unused.input_tokens or unused.output_tokens:
                self._write_discarded(SummaryDiscarded(token.reason or "", unused))

    async def _plan_and_write(
        self, view: HistoryView, why: CompactionReason, window: _Window, token: CancellationToken
    ) -> ContextCompacted | None:
        agent = self._agent
        before = request_tokens(agent, self._instructions, view)
        estimate = _estimated_tokens(agent, self._instructions, view)
        scale = min(max(estimate / before, _MIN_SCALE), _MAX_SCALE)  # our tokens for one of the provider's
        size = window.size or max(2 * before, _DEFAULT_WINDOW)
        limit = self._limit(size) if why != "asked" else min(self._limit(size), before)
        prompt = prompt_tokens(self._instructions, agent.tool_specs)
        planner = Planner(view, prompt, int(size * scale), int(limit * scale))
        plan = planner.shorten_old_results() if why != "asked" else None
        plan = plan or planner.replace_beginning()
        if plan is None:
            return None
        known = view.prefix.record if view.prefix is not None else ContextCompacted(why, "shortened", 0, 0)
        note, dropped, error = known.note, known.dropped, ""
        if plan.replaced:
            summary, error = await self._summarise(view, plan, int(size * scale), size // 8, token)
            note, dropped = (summary, 0) if summary else (note, dropped + plan.replaced)
        after = plan.tokens + text_tokens(note_text(note, dropped))
        if after >= estimate and why == "asked":
            return None
        record = ContextCompacted(
            why,
            "shortened" if not plan.replaced else "dropped" if error else "summarised",
            before,
            int(after / scale),
            upto=plan.upto,
            kept=plan.kept,
            note=note,
            dropped=dropped,
            shortened=plan.shortened,
            window=window.reported or 0,
            refused=window.refused,
            model=agent.model.name,
            error=error,
            usage=self._usage,
        )
        if not await self._write(view, record):
            return None
        self._usage = _NO_USAGE
        return record

    async def _summarise(
        self, view: HistoryView, plan: CompactionPlan, window: int, output: int, token: CancellationToken
    ) -> tuple[str, str]:
        """Ask for the note, of at most *output* tokens; returns it and "", or "" and why there is none.

        A boundary: an error of this request is no reason for the turn to fail.
        """
        record = view.prefix.record if view.prefix is not None else None
        first, note, kept = (record.upto, record.note, record.kept) if record is not None else (0, "", [])
        messages: list[Message] = [view.entries[index][1] for index in kept]
        messages += [message for _, message in view.entries[first : plan.upto]]
        error = ""
        for tokens in (window // 2, window // 5):  # the second if our estimate was so wrong that the first is too long
            request = summary_request(note, messages, tokens=tokens, output=output, settings=self._agent.settings)
            call = ModelCall(
                self._agent.model,
                request,
                token=token,
                fallbacks=self._agent.fallbacks,
                backoff=self._agent.backoff,
                prices=self._agent.prices,
            )
            try:
                answer = await call.run()
            except ContextTooLong as exc:
                error = str(exc)
                continue
            except Exception as exc:  # noqa: BLE001
                _log.warning("session %s: no summary, so old messages are left out: %s", self._log.id, exc)
                return "", str(exc) or type(exc).__name__
            finally:
                self._usage += call.answer.usage
            text = answer.text.strip()
            if answer.reason in _REFUSALS or not text:
                return "", "the model wrote no summary"
            return (text, "") if text_tokens(text) <= window // 4 else ("", "the summary was too long")
        return "", error


def request_tokens(agent: Agent, instructions: str, view: HistoryView) -> int:
    """About how many tokens the next request has: what the provider counted last, and an estimate of the rest."""
    count, tokens = view.measured
    if tokens:
        return tokens + sum(message_tokens(message) for _, message in view.entries[count : view.count])
    return _estimated_tokens(agent, instructions, view)


def _estimated_tokens(agent: Agent, instructions: str, view: HistoryView) -> int:
    """The same by the estimate alone."""
    return 1 + prompt_tokens(instructions, agent.tool_specs) + sum(map(message_tokens, view.messages))


def context_usage(agent: Agent, instructions: str, view: HistoryView) -> ContextUsage:
    """How full the context is."""
    settings = agent.compaction or _DEFAULT
    tokens = request_tokens(agent, instructions, view)
    return ContextUsage(tokens, settings.window or known_context_window(agent.model))
