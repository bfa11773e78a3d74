"""Whatever happened to two topics, and wherever a crash cuts the clean-up short: readers see the same before and after.

A reader of committed messages sees exactly the same. A plain reader loses nothing but rolled back messages and those of
failed writers. A reader under a snapshot that it has held for long may get past a failed writer at which it had to stop.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.catalog.topics import TopicName
from basalt.settings import MessagingSettings, Settings, TransactionSettings
from basalt_engine.clock import ManualClock
from basalt_engine.retention import OnInvalid
from basalt_engine.snapshot import TransactionSnapshot
from tests.control.retention.crashing_store import CrashingStore
from tests.control.retention.readers import HIDDEN, HOUR_MS, LIFETIME_MS, Seen, rows, seen
from tests.wiring import A, B, Wired


class Shop:
    """Two topics, one of them spread, and the snapshots that somebody holds."""

    def __init__(self, wired: Wired, store: CrashingStore, given: Settings) -> None:
        self.wired = wired
        self.store = store
        self.given = given
        self.held: list[TransactionSnapshot] = []
        self.retained: set[TopicName] = set()  # what retention kept once it keeps until it expires

    @classmethod
    async def open(cls, atomic: bool, cached: bool) -> Shop:
        given = Settings(
            transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS),
            messaging=MessagingSettings(cache_bytes_max=(1 << 20) if cached else 0),
        )
        store = CrashingStore(atomic)
        shop = cls(await Wired.start(store, settings=given), store, given)
        await shop.wired.topics.create(A, {"ttl": "7200"})
        await shop.wired.topics.create(B, {"ttl": "7200", "spread": "3"})
        return shop

    async def restart(self) -> None:
        self.store.mutations_left = None
        self.wired = await Wired.start(self.store, self.wired.clock, settings=self.given)

    async def do(self, what: str, title: TopicName, size: int) -> None:
        wired = self.wired
        if what == "publish":
            await wired.publish(title, *("plain" for _ in range(size)))
        elif what in ("commit", "abort", "invalidate", "open"):
            await self._transact(what, title, size)
        elif what == "wait":
            assert isinstance(wired.clock, ManualClock)
            wired.clock.advance(size * size * 60_000)
        elif what == "hold":
            self.held = [*self.held, wired.transactions.manager.current()][-3:]
        elif what == "keep":
            metadata = (await wired.topics.get(title)).metadata
            self.retained.add(title)
            kept = "drop" if metadata.on_invalid is OnInvalid.RETAIN else "retain"
            await wired.topics.update(
                title, {"onInvalid": kept, "ttl": str(size * 1_000), "spread": str(metadata.spread)}
            )
        elif what == "recreate":
            await wired.topics.delete(title)
            if size > 3:
                await self.clean()
            await wired.topics.create(title, {"ttl": "7200"})
        elif what == "restart":
            await self.restart()
        else:
            await self.clean()

    async def _transact(self, end: str, title: TopicName, size: int) -> None:
        wired = self.wired
        tx = await wired.transactions.begin()
        await wired.publish(title, *("early" for _ in range(size)), tx=tx)
        await wired.store_aside(title, "aside", tx=tx)
        if size % 2:
            await wired.messaging.publish(title, [], tx.write_pointer)
            await wired.store_aside(title, "more", tx=tx)
        published = await wired.messaging.publish(title, [b"mistake"], tx.write_pointer)
        if size % 3 == 0:
            await wired.messaging.roll_back(title, published)
        if end != "open":
            await getattr(wired.transactions, end)(tx.id)

    async def clean(self, crash_after: int | None = None) -> None:
        """Run retention, perhaps up to a crash; then compare what readers saw before and see now."""
        before = [await self._seen(title) for title in (A, B)]
        self.store.mutations_left = crash_after
        run = await self.wired.services.scheduler.run_now("retention")
        assert crash_after is not None or run.outcome == "ok", run
        if crash_after is not None:
            await self.restart()
        for title, earlier in zip((A, B), before, strict=True):
            now = await self._seen(title)
            if earlier is not None and now is not None:
                self._compare(earlier, now)

    async def _seen(self, title: TopicName) -> Seen | None:
        exists = title.name in await self.wired.topics.catalog.list(title.namespace)
        return await seen(self.wired, title, self.held) if exists else None

    def _compare(self, before: Seen, after: Seen) -> None:
        kept = [message[:2] for message in before.plain if message[2] not in HIDDEN]
        left = [message[:2] for message in after.plain]
        assert after.committed == before.committed
        assert [message[:2] for message in after.plain if message[2] not in HIDDEN] == kept
        assert left == [message[:2] for message in before.plain if message[:2] in set(left)]
        for earlier, now in zip(before.snapshots, after.snapshots, strict=True):
            assert now[: len(earlier)] == earlier
            assert set(now) <= set(kept)

    async def check_end(self) -> None:
        """Nothing hidden is left where it is to be dropped, and nothing at all once everything has expired."""
        await self.clean()
        for title in (A, B):
            states = {state for *_, state in (await seen(self.wired, title)).plain}
            assert "invalid" not in states
            assert "rolled back" not in states or title in self.retained
        assert isinstance(self.wired.clock, ManualClock)
        self.wired.clock.advance(100 * HOUR_MS)
        await self.clean()
        await self.clean()
        assert (rows(self.wired, "message"), rows(self.wired, "payload")) == ([], [])


words = ["publish", "commit", "abort", "invalidate", "open", "wait", "hold", "keep", "recreate", "restart", "clean"]
steps = st.lists(st.tuples(st.sampled_from(words), st.sampled_from([A, B]), st.integers(1, 7)), max_size=15)


async def story(taken: list[tuple[str, TopicName, int]], crash_after: int | None, atomic: bool, cached: bool) -> None:
    shop = await Shop.open(atomic, cached)
    for what, title, size in taken:
        await shop.do(what, title, size)
    if crash_after is not None:
        await shop.clean(crash_after)
    await shop.check_end()


@pytest.mark.parametrize("cached", [True, False])
@settings(max_examples=75, deadline=None)
@given(steps)
def test_readers_see_the_same_before_and_after(cached: bool, taken: list[tuple[str, TopicName, int]]):
    asyncio.run(story(taken, None, True, cached))


@pytest.mark.parametrize("atomic", [True, False])
@settings(max_examples=75, deadline=None)
@given(steps, st.integers(0, 40))
def test_a_crash_at_any_write_leaves_readers_what_they_saw(
    atomic: bool, taken: list[tuple[str, TopicName, int]], crash_after: int
):
    asyncio.run(story(taken, crash_after, atomic, True))
