"""Processes that die with ours, however ours ends: also by `kill -9`, when nothing of ours runs any more.

While we live, a process family ends them. For the other case there is a guard: a shell that does nothing but read a
pipe whose other end only we hold. The system closes that end when we are gone, and the guard kills everybody whose
environment has the family's cookie, and those it was told of besides. Signals upon a parent's death would do it without
a process more, but they come already when the *thread* that started the child ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# A moment is left in between: most end by themselves when their pipe closes, and then clean up behind them. Looked for
# twice, since one that is just being started may be missed.
_SCRIPT: Final = """
while read -r each; do all="$all $each"; done
sleep "$2"
[ -z "$all" ] || kill -s KILL -- $all
for round in 1 2; do
    for each in $(grep -ls "$1" /proc/[0-9]*/environ); do
        each=${each#/proc/}
        kill -s KILL "${each%/environ}"
    done
done
[ -z "$3" ] || rm -rf -- "$3"
"""


class Guard:
    """One guard, for one family, started before its first member. It is a member itself, and ends with it."""

    def __init__(self, mark: str, moment: float = 0.5, folder: str = "") -> None:
        """Start it.

        *mark* is the family's variable; *moment*: seconds in which its members may end by themselves; *folder*: what
        they used, to be removed behind them.
        """
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "halter-guard", mark, f"{moment:g}", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what the terminal tells our group is not meant for it
            env={"PATH": os.defpath},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, *targets: int) -> None:
        """Name processes that the mark does not find; a negative number is a process group, as `kill` has it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it was killed: then nobody guards, and that is all
            self._process.stdin.write("".join(f"{target}\n" for target in targets).encode())
            self._process.stdin.flush()

    def poll(self) -> int | None:
        return self._process.poll()

    def close(self) -> None:
        """End it without a kill of anybody: those whom it watched have ended."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


@contextlib.contextmanager
def watching(pids: Iterable[int], on_death: Callable[[], object]) -> Iterator[None]:
    """Have *on_death* called, in the running loop, as soon as one of these has ended."""
    loop = asyncio.get_running_loop()
    watched = []
    for pid in pids:
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(pid))

    def told(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        on_death()

    for descriptor in watched:
        loop.add_reader(descriptor, told, descriptor)
    try:
        yield
    finally:
        for descriptor in watched:
            loop.remove_reader(descriptor)
            os.close(descriptor)
