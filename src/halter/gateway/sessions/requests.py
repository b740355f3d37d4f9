"""Requests of clients for one session, as data: they are carried out where the session is, here or on another node.

Each request has the type of its result, and the time that another node may take for it.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

from msgspec import Struct, structs

from halter.cancel.loop_bridge import run_in_thread
from halter.gateway.http.peer import ClientSocket, is_agents_process
from halter.gateway.http.schemas import (
    AnswerView,
    EditBody,
    InboxMessageView,
    MessageBody,
    MessageForm,
    ReceiptView,
    RollbackBody,
    StopBody,
    view_inbox_message,
)
from halter.gateway.http.session_schemas import (
    BranchBody,
    CompactionView,
    RetryBody,
    SessionBody,
    SessionEditBody,
    SessionView,
)
from halter.models.types import Audio, Part
from halter.tools.file_history import FileDiff, RestoredFiles

if TYPE_CHECKING:
    from typing import Self

    from halter.gateway.http.keys import Key
    from halter.gateway.sessions.commands import Commands
    from halter.gateway.sessions.live_session import LiveSession

__all__ = [
    "AnswerQuestion",
    "BranchSession",
    "ChangeSession",
    "CompactContext",
    "CreateSession",
    "EditMessage",
    "EraseSession",
    "PostMedia",
    "PostMessage",
    "ReadChanges",
    "ReadInbox",
    "ReadSession",
    "RemoveMessage",
    "RetryTurn",
    "Rollback",
    "SessionRequest",
    "Speak",
    "StopTurn",
    "UndoRollback",
    "body_of",
]

# Seconds that another node may take.
_SLOW_TIMEOUT: Final = 60.0
_STOP_TIMEOUT: Final = 1.0
B = TypeVar("B", bound=Struct)


class _Request(Struct, frozen=True, kw_only=True):
    result: ClassVar[Any]
    timeout: ClassVar[float] = 10.0

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> Any:  # noqa: ANN401  (of type `result`)
        """Do it, for a session that is loaded here. Raises `Problem`."""
        raise NotImplementedError

    async def to_send(self) -> Self:
        """The request as it is sent to another node."""
        return self

    @property
    def patience(self) -> float:
        """How many seconds another node may take for it."""
        return self.timeout


class PostMessage(_Request, frozen=True, tag="message"):
    """Accept a message."""

    body: MessageBody
    result = ReceiptView

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> ReceiptView:
        return await commands.message(live, key, self.body)


class PostMedia(_Request, frozen=True, tag="media"):
    """Accept a message with images or recordings."""

    form: MessageForm
    parts: list[Part]
    result = ReceiptView
    timeout = _SLOW_TIMEOUT

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> ReceiptView:
        return await commands.message_with_media(live, key, self.form, self.parts)


class StopTurn(_Request, frozen=True, tag="stop"):
    """Stop a turn or a call. A stop with an *id* is done once."""

    body: StopBody
    id: str = ""
    result = ReceiptView

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> ReceiptView:
        return await commands.stops.stop(live, key, self.body, self.id)

    async def to_send(self) -> StopTurn:
        """The stop with an id, as it may be sent again."""
        return structs.replace(self, id=self.id or secrets.token_hex(8))

    @property
    def patience(self) -> float:
        """How many seconds another node may take: also as long as the client waits for the end of the turn."""
        return _STOP_TIMEOUT + self.body.patience


class Rollback(_Request, frozen=True, tag="rollback"):
    """Remove the last turn from the history."""

    body: RollbackBody
    result = ReceiptView
    timeout = _SLOW_TIMEOUT

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> ReceiptView:
        return await commands.rollback(live, self.body)


class UndoRollback(_Request, frozen=True, tag="undo"):
    """Redo the file changes that a rollback has reverted."""

    result = RestoredFiles
    timeout = _SLOW_TIMEOUT

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> RestoredFiles:
        return await commands.undo_rollback(live)


class ReadChanges(_Request, frozen=True, tag="changes"):
    """The file changes of the last turn, or with *whole* of all turns of the session."""

    whole: bool = False
    result = FileDiff
    timeout = _SLOW_TIMEOUT

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> FileDiff:
        return await commands.changes(live, whole=self.whole)


class AnswerQuestion(_Request, frozen=True, tag="answer"):
    """Answer an approval or a question.

    *client* is the connection of the client; for a client of another node, *is_agents* has the result of its check.
    """

    request: str
    value: Any
    client: ClientSocket | None = None
    is_agents: bool = False
    result = AnswerView

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> AnswerView:
        await commands.answer(live, key, self.request, self.value, self.is_from_agent)
        return AnswerView(answered=True)

    async def is_from_agent(self) -> bool:
        """Whether it was sent by a process that was started for a tool."""
        client = self.client
        if client is None:
            return self.is_agents
        return await run_in_thread(lambda: is_agents_process(client))

    async def to_send(self) -> AnswerQuestion:
        """The request with the result of the check, which only the machine of the client can make."""
        return structs.replace(self, client=None, is_agents=await self.is_from_agent())


class EditMessage(_Request, frozen=True, tag="edit"):
    """Change or release a queued message."""

    message: str
    body: EditBody
    result = InboxMessageView

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> InboxMessageView:
        return await commands.edit(live, self.message, self.body)


class RemoveMessage(_Request, frozen=True, tag="remove"):
    """Remove a queued message."""

    message: str
    result = InboxMessageView

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> InboxMessageView:
        return await commands.remove(live, self.message)


class ReadSession(_Request, frozen=True, tag="session"):
    """The session as it is now."""

    result = SessionView

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> SessionView:
        return await commands.read(live)


class ChangeSession(_Request, frozen=True, tag="change"):
    """Rename the session, or choose another model for its next turns."""

    body: SessionEditBody
    result = SessionView

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> SessionView:
        await commands.change(live, self.body)
        return await commands.read(live)


class RetryTurn(_Request, frozen=True, tag="retry"):
    """Remove the last turn, and send its message again."""

    body: RetryBody
    result = ReceiptView
    timeout = _SLOW_TIMEOUT

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> ReceiptView:
        return await commands.retry(live, key, self.body)


class BranchSession(_Request, frozen=True, tag="branch"):
    """Create a session from the conversation before a turn."""

    body: BranchBody
    result = SessionView
    timeout = _SLOW_TIMEOUT

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> SessionView:
        return await commands.branch(live, key, self.body)


class CompactContext(_Request, frozen=True, tag="compact"):
    """Compact the conversation before the next request."""

    result = CompactionView

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> CompactionView:
        return await commands.compact(live)


class ReadInbox(_Request, frozen=True, tag="inbox"):
    """The queued messages."""

    result = list[InboxMessageView]

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> list[InboxMessageView]:
        return [view_inbox_message(pending) for pending in live.session.inbox]


class Speak(_Request, frozen=True, tag="speech"):
    """The last answer as speech."""

    result = Audio
    timeout = _SLOW_TIMEOUT

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> Audio:
        return await commands.speak(live)


class EraseSession(_Request, frozen=True, tag="erase"):
    """Stop and delete the session."""

    result = None
    timeout = _SLOW_TIMEOUT

    async def run(self, commands: Commands, live: LiveSession, key: Key) -> None:
        await commands.erase(live)


class CreateSession(_Request, frozen=True, tag="create"):
    """Create a session, or find it; True if it is new. The only request for a session that may not exist."""

    body: SessionBody
    result = tuple[SessionView, bool]


SessionRequest: TypeAlias = (
    PostMessage
    | PostMedia
    | StopTurn
    | Rollback
    | UndoRollback
    | ReadChanges
    | AnswerQuestion
    | EditMessage
    | RemoveMessage
    | ReadSession
    | ChangeSession
    | RetryTurn
    | BranchSession
    | CompactContext
    | ReadInbox
    | Speak
    | EraseSession
    | CreateSession
)


def body_of(kind: type[B], command: Struct) -> B:
    """The body of a command that a WebSocket has sent, without what only WebSockets have."""
    return kind(**{name: getattr(command, name) for name in kind.__struct_fields__})
