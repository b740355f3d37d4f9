"""How many questions a day of work asks, by mode: the 60 everyday commands of the sandbox's tests.

    python -m bench.approvals

Counts, not times: they are the same on every machine. "asked" is how many of the commands need an answer. Each is new:
nothing was allowed for the session or for always. "after prefixes" counts again after everything that is offered
for always was allowed.
"""

from __future__ import annotations

from halter.toolbox.terminal.approval.commands import danger_in
from halter.toolbox.terminal.approval.policy import approval_for
from tests.security.test_everyday import COMMANDS

Prefix = tuple[str, ...]


def questions(*, in_sandbox: bool, mode: str, allowed: tuple[Prefix, ...] = ()) -> list[tuple[Prefix, ...]]:
    """The prefixes that each question offers, one for each command that asks."""
    needs = [approval_for(each, in_sandbox=in_sandbox, prefixes=allowed) for each in COMMANDS.values()]
    return [each.prefixes for each in needs if each is not None and not (mode == "auto" and each.automatic)]


def counts() -> list[tuple[str, str, int, int]]:
    """For each sandbox and mode: how many commands ask, and how many after all offered prefixes were allowed."""
    found = []
    for in_sandbox in (True, False):
        for mode in ("ask", "auto"):
            asked = questions(in_sandbox=in_sandbox, mode=mode)
            allowed = tuple({each for prefixes in asked for each in prefixes})
            after = questions(in_sandbox=in_sandbox, mode=mode, allowed=allowed)
            found.append(("workspace" if in_sandbox else "off", mode, len(asked), len(after)))
    return found


def main() -> None:
    dangers = sum(bool(danger_in(each)) for each in COMMANDS.values())
    print(f"{len(COMMANDS)} commands; the list of dangers alone names {dangers}")
    print(f"{'sandbox':10} {'mode':6} {'asked':>6} {'after prefixes':>15}")
    for sandbox, mode, asked, after in counts():
        print(f"{sandbox:10} {mode:6} {asked:6} {after:15}")


if __name__ == "__main__":
    main()
