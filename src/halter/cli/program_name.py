"""The command that this program was really started with, for hints that people copy."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["program_name"]


def program_name(started: str = "", env: Mapping[str, str] = os.environ) -> str:
    """The command: "halter", "uv run halter", "python -m halter", or the path of the script."""
    started = started or sys.argv[0]
    path = Path(started)
    if started in ("", "-c"):  # it is used as a library
        return "halter"
    if path.name == "__main__.py":
        found = shutil.which("python", path=env.get("PATH"))
        is_usual = found is not None and _is_same(found, sys.executable)
        return f"{'python' if is_usual else shlex.quote(sys.executable)} -m halter"
    if env.get("UV_RUN_RECURSION_DEPTH"):  # the folder of the script is in the PATH of this process only
        return f"uv run {path.name}"
    found = shutil.which(path.name, path=env.get("PATH"))
    return path.name if found is not None and _is_same(found, started) else shlex.quote(started)


def _is_same(one: str, other: str) -> bool:
    return Path(one).absolute() == Path(other).absolute()
