"""The rule of acknowledgements cell by cell: what each event makes of a message in each durable state, in memory and replayed."""

from __future__ import annotations

import pytest

from basalt.errors import (
    AcknowledgeConflictError,
    BusyError,
    ConflictError,
    GroupExistsError,
    GroupNotFoundError,
    InputError,
    TooLargeError,
    TransactionConflictError,
    TransactionEndedError,
)
from basalt.transactions.rules import acknowledgements
from basalt.transactions.rules.acknowledgements import GROUP_NAME_CHARS_MAX, RETRY_DOUBLINGS_MAX, SPANS_MAX, retry_at_ms
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.groups import NEVER_MS
from basalt.transactions.rules.transaction import State, Transaction, TransactionLimits
from basalt_engine.spans.spans import ZERO_ID, Spans

TOPIC = b"shop:orders:"


def place(number: int) -> bytes:
    return number.to_bytes(20, "big")


def span(after: int, through: int) -> Spans:
    return Spans([(place(after), place(through))])


MESSAGE = span(4, 5)  # the one that the table is about
STATES = ("available", "returned", "parked", "pending", "acknowledged")


class Groups:
    """A group `billing`, and calls about it in words."""

    def __init__(self, scene) -> None:
        self.scene = scene
        scene.done(self.rules.propose_make(TOPIC, 2, "billing", b"{}", ZERO_ID, scene.now_ms, 1))

    @property
    def rules(self):
        return self.scene.state.groups

    @property
    def billing(self):
        return self.rules.by_number[1]

    def acknowledge(self, spans: Spans = MESSAGE, writer: int = 0) -> int:
        proposal, already = self.rules.propose_acknowledge(1, spans, self.scene.now_ms, writer)
        self.scene.done(proposal)
        return already

    def acknowledge_in(self, transaction: Transaction, spans: Spans = MESSAGE, **options) -> int:
        proposal = self.scene.state.acknowledge_in(transaction.id, 1, spans, self.scene.now_ms, **options)
        self.scene.done(proposal)
        return len(proposal.edits)

    def give_back(
        self, spans: Spans = MESSAGE, reason: ReturnReason = ReturnReason.RELEASED, not_before_ms: int = 0
    ) -> int:
        proposal = self.rules.propose_return(1, spans, reason, not_before_ms, self.scene.now_ms)
        self.scene.done(proposal)
        return len(proposal.edits)

    def seek(self, floor: int = 0, force: bool = False) -> None:
        self.scene.done(self.rules.propose_seek(1, place(floor), self.scene.now_ms, self.billing.round + 1, force))

    def come_to(self, state: str) -> Transaction | None:
        """The message is in this state; the transaction in which it is pending."""
        if state == "returned":
            self.give_back()
        elif state == "parked":
            self.give_back(not_before_ms=NEVER_MS)
        elif state == "acknowledged":
            self.acknowledge()
        elif state == "pending":
            holder = self.scene.begin(owner="holder")
            self.acknowledge_in(holder)
            return holder
        assert self.state() == state
        return None

    def state(self, message: int = 5) -> str:
        """The one state that the message is in."""
        found = []
        if self.billing.acknowledged.covers(place(message)):
            found.append("acknowledged")
        if self.rules.pending_holder(1, place(message - 1), place(message)) is not None:
            found.append("pending")
        attempt = self.billing.returns.at(place(message))
        if attempt is not None and "pending" not in found:
            found.append("parked" if attempt.not_before_ms == NEVER_MS else "returned")
        assert len(found) <= 1
        return found[0] if found else "available"


@pytest.fixture
def groups(scene):
    groups = Groups(scene)
    yield groups
    assert scene.replayed().image() == scene.state.image(), "the log says the same"


@pytest.mark.parametrize("state", STATES)
def test_a_plain_acknowledgement(groups: Groups, state: str):
    groups.come_to(state)
    if state == "pending":
        with pytest.raises(AcknowledgeConflictError, match=r"acknowledged by transaction \d+ \(owner holder\)"):
            groups.acknowledge()
        assert groups.state() == "pending"
        return
    assert groups.acknowledge() == (state == "acknowledged")
    assert groups.state() == "acknowledged"


@pytest.mark.parametrize("state", STATES)
def test_an_acknowledgement_in_a_transaction(groups: Groups, scene, state: str):
    holder = groups.come_to(state)
    transaction = scene.begin(owner="second")
    if state in ("pending", "acknowledged"):
        with pytest.raises(TransactionConflictError, match=f"message {place(5).hex()} of group billing"):
            groups.acknowledge_in(transaction)
        loss = scene.state.get(transaction.id).doomed
        assert (loss.winner, loss.winner_owner) == ((holder.id, "holder") if holder else (0, ""))
        assert groups.state() == state, "the first one keeps it"
        with pytest.raises(TransactionConflictError):
            scene.commit(transaction)
    else:
        assert groups.acknowledge_in(transaction) == 1
        assert groups.state() == "pending"
        scene.commit(transaction)
        assert groups.state() == "acknowledged"


