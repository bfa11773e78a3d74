"""Following a log under all that can happen: pushes that are lost, doubled, early, late or damaged, new links, other leaders, stores that fail, and log snapshots.

Whatever came before, in the end the member's state is the log's, and its owner has heard all of it once and in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.cluster.links.link import Link
from basalt.errors import UnavailableError
from basalt.runtime.write_lanes import WriteLanes
from basalt.server.wiring import BUCKETS_EMBEDDED
from basalt.transactions import followed
from basalt.transactions.follow_calls import FOLLOW, Entries, Standing
from basalt.transactions.followed import FollowedTransactions
from basalt.transactions.log.entry_format import encode_entry
from basalt.transactions.log.transaction_log import TransactionLog
from basalt.transactions.protocol import Expect, Recovered, Told
from basalt.transactions.rules.edits import Committed
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Row
from tests.control.cluster.links.link_pair import until
from tests.control.transactions.following import TestLinks
from tests.control.transactions.test_tellings import ACTS, Owner, no_more_of
from tests.control.transactions.written_log import Author

STEPS = st.one_of(
    st.tuples(st.just("act"), ACTS),
    st.tuples(st.just("act"), ACTS),
    st.tuples(st.just("push"), st.tuples(st.integers(0, 6), st.integers(0, 4))),
    st.tuples(st.just("push"), st.tuples(st.integers(0, 6), st.integers(0, 4))),
    st.tuples(st.just("all"), st.none()),
    st.tuples(st.just("damaged"), st.integers(0, 3)),
    st.tuples(st.just("misfit"), st.none()),
    st.tuples(st.just("link"), st.booleans()),
    st.tuples(st.just("snapshot"), st.none()),
    st.tuples(st.just("run"), st.integers(0, 4)),
    st.tuples(st.just("fail"), st.integers(1, 3)),
)


class FlakyTable:
    """The log's table, of which some reads fail."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.failures = 0
        self.name = table.name

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("the region is away")
        return cast("Iterator[Row]", self._table.scan(*args, **options))


class OwnLink:
    """A link to a coordinator of this process, which answers at once, or not at all."""

    def __init__(self, author: Author, answers: bool) -> None:
        self.is_open, self._author, self._answers = True, author, answers

    async def call(self, kind: Any, question: Any, timeout_ms: float) -> Standing:
        assert kind is FOLLOW
        if not self._answers:
            self.is_open = False
            raise UnavailableError("the link broke")
        return Standing(1, len(self._author.entries))


class Scene:
    """A log, and a member that follows it."""

    def __init__(self, kept: int) -> None:
        store = MemoryStore(atomic=False)
        self.author, self.links, self.owner = Author(store, kept), TestLinks(), Owner()
        self.table = FlakyTable(store.another().table("transaction_log"))
        log = TransactionLog(cast("Any", self.table), self.author.limits)
        lanes = WriteLanes.of(store, self.author.clock, BUCKETS_EMBEDDED)
        self.manager = FollowedTransactions(store, self.author.clock, lanes, log, self.links.links)
        self.manager.tells(self.hear)
        self.recovered = self.misfits = self.twice = 0
        self.ever_expected: set[int] = set()

    def hear(self, told: Sequence[Told]) -> None:
        if any(isinstance(each, Recovered) for each in told):
            self.recovered += 1
            self.owner = Owner()
            self.owner.closed = {
                each.id for each in self.manager.state.transactions() if each.doomed or each.state.name == "ABORTING"
            }
        self.owner.hear(list(told))
        for each in told:
            if isinstance(each, Expect):
                self.twice += each.transaction_id in self.ever_expected
                self.ever_expected.add(each.transaction_id)

    def push(self, first: int, entries: Sequence[bytes]) -> None:
        self.manager._pushed("leader", Entries(first, tuple(entries)))
        self.check()

    def check(self) -> None:
        if self.manager.is_known:
            applied = sum(
                len(self.author.log.decoded(0, each)[1]) for each in self.author.entries[: self.manager.applied]
            )
            assert self.manager.state.edits_applied == applied

    async def step(self, what: str, how: Any) -> None:
        entries = self.author.entries
        if what == "act":
            self.author.act(*how)
        elif what == "push":
            back, count = how
            first = max(0, len(entries) - back)
            self.push(first, entries[first : first + count])
        elif what == "all":
            self.push(self.manager.applied, entries[self.manager.applied :])
        elif what == "damaged" and entries:
            first = max(0, len(entries) - 1 - how)
            self.push(first, [entries[first][:-1] + bytes([entries[first][-1] ^ 1])])
        elif what == "misfit" and self.manager.is_known and self.manager.applied < len(entries):
            self.push(self.manager.applied, [self.misfit()])
            self.misfits += not self.manager.is_known
        elif what == "link":
            self.links.to_leader = cast("Link", OwnLink(self.author, how))
            self.manager._linked()
        elif what == "snapshot":
            self.author.snapshot()
        elif what == "fail":
            self.table.failures = how
        elif what == "run":
            for _ in range(how):
                await asyncio.sleep(0)
            self.check()

    def misfit(self) -> bytes:
        """An entry that begins well, and then says what cannot be."""
        state = self.manager.state
        began = state.begin(self.author.clock.now_ms()).edits
        return encode_entry(state.edits_applied, [*began, Committed(1, 0, None)])

    async def end(self) -> None:
        self.table.failures = 0
        self.links.to_leader = cast("Link", OwnLink(self.author, answers=True))
        self.manager._linked()
        await until(lambda: self.manager._reading is None)


async def story(steps: list[tuple[str, Any]], kept: int) -> None:
    scene = Scene(kept)
    scene.manager.start()
    for step in steps:
        await scene.step(*step)
    await scene.end()
    assert scene.manager.state.image() == scene.author.state.image()
    assert scene.manager.current() == scene.author.state.view()
    assert scene.recovered == 1 + scene.misfits, "an owner never forgets what it was told"
    assert scene.twice == 0, "rows of a commit are placed once"
    if not scene.misfits:
        no_more_of(scene.manager.state, scene.owner)
    await scene.manager.close()


@given(st.lists(STEPS, max_size=60), st.sampled_from([0, 3, 1_000]))
def test_in_the_end_a_member_knows_what_the_log_says(steps: list[tuple[str, Any]], kept: int) -> None:
    with (
        patch.object(followed, "READ_AGAIN_MS_MIN", 0),
        patch.object(followed, "READ_BYTES_MAX", 200),
        patch.object(followed, "APPLIED_TOGETHER_MAX", 2),
        patch.object(followed, "AHEAD_BYTES_MAX", 400),
    ):
        asyncio.run(story(steps, kept))


@pytest.mark.parametrize("kept", [0, 3, 1_000])
def test_a_member_that_has_missed_what_a_snapshot_stands_for_reads_all(kept: int) -> None:
    async def all_of_it() -> None:
        scene = Scene(kept)
        scene.manager.start()
        await scene.step("link", True)
        await until(lambda: scene.manager.is_known)
        in_flight = scene.manager.state.in_flight
        for number in range(8):
            scene.author.act((0, 0), (2, 0), (19, number))
        scene.author.snapshot()
        await scene.end()
        assert scene.manager.state.image() == scene.author.state.image()
        assert scene.manager.state.in_flight is in_flight, "that is of this process, and in no log"
        assert scene.manager.whole_reads == (1 if kept == 1_000 else 2)
        no_more_of(scene.manager.state, scene.owner)
        await scene.manager.close()

    asyncio.run(all_of_it())
