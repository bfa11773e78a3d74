"""The owner of topics: gives a commit's messages their places, and hides what was rolled back.

What it knows of transactions is what the coordinator and the carrier of a commit tell it (`basalt.transactions.protocol`): which are joined
here, which commit it may place, which write no more. It never looks at the coordinator's state.

Commit gives a transaction's messages their places: those of its work, and one reference per topic and write pointer to
what was stored. So an open transaction holds nobody back but readers of rows that its client published early by hand.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from basalt.api.bodies.messages import Work, WorkMarker, WorkPublish
from basalt.api.markers import Marker
from basalt.catalog.topics import TopicName, title_of
from basalt.cluster.shard_gate import SEND_AGAIN
from basalt.commits.owning.topic_plan import NOTHING, Publication, TopicPlan, add_publication, no_segments
from basalt.errors import (
    InputError,
    ShardMovingError,
    TopicNotFoundError,
    TransactionEndedError,
    UnavailableError,
)
from basalt.messaging.log.roll_back import RollBacks
from basalt.messaging.log.topic_log import TopicLog, prefix_of
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers, check_shape
from basalt.runtime.group_commit import STAGE_LOADS_MAX, Group, GroupCommit, NotLoadedError
from basalt.runtime.write_lanes import TopicLanes, in_each_lane, passed
from basalt.tables import garbage_cells
from basalt.transactions.open_pointers import OpenPointers
from basalt.transactions.protocol import (
    Close,
    End,
    Expect,
    JoinedTransaction,
    Place,
    Prepare,
    Prepared,
    RollBack,
    Settled,
    Told,
)
from basalt.transactions.rules.transaction import Join
from basalt_engine.clock import Clock
from basalt_engine.keys import position, topic_prefix
from basalt_engine.messages import Reference
from basalt_engine.snapshot import PointerRuns
from basalt_engine.stores.shards import shard_of

PREPARED_MS_MAX = 60_000  # what a commit brings that nobody carries any more: its client has gone, or the log was late
FOREVER = position((1 << 64) - 1, 0xFFFF)
PLANS_MAX = (
    3  # of one commit, where a topic begins to move each time that it is planned: a move takes some ten times as long
)
REMOVED_TOGETHER_MAX = 100  # writers whose stored payloads one group removes: others wait for it


class _Kept(NamedTuple):
    """The work of a commit, since when it is kept, and the shards that do not move meanwhile.

    `transaction_id` is the one that may place it; 0: it has yet to begin.
    """

    plan: TopicPlan
    since_ms: float
    shards: Collection[int]
    transaction_id: int


class Owner:
    """Commits and rolls back what transactions did to the topics of one server, as it is told."""

    def __init__(
        self, logs: TopicLogs, roll_backs: RollBacks, writer: TopicLanes, markers: TopicMarkers, pointers: OpenPointers,
        clock: Clock, *, store_drops: bool,
    ) -> None:  # fmt: skip
        """`store_drops`: the store drops rows of failed writers itself, so the ends of their logs must be noted before.
        A store that does not gets notes of failed writers of transactional tables, because nothing else finds their
        cells.
        """
        self._logs = logs
        self._roll_backs = roll_backs
        self._staged = logs.staged
        self._writer = writer
        self._markers = markers
        self._pointers = pointers
        self._store_drops = store_drops
        self._clock = clock
        self._prepared: dict[int, _Kept] = {}  # of commits that are being carried, by number, the oldest first
        # Numbers begin anywhere: a carrier may have one of a run before this one, under which nothing must be found here.
        self._prepared_before = secrets.randbits(62)
        self._forgetting: asyncio.TimerHandle | None = None
        # By transaction whose commit may place its rows: the topics and tables of which it has done so, each once. One that comes here while
        # its commit is placed is placed after the others.
        self._expected: dict[int, set[tuple[bytes, int]]] = {}

    def recovered(self, last_pointer: int, lent: PointerRuns) -> None:
        """The log is read anew. Forget where rows of transactions up to this pointer lie: their roll backs search for them. Those of
        loans have none."""
        self._logs.recovered(last_pointer, lent)
        self._pointers.forget()
        self._expected.clear()  # what has no outcome in the log is given up

    def hear(self, told: Sequence[Told]) -> None:
        """All of this in its order, from entries of the log that a member follows."""
        for each in told:
            if isinstance(each, End):
                self.end(each)
            elif isinstance(each, Expect):
                self.expect(each)
            elif isinstance(each, Close):
                self.close(each)
            elif isinstance(each, Settled):
                self._logs.settled(each)
            else:
                self.recovered(each.last_pointer, PointerRuns(each.lent))

    async def decide_doubts(self) -> None:
        """Decide about rows of writes that were given up: a commit goes by which references of its transaction there are."""
        await self._logs.confirm_or_delete_all()

    def plan_in_memory(self, work: Work) -> TopicPlan | None:
        """The plan of a one-shot transaction; None where only `plan` can tell: topics are to be opened, or there are markers.

        Raises what `plan` raises.
        """
        if work.markers or work.acknowledge:
            return None
        publications: list[Publication] = []
        for number, part in enumerate(work.publish):
            log = self._logs.find(self._logs.title(part.namespace, part.topic))
            if log is None:
                return None
            add_publication(publications, number, part, log)
        return TopicPlan(publications, (), work.segments)

    def has_all_topics(self, work: Work) -> bool:
        """True when the work brings something, and this server owns all topics to which it does, as of now."""
        named: list[WorkPublish | WorkMarker] = [*work.publish, *work.markers]
        try:
            titles = [self._logs.title(part.namespace, part.topic) for part in named]
        except InputError:
            return False
        return bool(titles) and all(self._logs.gate.is_held(shard_of(topic_prefix(*title))) for title in titles)

    def part_here(self, transaction: JoinedTransaction) -> JoinedTransaction:
        """The same with the topics and tables that this server owns, as of now."""
        gate = self._logs.gate
        topics = tuple(join for join in transaction.topics if gate.is_held(shard_of(join.topic)))
        tables = tuple(join for join in transaction.tables if gate.is_held(shard_of(join.table)))
        return replace(transaction, topics=topics, tables=tables)

    async def prepare(self, asked: Prepare) -> Prepared:
        """Check what a commit is about to bring, and keep it until `drop`, or for a minute. A refusal changes nothing."""
        plan, shards = await self._planned(asked)
        if plan.is_empty:
            return Prepared()
        self._forget_late()
        self._prepared_before += 1
        transaction_id = 0 if asked.transaction is None else asked.transaction.id
        self._prepared[self._prepared_before] = _Kept(plan, self._clock.monotonic_ms(), shards, transaction_id)
        if self._forgetting is None:  # what nobody drops, for who asked has died, would keep its shards here
            self._forgetting = asyncio.get_running_loop().call_later(PREPARED_MS_MAX / 1_000, self._forget_later)
        joins = () if self._logs.memory.atomic else tuple(self.joins(plan))
        return Prepared(self._prepared_before, joins, plan.payload_bytes)

    async def _planned(self, asked: Prepare) -> tuple[TopicPlan, Collection[int]]:
        """The plan, and the shards of its topics, none of which moves from now on."""
        gate, shards = self._logs.gate, self._shards_of(asked.work)
        for _ in range(PLANS_MAX):
            plan = await self.plan(asked.work, asked.transaction)
            # Where the store is atomic, the stage that decides has the rows, and looks by itself.
            if not self._logs.memory.atomic and asked.transaction is not None:
                await self._checked(plan, asked.transaction)
            if plan.is_empty or gate.stay(shards):
                return plan, shards
        raise ShardMovingError("a topic of the commit moves between servers; nothing was done", hint=SEND_AGAIN)

    def _shards_of(self, work: Work | None) -> frozenset[int]:
        named: list[WorkPublish | WorkMarker] = [] if work is None else [*work.publish, *work.markers]
        return frozenset(shard_of(topic_prefix(*self._logs.title(part.namespace, part.topic))) for part in named)

    def drop(self, prepared: Prepared) -> None:
        """The commit has an answer: what was kept for it is of no use any more."""
        self._forget_prepared(prepared.number)

    def let_go(self, shards: Collection[int]) -> int:
        """Keep nothing more for commits to topics of these shards, which move: for how many. A place that comes later is refused.

        Nothing is lost of one whose rows are in the lane or in the store by now.
        """
        numbers = [number for number, kept in self._prepared.items() if not set(shards).isdisjoint(kept.shards)]
        for number in numbers:
            self._forget_prepared(number)
        return len(numbers)

    def _forget_late(self) -> None:
        before_ms = self._clock.monotonic_ms() - PREPARED_MS_MAX
        while self._prepared and next(iter(self._prepared.values())).since_ms < before_ms:
            self._forget_prepared(next(iter(self._prepared)))

    def _forget_later(self) -> None:
        self._forgetting = None
        self._forget_late()
        if self._prepared:
            self._forgetting = asyncio.get_running_loop().call_later(PREPARED_MS_MAX / 1_000, self._forget_later)

    def _forget_prepared(self, number: int) -> None:
        kept = self._prepared.pop(number, None)
        if kept is not None:
            self._logs.gate.leave(kept.shards)

    async def _checked(self, plan: TopicPlan, transaction: JoinedTransaction) -> None:
        """Check as the stage will, and read what it would have to read."""
        releases: list[Callable[[], None]] = []
        try:
            for _ in range(STAGE_LOADS_MAX):
                try:
                    self.check(plan, transaction)
                    return
                except NotLoadedError as missing:
                    releases.append(await missing.load())
        finally:
            for release in releases:
                release()

    async def plan(self, work: Work | None, transaction: JoinedTransaction | None) -> TopicPlan:
        """Check the work, and read where its topics end, and what was stored under the transaction's pointers."""
        publications: list[Publication] = []
        for number, part in enumerate(work.publish if work is not None else ()):
            title = self._logs.title(part.namespace, part.topic)
            log = self._logs.find(title) or await self._logs.open(title)
            add_publication(publications, number, part, log)
        segments = None if work is None else work.segments
        if transaction is not None:
            await self._read_ahead(transaction, early_rows=segments is not None)
        return TopicPlan(publications, await self._planned_markers(() if work is None else work.markers), segments)

    async def _read_ahead(self, transaction: JoinedTransaction, *, early_rows: bool) -> None:
        """Know what the stage would have to read otherwise: of a transaction that is older than this process."""
        for join in transaction.topics:
            log = await self._logs.joined(join)
            if log is None:
                continue
            await self._staged.ready(log, transaction.pointers)
            if early_rows and not log.knows(transaction):
                rows = await self._roll_backs.rows_after(log, position(join.from_ms, 0), transaction.id - 1)
                for pointer in transaction.pointers:
                    if pointer in rows:
                        log.found_uncommitted(pointer, *rows[pointer])

    async def _planned_markers(self, markers: Sequence[WorkMarker]) -> list[tuple[TopicLog, Marker]]:
        planned = []
        for number, part in enumerate(markers):
            log = await self._logs.open(self._logs.title(part.namespace, part.topic))
            marker = Marker(part.task, part.task_count, part.event_time_ms)
            check_shape(marker, f"markers[{number}]")
            await self._markers.ready(log)
            planned.append((log, marker))
        return planned

    def check(self, plan: TopicPlan, transaction: JoinedTransaction | None) -> None:
        """In a stage: every topic is still the one that was planned for, and segments are the transaction's.

        All that `commit` needs is in memory: else `NotLoadedError`, for that must not happen once something was changed.
        """
        logs = plan.logs
        for log in logs:
            if not log.live and self._logs.present(log) is not log:
                raise TopicNotFoundError(
                    f"topic {log.topic.title} was deleted and created again meanwhile",
                    field="topic",
                    hint="send it again",
                )
        if transaction is not None and transaction.topics:
            joined = self._logs.loaded_joined(transaction.topics)
            self._staged.require(dict.fromkeys(joined.values(), transaction.pointers))
        if plan.markers:
            self._markers.check(plan.markers, "markers")
        if (transaction is not None and transaction.topics) or any(log.marked for log in logs):
            self._markers.admit(self._taking_messages(plan, transaction))
        if plan.segments is not None:
            if transaction is None:
                raise no_segments()
            self._check_segments(plan.segments, transaction)

    def _taking_messages(self, plan: TopicPlan, transaction: JoinedTransaction | None) -> Iterator[TopicLog]:
        """The logs with markers to which the commit adds messages: those of its work, and what was stored."""
        yield from (publication.log for publication in plan.publications)
        if transaction is None or not any(log.marked for log in self._logs.loaded_joined(transaction.topics).values()):
            return
        segments = transaction.pointers if plan.segments is None else plan.segments
        yield from (log for log, _, _ in self._unpublished(transaction, segments))

    def _check_segments(self, segments: Sequence[int], transaction: JoinedTransaction) -> None:
        own = frozenset(transaction.pointers)
        left = set(own)
        for index, pointer in enumerate(segments):
            if pointer not in left:
                again = "is named twice, as a segment" if pointer in own else "is no segment"
                raise InputError(
                    f"write pointer {pointer} {again} of transaction {transaction.id}",
                    field=f"segments[{index}].writePointer",
                    hint="Name write pointers that its begin or a checkpoint of it answered, each once.",
                )
            left.remove(pointer)
        for join in transaction.topics if left else ():
            log = self._logs.find_joined(join)
            if log is not None:
                for pointer in log.uncommitted_writers(left):
                    raise InputError(
                        f"segment {pointer} of transaction {transaction.id} is left out, and has published messages in topic"
                        f" {title_of(join.topic)} ahead of the commit, which would show them",
                        field="segments",
                        hint="Store what may be left out, and do not publish it. Abort this one, or name the segment, too.",
                    )

    @staticmethod
    def joins(plan: TopicPlan) -> list[Join]:
        """The plan's topics, each once, as they are before its rows: none of these has an earlier publish time."""
        logs = {log.topic.keys.generation_key: log for log in plan.logs}
        return [Join(*key, log.newest_ms) for key, log in logs.items()]

    async def join_of(self, title: TopicName) -> Join:
        """The topic as a transaction joins it now: no row that is appended from now on has an earlier publish time."""
        log = await self._logs.open(title)
        return Join(log.topic.keys.prefix, log.topic.generation, log.newest_ms)

    def has_all(self, work: Work) -> bool:
        """True when this server has all topics of the work: here it has every topic."""
        return True

    def expect(self, told: Expect) -> None:
        """The log has the intent of this commit."""
        self._expected.setdefault(told.transaction_id, set())

    async def place(self, asked: Place) -> None:
        """Take no more writes under the transaction's pointers, wait for those under way, and make its messages rows.

        Only a commit that is expected does so, and once. Returns once the rows are durable.
        """
        # Each lane of the topics and tables has a part: writes under way wait in it, too. What one of them refuses is given up as a whole.
        whole = asked.transaction
        await in_each_lane({
            lane: (partial(self._place, part, asked.number, lane), self._plan_of(asked.number, whole.id, lane).payload_bytes)
            for lane, part in self._by_lane(whole).items()
        })  # fmt: skip

    def _by_lane(self, transaction: JoinedTransaction) -> dict[GroupCommit, JoinedTransaction]:
        """The parts of what the transaction has joined, by write lane; one that has joined nothing is in the first."""
        topics = self._writer.split(transaction.topics, lambda join: join.topic)
        tables = self._writer.split(transaction.tables, lambda join: join.table)
        if len(topics | tables) <= 1:
            return dict.fromkeys((*topics, *tables) or self._writer.each[:1], transaction)
        return {
            lane: replace(transaction, topics=tuple(topics.get(lane, ())), tables=tuple(tables.get(lane, ())))
            for lane in topics | tables
        }

    def _place(self, transaction: JoinedTransaction, number: int, lane: GroupCommit, group: Group) -> None:
        """In a stage: the same as `commit`, of which the outcome follows. Where the rows lie is noted until then."""
        placed, keys = self._expected.get(transaction.id), _keys_of(transaction)
        if placed is None or not placed.isdisjoint(keys):
            raise _not_expected(transaction.id)
        self._logs.gate.require(
            [table.table for table in transaction.tables]
        )  # else another server takes cells under them
        self._pointers.close(transaction.id)  # before anything is read: what was stored until now is all
        plan = self._plan_of(number, transaction.id, lane)
        self.check(plan, transaction)
        newest = {log: log.newest for log in self._logs.loaded_joined(transaction.topics).values()}
        self.commit(group, plan, transaction)
        self._note_undecided(newest, transaction.write_pointer)
        placed.update(keys)

    def _plan_of(self, number: int, transaction_id: int, lane: GroupCommit | None = None) -> TopicPlan:
        """The plan that was kept for a commit of this transaction; for one of the write lanes, its part."""
        if not number:
            return NOTHING
        kept = self._prepared.get(number)
        if kept is None or kept.transaction_id not in (0, transaction_id):
            raise UnavailableError("what the commit brings was not kept until now", hint="send it again")
        return kept.plan if lane is None else kept.plan.of_lane(self._writer, lane)

    def check_prepared(self, number: int, transaction: JoinedTransaction) -> None:
        """In a stage that decides and has the rows: as `check`."""
        self.check(self._plan_of(number, transaction.id), transaction)

    def commit_prepared(self, group: Group, number: int, transaction: JoinedTransaction) -> None:
        """In a stage that decides and has the rows: what was stored and prepared becomes rows."""
        self.commit(group, self._plan_of(number, transaction.id), transaction)

    def place_one_shot(self, group: Group, plan: TopicPlan, write_pointer: int) -> None:
        """In a stage: the same of a one-shot transaction."""
        newest = {log: log.newest for log in plan.logs}
        self.commit_one_shot(group, plan, write_pointer)
        self._note_undecided(newest, write_pointer)

    @staticmethod
    def _note_undecided(before: Mapping[TopicLog, bytes], write_pointer: int) -> None:
        for log, newest in before.items():
            if log.newest != newest:
                log.note_uncommitted(write_pointer, newest, log.newest)

    def commit_one_shot(self, group: Group, plan: TopicPlan, write_pointer: int) -> None:
        """In a stage: the rows of a one-shot transaction."""
        self._count(plan)
        for log, messages, extras in plan.publications:
            log.append(group, messages, extras, write_pointer)
        for log, marker in plan.markers:
            self._markers.emit(group, log, marker, write_pointer)

    def _count(self, plan: TopicPlan) -> None:
        """Count what a call brings whose path names none of its topics."""
        loads = self._logs.gate.loads
        if loads is not None:
            for log, messages, _ in plan.publications:
                loads.add(shard_of(log.topic.keys.prefix), sum(map(len, messages)))

    def commit(self, group: Group, plan: TopicPlan, transaction: JoinedTransaction) -> None:
        """In a stage: a reference to all that was stored, in each topic and under each pointer; then the work's rows.

        With segments: under these pointers, in their order; what was stored under others is removed. Where rows and outcome
        are not one batch, a commit that is decided and has no outcome is rolled back, so nothing is missed then either.
        """
        self._count(plan)
        unpublished: list[tuple[TopicLog, int, Reference]] = []
        lost = unpublished
        if transaction.topics:
            segments = transaction.pointers if plan.segments is None else plan.segments
            unpublished = self._unpublished(transaction, segments)
            lost = self._unpublished(transaction, sorted(frozenset(transaction.pointers).difference(segments)))
        for log, pointer, reference in unpublished:
            # No note is left that these are published: the writer ends here, or is rolled back.
            log.refer(group, reference, pointer, *self._staged.unpublished_counts(log, pointer))
        self.commit_one_shot(group, plan, transaction.write_pointer)
        for log, pointer, _ in lost:
            self._staged.remove_unpublished(group, log, pointer)

    def _unpublished(
        self, transaction: JoinedTransaction, pointers: Sequence[int]
    ) -> list[tuple[TopicLog, int, Reference]]:
        """The payloads staged under the pointers that no reference publishes yet, by topic and pointer."""
        unpublished = []
        places = {pointer: place for place, pointer in enumerate(pointers)}
        # A topic that was deleted took along all that was stored in it.
        for log in self._logs.loaded_joined(transaction.topics).values() if pointers else ():
            for pointer in self._staged.writers_in(log, places):  # not every pointer: of hundreds, few have staged here
                reference = self._staged.unpublished(log, pointer)
                if reference is not None:
                    unpublished.append((log, pointer, reference))
        return unpublished

    def close(self, told: Close) -> None:
        """The transaction writes no more, and its commit places nothing."""
        self._expected.pop(told.transaction_id, None)
        self._pointers.close(told.transaction_id)

    async def roll_back(self, asked: RollBack) -> None:
        """Hide the transaction's rows and delete what it stored; repeating it changes nothing."""
        transaction = asked.transaction
        self.close(Close(transaction.id))
        if transaction.topics and not self._logs.memory.atomic:
            await passed(self._by_lane(transaction))  # rows that were added before it was closed are there
        for join in transaction.topics:
            log = await self._logs.joined(join)
            if log is None:
                continue
            rows = log.uncommitted_range(transaction, position(join.from_ms, 0))
            if rows is not None:
                await self._roll_backs.roll_back(log, list(transaction.pointers), *rows)
            for start in range(0, len(transaction.pointers), REMOVED_TOGETHER_MAX):
                pointers = transaction.pointers[start : start + REMOVED_TOGETHER_MAX]
                await self._staged.ready(log, pointers)
                lane = self._writer.lane_of(prefix_of(log))
                await lane.run(partial(self._remove_unpublished, log, pointers))

    def _remove_unpublished(self, log: TopicLog, pointers: Sequence[int], group: Group) -> None:
        if log.ended:
            return
        self._staged.require({log: pointers})
        for pointer in pointers:
            self._staged.remove_unpublished(group, log, pointer)

    async def closed(self, transaction: JoinedTransaction) -> None:
        """Return once no owner takes anything under the transaction's pointers. Here that is so when it is told: `close`."""

    async def hold(self, transactions: Sequence[JoinedTransaction]) -> Callable[[], None]:
        """Open the topics of transactions that are about to go to the invalid list; they stay open until what is returned is called."""
        return await self._logs.hold(
            {title_of(join.topic) for transaction in transactions for join in transaction.topics}
        )

    def require(self, transactions: Sequence[JoinedTransaction]) -> None:
        """In a stage, before anything is changed: what `invalidate` needs of these transactions is in memory, and no shard of
        theirs moves."""
        for transaction in transactions:
            self._logs.gate.require([join.topic for join in transaction.topics])
            self._logs.gate.require([table.table for table in transaction.tables])
        if self._store_drops:
            self._logs.loaded_joined([join for transaction in transactions for join in transaction.topics])

    async def note_ends(self, transactions: Sequence[JoinedTransaction]) -> None:
        """These are about to go to the invalid list: take no more under their pointers, and leave the notes, durably.

        Notes of one that does not go there after all change nothing.
        """
        for transaction in transactions:
            self.close(Close(transaction.id))
        release = await self.hold(transactions)
        try:
            # Behind writes that were taken before, so that the notes are about these, too.
            parts: dict[GroupCommit, list[JoinedTransaction]] = {}
            for transaction in transactions:
                for lane, part in self._by_lane(transaction).items():
                    parts.setdefault(lane, []).append(part)
            await in_each_lane(
                {lane: (partial(self._note_ends, part), 0) for lane, part in parts.items()}, must_run=False
            )
        finally:
            release()

    def _note_ends(self, transactions: Sequence[JoinedTransaction], group: Group) -> None:
        self.require(transactions)
        for transaction in transactions:
            self._note_garbage(group, transaction, in_log=False)

    def invalidate(self, group: Group, transaction: JoinedTransaction) -> None:
        """In a stage: take no more, and leave notes, so that retention finds the rows of a writer that went to the invalid list."""
        self.close(Close(transaction.id))
        self._note_garbage(group, transaction, in_log=True)

    def _note_garbage(self, group: Group, transaction: JoinedTransaction, *, in_log: bool) -> None:
        if not self._store_drops:
            garbage_cells.note(group, self._roll_backs.noted, transaction)
        for join in transaction.topics:
            # Also where it has no rows: its stored payloads are found by the note, too.
            from_position = position(join.from_ms, 0)
            log = self._logs.find_joined(join)
            if log is not None:
                rows = log.uncommitted_range(transaction, from_position)
            else:  # what is not in memory has no rows that this process noted
                rows = None if self._logs.knows(transaction, join) else (from_position, None)
            start, stop = (from_position, from_position) if rows is None else rows
            self._roll_backs.note_garbage(
                group, join, list(transaction.pointers), start, stop or FOREVER, log, in_log=in_log
            )

    def end(self, told: End) -> None:
        """The outcome is durable: wake the readers that it held back, forget what it stored."""
        transaction = told.transaction
        self._pointers.end(transaction.id)
        self._expected.pop(transaction.id, None)
        pointers = frozenset(transaction.pointers)
        for join in transaction.topics:
            log = self._logs.find_joined(join)
            if log is not None:
                log.end_writers(pointers)
                log.notify()


def _keys_of(transaction: JoinedTransaction) -> list[tuple[bytes, int]]:
    return [*(join.key for join in transaction.topics), *((each.table, each.generation) for each in transaction.tables)]


def _not_expected(transaction_id: int) -> TransactionEndedError:
    return TransactionEndedError(
        f"the commit of transaction {transaction_id} is not expected here: it was given up, or its rows are placed already",
        hint="Ask for its outcome; one that was aborted is to be run again.",
    )
