"""The current token: bound for a block, inherited by tasks and Halter's worker threads."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

from halter.cancel.token import NEVER, CancellationToken

if TYPE_CHECKING:
    from types import TracebackType

_current: contextvars.ContextVar[CancellationToken] = contextvars.ContextVar("halter.token", default=NEVER)


def current_token() -> CancellationToken:
    """Return the token bound here, else NEVER."""
    token = _current.get()
    token.was_checked = True
    return token


def checkpoint() -> None:
    """Raise Cancelled if the current token is cancelled."""
    token = _current.get()
    token.was_checked = True
    if token.is_cancelled:
        token.raise_if_cancelled()


def bind_from_here_on(token: CancellationToken) -> None:
    """Make *token* current for the rest of this task, which has a context of its own."""
    _current.set(token)


class Binding:
    """The block of ``with token.bind():``. Use each one once."""

    __slots__ = ("_previous", "_token")

    def __init__(self, token: CancellationToken) -> None:
        self._token = token
        self._previous: contextvars.Token[CancellationToken] | None = None

    def __enter__(self) -> CancellationToken:
        if self._previous is not None:
            raise RuntimeError("this binding is already in use; call token.bind() again for each block")
        self._previous = _current.set(self._token)
        return self._token

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._previous is None:
            raise RuntimeError("this binding was never entered; write `with token.bind():`")
        try:
            _current.reset(self._previous)
        except ValueError as error:
            if kind is GeneratorExit:
                return  # a coroutine whose loop is gone is freed, by whichever thread; nobody runs in its context
            raise RuntimeError(
                "a binding must be left in the task or thread that entered it; bind inside the function that runs "
                "there, and do not keep a binding open across the yield of a generator"
            ) from error
