"""Looks at the server once a second, for the history of its figures: `basalt.operations.series`.

Counters are read where they are counted; nothing of /metrics is rendered for it. A look takes some 50 µs, and never longer for what there is a lot
of: of open transactions the oldest 200 are looked at, and of groups 20. A group's lag is counted anew when something has happened to the
group or its topic, or a minute has passed; in between only the age of its oldest message grows.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from basalt.catalog.topics import TopicName, title_of
from basalt.errors import BasaltError
from basalt.groups.figures import Lag
from basalt.http.metrics import Metrics
from basalt.http.process_status import resident_bytes
from basalt.http.services import Services
from basalt.operations.inspection import why_hanging
from basalt.operations.series.series import GROUPS_SHOWN_MAX, TOPICS_SHOWN_MAX, Observation
from basalt.transactions.rules.groups import GroupState
from basalt_engine.clock import DURATION_BOUNDS_S, Durations
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.stores.rocks import RocksStore

INTERVAL_S = 1.0
AT_S = 0.5  # within the second: a timer that is a little early or late stays in it
TRANSACTIONS_LOOKED_AT_MAX = 200  # the oldest, each second: some 100 µs
GROUPS_LOOKED_AT_MAX = 20  # each second: some milliseconds, where each has to be counted anew
GROUP_LOOK_MS = 60_000  # after which a group is looked at although nothing has happened: messages expire
RANK_MS = 60_000  # between two looks which groups are shown, where there are more than can be
BUSIER = 2  # times as busy as the quietest that is shown: so that two like groups do not take turns
STORE_LOOK_MS = 10_000  # between two looks at the sizes of store and disk, which change slowly and cost system calls

_PUBLISHES = frozenset(("publish", "store", "records", "records/store"))
_TOPIC = "/v1/namespaces/{namespace}/topics/{topic}/"
_KINDS = {("POST", _TOPIC + name): "publish" for name in _PUBLISHES} | {
    ("POST", _TOPIC + "poll"): "fetch",
    ("GET", _TOPIC + "records"): "fetch",
    ("GET", _TOPIC + "range"): "fetch",
    ("POST", _TOPIC + "groups/{group}/fetch"): "fetch",
}
_OK = 2  # the hundreds of a status

log = logging.getLogger("basalt.series")


class _Known(NamedTuple):
    """A group's lag as it was counted last, and what the group and its topic had done by then."""

    lag: Lag
    looked_ms: int
    mark: tuple[object, ...]


