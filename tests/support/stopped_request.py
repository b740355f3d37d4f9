"""Judging a request that was stopped somewhere: apart from its scenario, so that the judge is not stopped as well."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING

from halter import CancellationToken, Cancelled
from halter.models import Answer, ModelCall, ToolCall
from halter.testing import FakeProvider, ScriptedReply, SeenConnection, SeenRequest, drop, status, tool_calls
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.model_calls import Log

CALL = ToolCall("c1", "write", '{"path": "a.txt", "text": "many pieces"}')
TEXT = "I will write. "
BROKEN = "some words that are not "


class Server:
    """One provider for all runs. Each run has a number, which is in the models' names, and so its own script."""

    def __init__(self, provider: FakeProvider) -> None:
        self.provider = provider
        self.runs = itertools.count(1)
        self.seen: Counter[str] = Counter()
        self.scripts = {"first": [drop(after=2), status(500)], "second": [tool_calls([CALL], text=TEXT)]}

    def reply(self, request: SeenRequest) -> ScriptedReply:
        """Answer the n-th request to a model with the n-th of its replies."""
        model = request.model
        self.seen[model] += 1
        return self.scripts[model.partition("-")[0]][self.seen[model] - 1]

    def requests(self, run: int) -> list[SeenRequest]:
        """Give what one run has asked."""
        return [request for request in self.provider.requests if request.model.endswith(f"-{run}")]


def is_settled(connection: SeenConnection) -> bool:
    """Whether a connection is closed, or idle because what was asked on it has been answered."""
    return connection.closed is not None or (
        bool(connection.requests) and all(each.finished for each in connection.requests)
    )


class Judge:
    """What must hold for one request, however and wherever it is stopped."""

    def __init__(self, server: Server, *, foreign: bool) -> None:
        self.server = server
        self.foreign = foreign
        self.run = 0
        self.before = 0
        self.requests = 0
        self.whole = 0
        self.stopped = 0

    def begin(self) -> None:
        """Begin another run."""
        self.run = next(self.server.runs)
        self.before = len(self.server.provider.connections)

    def check(self, exchange: ModelCall, log: Log, task: asyncio.Task[Answer], token: CancellationToken) -> None:
        """See that it ended once, in the right way, and that what it says fits what was shown."""
        ends = [kind for kind in log.kinds if kind in {"finished", "cancelled"}]
        got = exchange.answer
        assert len(ends) == 1
        assert log.kinds[-1] == ends[0]
        if task.cancelled() or task.exception() is not None:
            assert ends == ["cancelled"]
            assert token.is_cancelled
            assert task.cancelled() == self.foreign
            assert self.foreign or isinstance(task.exception(), Cancelled)
            self.stopped += 1
        else:
            assert got.status == "complete"
            assert (got.text, got.calls, got.unfinished) == (TEXT, [CALL], [])
            self.whole += 1
        if got.status == "partial":
            assert got.text in {TEXT[: len(got.text)], BROKEN[: len(got.text)]}
            assert all(call == CALL for call in got.calls)
            assert all(CALL.arguments.startswith(call.arguments) for call in got.unfinished)
            assert len(got.calls) + len(got.unfinished) <= 1
        assert log.rebuilt_answer(got.model, usage=got.usage) == got
        # One request for each attempt at most: nothing was asked that was not announced.
        self.requests = log.kinds.count("started")
        assert asyncio.all_tasks() == {asyncio.current_task()}
        # The loop stands still here: what the server sees now is what the request itself has closed.
        wait_until(lambda: all(map(is_settled, self.server.provider.connections[self.before :])))

    def nothing_is_left(self) -> None:
        """See what the server saw: no further request, and the end of each that it had not answered."""
        wait_until(lambda: all(each.closed for each in self.server.provider.connections[self.before :]))
        assert len(self.server.requests(self.run)) <= self.requests
