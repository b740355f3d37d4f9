"""Agents: models by name, tools, and helpful errors."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halter import Agent, Session, tool
from halter.errors import SessionOwned
from halter.models import (
    AnthropicModel,
    Finished,
    LocalModel,
    ModelEvent,
    ModelRequest,
    OpenAIModel,
    TextDelta,
)
from halter.models.errors import ProviderError
from halter.stores import MemoryStore, SQLiteStore
from halter.testing import FakeProvider, ScriptedModel, answer
from tests.support.ctrl_c import CtrlC
from tests.support.sessions import agent_of, call, data_of, model_of, session_of


@tool
def look() -> str:
    """Look around."""
    return "seen"


def test_models_have_names() -> None:
    """A name with a provider finds that provider's model, and "local" the embedded one."""
    openai = Agent("openai:gpt-5").model
    assert isinstance(openai, OpenAIModel)
    assert openai.name == "gpt-5"
    anthropic = Agent("anthropic:claude").model
    assert isinstance(anthropic, AnthropicModel)
    assert anthropic.name == "claude"
    assert isinstance(Agent("local").model, LocalModel)
    assert isinstance(Agent().model, LocalModel)


def test_names_of_models_may_have_colons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first colon separates: Ollama's names have tags behind another one."""
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    model = Agent("ollama:llama3:8b").model
    assert isinstance(model, OpenAIModel)
    assert model.name == "llama3:8b"
    assert model.base_url == "http://127.0.0.1:11434/v1"


@pytest.mark.parametrize(
    ("host", "url"),
    [("10.0.0.5:999", "http://10.0.0.5:999/v1"), ("https://gpu.example/", "https://gpu.example/v1"), (" ", None)],
)
def test_ollama_is_found_where_its_own_tools_find_it(
    monkeypatch: pytest.MonkeyPatch, host: str, url: str | None
) -> None:
    """OLLAMA_HOST is honoured, with and without a scheme."""
    monkeypatch.setenv("OLLAMA_HOST", host)
    model = Agent("ollama:x").model
    assert isinstance(model, OpenAIModel)
    assert model.base_url == (url or "http://127.0.0.1:11434/v1")


@pytest.mark.parametrize("name", ["gpt-5", "openai:", "nobody:x", "", "local:big", "OPENAI:x"])
def test_a_name_that_nobody_has_is_refused_with_those_that_are(name: str) -> None:
    """A wrong name of a model is refused at once, and the error says how names look."""
    with pytest.raises(ValueError, match="openai:NAME"):
        Agent(name)
    with pytest.raises(ValueError, match="openai:NAME"):
        Agent("local", fallbacks=[name])


def test_something_that_is_no_model_is_refused() -> None:
    """An object without stream() is refused where it is given, not when it is asked."""
    wrong: Any = object()
    with pytest.raises(TypeError, match=r"stream\(\)"):
        Agent(wrong)


def test_bad_arguments_are_refused_with_a_cure() -> None:
    """No steps at all, a policy that does not exist, two tools of one name: each is refused with its reason."""

    @tool(name="look")
    def other() -> str:
        return "x"

    with pytest.raises(ValueError, match="at least 1"):
        Agent("local", max_steps=0)
    with pytest.raises(ValueError, match='"auto", "deny", "ask"'):
        Agent("local", approve="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two tools are named"):
        Agent("local", tools=[look, other])


def test_an_agent_says_what_it_is() -> None:
    """The repr names the agent, its model and its tools."""
    text = repr(Agent("openai:gpt-5", tools=[look], name="clerk"))
    assert "clerk" in text
    assert "gpt-5" in text
    assert "1 tool" in text


def test_the_model_is_told_its_instructions_and_tools() -> None:
    """Instructions and tools go with every request; plain functions are tools, too."""

    def shout(text: str) -> str:
        """Say it loudly."""
        return text.upper()

    with session_of("ok", tools=[look, shout], instructions="Be brief.") as session:
        session.run("x")
        request = model_of(session).requests[0]
        assert request.instructions == "Be brief."
        assert [(spec.name, spec.description) for spec in request.tools] == [
            ("look", "Look around."),
            ("shout", "Say it loudly."),
        ]


def test_a_fallback_answers_when_the_model_fails() -> None:
    """A model that can not be reached is stood in for by the next, in the same turn."""
    fallback = ScriptedModel("from the other", name="other")
    with agent_of(ProviderError("down", status=401), fallbacks=[fallback]).session() as session:
        turn = session.run("x")
        assert (turn.status, turn.text) == ("done", "from the other")
        assert data_of(session, "request.retry")[0].model == "other"


def test_a_model_of_ones_own_needs_only_a_stream() -> None:
    """A user's own model is any object with stream(): it answers like all others."""

    class Parrot:
        max_retries = 0

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            yield TextDelta(request.messages[-1].text)
            yield Finished("stop")

    parrot: Any = Parrot()
    agent = Agent(parrot)
    with agent.session() as session:
        assert session.run("polly").text == "polly"
        assert "Parrot" in repr(agent)
        assert agent.model.max_retries == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (None, "denied"),
        ("deny", "denied"),
        ("auto", "completed"),
        (lambda request: request.tool == "open_door", "completed"),
        (lambda request: False, "denied"),
        (lambda request: 1 / 0, "denied"),
    ],
    ids=["none", "deny", "auto", "yes", "no", "broken"],
)
def test_policies_decide_about_tools_that_need_approval(policy: Any, status: str) -> None:
    """Only a plain yes lets a tool run that needs approval; everything else denies, and the model reads why."""
    opened: list[str] = []

    @tool(approval=True)
    def open_door() -> str:
        opened.append("x")
        return "open"

    with session_of(call("open_door"), "ok", tools=[open_door], approve=policy) as session:
        turn = session.run("x")
        assert [outcome.status for outcome in turn.outcomes] == [status]
        assert bool(opened) == (status == "completed")
        answered = data_of(session, "approval.answered")[0]
        assert answered.granted == (status == "completed")
        assert answered.note


def test_one_agent_has_many_sessions() -> None:
    """Sessions of one agent share nothing but it: ids, inboxes and histories are their own."""
    with FakeProvider(default=answer("hello")) as provider:
        agent = Agent(OpenAIModel("m", base_url=provider.openai_url, api_key="k"))
        sessions = [agent.session() for _ in range(5)]
        assert len({session.id for session in sessions}) == 5
        for session in sessions:
            assert session.run("x").text == "hello"
            assert len(session.history) == 2
            session.close()


OPENING = (
    "halter/agent.py",
    "session/session.py",
    "session/log.py",
    "stores/writer.py",
    "stores/batch.py",
    "stores/drain_claim.py",
    "stores/memory.py",
    "pool.py",
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_ctrl_c_while_a_session_is_opened_leaves_no_lease(kind: str, tmp_path: Path) -> None:
    """Wherever Ctrl+C lands in `agent.session()`, the session can be opened again at once, with the same store."""
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "sessions.db")
    agent = Agent(ScriptedModel("x"))
    with contextlib.closing(store):
        for nth in itertools.count(1):
            interrupt = CtrlC(nth, *OPENING)
            opened: list[Session] = []
            was_hit = interrupt.run(lambda opened=opened: opened.append(agent.session("one", store)))
            opened.clear()  # one that was opened, and is interrupted before it is used, is dropped
            try:
                agent.session("one", store).close()
            except SessionOwned:
                pytest.fail(f"the lease is still held after Ctrl+C in {interrupt.where}")
            if not was_hit:
                break
        assert nth > 15
