"""Entries of the system table, read through a Thrift 2 gateway while no Basalt server need be up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from basalt.errors import CorruptionError
from basalt_engine.stores.hbase.tables import FAMILY, table_name
from basalt_engine.stores.hbase.thrift2 import Thrift2
from basalt_engine.system import VALUE, SystemTable, entry_key, seal, unseal

_COLUMN = FAMILY.encode() + b":" + VALUE


class SystemRows:
    """The system table of one prefix."""

    def __init__(self, gateway: Thrift2, prefix: str) -> None:
        self._gateway = gateway
        self.table = table_name(prefix, SystemTable.name)

    def get(self, kind: str, name: str) -> bytes | None:
        """The body of an entry; `CorruptionError` when it is damaged."""
        key = entry_key(kind, name)
        columns = self._gateway.get(self.table, key)
        return None if columns is None else unseal(key, columns.get(_COLUMN))

    def get_json(self, kind: str, name: str) -> dict[str, Any] | None:
        """The members of an entry whose body is a JSON object."""
        body = self.get(kind, name)
        if body is None:
            return None
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"system entry {kind}:{name} is not readable: {error}") from None

    def scan(self, kind: str) -> Iterator[tuple[str, bytes | CorruptionError]]:
        """Name and body of each entry of a kind, or what is wrong with it: one damaged row does not hide the others."""
        prefix = entry_key(kind, "")
        for key, columns in self._gateway.scan_prefix(self.table, prefix):
            name = key[len(prefix) :].decode(errors="replace")
            try:
                yield name, unseal(key, columns.get(_COLUMN))
            except CorruptionError as error:
                yield name, error

    def insert(self, kind: str, name: str, body: bytes) -> bool:
        """Store an entry that must not be there yet."""
        return self._gateway.check_and_put(self.table, entry_key(kind, name), _COLUMN, None, seal(body))
