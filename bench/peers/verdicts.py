"""What a result means: the defects of each scenario, in words, and one level for each cell of the plot."""

from __future__ import annotations

import statistics

__all__ = ["control_of", "defects_of", "level_of", "milliseconds"]

SLOW = 1.0  # seconds; a stop that takes longer is felt


def milliseconds(seconds: float) -> str:
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < SLOW else f"{seconds:.1f} s"


def control_of(rounds: list[dict]) -> float | None:
    """The median time from the stop to control; None if one of the rounds never had it back."""
    found = [each.get("control") for each in rounds]
    return None if None in found or not found else statistics.median(found)


def defects_of(tag: str, rounds: list[dict]) -> list[str] | None:
    """What went wrong in a scenario, in words; None if the scenario does not apply to the system."""
    found: dict[str, None] = {}
    for result in rounds:
        told = _of(tag, result)
        if told is None:
            return None
        found.update(dict.fromkeys(told))
    return list(found)


def _of(tag: str, result: dict) -> list[str] | None:
    if "broken" in result:
        return [f"could not be run: {result['broken']}"]
    if result.get("applies") is False or result.get("can_send") is False:
        return None
    if tag == "race":
        return _of_race(result)
    checks = {
        "control was not back after 5 s": result.get("control", 0.0) is None,
        f"control was back after {milliseconds(result.get('control') or 0.0)}": (result.get("control") or 0.0) > SLOW,
        "the connection was open 2 s later": result.get("closed", 0.0) is None,
        f"requests after the stop: {result.get('requests_after')}": result.get("requests_after"),
        f"processes alive 2 s later: {result.get('processes')}": result.get("processes"),
        "the message was lost": result.get("lost"),
        "the message was refused": result.get("accepted") is False,
        f"the next turn failed ({result.get('why', '')[:100]})": result.get("next") is False
        and result.get("why") != "control was not back",
        f"the next request was invalid ({', '.join(result.get('defects', ()))})": result.get("valid") is False,
        "the user's message was not in the next request": result.get("message_kept") is False,
        "the words that were shown were not in the next request": result.get("words_kept") is False,
        "the process had not ended 5 s after it was told to": result.get("exit", 0.0) is None,
    }
    return [words for words, is_so in checks.items() if is_so]


def _of_race(result: dict) -> list[str]:
    tries = result["tries"]
    told = []
    if result["next_failed"]:
        told.append(f"the next turn failed in {result['next_failed']} of {tries} ({result['why'][:100]})")
    if result["invalid"]:
        told.append(f"the next request was invalid in {result['invalid']} of {tries}")
    if result["words_lost"]:
        told.append(f"words that were shown were lost in {result['words_lost']} of {tries}")
    return told


def level_of(tag: str, rounds: list[dict]) -> str:
    """`good`: nothing went wrong. `bad`: it did not stop, or the next turn does not work. `part`: the rest."""
    defects = defects_of(tag, rounds)
    if defects is None:
        return "none"
    if not defects:
        return "good"
    is_bad = any(
        "broken" in each
        or each.get("next") is False
        or each.get("valid") is False
        or each.get("invalid")
        or each.get("next_failed")
        or ("control" in each and (each["control"] is None or each["control"] > SLOW))
        for each in rounds
    )
    return "bad" if is_bad else "part"
