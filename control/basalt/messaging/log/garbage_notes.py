"""Rows that no snapshot shows any more: rolled back, or of a failed writer. Noted, so that retention finds them.

Whatever hides rows writes a note into the system table, in the same group commit: topic, generation, writers, and the
range of positions in which their rows lie. The retention job looks at just these ranges, asks the retention rule about
each row of these writers, and removes the note. Format of the notes: docs/formats/system-table.md, kind `hidden`.
"""

from __future__ import annotations

import msgspec

from basalt.catalog.topics import TopicName
from basalt.runtime.group_commit import Group, Phase
from basalt_engine.system import SystemTable

KIND = "hidden"


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


def note(group: Group, title: TopicName, generation: int, write_pointers: list[int], start: bytes, last: bytes) -> None:
    """Write a note with the group."""
    garbage = GarbageRange(title.namespace, title.name, generation, write_pointers, start.hex(), last.hex())
    group.add(SystemTable.name, SystemTable.put(KIND, garbage.name, msgspec.json.encode(garbage)))


def notes(system: SystemTable, notes_max: int, start: str = "") -> list[GarbageRange]:
    """The first notes by name, from `start` on, at most `notes_max`."""
    return [msgspec.json.decode(body, type=GarbageRange) for _, body in system.scan(KIND, start, rows_max=notes_max)]


def remove(group: Group, done: GarbageRange) -> None:
    """Remove a note with the group, after what was done about it."""
    group.add(SystemTable.name, SystemTable.delete(KIND, done.name), phase=Phase.OUTCOME)


def left(done: GarbageRange, start: bytes) -> GarbageRange:
    """The note about those of the rows that lie from `start` on."""
    return msgspec.structs.replace(done, start=start.hex())


def advance(group: Group, done: GarbageRange, start: bytes) -> None:
    """Put a note about the rows from `start` on in the place of one about more."""
    rest = left(done, start)
    group.add(SystemTable.name, SystemTable.put(KIND, rest.name, msgspec.json.encode(rest)))
    remove(group, done)
