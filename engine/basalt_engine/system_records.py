"""System records: entries of the system table whose body is one struct, written as JSON.

Each kind of entry is one `SystemRecord`, beside its struct. Kinds and their bodies: docs/formats/system-table.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from basalt_engine.errors import CorruptionError
from basalt_engine.system import SystemTable
from basalt_engine.table import Delete, Put

T = TypeVar("T")

_NUMBER_DIGITS = 19  # of a number up to 2^63


def number_name(number: int) -> str:
    """A number, time or write pointer, as part of an entry's name: names sort as the numbers do."""
    return f"{number:0{_NUMBER_DIGITS}d}"


class SystemRecord(Generic[T]):
    """One kind of entry. `name` is that of its only entry; a kind of many entries has none, and every call names one."""

    def __init__(self, kind: str, name: str, form: type[T]) -> None:
        self.kind = kind
        self.name = name
        self._decoder = msgspec.json.Decoder(form)

    def get(self, system: SystemTable, name: str = "") -> T | None:
        """The entry's value, or None when there is no such entry."""
        body = system.get(self.kind, name or self.name)
        return None if body is None else self.decode(body, name)

    def scan(
        self, system: SystemTable, start: str = "", *, reverse: bool = False, rows_max: int | None = None
    ) -> Iterator[tuple[str, T]]:
        """Name and value of each entry, sorted by name, from `start` on (descending: down to `start`)."""
        for name, body in system.scan(self.kind, start, reverse=reverse, rows_max=rows_max):
            yield name, self.decode(body, name)

    def put(self, value: T, name: str = "") -> Put:
        """The mutation that stores a value, for a caller that has others to write with it."""
        return SystemTable.put(self.kind, name or self.name, self.encode(value))

    def delete(self, name: str = "") -> Delete:
        """The mutation that removes the entry."""
        return SystemTable.delete(self.kind, name or self.name)

    def write(self, system: SystemTable, value: T, name: str = "") -> None:
        """Store a value, durably."""
        system.write(self.kind, name or self.name, self.encode(value))

    def remove(self, system: SystemTable, name: str = "") -> None:
        """Remove the entry, durably."""
        system.remove(self.kind, name or self.name)

    @staticmethod
    def encode(value: T) -> bytes:
        """The body of an entry with this value."""
        return msgspec.json.encode(value)

    def decode(self, body: bytes, name: str = "") -> T:
        """The value in an entry's body; `CorruptionError` when it holds something else."""
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                f"system entry {self.kind}:{name or self.name} is not what it should be: {error}"
            ) from None
