"""Answers about pipelines, put together from what the server knows by itself: markers of topics, named sessions, and the log of transactions.

It knows nothing of a job's plan. Who publishes outside a transaction, or reads without a group, is not seen here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

from msgspec import structs

from basalt.api.bodies import pipelines as bodies
from basalt.api.bodies.pipelines import StepPart
from basalt.catalog.topics import TopicName, title_of
from basalt.commits.coordinator import Coordinator
from basalt.errors import BasaltError
from basalt.messaging.log import stored_log
from basalt.messaging.markers import MarkerFacts, TopicMarkers
from basalt.operations.inspection import transaction_table
from basalt.operations.pipelines.flows import Flow, FlowKey, Flows, levels
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.log.transaction_log import Journal
from basalt.transactions.rules.transaction import Belonging, Sees, TableJoin, TransactionIds
from basalt_engine.clock import Clock
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

ENTRIES_TURN = 500  # of the log, without a pause
SINKS_MAX = 1_000  # of one answer, those that were used last
STEPS_MAX = 500  # of one answer, those that committed last
May = Callable[[str, tuple[str, ...]], bool]  # may look at this kind of thing, of these names


class PipelineInspection:
    """Answers operators' questions about the pipelines of one store."""

    def __init__(
        self, store: Store, clock: Clock, markers: TopicMarkers, transactions: Coordinator, ids: TransactionIds
    ) -> None:
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._markers = markers
        self._transactions = transactions
        self._ids = ids
        self._flows, self._journal = Flows(), transactions.journal
        self._reading = asyncio.Lock()

    async def show(self, may: May, sees: Sees, after: TopicName | None, limit: int) -> bodies.Pipelines:
        """Everything that is known of pipelines, of what may be looked at; at most so many topics, behind one."""
        now_ms = self._clock.now_ms()
        topics, following = await self._topics(may, after, limit, now_ms)
        sinks, left_out = self._sinks(may)
        steps = await self._steps(may, sees)
        return bodies.Pipelines(topics, sinks, steps, self._journal.since_ms(now_ms), following, left_out)

    async def _topics(
        self, may: May, after: TopicName | None, limit: int, now_ms: int
    ) -> tuple[tuple[bodies.TopicProgress, ...], str | None]:
        """The topics that have markers, by name."""
        start = "" if after is None else f"{after}:\0"
        found = list[bodies.TopicProgress]()
        while True:
            page = await self._call(self._page, start, limit + 1)
            for name in page:
                title = title_of(name.encode())
                if not may("topic", title):
                    continue
                if len(found) == limit:
                    return tuple(found), f"{found[-1].namespace}:{found[-1].topic}"
                try:
                    found.append(_progress(title, await self._markers.facts(title), now_ms))
                except BasaltError:  # it was deleted, or cannot be read: the others are shown
                    continue
            if len(page) <= limit:
                return tuple(found), None
            start = page[-1] + "\0"

    def _page(self, start: str, rows_max: int) -> list[str]:
        return [name for name, _ in stored_log.MARKERS.scan(self._system, start, rows_max=rows_max)]

    def _sinks(self, may: May) -> tuple[tuple[bodies.SinkProgress, ...], int]:
        """The sessions that have committed a version or have a counter owner, those that were used last first."""
        state = self._transactions.state
        sessions = [
            each
            for each in reversed(list(state.session_table))
            if (each.version is not None or each.counter_owner is not None) and may("session", (each.name,))
        ]
        found = []
        for session in sessions[:SINKS_MAX]:
            committed_ms = None
            if session.committed_by:
                try:
                    committed_ms = state.outcome(session.committed_by).at_ms
                except BasaltError:  # it is not remembered any more
                    pass
            found.append(
                bodies.SinkProgress(
                    session.name, session.run, session.counter_owner, session.version,
                    self._ids.text(session.committed_by) if session.committed_by else None, committed_ms, session.used_ms,
                    tuple(map(self._ids.text, state.session_table.open_in(session.name))),
                )
            )  # fmt: skip
        return tuple(found), max(len(sessions) - SINKS_MAX, 0)

    async def _steps(self, may: May, sees: Sees) -> tuple[bodies.Step, ...]:
        """The steps that the log has told of, in the order of their levels."""
        async with self._reading:
            await self._read()
        shown = []
        for key, flow in islice(reversed(self._flows.items()), STEPS_MAX):
            if not sees(Belonging(key.principal, key.name if key.kind == "session" else None)):
                continue
            step = self._step(key, flow, may)
            if step is not None:
                shown.append(step)
        found = levels(
            [frozenset((each.namespace, each.name) for each in step.reads) for step in shown],
            [frozenset((each.namespace, each.name) for each in step.writes) for step in shown],
        )
        placed = [structs.replace(step, level=level) for step, level in zip(shown, found, strict=True)]
        return tuple(sorted(placed, key=lambda step: (step.level, step.kind, step.name)))

    async def _read(self) -> None:
        """Take in what the log has told since the last time."""
        journal: Journal = self._transactions.journal
        entries, place = journal.after(self._flows.place)
        for first in range(0, len(entries), ENTRIES_TURN):
            self._flows.take(entries[first : first + ENTRIES_TURN])
            await asyncio.sleep(0)
        self._flows.place = place

    def _step(self, key: FlowKey, flow: Flow, may: May) -> bodies.Step | None:
        groups = self._transactions.state.groups.by_number
        reads = []
        for number in flow.reads:
            state = groups.get(number)
            if state is not None:
                title = title_of(state.prefix)
                if may("group", (*title, state.name)):
                    reads.append(StepPart(*title, state.name))
        writes = [StepPart(*title) for title in map(title_of, flow.writes) if may("topic", title)]
        joined = [transaction_table(TableJoin(table, 0)) for table in flow.tables]
        tables = [StepPart(each.namespace, each.table) for each in joined if may("table", (each.namespace, each.table))]
        if not (reads or writes or tables):
            return None
        name = reads[0].group if key.kind == "group" and reads else "" if key.kind == "group" else key.name
        principal = Belonging(key.principal, None).shown
        return bodies.Step(
            key.kind,
            name or "",
            principal,
            0,
            tuple(reads),
            tuple(writes),
            tuple(tables),
            flow.transactions,
            flow.last_ms,
        )


def _progress(title: TopicName, facts: MarkerFacts, now_ms: int) -> bodies.TopicProgress:
    tasks = tuple(
        bodies.TaskProgress(name, task.watermark_ms, _delay(task.watermark_ms, now_ms), task.ended, task.published_ms)
        for name, task in sorted(facts.state.tasks.items())
    )
    return bodies.TopicProgress(
        *title, facts.generation, facts.watermark_ms, _delay(facts.watermark_ms, now_ms), facts.ended, facts.state.task_count, tasks
    )  # fmt: skip


def _delay(watermark_ms: int | None, now_ms: int) -> int | None:
    return None if watermark_ms is None else now_ms - watermark_ms
