"""How the benchmark beside other agents judges what it saw: nobody is blamed for what a system does not offer."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from bench.peers.findings import findings
from bench.peers.judge import all_text, defects_of
from bench.peers.plot import plot_of
from bench.peers.provider_main import CHUNKS, words
from bench.peers.systems import SYSTEMS
from bench.peers.verdicts import defects_of as told
from bench.peers.verdicts import level_of


def test_a_system_without_a_store_is_not_blamed_for_it() -> None:
    """A library may leave storing to the application; only what it left behind counts after kill -9."""
    assert level_of("smolagents", "kill", [{"processes": 0, "has_store": False}]) == "good"
    assert told("kill", [{"processes": 8, "has_store": False}]) == ["8 processes were still running after 2 s"]


def test_a_refused_message_is_not_a_lost_one() -> None:
    """The sender of a refused message knows it."""
    result = {"can_send": True, "accepted": False, "lost": 0, "next": True, "valid": True}
    assert told("message", [result]) == ["the message was refused"]


def test_a_system_that_has_no_way_to_send_is_not_judged() -> None:
    """The table has a dash for it."""
    assert level_of("smolagents", "message", [{"can_send": False}]) == "none"


def test_a_result_that_depends_on_reading_the_documentation_is_not_judged() -> None:
    """It is told with its reason on the page, and is grey in the plot."""
    lost = {"can_send": True, "accepted": True, "lost": 1, "next": True, "valid": True}
    assert level_of("pydantic-ai", "message", [lost]) == "none"
    assert level_of("hermes-agent", "message", [lost]) == "part"
    found = {"versions": {}, "stop": "", "message": "", "store": "", "scenarios": {"message": [lost]}}
    assert any("not judged" in line and "EnqueuedMessagesEvent" in line for line in findings("pydantic-ai", found))
    assert any("the message was lost" in line for line in findings("hermes-agent", found))


def test_a_next_turn_that_waits_for_a_thread_is_not_judged() -> None:
    """With two cores, six tools fill the thread pool of asyncio; on a larger machine the next turn finds a thread."""
    result = {"control": 0.002, "tools_started": 6, "next": False, "why": "no end within 5 s", "exit": None}
    assert level_of("openai-agents", "deaf", [result]) == "part"
    assert level_of("openai-agents", "deaf", [result | {"tools_started": 8}]) == "bad"
    assert level_of("openai-agents", "deaf", [result | {"control": None}]) == "bad"


def test_what_could_not_be_measured_is_not_a_defect() -> None:
    """A driver that failed says nothing about its system: grey in the plot, and the reason on the page."""
    assert level_of("smolagents", "slow", [{"broken": "RuntimeError: no request"}]) == "none"
    assert told("slow", [{"broken": "RuntimeError: no request"}]) == [
        "could not be measured (RuntimeError: no request)"
    ]


def test_each_streamed_word_is_different() -> None:
    """LiteLLM takes a hundred equal chunks for a model in a loop: openhands-sdk could then not be measured."""
    assert len(set(words(CHUNKS))) == CHUNKS


def test_each_version_has_the_name_of_its_package() -> None:
    """A system may consist of several packages."""
    found = {"versions": {"langgraph": "1.2", "langchain": "1.4"}, "stop": "", "message": "", "store": ""}
    assert "Measured: langgraph 1.2, langchain 1.4." in "\n".join(findings("langgraph", found | {"scenarios": {}}))


def test_words_are_kept_in_a_message_of_any_role() -> None:
    """Some systems tell the model in a note what was said before the stop."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Stopped after: one two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
    ]
    assert all_text(messages) == "Stopped after: one two\nthree"
    assert all_text(messages, "user") == "three"


def test_calls_without_a_result_are_found() -> None:
    """A strict provider refuses such a request."""
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": "next"},
    ]
    assert defects_of(messages) == ["1 tool calls without a result"]
    messages.insert(2, {"role": "tool", "tool_call_id": "a", "content": "done"})
    assert defects_of(messages) == []


def test_the_plot_has_a_row_for_each_measured_system() -> None:
    """It is well-formed, 800 wide, and a system that could not be run leaves no row."""
    found: dict[str, Any] = {each.name: {"scenarios": {"slow": [{"control": 0.002}]}} for each in SYSTEMS}
    found["hermes-agent"] = {"not_installed": "no"}
    plot = plot_of({"values": {"systems": found}})
    assert ET.fromstring(plot).get("width") == "800"
    assert all((name in plot) == ("scenarios" in each) for name, each in found.items())
    assert plot.count("✓ 2 ms") == len(SYSTEMS) - 1
