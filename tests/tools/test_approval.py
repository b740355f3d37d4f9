"""Approvals: only a clear yes is one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from halter import CancellationToken, Cancelled, checkpoint, current_token
from halter.testing import DeafCoroutine
from halter.tools import Approval, ApprovalRequest, is_approved
from halter.tools.approval import check_policy, find_need
from tests.support.looped import looped

REQUEST = ApprovalRequest(call_id="c1", tool="rm", arguments={"path": "/"})


async def decide(policy: Any, ask: Any = None) -> Approval:
    return await is_approved(policy, REQUEST, CancellationToken(), ask)


def test_a_request_is_a_value() -> None:
    """The question can be written down and has an id of its own."""
    assert msgspec.json.decode(msgspec.json.encode(REQUEST), type=ApprovalRequest) == REQUEST
    assert ApprovalRequest(call_id="c1", tool="rm").id != ApprovalRequest(call_id="c1", tool="rm").id


@looped
async def test_fixed_policies() -> None:
    """Policy "auto" grants and "deny" denies; without a policy nobody can be asked."""
    assert (await decide("auto")).granted
    assert not (await decide("deny")).granted
    for policy in (None, "ask"):
        approval = await decide(policy)
        assert not approval.granted
        assert "nobody" in approval.note


class AsyncCallable:
    async def __call__(self, request: ApprovalRequest) -> bool:
        return request is REQUEST


async def coroutine(request: ApprovalRequest) -> bool:
    return request is REQUEST


def in_front_of_a_coroutine(request: ApprovalRequest) -> Any:
    return coroutine(request)


@pytest.mark.parametrize(
    "policy", [lambda request: request is REQUEST, coroutine, in_front_of_a_coroutine, AsyncCallable()]
)
@looped
async def test_functions_decide(policy: Any) -> None:
    """A function of either kind is given the request and decides."""
    assert (await decide(policy)).granted


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize(
    ("answer", "granted", "words"),
    [
        (True, True, "approved"),
        (False, False, "the answer was no"),
        (None, False, "the answer was no"),
        (Approval(granted=True, note="fine"), True, "fine"),
        (Approval(granted=False, note="never"), False, "never"),
        ("use the trash instead", False, "use the trash instead"),
        ("yes", True, "approved"),
        (" Y ", True, "approved"),
        ("Yes.", True, "approved"),
        ("no", False, "the answer was no"),
        ("N", False, "the answer was no"),
        ("yes, but use the trash", False, "yes, but use the trash"),
        (1, False, "neither yes nor no: 1"),
    ],
)
@looped
async def test_only_a_clear_yes(answer: Any, granted: bool, words: str, is_asked: bool) -> None:
    """True and a plain yes grant; whatever else is said denies, and is passed on in the note."""

    async def ask(_: ApprovalRequest) -> Any:
        return answer

    approval = await (decide("ask", ask) if is_asked else decide(lambda _: answer))
    assert approval.granted is granted
    assert words in approval.note


@looped
async def test_errors_deny() -> None:
    """A policy that fails has not approved, and its error is in the note."""

    def plain(_: ApprovalRequest) -> bool:
        raise OSError("no terminal")

    async def other(_: ApprovalRequest) -> bool:
        raise OSError("no terminal")

    for approval in (await decide(plain), await decide(other), await decide("ask", other)):
        assert approval == Approval(granted=False, note="asking for approval failed: OSError: no terminal")


@pytest.mark.parametrize("kind", ["plain", "coroutine", "ask"])
@looped
async def test_a_stop_means_denied(kind: str) -> None:
    """However long a prompt blocks, a stop ends the wait at once and denies."""
    token = CancellationToken()
    loop = asyncio.get_running_loop()
    asked, release = asyncio.Event(), threading.Event()

    def plain(_: ApprovalRequest) -> bool:
        loop.call_soon_threadsafe(asked.set)
        return release.wait(30)

    async def other(_: ApprovalRequest) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    policy: Any = {"plain": plain, "coroutine": other, "ask": "ask"}[kind]
    task = asyncio.create_task(is_approved(policy, REQUEST, token, other))
    await asked.wait()
    token.cancel("interrupt")
    approval = await task
    release.set()
    assert not approval.granted
    assert "stopped (interrupt)" in approval.note


@pytest.mark.parametrize("kind", ["coroutine", "in front of one"])
@looped
async def test_a_policy_that_swallows_the_stop_is_not_waited_for(kind: str) -> None:
    """An async policy that cleaned up slowly, or swallowed its cancellation, held the stop up for as long."""
    token, policy = CancellationToken(), DeafCoroutine(value=True)

    async def ask(_: ApprovalRequest) -> Any:
        return await policy()

    def ask_plainly(request: ApprovalRequest) -> Any:
        return ask(request)

    asked: Any = ask if kind == "coroutine" else ask_plainly
    task = asyncio.create_task(is_approved(asked, REQUEST, token))
    await asyncio.to_thread(policy.started.wait, 10)
    token.cancel("stop")
    async with asyncio.timeout(10):
        approval = await task
    policy.release()
    assert not approval.granted
    assert "stopped (stop)" in approval.note


@looped
async def test_a_stop_before_the_question() -> None:
    """Nobody is asked about a call that was stopped already, whatever the policy."""
    token = CancellationToken()
    token.cancel("stop")
    asked: list[Any] = []
    for policy in ("auto", asked.append):
        assert not (await is_approved(policy, REQUEST, token, None)).granted
    assert asked == []


@looped
async def test_a_stop_while_the_answer_comes_in() -> None:
    """A yes that arrives together with the stop grants nothing."""
    token = CancellationToken()

    async def ask(_: ApprovalRequest) -> bool:
        token.cancel("stop")
        return True

    assert not (await is_approved("ask", REQUEST, token, ask)).granted


@looped
async def test_a_foreign_cancellation_passes_through() -> None:
    """A task that is cancelled from outside while it waits for an answer ends as cancelled."""
    asked = asyncio.Event()

    async def ask(_: ApprovalRequest) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    task = asyncio.create_task(decide("ask", ask))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@looped
async def test_a_plain_policy_sees_the_call_s_token() -> None:
    """A prompt of the user's own can check the token that it runs under."""
    seen: list[Any] = []

    def policy(_: ApprovalRequest) -> bool:
        checkpoint()
        seen.append(current_token())
        return True

    assert (await decide(policy)).granted
    assert "blocking" in repr(seen[0])


