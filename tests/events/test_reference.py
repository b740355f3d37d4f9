"""The reference of the events: made from their classes, so that it has all of them, with their fields."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import get_args

import msgspec

from halter import events
from halter.events import EventData

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_that_of_the_classes() -> None:
    """A field that is added without `python docs/events_page.py` is found here."""
    spec = importlib.util.spec_from_file_location("events_page", DOCS / "events_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "reference/events.md").read_text() == module.page(), "run `python docs/events_page.py`"


def test_every_event_is_public_and_on_the_page_with_every_field() -> None:
    """Whoever reads a log finds each kind, its class in `halter.events`, and each of its fields."""
    page = (DOCS / "reference/events.md").read_text()
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    for kind in get_args(EventData):
        section = sections[kind.__struct_config__.tag]
        assert f"`{kind.__name__}`" in section
        for field in msgspec.structs.fields(kind):
            assert f"| `{field.name}` |" in section, (kind, field.name)
        if not kind.__module__.startswith("halter.models"):
            assert getattr(events, kind.__name__) is kind
