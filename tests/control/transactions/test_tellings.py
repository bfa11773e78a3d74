"""What an owner hears of a log: the same from its entries as from two states of it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from basalt.transactions.protocol import Close, End, Expect, JoinedTransaction, Recovered, Settled, Told
from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction import State, TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt.transactions.tellings import told_at_first, told_between, told_by
from basalt_engine.snapshot import PointerRuns
from basalt_engine.stores.memory import MemoryStore
from tests.control.transactions.written_log import Author

ACTS = st.lists(st.tuples(st.integers(0, 22), st.integers(0, 63)), min_size=1, max_size=4)


class Owner:
    """All that an owner knows by what it was told."""

    def __init__(self) -> None:
        self.expected: set[int] = set()
        self.closed: set[int] = set()
        self.ended: Counter[int] = Counter()
        self.ever_expected: Counter[int] = Counter()
        self.settled = PointerRuns()

    def hear(self, told: list[Told]) -> None:
        for each in told:
            if isinstance(each, Expect):
                self.expected.add(each.transaction_id)
                self.ever_expected[each.transaction_id] += 1
            elif isinstance(each, Close):
                self.expected.discard(each.transaction_id)
                self.closed.add(each.transaction_id)
            elif isinstance(each, End):
                self.expected.discard(each.transaction.id)
                self.closed.discard(each.transaction.id)
                self.ended[each.transaction.id] += 1
            elif isinstance(each, Settled):
                self.settled = self.settled.with_added(
                    PointerRuns((*((each, each) for each in each.pointers), *each.runs))
                )


def no_more_of(state: TransactionProposals, owner: Owner) -> None:
    """What the owner knows is what the state says."""
    assert owner.expected == {each.id for each in state.transactions(State.COMMITTING)}
    closed = {each.id for each in state.transactions() if each.state is State.ABORTING or each.doomed is not None}
    assert owner.closed == closed
    assert all(state.find(each) is None for each in owner.ended)
    assert max(owner.ever_expected.values(), default=0) <= 1


@given(st.lists(ACTS, min_size=2, max_size=20), st.lists(ACTS, max_size=20))
def test_an_owner_hears_from_two_states_what_it_would_have_heard_from_the_entries_between_them(
    acts: list[list[tuple[int, int]]], later: list[list[tuple[int, int]]]
) -> None:
    author = Author(MemoryStore(atomic=False))
    by_entries, by_states = Owner(), Owner()
    for each in acts:
        author.act(*each)
    before = TransactionProposals(author.limits, author.state.image())
    state = TransactionProposals(author.limits, author.state.image())
    for owner in (by_entries, by_states):
        owner.hear(told_at_first(before))
        owner.closed = {each.id for each in before.transactions() if each.state is State.ABORTING or each.doomed}
    known = {each.id for each in before.transactions()}
    for each in later:
        position = len(author.entries)
        author.act(*each)
        for entry in author.entries[position:]:
            _, made = author.log.decoded(position, entry)
            by_entries.hear(told_by(state, made, state.apply))
    assert state.image() == author.state.image()
    no_more_of(state, by_entries)
    by_states.hear(told_between(before, state))
    assert by_states.expected == by_entries.expected
    assert max(by_states.ever_expected.values(), default=0) <= 1, "else rows are placed twice"
    assert by_states.closed & known == by_entries.closed & known, "of others it knows no pointer"
    assert {each for each in by_entries.ended if each in known} == set(by_states.ended)
    lent = before.loans.in_progress
    assert lent.without(by_states.settled) == lent.without(by_entries.settled.with_added(returned(author, before)))


def returned(author: Author, before: TransactionProposals) -> PointerRuns:
    """The rests of loans that came back: no row is under them, and nobody is told."""
    log = [edit for place, entry in enumerate(author.entries) for edit in author.log.decoded(place, entry)[1]]
    runs = [(edit.first, edit.last) for edit in log[before.edits_applied :] if isinstance(edit, edits.LoanReturned)]
    return PointerRuns(runs)


def test_at_first_every_commit_is_expected_that_was_not_known_before() -> None:
    author = Author(MemoryStore(atomic=False))
    state = author.state
    ids = []
    for _ in range(2):
        author.make(*author._begin(0))
        ids.append(state.last_pointer)
    for each in ids:
        author.make(*state.commit(each, author.clock.now_ms()).edits)
    first, *others = told_at_first(state, [ids[0]])
    assert first == Recovered(state.last_pointer, ())
    assert others == [Expect(ids[1])]


def test_the_end_of_a_transaction_names_what_it_had_joined() -> None:
    author = Author(MemoryStore(atomic=False))
    author.act((0, 0), (2, 0))
    (was,) = author.state.transactions()
    state = TransactionProposals(TransactionLimits(), author.state.image())
    author.act((9, 0), (7, 0))
    _, made = author.log.decoded(1, author.entries[1])
    assert told_by(state, made, state.apply) == [Close(was.id), End(JoinedTransaction.of(was))]
