"""The calls between the coordinator and the owners of other servers: what is carried, over real links, and who answers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.messages import RecordIn, Work, WorkMarker, WorkPublish
from basalt.cluster.links.frames import FRAME_BYTES_MAX
from basalt.commits.owning.owner_calls import JOIN_OF, PLACE, PREPARE, PrepareCall, answer_for
from basalt.errors import TooLargeError, TopicNotFoundError, TransactionEndedError
from basalt.transactions.protocol import JoinedTransaction, Place, Prepare
from basalt.transactions.rules.transaction import Join, State, TableJoin
from tests.control.cluster.links.link_pair import HANG_S, link_pair
from tests.several_owners import LEADER, fleet, titles, work_of

HERE, THERE, NOWHERE = titles(3)
HANG_MS = HANG_S * 1_000

RECORDS = st.builds(
    RecordIn, st.binary(max_size=20), st.none() | st.binary(max_size=5),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=2).map(tuple),
    st.none() | st.integers(0, 1 << 40), st.none() | st.integers(1, 1 << 30),
)  # fmt: skip
PUBLISHES = st.builds(
    WorkPublish, st.text(max_size=5), st.text(max_size=5), st.lists(st.binary(max_size=20), max_size=3), st.lists(RECORDS, max_size=2)
)  # fmt: skip
MARKERS = st.builds(
    WorkMarker, st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.integers(1, 9), st.sampled_from(["watermark", "end_of_stream"]),
    st.none() | st.integers(0, 1 << 40),
)  # fmt: skip
TRANSACTIONS = st.builds(
    JoinedTransaction, st.integers(1, 1 << 62), st.lists(st.integers(1, 1 << 62), min_size=1, max_size=3).map(tuple),
    st.lists(st.builds(Join, st.binary(max_size=9), st.integers(1, 99), st.integers(0, 1 << 40)), max_size=2).map(tuple),
    st.lists(st.builds(TableJoin, st.binary(max_size=9), st.integers(1, 99)), max_size=2).map(tuple), st.booleans(),
)  # fmt: skip
WORKS = st.builds(
    Work, st.lists(PUBLISHES, max_size=2), st.lists(MARKERS, max_size=2), st.none() | st.lists(st.integers(1, 1 << 62), max_size=3)
)  # fmt: skip


def plain(work: Work) -> object:
    """The work as values that compare by what they say."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(work))


@given(WORKS, st.none() | TRANSACTIONS)
def test_what_a_commit_brings_arrives_as_it_was(work: Work, transaction: JoinedTransaction | None) -> None:
    carried = msgspec.msgpack.encode(PrepareCall.of(Prepare(work, transaction)))
    arrived = PREPARE.question.decode(carried).asked
    assert arrived.transaction == transaction
    assert arrived.work is not None
    assert plain(arrived.work) == plain(work)


def test_payloads_are_read_where_they_came() -> None:
    carried = msgspec.msgpack.encode(PrepareCall.of(Prepare(work_of({HERE: ["payload"]}), None)))
    arrived = PREPARE.question.decode(carried).asked
    assert arrived.work is not None
    (payload,) = arrived.work.publish[0].messages
    assert isinstance(payload, memoryview)
    assert bytes(payload) == b"payload"


def test_over_real_links_a_commit_is_carried_and_an_owners_refusal_comes_back() -> None:
    async def story() -> None:
        async with fleet("second") as shop, link_pair() as ends:
            answer_for(shop.members["second"].owner, ends.asks_handlers)
            shop.links.links["second"] = ends.answers
            await shop.create(HERE, LEADER)
            await shop.create(THERE, "second")
            await shop.move(NOWHERE, "second")
            tx = await shop.transactions.begin()
            await shop.store(THERE, "stored", tx=tx)
            await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b" * 100_000, "c"]}))
            assert await shop.read(THERE) == ["stored", "b" * 100_000, "c"]
            aborted = await shop.transactions.begin()
            await shop.publish(THERE, "early", tx=aborted)
            await shop.transactions.abort(aborted.id)
            shot = await shop.transactions.one_shot(work_of({HERE: ["d"], THERE: ["e"]}))
            assert shot.state is State.COMMITTED
            assert (await shop.read(THERE))[3:] == ["e"]
            with pytest.raises(TopicNotFoundError, match=NOWHERE.name):
                await ends.answers.call(JOIN_OF, NOWHERE, HANG_MS)
            with pytest.raises(TransactionEndedError, match="is not expected"):
                await ends.answers.call(PLACE, Place(JoinedTransaction(shot.id, (shot.id,), ()), 0), HANG_MS)
            too_large = work_of({THERE: ["x" * (FRAME_BYTES_MAX + 1)]})
            with pytest.raises(TooLargeError):
                await shop.transactions.one_shot(too_large)
            await shop.settled()

    asyncio.run(story())


def test_a_link_that_breaks_while_rows_are_placed_gives_the_commit_up() -> None:
    async def story() -> None:
        async with fleet("second") as shop, link_pair() as ends:
            answer_for(shop.members["second"].owner, ends.asks_handlers)
            shop.links.links["second"] = ends.answers
            await shop.create(HERE, LEADER)
            await shop.create(THERE, "second")
            owner = shop.members["second"].owner
            place = owner.place

            async def cut(asked: Place) -> None:
                await place(asked)
                ends.asks.close("the network is cut")

            owner.place = cut  # type: ignore[method-assign]
            tx = await shop.transactions.begin()
            with pytest.raises(Exception, match=r"half-way|rolled back"):
                await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b"]}))
            owner.place = place  # type: ignore[method-assign]
            async with link_pair() as again:
                answer_for(owner, again.asks_handlers)
                shop.links.links["second"] = again.answers
                await shop.transactions.expire()
                assert (await shop.transactions.outcome(tx.id)).state is State.ABORTED
                assert await shop.read(HERE) == await shop.read(THERE) == []
                await shop.settled()

    asyncio.run(story())
