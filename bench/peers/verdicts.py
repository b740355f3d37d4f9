"""What a result means: the defects of each scenario, in words, and one level for each cell of the plot."""

from __future__ import annotations

import statistics

from bench.peers.systems import SYSTEMS

__all__ = ["NOT_JUDGED", "control_of", "defects_of", "duration", "level_of", "next_works"]

SLOW = 1.0  # seconds; people notice a stop that takes longer
# Why the result of a system in a scenario is not held against it.
NOT_JUDGED = {(each.name, tag): why for each in SYSTEMS for tag, why in each.not_judged.items()}


def duration(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1_000_000:.0f} µs"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < SLOW else f"{seconds:.1f} s"


def control_of(rounds: list[dict]) -> float | None:
    """The median time from the stop to control; None if one of the rounds never had it back."""
    found = [each.get("control") for each in rounds]
    return None if None in found or not found else statistics.median(found)


def next_works(result: dict) -> bool | None:
    """Whether the next turn worked; None if that is not known, or says more about the machine than about the system.

    Where some of the eight tools waited for a thread, the next turn may have waited for one as well. How many threads
    there are depends on the number of cores.
    """
    works = result.get("next")
    is_pool_full = 1 < result.get("tools_started", 8) < 8
    return None if works is False and is_pool_full and result.get("control") is not None else works


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
        return [f"could not be measured ({result['broken']})"]
    if result.get("applies") is False or result.get("can_send") is False:
        return None
    if tag == "race":
        return _of_race(result)
    alive = result.get("processes")
    checks = {
        "control was not back after 5 s": result.get("control", 0.0) is None,
        f"control was back after {duration(result.get('control') or 0.0)}": (result.get("control") or 0.0) > SLOW,
        "the connection was still open after 2 s": result.get("closed", 0.0) is None,
        f"requests after the stop: {result.get('requests_after')}": result.get("requests_after"),
        f"{alive} {'process was' if alive == 1 else 'processes were'} still running after 2 s": alive,
        "the message was lost": result.get("lost"),
        "the message was refused": result.get("accepted") is False,
        f"the next turn failed ({result.get('why', '')[:100]})": next_works(result) is False
        and result.get("why") != "control was not back",
        f"the next request was invalid ({', '.join(result.get('defects', ()))})": result.get("valid") is False,
        "the user's message was missing from the next request": result.get("message_kept") is False,
        "the text that the user had seen was missing from the next request": result.get("words_kept") is False,
        "the process was still running 5 s after it was asked to exit": result.get("exit", 0.0) is None,
    }
    return [words for words, is_so in checks.items() if is_so]


def _of_race(result: dict) -> list[str]:
    tries = result["tries"]
    told = []
    if result["next_failed"]:
        told.append(f"the next turn failed in {result['next_failed']} of {tries} tries ({result['why'][:100]})")
    if result["invalid"]:
        told.append(f"the next request was invalid in {result['invalid']} of {tries} tries")
    if result["words_lost"]:
        told.append(f"text that the user had seen was lost in {result['words_lost']} of {tries} tries")
    return told


def level_of(system: str, tag: str, rounds: list[dict]) -> str:
    """`good`: nothing went wrong. `bad`: it did not stop, or the next turn does not work. `part`: the rest.

    `none`: the system has no such thing, or the result is not judged.
    """
    defects = defects_of(tag, rounds)
    if defects is None or (system, tag) in NOT_JUDGED or any("broken" in each for each in rounds):
        return "none"
    if not defects:
        return "good"
    is_bad = any(
        next_works(each) is False
        or each.get("valid") is False
        or each.get("invalid")
        or each.get("next_failed")
        or ("control" in each and (each["control"] is None or each["control"] > SLOW))
        for each in rounds
    )
    return "bad" if is_bad else "part"
