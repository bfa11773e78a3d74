"""What is counted of transactions since the server started, for GET /metrics."""

from __future__ import annotations

from collections.abc import Sequence

from basalt.runtime.durations import Durations
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit

_EVENTS: dict[type, str] = {
    edits.Began: "begun",
    edits.OneShot: "committed",
    edits.Committed: "committed",
    edits.Aborted: "aborted",
    edits.Invalidated: "invalidated",
    edits.Doomed: "conflicts",
}
_EARLY = frozenset((edits.Aborting, edits.Aborted, edits.Invalidated))


class Totals:
    """How many transactions each thing has happened to, and how long their commits took."""

    def __init__(self) -> None:
        self.events = dict.fromkeys(
            ("begun", "committed", "aborted", "invalidated", "conflicts", "timed_out", "forced"), 0
        )
        self.commits = Durations()

    def count(self, made: Sequence[Edit]) -> None:
        """These edits are durable."""
        events = self.events
        for edit in made:
            event = _EVENTS.get(type(edit))
            if event is not None:
                events[event] += 1
        if not _EARLY.isdisjoint(map(type, made)):
            self._count_early(made)

    def _count_early(self, made: Sequence[Edit]) -> None:
        """Of several that ended together the others, and those that timed out: of ABORTING and ABORTED the first says so."""
        for edit in made:
            if isinstance(edit, edits.Aborting | edits.Aborted | edits.Invalidated):
                count = len(edit.ids) if isinstance(edit, edits.Invalidated) else 1
                self.events["timed_out"] += count if edit.timed_out else 0
                self.events["invalidated"] += count - 1