def test_what_is_no_policy() -> None:
    """A policy that is none is an error that lists the ones there are."""
    with pytest.raises(ValueError, match='"auto", "deny", "ask"'):
        check_policy("maybe")  # type: ignore[arg-type]
    assert check_policy(None) is None


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (False, ""),
        (True, "this tool needs approval"),
        (lambda arguments: False, ""),
        (lambda arguments: True, "this tool needs approval"),
        (lambda arguments: f"it deletes {arguments['path']}", "it deletes x"),
        (lambda arguments: "", ""),
        (lambda arguments: None, "this tool needs approval"),
        (lambda arguments: 1 / 0, "the rule that says whether it needs approval failed: ZeroDivisionError"),
    ],
)
@looped
async def test_a_rule_says_whether_to_ask(rule: Any, why: str) -> None:
    """A tool's rule sees the arguments and says whether, and why; one that fails or does not answer means yes."""
    found = await find_need(rule, {"path": "x"}, CancellationToken())
    assert (found.reason.startswith(why) if found is not None else "") if why else found is None


@pytest.mark.parametrize("kind", ["plain", "coroutine", "ask"])
@looped
async def test_a_policy_that_exits_denies(kind: str) -> None:
    """sys.exit() in a policy went through the event loop, and ended the loop of every session of run()."""

    def plain(_: ApprovalRequest) -> bool:
        raise SystemExit("enough")

    async def other(_: ApprovalRequest) -> bool:
        raise SystemExit("enough")

    policy: Any = {"plain": plain, "coroutine": other, "ask": "ask"}[kind]
    approval = await decide(policy, other)
    assert not approval.granted
    assert approval.note == "asking for approval failed: SystemExit: enough"


@looped
async def test_a_rule_that_exits_needs_approval() -> None:
    """The same of a tool's rule: it has failed, so a person is asked."""

    def rule(_: object) -> bool:
        raise SystemExit("enough")

    need = await find_need(rule, {}, CancellationToken())
    assert need is not None
    assert not need.automatic
    assert "SystemExit: enough" in need.reason


@looped
async def test_a_rule_that_fails_of_the_stop_asks_nobody() -> None:
    """A rule may break because of the stop itself; then the call was not started, and was not denied."""
    token = CancellationToken()

    def rule(_: object) -> bool:
        token.cancel("stop")
        raise RuntimeError("cut off")

    with pytest.raises(Cancelled):
        await find_need(rule, {}, token)
