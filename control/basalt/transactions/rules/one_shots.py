"""One-shot transactions: what they may leave out of the log before their rows, and what recovery finds again. Pure.

Where rows and log are not one batch, a one-shot transaction is logged only when its rows are written. Write pointers rise
and groups are written one after the other, so at any time only the rows of the last group can lack an outcome, and their
writers are above the log's last pointer. TopicsUsed tells recovery where to look for them. It is logged before a topic's
first use, and again from time to time. docs/decisions/0011-one-shots-without-an-intent.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit, Proposal
from basalt.transactions.rules.transaction import Join, Kind, next_pointer
from basalt_engine.snapshot import POINTERS_PER_MS

USE_POINTERS = 10_000 * POINTERS_PER_MS  # how long a topic's use lasts; recovery reads what was written in this time
RENEWED_POINTERS = 2_000 * POINTERS_PER_MS  # how old a steady use gets before the log hears of it again
LOST_OWNER = "one-shot without an outcome"

TopicKey = tuple[bytes, int]  # topic prefix and generation


class UsedTopic(NamedTuple):
    """One-shot transactions with a pointer up to `until` may write to the topic, at or after `join.from_ms`."""

    until: int
    join: Join


class TopicUseEdits(NamedTuple):
    """The edits by which the log learns to which topics a one-shot transaction writes."""

    before: tuple[Edit, ...] = ()  # durable before its rows are written
    with_outcome: tuple[Edit, ...] = ()


class OneShotTopics:
    """The topics in use, those first whose use ends first. One whose use has ended may still be held, but does not count."""

    def __init__(self, used: Iterable[UsedTopic] = ()) -> None:
        self._used = {each.join.key: each for each in used}

    def get(self, key: TopicKey) -> UsedTopic | None:
        """The topic's entry, whether or not its use has ended."""
        return self._used.get(key)

    def entries(self, last_pointer: int) -> tuple[UsedTopic, ...]:
        """The topics that are in use after this pointer."""
        return tuple([used for used in self._used.values() if used.until > last_pointer])

    def apply(self, edit: edits.TopicsUsed, last_pointer: int) -> None:
        """These topics are in use until then, each from its time on; whatever was said of them before counts no more."""
        for join in edit.topics:
            used = UsedTopic(edit.until, join)
            self._used.pop(used.join.key, None)  # put in anew, for the order
            if edit.until > last_pointer:
                self._used[used.join.key] = used
        while self._used and (first := next(iter(self._used.values()))).until <= last_pointer:
            del self._used[first.join.key]

    # Proposals.

    def use(self, write_pointer: int, joins: Iterable[Join]) -> TopicUseEdits:
        """The edits to log for these topics, to which no one-shot transaction of the same group has written yet."""
        new: list[Join] = []
        renewed: list[Join] = []
        for join in joins:
            known = self._used.get(join.key)
            # Where a topic ends may have been read anew from the store, and places that were lost are not known there.
            if known is None or write_pointer > known.until or join.from_ms < known.join.from_ms:
                new.append(join)
            elif write_pointer > known.until - USE_POINTERS + RENEWED_POINTERS:
                renewed.append(join)
        until = write_pointer + USE_POINTERS
        return TopicUseEdits(*((edits.TopicsUsed(until, tuple(some)),) if some else () for some in (new, renewed)))

    def end_idle(self, last_pointer: int, now_ms: int) -> Proposal:
        """End the use of topics to which no one-shot transaction has written for long, where no other pointer does so."""
        now = next_pointer(last_pointer, now_ms)
        idle = tuple(used.join for used in self.entries(last_pointer) if used.until < now)
        return Proposal((edits.TopicsUsed(last_pointer, idle),) if idle else ())

    def roll_back_unknown(self, last_pointer: int, joins_of_writer: Mapping[int, Sequence[Join]]) -> Proposal:
        """Make aborting transactions of writers that the log does not know, by where their rows lie.

        From then on no topic is in use. So before the next one-shot transaction writes a row, an entry takes its place in
        the log, and nothing that was given up can turn up there any more and hand out that transaction's pointer too.
        """
        made: list[Edit] = []
        for writer in sorted(joins_of_writer):
            began_ms = writer // POINTERS_PER_MS
            made.append(edits.Began(writer, Kind.SHORT, False, began_ms, began_ms, LOST_OWNER, None))
            made += [edits.Joined(writer, join) for join in joins_of_writer[writer]]
            made.append(edits.Aborting(writer, False))
        in_use = tuple(used.join for used in self.entries(last_pointer))
        if in_use:
            made.append(edits.TopicsUsed(max(joins_of_writer, default=last_pointer), in_use))
        return Proposal(tuple(made))
