"""One virtual environment for each system, made with pip by the names of its packages; and what it weighs."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.peers.systems import System

__all__ = ["QUIET", "NotInstalled", "import_seconds", "install", "installed"]

PROBE = """
import importlib.metadata as m, json, pathlib, sys, sysconfig
site = pathlib.Path(sysconfig.get_paths()["purelib"])
skipped = {"pip", "setuptools", "wheel", "_distutils_hack", "pkg_resources"}
def size(path):
    if path.is_symlink() or path.name in skipped or path.name == "__pycache__":
        return 0
    return path.stat().st_size if path.is_file() else sum(map(size, path.iterdir()))
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = m.version(name)
    except m.PackageNotFoundError:
        versions[name] = "unknown"
packages = {d.metadata["Name"].lower() for d in m.distributions()} - skipped
print(json.dumps({"versions": versions, "bytes": size(site), "packages": len(packages)}))
"""


# Nothing is sent anywhere but to the fake provider: no traces, no price lists, no questions to a model registry.
QUIET = {
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # an import is not to compile again
}

INSTALL_CAP = 600.0  # seconds


class NotInstalled(Exception):
    """pip could not install it; the text is pip's last line."""


def install(system: System, folder: Path) -> Path:
    """Make the environment, or use the one that is there. Returns its Python."""
    environment = folder / (system.shares or system.name)
    python, marker = environment / "bin" / "python", environment / "installed"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not marker.exists():
        _run([_interpreter(system.python), "-m", "venv", str(environment)])
        _run([*pip, *system.requirements])
        marker.touch()
    elif system.is_local:  # its sources may have changed since
        _run([*pip, "--force-reinstall", "--no-deps", *system.requirements])
    return python


def _interpreter(version: str) -> str:
    """The Python of the runner, or the one of that version, on the PATH or under pyenv."""
    if not version or tuple(map(int, version.split("."))) <= sys.version_info[:2]:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path("~/.pyenv").expanduser()))
    found = [*filter(None, [shutil.which(f"python{version}")]), *pyenv.glob(f"versions/{version}.*/bin/python")]
    for candidate in found:  # a shim of pyenv is on the PATH also where that version is not chosen
        if subprocess.run([str(candidate), "-c", "pass"], capture_output=True, check=False).returncode == 0:
            return str(candidate)
    raise NotInstalled(f"it needs Python {version}, which is not here")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_CAP)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"pip had not ended after {INSTALL_CAP:g} s") from None
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.startswith("ERROR")]
        raise NotInstalled((lines or ["pip failed"])[-1].removeprefix("ERROR: ")[:200])


def installed(system: System, python: Path) -> dict:
    """The versions, and the size of everything that was installed, without pip and compiled files."""
    names = [Path(each).name if "/" in each else each.partition("[")[0] for each in system.requirements]
    names = ["halter"] if system.is_local else names
    done = subprocess.run([str(python), "-c", PROBE, *names], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def import_seconds(system: System, python: Path) -> float:
    """The CPU time of an import in a fresh interpreter, without the start of the interpreter itself."""
    environment = os.environ | QUIET

    def once(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([str(python), "-c", code], check=True, capture_output=True, env=environment, timeout=240)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    once(system.imports)  # compiles what it imports
    return min(once(system.imports) for _ in range(2)) - min(once("pass") for _ in range(2))
