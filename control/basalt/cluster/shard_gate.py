"""The gate before all shards of this server: a call to a topic or table comes in here, waits while its shard moves, or is refused.

Only three things ask at it, and so everybody does: `TopicLogs`, from which each call gets the log of its topic; `TableCatalog`,
from which each gets its table; and the jobs that change rows by a prefix alone. A call that has come in is a *visit*, where it looks up a
log, changes metadata or writes beside a log; a move waits until all visits are over. Writes behind a log go through the lanes, which are
drained.

A server that has its store to itself holds all shards from the first moment. One that shares it holds none until it has taken them, and knows by
the map who else does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress

from basalt.cluster.owners import OwnersMap
from basalt.cluster.reigns import MOVING_WAIT_MS_MAX, Meeting, Phase, Reign
from basalt.errors import ShardElsewhereError, ShardMovingError
from basalt.runtime.group_commit import NotLoadedError
from basalt_engine.clock import Clock
from basalt_engine.stores.shards import SHARDS, Epochs, shard_of

SEND_AGAIN = "send the same call again after Retry-After"


class ShardGate:
    """The reigns of this server, and the calls that wait for one. Used from the event loop."""

    def __init__(self, clock: Clock, epoch: int = 0, *, shares: bool = False) -> None:
        self._clock = clock
        self.reigns = [Reign(epoch, clock.now_ms(), Phase.ABSENT if shares else Phase.HELD)] * SHARDS
        self.member: str | None = None  # this server's name in the map
        self.owners: OwnersMap | None = (
            None  # the newest map that this server knows; None: it knows none, or needs none
        )
        self._opened = asyncio.Event()  # replaced when it was set: each change of phase wakes who waits, once
        self._visits: Counter[int] = Counter()
        self.changes = (
            0  # of phases, and of the map: whoever derives something from them knows by it when to do so anew
        )
        self.waited_total = 0  # calls that waited
        self.refused_total = 0  # and those that had to be sent again

    # Ways in.

    def is_held(self, shard: int) -> bool:
        """True while calls to the shard are served."""
        return self.reigns[shard].phase is Phase.HELD

    def is_absent(self, prefix: bytes) -> bool:
        """True while this server neither has the shard of this topic or table, nor is about to take or release it."""
        return self.reigns[shard_of(prefix)].phase is Phase.ABSENT

    async def enter(self, shard: int) -> Reign:
        """Come in: at once where the shard is held, and else once it is. `ShardMovingError`: nothing was done."""
        reign = self.reigns[shard]
        if reign.meets(0) is Meeting.SERVED:
            return reign
        self.waited_total += 1
        known = self.owners
        with suppress(TimeoutError):
            async with asyncio.timeout(MOVING_WAIT_MS_MAX / 1_000):
                while not self.is_held(shard):
                    await self._opened.wait()
                    if self.owners is not known and self._is_elsewhere(shard):
                        raise ShardElsewhereError(
                            f"another server has shard {shard} by now; nothing was done", hint=SEND_AGAIN
                        )
        reign = self.reigns[shard]
        if reign.meets(MOVING_WAIT_MS_MAX) is Meeting.SERVED:
            return reign
        self.refused_total += 1
        raise self._refused(shard)

    def _refused(self, shard: int) -> ShardMovingError:
        phase = self.reigns[shard].phase
        if phase is Phase.ABSENT:
            return ShardMovingError(f"this server does not have shard {shard} now; nothing was done", hint=SEND_AGAIN)
        what = f"shard {shard} moves between servers ({phase.value}), and no server serves it now; nothing was done"
        return ShardMovingError(what, hint=SEND_AGAIN)

    def _is_elsewhere(self, shard: int) -> bool:
        owners = self.owners
        return self.reigns[shard].phase is Phase.ABSENT and owners is not None and owners.owner_of(shard) != self.member

    @asynccontextmanager
    async def visit(self, prefix: bytes) -> AsyncIterator[Reign]:
        """Be inside, with what no lane waits for, at the topic or table of this prefix. A visit makes no other one: it may be waited for."""
        shard = shard_of(prefix)
        reign = await self.enter(shard)
        self._visits[shard] += 1
        try:
            yield reign
        finally:
            self.leave((shard,))

    def stay(self, shards: Collection[int]) -> bool:
        """Be inside at all of these shards until `leave`, with something that would be lost if one of them moved; False: one does."""
        if not all(self.is_held(shard) for shard in shards):
            return False
        for shard in shards:
            self._visits[shard] += 1
        return True

    def leave(self, shards: Iterable[int]) -> None:
        """A visit of each of these shards is over."""
        for shard in shards:
            self._visits[shard] -= 1
            if not self._visits[shard]:
                del self._visits[shard]
                self.wake()

    def require(self, prefixes: Iterable[bytes]) -> None:
        """In a stage that writes rows by these prefixes, before it changes anything: `NotLoadedError` while one of the shards moves."""
        for prefix in prefixes:
            shard = shard_of(prefix)
            if not self.is_held(shard):
                raise NotLoadedError(lambda shard=shard: self._held(shard))  # type: ignore[misc]

    async def _held(self, shard: int) -> Callable[[], None]:
        await self.enter(shard)
        return lambda: None

    async def changed(self) -> None:
        """Return once a shard is in another phase, or a visit is over."""
        await self._opened.wait()

    # The map.

    def learn(self, owners: OwnersMap) -> bool:
        """Note a map; False where this server knows one that is as new. A map of a former leader may come late."""
        if self.owners is not None and owners.version <= self.owners.version:
            return False
        self.owners = owners
        self.wake()
        return True

    # What holding does.

    def hold(self, epochs: Epochs) -> None:
        """At the beginning of a term: these shards are held under these epochs."""
        now_ms = self._clock.now_ms()
        for shard, epoch in epochs.items():
            self.reigns[shard] = Reign(epoch, now_ms, unknown_up_to=self.reigns[shard].unknown_up_to)
        self.wake()

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

    def lose(self, shards: Iterable[int]) -> None:
        """They are this server's no more: released, or given to another one."""
        self._become(shards, Phase.ABSENT)

    def give_up(self, epochs: Epochs) -> None:
        """This server is not to take these shards under these epochs or lower ones. `ValueError` for one that it has."""
        for shard, epoch in epochs.items():
            reign = self.reigns[shard]
            if reign.phase is not Phase.ABSENT:
                raise ValueError(f"shard {shard} is {reign.phase.value}, not given up")
            self.reigns[shard] = reign._replace(epoch=max(reign.epoch, epoch))

    def begin(self, epochs: Epochs) -> None:
        """They are being taken, under these epochs."""
        now_ms = self._clock.now_ms()
        for shard, epoch in epochs.items():
            self.reigns[shard] = self.reigns[shard].become(Phase.TAKING, now_ms, epoch)
        self.wake()

    def take(self, shards: Iterable[int]) -> None:
        """Each region knows their epochs: from now on calls are served."""
        self._become(shards, Phase.HELD)

    def _become(self, shards: Iterable[int], phase: Phase) -> None:
        now_ms = self._clock.now_ms()
        for shard in shards:
            self.reigns[shard] = self.reigns[shard].become(phase, now_ms)
        self.wake()

    def wake(self) -> None:
        """Whoever waits here looks again."""
        self.changes += 1
        opened, self._opened = self._opened, asyncio.Event()
        opened.set()
