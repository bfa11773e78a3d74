"""The embedded store, RocksDB in a data directory: `RocksStore`."""

from __future__ import annotations

from basalt_engine.stores.rocks.store import RocksStore

__all__ = ["RocksStore"]
