"""Advancing through topics and splitting ranges: against a list of what committed readers see, with and without the index."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.bodies.messages import RecordIn
from basalt.api.markers import NOTHING_KNOWN, Marker, MarkerState, apply, decode_marker, merged
from basalt.errors import BusyError, ConflictError, InputError, MarkerRefusedError
from basalt.messaging import index
from basalt.messaging import ranges as range_scan
from basalt.messaging.log import stored_log
from basalt.messaging.ranges import MESSAGE_WEIGHT_BYTES, Ranges
from basalt.messaging.read import log_reader
from basalt.messaging.read.log_reader import before
from basalt_engine.records import RecordKind
from basalt_engine.stores.memory import MemoryStore
from tests.control.messaging.test_markers import emit, work
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


class Seen(NamedTuple):
    """A message, or a marker, as a committed reader gets it."""

    id: bytes
    length: int
    marker: Marker | None


async def seen_by_all(shop: Wired) -> list[Seen]:
    """All that a committed reader gets up to the stable end."""
    found: list[Seen] = []
    start: bytes | None = None
    while True:
        page = await shop.messaging.fetch(A, start, start is None, committed=True, markers=True)
        for piece in page.slices:
            kind, marker = piece.batch.kind, None
            if kind is not RecordKind.USER:
                marker = decode_marker(kind.name.lower(), bytes(piece.payloads()[0]))
            found += [
                Seen(message_id, len(payload), marker)
                for message_id, payload in zip(piece.ids(), piece.payloads(), strict=True)
            ]
        if not page.slices:
            return found
        start = page.next_id


def fold(items: list[Seen]) -> MarkerState:
    state = NOTHING_KNOWN
    for item in items:
        if item.marker is not None:
            state = apply(state, item.marker, int.from_bytes(item.id[:8], "big"))
    return state


class Expected(NamedTuple):
    through: bytes
    messages: int
    payload_bytes: int
    said: MarkerState


def expected(items: list[Seen], after: bytes, end: bytes, messages_max: int, bytes_max: int) -> Expected:
    """What `advance` must answer, by going through a list."""
    ahead = [item for item in items if after < item.id <= end]
    messages = payload_bytes = 0
    through = max(after, end)
    for item in ahead:
        if item.marker is not None:
            continue
        if messages and (messages + 1 > messages_max or payload_bytes + item.length > bytes_max):
            through = before(item.id)
            break
        messages += 1
        payload_bytes += item.length
    return Expected(through, messages, payload_bytes, fold([item for item in ahead if item.id <= through]))


@contextmanager
def small_blocks():
    """Blocks and pages so small that a short log has many."""
    with ExitStack() as stack:
        for module, name, value in [
            (index, "BLOCK_MESSAGES", 5), (range_scan, "BLOCK_MESSAGES", 5),
            (index, "BLOCK_BYTES", 60), (range_scan, "BLOCK_BYTES", 60),
            (index, "SPLIT_FRACTION_MIN", 3), (index, "BLOCK_SKIPPED_MAX", 2), (range_scan, "BLOCK_SKIPPED_MAX", 2),
            (log_reader, "LOOK_ROWS_MAX", 3), (stored_log, "PAGE_ROWS", 3), (index, "BLOCK_ENTRIES_MAX", 24),
        ]:  # fmt: skip
            stack.enter_context(mock.patch.object(module, name, value))
        yield


STEPS = ["plain", "plain", "single", "ttl", "stored", "stored twice", "early", "aborted", "invalid", "long", "marker", "end", "one-shot", "tick"]  # fmt: skip


async def write_log(shop: Wired, chance: random.Random, steps: list[str]) -> None:
    """A log of these steps. Some transactions stay open for a while, or to the end."""
    open_ones = []
    for number, step in enumerate(steps):
        messages = ["x" * chance.randrange(20) for _ in range(chance.randrange(1, 9))]
        if step == "plain":
            await shop.publish(A, *messages)
        elif step == "single":
            await shop.publish(A, messages[0])
        elif step == "ttl":
            records = [
                RecordIn(message.encode(), None, (), None, chance.choice([None, 40, 4_000])) for message in messages
            ]
            await shop.messaging.publish_records(A, records)
        elif step in ("stored", "stored twice", "aborted"):
            tx = await shop.transactions.begin()
            await shop.store_aside(A, *messages, tx=tx)
            if step == "stored twice":
                await shop.store_aside(A, *messages[::-1], tx=tx)
            if step == "aborted":
                await shop.publish(A, *messages, tx=tx)
                await shop.transactions.abort(tx.id)
            else:
                await shop.transactions.commit(tx.id, work(("a", number), messages=messages[:1]))
        elif step in ("early", "invalid", "long"):
            tx = await shop.transactions.begin()
            await shop.publish(A, *messages, tx=tx)
            open_ones.append((tx, step))
        elif step == "marker":
            with suppress(MarkerRefusedError):  # it has ended
                await emit(shop, "b", number, 2)
        elif step == "end":
            await emit(shop, "b", None, 2)
        elif step == "one-shot":
            await shop.transactions.one_shot(work(messages=messages))
        else:
            shop.clock.advance(chance.randrange(50))
        while open_ones and chance.random() < 0.4:
            tx, how = open_ones.pop(chance.randrange(len(open_ones)))
            await (shop.transactions.commit if how == "early" else shop.transactions.invalidate)(tx.id)
    if open_ones and chance.random() < 0.7:
        for tx, _ in open_ones:
            await shop.transactions.abort(tx.id)


def places(chance: random.Random, items: list[Seen], end: bytes | None) -> bytes | None:
    """Somewhere in the log: at a message, between messages, before all, behind all."""
    kind = chance.random()
    if kind < 0.1 or not items:
        return None
    item = chance.choice(items).id
    if kind < 0.5:
        return item
    if kind < 0.7:
        return before(item)
    if kind < 0.9:
        return item[:10] + b"\xff" * 10
    return end or item


async def check_everywhere(shop: Wired, chance: random.Random) -> None:
    indexed = shop.services.ranges
    plain = Ranges(
        shop.store, shop.clock, shop.topics, indexed._reader, indexed._writers, indexed._ends, indexed._first_unstable
    )
    items = await seen_by_all(shop)
    end = (await indexed.stable_end(A)).id
    assert not items or items[-1].id <= end
    for _ in range(12):
        after, through = places(chance, items, end), places(chance, items, end)
        messages_max = chance.choice([None, 1, 2, 5, 11, 1_000])
        bytes_max = chance.choice([None, None, 1, 17, 90, 10_000])
        bound = end if through is None else min(end or b"", through)
        wanted = expected(items, after or b"", bound or b"", messages_max or 1 << 60, bytes_max or 1 << 60)
        shop.topics.memory.forget_all_blocks()
        for ranges in (plain, indexed, indexed):
            found = await ranges.advance(A, after, through=through, messages_max=messages_max, bytes_max=bytes_max)
            assert Expected(found.through or b"", found.messages, found.payload_bytes, found.marker_state) == wanted
            assert found.at_end == (wanted.through == max(after or b"", bound or b""))
    await check_union(shop, items, end, chance)
    await check_splits(shop, items, end, chance)


async def check_union(shop: Wired, items: list[Seen], end: bytes | None, chance: random.Random) -> None:
    """Advancing again and again comes by everything once."""
    at, state, messages = None, NOTHING_KNOWN, 0
    for _ in range(len(items) + 2):
        found = await shop.services.ranges.advance(A, at, messages_max=chance.randrange(1, 9))
        assert found.through is None or at is None or found.through >= at
        at, state, messages = found.through, merged(state, found.marker_state), messages + found.messages
        if found.at_end:
            break
    assert (at, state, messages) == (end, fold(items), sum(item.marker is None for item in items))


async def check_splits(shop: Wired, items: list[Seen], end: bytes | None, chance: random.Random) -> None:
    """Splits are the range, in order, and alike with and without the index."""
    ranges = shop.services.ranges
    after, through, count = places(chance, items, end), places(chance, items, end) or end, chance.randrange(1, 12)
    if through is None or (after or b"") > through or (end is not None and through > end):
        return
    found = (await ranges.splits(A, after, through, count)).splits
    shop.topics.memory.forget_all_blocks()
    assert (await ranges.splits(A, after, through, count)).splits == found
    assert [part.after for part in found] == [after, *(part.through for part in found[:-1])][: len(found)]
    assert (found[-1].through == through) if found else (after or b"") == through
    inside = [item for item in items if (after or b"") < item.id <= through and item.marker is None]
    assert len(found) <= count
    for part in found:
        own = [item for item in inside if (part.after or b"") < item.id <= part.through]
        assert (part.messages, part.bytes) == (len(own), sum(item.length for item in own))
        share = sum(item.length + MESSAGE_WEIGHT_BYTES for item in inside) / count
        assert part.bytes + MESSAGE_WEIGHT_BYTES * part.messages <= 2 * (share + 20 + MESSAGE_WEIGHT_BYTES)
    assert all(part.messages for part in found) or len(found) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=40), st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_ranges_are_what_a_reader_sees(steps: list[str], seed: int, atomic: bool, cached: bool):
    async def story() -> None:
        chance = random.Random(seed)
        shop = await Wired.start(MemoryStore(atomic=atomic), cached=cached)
        await shop.topics.create(A, {"ttl": "3", "tasks": "2", "spread": "2"})
        half = len(steps) // 2
        await write_log(shop, chance, steps[:half])
        await check_everywhere(shop, chance)
        await write_log(shop, chance, steps[half:])
        await check_everywhere(shop, chance)
        shop.clock.advance(chance.choice([1, 100, 2_800, 3_500]))  # messages expire, with the index as it is
        await check_everywhere(shop, chance)

    with small_blocks():
        asyncio.run(story())


class CountingStore(MemoryStore):
    """Counts the rows of messages and payloads that are read."""

    rows = 0

    def table(self, name: str):
        table = super().table(name)
        return CountingTable(table, self) if name in ("message", "payload") else table


class CountingTable:
    def __init__(self, inner, store: CountingStore) -> None:
        self._inner = inner
        self._store = store

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def scan(self, *args, **kwargs):
        for row in self._inner.scan(*args, **kwargs):
            self._store.rows += 1
            yield row


async def counting(rows: int, messages: int) -> tuple[Wired, CountingStore]:
    store = CountingStore()
    shop = await Wired.start(store, cached=False)
    await shop.topics.create(A, {})
    for _ in range(rows):
        await shop.publish(A, *["x" * 10] * messages)
        shop.clock.advance(1)
    return shop, store


async def test_what_is_known_is_not_read_again():
    shop, store = await counting(100, 1_000)
    whole = await shop.services.ranges.advance(A, None)
    assert (whole.messages, whole.payload_bytes, whole.at_end) == (100_000, 1_000_000, True)
    store.rows = 0
    assert await shop.services.ranges.advance(A, None) == whole
    assert store.rows <= 2, "the newest row, at most"
    part = await shop.services.ranges.advance(A, None, messages_max=50_500)
    assert part.messages == 50_500
    parts = (await shop.services.ranges.splits(A, None, whole.through, 4)).splits
    assert [each.messages for each in parts] == [25_000] * 4
    assert store.rows < 60, "a block or two for each cut"


async def test_a_reference_is_cut_within_and_read_from_there():
    shop, store = await counting(0, 0)
    tx = await shop.transactions.begin()
    for _ in range(50):
        await shop.store_aside(A, *["x" * 10] * 1_000, tx=tx)
        shop.clock.advance(1)
    await shop.transactions.commit(tx.id)
    at, found = None, []
    while not found or not found[-1].at_end:
        found.append(await shop.services.ranges.advance(A, at, messages_max=7_000))
        at = found[-1].through
    assert [each.messages for each in found] == [7_000] * 7 + [1_000]
    shop.topics.memory.forget_all_blocks()
    store.rows = 0
    last = await shop.services.ranges.advance(A, found[-2].through)
    assert (last.messages, last.through) == (1_000, found[-1].through)
    assert store.rows < 8, "the first 49 payload rows are not read for the last"


@pytest.mark.parametrize(
    ("limit", "value"), [("SCAN_ROWS_MAX", 12), ("SCAN_ROWS_MAX", 2), ("SCAN_BYTES_MAX", 2_000), ("SCAN_BYTES_MAX", 1)]
)
async def test_one_call_reads_a_bounded_part_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
):
    shop, _ = await counting(40, 100)
    monkeypatch.setattr(range_scan, limit, value)
    monkeypatch.setattr(range_scan, "SKIPS_MAX", 2)
    at, messages, calls = None, 0, 0
    while True:
        found = await shop.services.ranges.advance(A, at)
        at, messages, calls = found.through, messages + found.messages, calls + 1
        if found.at_end:
            break
    assert (messages, calls > 1) == (4_000, True)
    assert (await shop.services.ranges.advance(A, None)).messages == 4_000, "all is known now"


async def test_splitting_what_was_never_read_gets_further_with_every_try(monkeypatch: pytest.MonkeyPatch):
    shop, _ = await counting(40, 100)
    end = (await shop.services.ranges.stable_end(A)).id
    assert end is not None
    monkeypatch.setattr(range_scan, "SCAN_ROWS_MAX", 12)
    tries = 0
    while True:
        try:
            found = await shop.services.ranges.splits(A, None, end, 3)
            break
        except BusyError:
            tries += 1
    assert 0 < tries < 10
    assert sum(each.messages for each in found.splits) == 4_000
    uncommitted = await shop.services.ranges.splits(A, None, end, 3, committed=False)
    assert uncommitted.splits == found.splits


async def test_a_range_that_is_not_settled_is_not_split(shop: Wired):
    await shop.publish(A, "one")
    end = (await shop.services.ranges.stable_end(A)).id
    assert end is not None
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    newest = (await shop.services.ranges.stable_end(A, committed=False)).id
    assert newest is not None
    with pytest.raises(ConflictError, match="stable end"):
        await shop.services.ranges.splits(A, None, newest, 2)
    with pytest.raises(InputError, match="before it begins"):
        await shop.services.ranges.splits(A, newest, end, 2)
    assert (await shop.services.ranges.splits(A, end, end, 2)).splits == []
    assert [each.messages for each in (await shop.services.ranges.splits(A, None, newest, 2, committed=False)).splits] == [1, 1]  # fmt: skip


async def test_who_sees_everything_counts_everything(shop: Wired):
    await shop.publish(A, "one")
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", "too", tx=tx)
    await shop.publish(A, "behind")
    ranges = shop.services.ranges
    assert (await ranges.advance(A, None)).messages == 1
    found = await ranges.advance(A, None, committed=False)
    assert (found.messages, found.at_end) == (4, True)
    assert (await ranges.advance(A, None)).messages == 1, "what others see is in no index"


async def test_rows_that_hold_nothing_are_passed_once(shop: Wired):
    await shop.publish(A, "one")
    seen = await shop.services.ranges.advance(A, None)
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    await shop.transactions.invalidate(tx.id)
    await emit(shop, "a", 7)
    found = await shop.services.ranges.advance(A, seen.through)
    assert (found.messages, found.at_end, found.marker_state.task_count) == (0, True, 2)
    assert found.through == (await shop.services.ranges.stable_end(A)).id > seen.through
    again = await shop.services.ranges.advance(A, found.through)
    assert (again.through, again.messages, again.marker_state, again.at_end) == (found.through, 0, NOTHING_KNOWN, True)
    beyond = b"\xff" * 20
    assert (await shop.services.ranges.advance(A, beyond)).through == beyond


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "still there"])
async def test_a_reader_is_told_that_messages_expired_before_it_came(removed: bool):
    shop = await Wired.start()
    await shop.topics.create(A, {"ttl": "1000"})
    ranges = shop.services.ranges
    assert not (await ranges.advance(A, None)).expired
    await shop.publish(A, "one")
    first = await ranges.advance(A, None)
    await shop.publish(A, "two")
    both = await ranges.advance(A, None)
    assert not first.expired and not both.expired
    shop.clock.advance(2_000_000)
    if removed:
        await shop.services.scheduler.run_now("retention")
        shop = await shop.restarted()
        ranges = shop.services.ranges
    await shop.publish(A, "three")
    for after, expired in [(None, True), (first.through, True), (both.through, False)]:
        found = await ranges.advance(A, after)
        assert (found.expired, found.messages) == (expired, 1), after
    shop.clock.advance(2_000_000)
    await shop.services.scheduler.run_now("retention")
    assert not (await ranges.advance(A, found.through)).expired, "it has read all there was, however long ago"
    assert (await ranges.advance(A, both.through)).expired


async def test_a_longer_ttl_brings_nothing_back_that_was_removed():
    shop = await Wired.start()
    await shop.topics.create(A, {"ttl": "1000"})
    await shop.publish(A, "one")
    assert (await shop.services.ranges.advance(A, None)).messages == 1
    shop.clock.advance(2_000_000)
    await shop.services.scheduler.run_now("retention")
    await shop.topics.update(A, {"ttl": "10000"})
    assert (await shop.services.ranges.advance(A, None)).messages == 0


async def test_a_topic_that_was_made_anew_has_an_index_of_its_own(shop: Wired):
    await shop.publish(A, "one")
    old = await shop.services.ranges.advance(A, None)
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    found = await shop.services.ranges.advance(A, None)
    assert (found.messages, found.generation, old.generation) == (0, 2, 1)
    assert len(shop.topics.memory.detailed) == 1
