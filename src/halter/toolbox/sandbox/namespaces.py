"""Namespaces of a sandbox: a loopback of its own instead of the network, and files that are read-only or not there.

They are made once, by a short-lived process (`namespaces_main.py`), and kept by open descriptors. `nsenter` of
util-linux, which every distribution has, runs a command in them. Some systems allow no user namespaces to ordinary
users; then a sandbox has Landlock alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from halter.toolbox.sandbox.policy import Policy

_TIMEOUT: Final = 10.0  # seconds; far more than it takes, for a busy machine
_KINDS: Final = {"user": "user", "mount": "mnt", "ipc": "ipc", "net": "net"}  # nsenter's word, and the kernel's


class NamespacesUnavailable(OSError):
    """Namespaces cannot be made: the system does not let this user, or has no `nsenter`."""


class Namespaces:
    """The namespaces of one sandbox."""

    def __init__(self, policy: Policy) -> None:
        nsenter = shutil.which("nsenter")
        if nsenter is None:
            raise NamespacesUnavailable("there is no nsenter (package util-linux)")
        kinds = [kind for kind in _KINDS if kind != "net" or not policy.network]
        self.descriptors, self._devices = _make(json.dumps(request_for(policy)), kinds)
        options = [f"--{kind}=/proc/self/fd/{descriptor}" for kind, descriptor in self.descriptors.items()]
        self._prefix = [nsenter, "--preserve-credentials", *options]
        self._try_out()

    def _try_out(self) -> None:
        """Run a command. An old `nsenter` or a security module may refuse all: then there are no namespaces either."""
        try:
            done = subprocess.run(
                self.wrap(["true"], "/"),
                pass_fds=[*self.descriptors.values()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT,
                check=False,
            )
            if done.returncode == 0:
                return
            why = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        self.close()
        raise NamespacesUnavailable(why or "nsenter has failed")

    def wrap(self, argv: list[str], cwd: str) -> list[str]:
        """The command that runs *argv* in them. The descriptors have to be passed on to it.

        The working directory is set inside: one that was opened outside would show the files that are hidden here.
        """
        return [*self._prefix, f"--wdns={cwd}", "--", *argv]

    @property
    def devices(self) -> list[Path]:
        """Its own terminals. A Landlock rule for the user's does not hold for what is mounted in their place."""
        return [Path(f"/proc/self/fd/{descriptor}") for descriptor in self._devices]

    def close_devices(self) -> None:
        """Release them, when the rules are made."""
        while self._devices:
            os.close(self._devices.pop())

    def close(self) -> None:
        """Release all. The namespaces exist until the last process in them has ended."""
        self.close_devices()
        for descriptor in self.descriptors.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.descriptors = {}


def request_for(policy: Policy) -> dict[str, object]:
    """The request for `namespaces_main.py`."""
    return {
        "pinned": [*map(str, policy.pinned)],
        "read_only": [*map(str, policy.read_only)],
        "hidden": [*map(str, (*policy.hidden, *policy.sockets))],
        "network": policy.network,
    }


def _make(request: str, kinds: list[str]) -> tuple[dict[str, int], list[int]]:
    """Make them; returns their descriptors, and those of the devices in them."""
    program = Path(__file__).with_name("namespaces_main.py")
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={},
        )
    except OSError as error:
        raise NamespacesUnavailable(f"their helper cannot be started: {error}") from error
    opened: dict[str, int] = {}
    devices: list[int] = []
    try:
        has_terminals = _wait_until_ready(process, request)
        for kind in kinds:
            opened[kind] = os.open(f"/proc/{process.pid}/ns/{_KINDS[kind]}", os.O_RDONLY | os.O_CLOEXEC)
        if has_terminals:
            root = f"/proc/{process.pid}/root"
            devices += [os.open(f"{root}/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in ("pts", "ptmx")]
        process.communicate(timeout=_TIMEOUT)  # closes its input, so it ends
    except BaseException as error:
        process.kill()
        process.communicate()
        for descriptor in (*opened.values(), *devices):
            os.close(descriptor)
        if isinstance(error, (OSError, subprocess.TimeoutExpired)) and not isinstance(error, NamespacesUnavailable):
            raise NamespacesUnavailable(str(error)) from error
        raise
    return opened, devices


def _wait_until_ready(process: subprocess.Popen[str], request: str) -> bool:
    """Send the request, and wait until it is done; returns whether there are terminals in the namespaces."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(request + "\n")
        process.stdin.flush()
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    answer = process.stdout.readline() if poll.poll(_TIMEOUT * 1000) else ""
    if not answer.startswith("ready"):
        _, why = process.communicate(timeout=_TIMEOUT)
        raise NamespacesUnavailable(why.strip().rpartition("\n")[2] or "their helper has failed")
    return answer == "ready\n"
