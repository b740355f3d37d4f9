"""Approvals and questions of a session, as requests to the client.

A request is open as long as its question is. A stop withdraws the question, and the client is told that the request is
cancelled; an answer that comes too late changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.token import CancellationToken, Cancelled
from halter.errors import HalterError
from halter.protocols.acp.content import fenced, text_block
from halter.protocols.acp.json_rpc import RpcError, decode
from halter.protocols.acp.schema import ElicitationResult, PermissionResult
from halter.views.approval_text import approval_answers, approval_pages, approval_title
from halter.views.text import CANNOT_ASK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halter.protocols.acp.json_rpc import RpcConnection
    from halter.protocols.acp.tool_calls import ToolCallUpdates
    from halter.session.session import Session
    from halter.views.items import Question

__all__ = ["OpenQuestions"]

_log = logging.getLogger(__name__)
_KINDS: Final = {"y": "allow_once", "s": "allow_always", "n": "reject_once"}  # by the keys of `approval_answers()`
_NOT_ANSWERED: Final = "no-answer"


class OpenQuestions:
    """The questions of one session that the client was asked."""

    def __init__(self, session: Session, connection: RpcConnection, calls: ToolCallUpdates, *, has_forms: bool) -> None:
        self._session = session
        self._connection = connection
        self._calls = calls
        self._has_forms = has_forms
        self._asked: dict[str, CancellationToken] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def update(self, questions: Mapping[str, Question]) -> None:
        """Ask what is new, and cancel the requests for questions that are no longer open."""
        for question_id in [each for each in self._asked if each not in questions]:
            self._asked.pop(question_id).cancel("stop", detail="the question was answered or withdrawn")
        for question in questions.values():
            if question.id not in self._asked:
                token = self._asked[question.id] = CancellationToken(name="question")
                task = asyncio.create_task(self._ask(question, token))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel all requests."""
        self.update({})

    async def _ask(self, question: Question, token: CancellationToken) -> None:
        """Ask the client and answer the question. A boundary: an error denies, or is the answer."""
        try:
            if question.kind == "approval":
                value = await self._ask_approval(question, token)
            else:
                value = await self._ask_question(question, token)
        except Cancelled as stop:
            if not stop.belongs_to(token):
                raise
            return
        except RpcError as error:
            if self._connection.stream.token.is_cancelled:
                return  # the client is gone, and its turns are being stopped
            why = f"the client could not be asked: {error}"
            value = {"deny": why} if question.kind == "approval" else f"[{why}]"
        try:
            await run_in_thread(lambda: self._session.answer(question.id, value, by="the ACP client"))
        except HalterError as error:
            _log.warning("session %s: an answer was not accepted: %s", self._session.id, error)

    async def _ask_approval(self, question: Question, token: CancellationToken) -> bool | str | dict[str, str]:
        answers = approval_answers(question, may_keep=False)
        options = [{"optionId": each.key, "name": each.label, "kind": _KINDS[each.key]} for each in answers]
        options.sort(key=lambda each: list(_KINDS).index(each["optionId"]))
        text = fenced("\n".join(approval_pages(question)))
        chosen = await self._ask_permission(question, approval_title(question), text, options, token)
        values = {each.key: each.value for each in answers}
        return values.get(chosen) or ({"deny": "the request for permission was cancelled"} if not chosen else False)

    async def _ask_question(self, question: Question, token: CancellationToken) -> str:
        if self._has_forms:
            return await self._ask_form(question, token)
        if not question.choices:
            return CANNOT_ASK
        options = [
            {"optionId": str(number), "name": choice, "kind": "allow_once"}
            for number, choice in enumerate(question.choices)
        ]
        options.append({"optionId": _NOT_ANSWERED, "name": "No answer", "kind": "reject_once"})
        chosen = await self._ask_permission(question, question.text, question.text, options, token)
        return question.choices[int(chosen)] if chosen.isdecimal() and int(chosen) < len(question.choices) else ""

    async def _ask_permission(
        self, question: Question, title: str, text: str, options: list[dict[str, str]], token: CancellationToken
    ) -> str:
        """The id of the option that the user has chosen; empty if none."""
        call = {
            "toolCallId": self._calls.id_for(question),
            "title": title,
            "status": "pending",
            "content": [{"type": "content", "content": text_block(text)}],
        }
        params = {"sessionId": self._session.id, "toolCall": call, "options": options}
        result = await self._connection.request("session/request_permission", params, token)
        outcome = decode(result, PermissionResult).outcome
        return outcome.option_id if outcome.outcome == "selected" else ""

    async def _ask_form(self, question: Question, token: CancellationToken) -> str:
        field: dict[str, Any] = {"type": "string", "title": "Answer"}
        if question.choices:
            field["description"] = f"For example: {', '.join(question.choices)}"
        params = {
            "sessionId": self._session.id,
            "mode": "form",
            "message": question.text,
            "requestedSchema": {"type": "object", "properties": {"answer": field}, "required": ["answer"]},
        }
        result = await self._connection.request("elicitation/create", params, token)
        given = decode(result, ElicitationResult)
        answer = (given.content or {}).get("answer") if given.action == "accept" else None
        return str(answer) if answer is not None else ""
