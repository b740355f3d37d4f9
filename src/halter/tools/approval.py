"""Approvals: whether a call may run. Asked under the call's token, and no answer means no.

A tool's rule says whether a call needs approval, and what an answer may allow beyond it (`ApprovalNeed`). The agent's
policy decides, or has a person asked.

Only ``True``, a "yes", "session", "always" or an ``Approval`` grants. A stop, an error, a late answer, or a missing
policy deny, and the note tells the model so.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from halter.cancel.token import CancellationToken, Cancelled
from halter.models.sanitize import clean_text
from halter.tools.content import close_unused, error_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from halter.tools.tool import ApprovalRule

_NEEDED: Final = "this tool needs approval"
_GRACE: Final = 0.1  # seconds for a policy to clean up after a stop
_YES: Final = frozenset({"yes", "y"})
_NO: Final = frozenset({"no", "n"})
Scope: TypeAlias = Literal["once", "session", "always"]
Covers: TypeAlias = Literal["tool", "call"]
_GRANTED: Final[dict[Scope, str]] = {
    "once": "approved",
    "session": "approved for this session",
    "always": "approved permanently",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalNeed:
    """That a call needs approval: what the rule of a tool returns if True or a reason says too little."""

    reason: str
    automatic: bool = True
    """Whether the policy "auto" grants it. If not, "auto" asks."""
    unattended: bool = False
    """Whether it may run if no policy was chosen, because nobody can be asked."""
    covers: Covers = "tool"
    """What an answer for the session allows: every call of the tool, or the same call again."""
    prefixes: tuple[tuple[str, ...], ...] = ()
    """Beginnings of commands that an answer may allow instead, for the session or permanently."""
    is_covered: Callable[[Sequence[tuple[str, ...]]], bool] | None = None
    """Whether prefixes that were allowed before cover the call."""


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """The question whether one call may run. `session.answer(request.id, True)` answers it."""

    call_id: str
    tool: str
    arguments: dict[str, Any] = {}  # plain JSON values; a function that approves gets the Python values instead
    reason: str = _NEEDED  # why approval is needed
    automatic: bool = True  # these four: see `ApprovalNeed`
    unattended: bool = False
    covers: Covers = "tool"
    prefixes: tuple[tuple[str, ...], ...] = ()
    id: str = field(default_factory=lambda: os.urandom(16).hex())


class Approval(Struct, frozen=True):
    """The answer."""

    granted: bool
    note: str = ""
    scope: Scope = "once"  # of a grant: also for what comes later


Policy: TypeAlias = "Literal['auto', 'deny', 'ask'] | Callable[[ApprovalRequest], Any] | None"
Ask: TypeAlias = "Callable[[ApprovalRequest], Awaitable[Any]]"


def check_policy(policy: Policy) -> Policy:
    """Return *policy*, or raise ValueError if it is not one."""
    if policy is None or policy in ("auto", "deny", "ask") or callable(policy):
        return policy
    msg = f'approve must be "auto", "deny", "ask", a function that takes an ApprovalRequest, or None, not {policy!r}'
    raise ValueError(msg)


async def find_need(
    rule: bool | ApprovalRule,  # noqa: FBT001
    arguments: Mapping[str, Any],
    token: CancellationToken,
) -> ApprovalNeed | None:
    """Why a call with these arguments needs approval; None if it does not.

    A boundary: if the rule fails or returns something else, the call needs approval. Raises Cancelled.
    """
    if isinstance(rule, bool):
        return ApprovalNeed(reason=_NEEDED) if rule else None
    from halter.cancel.threads.blocking import run_blocking_async

    try:
        answer: object = await run_blocking_async(rule, arguments, token=token)
    except (Exception, SystemExit) as error:  # noqa: BLE001
        token.raise_if_cancelled()  # the stop may be why it failed, and then the user must not be asked
        reason = f"the rule that says whether it needs approval failed: {error_text(error)}"
        return ApprovalNeed(reason=reason, automatic=False, covers="call")
    if isinstance(answer, ApprovalNeed):
        return answer
    if answer is False or (isinstance(answer, str) and not answer.strip()):
        return None
    return ApprovalNeed(reason=answer.strip() if isinstance(answer, str) else _NEEDED)


def was_allowed(request: ApprovalRequest, need: ApprovalNeed, allowed: Sequence[ApprovalRequest]) -> bool:
    """Whether a person has allowed this call when they allowed an earlier one, for the session."""
    earlier = [each for each in allowed if each.tool == request.tool]
    prefixes = [each for one in earlier for each in one.prefixes]
    if prefixes and need.is_covered is not None and need.is_covered(prefixes):
        return True
    return any(each.arguments == request.arguments or each.covers == request.covers == "tool" for each in earlier)


def asks_person(policy: Policy, request: ApprovalRequest) -> bool:
    """Whether this policy leaves the decision to a person."""
    return policy == "ask" or (policy == "auto" and not request.automatic)


async def is_approved(
    policy: Policy, request: ApprovalRequest, token: CancellationToken, ask: Ask | None = None
) -> Approval:
    """Decide whether the call may run. *ask* asks the user, for the policy "ask".

    An error of the policy or of *ask* is a denial; only a foreign cancellation of this task is raised.
    """
    import asyncio  # loaded by now, and half of what `from halter import Agent` would cost

    check_policy(policy)
    task = asyncio.current_task()
    others = 0 if task is None else task.cancelling()
    try:
        token.raise_if_cancelled()
        approval = await _decide(policy, request, token, ask)
        token.raise_if_cancelled()  # a stop while the answer came in: nothing starts after it
    except Cancelled as stop:
        if token.is_cancelled:
            return _denied(f"it was stopped ({token.reason}) before anybody had approved it")
        return _denied(f"asking for approval failed: {error_text(stop)}")  # of another token, inside the policy
    except asyncio.CancelledError:
        if task is None or task.cancelling() > others:
            raise
        return _denied("the question was withdrawn")  # something that the policy awaited was cancelled, not this task
    return approval


async def _decide(policy: Policy, request: ApprovalRequest, token: CancellationToken, ask: Ask | None) -> Approval:
    is_asked = asks_person(policy, request)
    if (policy == "auto" and not is_asked) or (policy is None and request.unattended):
        return Approval(granted=True, note="approved by the policy")
    if policy == "deny":
        return _denied("the policy denies every call that needs approval")
    if policy is None or (is_asked and ask is None):
        return _denied("it needs approval, and nobody can be asked")
    try:
        if callable(policy):
            return read_approval(await _call(policy, request, token))
        assert ask is not None
        async with token.scope():
            return read_approval(await ask(request))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a boundary: any failure is a denial)
        return _denied(f"asking for approval failed: {error_text(error)}")


async def _call(policy: Callable[[ApprovalRequest], Any], request: ApprovalRequest, token: CancellationToken) -> Any:
    """Ask a function: a plain one on a thread, another one in a task, so that a stop does not have to wait for it."""
    from halter.cancel.detach import run_detached
    from halter.cancel.threads.blocking import run_blocking_async

    is_async = inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(getattr(policy, "__call__", None))  # noqa: B004
    answer = policy(request) if is_async else await run_blocking_async(policy, request, token=token)
    if not inspect.isawaitable(answer):
        return answer
    given: list[object] = []

    async def wait() -> None:
        given.append(await answer)

    try:
        await run_detached(wait, token, grace=_GRACE, name="the approval policy")
    finally:
        close_unused(answer)  # the stop came before its first step
    return given[0]


def _denied(note: str) -> Approval:
    return Approval(granted=False, note=note)


def read_approval(answer: object) -> Approval:
    """The meaning of an answer, from whomever: only a clear yes grants; any other text denies and becomes the note.

    True and "yes" grant this call, "session" and "always" more. `{"deny": "why"}` denies with a reason.
    """
    if isinstance(answer, Approval):
        return answer
    if isinstance(answer, dict) and list(answer) == ["deny"]:
        why = clean_text(str(answer["deny"])).strip()
        return _denied(f"the answer was no: {why}" if why else "the answer was no")
    words = answer.strip() if isinstance(answer, str) else ""
    word = words.rstrip(".!").lower()
    scope: Scope | None = "once" if answer is True or word in _YES else _SCOPES.get(word)
    if scope is not None:
        return Approval(granted=True, note=_GRANTED[scope], scope=scope)
    if answer is False or answer is None or word in _NO:
        return _denied("the answer was no")
    if words:
        return _denied(f"the answer was: {clean_text(words)}")
    return _denied(f"the answer was neither yes nor no: {answer!r}")


_SCOPES: Final[dict[str, Scope]] = {"session": "session", "always": "always"}