@pytest.mark.parametrize("state", STATES)
def test_an_acknowledgement_of_a_one_shot_transaction(groups: Groups, scene, state: str):
    groups.come_to(state)
    writer = scene.one_shot().id
    if state in ("pending", "acknowledged"):
        with pytest.raises(TransactionConflictError, match=f"message {place(5).hex()} of group billing"):
            groups.acknowledge(writer=writer)
        assert groups.state() == state
    else:
        groups.acknowledge(writer=writer)
        assert groups.state() == "acknowledged"


@pytest.mark.parametrize("state", STATES)
def test_a_release(groups: Groups, state: str):
    groups.come_to(state)
    if state == "pending":
        with pytest.raises(AcknowledgeConflictError):
            groups.give_back()
        assert groups.state() == "pending"
    else:
        assert groups.give_back() == (state != "acknowledged")
        assert groups.state() == ("acknowledged" if state == "acknowledged" else "returned")


@pytest.mark.parametrize("reason", [ReturnReason.CLAIM_EXPIRED, ReturnReason.MEMBER_LOST])
@pytest.mark.parametrize("state", STATES)
def test_a_claim_that_ends(groups: Groups, state: str, reason: ReturnReason):
    groups.come_to(state)
    stays = state in ("pending", "acknowledged")
    assert groups.give_back(reason=reason) == (not stays)
    assert groups.state() == (state if stays else "returned")


@pytest.mark.parametrize("end", ["commit", "abort", "invalidate", "expire"])
@pytest.mark.parametrize("before", ["available", "returned"])
def test_the_end_of_the_transaction_in_which_a_message_is_pending(groups: Groups, scene, end: str, before: str):
    groups.come_to(before)
    transaction = scene.begin()
    groups.acknowledge_in(transaction)
    if end == "expire":
        scene.clock.advance(30_000)
        scene.expire()
    else:
        getattr(scene, end)(transaction)
    assert groups.state() == ("acknowledged" if end == "commit" else before)
    assert groups.rules.pending_in(1) == {}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("floor", [0, 5])
def test_a_seek(groups: Groups, scene, state: str, floor: int):
    holder = groups.come_to(state)
    if holder is not None:
        with pytest.raises(
            ConflictError, match=r"transaction \d+ \(owner holder\) has acknowledged messages of group billing"
        ):
            groups.seek(floor)
        assert groups.state() == "pending"
        groups.seek(floor, force=True)
        with pytest.raises(
            TransactionConflictError, match="lost 'message positions of group billing' to an acknowledgement or a seek"
        ):
            scene.commit(holder)
    else:
        groups.seek(floor)
    assert groups.state() == ("acknowledged" if floor else "available")
    assert groups.billing.round == 2
    if holder is not None:
        scene.abort(holder)
        assert groups.state() == ("acknowledged" if floor else "available")


def test_a_seek_cannot_be_forced_past_a_commit_that_is_decided(groups: Groups, scene):
    holder = groups.come_to("pending")
    scene.join(holder)
    scene.commit(holder, inline=False)
    with pytest.raises(ConflictError):
        groups.seek(force=True)
    scene.finish(holder)
    assert groups.state() == "acknowledged"


def test_what_a_transaction_acknowledges_again_is_its_own(groups: Groups, scene):
    transaction = scene.begin()
    assert groups.acknowledge_in(transaction, span(4, 6)) == 1
    assert groups.acknowledge_in(transaction, span(4, 5)) == 0
    assert groups.acknowledge_in(transaction, span(5, 8)) == 1, "the part that is new"
    assert groups.rules.pending_of(transaction.id) == {1: span(4, 8)}
    scene.commit(transaction)
    assert groups.billing.acknowledged == span(4, 8)


def test_of_two_transactions_that_acknowledge_one_message_the_second_is_doomed_though_the_first_has_not_committed(
    groups: Groups, scene
):
    first, second = scene.begin(), scene.begin()
    groups.acknowledge_in(first, span(1, 5))
    with pytest.raises(TransactionConflictError, match="which came first"):
        groups.acknowledge_in(second, span(4, 9))
    scene.abort(first)
    with pytest.raises(TransactionConflictError):
        groups.acknowledge_in(second, span(6, 7))
    scene.abort(second)
    assert not groups.billing.acknowledged


def test_a_doomed_commit_is_remembered_by_its_request(groups: Groups, scene):
    groups.acknowledge()
    transaction = scene.begin()
    with pytest.raises(TransactionConflictError):
        groups.acknowledge_in(transaction, request_id="r")
    assert scene.state.requests.get("r").transaction_id == transaction.id


