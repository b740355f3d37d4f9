"""A sandbox: what the processes that a model starts may read, write and reach.

Landlock restricts the files; namespaces take the network away and protect single files, where this system allows them.
Without Landlock there is no sandbox, and making one raises: the caller decides what to do then, and says it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.toolbox.sandbox import landlock
from halter.toolbox.sandbox.namespaces import Namespaces, NamespacesUnavailable
from halter.toolbox.sandbox.policy import policy_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halter.toolbox.sandbox.policy import Mode

# Words of the errors that a sandbox causes, and what to say about each.
_NO_NETWORK: Final = ("network is unreachable", "could not resolve host", "name resolution", "getaddrinfo", "enotfound")
_NO_WRITE: Final = ("permission denied", "read-only file system", "device or resource busy", "eacces", "erofs")


class SandboxUnavailable(OSError):
    """Processes cannot be restricted on this system."""


class Sandbox:
    """Restricts the processes that are started by `popen()`. Any thread may use it."""

    def __init__(
        self,
        workspace: str | Path,
        mode: Mode = "workspace",
        *,
        network: bool = False,
        hidden: Iterable[str | Path] = (),
    ) -> None:
        """Raises `SandboxUnavailable` if this system has none, and `ValueError` for the mode "off"."""
        if mode not in ("workspace", "read-only"):
            raise ValueError(f'a sandbox has the mode "workspace" or "read-only", not {mode!r}')
        if not landlock.abi():
            raise SandboxUnavailable(
                "this system has no Landlock (Linux 5.19 or later), so processes are not restricted"
            )
        self.mode = mode
        self.temporary = Path(tempfile.mkdtemp(prefix="halter-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        self.policy = policy_for(mode, Path(workspace), self.temporary, network=network, hidden=map(Path, hidden))
        self.without_namespaces = ""
        """Why there are no namespaces; empty if there are."""
        self._namespaces: Namespaces | None = None
        self._ruleset: landlock.Ruleset | None = None
        self._lock = threading.Lock()  # held while both are made

    @property
    def environment(self) -> dict[str, str]:
        """Variables for its processes: temporary files and caches go to a folder that they may write."""
        cache = str(self.temporary / "cache")
        return {"TMPDIR": str(self.temporary), "XDG_CACHE_HOME": cache, "npm_config_cache": f"{cache}/npm"}

    def popen(
        self, argv: Sequence[str], *, cwd: str, pass_fds: Iterable[int] = (), **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process in the sandbox, as `subprocess.Popen` does."""
        ruleset, namespaces = self._made()
        descriptors = [*pass_fds]
        command = list(argv)
        if namespaces is not None:
            command = namespaces.wrap(command, cwd)
            descriptors += namespaces.descriptors.values()  # of its own namespaces, so they give it nothing
        return ruleset.run(lambda: subprocess.Popen(command, cwd=cwd, pass_fds=descriptors, **options))

    def explain(self, output: str) -> str:
        """A note for the result of a command that failed: what the sandbox may have had to do with it, or nothing."""
        words = output[-4000:].lower()
        if not self.policy.network and any(each in words for each in _NO_NETWORK):
            return "The sandbox has no network. The user can allow it."
        if any(each in words for each in _NO_WRITE):
            places = f"only {self.policy.workspace} and $TMPDIR" if self.mode == "workspace" else "only $TMPDIR"
            return f"The sandbox lets commands write {places}; Git's hooks and configuration are read-only."
        return ""

    def close(self) -> None:
        """Remove its temporary files. Processes that run in it go on, and keep their restrictions."""
        with self._lock:
            for each in (self._namespaces, self._ruleset):
                if each is not None:
                    each.close()
            self._namespaces = self._ruleset = None
        self._end()

    def _made(self) -> tuple[landlock.Ruleset, Namespaces | None]:
        """The means, made when the first process is started."""
        with self._lock:
            if self._ruleset is None:
                try:
                    self._namespaces = Namespaces(self.policy)
                except NamespacesUnavailable as error:
                    self.without_namespaces = str(error)
                has_namespaces = self._namespaces is not None
                self._ruleset = landlock.Ruleset(
                    [Path("/")] if has_namespaces else self.policy.readable(),
                    self.policy.writable,
                    tcp=has_namespaces or self.policy.network,
                )
            return self._ruleset, self._namespaces
