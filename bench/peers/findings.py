"""What was found about one system: its versions, how it was stopped, and each defect with the command that shows it."""

from __future__ import annotations

from bench.peers.scenarios import COSTS, SCENARIOS
from bench.peers.systems import SYSTEMS
from bench.peers.verdicts import NOT_JUDGED, defects_of

__all__ = ["EIGHT", "findings"]

NOTES = {each.name: each.note for each in SYSTEMS}
EIGHT = {"deaf", "cooperative", "process"}  # the scenarios with eight tools


def findings(name: str, found: dict) -> list[str]:
    """The lines of a section about one system."""
    if "not_installed" in found:
        return [f"### {name}", "", f"Not measured in this run: {found['not_installed']}.", ""]
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
    lines = [f"### {name}", "", f"Measured: {versions}. {_ways(found)}", ""]
    if NOTES.get(name):
        lines += [NOTES[name], ""]
    told = [line for scenario in SCENARIOS for line in _scenario(name, scenario.tag, scenario.name, found)]
    cost = (found["scenarios"].get(COSTS.tag) or [{}])[0]
    if why := cost.get("broken") or cost.get("why"):
        told.append(f"- cost: could not be measured completely ({why}). {_command(name, COSTS.tag)}")
    return [*lines, *(told or ["- No defect in these scenarios."]), ""]


def _ways(found: dict) -> str:
    message = f"Messages during a turn: {found['message']}." if found["message"] else "No messages during a turn."
    store = f"Storage: {found['store']}." if found["store"] else "Storage is left to the application."
    return f"Stopped by {found['stop']}. {message} {store}"


def _command(name: str, tag: str) -> str:
    return f"`python -m bench.peers --system {name} --scenario {tag}`"


def _scenario(name: str, tag: str, title: str, found: dict) -> list[str]:
    rounds = found["scenarios"].get(tag, [])
    if (name, tag) in NOT_JUDGED:
        return [f"- {title}: not judged. {NOT_JUDGED[name, tag]} {_command(name, tag)}"]
    told = defects_of(tag, rounds)
    if not told:
        return []
    started = rounds[0].get("tools_started", 8)
    few = f" ({started} of 8 had started)" if tag in EIGHT and started != 8 else ""
    return [f"- {title}{few}: {'; '.join(told)}. {_command(name, tag)}"]
