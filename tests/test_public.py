"""What the packages export, and what importing them costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CANCEL = {
    "NEVER",
    "CancellationToken",
    "Cancelled",
    "ExitGuard",
    "ProcessResult",
    "Registration",
    "TooManyAbandoned",
    "WorkerCrashed",
    "abandoned",
    "checkpoint",
    "current_token",
    "cut_sockets",
    "run_blocking",
    "run_blocking_async",
    "run_isolated",
    "run_isolated_async",
    "run_process",
    "run_process_blocking",
}
HALTER = {
    "NEVER",
    "Agent",
    "Limits",
    "ModelSettings",
    "HalterError",
    "NothingToDo",
    "Receipt",
    "Session",
    "SessionBusy",
    "SessionClosed",
    "Turn",
    "TurnFailed",
    "TurnInterrupted",
    "BadArguments",
    "CancellationToken",
    "Cancelled",
    "Compaction",
    "ExitGuard",
    "ProcessResult",
    "ToolContext",
    "ToolOutcome",
    "checkpoint",
    "current_token",
    "run_blocking",
    "run_blocking_async",
    "run_isolated",
    "run_isolated_async",
    "run_process",
    "run_process_blocking",
    "tool",
}
PACKAGES = {"halter": HALTER, "halter.cancel": CANCEL}
LAZY = [
    *PACKAGES,
    "halter.bridges",
    "halter.events",
    "halter.gateway",
    "halter.models",
    "halter.stores",
    "halter.toolbox",
    "halter.tools",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_exports(package: str) -> None:
    """A package exports exactly its public names: a new one is a decision, not an accident."""
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(PACKAGES[package])
    assert dir(module) == sorted(PACKAGES[package])


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_there(package: str) -> None:
    """Every public name can be imported."""
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_both_doors_lead_to_one_room() -> None:
    """A name that halter and halter.cancel both export is the same object."""
    halter, cancel = map(importlib.import_module, PACKAGES)
    for name in HALTER & CANCEL:
        assert getattr(halter, name) is getattr(cancel, name)


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_see_what_users_get(package: str) -> None:
    """The names that type checkers see are exactly those that are exported, each from the same module."""
    module = importlib.import_module(package)
    assert module.__file__ is not None
    seen = dict(_names_for_type_checkers(Path(module.__file__), package))
    assert sorted(seen) == module.__all__
    for name, home in seen.items():
        assert getattr(importlib.import_module(home), name) is getattr(module, name)


_NOT_EXPORTS = {"__future__", "typing", "halter._lazy", "halter._version"}


def _names_for_type_checkers(path: Path, package: str) -> Iterator[tuple[str, str]]:
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.ImportFrom) and str(statement.module) not in _NOT_EXPORTS:
            for alias in statement.names:
                yield alias.name, str(statement.module)


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_name(package: str) -> None:
    """A name that does not exist is an AttributeError that names it, as for any module."""
    with pytest.raises(AttributeError, match="no attribute 'canceled'"):
        importlib.import_module(package).canceled  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_does_nothing(package: str) -> None:
    """Importing loads no asyncio, starts no thread, installs no signal handler and prints nothing."""
    program = f"""if True:
        import signal, sys, threading
        before = [signal.getsignal(number) for number in signal.valid_signals()]
        import {package}
        assert "asyncio" not in sys.modules
        assert threading.active_count() == 1
        assert [signal.getsignal(number) for number in signal.valid_signals()] == before
    """
    assert _run(program) == ""


def test_cancel_needs_only_the_standard_library() -> None:
    """halter.cancel and all its modules import nothing that does not come with Python."""
    program = """if True:
        import json, pkgutil, sys
        from importlib import import_module
        before = set(sys.modules)  # an environment may load things of its own at start-up
        import halter.cancel
        for module in pkgutil.walk_packages(halter.cancel.__path__, "halter.cancel."):
            import_module(module.name)
        print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
    """
    loaded = set(json.loads(_run(program)))
    assert "halter" in loaded
    assert loaded - sys.stdlib_module_names == {"halter"}


def _run(program: str) -> str:
    """Run a program in a fresh interpreter; returns all that it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_testing_kit_exports_no_module() -> None:
    """A module that is named like a function of the package would replace it as soon as it is imported."""
    testing = importlib.import_module("halter.testing")
    assert not [name for name in testing.__all__ if inspect.ismodule(getattr(testing, name))]
