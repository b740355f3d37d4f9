"""Running one turn in a session: the permit that one task at a time has, and what the turn is made of."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING

from halter.cancel.context import current_token
from halter.cancel.loop_bridge import running_loop
from halter.cancel.token import NEVER, CancellationToken
from halter.errors import SessionBusy
from halter.session import background_loop
from halter.session.children import Children
from halter.session.inbox import to_message
from halter.session.limits import Spending
from halter.session.turn import Turn
from halter.session.turn_control import TurnControl
from halter.session.turn_runner import TurnRunner
from halter.tools.run.batch import BatchEnvironment
from halter.tools.run.tool_loop import shared_tool_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.session.inbox import Content
    from halter.session.session import Session
    from halter.session.turn_files import TurnFiles

__all__ = ["caller_token", "permit", "run_turn"]


@contextlib.contextmanager
def permit(session: Session) -> Iterator[None]:
    """Hold the permit to run turns in this block. Popping from a list is atomic, so only one task gets it."""
    session._check_open()
    if running_loop() is None:
        raise RuntimeError(
            "arun(), stream() and serve() need asyncio's event loop, and none is running here. Call run() or "
            "stream_sync() instead; under trio: await trio.to_thread.run_sync(session.run, text)"
        )
    try:
        session._permit.pop()
    except IndexError:
        raise SessionBusy(
            "a turn is running in this session, or it is being served. Nothing was accepted: post() the text to "
            "have it queued, or steer() or interrupt() with it"
        ) from None
    try:
        yield
    finally:
        session._permit.append(True)


def caller_token(session: Session) -> CancellationToken:
    """The token above the work that a caller starts: cancelled with the session's or with the caller's own."""
    outer = current_token()
    return session.token if outer is NEVER else CancellationToken.any_of(session.token, outer)


async def run_turn(session: Session, text: Content | None = None, *, may_continue: bool = True) -> Turn:
    """Run one turn to its end. The caller holds the permit."""
    message = to_message(text) if text is not None else None
    log, files, agent = session._log, session._files, session.agent
    turn = Turn(secrets.token_hex(8), caller_token(session).child("turn", timeout=agent.limits.seconds))
    control = log.control = TurnControl(turn, asyncio.get_running_loop())  # from here on a stop finds it
    try:
        turn_files = await files.begin(turn)
        spending = Spending(agent, session._parent.spending)
        environment = _environment(session, turn_files, spending)
        runner = TurnRunner(agent, log, control, environment, session._instructions, spending)
        await runner.run(message, may_continue=may_continue)
    finally:
        if turn.ended.is_set:
            session._turn = turn
        else:  # it has not begun
            control.claim_end()
            turn.ended.set()
        files.end()
        log.control = None
    return turn


def _environment(session: Session, files: TurnFiles, spending: Spending) -> BatchEnvironment:
    children, questions, agent = Children(session, spending), session._questions, session.agent
    has_tool_loop = session._has_tool_loop or background_loop.is_background_loop(asyncio.get_running_loop())
    return BatchEnvironment(
        agent.tools,
        session_id=session.id,
        deps=session.deps,
        approve=agent.approve,
        ask_approval=questions.ask_approval,
        allowed=questions.allowed,
        ask=questions.ask,
        delegate=children.delegate,
        begin=children.begin,
        resources=session._resources,
        grace=session._parent.grace,
        before_change=files.before_change,
        tool_loop=shared_tool_loop if has_tool_loop else None,
    )
