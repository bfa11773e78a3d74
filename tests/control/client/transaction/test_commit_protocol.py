"""Participants of a transaction: who is called when, and how it ends when a step fails, or two do.

The order is Apache Tephra's: start; changes, canCommit, commit of each, commit of the transaction, post-commit; any failure
rolls everybody back, then aborts, or invalidates what could not be undone.
"""

from __future__ import annotations

import contextlib
import itertools

import pytest

from basalt.client.transaction import commit_protocol
from basalt.client.transaction.commit_protocol import abort, commit
from basalt.client.transaction.open_transaction import PostCommitError, UsersParticipant, changes, publish, store
from basalt.errors import (
    InternalError,
    TransactionConflictError,
    TransactionEndedError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.control.client.participants_world import Broken, Interrupt, Recording, World

BEFORE = "a.start b.start a.changes b.changes canCommit"
PERSISTED = f"{BEFORE} a.commit b.commit"
WHOLE = f"{PERSISTED} commit a.post b.post"
BACK = "a.rollback b.rollback abort"
GIVEN_UP = "a.rollback b.rollback invalidate get"

# What fails | what happens from the begin on | the transaction's end | what the caller sees
ALONE = [
    ({}, WHOLE, "COMMITTED", None),
    ({"a.start": "raise"}, "a.start a.rollback abort", "ABORTED", Broken),
    ({"b.start": "raise"}, f"a.start b.start {BACK}", "ABORTED", Broken),
    ({"a.changes": "raise"}, f"a.start b.start a.changes {BACK}", "ABORTED", Broken),
    ({"b.changes": "raise"}, f"a.start b.start a.changes b.changes {BACK}", "ABORTED", Broken),
    ({"canCommit": "refuse"}, f"{BEFORE} {BACK}", "ABORTED", TransactionConflictError),
    ({"canCommit": "gone"}, f"{BEFORE} {BACK}", "ABORTED", UnknownOutcomeError),
    ({"a.commit": "raise"}, f"{BEFORE} a.commit {BACK}", "ABORTED", Broken),
    ({"b.commit": "raise"}, f"{PERSISTED} {BACK}", "ABORTED", Broken),
    ({"a.commit": "interrupt"}, f"{BEFORE} a.commit {BACK}", "ABORTED", Interrupt),
    ({"commit": "refuse"}, f"{PERSISTED} commit {BACK}", "ABORTED", UnavailableError),
    # A commit whose answer is lost may have happened: nobody is rolled back before the server has said that it did not,
    # and will not.
    ({"commit": "lost"}, f"{PERSISTED} commit get a.post b.post", "COMMITTED", None),
    ({"commit": "gone"}, f"{PERSISTED} commit get invalidate get {BACK}", "ABORTED", TransactionEndedError),
    ({"commit": "late"}, f"{PERSISTED} commit get invalidate get {BACK}", "ABORTED", TransactionEndedError),
    ({"commit": "interrupt"}, f"{PERSISTED} commit", "OPEN", Interrupt),
    ({"a.post": "raise"}, WHOLE, "COMMITTED", PostCommitError),
    ({"b.post": "raise"}, WHOLE, "COMMITTED", PostCommitError),
    ({"a.post": "interrupt"}, WHOLE, "COMMITTED", Interrupt),
]


@pytest.mark.parametrize(("failures", "story", "end", "raised"), ALONE, ids=[str(row[0]) for row in ALONE])
def test_one_step_fails(failures, story, end, raised):
    world = World(failures).block()
    assert world.story == story
    assert world.server.state == end
    assert type(world.raised) is (raised or type(None))


# What fails beside the commit of b | what happens from its roll back on | the end
IN_THE_ROLL_BACK = [
    ({"a.rollback": "raise"}, GIVEN_UP, "INVALID"),
    ({"b.rollback": "raise"}, GIVEN_UP, "INVALID"),
    ({"a.rollback": "false"}, GIVEN_UP, "INVALID"),
    ({"b.rollback": "false"}, GIVEN_UP, "INVALID"),
    ({"a.rollback": "raise", "b.rollback": "raise"}, GIVEN_UP, "INVALID"),
    ({"abort": "refuse"}, BACK, "OPEN"),
    ({"abort": "lost"}, BACK, "ABORTED"),
    ({"a.rollback": "false", "invalidate": "refuse"}, "a.rollback b.rollback invalidate", "OPEN"),
    ({"a.rollback": "false", "invalidate": "lost"}, "a.rollback b.rollback invalidate", "INVALID"),
]


@pytest.mark.parametrize(("failures", "story", "end"), IN_THE_ROLL_BACK, ids=[str(row[0]) for row in IN_THE_ROLL_BACK])
def test_what_fails_in_a_roll_back_leaves_the_first_exception_first(failures, story, end):
    world = World({"b.commit": "raise", **failures}).block()
    assert world.story == f"{PERSISTED} {story}"
    assert world.server.state == end
    assert str(world.raised) == "b.commit"
    noted = [failure for failure in failures.values() if failure != "false"]
    assert len(getattr(world.raised, "__notes__", [])) == len(noted)


ORDER = ["a.start", "b.start", "a.changes", "b.changes", "canCommit", "a.commit", "b.commit", "commit"]
PAIRS = list(itertools.combinations([*ORDER, "a.post", "b.post", "a.rollback", "b.rollback", "abort", "invalidate"], 2))


@pytest.mark.parametrize("pair", PAIRS, ids=["+".join(pair) for pair in PAIRS])
def test_two_steps_fail(pair):
    """By the rule: go on to the first failure; then everybody that was started is rolled back, whoever fails at that."""
    world = World({step: "raise" if "." in step else "refuse" for step in pair}).block()
    expected: list[str] = []
    broke = None
    for step in ORDER:
        expected.append(step)
        if step in pair:
            broke = step
            break
    if broke is None:
        expected += ["a.post", "b.post"]
        assert world.server.state == "COMMITTED"
        wanted = PostCommitError if {"a.post", "b.post"} & set(pair) else type(None)
        assert type(world.raised) is wanted
    else:
        started = [name for name in "ab" if f"{name}.start" in expected]
        expected += [f"{name}.rollback" for name in started]
        stuck = any(f"{name}.rollback" in pair for name in started)
        last = "invalidate" if stuck else "abort"
        expected.append(last)
        if stuck and "invalidate" not in pair:
            expected.append("get")
        ended = "OPEN" if last in pair else "INVALID" if stuck else "ABORTED"
        assert world.server.state == ended
        assert broke in ("canCommit", "commit") or str(world.raised) == broke
    assert world.story == " ".join(expected)


@pytest.mark.parametrize(
    ("failures", "asked", "told"),
    [
        ({"commit": "lost", "get": "refuse"}, "get", "asked for either"),
        ({"commit": "gone", "get": "refuse"}, "get", "asked for either"),
        ({"commit": "late", "invalidate": "refuse"}, "get invalidate", "asked for either"),
        ({"commit": "gone", "invalidate": "gone"}, "get invalidate", "asked for either"),
    ],
    ids=str,
)
def test_while_the_outcome_cannot_be_learnt_nobody_is_told_anything(failures, asked, told):
    world = World(failures).block()
    assert world.story == f"{PERSISTED} commit {asked}"
    assert isinstance(world.raised, UnknownOutcomeError)
    assert told in world.raised.__notes__[0]
    assert world.tx.outcome is None


def test_a_fault_of_the_server_is_no_answer_either():
    world = World({"commit": "fault"}).block()
    assert world.story == f"{PERSISTED} commit get invalidate get {BACK}"
    assert isinstance(world.raised, TransactionEndedError)
    assert isinstance(world.raised.__cause__, InternalError)


def test_a_fault_of_the_server_whose_outcome_cannot_be_learnt_is_unknown_too():
    world = World({"commit": "fault", "get": "refuse"}).block()
    assert world.story == f"{PERSISTED} commit get"
    assert isinstance(world.raised, UnknownOutcomeError)
    assert isinstance(world.raised.__cause__, InternalError)
    assert "asked for either" in world.raised.__notes__[0]
    assert world.raised.hint == "Ask client.transactions.get('42').state before doing the work again."


def test_all_hear_of_a_commit_and_the_first_failure_wins():
    world = World({"a.post": "raise", "b.post": "raise"}).block()
    assert world.story == WHOLE
    assert str(world.raised.__cause__) == "a.post"
    assert "transaction 42 is committed; after that participant a failed" in str(world.raised)
    assert "participant b failed" in world.raised.__notes__[0]
    assert world.tx.outcome.state == "COMMITTED"


def test_an_exception_of_the_block_rolls_back_and_wins():
    mine = KeyError("mine")
    world = World({"a.rollback": "raise"}).block(raising=mine)
    assert world.story == f"a.start b.start {GIVEN_UP}"
    assert world.raised is mine
    assert "participant a did not roll back" in mine.__notes__[0]


def test_an_interrupt_of_a_roll_back_waits_for_the_others_and_is_not_kept_back():
    world = World({"a.rollback": "interrupt"}).block(raising=KeyError("mine"))
    assert world.story == f"a.start b.start {GIVEN_UP}"
    assert isinstance(world.raised, Interrupt)
    assert isinstance(world.raised.__cause__, KeyError)


def test_an_abort_by_hand_rolls_back_and_says_what_failed_at_that():
    world = World().block(abort)
    assert world.story == f"a.start b.start {BACK}"
    assert (world.raised, world.tx.outcome.state) == (None, "ABORTED")
    world = World({"a.rollback": "raise", "b.rollback": "raise"}).block(abort)
    assert world.story == f"a.start b.start {GIVEN_UP}"
    assert str(world.raised) == "a.rollback"
    assert "participant b did not roll back" in world.raised.__notes__[0]
    assert world.tx.outcome.state == "INVALID"


def test_a_participant_that_could_not_undo_its_part_makes_an_abort_by_hand_an_invalidation():
    world = World({"b.rollback": "false"}).block(abort)
    assert (world.raised, world.tx.outcome.state) == (None, "INVALID")


def test_a_commit_by_hand_that_fails_has_rolled_back_already():
    world = World({"canCommit": "refuse"}).block(commit)
    assert world.story == f"{BEFORE} {BACK}"
    assert isinstance(world.raised, TransactionConflictError)


def test_messages_travel_with_the_commit_after_everybody_has_persisted():
    world = World().block(lambda tx: publish(tx, "orders", ["1"]))
    assert world.story == WHOLE


def test_the_changes_of_all_are_told_as_one_set():
    world = World().block(lambda tx: changes(tx, [b"mine"]))
    assert bytes(world.server.changes) == b'{"changes":["YQ==","Yg==","bWluZQ=="]}'


def test_changes_that_are_not_bytes_are_refused():
    world = World()
    world.participants["b"].tx_changes = lambda: ["text"]  # type: ignore[method-assign,return-value,list-item]
    world.block()
    assert isinstance(world.raised, TypeError)
    assert world.server.state == "ABORTED"


def test_a_begin_declares_writes_elsewhere_unless_all_are_hosted_here():
    assert World().block().server.external_writes
    assert World(hosted="a").block().server.external_writes
    assert not World(hosted="ab").block().server.external_writes
    assert not World(names="").block().server.external_writes


def test_who_is_hosted_and_has_changed_nothing_costs_no_call():
    world = World(hosted="ab")
    for participant in world.participants.values():
        participant.tx_changes = list  # type: ignore[method-assign]
    assert world.block().story == "a.start b.start a.commit b.commit commit a.post b.post"


def test_a_participant_may_come_later():
    world = World(names="a", hosted="a")
    late = Recording("b", world.journal, {})
    world.block(lambda tx: commit_protocol.add(tx, late), lambda tx: commit_protocol.add(tx, late))
    assert (
        world.story == f"a.start participants b.start {PERSISTED.removeprefix('a.start b.start ')} commit a.post b.post"
    )
    assert world.server.external_writes


def test_that_there_are_writes_elsewhere_is_told_once():
    world = World(names="a", hosted="a")
    late = [Recording(name, world.journal, {}) for name in "bc"]
    world.block(*(lambda tx, each=each: commit_protocol.add(tx, each) for each in late))
    assert world.journal.count("participants") == 1


def test_one_that_fails_as_it_comes_ends_the_transaction():
    world = World(names="a")
    late = Recording("b", world.journal, {"b.start": "raise"})
    world.block(lambda tx: commit_protocol.add(tx, late))
    assert world.story == f"a.start b.start {BACK}"
    assert isinstance(world.raised, Broken)


def test_one_that_could_not_be_announced_takes_no_part():
    world = World({"participants": "refuse"}, names="a", hosted="a")
    late = Recording("b", world.journal, {})
    world.block(lambda tx: commit_protocol.add(tx, late))
    assert world.story == "a.start participants a.rollback abort"
    assert late.pointers == []


def test_a_checkpoint_persists_and_then_gives_the_new_pointer():
    world = World().block(commit_protocol.checkpoint)
    again = "a.changes b.changes canCommit a.commit b.commit"
    assert world.story == f"a.start b.start {again} checkpoint a.update b.update {again} commit a.post b.post"
    assert [each.pointers for each in world.participants.values()] == [[42, 43], [42, 43]]
    assert world.tx.info.write_pointer == 43


def test_a_participant_may_keep_its_one_commit_for_the_end():
    world = World(names="a")
    world.participants["a"].flush_tx = lambda: world.journal.append("a.flush")  # type: ignore[attr-defined]
    world.block(commit_protocol.checkpoint)
    assert world.story.count("a.commit") == 1
    assert "a.flush checkpoint" in world.story


@pytest.mark.parametrize("step", ["a.commit", "checkpoint", "a.update", "b.update"])
def test_a_checkpoint_that_fails_ends_the_transaction(step):
    world = World({step: "raise" if "." in step else "refuse"}).block(commit_protocol.checkpoint)
    assert world.story.endswith(BACK)
    assert world.story.count("abort") == 1
    assert world.server.state == "ABORTED"


def swallowed(plan):
    """The plan, by a caller who goes on whatever comes of it."""

    def tried(tx):
        with contextlib.suppress(Exception):
            yield from plan(tx)

    return tried


GOES_WRONG = [
    ({"a.commit": "raise"}, commit_protocol.checkpoint, "its checkpoint", Broken),
    ({"checkpoint": "refuse"}, commit_protocol.checkpoint, "its checkpoint", UnavailableError),
    ({"canCommit": "refuse"}, commit, "its commit", TransactionConflictError),
    (
        {},
        lambda tx: commit_protocol.add(tx, Recording("c", [], {"c.start": "raise"})),
        "adding participant c",
        Broken,
    ),
]


@pytest.mark.parametrize(("failures", "plan", "step", "cause"), GOES_WRONG, ids=[str(row[2:]) for row in GOES_WRONG])
def test_a_block_that_swallows_what_rolled_it_back_does_not_end_quietly(failures, plan, step, cause):
    world = World(failures).block(swallowed(plan))
    assert world.story.endswith(BACK)
    assert isinstance(world.raised, TransactionEndedError)
    assert str(world.raised) == f"transaction 42 was rolled back when {step} failed"
    assert isinstance(world.raised.__cause__, cause)


def test_what_follows_a_failed_checkpoint_is_told_of_it():
    world = World({"checkpoint": "refuse"}).block(
        swallowed(commit_protocol.checkpoint), lambda tx: publish(tx, "orders", ["1"])
    )
    assert str(world.raised) == "transaction 42 was rolled back when its checkpoint failed"


def test_who_aborts_after_a_failed_checkpoint_is_left_in_peace():
    world = World({"checkpoint": "refuse"}).block(swallowed(commit_protocol.checkpoint), abort)
    assert world.story.count("abort") == 1
    assert (world.raised, world.tx.outcome.state) == (None, "ABORTED")


def test_nobody_persists_when_messages_may_be_missing():
    world = World({"store": "refuse"}).block(swallowed(lambda tx: store(tx, "orders", ["1"])))
    assert world.story == f"a.start b.start store {BACK}"
    assert isinstance(world.raised, TransactionEndedError)
    assert str(world.raised) == "transaction 42 cannot be committed: messages of topic shop:orders may be missing"


def test_what_is_no_participant_is_refused_before_anything_begins():
    with pytest.raises(TypeError, match="no start_tx"):
        UsersParticipant(object())  # type: ignore[arg-type]  # that is the point


def test_a_participant_named_twice_takes_part_once():
    world = World(names="a")
    world.tx.invited *= 2
    assert world.block().story == "a.start a.changes canCommit a.commit commit a.post"
