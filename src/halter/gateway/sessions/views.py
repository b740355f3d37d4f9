"""Agents and loaded sessions as clients see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.gateway.http.session_schemas import AgentView, SessionView, TurnView, UsageView
from halter.toolbox.files.workspace import Workspace
from halter.views.text import path_text

if TYPE_CHECKING:
    from halter.agent import Agent
    from halter.gateway.sessions.live_session import LiveSession

__all__ = ["add_live", "view_agent", "view_session", "view_turn"]


def view_agent(name: str, agent: Agent) -> AgentView:
    """An agent as it is sent."""
    owners = [getattr(tool.fn, "__self__", None) for tool in agent.tools.values()]
    places = [
        place for place in (getattr(owner, "workspace", None) for owner in owners) if isinstance(place, Workspace)
    ]
    modes = [mode for mode in (getattr(owner, "sandbox_mode", "") for owner in owners) if mode]
    approve = agent.approve
    return AgentView(
        name=name,
        model=agent.model.name,
        fallbacks=[each.name for each in agent.fallbacks],
        tools=list(agent.tools),
        sandbox=str(modes[0]) if modes else "",
        approve="unattended" if approve is None else approve if isinstance(approve, str) else "function",
        workspace=path_text(places[0].root) if places else "",
    )


def view_session(live: LiveSession) -> SessionView:
    """A loaded session as it is sent."""
    session = live.session
    view = SessionView(
        id=session.id,
        agent=live.agent,
        state="asleep",
        title=live.title,
        waiting=len(session.inbox),
        created_at=live.created_at,
        updated_at=live.updated_at,
    )
    return add_live(view, live)


def add_live(view: SessionView, live: LiveSession) -> SessionView:
    """Add what is known of a loaded session."""
    session = live.session
    usage = session.usage
    view.state = "running" if session.is_running else "idle"
    view.questions = len(session.questions)
    view.turn = view_turn(live)
    view.model = session.agent.model.name
    view.usage = UsageView(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cost=usage.cost,
    )
    return view


def view_turn(live: LiveSession) -> TurnView | None:
    """The running or the last turn."""
    turn = live.session.turn
    if turn is None:
        return None
    return TurnView(
        id=turn.id,
        status=turn.status,
        stopping=turn.is_stopping,
        reason=turn.reason or "",
        detail=turn.detail,
        text=live.session.text if turn.status == "running" else turn.text,
    )
