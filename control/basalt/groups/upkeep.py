"""The upkeep of groups, a job: gaps in which nothing lives any more are closed; groups whose topic is gone, or that nobody uses, are found and forgotten."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from basalt.catalog.topics import title_of
from basalt.errors import TopicNotFoundError
from basalt.groups.acknowledgements import Acknowledging
from basalt.groups.live_group import Desk, options_of
from basalt.groups.live_groups import LiveGroups
from basalt.messaging.read.log_reader import before, end_of
from basalt.runtime.group_commit import Group
from basalt.transactions.rules.groups import GroupState
from basalt_engine.keys import position
from basalt_engine.spans.spans import ZERO_ID, Spans
from basalt_engine.stores.shards import shard_of

LOOKED_AT_MAX = 1_000  # groups that one run of the job looks at
GAPS_MAX = 1_000  # gaps without living messages that it closes in one group


class UpkeepResult(NamedTuple):
    """The results of one run. To be forgotten: groups whose topic is `gone`, and `unused` ones."""

    gone: list[GroupState]
    closed: int
    unused: list[GroupState]


class Upkeep:
    """The upkeep of all groups of one store; each server looks at those that it deals."""

    def __init__(self, desk: Desk, live: LiveGroups, acknowledging: Acknowledging) -> None:
        self._clock = desk.clock
        self._manager = desk.manager
        self._logs = desk.logs
        self._live = live
        self._acknowledging = acknowledging
        self._looked_at = 0  # the number of the group at which the next run goes on
        self._began_ms = desk.clock.now_ms()

    async def run(self) -> UpkeepResult:
        """Close gaps in which nothing lives any more, and find groups that nobody uses, or whose topic is gone; a part at a time."""
        if not self._manager.is_known:
            return UpkeepResult([], 0, [])
        self._live.free_dealt()
        table, now_ms = self._manager.state.groups, self._clock.now_ms()
        numbers = sorted(table.by_number)
        first = bisect_right(numbers, self._looked_at)
        looked_at = numbers[first : first + LOOKED_AT_MAX] or numbers[:LOOKED_AT_MAX]
        self._looked_at = looked_at[-1] if looked_at else 0
        generations: dict[bytes, int | None] = {}
        gone, unused, closed = list[GroupState](), list[GroupState](), 0
        for number in looked_at:
            state = table.by_number.get(number)
            if state is None:
                continue
            if not self._live.is_here(state.prefix):
                continue  # its owner looks at it
            if await self._generation(state.prefix, generations) != state.generation:
                gone.append(state)
            elif self._is_unused(state, now_ms):
                unused.append(state)
            else:
                closed += await self._close_gaps(state)
        self._live.drop_idle(now_ms)
        return UpkeepResult(gone, closed, unused)

    async def forget(self, states: Sequence[GroupState], *, unused: bool) -> int:
        """Forget these groups, which `run` has found; how many. `unused`: none that somebody uses by now."""

        def stage(group: Group) -> list[int]:
            table = self._manager.state.groups
            numbers = [
                state.number
                for state in states
                if state.number in table.by_number
                and not (unused and not self._is_unused(table.by_number[state.number], group.now_ms))
            ]
            self._manager.apply(group, table.propose_forget(numbers, True).edits)
            return numbers

        gone = await self._manager.run_for_groups(stage)
        for number in gone:
            live = self._live.get(number)
            if live is not None:
                self._live.drop(live)
        return len(gone)

    async def _generation(self, prefix: bytes, known: dict[bytes, int | None]) -> int | None:
        """The present generation of a topic; None when there is none."""
        if prefix not in known:
            title = title_of(prefix)
            log = self._logs.find(title)
            try:
                known[prefix] = (await self._logs.catalog.read(title) if log is None else log.topic).generation
            except TopicNotFoundError:
                known[prefix] = None
        return known[prefix]

    def _is_unused(self, state: GroupState, now_ms: int) -> bool:
        """True when nobody has used the group for as long as its options say. A start of this server counts as a use."""
        expire_ms = options_of(state).expire_ms
        if not expire_ms or self._manager.state.groups.pending_in(state.number):
            return False
        live = self._live.get(state.number)
        if live is not None and not live.is_idle:
            return False
        reign_ms = self._logs.gate.reigns[shard_of(state.prefix)].since_ms  # before, another server may know of a use
        used_ms = max(state.used_ms, self._began_ms, reign_ms, 0 if live is None else live.last_used_ms)
        return now_ms - used_ms >= expire_ms

    async def _close_gaps(self, state: GroupState) -> int:
        """Cover what expired, where that makes spans fewer or ends what had come back, and what dealing found to be dead."""
        title, table = title_of(state.prefix), self._manager.state.groups
        log, live = self._logs.find(title), self._live.get(state.number)
        dead = live.dispatcher.dead if live is not None else Spans()
        if not dead and len(state.acknowledged) < 2 and not len(state.returns):
            return 0
        if log is None:
            log = await self._logs.open(title)
        oldest = before(position(log.oldest_ms(self._clock.now_ms()), 0))
        expired = end_of(oldest) if oldest else ZERO_ID

        def stage(group: Group) -> int:
            if state.number not in table.by_number or self._manager.state.groups is not table:
                return 0
            owner = self._live.present(state)
            gaps = Spans(islice(owner.dispatcher.living(owner.state, expired), GAPS_MAX))
            gaps.update(owner.dispatcher.dead_ends())
            chosen = Spans(islice(gaps, GAPS_MAX))
            if not chosen or (len(chosen) == 1 and len(state.acknowledged) < 2 and not state.returns and not dead):
                return 0
            self._manager.apply(group, self._acknowledging.close(owner, chosen, group.now_ms))
            return len(chosen)

        return await self._manager.run_for_groups(stage)
