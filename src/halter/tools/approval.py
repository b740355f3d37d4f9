"""May this call run? A question like any other: asked under the call's token, and no answer means no.

Only a plain ``True`` (or an ``Approval``) grants. A stop, an error, a late answer, or a policy that nobody set deny,
and the note says so in words that the model is told.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct, field

from halter.cancel.blocking import run_blocking_async
from halter.cancel.token import CancellationToken, Cancelled
from halter.tools.content import close_unused, error_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from halter.tools.tool import ApprovalRule

_NEEDED = "this tool needs approval"


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """The question whether one call may run. `session.answer(request.id, True)` answers it."""

    call_id: str
    tool: str
    arguments: dict[str, Any] = {}
    reason: str = _NEEDED
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Approval(Struct, frozen=True):
    """The answer."""

    granted: bool
    note: str = ""


Policy: TypeAlias = "Literal['auto', 'deny', 'ask'] | Callable[[ApprovalRequest], Any] | None"
Ask: TypeAlias = "Callable[[ApprovalRequest], Awaitable[Any]]"


def check_policy(policy: Policy) -> Policy:
    """Return *policy* if it is one; for whoever is given it by a user."""
    if policy is None or policy in ("auto", "deny", "ask") or callable(policy):
        return policy
    msg = f'approve is "auto", "deny", "ask", a function that takes an ApprovalRequest, or None; not {policy!r}'
    raise ValueError(msg)


async def why_to_ask(rule: bool | ApprovalRule, arguments: Mapping[str, Any], token: CancellationToken) -> str:  # noqa: FBT001
    """Why a call with these arguments needs approval; empty if it does not.

    A boundary: a rule that fails, or says what is no answer, cannot say that the call is harmless. Raises Cancelled.
    """
    if isinstance(rule, bool):
        return _NEEDED if rule else ""
    try:
        answer: object = await run_blocking_async(rule, arguments, token=token)
    except Exception as error:  # noqa: BLE001
        token.raise_if_cancelled()  # it may be the stop that it failed of, and then nobody is to be asked
        return f"the rule that says whether it needs approval failed: {error_text(error)}"
    if isinstance(answer, str):
        return answer.strip()
    return "" if answer is False else _NEEDED


async def is_approved(
    policy: Policy, request: ApprovalRequest, token: CancellationToken, ask: Ask | None = None
) -> Approval:
    """Decide whether the call may run. *ask* puts the question to a person, for the policy "ask".

    Never raises for what the policy or the person does; only a foreign cancellation of this task passes through.
    """
    check_policy(policy)
    task = asyncio.current_task()
    others = 0 if task is None else task.cancelling()
    try:
        token.raise_if_cancelled()
        approval = await _decided(policy, request, token, ask)
        token.raise_if_cancelled()  # a stop while the answer came in: nothing starts after it
    except Cancelled as stop:
        if token.is_cancelled:
            return _denied(f"it was stopped ({token.reason}) before anybody had approved it")
        return _denied(f"asking for approval failed: {error_text(stop)}")  # another token's, in the policy
    except asyncio.CancelledError:
        if task is None or task.cancelling() > others:
            raise
        return _denied("the question was withdrawn")  # what the policy awaited was cancelled, and not this task
    return approval


async def _decided(policy: Policy, request: ApprovalRequest, token: CancellationToken, ask: Ask | None) -> Approval:
    if policy == "auto":
        return Approval(granted=True, note="approved by the policy")
    if policy == "deny":
        return _denied("the policy denies every call that needs approval")
    if policy is None or (policy == "ask" and ask is None):
        return _denied("it needs approval, and there is nobody who can be asked")
    try:
        if callable(policy):
            return _read(await _call(policy, request, token))
        assert ask is not None
        async with token.scope():
            return _read(await ask(request))
    except Exception as error:  # noqa: BLE001  (a boundary: whatever fails in there, the answer is no)
        return _denied(f"asking for approval failed: {error_text(error)}")


async def _call(policy: Callable[[ApprovalRequest], Any], request: ApprovalRequest, token: CancellationToken) -> Any:
    """Ask a function; a plain one on a thread of its own, so that a prompt that blocks can be left."""
    if inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(getattr(policy, "__call__", None)):  # noqa: B004
        async with token.scope():
            return await policy(request)
    answer = await run_blocking_async(policy, request, token=token)
    try:
        if inspect.isawaitable(answer):
            async with token.scope():
                return await answer
        return answer
    finally:
        close_unused(answer)  # the stop came before its first step


def _denied(note: str) -> Approval:
    return Approval(granted=False, note=note)


def _read(answer: Any) -> Approval:
    if isinstance(answer, Approval):
        return answer
    if answer is True:
        return Approval(granted=True, note="approved")
    if answer is False or answer is None:
        return _denied("it was asked for and denied")
    if isinstance(answer, str) and answer.strip():
        return _denied(f"the answer was: {answer.strip()}")
    return _denied(f"the answer was neither yes nor no: {answer!r}")
