"""The payload table: messages stored ahead of their transaction's commit. Rows: docs/formats/message-table.md.

A payload row is reached only through a message row that refers to it. A writer that publishes a reference before it
ends leaves a *bound row* behind the reference, keyed above all its payload rows, whose column b says up to where its
payloads are published; so what it stores later belongs to its next reference, after a restart too. Where a store writes
row by row, the bound row comes first: it also names the message row that it announces, and the bound before, which holds
as long as that row is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from basalt_engine.errors import CorruptionError
from basalt_engine.keys import TopicKeys, position_fields
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.table import Columns, Delete, DeleteRange, Put, Table, prefix_stop

BATCH = b"p"
BOUND = b"b"
PREVIOUS = b"a"
ANNOUNCED = b"m"
BOUND_POSITION = b"\xff" * POSITION_BYTES


class PayloadRow(NamedTuple):
    """One stored batch. `position` is its write time and the payload sequence of its last message, 10 bytes."""

    position: bytes
    batch: bytes


class PayloadTable:
    """Reads and encodes payload rows; writing goes through the one group-commit writer."""

    name = "payload"

    def __init__(self, table: Table) -> None:
        self._table = table

    @staticmethod
    def put(keys: TopicKeys, write_pointer: int, row: PayloadRow) -> Put:
        """The mutation that stores a batch."""
        return Put(keys.payload_key(write_pointer, *position_fields(row.position)), {BATCH: row.batch})

    @staticmethod
    def bind(
        keys: TopicKeys, write_pointer: int, last: bytes, previous: bytes | None = None, announced: bytes | None = None
    ) -> Put:
        """The mutation that notes that the writer's payloads up to `last` are published.

        `announced` is the position of the message row that does so, `previous` the bound that holds without it.
        """
        columns = {BOUND: last}
        if announced is not None:
            columns |= {ANNOUNCED: announced, PREVIOUS: previous or b""}
        return Put(keys.payload_start(write_pointer) + BOUND_POSITION, columns)

    @staticmethod
    def confirm(keys: TopicKeys, write_pointer: int) -> Delete:
        """The mutation that makes the writer's bound hold by itself: the message row that it announced was written."""
        return Delete(keys.payload_start(write_pointer) + BOUND_POSITION, (ANNOUNCED, PREVIOUS))

    @staticmethod
    def remove(keys: TopicKeys, write_pointer: int, start: bytes = b"") -> DeleteRange:
        """Deletes the writer's payload rows from a position on, its bound row among them."""
        first = keys.payload_start(write_pointer)
        stop = prefix_stop(first)
        assert stop is not None  # a salt, a name and a generation are never all 0xff
        return DeleteRange(first + start, stop)

    @staticmethod
    def remove_between(keys: TopicKeys, write_pointer: int, first: bytes, last: bytes) -> DeleteRange:
        """Deletes the writer's rows with first <= position <= last: those of one reference."""
        start = keys.payload_start(write_pointer)
        return DeleteRange(start + first, start + last + b"\0")

    def scan(
        self, keys: TopicKeys, write_pointer: int, first: bytes, last: bytes, *, reverse: bool = False
    ) -> Iterator[PayloadRow]:
        """The writer's rows with first <= position <= last, in the order in which they were stored, or in `reverse`."""
        start = keys.payload_start(write_pointer)
        for row in self._table.scan(start + first, start + last + b"\0", reverse=reverse):
            yield _decode(row.key, row.columns.get(BATCH))

    def unbound(
        self, keys: TopicKeys, write_pointer: int, is_there: Callable[[bytes], bool] = lambda _: True
    ) -> tuple[bytes | None, Iterator[PayloadRow]]:
        """The position up to which the writer's payloads are published, and the rows after it.

        `is_there` tells whether the topic has a message row at a position.
        """
        start = keys.payload_start(write_pointer)
        columns = self._table.get(start + BOUND_POSITION)
        bound = None if columns is None else _bound(start + BOUND_POSITION, columns, is_there)
        rows = self._table.scan(start if bound is None else start + bound + b"\0", start + BOUND_POSITION)
        return bound, (_decode(row.key, row.columns.get(BATCH)) for row in rows)


def _bound(key: bytes, columns: Columns, is_there: Callable[[bytes], bool]) -> bytes | None:
    """The bound that a bound row tells; `CorruptionError` when it tells none."""
    bound, announced, previous = columns.get(BOUND, b""), columns.get(ANNOUNCED), columns.get(PREVIOUS)
    if len(bound) != POSITION_BYTES:
        raise CorruptionError(f"bound row {key.hex()} holds {len(bound)} bytes, not a position")
    if announced is None:
        return bound
    if len(announced) != POSITION_BYTES or previous is None or len(previous) not in (0, POSITION_BYTES):
        raise CorruptionError(f"bound row {key.hex()} does not say what it announces, or what was bound before")
    return bound if is_there(announced) else previous or None


def _decode(key: bytes, batch: bytes | None) -> PayloadRow:
    if batch is None:
        raise CorruptionError(f"payload row {key.hex()} has no batch")
    return PayloadRow(key[-POSITION_BYTES:], batch)