class Sampler:
    """Takes a look each second, from `start` to `stop`. All of it on the event loop."""

    def __init__(self, services: Services, metrics: Metrics) -> None:
        self._services = services
        self._metrics = metrics
        self._series = services.series
        self._calls: dict[str, list[Durations]] = {"publish": [], "fetch": []}
        self._calls_known = 0  # series of durations that were looked through for them
        self._lags: dict[int, _Known] = {}  # of the groups that are shown
        self._busy: dict[int, int] = {}  # by group: what it had done at the last ranking
        self._ranked_ms: int | None = None
        # By topic: what it had had published and fetched at the last look.
        self._moved: dict[TopicName, tuple[int, int]] = {}
        self._moved_ms = 0.0
        self._promoted_ms: int | None = None
        self._store: dict[str, float] = {}
        self._store_ms: int | None = None
        self._worst = (0.0, 0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look once a second."""
        self._plan()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._looking is not None:
            self._looking.cancel()

    def sample(self, now_ms: int, monotonic_ms: float) -> None:
        """Take one look, but for groups: `look_at_groups`."""
        self._series.observe(
            Observation(now_ms, monotonic_ms, self._counters(), self._durations(), self._gauges(now_ms))
        )
        self._look_at_topics(now_ms, monotonic_ms)

    async def look_at_groups(self, now_ms: int) -> None:
        """Take the lag of groups in: counted anew for those to which something has happened, a few of them at a time."""
        if self._services.is_member:  # they are the leader's
            return
        try:
            states = self._services.transactions.state.groups.by_number
        except BasaltError:  # the manager reads its log: what is known of groups stays
            return
        shown = self._rank(states, now_ms)
        for number in self._due(shown, states, now_ms):
            state = states.get(number)
            if state is not None:
                with suppress(BasaltError):  # it was deleted meanwhile, or the store fails: the next look tells
                    await self._count(state, now_ms)
        titles = {number: _title(states[number].prefix, states[number].name) for number in shown if number in states}
        lags = {
            titles[number]: (float(known.lag.messages), known.lag.age_ms(now_ms) / 1_000)
            for number, known in self._lags.items()
            if number in titles
        }
        self._worst = (
            max((lag[0] for lag in lags.values()), default=0.0),
            max((lag[1] for lag in lags.values()), default=0.0),
        )
        self._series.groups.observe(now_ms, lags, titles.values())

    def _plan(self) -> None:
        now_s = self._services.clock.now_ms() / 1_000
        rest_s = (AT_S - now_s) % INTERVAL_S
        if rest_s < INTERVAL_S / 10:  # it would be the second that was looked at just now
            rest_s += INTERVAL_S
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(rest_s, self._tick)

    def _tick(self) -> None:
        self._plan()
        clock = self._services.clock
        try:
            now_ms = clock.now_ms()
            self.sample(now_ms, clock.monotonic_ms())
        except (
            Exception
        ):  # a chart must not end what it shows; a bug is told each time, for there is no other trace of it
            log.exception("the figures of this second were not noted")
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look(now_ms))

    async def _look(self, now_ms: int) -> None:
        try:
            await self.look_at_groups(now_ms)
        except Exception:
            log.exception("the lag of groups was not noted")

    # What there is.

    def _counters(self) -> dict[str, float]:
        services, metrics = self._services, self._metrics
        memory, events = services.topics.memory, services.transactions.totals.events
        failed = sum(outcomes.get("failed", 0) for outcomes in services.scheduler.run_totals().values())
        bad = 0 if services.authentication is None else services.authentication.failed.throttled_total
        calls = self._sorted_calls()
        return {
            "requests": metrics.requests_total,
            "problems": metrics.problems_total,
            "publishes": sum(sum(each.counts) for each in calls["publish"]),
            "fetches": sum(sum(each.counts) for each in calls["fetch"]),
            "begun": events["begun"],
            "commits": events["committed"],
            "aborts": events["aborted"],
            "one_shots": services.transactions.totals.one_shots,
            "invalidated": events["invalidated"],
            "conflicts": events["conflicts"],
            "timed_out": events["timed_out"],
            "messages_in": memory.messages_total,
            "messages_in_bytes": memory.payload_bytes_total,
            "messages_out": services.messaging.fetched_messages_total,
            "messages_out_bytes": services.messaging.fetched_bytes_total,
            "duplicates": services.producers.duplicates_total,
            "throttled": services.quotas.throttled.total() + bad,
            "refused": services.refusals.counts.total(),
            "connections_refused": services.connections.refused.total(),
            "store_writes": sum(lane.groups for lane in services.transactions.manager.lanes.each),
            "jobs_failed": failed,
            "cpu_percent": 100 * time.process_time(),
        }

    def _durations(self) -> dict[str, Sequence[int]]:
        calls = self._sorted_calls()
        found: dict[str, Sequence[int]] = {name: _sum(each) for name, each in calls.items()}
        found["commit"] = tuple(self._services.transactions.totals.commits.counts)
        return found

    def _sorted_calls(self) -> dict[str, list[Durations]]:
        """The durations of publishes and fetches, among those of all calls; looked through when there are more of them."""
        everything = self._metrics.durations
        if len(everything) != self._calls_known:
            self._calls = {"publish": [], "fetch": []}
            for (route, method, hundreds), counted in everything.items():
                kind = _KINDS.get((method, route))
                if kind is not None and hundreds == _OK:
                    self._calls[kind].append(counted)
            self._calls_known = len(everything)
        return self._calls

    def _gauges(self, now_ms: int) -> dict[str, float]:
        services = self._services
        pruned = services.pruner.last
        found: dict[str, float] = {
            "loop_lag_s": services.loop_lag.second_max_s,
            "waiting_fetches": services.topics.memory.waiting,
            "connections": services.connections.total,
            "producers": services.producers.known,
            "write_queue_bytes": sum(lane.queue_bytes for lane in services.transactions.manager.lanes.each),
            "answers_bytes": services.topics.tails.answers.bytes,
            "log_bytes": services.transactions.manager.log_length[1],
            "prune_held": 0 if pruned is None else pruned.held,
        }
        if (memory_bytes := resident_bytes()) is not None:
            found["memory_bytes"] = memory_bytes
        with suppress(BasaltError):  # while the manager reads its log
            found |= self._transactions(now_ms)
        return found | self._store_sizes(now_ms)

    def _transactions(self, now_ms: int) -> dict[str, float]:
        state, surely = self._services.transactions.state, self._services.first_unstable.surely
        hanging, oldest_ms, blocking_ms = 0, now_ms, now_ms
        for transaction in islice(state.by_id.values(), TRANSACTIONS_LOOKED_AT_MAX):  # they are there as they began
            if transaction.was_invalid:
                continue
            oldest_ms = min(oldest_ms, transaction.began_ms)
            blocks = surely(transaction)
            hanging += bool(why_hanging(transaction, now_ms, None, blocks))
            if blocks:
                blocking_ms = min(blocking_ms, transaction.began_ms)
        oldest = state.invalid.first
        return {
            "open": len(state.by_id),
            "hanging": hanging,
            "invalid": state.invalid.entries,
            "oldest_open_s": (now_ms - oldest_ms) / 1_000,
            "oldest_blocking_s": (now_ms - blocking_ms) / 1_000,
            "prune_bound_s": 0 if oldest is None else max(now_ms - oldest // POINTERS_PER_MS, 0) / 1_000,
            "sessions": len(state.session_table),
            "groups": len(state.groups.by_number),
            "worst_lag_messages": self._worst[0],
            "worst_lag_s": self._worst[1],
        }

    def _store_sizes(self, now_ms: int) -> dict[str, float]:
        store = self._services.store
        if not isinstance(store, RocksStore):
            return {}
        if self._store_ms is None or not 0 <= now_ms - self._store_ms < STORE_LOOK_MS:
            self._store_ms, self._store = now_ms, {}
            figures = store.figures()
            if figures is not None:
                self._store["store_bytes"] = figures.table_bytes + figures.blob_bytes
            with suppress(OSError):  # of a disk that has gone: the store's own errors tell more
                self._store["disk_free_bytes"] = shutil.disk_usage(store.path).free
        return self._store

    # Topics.

    def _look_at_topics(self, now_ms: int, monotonic_ms: float) -> None:
        """Take in the rates of those topics that the metrics count alone: counts of all others nobody keeps."""
        topics, seconds = self._metrics.topics, (monotonic_ms - self._moved_ms) / 1_000
        if self._promoted_ms is None or not 0 <= now_ms - self._promoted_ms < RANK_MS:
            self._promoted_ms = now_ms
            topics.promote_busy()
        before = self._moved
        self._moved = {title: (counts.published_messages, counts.fetched_messages) for title, counts in topics.shown()}
        self._moved_ms = monotonic_ms
        rates = dict[str, tuple[float, float]]()
        for title, (published, fetched) in self._moved.items():
            was_published, was_fetched = before.get(title, (published, fetched))
            # A rate needs two looks; and a topic that has come back to a place of its own counts from 0 again.
            if title in before and seconds > 0 and published >= was_published and fetched >= was_fetched:
                rates[_title_of(title)] = ((published - was_published) / seconds, (fetched - was_fetched) / seconds)
        self._series.topics.observe(now_ms, rates, map(_title_of, self._moved))

    # Groups.

    def _rank(self, states: dict[int, GroupState], now_ms: int) -> set[int]:
        """The groups that are shown: all, or where there are too many those that do most. One that is gone makes room at once."""
        if len(states) <= GROUPS_SHOWN_MAX:
            shown = set(states)
        elif self._ranked_ms is not None and 0 <= now_ms - self._ranked_ms < RANK_MS:
            shown = self._lags.keys() & states.keys() or set(islice(states, GROUPS_SHOWN_MAX))
        else:
            self._ranked_ms = now_ms
            totals = self._services.group_inspection.totals()
            done = {number: each.fetched + each.acknowledged for number, each in totals.items() if number in states}
            recent = {number: count - self._busy.get(number, 0) for number, count in done.items()}
            self._busy = done
            shown = ranked(self._lags.keys() & states.keys(), states, recent)
        for gone in self._lags.keys() - shown:
            del self._lags[gone]
        return shown

    def _due(self, shown: set[int], states: dict[int, GroupState], now_ms: int) -> list[int]:
        """The groups whose lag is to be counted anew: first those of which nothing is known, then those that waited longest."""
        due: list[tuple[int, int]] = []
        for number in shown:
            known, state = self._lags.get(number), states.get(number)
            if state is None:
                continue
            if known is None:
                due.append((-1, number))
            elif not 0 <= now_ms - known.looked_ms < GROUP_LOOK_MS or known.mark != self._mark(state):
                due.append((known.looked_ms, number))
        return [number for _, number in sorted(due)[:GROUPS_LOOKED_AT_MAX]]

    def _mark(self, state: GroupState) -> tuple[object, ...]:
        """A value that changes when a group or its topic does something. A topic that is not in memory has done nothing."""
        log_ = self._services.topics.in_memory(_topic(state.prefix))
        acknowledged = state.acknowledged
        return state.round, acknowledged.floor, len(acknowledged), None if log_ is None else log_.newest

    async def _count(self, state: GroupState, now_ms: int) -> None:
        inspection = self._services.group_inspection
        mark = self._mark(state)
        lag = await inspection.lag(await inspection.live_of(state))
        self._lags[state.number] = _Known(lag, now_ms, mark)


def ranked(shown: set[int], states: dict[int, GroupState], recent: dict[int, int]) -> set[int]:
    """The groups to show from now on. One that is not shown takes the place of one that has done less than half as much of late."""
    kept = set(shown)
    for number in states:
        if len(kept) >= GROUPS_SHOWN_MAX:
            break
        kept.add(number)
    quiet = sorted(kept, key=lambda number: recent.get(number, 0))
    busy = sorted(recent.keys() - kept, key=recent.__getitem__, reverse=True)
    for leaving, coming in zip(quiet, busy, strict=False):
        if recent[coming] <= BUSIER * recent.get(leaving, 0):
            break
        kept.remove(leaving)
        kept.add(coming)
    return kept


@lru_cache(2 * GROUPS_SHOWN_MAX)  # each is asked for once a second
def _topic(prefix: bytes) -> TopicName:
    return title_of(prefix)


@lru_cache(2 * GROUPS_SHOWN_MAX)
def _title(prefix: bytes, name: str) -> str:
    title = title_of(prefix)
    return f"{title.namespace}:{title.name}/{name}"


@lru_cache(2 * TOPICS_SHOWN_MAX)
def _title_of(title: TopicName) -> str:
    return f"{title.namespace}:{title.name}"


def _sum(durations: list[Durations]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(each.counts for each in durations), strict=True))) or _NONE


_NONE = (0,) * (len(DURATION_BOUNDS_S) + 1)
