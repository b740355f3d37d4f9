"""Stores for sessions: in memory, or in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports

if TYPE_CHECKING:
    from halter.stores.base import Lease as Lease
    from halter.stores.base import SessionInfo as SessionInfo
    from halter.stores.base import Store as Store
    from halter.stores.base import Write as Write
    from halter.stores.memory import MemoryStore as MemoryStore
    from halter.stores.sqlite.store import SQLiteStore as SQLiteStore

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "base": ["Lease", "SessionInfo", "Store", "Write"],
        "memory": ["MemoryStore"],
        "sqlite.store": ["SQLiteStore"],
    },
)
