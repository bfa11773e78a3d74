"""Who reads and writes what, told from the log of transactions: a transaction that acknowledges in a group and writes to a topic leads from the one to the other.

Those who commit under one name are one flow: a session's, an owner's, or, where there is neither, those that read by one group. Pure; fed
with entries of the journal in their order. What is published outside transactions leaves no trace there, nor what a one-shot wrote.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from basalt.api.bodies.pipelines import StepKind
from basalt.transactions.log.transaction_log import LogEntry
from basalt.transactions.rules import edits

FLOWS_MAX = 1_000  # of those who committed last
OPEN_MAX = 20_000  # transactions of which it is noted what they do; beyond, those that began first are passed over
PARTS_MAX = 200  # topics, tables and groups of one flow, each


class FlowKey(NamedTuple):
    """The name under which somebody commits, and whose transactions these are."""

    kind: StepKind
    name: str
    principal: str


class _Open:
    """A transaction that has not ended, and what it does."""

    __slots__ = ("owner", "principal", "reads", "session", "tables", "writes")

    def __init__(self, owner: str) -> None:
        self.owner, self.principal, self.session = owner, "", ""
        self.reads: dict[int, None] = {}
        self.writes: dict[bytes, None] = {}
        self.tables: dict[bytes, None] = {}

    def key(self) -> FlowKey:
        if self.session:
            return FlowKey("session", self.session, self.principal)
        if self.owner:
            return FlowKey("owner", self.owner, self.principal)
        if self.reads:
            return FlowKey("group", str(next(iter(self.reads))), self.principal)
        return FlowKey("unnamed", "", self.principal)


class Flow:
    """All that was committed under one name: numbers of groups, prefixes of topics and of tables, in the order in which they came."""

    __slots__ = ("last_ms", "reads", "tables", "transactions", "writes")

    def __init__(self) -> None:
        self.transactions, self.last_ms = 0, 0
        self.reads: dict[int, None] = {}
        self.writes: dict[bytes, None] = {}
        self.tables: dict[bytes, None] = {}

    def add(self, done: _Open, at_ms: int) -> None:
        self.transactions += 1
        self.last_ms = max(self.last_ms, at_ms)
        for known, more in ((self.reads, done.reads), (self.writes, done.writes), (self.tables, done.tables)):
            _add(known, more)


def _add(known: dict[Any, None], more: Mapping[Any, None]) -> None:
    for each in more:
        if each in known or len(known) < PARTS_MAX:
            known[each] = None


class Flows:
    """The flows that the log has told of since `since_ms`."""

    def __init__(self) -> None:
        self.place = 0  # the number of the edit up to which the log was read
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._known: OrderedDict[FlowKey, Flow] = OrderedDict()

    def items(self) -> Sequence[tuple[FlowKey, Flow]]:
        """The flows, those that committed last at the end."""
        return list(self._known.items())

    def take(self, entries: Iterable[LogEntry]) -> None:
        """Note what these entries tell, which follow those that were taken before."""
        for entry in entries:
            one_shots = list[tuple[int, _Open, int]]()
            for edit in entry.edits:
                kind = type(edit)
                if kind is edits.Began or kind is edits.OneShot:
                    self._begin(edit.id, edit.owner)
                    if kind is edits.OneShot:
                        one_shots.append((edit.id, self._open[edit.id], edit.ended_ms))
                elif kind is edits.Committed:
                    self._end(self._open.pop(edit.id, None), edit.ended_ms)
                elif kind is edits.Aborted:
                    self._open.pop(edit.id, None)
                elif kind is edits.Invalidated:
                    for each in edit.ids:
                        self._open.pop(each, None)
                elif kind is edits.Acknowledged:
                    self._note(edit.writer, edit)
                else:
                    self._note(getattr(edit, "id", None), edit)
            for writer, done, at_ms in one_shots:  # what belongs to one stands in its entry
                self._open.pop(writer, None)
                self._end(done, at_ms)

    def _begin(self, transaction_id: int, owner: str) -> None:
        self._open[transaction_id] = _Open(owner)
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)

    def _note(self, transaction_id: int | None, edit: Any) -> None:
        found = self._open.get(transaction_id) if transaction_id else None
        if found is None:
            return
        kind = type(edit)
        if kind is edits.Owned:
            found.principal = edit.principal
        elif kind is edits.SessionBegan:
            found.session = edit.session.name
        elif kind is edits.Joined:
            _add(found.writes, {edit.join.topic: None})
        elif kind is edits.TableJoined:
            _add(found.tables, {edit.join.table: None})
        elif kind in (edits.AcknowledgedIn, edits.Acknowledged):
            _add(found.reads, {edit.number: None})

    def _end(self, done: _Open | None, at_ms: int) -> None:
        if done is None or not (done.reads or done.writes or done.tables):
            return
        key = done.key()
        flow = self._known.get(key)
        if flow is None:
            flow = self._known[key] = Flow()
            if len(self._known) > FLOWS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        flow.add(done, at_ms)


def levels(reads: Sequence[frozenset[object]], writes: Sequence[frozenset[object]]) -> list[int]:
    """The level of each step: 0 where it reads nothing that another one writes, else one more than the highest of those.

    A circle ends when each step has been looked at as often as there are steps.
    """
    found = [0] * len(reads)
    writers: dict[object, list[int]] = {}
    for step, topics in enumerate(writes):
        for topic in topics:
            writers.setdefault(topic, []).append(step)
    before = [
        sorted({each for topic in topics for each in writers.get(topic, ())} - {step})
        for step, topics in enumerate(reads)
    ]
    for _ in range(len(reads)):
        moved = False
        for step, those in enumerate(before):
            level = min(max((found[each] + 1 for each in those), default=0), len(reads))
            if level > found[step]:
                found[step], moved = level, True
        if not moved:
            break
    return found
