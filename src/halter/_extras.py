"""Optional dependencies, checked where they are used."""

from __future__ import annotations

from importlib.util import find_spec


def need(extra: str, *modules: str) -> None:
    """Raise ImportError, with the command that helps, if one of *modules* is not there. Imports none of them."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        msg = f"not installed: {', '.join(missing)}. To install what this needs: pip install 'halter[{extra}]'"
        raise ImportError(msg)
