"""Commits over the topics of several servers: all of it or nothing, in each topic's order, whatever becomes of the calls between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from basalt.api.bodies.groups import GroupOptions, ReleaseRequest
from basalt.api.bodies.messages import Work, WorkAcknowledge, WorkPublish
from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import table_name
from basalt.catalog.topics import TopicName
from basalt.cluster.links.frames import CallKind
from basalt.commits import commit_stage
from basalt.commits.owning.owner import PREPARED_MS_MAX
from basalt.commits.owning.owners import ASKED_MS_MAX, ROLL_BACK_MS_MAX
from basalt.errors import (
    BasaltError,
    ConflictError,
    InputError,
    RequestReusedError,
    ShardMovingError,
    TooLargeError,
    TopicNotFoundError,
    TransactionEndedError,
    UnavailableError,
)
from basalt.groups.fetches import FetchAsk
from basalt.messaging.log import garbage_notes, stored_log
from basalt.tables.tables import CellWrites
from basalt.transactions.protocol import Expect, JoinedTransaction, Joining, Place, Prepare
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Join, State, TableJoin, Transaction
from basalt_engine.keys import table_prefix, topic_prefix
from basalt_engine.stores.shards import shard_of
from basalt_engine.system import SystemTable
from tests.control.commits.test_carrier import until
from tests.control.groups.conftest import ids_of
from tests.several_owners import LEADER, FakeLink, Fleet, HeldLink, fleet, titles, work_of
from tests.wiring import texts

pytestmark = pytest.mark.anyio

HERE, THERE, BEYOND = titles(3)
STOCK = table_name("shop", "stock")


@pytest.fixture
async def shop() -> AsyncIterator[Fleet]:
    """A topic at the leader, and one at each of two members."""
    async with fleet("second", "third") as made:
        made.fake_links()
        for title, at in ((HERE, LEADER), (THERE, "second"), (BEYOND, "third")):
            await made.create(title, at)
        yield made


def link(shop: Fleet, name: str) -> FakeLink:
    found = shop.links.links[name]
    assert isinstance(found, FakeLink)
    return found


async def reads(shop: Fleet) -> list[list[str]]:
    return [await shop.read(title) for title in (HERE, THERE, BEYOND)]


async def test_a_commit_over_three_owners_places_what_was_stored_then_what_it_brings(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    for title in (HERE, THERE):
        await shop.store(title, "one", "two", tx=tx)
    outcome = await shop.transactions.commit(tx.id, work_of({THERE: ["three"], BEYOND: ["b"], HERE: ["c"]}))
    assert outcome.state is State.COMMITTED
    assert await reads(shop) == [["one", "two", "c"], ["one", "two", "three"], ["b"]]


async def test_a_one_shot_over_three_owners_is_one_transaction(shop: Fleet) -> None:
    outcome = await shop.transactions.one_shot(
        work_of({HERE: ["a"], THERE: ["b", "c"], BEYOND: ["d"]}), "me", "request"
    )
    assert await reads(shop) == [["a"], ["b", "c"], ["d"]]
    again = await shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b", "c"], BEYOND: ["d"]}), "me", "request")
    assert again == outcome
    assert await reads(shop) == [["a"], ["b", "c"], ["d"]]


async def test_an_abort_hides_early_rows_and_stored_ones_at_all_owners(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    for title in (HERE, THERE, BEYOND):
        await shop.publish(title, "early", tx=tx)
        await shop.store(title, "stored", tx=tx)
    await shop.transactions.abort(tx.id)
    assert await reads(shop) == [[], [], []]
    for title in (HERE, THERE):
        with pytest.raises(TransactionEndedError):
            await shop.store(title, "late", tx=tx)


@pytest.mark.parametrize("fate", ["lost", "unanswered", "late"])
async def test_a_place_without_an_answer_gives_the_commit_up_everywhere(shop: Fleet, fate: str) -> None:
    tx = await shop.transactions.begin()
    await shop.store(THERE, "stored", tx=tx)
    link(shop, "second").fate = lambda kind: fate if kind == "place" else "answered"
    with pytest.raises(TransactionEndedError, match="rolled back"):
        await shop.transactions.commit(tx.id, work_of({HERE: ["a"], BEYOND: ["b"]}))
    await shop.settled()
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTED
    assert await reads(shop) == [[], [], []]


async def test_an_owner_that_cannot_be_reached_leaves_the_transaction_open_at_prepare(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    link(shop, "second").is_cut = True
    with pytest.raises(UnavailableError):
        await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b"]}))
    link(shop, "second").is_cut = False
    await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b"]}))
    assert await reads(shop) == [["a"], ["b"], []]


async def with_a_table_elsewhere(shop: Fleet) -> Transaction:
    """A transaction that has joined a table of the second server, and nothing else."""
    prefixes = (table_prefix("shop", f"stock-{number}") for number in range(100_000))
    prefix = next(each for each in prefixes if shop.servers["second"].gate.is_held(shard_of(each)))
    tx = await shop.transactions.begin()
    await shop.transactions.manager.join(Joining(tx.write_pointer, table=TableJoin(prefix, 1)))
    return tx


async def test_where_nothing_but_tables_is_joined_nobody_is_asked_to_prepare(shop: Fleet) -> None:
    tx = await with_a_table_elsewhere(shop)
    assert (await shop.transactions.commit(tx.id)).state is State.COMMITTED
    assert link(shop, "second").asked == ["place"]
    both = await with_a_table_elsewhere(shop)
    await shop.store(BEYOND, "stored", tx=both)
    await shop.transactions.commit(both.id, work_of({HERE: ["brought"]}))
    assert link(shop, "third").asked == ["prepare", "place"]
    assert await reads(shop) == [["brought"], [], ["stored"]]


async def test_a_server_of_a_table_that_cannot_be_reached_leaves_the_transaction_open(shop: Fleet) -> None:
    tx = await with_a_table_elsewhere(shop)
    away = shop.links.links.pop("second")
    with pytest.raises(UnavailableError):
        await shop.transactions.commit(tx.id)
    assert (await shop.transactions.outcome(tx.id)).state is State.OPEN
    shop.links.links["second"] = away
    assert (await shop.transactions.commit(tx.id)).state is State.COMMITTED


async def test_an_abort_that_an_owner_does_not_answer_is_finished_by_the_expiry_job(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    await shop.publish(THERE, "early", tx=tx)
    link(shop, "second").is_cut = True
    with pytest.raises(UnavailableError):
        await shop.transactions.abort(tx.id)
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTING
    link(shop, "second").is_cut = False
    await shop.transactions.expire()
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTED
    assert await reads(shop) == [[], [], []]


async def test_a_topic_that_moves_between_prepare_and_place_is_not_lost(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    await shop.store(THERE, "stored", tx=tx)
    await shop.move(THERE, "third")
    await shop.transactions.commit(tx.id, work_of({BEYOND: ["b"]}))
    assert await reads(shop) == [[], ["stored"], ["b"]]


async def test_a_topic_that_comes_to_a_server_which_has_placed_its_part_of_the_commit_is_placed_there_after_it(
    shop: Fleet,
) -> None:
    tx = await shop.transactions.begin()
    for title in (HERE, THERE):
        await shop.store(title, "stored", tx=tx)
    real, placed_here = link(shop, "second").call, shop.leader.owner._expected

    async def call(kind: CallKind[Any, Any], question: Any, timeout_ms: float) -> Any:
        if kind.name == "place":
            await until(lambda: bool(placed_here.get(tx.id)))
            await shop.move(THERE, LEADER)
        return await real(kind, question, timeout_ms)

    link(shop, "second").call = call  # type: ignore[method-assign]
    await shop.transactions.commit(tx.id)
    assert await reads(shop) == [["stored"], ["stored"], []]


async def test_a_topic_whose_owner_dies_after_it_kept_messages_for_it_gives_the_commit_up(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    real = link(shop, "second").call

    async def call(kind: CallKind[Any, Any], question: Any, timeout_ms: float) -> Any:
        answer = await real(kind, question, timeout_ms)
        if kind.name == "prepare":
            shop.crash("second", heir="third")
        return answer

    link(shop, "second").call = call  # type: ignore[method-assign]
    with pytest.raises(TransactionEndedError, match="another owner"):
        await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b"]}))
    await shop.settled()
    assert await reads(shop) == [[], [], []]
    shot = await shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b"]}))
    assert shot.state is State.COMMITTED
    assert await reads(shop) == [["a"], ["b"], []]


async def test_a_new_run_of_an_owner_takes_no_number_of_the_one_before(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    real = link(shop, "second").call

    async def call(kind: CallKind[Any, Any], question: Any, timeout_ms: float) -> Any:
        answer = await real(kind, question, timeout_ms)
        if kind.name == "prepare":
            shop.crash("second")
            shop.fake_links()
            await shop.members["second"].owner.prepare(Prepare(work_of({THERE: ["of another commit"]}), None))
        return answer

    link(shop, "second").call = call  # type: ignore[method-assign]
    with pytest.raises(TransactionEndedError, match="not kept until now"):
        await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b"]}))
    await shop.settled()
    assert await reads(shop) == [[], [], []]


async def test_a_topic_of_this_server_that_another_one_has_at_the_place_gives_the_commit_up(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    owner = shop.leader.owner
    prepared = await owner.prepare(Prepare(work_of({HERE: ["a"]}), JoinedTransaction.of(tx)))
    assert prepared.number > 0
    shop.owners[shard_of(topic_prefix(*HERE))] = shop.names.index("third")
    shop.publish_map()
    join = Join(topic_prefix(*HERE), 1, 0)
    with pytest.raises(UnavailableError, match="another owner"):
        await owner.place(Place(JoinedTransaction(tx.id, (tx.id,), (join,)), prepared.number))
    owner.drop(prepared)
    await shop.transactions.abort(tx.id)


async def test_segments_are_published_and_left_out_at_every_owner(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    for title in (HERE, THERE):
        await shop.store(title, "first", tx=tx)
    second = await shop.transactions.checkpoint(tx.id)
    for title in (HERE, THERE):
        await shop.store(title, "second", tx=second)
    with pytest.raises(InputError, match="is no segment"):
        await shop.transactions.commit(tx.id, Work(segments=[tx.id, 99]))
    await shop.transactions.commit(tx.id, Work(segments=[second.write_pointer]))
    assert await reads(shop) == [["second"], ["second"], []]


async def test_an_owner_that_was_joined_behind_the_segments_gives_the_commit_up(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    await shop.store(THERE, "first", tx=tx)
    real = link(shop, "second").call

    async def call(kind: CallKind[Any, Any], question: Any, timeout_ms: float) -> Any:
        answer = await real(kind, question, timeout_ms)
        if kind.name == "prepare":
            await shop.store(BEYOND, "late", tx=tx)
        return answer

    link(shop, "second").call = call  # type: ignore[method-assign]
    with pytest.raises(TransactionEndedError, match="another owner"):
        await shop.transactions.commit(tx.id, Work(segments=[tx.id]))
    await shop.settled()
    assert await reads(shop) == [[], [], []]


async def test_of_two_attempts_with_one_request_id_one_is_carried_out_and_both_get_its_outcome(shop: Fleet) -> None:
    shots = [shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b"]}), "me", "request") for _ in range(3)]
    shots.append(shop.transactions.one_shot(work_of({HERE: ["a"]}), "me", "request"))
    outcomes = await asyncio.gather(*shots)
    await shop.settled()
    assert len({outcome.id for outcome in outcomes}) == 1
    found = await reads(shop)
    assert found in ([["a"], ["b"], []], [["a"], [], []])
    assert not shop.transactions.state.unfinished()


async def test_a_request_id_of_something_else_is_refused_and_nothing_stays(shop: Fleet) -> None:
    await shop.transactions.begin(request_id="request")
    with pytest.raises(RequestReusedError):
        await shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b"]}), "me", "request")
    assert await reads(shop) == [[], [], []]


async def test_a_one_shot_that_is_given_up_is_carried_out_anew_under_its_request_id(shop: Fleet) -> None:
    link(shop, "second").fate = lambda kind: "unanswered" if kind == "place" else "answered"
    with pytest.raises(UnavailableError, match="rolled back"):
        await shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b"]}), "me", "request")
    link(shop, "second").fate = lambda kind: "answered"
    await shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b"]}), "me", "request")
    await shop.settled()
    assert await reads(shop) == [["a"], ["b"], []]


async def test_the_request_of_a_one_shot_over_several_owners_is_known_after_the_log_was_read(shop: Fleet) -> None:
    first = await shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b"]}), "me", "request", principal="mary")
    shop.transactions.manager.lost()
    again = await shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b"]}), "me", "request", principal="mary")
    assert (again.id, again.principal) == (first.id, "mary")
    assert await reads(shop) == [["a"], ["b"], []]


async def test_a_one_shot_may_name_as_many_topics_of_other_servers_as_a_transaction_joins(
    shop: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_stage, "TOPICS_MAX", 2)
    with pytest.raises(TooLargeError, match="has 3"):
        await shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b"], BEYOND: ["c"]}))
    assert not shop.transactions.state.transactions()
    with pytest.raises(InputError, match="no segments"):
        await shop.transactions.one_shot(Work([WorkPublish(*THERE, [b"a"])], segments=[1]))
    nothing = await shop.transactions.one_shot(Work([WorkPublish(*THERE, [])]))
    assert nothing.state is State.COMMITTED


async def test_a_one_shot_acknowledges_in_a_group_and_publishes_elsewhere_or_neither(shop: Fleet) -> None:
    groups = shop.leader.wired.services.groups
    await shop.move(THERE, LEADER)
    await groups.make(HERE, "billing", GroupOptions(attempts_max=1, retry_delay_ms=0, dead_letter_topic=THERE.name))
    await shop.move(THERE, "second")
    await shop.publish(HERE, "first", "second")
    page = await groups.fetch(HERE, "billing", FetchAsk("mary", limit=1))
    (first,) = ids_of(page)
    entry = WorkAcknowledge(*HERE, "billing", (first,), member="mary", epoch=page.member_epoch)
    parts = Work([WorkPublish(*THERE, [b"result"])], acknowledge=[entry])
    link(shop, "second").fate = lambda kind: "lost" if kind == "place" else "answered"
    with pytest.raises(UnavailableError, match="rolled back"):
        await shop.transactions.one_shot(parts)
    await shop.settled()
    link(shop, "second").fate = lambda kind: "answered"
    await shop.transactions.one_shot(parts)
    with pytest.raises(ConflictError):
        await shop.transactions.one_shot(parts)
    assert await shop.read(THERE) == ["result"]
    page = await groups.fetch(HERE, "billing", FetchAsk("mary", limit=1))
    assert texts(page.fetch) == ["second"]
    await groups.release(HERE, "billing", ReleaseRequest((), (page.claim,) if page.claim else ()))
    assert await shop.transactions.move_dead_letters() == 1
    assert await shop.read(THERE) == ["result", "second"]


async def test_a_topic_of_another_server_joins_as_its_owner_has_it(shop: Fleet) -> None:
    await shop.publish(THERE, "before")
    tx = await shop.transactions.begin()
    found = await shop.transactions.join_topic(tx.id, THERE)
    topic_log = shop.members["second"].topics.find(THERE)
    assert topic_log is not None
    assert found.topics == (Join(topic_prefix(*THERE), 1, topic_log.newest_ms),)
    with pytest.raises(TopicNotFoundError):
        await shop.transactions.join_topic(tx.id, TopicName("shop", "nowhere"))
    await shop.transactions.abort(tx.id)


async def test_a_silent_owner_is_waited_for_no_longer_than_a_client_waits(shop: Fleet) -> None:
    waits: dict[str, float] = {}
    real = link(shop, "second").call

    async def call(kind: CallKind[Any, Any], question: Any, timeout_ms: float) -> Any:
        waits[kind.name] = timeout_ms
        return await real(kind, question, timeout_ms)

    link(shop, "second").call = call  # type: ignore[method-assign]
    tx = await shop.transactions.begin()
    await shop.transactions.commit(tx.id, work_of({THERE: ["a"]}))
    aborted = await shop.transactions.begin()
    await shop.store(THERE, "stored", tx=aborted)
    await shop.transactions.abort(aborted.id)
    await shop.settled()
    assert waits == {"prepare": ASKED_MS_MAX, "place": 2_000, "drop": ASKED_MS_MAX, "roll_back": ROLL_BACK_MS_MAX}


async def test_what_several_owners_keep_for_nobody_is_forgotten_after_a_minute(shop: Fleet) -> None:
    owner = shop.leader.owner
    await owner.prepare(Prepare(work_of({HERE: ["a"], THERE: ["b"]}), None))
    shop.clock.advance(PREPARED_MS_MAX + 1)
    last = await owner.prepare(Prepare(work_of({HERE: ["a"], THERE: ["b"]}), None))
    assert list(owner._apart) == [last.number]


async def test_nothing_is_kept_once_the_commit_has_an_answer(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b"]}))
    await shop.settled()
    assert not shop.leader.owner._prepared
    assert not shop.leader.owner._apart
    assert not shop.members["second"].owner._prepared


async def test_work_for_a_topic_that_is_not_there_is_refused_by_its_owner_and_changes_nothing(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    missing = Work([WorkPublish(*HERE, [b"a"]), WorkPublish("shop", "nowhere", [b"b"])])
    with pytest.raises(Exception, match="nowhere"):
        await shop.transactions.commit(tx.id, missing)
    assert (await shop.transactions.outcome(tx.id)).state is State.OPEN
    await shop.transactions.abort(tx.id)


# What goes to the invalid list.


async def with_cells_and_rows(shop: Fleet) -> Transaction:
    """A transaction that cannot be rolled back, with rows here and there."""
    tables = shop.leader.wired.services.tables
    tx = await shop.transactions.begin()
    for title in (HERE, THERE):
        await shop.publish(title, "early", tx=tx)
    await tables.write(STOCK, tx.id, CellWrites([CellPut(b"chair", b"count", b"5")]))
    return tx


def newest_noted(shop: Fleet, title: TopicName) -> bytes:
    """The end of the topic, as a note tells it to whoever reads it after its last row was dropped."""
    server = shop.owner_of(title)
    topic_log = server.topics.find(title)
    assert topic_log is not None
    return stored_log.newest(SystemTable(server.store.table("system")), topic_log.topic)


@pytest.fixture
async def dropping() -> AsyncIterator[Fleet]:
    """A store that drops rows of failed writers, with a table and two topics."""
    async with fleet("second", drops=True) as made:
        made.fake_links()
        await made.create(HERE, LEADER)
        await made.create(THERE, "second")
        await made.leader.wired.services.tables.catalog.create(STOCK)
        yield made


async def test_before_a_writer_is_invalid_each_owner_has_noted_where_its_topic_ends(dropping: Fleet) -> None:
    tx = await with_cells_and_rows(dropping)
    await dropping.transactions.abort(tx.id)
    assert (await dropping.transactions.outcome(tx.id)).state is State.INVALID
    for title in (HERE, THERE):
        topic_log = dropping.owner_of(title).topics.find(title)
        assert topic_log is not None
        assert newest_noted(dropping, title) == topic_log.newest != b""
        notes = garbage_notes.read(SystemTable(dropping.leader.store.table("system")), 10)
        assert {(note.topic, tuple(note.write_pointers)) for note in notes} >= {(title.name, (tx.id,))}
        assert await dropping.read(title) == []


async def test_a_writer_does_not_become_invalid_while_an_owner_has_noted_nothing(dropping: Fleet) -> None:
    tx = await with_cells_and_rows(dropping)
    link(dropping, "second").fate = lambda kind: "lost" if kind == "note_ends" else "answered"
    with pytest.raises(UnavailableError):
        await dropping.transactions.abort(tx.id)
    assert (await dropping.transactions.outcome(tx.id)).state is State.OPEN
    link(dropping, "second").fate = lambda kind: "answered"
    await dropping.transactions.abort(tx.id)
    assert (await dropping.transactions.outcome(tx.id)).state is State.INVALID
    assert not dropping.leader.owner._noted


async def test_nothing_is_taken_behind_what_an_owner_has_noted(dropping: Fleet) -> None:
    tx = await with_cells_and_rows(dropping)
    dropping.members["second"].pointers.forget()  # as after it has read the log anew
    link(dropping, "second").fate = lambda kind: "unanswered" if kind == "note_ends" else "answered"
    with pytest.raises(UnavailableError):
        await dropping.transactions.abort(tx.id)
    with pytest.raises(BasaltError):
        await dropping.publish(THERE, "behind", tx=tx)


async def test_an_owner_that_is_away_does_not_keep_others_from_ending(dropping: Fleet) -> None:
    hard = await with_cells_and_rows(dropping)
    easy = await dropping.transactions.begin()
    await dropping.publish(HERE, "early", tx=easy)
    link(dropping, "second").is_cut = True
    dropping.clock.advance(1_000_000)
    with pytest.raises(UnavailableError):
        await dropping.transactions.expire()
    assert (await dropping.transactions.outcome(easy.id)).state is State.ABORTED
    assert (await dropping.transactions.outcome(hard.id)).state is State.OPEN
    link(dropping, "second").is_cut = False
    await dropping.transactions.expire()
    assert (await dropping.transactions.outcome(hard.id)).state is State.INVALID


async def test_a_commit_that_nobody_carries_is_given_up_though_an_owner_of_others_is_away(dropping: Fleet) -> None:
    await with_cells_and_rows(dropping)
    left = await dropping.transactions.begin()
    await dropping.publish(HERE, "early", tx=left)
    manager = dropping.transactions.manager
    await manager.run(
        lambda group: manager.apply(group, manager.state.commit(left.id, group.now_ms, inline=False).edits)
    )
    link(dropping, "second").is_cut = True
    dropping.clock.advance(1_000_000)
    for _ in range(2):  # who finds it twice gives it up
        with pytest.raises(UnavailableError):
            await dropping.transactions.expire()
    await dropping.settled()
    assert (await dropping.transactions.outcome(left.id)).state is State.ABORTED
    assert await dropping.read(HERE) == []


# The log is read anew.


async def held_at_place(shop: Fleet, tx: Transaction, parts: dict[TopicName, list[str]]) -> asyncio.Future[Outcome]:
    """A commit that waits for the second server to place its rows."""
    shop.links.links["second"] = holding = HeldLink(shop.handlers["second"], shop.tasks)
    commit = asyncio.ensure_future(shop.transactions.commit(tx.id, work_of(parts)))
    await until(lambda: holding.is_holding)
    return commit


async def test_a_commit_that_is_under_way_when_the_log_is_read_is_rolled_back_at_its_owners(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    await shop.store(THERE, "stored", tx=tx)
    commit = await held_at_place(shop, tx, {HERE: ["a"], BEYOND: ["b"]})
    shop.transactions.manager.lost()
    await shop.transactions.recover()
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTED
    holding = shop.links.links["second"]
    assert isinstance(holding, HeldLink)
    holding.let_go.set()  # the place comes now
    with pytest.raises(TransactionEndedError):
        await commit
    await shop.settled()
    assert await reads(shop) == [[], [], []]


async def test_the_log_can_be_read_though_an_owner_of_an_unfinished_commit_is_away(dropping: Fleet) -> None:
    tx = await with_cells_and_rows(dropping)
    commit = await held_at_place(dropping, tx, {HERE: ["a"]})
    holding = dropping.links.links["second"]
    assert isinstance(holding, HeldLink)
    holding.is_cut = True
    dropping.transactions.manager.lost()
    await dropping.transactions.recover()
    await dropping.transactions.begin()
    holding.let_go.set()  # the place does not arrive, and nobody can be told that the commit is given up
    with pytest.raises(BasaltError):
        await commit
    holding.is_cut = False
    for _ in range(2):  # who finds it twice, and nobody carrying it, gives it up
        await dropping.transactions.expire()
    assert (await dropping.transactions.outcome(tx.id)).state is State.INVALID
    assert await dropping.read(HERE) == await dropping.read(THERE) == []


async def test_who_has_no_longer_a_table_of_the_transaction_places_nothing_for_it(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    gone = next(
        prefix
        for prefix in (table_prefix("shop", f"stock-{number}") for number in range(100_000))
        if not shop.servers["second"].gate.is_held(shard_of(prefix))
    )
    owner = shop.servers["second"].owner
    owner.expect(Expect(tx.id))
    place = Place(JoinedTransaction(tx.id, (tx.id,), (), (TableJoin(gone, 1),)), 0)
    with pytest.raises(ShardMovingError):
        await owner.place(place)
    await owner.place(msgspec.structs.replace(place, transaction=msgspec.structs.replace(place.transaction, tables=())))