def test_an_acknowledgement_after_the_deadline_ends_the_transaction(groups: Groups, scene):
    transaction = scene.begin()
    groups.acknowledge_in(transaction)
    scene.clock.advance(30_000)
    with pytest.raises(TransactionEndedError, match="timed out"):
        groups.acknowledge_in(transaction, span(5, 6))
    assert scene.state.outcome(transaction.id).state is State.ABORTED
    assert groups.state() == "available"


def test_an_invalid_transaction_that_is_aborted_late_brings_nothing_back(groups: Groups, scene):
    transaction = scene.begin()
    groups.acknowledge_in(transaction)
    scene.invalidate(transaction)
    groups.acknowledge()
    scene.abort(transaction)
    assert groups.state() == "acknowledged"


def test_what_was_pending_is_free_as_soon_as_the_abort_is_decided(groups: Groups, scene):
    """Its roll back may take long, or fail for long."""
    transaction = scene.begin()
    scene.join(transaction)
    groups.acknowledge_in(transaction)
    assert scene.abort(transaction).state is State.ABORTING
    assert groups.state() == "available"
    groups.acknowledge()
    scene.finish(transaction)
    assert groups.state() == "acknowledged"


def test_a_reset_forgets_groups_and_not_their_numbers(scene_with):
    scene = scene_with(TransactionLimits(allow_reset=True))
    groups = Groups(scene)
    groups.come_to("pending")
    scene.done(scene.state.reset(scene.now_ms))
    assert len(groups.rules) == 0
    assert groups.rules.pending_images() == ()
    scene.done(groups.rules.propose_make(TOPIC, 2, "billing", b"{}", ZERO_ID, scene.now_ms, 1))
    assert [group.number for group in groups.rules.of_topic(TOPIC, 2)] == [2]
    assert scene.replayed().image() == scene.state.image()


def test_a_group_that_is_there_with_these_options_is_not_made_again(groups: Groups, scene):
    assert groups.rules.propose_make(TOPIC, 2, "billing", b"{}", place(9), scene.now_ms, 1).edits == ()
    with pytest.raises(GroupExistsError, match=r"other options: mode is not there, not \"keyed\""):
        groups.rules.propose_make(TOPIC, 2, "billing", b'{"mode":"keyed"}', ZERO_ID, scene.now_ms, 1)


@pytest.mark.parametrize("name", ["", "a/b", "..", "\n", "x" * (GROUP_NAME_CHARS_MAX + 1)])
def test_a_name_that_no_path_can_have_is_refused(groups: Groups, scene, name: str):
    with pytest.raises(InputError, match="a group's name"):
        groups.rules.propose_make(TOPIC, 2, name, b"{}", ZERO_ID, scene.now_ms, 1)


def test_a_change_that_is_none_is_not_logged(groups: Groups, scene):
    assert len(groups.rules.propose_change(1, b"{}", True, scene.now_ms).edits) == 1
    assert groups.rules.propose_change(1, b"{}", False, scene.now_ms).edits == ()
    scene.done(groups.rules.propose_change(1, b'{"attemptsMax":1}', True, scene.now_ms))
    assert (groups.billing.options, groups.billing.paused) == (b'{"attemptsMax":1}', True)


def test_a_group_goes_only_by_force_while_a_transaction_has_acknowledged_in_it(groups: Groups, scene):
    holder = groups.come_to("pending")
    with pytest.raises(ConflictError, match="owner holder"):
        groups.rules.propose_forget([1])
    scene.done(groups.rules.propose_forget([1, 7], force=True))
    scene.commit(holder)
    with pytest.raises(GroupNotFoundError):
        groups.rules.propose_acknowledge(1, MESSAGE, scene.now_ms)
    assert groups.rules.propose_forget([1]).edits == ()


def test_a_repeated_acknowledgement_counts_what_was_so_before(groups: Groups):
    assert groups.acknowledge(Spans([*span(1, 2), *span(4, 5)])) == 0
    assert groups.acknowledge(Spans([*span(1, 2), *span(4, 5), *span(7, 8)])) == 2
    assert len(groups.scene.edits[-1].spans) == 1, "what is known is not logged again"


def test_a_transaction_acknowledges_in_a_bounded_number_of_spans(groups: Groups, scene):
    transaction = scene.begin()
    groups.acknowledge_in(transaction, Spans([(place(2 * n), place(2 * n + 1)) for n in range(SPANS_MAX)]))
    with pytest.raises(TooLargeError, match="65,536 spans"):
        groups.acknowledge_in(transaction, span(2 * SPANS_MAX, 2 * SPANS_MAX + 1))
    assert groups.acknowledge_in(transaction, span(0, 1)) == 0


