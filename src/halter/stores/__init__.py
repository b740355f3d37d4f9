"""Stores for sessions: in memory, in a SQLite file, or in NATS JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports

if TYPE_CHECKING:
    from halter.stores.base import Lease as Lease
    from halter.stores.base import SessionInfo as SessionInfo
    from halter.stores.base import Store as Store
    from halter.stores.base import Write as Write
    from halter.stores.memory import MemoryStore as MemoryStore
    from halter.stores.nats.store import NATSStore as NATSStore
    from halter.stores.sqlite.store import SQLiteStore as SQLiteStore

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "base": ["Lease", "SessionInfo", "Store", "Write"],
        "memory": ["MemoryStore"],
        "nats.store": ["NATSStore"],
        "sqlite.store": ["SQLiteStore"],
    },
)
