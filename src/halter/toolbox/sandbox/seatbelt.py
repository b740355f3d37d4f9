"""Seatbelt, the sandbox of macOS: a policy as a profile for `sandbox-exec`.

It was written from the documentation and has not run on a Mac yet. Everything that the profile does not allow is
denied; of two rules that apply, the later one holds.

Two things differ from Linux: processes without the network have no loopback between them either, since rules cannot
tell one sandbox's loopback from another's, and they share the user's terminals.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halter.toolbox.sandbox.policy import Policy

PROGRAM: Final = Path("/usr/bin/sandbox-exec")
# What programs need to run at all. None of these services starts or controls other programs, which would run outside of
# the sandbox.
_BASE: Final = """\
(version 1)
(deny default)
(allow process-exec)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow sysctl-read)
(allow ipc-posix-sem)
(allow ipc-posix-shm*)
(allow pseudo-tty)
(allow user-preference-read)
(allow mach-lookup
  (global-name "com.apple.system.opendirectoryd.libinfo")
  (global-name "com.apple.system.opendirectoryd.membership")
  (global-name "com.apple.system.notification_center")
  (global-name "com.apple.system.logger")
  (global-name "com.apple.logd"))
(allow file-read*)
(allow file-ioctl (literal "/dev/tty") (literal "/dev/ptmx") (regex #"^/dev/ttys[0-9]+$"))
(allow file-write*
  (literal "/dev/null") (literal "/dev/zero") (literal "/dev/tty") (literal "/dev/ptmx")
  (regex #"^/dev/ttys[0-9]+$"))
"""
_NETWORK: Final = """\
(allow network*)
(allow system-socket)
(allow mach-lookup
  (global-name "com.apple.SystemConfiguration.configd")
  (global-name "com.apple.SystemConfiguration.DNSConfiguration")
  (global-name "com.apple.networkd")
  (global-name "com.apple.trustd.agent")
  (global-name "com.apple.SecurityServer"))
"""


def is_available() -> bool:
    """Whether this is a Mac that has it."""
    return sys.platform == "darwin" and PROGRAM.exists()


def wrap(policy: Policy, argv: Sequence[str], ports: Iterable[int] = ()) -> list[str]:
    """The command that runs *argv* with the restrictions of a policy. With *ports*, it reaches those alone."""
    return [str(PROGRAM), "-p", profile(policy, ports), *argv]


def profile(policy: Policy, ports: Iterable[int] = ()) -> str:
    """The policy in Seatbelt's language."""
    of_this_machine = [f'(allow network-outbound (remote tcp "localhost:{port}"))\n' for port in ports]
    parts = [_BASE]
    if policy.network:
        parts += of_this_machine or [_NETWORK]
    parts += [
        _rule("allow file-write*", policy.writable),
        _rule("deny file-write*", policy.read_only),
        # A folder that is moved away takes what is protected in it along.
        _rule("deny file-write-unlink", policy.pinned, "literal"),
        # Neither read nor replaced, and no other program is asked through a socket there.
        _rule("deny file-read* file-write* network-outbound", (*policy.hidden, *policy.sockets)),
    ]
    return "".join(parts)


def _rule(operation: str, paths: Iterable[Path], kind: str = "subpath") -> str:
    filters = [f"\n  ({kind} {_quoted(path)})" for path in paths]
    return f"({operation}{''.join(filters)})\n" if filters else ""  # without a path, a rule would be for all


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
