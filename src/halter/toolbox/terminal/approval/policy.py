"""What a shell command is: read-only, covered by prefixes that a person has allowed, or something to ask about.

A command line is judged as a whole. It runs without asking only if each of its simple commands is read-only or covered.
The user is asked about what is not understood, and about what the list of dangers names (`commands.py`), covered or
not: the list adds the reason that the user reads first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.toolbox.terminal.approval.command_line import NotUnderstood, parse
from halter.toolbox.terminal.approval.commands import danger_in
from halter.toolbox.terminal.approval.prefixes import covers, suggest_prefix
from halter.toolbox.terminal.approval.read_only import is_read_only, only_reads_files
from halter.tools.approval import ApprovalNeed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.toolbox.terminal.approval.command_line import CommandLine
    from halter.toolbox.terminal.approval.prefixes import Prefix

__all__ = ["approval_for"]

_MAX_PREFIXES: Final = 5  # nobody would read more


def approval_for(text: str, *, in_sandbox: bool, prefixes: Sequence[Prefix] = ()) -> ApprovalNeed | None:
    """Why the user has to be asked before this command runs, and what they may allow; None if it may run.

    The mode "auto" grants what is said to be automatic: everything, in a sandbox.
    """
    danger = danger_in(text)
    try:
        commands = parse(text)
    except NotUnderstood as error:
        reason = danger or f"it is more than a plain command: {error}"
        return ApprovalNeed(reason=reason, automatic=in_sandbox, unattended=in_sandbox and not danger, covers="call")
    if danger:
        return ApprovalNeed(reason=danger, automatic=in_sandbox, covers="call")
    left = [each for each in commands if not is_read_only(each, in_sandbox=in_sandbox) and not _covered(each, prefixes)]
    if not left:
        return None
    suggested = [suggest_prefix(each) for each in left]
    offered = tuple(dict.fromkeys(each for each in suggested if each is not None))
    if None in suggested or len(offered) > _MAX_PREFIXES:
        offered = ()
    return ApprovalNeed(
        reason=_reason(left[0]),
        automatic=in_sandbox,
        unattended=in_sandbox,
        covers="call",
        prefixes=offered,
        is_covered=lambda allowed: all(_covered(each, allowed) for each in left),
    )


def _covered(command: CommandLine, prefixes: Sequence[Prefix]) -> bool:
    return only_reads_files(command) and any(covers(each, command) for each in prefixes)


def _reason(command: CommandLine) -> str:
    if not only_reads_files(command):
        written = [each.target for each in command.redirections if each.sign != "<" and each.target.text != "/dev/null"]
        if not written:
            return "it reads something that is only known when it runs, or a device"
        return f"it writes {written[0].text}" if written[0].is_fixed else "it writes a file"
    if not command.words:
        return "it sets variables"
    if command.assignments:
        return f"it sets {command.assignments[0][0]} for {command.name}"
    prefix = suggest_prefix(command) or (command.name,)
    return f"{' '.join(prefix)} may change something"
