"""A RocksDB database that fails where it is told to: what a disk does once in a while."""

from __future__ import annotations

from basalt_engine.errors import BasaltError
from basalt_engine.stores.rocks.database import Database


class Faults:
    """The next failures, by the call that they are for; open stores with it as `open_database`."""

    def __init__(self) -> None:
        self.next: dict[str, BasaltError] = {}
        self.openings = 0

    def __call__(self, path, options, *, create) -> Database:
        self.openings += 1
        self.strike("open")
        return FaultyDatabase(path, options, create=create, faults=self)

    def strike(self, call: str) -> None:
        """Fail if this call is to fail now."""
        failure = self.next.pop(call, None)
        if failure is not None:
            raise failure


class FaultyDatabase(Database):
    """A database whose faults are told from outside."""

    def __init__(self, path, options, *, create, faults):
        super().__init__(path, options, create=create)
        self.faults = faults

    def write(self, batch):
        self.faults.strike("write")
        super().write(batch)
        self.faults.strike("written")

    def sync(self):
        self.faults.strike("sync")
        super().sync()
