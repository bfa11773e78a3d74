"""A producer's publish that is sent again is there once: lost answers, overtaking, cuts, doubt, crashes, forgetting, fencing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from basalt.api.markers import Marker
from basalt.catalog.topics import TopicName
from basalt.errors import (
    BusyError,
    ProducerFencedError,
    ProducerNotFoundError,
    ProducerUnknownError,
    SequenceGapError,
    TopicEndedError,
    UnknownOutcomeError,
)
from basalt.messaging import producers
from basalt.messaging.log.append import Placed
from basalt.messaging.producers import IDLE_MS, MEMORY_MAX, NAMED_IDLE_MS, PER_TOPIC_MAX, ProducerLimits, Sequenced
from basalt.settings import Settings
from basalt.settings.tree import ProducerSettings
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.errors import BasaltError, StoreError
from basalt_engine.keys import topic_prefix
from basalt_engine.messages import PRODUCERS
from basalt_engine.records import Extras
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Delete, TableWrite
from tests.wiring import A, B, Wired, encoded

pytestmark = pytest.mark.anyio


async def send(
    shop: Wired, *messages: str, at: int, after: int | None = None, by: str = "p", epoch: int = 0, title: TopicName = A
) -> bool:
    """Publish as a producer; False: all of it was there already."""
    asked = Sequenced(by.encode(), at, at - 1 if after is None else after, epoch)
    return await shop.messaging.publish_numbered(title, encoded(messages), asked) is not None


async def lasts(shop: Wired, title: TopicName = A) -> dict[str, int]:
    return {each.name: each.last for each in await shop.services.producers.of_topic(title)}


# The comparison.


async def test_a_publish_whose_answer_was_lost_is_sent_again_and_there_once(shop: Wired) -> None:
    assert await send(shop, "a", "b", at=0)
    assert not await send(shop, "a", "b", at=0)
    assert await send(shop, "c", at=2)
    assert not await send(shop, "a", "b", at=0)
    assert await shop.read(A) == ["a", "b", "c"]
    assert shop.services.producers.duplicates_total == 2


async def test_of_a_publish_of_which_a_part_is_there_the_rest_is_appended(shop: Wired) -> None:
    await send(shop, "a", "b", at=0)
    assert await send(shop, "a", "b", "c", "d", at=0)
    assert await shop.read(A) == ["a", "b", "c", "d"]
    assert await lasts(shop) == {"p": 3}


async def test_a_gap_is_refused_and_names_the_last_number(shop: Wired) -> None:
    await send(shop, "a", at=0)
    with pytest.raises(SequenceGapError, match="last number of producer p in this topic is 0"):
        await send(shop, "c", at=2)
    assert await shop.read(A) == ["a"]
    assert await lasts(shop) == {"p": 0}


async def test_numbers_may_have_gaps_where_the_producer_says_so(shop: Wired) -> None:
    await send(shop, "a", at=10, after=-1)
    assert await send(shop, "b", at=500, after=10)
    assert not await send(shop, "b", at=500, after=10)
    assert not await send(shop, "b", at=400, after=10)
    assert await lasts(shop) == {"p": 500}


async def test_requests_that_overtake_each_other_are_never_taken_for_duplicates(shop: Wired) -> None:
    await shop.topics.open(A)
    calls = (send(shop, text, at=number) for text, number in (("b", 1), ("a", 0), ("c", 2)))
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [each if each is True else type(each) for each in told] == [ProducerUnknownError, True, SequenceGapError]
    assert await shop.read(A) == ["a"]
    assert [await send(shop, "b", at=1), await send(shop, "c", at=2)] == [True, True]
    assert await shop.read(A) == ["a", "b", "c"]


async def test_requests_of_one_producer_that_meet_in_a_group_are_all_there_in_order(shop: Wired) -> None:
    await shop.topics.open(A)  # who waits for that comes in any order
    told = await asyncio.gather(*(send(shop, f"m{number}", at=number) for number in range(20)))
    assert all(told)
    assert await shop.read(A) == [f"m{number}" for number in range(20)]


async def test_a_repetition_in_the_same_group_is_a_duplicate(shop: Wired) -> None:
    assert await asyncio.gather(send(shop, "a", at=0), send(shop, "a", at=0)) == [True, False]
    assert await shop.read(A) == ["a"]


async def test_an_unknown_producer_begins_and_cannot_go_on(shop: Wired) -> None:
    with pytest.raises(ProducerUnknownError, match="-1"):
        await send(shop, "x", at=7)
    assert await shop.read(A) == []


async def test_producers_and_topics_have_numbers_of_their_own(shop: Wired) -> None:
    for by in ("p", "q"):
        for title in (A, B):
            assert await send(shop, by, at=0, by=by, title=title)
    assert (await shop.read(A), await shop.read(B)) == (["p", "q"], ["p", "q"])


async def test_a_repetition_is_known_also_when_the_stream_has_ended_since(shop: Wired) -> None:
    await send(shop, "a", at=0)
    await shop.services.markers.publish(A, Marker("t", 1))
    assert not await send(shop, "a", at=0)
    with pytest.raises(TopicEndedError):
        await send(shop, "b", at=1)


# Restarts.


async def test_numbers_outlive_the_process_by_their_rows_alone(shop: Wired) -> None:
    await send(shop, "a", "b", at=0)
    await send(shop, "q", at=0, by="q")
    again = await shop.restarted()
    assert not await send(again, "a", "b", at=0)
    assert await send(again, "b", "c", at=1)
    assert await again.read(A) == ["a", "b", "q", "c"]
    assert await lasts(again) == {"p": 2, "q": 0}


async def test_numbers_outlive_the_process_by_the_entry_and_the_rows_behind_it(shop: Wired) -> None:
    await send(shop, "a", at=0)
    assert await shop.services.producers.save(everything=True) == 1
    await send(shop, "b", at=1)
    again = await shop.restarted()
    assert not await send(again, "a", "b", at=0)
    assert await lasts(again) == {"p": 1}


async def test_a_topic_without_numbers_is_not_read_for_any(shop: Wired) -> None:
    await shop.publish(A, *"abc")
    again = await shop.restarted()
    assert await lasts(again) == {}
    assert again.topics.find(A).producers.has_entry is False  # type: ignore[union-attr]


async def test_merged_rows_keep_their_numbers_for_the_next_start() -> None:
    shop = await Wired.start(MemoryStore())
    await shop.topics.create(A, {})
    for number in range(40):
        await send(shop, f"m{number}", at=number // 2, by="pq"[number % 2])
        shop.clock.advance(1)
    await shop.publish(A, "x" * 20_000)  # ends the run
    for _ in range(2):
        await shop.services.writer.each[0].run(lambda group: None)
    assert shop.topics.memory.merged_rows_total == 40
    (row,) = (row for row in shop.store.table("message").scan(b"", None) if PRODUCERS in row.columns)
    assert (
        row.columns[PRODUCERS].hex()
        == "0170" + "0000000000000013" + "00000014" + "0171" + "0000000000000013" + "00000014"
    )
    again = await shop.restarted()
    assert await lasts(again) == {"p": 19, "q": 19}
    assert not await send(again, "m38", at=19)


# Writes that fail.


WHOLE = {-1}  # a write that does not fail


class Breaking(MemoryStore):
    """A store whose next write fails, after it has made as much of it as it is told: some of the puts of the message table."""

    def __init__(self, *, atomic: bool = True) -> None:
        super().__init__(atomic)
        self.breaks: list[
            set[int] | None
        ] = []  # of each write to come: None: refused; which puts of the table are made
        self.table_name = "message"
        self.deleted: list[bytes] = []

    def write(self, writes: Any) -> None:
        self.deleted += [each.key for write in writes for each in write.mutations if isinstance(each, Delete)]
        if not self.breaks or not any(write.table == self.table_name for write in writes):
            super().write(writes)
            return
        made = self.breaks.pop(0)
        if made == WHOLE:
            super().write(writes)
            return
        if made is None:
            raise StoreError("the disk is full")
        for write in writes:
            kept = [
                each for number, each in enumerate(write.mutations) if write.table != self.table_name or number in made
            ]
            super().write([TableWrite(write.table, kept)])
        raise UnknownOutcomeError("the connection broke")


async def broken(*, atomic: bool) -> Wired:
    shop = await Wired.start(Breaking(atomic=atomic))
    await shop.topics.create(A, {})
    await send(shop, "first", at=0)
    return shop


@pytest.mark.parametrize("atomic", [True, False])
async def test_what_a_failed_write_did_not_make_is_not_known(atomic: bool) -> None:
    shop = await broken(atomic=atomic)
    shop.store.breaks = [None]  # type: ignore[attr-defined]
    with pytest.raises(StoreError):
        await send(shop, "a", at=1)
    assert await send(shop, "a", at=1)
    assert await shop.read(A) == ["first", "a"]


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("made", [set(), {0}])
async def test_doubt_is_settled_before_numbers_are_compared(atomic: bool, made: set[int]) -> None:
    shop = await broken(atomic=atomic)
    shop.store.breaks = [made]  # type: ignore[attr-defined]
    with pytest.raises(UnknownOutcomeError):
        await send(shop, "a", at=1)
    assert await send(shop, "a", at=1) is not bool(made)
    assert await send(shop, "b", at=2)
    assert await shop.read(A) == ["first", "a", "b"]
    again = await shop.restarted()
    assert not await send(again, "a", "b", at=1)


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_duplicate_is_answered_only_when_the_first_is_durable(atomic: bool) -> None:
    shop = await broken(atomic=atomic)
    shop.store.breaks = [None]  # type: ignore[attr-defined]
    told = await asyncio.gather(send(shop, "a", at=1), send(shop, "a", at=1), return_exceptions=True)
    failed = [each for each in told if isinstance(each, StoreError)]
    assert len(failed) == 2 if atomic else told[0] in failed
    assert [each for each in told if each is False] == []
    assert (await shop.read(A)).count("a") == len([each for each in told if each is True])


class Held(MemoryStore):
    """A store far away, whose writes wait until they are let go."""

    remote = True

    def __init__(self) -> None:
        super().__init__(atomic=False)
        self.begun, self.let_go, self.fails = threading.Event(), threading.Event(), False
        self.let_go.set()

    def write(self, writes: Any) -> None:
        self.begun.set()
        assert self.let_go.wait(10)
        if self.fails:
            self.fails = False
            raise StoreError("the region is gone")
        super().write(writes)


async def submit(shop: Wired, message: str, at: int) -> bool:
    """Publish as `send` does, as a connection does whose call one stage answers."""
    told: asyncio.Future[Placed | None] = asyncio.get_running_loop().create_future()
    assert shop.messaging.submit_publish(told, A, encoded([message]), None, Sequenced(b"p", at, at - 1))
    return await told is not None


@pytest.mark.parametrize("again", [send, submit])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_repetition_that_comes_while_the_first_is_being_written_waits_for_it(fails: bool, again: Any) -> None:
    store = Held()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await send(shop, "first", at=0)
    store.begun.clear()
    store.let_go.clear()
    first = asyncio.ensure_future(send(shop, "a", at=1))
    await asyncio.to_thread(store.begun.wait, 10)
    repeated = asyncio.ensure_future(again(shop, "a", at=1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not first.done()
    assert not repeated.done()
    store.fails = fails
    store.let_go.set()
    told = await asyncio.gather(first, repeated, return_exceptions=True)
    assert [isinstance(told[0], StoreError), told[1]] == [fails, fails]
    assert await shop.read(A) == ["first", "a"]


async def test_late_rows_of_a_failed_write_are_hidden_and_not_known() -> None:
    shop = await broken(atomic=False)
    shop.store.breaks = [set()]  # type: ignore[attr-defined]
    with pytest.raises(UnknownOutcomeError):
        await send(shop, "a", at=1)
    (log,) = shop.topics.memory.with_unconfirmed
    assert log.producers is None
    assert await send(shop, "a", at=1)
    assert not shop.topics.memory.with_unconfirmed


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("announced", [True, False])
async def test_numbers_in_a_place_that_a_failed_write_had_taken_are_known_to_the_next_server_but_one(
    atomic: bool, announced: bool
) -> None:
    """A leader whose clock is behind gives such places out again; nobody may have saved that all up to there is known."""
    shop = await broken(atomic=atomic)
    if not announced:
        await shop.topics.create(B, {})
        await shop.publish(B, "without a number")
    title = A if announced else B
    shop.store.breaks = [None]  # type: ignore[attr-defined]
    with pytest.raises(StoreError):
        await shop.messaging.publish(title, encoded(["never", "written"]))
    at = 1 if announced else 0
    if announced:
        await shop.services.producers.open(title, "q", "run-1")  # saves
    else:
        # What is in doubt is decided about first. Then the announcement is written, and nothing behind it.
        shop.store.breaks = [None] if atomic else [WHOLE, set()]  # type: ignore[attr-defined]
        with pytest.raises(BasaltError):
            await send(shop, "x", at=0, title=title)
    second = await shop.restarted()
    assert await send(second, "a", "b", at=at, title=title)
    third = await second.restarted()
    assert not await send(third, "a", "b", at=at, title=title)
    assert (await lasts(third, title))["p"] == at + 1


@pytest.mark.parametrize("lost", [{0}, {0, 1}, {1}, set()])
async def test_of_a_publish_that_hbase_cuts_a_beginning_is_kept_and_the_rest_is_sent_again(lost: set[int]) -> None:
    shop = await broken(atomic=False)
    large = ["a" * 600_000, "b" * 600_000, "c" * 600_000]
    shop.store.breaks = [{0}] if 0 not in lost else [set()]  # type: ignore[attr-defined]
    with pytest.raises(UnknownOutcomeError):
        await send(shop, *large, at=1)
    again = await shop.restarted()
    assert await send(again, *large, at=1)
    assert [text[0] for text in await again.read(A)] == ["f", "a", "b", "c"]
    assert not await send(again, *large, at=1)


async def test_a_publish_whose_rest_is_refused_is_not_refused_for_its_beginning_is_there() -> None:
    shop = await broken(atomic=False)
    large = ["a" * 600_000, "b" * 600_000]
    shop.store.breaks = [WHOLE, None]  # type: ignore[attr-defined]
    with pytest.raises(
        UnknownOutcomeError, match="the first 1 messages are there, and the rest was refused: the disk is full"
    ):
        await send(shop, *large, at=1)
    assert await send(shop, *large, at=1)
    assert [text[0] for text in await shop.read(A)] == ["f", "a", "b"]
    shop.store.breaks = [None]  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="the disk is full"):
        await send(shop, "alone", at=3)


async def test_a_store_whose_rest_is_refused_is_not_refused_either() -> None:
    shop = await broken(atomic=False)
    tx = await shop.transactions.begin()
    assert await stored(shop, "first", tx=tx, before=0)
    large = ["a" * 600_000, "b" * 600_000]
    shop.store.breaks, shop.store.table_name = [WHOLE, None], "payload"  # type: ignore[attr-defined]
    with pytest.raises(UnknownOutcomeError, match="the first 1 messages are there"):
        await stored(shop, *large, tx=tx, before=1)
    await shop.transactions.expire()  # the manager reads its log
    assert await stored(shop, *large, tx=tx, before=1)
    await shop.commit(tx)
    assert [text[0] for text in await shop.read(A, committed=True)] == ["f", "f", "a", "b"]


async def test_rows_of_one_producer_are_never_written_side_by_side() -> None:
    shop = await broken(atomic=False)
    groups = shop.services.writer.groups
    await asyncio.gather(*(send(shop, f"m{number}", at=number) for number in range(1, 6)))
    assert shop.services.writer.groups - groups == 5
    await asyncio.gather(*(send(shop, "q", at=0, by=f"q{number}") for number in range(5)))
    assert shop.services.writer.groups - groups == 6


async def test_a_publish_of_a_whole_millisecond_is_one_row_where_rows_are_written_one_by_one() -> None:
    shop = await broken(atomic=False)
    await send(shop, *[""] * 65_536, at=1)
    rows = [row for row in shop.store.table("message").scan(b"", None) if PRODUCERS in row.columns]
    assert [row.columns[PRODUCERS][-4:].hex() for row in rows] == ["00000001", "00010000"]


# Saving, retention, memory.


async def test_an_entry_is_saved_after_a_minute_many_rows_or_half_a_ttl(shop: Wired, monkeypatch: Any) -> None:
    await send(shop, "a", at=0)
    assert await shop.services.producers.save() == 0
    shop.clock.advance(59_999)
    assert await shop.services.producers.save() == 0
    shop.clock.advance(1)
    assert await shop.services.producers.save() == 1
    assert await shop.services.producers.save() == 0
    monkeypatch.setattr(producers, "SAVE_ROWS", 2)
    await send(shop, "b", at=1)
    assert await shop.services.producers.save() == 0
    await send(shop, "c", at=2)
    assert await shop.services.producers.save() == 1
    await shop.topics.update(A, {"ttl": "20"})
    await send(shop, "d", at=3)
    shop.clock.advance(10_000)
    assert await shop.services.producers.save() == 1


async def test_two_saves_in_one_group_leave_nothing_unsaved_that_comes_later(shop: Wired) -> None:
    await send(shop, "a", at=0)
    named = shop.services.producers
    assert await asyncio.gather(*(named.save(everything=True) for _ in range(2))) == [1, 1]
    first = await named.open(A, "tailer", "run-1")
    again = await shop.restarted()
    assert (await again.services.producers.find(A, "tailer")).epoch == first.epoch


@pytest.mark.parametrize("restarted", [False, True])
async def test_retention_takes_no_numbers_with_the_rows(restarted: bool) -> None:
    shop = await Wired.start(MemoryStore())
    await shop.topics.create(A, {"ttl": "3600"})
    await send(shop, "a", at=0)
    await shop.services.producers.open(A, "tailer", "run-1")
    epoch = (await shop.services.producers.find(A, "tailer")).epoch
    await send(shop, "line", at=0, by="tailer", epoch=epoch)
    if restarted:
        shop = await shop.restarted()
    shop.clock.advance(5 * 3_600_000)
    await shop.services.scheduler.run_now("retention")
    assert list(shop.store.table("message").scan(b"", None)) == []
    again = await shop.restarted()
    assert (await again.services.producers.open(A, "tailer", "run-1")).last == 0


async def test_truncation_keeps_numbers_and_re_creation_forgets_them(shop: Wired) -> None:
    await send(shop, "a", "b", at=0)
    shop.clock.advance(10)
    await shop.topics.truncate(A, shop.clock.now_ms())
    assert not await send(shop, "a", "b", at=0)
    await shop.services.producers.save(everything=True)
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    assert await lasts(shop) == {}
    assert await send(shop, "a", at=0)
    assert await lasts(await shop.restarted()) == {"p": 0}


async def test_numbers_that_no_entry_has_outlive_the_memory_of_their_topic(shop: Wired) -> None:
    await send(shop, "a", at=0)
    log = shop.topics.find(A)
    assert log is not None
    log.memory.shed(log)
    assert log.producers is not None
    await shop.services.producers.save(everything=True)
    log.memory.shed(log)
    assert log.producers is None
    assert not await send(shop, "a", at=0)


async def limited(per_topic: int) -> Wired:
    shop = await Wired.start(MemoryStore(), settings=Settings(producers=ProducerSettings(per_topic_max=per_topic)))
    await shop.topics.create(A, {})
    return shop


async def test_the_idlest_producer_makes_room_once_it_was_idle_for_a_minute() -> None:
    shop = await limited(2)
    for by in "pq":
        await send(shop, by, at=0, by=by)
        shop.clock.advance(1)
    with pytest.raises(BusyError, match="2 producers send to the topic, the limit is 2"):
        await send(shop, "r", at=0, by="r")
    shop.clock.advance(59_999)
    assert await send(shop, "r", at=0, by="r")
    assert await lasts(shop) == {"q": 0, "r": 0}
    with pytest.raises(ProducerUnknownError):
        await send(shop, "p", at=1, by="p")


async def test_named_producers_make_no_room_for_others() -> None:
    shop = await limited(1)
    await shop.services.producers.open(A, "tailer", "run-1")
    shop.clock.advance(IDLE_MS)
    with pytest.raises(BusyError):
        await send(shop, "r", at=0, by="r")
    shop.clock.advance(NAMED_IDLE_MS)
    assert await send(shop, "r", at=0, by="r")


async def test_idle_producers_are_forgotten_with_the_next_save(shop: Wired) -> None:
    await send(shop, "a", at=0)
    await shop.services.producers.open(A, "tailer", "run-1")
    shop.clock.advance(IDLE_MS)
    await send(shop, "b", at=0, by="q")
    await shop.services.producers.save(everything=True)
    assert sorted(await lasts(shop)) == ["q", "tailer"]
    shop.clock.advance(NAMED_IDLE_MS)
    await send(shop, "b", at=1, by="q")
    await shop.services.producers.save(everything=True)
    assert sorted(await lasts(shop)) == ["q"]


async def test_a_producer_that_was_forgotten_and_begins_anew_is_where_it_is_now_after_a_restart(shop: Wired) -> None:
    await send(shop, *"abc", at=0)
    await shop.services.producers.delete(A, "p")
    assert await send(shop, "d", at=0)
    assert await lasts(await shop.restarted()) == {"p": 0}


async def test_the_settings_are_those_that_the_design_has() -> None:
    assert ProducerLimits() == (PER_TOPIC_MAX, IDLE_MS, NAMED_IDLE_MS, MEMORY_MAX)
    assert ProducerLimits() == (10_000, 600_000, 604_800_000, 1_000_000)
    given = Settings().producers
    assert (given.per_topic_max, given.idle_ms, given.named_idle_ms, given.memory_max) == ProducerLimits()


# Named producers.


async def test_another_run_fences_the_one_before_and_goes_on_behind_its_last_message(shop: Wired) -> None:
    named = shop.services.producers
    first = await named.open(A, "tailer", "run-1")
    assert first.last == -1
    assert await send(shop, "a", "b", at=0, by="tailer", epoch=first.epoch)
    assert await named.open(A, "tailer", "run-1") == first._replace(last=1, used_ms=shop.clock.now_ms())
    second = await named.open(A, "tailer", "run-2")
    assert (second.last, second.epoch > first.epoch) == (1, True)
    for epoch in (0, first.epoch):
        with pytest.raises(ProducerFencedError):
            await send(shop, "b", at=1, by="tailer", epoch=epoch)  # a repetition, too
    again = await shop.restarted()
    with pytest.raises(ProducerFencedError):
        await send(again, "c", at=2, by="tailer", epoch=first.epoch)
    assert await send(again, "c", at=2, by="tailer", epoch=second.epoch)
    assert await again.read(A) == ["a", "b", "c"]


async def test_an_epoch_that_nobody_gave_is_unknown(shop: Wired) -> None:
    await send(shop, "a", at=0)
    for by in ("p", "nobody"):
        with pytest.raises(ProducerUnknownError):
            await send(shop, "b", at=1, by=by, epoch=7)


async def test_a_zombie_of_a_producer_that_was_deleted_is_not_let_in_again(shop: Wired) -> None:
    first = await shop.services.producers.open(A, "tailer", "run-1")
    await shop.services.producers.delete(A, "tailer")
    with pytest.raises(ProducerNotFoundError):
        await shop.services.producers.delete(A, "tailer")
    shop.clock.advance(1)
    second = await shop.services.producers.open(A, "tailer", "run-2")
    assert second.epoch > first.epoch
    with pytest.raises(ProducerFencedError):
        await send(shop, "a", at=0, by="tailer", epoch=first.epoch)
    with pytest.raises(ProducerNotFoundError):
        await shop.services.producers.find(A, "nobody")


async def test_an_epoch_that_was_not_written_is_not_given() -> None:
    shop = await broken(atomic=True)
    first = await shop.services.producers.open(A, "tailer", "run-1")
    write = shop.store.write

    def refused(writes: Any) -> None:
        raise StoreError("the disk is full")

    shop.store.write = refused  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        await shop.services.producers.open(A, "tailer", "run-2")
    shop.store.write = write  # type: ignore[method-assign]
    assert await send(shop, "a", at=0, by="tailer", epoch=first.epoch)


# What transactions store.


async def stored(shop: Wired, *messages: str, tx: Transaction, before: int) -> bool:
    return await shop.messaging.store(A, encoded(messages), tx.write_pointer, before=before)


async def test_a_store_that_is_sent_again_is_there_once_also_after_a_restart(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    assert await stored(shop, "a", "b", tx=tx, before=0)
    assert not await stored(shop, "a", "b", tx=tx, before=0)
    again = await shop.restarted()
    assert not await stored(again, "a", "b", tx=tx, before=0)
    assert await stored(again, "b", "c", tx=tx, before=1)
    with pytest.raises(SequenceGapError, match="has 3 messages stored"):
        await stored(again, "x", tx=tx, before=4)
    await again.commit(tx)
    assert await again.read(A, committed=True) == ["a", "b", "c"]


async def test_stores_count_from_what_was_published_on(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await stored(shop, "a", "b", tx=tx, before=0)
    await shop.messaging.publish(A, [], tx.write_pointer)
    with pytest.raises(SequenceGapError):
        await stored(shop, "c", tx=tx, before=2)
    assert await stored(shop, "c", tx=tx, before=0)


@pytest.mark.parametrize("restarted", [False, True])
async def test_stores_count_from_what_was_published_on_also_where_that_was_rolled_back(
    shop: Wired, restarted: bool
) -> None:
    tx = await shop.transactions.begin()
    await stored(shop, "a", "b", tx=tx, before=0)
    published = await shop.messaging.publish(A, [], tx.write_pointer)
    await shop.messaging.roll_back(A, published)
    if restarted:
        shop = await shop.restarted()
    with pytest.raises(SequenceGapError, match="has 0 messages stored"):
        await stored(shop, "c", tx=tx, before=2)
    assert await stored(shop, "c", tx=tx, before=0)
    assert not await stored(shop, "c", tx=tx, before=0)
    await shop.commit(tx)
    assert await shop.read(A, committed=True) == ["c"]


@pytest.mark.parametrize("made", [set(), {0}])
async def test_a_large_store_that_hbase_cuts_is_a_beginning_and_the_rest_is_sent_again(made: set[int]) -> None:
    shop = await broken(atomic=False)
    tx = await shop.transactions.begin()
    assert await stored(shop, "first", tx=tx, before=0)
    large = ["a" * 600_000, "b" * 600_000, "c" * 600_000]
    shop.store.breaks, shop.store.table_name = [made], "payload"  # type: ignore[attr-defined]
    with pytest.raises(UnknownOutcomeError):
        await stored(shop, *large, tx=tx, before=1)
    await shop.transactions.expire()  # the manager reads its log
    assert await stored(shop, *large, tx=tx, before=1)
    assert not await stored(shop, *large, tx=tx, before=1)
    await shop.commit(tx)
    assert [text[0] for text in await shop.read(A, committed=True)] == ["f", "f", "a", "b", "c"]


async def test_payload_rows_in_doubt_are_decided_about_before_they_are_counted() -> None:
    shop = await broken(atomic=False)
    tx = await shop.transactions.begin()
    assert await stored(shop, "first", tx=tx, before=0)
    shop.store.breaks, shop.store.table_name = [set()], "payload"  # type: ignore[attr-defined]
    with pytest.raises(UnknownOutcomeError):
        await stored(shop, "a", tx=tx, before=1)
    await shop.transactions.expire()  # the manager reads its log
    deleted = shop.store.deleted = []  # type: ignore[attr-defined]
    assert await stored(shop, "a", tx=tx, before=1)
    assert len(deleted) == 1  # what arrives late is hidden by it


async def test_stores_of_one_writer_are_never_written_side_by_side_where_they_are_counted() -> None:
    shop = await broken(atomic=False)
    tx = await shop.transactions.begin()
    await stored(shop, "first", tx=tx, before=0)
    groups = shop.services.writer.groups
    assert all(await asyncio.gather(*(stored(shop, f"m{number}", tx=tx, before=number) for number in range(1, 6))))
    assert shop.services.writer.groups - groups == 5


# What memory, jobs and clocks may do meanwhile.


async def many_small_rows(shop: Wired, by: str) -> None:
    """Rows that are merged once a large one ends their run."""
    for number in range(10):
        await send(shop, f"{by}{number}", at=number, by=by)
        shop.clock.advance(1)


@pytest.mark.parametrize("merged_before", [False, True])
async def test_a_producer_that_was_deleted_does_not_come_back_with_rows_that_are_merged(merged_before: bool) -> None:
    shop = await Wired.start(MemoryStore())
    await shop.topics.create(A, {})
    await many_small_rows(shop, "p")
    for _ in range(10):
        await shop.publish(A, "without a number")
        shop.clock.advance(1)
    if merged_before:
        await shop.publish(
            A, "x" * 20_000
        )  # ends the run, too: what has the last number lies behind the row that had it
    await shop.services.producers.delete(A, "p")
    await many_small_rows(shop, "q")
    await shop.publish(A, "x" * 20_000)  # ends the run
    for _ in range(2):
        await shop.services.writer.each[0].run(lambda group: None)
    again = await shop.restarted()
    assert await lasts(again) == {"q": 9}
    assert await send(again, "anew", at=0)


async def test_a_producer_that_was_deleted_does_not_come_back_with_a_row_of_the_same_group(shop: Wired) -> None:
    await send(shop, "first", at=0)
    calls = send(shop, "a", at=1), shop.services.producers.delete(A, "p"), send(shop, "q", at=0, by="q")
    groups = shop.services.writer.groups
    await asyncio.gather(*calls)
    assert shop.services.writer.groups == groups + 1
    again = await shop.restarted()
    assert await lasts(again) == {"q": 0}
    assert await send(again, "anew", at=0)


async def test_a_producer_that_is_deleted_and_opened_within_a_millisecond_has_another_epoch(shop: Wired) -> None:
    first = await shop.services.producers.open(A, "tailer", "run-1")
    await shop.services.producers.delete(A, "tailer")
    second = await shop.services.producers.open(A, "tailer", "run-2")
    assert second.epoch > first.epoch
    with pytest.raises(ProducerFencedError):
        await send(shop, "a", at=0, by="tailer", epoch=first.epoch)


async def test_a_clock_that_is_set_forward_makes_nobody_idle() -> None:
    shop = await limited(2)
    await send(shop, "a", at=0)
    await send(shop, "b", at=0, by="q")
    shop.clock.step(shop.clock.now_ms() + 2 * NAMED_IDLE_MS)
    await shop.services.producers.save(everything=True)
    with pytest.raises(BusyError):
        await send(shop, "c", at=0, by="r")
    assert not await send(shop, "a", at=0)
    shop.clock.advance(60_000)
    assert await send(shop, "c", at=0, by="r")


class Dropping(MemoryStore):
    """A store that drops rows by itself, whenever it likes."""

    applies_retention = True

    def drop(self) -> None:
        """Now."""
        table = self.table("message")
        self.write([TableWrite("message", [Delete(row.key) for row in table.scan(b"", None)])])


async def test_a_truncation_takes_no_numbers_where_the_store_drops_rows_by_itself() -> None:
    store = Dropping(atomic=False)
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await send(shop, "a", "b", at=0)
    shop.clock.advance(10)
    await shop.services.truncation.truncate(A, shop.clock.now_ms())
    store.drop()
    again = await shop.restarted()
    assert not await send(again, "a", "b", at=0)


async def test_an_entry_is_saved_before_messages_with_a_ttl_of_their_own_may_go() -> None:
    shop = await Wired.start(Dropping(atomic=False))
    await shop.topics.create(A, {})
    await send(shop, "first", at=0)
    await shop.services.producers.save(everything=True)
    short, long = Extras(None, (), None, 40_000), Extras(None, (), None, 900_000_000)
    asked = Sequenced(b"p", 1, 0)
    await shop.messaging.publish_numbered(A, [b"a", b"b"], asked, [short, long])
    shop.clock.advance(20_000)
    assert await shop.services.producers.save() == 0  # the row stays for its longest
    await shop.messaging.publish_numbered(A, [b"c"], Sequenced(b"p", 3, 2), [short])
    shop.clock.advance(20_000)
    assert await shop.services.producers.save() == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_what_rows_say_that_live_for_seconds_is_saved_without_the_job(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a TTL after the first of them. When that fails, it is tried again."""
    store = Dropping(atomic=False)
    shop = await Wired.start(store)
    await shop.topics.create(A, {"ttl": "1"})
    await send(shop, "a", at=0)
    if fails:
        lane = shop.services.producers._writer.lane_of(topic_prefix(*A))
        run, failed = lane.run, list[object]()

        async def first_fails(*asked: Any) -> Any:
            failed.append(asked)
            if len(failed) == 1:
                raise StoreError("the store is gone")
            return await run(*asked)

        monkeypatch.setattr(lane, "run", first_fails)
    shop.clock.advance(500)
    async with asyncio.timeout(60):
        while shop.services.topics.memory.with_unsaved:
            await asyncio.sleep(0.01)
    store.drop()
    again = await shop.restarted()
    assert not await send(again, "a", at=0)


