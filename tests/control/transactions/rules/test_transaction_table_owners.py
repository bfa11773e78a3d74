"""A transaction belongs to the principal that began it: from its begin on, after its end, over a replay, and in the log's snapshots."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.errors import CorruptionError
from basalt.transactions.log.snapshot_format import decode_snapshot
from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction import Belonging, Kind, State, Transaction, TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from tests.control.transactions.conftest import Scene
from tests.control.transactions.whole_bytes import encode_snapshot

ETL, ALICE = "token:etl", "jwt:alice@example.org"


def again(state: TransactionProposals) -> TransactionProposals:
    """The state as it is read from a snapshot of the log."""
    return TransactionProposals(state.limits, decode_snapshot(encode_snapshot(state.image()), "row"))


def owner_of(state: TransactionProposals, pointer: int) -> str | None:
    found = state.belonging(pointer)
    return None if found is None else found.principal


def test_a_transaction_belongs_to_who_began_it(scene: Scene):
    mine, anybodys = scene.begin(principal=ETL), scene.begin()
    assert (mine.principal, anybodys.principal) == (ETL, "")
    assert scene.state.belonging(mine.id) == Belonging(ETL, None)
    assert scene.state.belonging(anybodys.id) == Belonging("", None)
    assert scene.state.belonging(anybodys.id + 1) is None


def test_the_owner_is_logged_behind_the_begin_and_only_where_there_is_one(scene: Scene):
    scene.begin()
    scene.begin(principal=ETL)
    scene.one_shot(principal=ETL)
    assert [type(edit) for edit in scene.edits] == [
        edits.Began, edits.Began, edits.Owned, edits.OneShot, edits.Owned,
    ]  # fmt: skip


def test_in_a_session_it_belongs_to_who_began_it_and_the_session_to_who_opened_it(scene: Scene):
    scene.done(scene.state.sessions.open("billing", "monday", scene.now_ms, ALICE))
    session = scene.state.sessions.get("billing")
    mine = scene.begin_in(session, principal=ETL)
    assert session.principal == ALICE
    assert scene.state.belonging(mine.id) == Belonging(ETL, "billing")
    for state in (scene.replayed(), again(scene.state)):
        assert state.belonging(mine.id) == Belonging(ETL, "billing")
        assert state.sessions.get("billing").principal == ALICE
    scene.done(scene.state.sessions.open("billing", "tuesday", scene.now_ms, ETL))
    assert scene.state.sessions.get("billing").principal == ETL
    assert scene.state.belonging(mine.id) == Belonging(ETL, "billing"), "it was fenced, and whose it was is known"


@pytest.mark.parametrize("how", ["commit", "abort", "invalidate", "one_shot"])
def test_the_outcome_belongs_to_the_same(how: str, scene_with: type[Scene]):
    scene = scene_with(TransactionLimits(outcomes_max=3))
    if how == "one_shot":
        key = scene.one_shot(principal=ETL).id
    else:
        mine = scene.begin(principal=ETL)
        key = mine.id
        getattr(scene, how)(mine)
    assert scene.state.outcome(key).principal == ETL
    for _ in range(8):  # until it is packed
        scene.one_shot(principal=ALICE)
        scene.one_shot()
    for state in (scene.state, scene.replayed(), again(scene.state), again(again(scene.state))):
        assert owner_of(state, key) == ETL
        assert state.outcome(key).principal == ETL
    assert scene.replayed().image() == scene.state.image()


def test_outcomes_of_one_label_and_several_principals_are_told_apart_in_a_block(scene_with: type[Scene]):
    scene = scene_with(TransactionLimits(outcomes_max=1))
    owners = [ETL, ALICE, "", ETL]
    keys = [scene.one_shot(owner="job", principal=owner).id for owner in owners]
    for _ in range(3):
        scene.one_shot()
    assert [owner_of(scene.state, key) for key in keys] == owners
    assert [owner_of(again(scene.state), key) for key in keys] == owners


def test_an_invalid_one_that_is_aborted_late_stays_its_owners(scene: Scene):
    mine = scene.begin(principal=ETL, external_writes=True)
    scene.join(mine)
    scene.invalidate(mine)
    scene.abort(mine)
    assert scene.state.find(mine.id).state is State.ABORTING
    assert owner_of(scene.state, mine.id) == ETL
    scene.finish(mine)
    assert owner_of(scene.state, mine.id) == ETL


def test_a_checkpoint_is_of_the_same_owner_after_the_end_too(scene: Scene):
    mine = scene.begin(principal=ETL)
    pointer = scene.checkpoint(mine).write_pointer
    assert owner_of(scene.state, pointer) == ETL
    scene.commit(scene.state.get(mine.id))
    assert owner_of(scene.state, pointer) == ETL


def test_transactions_of_one_principal_share_its_name(scene: Scene):
    """A hundred thousand of them would take ten megabytes otherwise."""
    for _ in range(3):
        scene.begin(principal="".join(["token:", "etl"]))
        scene.one_shot(principal="".join(["token:", "etl"]))
    for state in (scene.state, again(scene.state)):
        assert len({id(each.principal) for each in (*state.by_id.values(), *state.outcomes.remembered().recent)}) == 1


def impossible(scene: Scene, mine: Transaction) -> dict[str, edits.Edit]:
    return {
        "a second owner": edits.Owned(mine.id, ALICE),
        "of one that began before": edits.Owned(scene.begin().id - 1, ALICE),
        "of nobody": edits.Owned(scene.begin().id, ""),
        "of one that there is not": edits.Owned(mine.id + 5, ALICE),
    }


@pytest.mark.parametrize(
    "case", ["a second owner", "of one that began before", "of nobody", "of one that there is not"]
)
def test_an_owner_that_cannot_be_is_refused(case: str, scene: Scene):
    edit = impossible(scene, scene.begin(Kind.LONG, principal=ETL))[case]
    before = scene.state.image()
    with pytest.raises(CorruptionError, match="gets an owner"):
        scene.state.apply(edit)
    assert scene.state.image() == before


def test_one_that_went_on_gets_no_owner_any_more(scene: Scene):
    plain = scene.begin()
    scene.checkpoint(plain)
    with pytest.raises(CorruptionError, match="gets an owner"):
        scene.state.apply(edits.Owned(plain.id, ETL))


def counted(state: TransactionProposals) -> tuple[dict[str, int], dict[str, int]]:
    """The transactions that have not ended, and the sessions, of each principal: counted one by one."""
    transactions = Counter(transaction.principal for transaction in state.transactions())
    return dict(transactions), dict(Counter(session.principal for session in state.sessions.all()))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["begin", "session", "delete", "commit", "later", "abort", "invalidate", "again", "expire"]
            ),
            st.integers(0, 5),
        ),
        max_size=30,
    )
)
def test_the_numbers_of_what_a_principal_has_are_those_that_one_counts(acts: list[tuple[str, int]]):
    scene, begun, ended = Scene(), [], []
    for act, number in acts:
        principal, name = ("", ETL, ALICE)[number % 3], f"s{number % 2}"
        if act == "begin":
            begun.append(scene.begin(principal=principal))
        elif act == "session":
            scene.done(scene.state.sessions.open(name, f"r{number}", scene.now_ms, principal))
        elif act == "delete" and scene.state.session_table.get(name) is not None:
            scene.done(scene.state.sessions.delete(name, scene.now_ms))
        elif act == "expire":
            scene.clock.advance(60_000)
            scene.expire()
            begun = []
        elif act == "again" and ended:
            scene.abort(ended.pop(), inline=False)  # it was invalid, and is rolled back
        elif begun:
            transaction = begun.pop(number % len(begun))
            if act == "later":
                scene.commit(transaction, inline=False)
            elif act == "invalidate":
                scene.invalidate(transaction)
                ended.append(transaction)
            elif act in ("commit", "abort"):
                getattr(scene, act)(transaction)
        for state in (scene.state, again(scene.state)):
            assert (dict(state.open_of), dict(state.session_table.held)) == counted(state)


def test_an_invalid_transaction_that_is_being_rolled_back_counts_until_that_is_done(scene: Scene):
    mine = scene.begin(principal=ETL)
    scene.invalidate(mine)
    assert dict(scene.state.open_of) == {}
    scene.done(edits.Proposal([edits.Aborting(mine.id, False)], mine.id))
    assert dict(scene.state.open_of) == {ETL: 1} == counted(scene.state)[0]
    scene.finish(mine)
    assert dict(scene.state.open_of) == {}
