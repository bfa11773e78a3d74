"""The gate before all shards of this server: a call to a topic or table comes in here, waits while its shard moves, or is refused.

Only three things ask at it, and so everybody does: `TopicLogs`, from which each call gets the log of its topic; `TableCatalog`,
from which each gets its table; and the jobs that change rows by a prefix alone. A call that has come in is a *visit*, where it looks up a
log, changes metadata or writes beside a log; a move waits until all visits are over. Writes behind a log go through the lanes, which are
drained.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress

from basalt.cluster.owners import OwnersMap
from basalt.cluster.reigns import MOVING_WAIT_MS_MAX, Meeting, Phase, Reign
from basalt.errors import ShardMovingError
from basalt.runtime.group_commit import NotLoadedError
from basalt_engine.clock import Clock
from basalt_engine.stores.shards import SHARDS, Epochs, shard_of


class ShardGate:
    """The reigns of this server, and the calls that wait for one. Used from the event loop."""

    def __init__(self, clock: Clock, epoch: int = 0) -> None:
        self._clock = clock
        self.reigns = [Reign(epoch, clock.now_ms())] * SHARDS
        self.owners: OwnersMap | None = (
            None  # the newest map that this server knows; None: it knows none, or needs none
        )
        self._opened = asyncio.Event()  # replaced when it was set: each change of phase wakes who waits, once
        self._visits: Counter[int] = Counter()
        self.waited_total = 0  # calls that waited
        self.refused_total = 0  # and those that had to be sent again

    # Ways in.

    def is_held(self, shard: int) -> bool:
        """True while calls to the shard are served."""
        return self.reigns[shard].phase is Phase.HELD

    async def enter(self, shard: int) -> Reign:
        """Come in: at once where the shard is held, and else once it is. `ShardMovingError`: nothing was done."""
        reign = self.reigns[shard]
        if reign.meets(0) is Meeting.SERVED:
            return reign
        self.waited_total += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(MOVING_WAIT_MS_MAX / 1_000):
                while not self.is_held(shard):
                    await self._opened.wait()
        reign = self.reigns[shard]
        if reign.meets(MOVING_WAIT_MS_MAX) is Meeting.SERVED:
            return reign
        self.refused_total += 1
        raise ShardMovingError(
            f"shard {shard} moves between servers ({reign.phase.value}), and no server serves it now; nothing was done",
            hint="send the same call again after Retry-After",
        )

    @asynccontextmanager
    async def visit(self, prefix: bytes) -> AsyncIterator[Reign]:
        """Be inside, with what no lane waits for, at the topic or table of this prefix. A visit makes no other one: it may be waited for."""
        shard = shard_of(prefix)
        reign = await self.enter(shard)
        self._visits[shard] += 1
        try:
            yield reign
        finally:
            self._visits[shard] -= 1
            if not self._visits[shard]:
                del self._visits[shard]
                self._wake()

    def require(self, prefixes: Iterable[bytes]) -> None:
        """In a stage that writes rows by these prefixes, before it changes anything: `NotLoadedError` while one of the shards moves."""
        for prefix in prefixes:
            shard = shard_of(prefix)
            if not self.is_held(shard):
                raise NotLoadedError(lambda shard=shard: self._held(shard))  # type: ignore[misc]

    async def _held(self, shard: int) -> Callable[[], None]:
        await self.enter(shard)
        return lambda: None

    # What a move does.

    def hold(self, epochs: Epochs) -> None:
        """At the beginning of a term: these shards are held under these epochs."""
        now_ms = self._clock.now_ms()
        for shard, epoch in epochs.items():
            self.reigns[shard] = Reign(epoch, now_ms, unknown_up_to=self.reigns[shard].unknown_up_to)

    def close(self, shards: Iterable[int]) -> None:
        """From now on calls to these shards wait."""
        self._become(shards, Phase.RELEASING)

    async def left(self, shards: Collection[int]) -> None:
        """Wait until all visits of these shards are over."""
        while any(shard in self._visits for shard in shards):
            await self._opened.wait()

    def call_off(self, shards: Iterable[int]) -> None:
        """They are not moved after all."""
        self._become(shards, Phase.HELD)

    def forgot(self, shards: Iterable[int], last_pointer: int) -> None:
        """Note that what was known of their topics is gone."""
        for shard in shards:
            self.reigns[shard] = self.reigns[shard].forgot(last_pointer)

    def release(self, shards: Iterable[int]) -> None:
        """Nothing is under way, and nothing is known any more: they can be taken."""
        self._become(shards, Phase.TAKING)

    def take(self, epochs: Epochs) -> None:
        """Each region knows the new epochs: from now on calls are served."""
        now_ms = self._clock.now_ms()
        for shard, epoch in epochs.items():
            self.reigns[shard] = self.reigns[shard].become(Phase.HELD, now_ms, epoch)
        self._wake()

    def _become(self, shards: Iterable[int], phase: Phase) -> None:
        now_ms = self._clock.now_ms()
        for shard in shards:
            self.reigns[shard] = self.reigns[shard].become(phase, now_ms)
        self._wake()

    def _wake(self) -> None:
        opened, self._opened = self._opened, asyncio.Event()
        opened.set()