async def test_the_place_at_which_a_producer_was_deleted_is_not_given_out_again_by_a_clock_that_is_behind(
    shop: Wired,
) -> None:
    await send(shop, "a", at=0)
    shop.clock.advance(1_000)
    await shop.services.producers.delete(A, "p")  # takes a place, where nothing lies
    shop.clock.step(shop.clock.now_ms() - 1_000)
    again = await shop.restarted()
    assert await send(again, "b", at=0)
    once_more = await again.restarted()
    assert not await send(once_more, "b", at=0)
    assert await once_more.read(A) == ["a", "b"]


# The memory of all topics.


async def remembering(memory: int) -> Wired:
    shop = await Wired.start(MemoryStore(), settings=Settings(producers=ProducerSettings(memory_max=memory)))
    for title in (A, B):
        await shop.topics.create(title, {})
    return shop


async def test_what_is_saved_of_one_topic_makes_room_for_another_and_is_read_again() -> None:
    shop = await remembering(4)
    for by in "pqr":
        await send(shop, by, at=0, by=by)
    await shop.services.producers.save(everything=True)
    for by in "st":
        assert await send(shop, by, at=0, by=by, title=B)
    assert shop.services.producers.known == 2
    assert not await send(shop, "p", at=0, by="p")
    assert shop.services.producers.known == 5  # a topic that is known may be used
    assert await send(shop, "p1", at=1, by="p")


