"""The reference pages that follow from the sources have every public name, setting, command and route."""

from __future__ import annotations

import importlib.util
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import halter
from halter.cli.settings import Settings
from halter.gateway.http.routes import ROUTES

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", DOCS / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_those_of_the_sources(script: ModuleType) -> None:
    """A setting, option, route or name that is added without `python docs/reference_pages.py` is found here."""
    made = script.pages()
    assert {path for path in made if path.parent.name == "api"} == set((DOCS / "reference/api").glob("*.md"))
    for path, text in made.items():
        assert path.read_text("utf-8") == text, f"run `python docs/reference_pages.py`: {path.name}"


def test_every_public_module_has_a_page(script: ModuleType) -> None:
    """A module or package below `halter` that exports names is described, on its own page or on another."""
    elsewhere = {"agent"}  # exported by `halter`
    programs = {"cli", "demo", "protocols", "session", "views", "voice"}  # no public names of their own
    for found in pkgutil.iter_modules(halter.__path__):
        if not found.name.startswith("_"):
            assert found.name in {*script.MODULES, *elsewhere, *programs}, found.name


def test_each_name_setting_and_route_is_there(script: ModuleType) -> None:
    """The pages are complete by another count than the script's own."""
    names = (DOCS / "reference/api.md").read_text("utf-8")
    for module in script.MODULES:
        for name in importlib.import_module(f"halter.{module}" if module else "halter").__all__:
            assert f"[`{name}`]" in names, f"{module}.{name}"
    settings = (DOCS / "reference/settings.md").read_text("utf-8")
    for setting in Settings.__struct_fields__:
        assert f"| `{setting}` |" in settings or f"## [{setting}" in settings, setting
    routes = (DOCS / "reference/routes.md").read_text("utf-8")
    for route in ROUTES:
        assert f"`{route.method} {route.path.replace(':.+', '')}`" in routes
