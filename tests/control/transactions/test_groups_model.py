"""Acknowledgements against a naive model: of each group a set of numbers, of each transaction another.

Steps meet in groups as the coordinator makes them. Where rows and log are not one batch, a crash may come between the intent of a
commit and its outcome.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from basalt.errors import AcknowledgeConflictError, ConflictError, TransactionConflictError
from basalt.transactions.log.transaction_log import TransactionLog
from basalt.transactions.rules.edits import Edit, Proposal, ReturnReason
from basalt.transactions.rules.transaction import Join, Kind, State, TransactionLimits
from basalt_engine.spans.spans import Spans
from basalt_engine.stores.memory import MemoryStore
from tests.control.transactions.whole_bytes import snapshot_mutations

MESSAGES = 10
LIMITS = TransactionLimits(allow_reset=True)
TOPIC = b"shop:orders:"
GROUPS = ("billing", "audit")
RANGES = st.tuples(*2 * [st.integers(0, MESSAGES - 1)]).map(lambda pair: (min(pair), max(pair) + 1))
PICKS = st.integers(0, 15)
NAMES = st.sampled_from(GROUPS)


def place(number: int) -> bytes:
    return number.to_bytes(20, "big")


def spans_of(pair: tuple[int, int]) -> Spans:
    return Spans([(place(pair[0]), place(pair[1]))])


def numbers_of(pair: tuple[int, int]) -> set[int]:
    return set(range(pair[0] + 1, pair[1] + 1))


class AcknowledgementsMatchTheModel(RuleBasedStateMachine):
    atomic = True

    @initialize()
    def start(self):
        self.store = MemoryStore()
        self.table = self.store.table("transaction_log")
        self.log = TransactionLog(self.table, LIMITS)
        self.state = self.log.recover()
        self.now_ms = 1_700_000_000_000
        self.made: list[Edit] = []
        self.numbers: dict[str, int] = {}
        self.given: list[int] = []
        self.acknowledged: dict[str, set[int]] = {}
        self.attempts: dict[str, Counter[int]] = {}
        self.pending: dict[int, dict[str, set[int]]] = {}  # by transaction that has not ended
        self.doomed: set[int] = set()
        for name in GROUPS:
            self.make(name)

    # How steps are logged.

    def applied(self, edits: tuple[Edit, ...] | list[Edit]) -> None:
        for edit in edits:
            self.state.apply(edit)
            self.made.append(edit)

    def done(self, proposal: Proposal) -> None:
        self.applied(proposal.edits)
        if proposal.refusal is not None:
            raise proposal.refusal

    @rule()
    def flush(self):
        """The group is written."""
        if self.made:
            self.table.write([self.log.encode_next(self.made)])
        self.made = []

    @rule()
    def restart(self):
        """The log says what the working state says."""
        self.flush()
        before = self.state.image()
        self.log = TransactionLog(self.table, LIMITS)
        self.state = self.log.recover()
        assert self.state.image() == before

    @rule()
    def snapshot(self):
        self.flush()
        self.table.write(snapshot_mutations(self.log.draft(self.state)))

    # What clients do.

    def next_round(self, name: str) -> int:
        return self.state.groups.by_number[self.numbers[name]].round + 1

    def make(self, name: str) -> None:
        self.done(self.state.groups.propose_make(TOPIC, 1, name, b"{}", bytes(20), self.now_ms, 1))
        self.numbers[name] = self.state.groups.find(TOPIC, 1, name).number
        assert self.numbers[name] not in self.given, "numbers are never used again"
        self.given.append(self.numbers[name])
        self.acknowledged[name], self.attempts[name] = set(), Counter()

    @rule(joins=st.booleans())
    def begin(self, joins: bool):
        """With a topic: then an abort is decided first, and rolled back later."""
        proposal = self.state.begin(self.now_ms, Kind.SHORT)
        self.done(proposal)
        self.pending[proposal.transaction_id] = {}
        if joins:
            self.done(self.state.join(proposal.transaction_id, Join(b"shop:invoices:", 1, 5), self.now_ms))

    def picked(self, pick: int) -> int:
        return sorted(self.pending)[pick % len(self.pending)]

    def others(self, name: str, but: int = 0) -> set[int]:
        return set().union(*(held.get(name, set()) for key, held in self.pending.items() if key != but))

    @rule(name=NAMES, pair=RANGES)
    def acknowledge(self, name: str, pair: tuple[int, int]):
        asked = numbers_of(pair)
        try:
            proposal, already = self.state.groups.propose_acknowledge(self.numbers[name], spans_of(pair), self.now_ms)
        except AcknowledgeConflictError:
            assert asked & self.others(name)
            return
        assert not asked & self.others(name)
        assert already == (asked <= self.acknowledged[name])
        self.done(proposal)
        self.take(name, asked)

    def take(self, name: str, numbers: set[int]) -> None:
        self.acknowledged[name] |= numbers
        for number in numbers:
            self.attempts[name].pop(number, None)

    @rule(name=NAMES, pair=RANGES)
    def one_shot(self, name: str, pair: tuple[int, int]):
        asked = numbers_of(pair)
        made = self.state.begin_committed(self.now_ms)
        try:
            rules = self.state.groups
            acknowledging = rules.propose_acknowledge(
                self.numbers[name], spans_of(pair), self.now_ms, made.transaction_id
            )
        except TransactionConflictError:
            assert asked & (self.others(name) | self.acknowledged[name])
            return
        assert not asked & (self.others(name) | self.acknowledged[name])
        self.done(made)
        self.done(acknowledging.proposal)
        self.take(name, asked)

    @precondition(lambda self: self.pending)
    @rule(pick=PICKS, name=NAMES, pair=RANGES)
    def acknowledge_in(self, pick: int, name: str, pair: tuple[int, int]):
        key = self.picked(pick)
        own = self.pending[key].get(name, set())
        asked = numbers_of(pair) - own
        lost = bool(asked & (self.others(name, key) | self.acknowledged[name]))
        try:
            self.done(self.state.acknowledge_in(key, self.numbers[name], spans_of(pair), self.now_ms))
        except TransactionConflictError:
            assert lost or key in self.doomed
            self.doomed.add(key)
            return
        assert not lost
        assert key not in self.doomed
        if own | asked:
            self.pending[key][name] = own | asked

    @precondition(lambda self: self.pending)
    @rule(pick=PICKS, interrupted=st.booleans())
    def commit(self, pick: int, interrupted: bool):
        """`interrupted`: the process dies between the rows and the outcome, where these are two writes."""
        key = self.picked(pick)
        interrupted &= not self.atomic
        if interrupted:
            self.flush()
        try:
            self.done(self.state.commit(key, self.now_ms, inline=self.atomic))
        except TransactionConflictError:
            assert key in self.doomed
            return
        assert key not in self.doomed
        if not self.atomic:
            if interrupted:
                self.restart()
                self.end(key, self.state.give_up(key, self.now_ms), counts=False)
                return
            self.done(self.state.finish(key, self.now_ms))
        for name, numbers in self.pending.pop(key).items():
            self.take(name, numbers)

    @precondition(lambda self: self.pending)
    @rule(pick=PICKS, how=st.sampled_from(["abort", "invalidate"]))
    def end_otherwise(self, pick: int, how: str):
        key = self.picked(pick)
        counts = key not in self.doomed
        self.end(key, getattr(self.state, how)(key, self.now_ms), counts)

    def end(self, key: int, proposal: Proposal, counts: bool) -> None:
        """As `CommitStage.apply` does it."""
        pending = dict(self.state.groups.pending_of(key))
        self.done(proposal)
        if counts:
            self.applied(self.state.groups.returns_of(pending, ReturnReason.ABORTED, self.now_ms))
            for name, numbers in self.pending[key].items():
                self.attempts[name].update(numbers)
        del self.pending[key]
        self.doomed.discard(key)

    @rule()
    def finish_aborts(self):
        for transaction in self.state.transactions(State.ABORTING):
            self.done(self.state.finish(transaction.id, self.now_ms))

    @rule(name=NAMES, pair=RANGES, reason=st.sampled_from(ReturnReason))
    def give_back(self, name: str, pair: tuple[int, int], reason: ReturnReason):
        left = numbers_of(pair) - self.acknowledged[name]
        held = left & self.others(name)
        try:
            self.done(
                self.state.groups.propose_return(self.numbers[name], spans_of(pair), reason, self.now_ms, self.now_ms)
            )
        except AcknowledgeConflictError:
            assert held
            assert reason is ReturnReason.RELEASED
            return
        assert not held or reason is not ReturnReason.RELEASED
        if reason is ReturnReason.UNPARKED:
            for number in left - held:
                self.attempts[name].pop(number, None)
        else:
            self.attempts[name].update(left - held)

    @rule(name=NAMES, floor=st.integers(0, MESSAGES), force=st.booleans())
    def seek(self, name: str, floor: int, force: bool):
        holders = [key for key, held in self.pending.items() if held.get(name)]
        try:
            self.done(
                self.state.groups.propose_seek(
                    self.numbers[name], place(floor), self.now_ms, self.next_round(name), force
                )
            )
        except ConflictError:
            assert holders
            assert not force
            return
        assert force or not holders
        self.doomed.update(holders)
        for key in holders:
            del self.pending[key][name]
        self.acknowledged[name] = set(range(1, floor + 1))
        self.attempts[name] = Counter()

    @rule(name=NAMES, force=st.booleans())
    def renew(self, name: str, force: bool):
        """The group is deleted and made again."""
        try:
            self.done(self.state.groups.propose_forget([self.numbers[name]], force))
        except ConflictError:
            assert self.others(name)
            return
        for held in self.pending.values():
            held.pop(name, None)
        self.make(name)

    # What must be true.

    @invariant()
    def the_groups_are_those_of_the_model(self):
        groups = self.state.groups
        for name, number in self.numbers.items():
            group = groups.by_number[number]
            held = {key: set() for key in self.pending}
            for message in range(1, MESSAGES + 1):
                assert group.acknowledged.covers(place(message)) == (message in self.acknowledged[name])
                attempt = group.returns.at(place(message))
                assert (0 if attempt is None else attempt.attempts) == self.attempts[name][message]
                holder = groups.pending_holder(number, place(message - 1), place(message))
                if holder is not None:
                    held[holder].add(message)
            assert held == {key: numbers.get(name, set()) for key, numbers in self.pending.items()}
            runs = sum(message - 1 not in self.acknowledged[name] for message in self.acknowledged[name])
            assert len(group.acknowledged) == runs, "as few spans as can be"

    @invariant()
    def the_spans_are_counted(self):
        groups = self.state.groups
        in_groups = sum(len(group.acknowledged) for group in groups.by_number.values())
        pending = sum(len(spans) for one in groups.pending_images() for _, spans in one.groups)
        assert groups.span_count == in_groups + pending


class AcknowledgementsMatchTheModelWhereRowsAndLogAreNotOneBatch(AcknowledgementsMatchTheModel):
    atomic = False


BOUNDS = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestAtomic = AcknowledgementsMatchTheModel.TestCase
TestAtomic.settings = BOUNDS
TestByRow = AcknowledgementsMatchTheModelWhereRowsAndLogAreNotOneBatch.TestCase
TestByRow.settings = BOUNDS
