"""The SQLite store for the benchmarks, if this version of Halter has it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from halter.stores import Store


def has_sqlite() -> bool:
    return importlib.util.find_spec("halter.stores.sqlite.store") is not None


def open_sqlite(path: Path) -> Store:
    store: Store = importlib.import_module("halter.stores.sqlite.store").SQLiteStore(path)
    return store
