"""The system prompt of one session: made once, off the event loop, and the same for every request after that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.cancel.threads.blocking import run_blocking_async
from halter.models.sanitize import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cancel.token import CancellationToken

__all__ = ["SessionInstructions"]


class SessionInstructions:
    """What the agent was given as `instructions`; a function is called for the first request of the session.

    It stays as it is until the session is opened again, so providers can cache the beginning of all requests.
    """

    __slots__ = ("_source", "_text")

    def __init__(self, source: str | Callable[[], str]) -> None:
        self._source = source
        self._text = source if isinstance(source, str) else None

    @property
    def known(self) -> str:
        """The text, if it has been made."""
        return self._text or ""

    async def get(self, token: CancellationToken) -> str:
        """The text. If *token* is cancelled while a function makes it, the next request calls the function again."""
        if self._text is None:
            assert callable(self._source)
            text = await run_blocking_async(self._source, token=token)
            if not isinstance(text, str):
                raise TypeError(f"the agent's instructions() must return a text, not {type(text).__name__}")
            self._text = clean_text(text)
        return self._text
