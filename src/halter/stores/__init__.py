"""Where sessions are kept: in memory, or in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.lazy import lazy_names

if TYPE_CHECKING:
    from halter.stores.memory import MemoryStore
    from halter.stores.sqlite import SQLiteStore
    from halter.stores.store import GroupingStore, Lease, SessionInfo, Store, Waiting

_HOMES = {
    "GroupingStore": "store",
    "Lease": "store",
    "MemoryStore": "memory",
    "SQLiteStore": "sqlite",
    "SessionInfo": "store",
    "Store": "store",
    "Waiting": "store",
}

__all__ = ["GroupingStore", "Lease", "MemoryStore", "SQLiteStore", "SessionInfo", "Store", "Waiting"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
