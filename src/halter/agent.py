"""An agent: a model, its instructions and its tools. It holds no conversation; sessions do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.deadlines import check_seconds
from halter.models.backoff import Backoff
from halter.models.prices import Prices
from halter.models.registry import find_model
from halter.models.types import ModelSettings
from halter.tools.approval import Policy, check_policy
from halter.tools.toolset import collect_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from halter.models.prices import Price
    from halter.models.types import Model
    from halter.session.session import Session
    from halter.stores.base import Store
    from halter.tools.schema.output import OutputType
    from halter.tools.tool import Tool

__all__ = ["Agent", "Compaction", "Limits"]

_NO_SETTINGS: Final = ModelSettings()
_MIN_WINDOW: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one turn may use at most. `run()` continues a turn that came to a limit.

    `tokens` and `cost` are checked before each request, so the last one may go over them.
    """

    steps: int = 50
    """The number of requests. A steer restarts the count."""
    seconds: float | None = None
    """The deadline of the turn's token: at that moment everything is stopped, with reason "timeout"."""
    tokens: int | None = None
    """Input and output tokens, sub-agents included."""
    cost: float | None = None
    """The cost in USD, sub-agents included. If a price is not known, the turn fails before its first request."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")
        if self.seconds is not None:
            check_seconds("seconds", self.seconds)
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, not {self.tokens}; leave it out for no limit")
        if self.cost is not None and not self.cost > 0:
            raise ValueError(f"cost must be more than 0, not {self.cost}; leave it out for no limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When a conversation is compacted: before a request would fill more than *at* of the model's context window.

    *window* is the size of that context in tokens, where neither the model nor its server says it, or less is wanted.
    """

    at: float = 0.8
    window: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.at <= 1.0:
            raise ValueError(f"at must be a fraction of the context window, more than 0 and at most 1, not {self.at}")
        if self.window is not None and self.window < _MIN_WINDOW:
            raise ValueError(f"window must be at least {_MIN_WINDOW} tokens, not {self.window}")


class Agent:
    """What answers. Any number of sessions may share one, at the same time.

    `model` and `fallbacks` are models, or names of them: "openai:NAME", "anthropic:NAME", "ollama:NAME", "local".
    `instructions` is the system prompt, or a function that returns it, such as `toolbox.Instructions`. The function is
    called in a thread for the first request of a session, and its result is used as long as that session is open.
    `approve` decides about tools that need approval: "auto", "deny", "ask" (an event asks, `session.answer()` answers),
    a function, or None, which denies because nobody can be asked. `settings` are passed to the model with each request.
    `limits` are those of one turn; `max_steps` is short for `limits=Limits(steps=…)`. `compaction` says when the old
    part of a conversation is summarised to make room; with None, a conversation that is too long ends its turn.

    `output` is the type of `turn.output`: `str` for any text, else what the answer must be, such as a dataclass or
    `list[int]`. A wrong answer goes back to the model with the error, up to `output_retries` times in a turn.

    `prices` are yours, by the names of models; for others, `halter.models.prices` has the list prices of providers.
    """

    def __init__(  # noqa: PLR0913, PLR0917  (each is the user's to set, and all have a default)
        self,
        model: Model | str = "local",
        tools: Sequence[Tool[..., Any] | Callable[..., Any]] = (),
        instructions: str | Callable[[], str] = "",
        fallbacks: Sequence[Model | str] = (),
        max_steps: int = 50,
        name: str = "halter",
        approve: Policy = None,
        *,
        settings: ModelSettings = _NO_SETTINGS,
        limits: Limits | None = None,
        output: Any = str,  # noqa: ANN401  (a type, or something like list[int])
        output_retries: int = 1,
        prices: Mapping[str, Price] | None = None,
        compaction: Compaction | None = Compaction(),  # noqa: B008  (frozen)
    ) -> None:
        self.model = find_model(model)
        self.fallbacks = [find_model(each) for each in fallbacks]
        if not isinstance(instructions, str) and not callable(instructions):
            raise TypeError(f"instructions must be a text or a function that returns one, not {instructions!r}")
        self.tools = collect_tools(tools)
        self.tool_specs = [tool.spec for tool in self.tools.values()]
        self.instructions = instructions
        self.settings = settings
        self.limits = Limits(steps=max_steps) if limits is None else limits
        self.output_type = _output_type(output)
        if output_retries < 0:
            raise ValueError(f"output_retries must be zero or more, not {output_retries}")
        self.output_retries = output_retries
        self.prices = Prices(prices)
        self.compaction = compaction
        self.name = name
        self.approve = check_policy(approve)
        self.backoff = Backoff()

    def __repr__(self) -> str:
        return f"<Agent {self.name!r} on {self.model.name!r} with {len(self.tools)} tools>"

    def session(
        self,
        id: str | None = None,  # noqa: A002  (the contract's word)
        store: Store | None = None,
        *,
        deps: object = None,
        prepares: Collection[str] = (),
    ) -> Session:
        """Open a session: a new one, or the one of this id that the store has. Without a store it is kept in memory.

        *deps* is what tools find as `ctx.deps`, such as a database connection; sub-agents get it too. It is not stored.

        *prepares* names the preparations that the caller resumes, such as "transcribing": messages whose preparation
        was cut off by the end of the program keep waiting for it. All others are used as they are.
        """
        from halter.session.session import Session

        return Session(self, id, store, deps=deps, prepares=prepares)


def _output_type(output: Any) -> OutputType | None:  # noqa: ANN401  (as above)
    if output is str:
        return None
    from halter.tools.schema.output import OutputType

    return OutputType(output)
