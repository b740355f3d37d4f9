"""The agents are listed as models."""

from __future__ import annotations

import pytest
from openai import NotFoundError

from halter import Agent
from halter.gateway import Gateway, Keys
from halter.stores import MemoryStore
from halter.testing import ScriptedModel
from tests.support.gateway_client import OWN
from tests.support.looped import looped
from tests.support.openai_client import HELLO, openai_client


@looped
async def test_each_agent_is_a_model() -> None:
    """By its name in the gateway, which may have a slash; a conversation is answered by the agent that it names."""
    agents = {"one": Agent(ScriptedModel("One.")), "team/two": Agent(ScriptedModel("Two."))}
    async with Gateway(agents, MemoryStore(), Keys(own=OWN)) as gateway, openai_client(gateway) as client:
        listed = (await client.models.list()).data
        assert [(each.id, each.object, each.owned_by) for each in listed] == [
            ("one", "model", "halter"),
            ("team/two", "model", "halter"),
        ]
        assert await client.models.retrieve("team/two") == listed[1]
        with pytest.raises(NotFoundError) as none:
            await client.models.retrieve("three")
        assert none.value.code == "model_not_found"
        done = await client.chat.completions.create(model="team/two", messages=HELLO)
        assert (done.model, done.choices[0].message.content) == ("team/two", "Two.")