def test_scattered_acknowledgements_are_refused_when_there_are_far_too_many_and_such_as_fill_a_gap_are_not(
    scene_with, monkeypatch
):
    monkeypatch.setattr(acknowledgements, "OWN_SPANS", 1)
    groups = Groups(scene_with(TransactionLimits(group_spans_max=1)))
    groups.acknowledge(span(1, 2))
    assert not groups.rules.is_scattered(1), "one is its own"
    groups.acknowledge(span(4, 5))
    assert groups.rules.is_scattered(1)
    with pytest.raises(BusyError, match="2 of them: beyond 2 none"):
        groups.acknowledge(span(7, 8))
    with pytest.raises(BusyError):
        groups.acknowledge_in(groups.scene.begin(), span(7, 8))
    with pytest.raises(BusyError):
        groups.acknowledge(Spans([*span(2, 3), *span(7, 8), *span(10, 11)]))
    groups.acknowledge(span(2, 3))
    groups.acknowledge(span(3, 4))
    groups.acknowledge(span(7, 8))
    assert len(groups.billing.acknowledged) == 2
    groups.acknowledge_in(groups.scene.begin(), span(5, 6))
    with pytest.raises(BusyError):
        groups.acknowledge_in(groups.scene.begin(), span(9, 10))


def test_a_group_with_few_spans_notices_nothing_of_one_with_many(scene_with, monkeypatch):
    monkeypatch.setattr(acknowledgements, "OWN_SPANS", 3)
    groups = Groups(scene_with(TransactionLimits(group_spans_max=2)))
    groups.acknowledge(Spans([*span(1, 2), *span(4, 5), *span(7, 8), *span(10, 11)]))
    scene = groups.scene
    scene.done(groups.rules.propose_make(TOPIC, 2, "audit", b"{}", ZERO_ID, scene.now_ms, 1))
    for number in (1, 4, 7):
        scene.done(groups.rules.propose_acknowledge(2, span(number, number + 1), scene.now_ms).proposal)
    assert not groups.rules.is_scattered(2)
    with pytest.raises(BusyError, match="group audit 3 of them"):
        groups.rules.propose_acknowledge(2, span(10, 11), scene.now_ms)
    filled = groups.rules.propose_acknowledge(2, span(2, 3), scene.now_ms)
    assert filled.proposal.edits, "what adds none is done however many there are"


def test_what_was_pending_comes_back_by_how_often_it_came_back_before(groups: Groups, scene):
    groups.give_back(span(1, 2), not_before_ms=5)
    groups.acknowledge(span(5, 6))
    made = groups.rules.returns_of({1: span(0, 8), 9: span(0, 1)}, ReturnReason.ABORTED, 1_000)
    assert [(edit.number, edit.not_before_ms, list(edit.spans)) for edit in made] == [
        (1, 2_000, [*span(0, 1), *span(2, 5), *span(6, 8)]),
        (1, 3_000, [*span(1, 2)]),
    ]
    for edit in made:
        groups.scene.state.apply(edit)
        groups.scene.edits.append(edit)
    assert {attempt.attempts for _, _, attempt in groups.billing.returns} == {1, 2}


def test_what_was_never_given_back_is_not_unparked(groups: Groups):
    assert groups.give_back(reason=ReturnReason.UNPARKED) == 0
    groups.come_to("parked")
    assert groups.give_back(span(1, 9), ReturnReason.UNPARKED) == 1
    assert list(groups.scene.edits[-1].spans) == [*MESSAGE]
    assert groups.state() == "available"


@pytest.mark.parametrize(
    ("options", "attempts", "at_ms"),
    [
        (b"{}", 1, 1_000), (b"{}", 2, 2_000), (b"{}", 7, 64_000), (b"{}", 8, NEVER_MS),
        (b'{"attemptsMax":0}', 8, 128_000), (b'{"attemptsMax":0}', 60_000, 300_000),
        (b'{"attemptsMax":0,"retryDelayMs":0}', RETRY_DOUBLINGS_MAX + 2, 0),
        (b'{"attemptsMax":1,"retryDelayMs":10,"mode":"keyed"}', 1, NEVER_MS),
        (b'{"retryDelayMs":"soon"}', 1, 1_000), (b"not JSON", 3, 4_000),
    ],
)  # fmt: skip
def test_the_delay_doubles_with_each_attempt_until_the_message_is_parked(options: bytes, attempts: int, at_ms: int):
    assert retry_at_ms(options, attempts, 0) == at_ms


def test_what_one_of_two_transactions_gave_up_comes_back_like_anything_else(groups):
    first, second = groups.scene.begin(), groups.scene.begin()
    groups.acknowledge_in(first)
    groups.acknowledge_in(second, span(8, 9))
    groups.scene.abort(first)
    assert groups.give_back() == 1
    assert groups.billing.returns.at(place(5)).attempts == 1
    assert groups.rules.spans_of(1) == 1
