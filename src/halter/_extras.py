"""Optional dependencies: asked for where they are used, and missed in words that tell the cure."""

from __future__ import annotations

from importlib.util import find_spec


def need(extra: str, *modules: str) -> None:
    """Raise ImportError, with the command that helps, if one of *modules* is not there. Imports none of them."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        msg = f"{', '.join(missing)} is not installed here, and this tool needs it: pip install 'halter[{extra}]'"
        raise ImportError(msg)
