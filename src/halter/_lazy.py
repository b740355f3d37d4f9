"""Public names that are imported on first use, so that importing a package does nothing.

A package lists its names twice, once for the interpreter and once for type checkers, because neither can read the
other's list. `tests/test_public.py` compares the two.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def lazy_exports(
    package: str, names_by_module: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make the ``__getattr__``, ``__dir__`` and ``__all__`` of a package from the names of each of its modules."""
    modules = {name: module for module, names in names_by_module.items() for name in names}

    def __getattr__(name: str) -> object:  # noqa: N807  (it becomes one)
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807  (it becomes one)
        return sorted(modules)

    return __getattr__, __dir__, sorted(modules)
