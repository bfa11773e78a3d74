"""What one-shot transactions may leave out of the log before their rows, and what recovery finds again, as proposals.

Pure. Where rows and log are not one batch, a one-shot transaction is logged only when its rows are written. Write
pointers rise and groups are written one after the other, so at any time only the rows of the last group can lack an
outcome, and their writers are above the log's last pointer. What tells recovery where to look for them is TopicsUsed,
logged before a topic's first use, and again from time to time. docs/decisions/0011-one-shots-without-an-intent.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.pointers import POINTERS_PER_MS, next_pointer
from basalt.transactions.rules.proposals import Proposal
from basalt.transactions.rules.states import Join, Kind
from basalt.transactions.rules.transaction_table import Ledger

USE_POINTERS = 10_000 * POINTERS_PER_MS  # how long a topic's use lasts; recovery reads what was written in this time
RENEWED_POINTERS = 2_000 * POINTERS_PER_MS  # how old a steady use gets before the log hears of it again
LOST_OWNER = "one-shot without an outcome"


class Use(NamedTuple):
    """What the log must hold of the topics that a one-shot transaction writes to."""

    before: tuple[Edit, ...] = ()  # durable before its rows are written
    with_outcome: tuple[Edit, ...] = ()


class OneShotRules:
    """The one-shot transactions of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def use(self, write_pointer: int, joins: Iterable[Join]) -> Use:
        """What to log of these topics, to which no one-shot transaction of the same group has written yet."""
        new: list[Join] = []
        renewed: list[Join] = []
        for join in joins:
            known = self._ledger.topics_used.get(join[:2])
            # Where a topic ends may have been read anew from the store, and places that were lost are not known there.
            if known is None or write_pointer > known.until or join.from_ms < known.join.from_ms:
                new.append(join)
            elif write_pointer > known.until - USE_POINTERS + RENEWED_POINTERS:
                renewed.append(join)
        until = write_pointer + USE_POINTERS
        return Use(*((edits.TopicsUsed(until, tuple(some)),) if some else () for some in (new, renewed)))

    def in_use(self) -> tuple[Join, ...]:
        """The topics in which one-shot transactions without an outcome may have rows."""
        return tuple(used.join for used in self._ledger.topics_used.entries(self._ledger.last_pointer))

    def over(self, now_ms: int) -> Proposal:
        """End the use of topics to which no one-shot transaction has written for long, where no other pointer does so."""
        last = self._ledger.last_pointer
        now = next_pointer(last, now_ms)
        idle = tuple(used.join for used in self._ledger.topics_used.entries(last) if used.until < now)
        return Proposal((edits.TopicsUsed(last, idle),) if idle else ())

    def recover(self, found: Mapping[int, Sequence[Join]]) -> Proposal:
        """Make transactions that are being aborted of writers that the log does not know, by where their rows lie.

        From then on no topic is in use. So before the next one-shot transaction writes a row, an entry takes its place in
        the log, and nothing that was given up can turn up there any more and hand out that transaction's pointer too.
        """
        made: list[Edit] = []
        for writer in sorted(found):
            began_ms = writer // POINTERS_PER_MS
            made.append(edits.Began(writer, Kind.SHORT, False, began_ms, began_ms, LOST_OWNER, None))
            made += [edits.Joined(writer, join) for join in found[writer]]
            made.append(edits.Aborting(writer, False))
        in_use = self.in_use()
        if in_use:
            made.append(edits.TopicsUsed(max(found, default=self._ledger.last_pointer), in_use))
        return Proposal(tuple(made))
