"""A sandbox: what the processes that a model starts may read, write and reach.

On Linux, Landlock restricts the files; namespaces take the network away and protect single files, where this system
allows them. On macOS, Seatbelt does both. Where there is neither, there is no sandbox, and making one raises an error:
the caller decides what to do then, and tells the user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halter.cancel.processes import guardian
from halter.errors import HalterError
from halter.toolbox.sandbox import landlock, seatbelt
from halter.toolbox.sandbox.namespaces import Namespaces, NamespacesUnavailable, request_for
from halter.toolbox.sandbox.policy import policy_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halter.toolbox.sandbox.policy import Mode, Policy

# Words of the errors that a sandbox causes.
_NO_NETWORK: Final = (
    "network is unreachable",
    "could not resolve host",
    "name resolution",
    "name or service not known",
    "getaddrinfo",
    "enotfound",
    "enetunreach",
)
_NO_SERVER: Final = ("connection refused", "econnrefused", "couldn't connect to server", "could not connect to server")
_NO_WRITE: Final = ("permission denied", "read-only file system", "device or resource busy", "eacces", "erofs")
_NO_PRIVILEGE: Final = ("operation not permitted", "no new privileges", "eperm")
_HOW_TO_ALLOW: Final = 'The user can allow more: `halter --sandbox off`, or sandbox="off".'
_HOW_TO_GET_NETWORK: Final = (
    "To ask the user for it, call terminal again with the argument network, which says what the command needs it for. "
    "The user can allow it for all commands: `halter --network`, or network = true in the settings."
)
_IS_CLOSED: Final = "the sandbox is closed; make a new one"


class SandboxUnavailable(HalterError, OSError):
    """Processes cannot be restricted on this system."""


class SandboxClosed(HalterError):
    """The sandbox was closed, and starts no more processes."""


class _Restrictions(NamedTuple):
    """The kernel objects that restrict a process."""

    ruleset: landlock.Ruleset
    namespaces: Namespaces | None


def why_unavailable() -> str:
    """Why this system has no sandbox; empty if it has one. Costs a system call."""
    if seatbelt.is_available():
        return ""
    version = landlock.abi()
    if version >= landlock.FIRST_USABLE:
        return ""
    return "this system has no Landlock (Linux 5.19 or later)" if not version else "this system's Landlock is too old"


class Sandbox:
    """Restricts the processes that are started by `popen()`. Any thread may use it.

    Nothing is made before the first process: no folder, no namespace.
    """

    def __init__(
        self,
        workspace: str | os.PathLike[str] = ".",
        mode: Mode = "workspace",
        *,
        network: bool = False,
        hidden: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        """Raises `SandboxUnavailable` if this system has none, and `ValueError` for the mode "off"."""
        if mode not in ("workspace", "read-only"):
            raise ValueError(f'a sandbox has the mode "workspace" or "read-only", not {mode!r}')
        if why := why_unavailable():
            raise SandboxUnavailable(f"{why}, so processes cannot be restricted")
        self.mode = mode
        self.workspace = Path(workspace).expanduser().resolve()
        self.without_namespaces = ""
        """Why there are no namespaces; empty if there are, or no process was started yet."""
        self.network = network
        """Whether its processes have the network."""
        self._networked: Sandbox | None = None
        self._hidden = tuple(Path(each).expanduser() for each in hidden)
        self._policy: Policy | None = None
        self._restrictions: _Restrictions | None = None
        self._is_closed = False
        self._remove: Callable[[], object] = _do_nothing
        self._lock = threading.Lock()  # for the policy
        # Held while the restrictions are made and used, so that close() does not close them while a process starts.
        self._starting = threading.Lock()

    def for_session(self) -> Sandbox:
        """Another one with the same rules, and with temporary files and a loopback of its own."""
        return Sandbox(self.workspace, self.mode, network=self.network, hidden=self._hidden)

    def with_network(self) -> Sandbox:
        """The same with the network: one workspace, one set of temporary files. It is closed with this one."""
        if self.network:
            return self
        policy = replace(self.policy, network=True)
        with self._lock:
            if self._is_closed:
                raise SandboxClosed(_IS_CLOSED)
            if self._networked is None:
                self._networked = Sandbox(self.workspace, self.mode, network=True, hidden=self._hidden)
                self._networked._policy = policy  # noqa: SLF001  (of this class)
            return self._networked

    def for_folder(self, folder: str | os.PathLike[str], *, network: bool) -> Sandbox:
        """Another one with the same secrets, whose processes write *folder* instead of the workspace."""
        return Sandbox(folder, network=network, hidden=self._hidden)

    @property
    def policy(self) -> Policy:
        """What its processes may do."""
        with self._lock:
            if self._is_closed:
                raise SandboxClosed(_IS_CLOSED)
            if self._policy is None:
                folder = Path(tempfile.mkdtemp(prefix="halter-"))
                self._remove = weakref.finalize(self, _remove, folder, guardian.watch_folder(str(folder)))
                self._policy = policy_for(self.mode, self.workspace, folder, network=self.network, hidden=self._hidden)
            return self._policy

    @property
    def environment(self) -> dict[str, str]:
        """Variables for its processes: temporary files and caches go to a folder that they may write."""
        temporary = self.policy.temporary
        cache = str(temporary / "cache")
        return {"TMPDIR": str(temporary), "XDG_CACHE_HOME": cache, "npm_config_cache": f"{cache}/npm"}

    def prepare(self) -> None:
        """Make what `popen()` needs, if that was not done yet. The first time a helper process runs."""
        if not seatbelt.is_available():
            with self._starting:
                self._prepared()

    def popen(
        self, argv: Sequence[str], *, cwd: str, pass_fds: Iterable[int] = (), **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process in the sandbox, as `subprocess.Popen` does. Raises `SandboxClosed`."""
        if seatbelt.is_available():
            return subprocess.Popen(seatbelt.wrap(self.policy, argv), cwd=cwd, pass_fds=[*pass_fds], **options)
        with self._starting:
            ruleset, namespaces = self._prepared()
            descriptors = [*pass_fds]
            command = list(argv)
            if namespaces is not None:
                command = namespaces.wrap(command, cwd)
                descriptors += namespaces.descriptors.values()  # of its own namespaces, so they give it nothing
            return ruleset.run(
                lambda: subprocess.Popen(command, cwd=cwd, pass_fds=descriptors, **options),
                # In a namespace root has no privileges outside of it.
                keep_capabilities=namespaces is not None,
            )

    def command(self, argv: Sequence[str], *, ports: Iterable[int] = (), writable: Iterable[str] = ()) -> list[str]:
        """The command that runs *argv* in the sandbox, for libraries that start processes by themselves.

        It has namespaces of its own. With *ports*, a sandbox that has the network reaches only those, by TCP.
        """
        if seatbelt.is_available():
            policy = self.policy
            return seatbelt.wrap(replace(policy, writable=(*policy.writable, *map(Path, writable))), argv, ports)
        with self._starting:
            has_namespaces = self._prepared().namespaces is not None
        request = request_for(self.policy) | {
            "namespaces": has_namespaces,
            "ports": [*ports],
            "writable": [*map(str, self.policy.writable), *writable],
            "terminals": [*map(str, self.policy.terminals)],
        }
        program = Path(__file__).with_name("confine_main.py")
        return [sys.executable, "-I", "-S", str(program), json.dumps(request), *argv]

    def explain(self, output: str) -> str:
        """A note for the result of a command that failed: how the sandbox may have caused it; empty if it has not."""
        words = output[-4000:].lower()

        def has(each: tuple[str, ...]) -> bool:
            return any(word in words for word in each)

        cause, how = "", _HOW_TO_ALLOW
        if not self.network and has(_NO_NETWORK):
            cause, how = "has no network", _HOW_TO_GET_NETWORK
        elif not self.network and has(_NO_SERVER):
            how = _HOW_TO_GET_NETWORK
            cause = "has a loopback of its own, with servers that this session has started"
            if self.without_namespaces:
                cause = f"has no loopback on this system ({self.without_namespaces})"
        elif has(_NO_WRITE):
            places = f"only {self.workspace} and $TMPDIR" if self.mode == "workspace" else "only $TMPDIR"
            cause = f"lets commands write {places}, keeps Git's hooks and configuration as they are, and hides secrets"
            if self.without_namespaces and not self.network:  # Landlock refuses a connection with the same error
                cause, how = f"{cause}; nor does it let them connect to servers", f"{how} {_HOW_TO_GET_NETWORK}"
        elif has(_NO_PRIVILEGE):
            cause = "gives commands no privileges, and keeps them away from other processes"
        return f"The sandbox may be the cause: it {cause}. {how}" if cause else ""

    def close(self) -> None:
        """Remove its temporary files. Processes that run in it continue, and keep their restrictions."""
        with self._lock:
            self._is_closed = True
            networked, self._networked = self._networked, None
        if networked is not None:
            networked.close()
        with self._starting:
            restrictions, self._restrictions = self._restrictions, None
            if restrictions is not None:
                restrictions.ruleset.close()
                if restrictions.namespaces is not None:
                    restrictions.namespaces.close()
        self._remove()

    def _prepared(self) -> _Restrictions:
        policy = self.policy
        if self._restrictions is None:
            namespaces = None
            try:
                namespaces = Namespaces(policy)
            except NamespacesUnavailable as error:
                self.without_namespaces = str(error)
            if namespaces is None:
                writable = (*policy.writable, *policy.terminals)
                ruleset = landlock.Ruleset([*policy.readable(), *writable], writable, tcp=policy.network)
            else:
                try:
                    ruleset = landlock.Ruleset([Path("/")], [*policy.writable, *namespaces.devices], tcp=True)
                except BaseException:
                    namespaces.close()
                    raise
                namespaces.close_devices()
            self._restrictions = _Restrictions(ruleset, namespaces)
        return self._restrictions


def _remove(folder: Path, forget: Callable[[], None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    forget()


def _do_nothing() -> None:
    pass
