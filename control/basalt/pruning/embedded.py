"""The certificate of a store without regions: retention's notes, of topics and of transactional tables.

Whatever puts a writer on the invalid list leaves a note for each topic (`basalt.messaging.log.garbage_notes`) and each table
(`basalt.tables.garbage_cells`) of its, in the same write. Retention removes a note together with the rows that it is
about, and with what the writer stored and never published; or when it has marked its rows as rolled back. A note about a
table goes after a look at the whole table. Nobody else writes to the store, and a writer that has ended is refused before
a write is made; so a writer without a note has no row left that counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from basalt.messaging.log.garbage_notes import KIND, GarbageRange
from basalt.pruning.certificate import OUTSIDE_HOLD, Cause, Hold, Terms, lifetime_hold
from basalt.tables import garbage_cells as hidden_cells
from basalt_engine.system import SystemTable

Notes = Mapping[int, Sequence[str]]  # names of notes by the writers that they are about


def read_notes(system: SystemTable) -> Notes:
    """All notes that there are; to be read after the invalid list that is asked about."""
    found: dict[int, list[str]] = {}
    for name, body in system.scan(KIND):
        for pointer in msgspec.json.decode(body, type=GarbageRange).write_pointers:
            found.setdefault(pointer, []).append(name)
    for note in hidden_cells.notes(system):
        for pointer in note.write_pointers:
            found.setdefault(pointer, []).append(note.name)
    return found


class EmbeddedCertificate:
    """Judges writers by the notes about them."""

    fault: str | None = None

    def __init__(self, notes: Notes, terms: Terms) -> None:
        self._notes = notes
        self.terms = terms

    def may_go(self, pointer: int) -> bool:
        """Whether no row of this invalid writer is left that counts."""
        return self.cause(pointer) is None

    def cause(self, pointer: int) -> Cause | None:
        """The first thing in the way of this writer."""
        if self.terms.end_ms(pointer) >= self.terms.now_ms:
            return Cause.LIFETIME
        if pointer in self.terms.outside:
            return Cause.OUTSIDE
        return Cause.NOTE if pointer in self._notes else None

    def holds(self, pointer: int) -> list[Hold]:
        """All that is in the way of this writer."""
        if self.cause(pointer) is Cause.LIFETIME:
            return [lifetime_hold(self.terms, pointer)]
        if pointer in self.terms.outside:
            return [OUTSIDE_HOLD]
        return [Hold(Cause.NOTE, f"retention has not dealt with note {name}") for name in self._notes.get(pointer, ())]