async def test_new_producers_are_refused_while_all_that_fit_into_memory_are_in_use_and_not_saved() -> None:
    shop = await remembering(3)
    for by in "pqr":
        await send(shop, by, at=0, by=by)
    with pytest.raises(BusyError, match="3 producers are in memory, the limit is 3"):
        await send(shop, "s", at=0, by="s", title=B)
    assert await shop.read(B) == []
    assert await send(shop, "p1", at=1, by="p")
    await shop.services.producers.save(everything=True)
    assert await send(shop, "s", at=0, by="s", title=B)
    assert not await send(shop, "q", at=0, by="q")


async def test_a_topic_that_fills_the_memory_forgets_its_own_idlest_once_it_was_idle_for_a_minute() -> None:
    shop = await remembering(2)
    for by in "pq":
        await send(shop, by, at=0, by=by)
    shop.clock.advance(60_000)
    assert await send(shop, "r", at=0, by="r")
    assert await lasts(shop) == {"q": 0, "r": 0}


@pytest.mark.parametrize("saved", [False, True])
async def test_the_count_of_producers_in_memory_follows_all_that_is_forgotten(saved: bool) -> None:
    shop = await remembering(1_000)
    producers = shop.services.producers
    for by in "pqr":
        await send(shop, by, at=0, by=by)
        await send(shop, by, at=0, by=by, title=B)
    await producers.open(A, "tailer", "run-1")
    await producers.open(A, "tailer", "run-2")
    assert producers.known == 7
    await producers.delete(A, "p")
    assert producers.known == 6
    await send(shop, "q1", at=1, by="q")
    if saved:
        await producers.save(everything=True)
    log = shop.topics.find(A)
    assert log is not None
    log.memory.shed(log)
    del log.memory.recent[A]
    await producers.save(everything=True)
    assert producers.known == 3
    await shop.topics.delete(B)
    assert producers.known == 0
    assert sorted(await lasts(shop)) == ["q", "r", "tailer"]
    assert producers.known == 3
    shop.clock.advance(IDLE_MS)
    await send(shop, "s", at=0, by="s")
    await producers.save(everything=True)
    assert producers.known == 2


