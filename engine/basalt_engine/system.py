"""The system table: facts about the installation and small durable state of the services, by kind and name.

Row key `kind:name`, column v := version(1) body crc32c(4); the body is what the kind says. Kinds and their bodies:
docs/formats/system-table.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec
from crc32c import crc32c

from basalt_engine.clock import Clock
from basalt_engine.errors import CorruptionError
from basalt_engine.table import Delete, Mutation, Put, Table, prefix_stop

VERSION = 1
VALUE = b"v"
_CRC_BYTES = 4
_NUMBER_DIGITS = 19  # of a number up to 2^63

T = TypeVar("T")


class SystemTable:
    """Small values by kind and name. Kinds hold no colon; names may."""

    name = "system"

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, kind: str, name: str) -> bytes | None:
        """The body stored under this kind and name."""
        key = entry_key(kind, name)
        columns = self._table.get(key)
        return None if columns is None else unseal(key, columns.get(VALUE))

    def scan(
        self, kind: str, start: str = "", *, stop: str = "", reverse: bool = False, rows_max: int | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Name and body of each entry of a kind, sorted by name, from `start` on and before `stop`, if any (descending: down to `start`)."""
        prefix = entry_key(kind, "")
        end = entry_key(kind, stop) if stop else prefix_stop(prefix)
        for row in self._table.scan(entry_key(kind, start), end, reverse=reverse, rows_max=rows_max):
            yield _name(row.key, len(prefix)), unseal(row.key, row.columns.get(VALUE))

    @staticmethod
    def put(kind: str, name: str, body: bytes) -> Put:
        """The mutation that stores a body, for a caller that has others to write with it."""
        return Put(entry_key(kind, name), {VALUE: seal(body)})

    @staticmethod
    def delete(kind: str, name: str) -> Delete:
        """The mutation that removes an entry."""
        return Delete(entry_key(kind, name))

    def write(self, kind: str, name: str, body: bytes) -> None:
        """Store a body, durably."""
        self._table.write([self.put(kind, name, body)])

    def write_all(self, mutations: Sequence[Mutation]) -> None:
        """Store and remove several entries, durably, in this order."""
        self._table.write(mutations)

    def remove(self, kind: str, name: str) -> None:
        """Remove an entry, durably."""
        self._table.write([self.delete(kind, name)])

    def replace(self, kind: str, name: str, old: bytes | None, new: bytes) -> bool:
        """Store `new` iff the entry still is `old` (None: absent)."""
        expected = None if old is None else seal(old)
        return self._table.check_and_write(entry_key(kind, name), VALUE, expected, {VALUE: seal(new)})

    def is_still(self, kind: str, name: str, old: bytes) -> bool:
        """Tell whether the entry is `old`. What this handle writes afterwards takes effect over it, whatever clock wrote it."""
        return self._table.check_and_write(entry_key(kind, name), VALUE, seal(old), {})


class SystemRecord(Generic[T]):
    """One kind of entry whose body is one struct, written as JSON; each lies beside its struct.

    `name` is that of its only entry; a kind of many entries has none, and every call names one.
    """

    def __init__(self, kind: str, name: str, form: type[T]) -> None:
        self.kind = kind
        self.name = name
        self._decoder = msgspec.json.Decoder(form)

    def get(self, system: SystemTable, name: str = "") -> T | None:
        """The entry's value, or None when there is no such entry."""
        body = system.get(self.kind, name or self.name)
        return None if body is None else self.decode(body, name)

    def scan(
        self,
        system: SystemTable,
        start: str = "",
        *,
        stop: str = "",
        reverse: bool = False,
        rows_max: int | None = None,
    ) -> Iterator[tuple[str, T]]:
        """Name and value of each entry, sorted by name, from `start` on and before `stop`, if any (descending: down to `start`)."""
        for name, body in system.scan(self.kind, start, stop=stop, reverse=reverse, rows_max=rows_max):
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


def number_name(number: int) -> str:
    """A number, time or write pointer, as part of an entry's name: names sort as the numbers do."""
    return f"{number:0{_NUMBER_DIGITS}d}"


def entry_key(kind: str, name: str) -> bytes:
    return f"{kind}:{name}".encode()


def _name(key: bytes, start: int) -> str:
    try:
        return key[start:].decode()
    except UnicodeDecodeError:
        raise CorruptionError(f"system entry {key.hex()} has a name that is not UTF-8") from None


def seal(body: bytes) -> bytes:
    """The value that holds a body: with its version and checksum."""
    data = bytes([VERSION]) + body
    return data + crc32c(data).to_bytes(_CRC_BYTES, "big")


def unseal(key: bytes, data: bytes | None) -> bytes:
    """The body in the value of the row `key`; `CorruptionError` when it is not whole."""
    name = key.decode(errors="replace")
    if data is None or len(data) < 1 + _CRC_BYTES:
        raise CorruptionError(f"system entry {name} has no value, or a cut one")
    if crc32c(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "big"):
        raise CorruptionError(f"system entry {name} does not match its checksum")
    if data[0] != VERSION:
        raise CorruptionError(f"system entry {name} has version {data[0]}; this Basalt reads version {VERSION}")
    return data[1:-_CRC_BYTES]


class InstallationFacts(msgspec.Struct, frozen=True):
    """Over how many salt buckets rows are spread, when the tables were made, and a name that no other installation has."""

    buckets: int
    created_ms: int
    instance: str

    @classmethod
    def new(cls, buckets: int, clock: Clock) -> InstallationFacts:
        """The facts of an installation that is made now."""
        return cls(buckets, clock.now_ms(), secrets.token_hex(8))


FACTS = SystemRecord("install", "facts", InstallationFacts)


def install(system: SystemTable, clock: Clock, buckets: int) -> InstallationFacts:
    """The facts of this store: written at the first start; `CorruptionError` when it was made with other buckets."""
    facts = FACTS.get(system)
    if facts is None:
        facts = InstallationFacts.new(buckets, clock)
        system.replace(FACTS.kind, FACTS.name, None, FACTS.encode(facts))
        return facts
    if facts.buckets != buckets:
        raise CorruptionError(
            f"the tables were made with {facts.buckets} salt buckets, not {buckets}: rows would not be found"
        )
    return facts
