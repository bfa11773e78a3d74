"""Notes about rows that no snapshot shows any more: rolled back, or of a failed writer.

Whatever hides rows leaves a note of the range in which they lie, in the same group. The retention job looks at just these
ranges, asks the retention rule about each row, and removes the note; pruning forgets no writer that a note names. Format:
docs/formats/system-table.md, kind `hidden`.
"""

from __future__ import annotations

import msgspec

from basalt.catalog.topics import TopicName
from basalt.messaging.log.noted_writers import NotedWriters
from basalt.runtime.group_commit import Group, Phase
from basalt_engine.system import SystemRecord, SystemTable


class GarbageRange(msgspec.Struct, frozen=True):
    """Rows of `write_pointers` with start <= position <= last (hex) in one generation of a topic.

    All rows of these writers lie there that were hidden together, and maybe none.
    """

    namespace: str
    topic: str
    generation: int
    write_pointers: list[int]
    start: str
    last: str

    @property
    def name(self) -> str:
        """The note's name in the system table; the same rows give the same name."""
        return f"{self.namespace}:{self.topic}:{self.generation}:{self.write_pointers[0]}:{self.start}:{self.last}"

    def left(self, start: bytes) -> GarbageRange:
        """The note about those of the rows that lie from `start` on."""
        return msgspec.structs.replace(self, start=start.hex())


GARBAGE = SystemRecord("hidden", "", GarbageRange)


def note(
    group: Group, noted: NotedWriters, title: TopicName, generation: int, write_pointers: list[int], start: bytes, last: bytes
) -> None:  # fmt: skip
    """In a stage: write a note of these writers' rows."""
    garbage = GarbageRange(title.namespace, title.name, generation, write_pointers, start.hex(), last.hex())
    group.add(SystemTable.name, GARBAGE.put(garbage, garbage.name))
    noted.added(group, garbage.name, write_pointers)


def read(system: SystemTable, notes_max: int, start: str = "") -> list[GarbageRange]:
    """The first notes by name, from `start` on, at most `notes_max`."""
    return [garbage for _, garbage in GARBAGE.scan(system, start, rows_max=notes_max)]


def remove(group: Group, noted: NotedWriters, done: GarbageRange, start: bytes | None = None) -> None:
    """Remove a note with the group, after what was done about it; one about its rows from `start` on takes its place."""
    if start is not None:
        rest = done.left(start)
        group.add(SystemTable.name, GARBAGE.put(rest, rest.name))
        noted.added(group, rest.name, rest.write_pointers)
    group.add(SystemTable.name, GARBAGE.delete(done.name), phase=Phase.AFTER)
    noted.removed(group, done.name, done.write_pointers)