async def test_a_save_of_many_producers_is_written_a_part_at_a_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(producers, "SAVE_GROUP_BYTES", producers.ENTRY_BYTES)
    shop = await remembering(1_000)
    for title in (A, B):
        await send(shop, "p", at=0, title=title)
    groups = shop.services.writer.groups
    assert await shop.services.producers.save(everything=True) == 2
    assert shop.services.writer.groups - groups == 2


async def test_the_newest_of_a_producers_rows_counts_in_whichever_part_of_a_spread_topic_it_lies(shop: Wired) -> None:
    for number in range(8):
        await send(shop, f"m{number}", at=number, title=B)
        shop.clock.advance(1)
    shop = await shop.restarted()
    assert await lasts(shop, B) == {"p": 7}
    assert not await send(shop, "m7", at=7, title=B)
    await shop.services.close()


async def test_a_topic_whose_numbers_are_being_written_makes_no_room_for_another() -> None:
    shop = await remembering(1)
    idle = TopicName("shop", "idle")
    await shop.topics.create(idle, {})
    for title in (A, B, idle):
        await shop.services.producers.of_topic(title)
    told = await asyncio.gather(
        send(shop, "a", at=0), send(shop, "b", at=0, by="q", title=B), send(shop, "a", at=0), return_exceptions=True
    )
    assert [each if isinstance(each, bool) else type(each) for each in told] == [True, BusyError, False]
    assert await shop.read(A) == ["a"]
    await shop.services.close()


async def test_what_comes_behind_a_save_in_its_group_is_not_saved_by_it(shop: Wired) -> None:
    await send(shop, "a", at=0)
    log = await shop.topics.open(A)
    await asyncio.gather(shop.services.producers.save(everything=True), send(shop, "b", at=1))
    shown = log.producers.unsaved
    assert (shown, log in log.memory.with_unsaved) == (1, True)
    assert await shop.services.producers.save(everything=True) == 1
    assert log.producers.unsaved == 0
