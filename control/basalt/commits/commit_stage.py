"""Begin, commit and one-shot transactions in the group commit, and what they do to topics.

Where the store is atomic over tables a commit's rows and its edit are one batch, and a commit is one stage. Elsewhere a commit
with rows is three, each durable before the next: `commit` logs what is intended, `place` adds the rows, `decide` logs the
outcome; recovery rolls back what got none. `commits.carrier` takes these steps, and those of one-shot transactions.

What a transaction acknowledges in consumer groups is decided by its outcome.

Commit gives a transaction's messages their places: those of its work, and one reference per topic and write pointer to
what was stored. So an open transaction holds nobody back but readers of rows that its client published early by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from basalt.api.bodies.messages import PUBLISH_MESSAGES_MAX, Work, WorkMarker, WorkPublish
from basalt.api.markers import Marker
from basalt.catalog.topics import Topic, title_of
from basalt.errors import InputError, TooLargeError, TopicNotFoundError
from basalt.groups.acknowledgements import PlannedAcknowledgement
from basalt.groups.groups import Groups
from basalt.messaging.log.append import RecordColumns
from basalt.messaging.log.roll_back import RollBacks
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers, check_shape
from basalt.runtime.group_commit import Group, GroupCommit, NotLoadedError
from basalt.tables import garbage_cells
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.edits import Aborted, Aborting, Committed, Doomed, Edit, Invalidated, ReturnReason
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Join, Kind, SessionBinding, State, Transaction
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.keys import position
from basalt_engine.messages import Reference
from basalt_engine.records import Buffer, Extras
from basalt_engine.snapshot import PointerRuns
from basalt_engine.spans import Spans


class Beginning(NamedTuple):
    """The arguments of a begin, but for the session. `principal` is whose it is to be."""

    kind: Kind = Kind.SHORT
    timeout_ms: int | None = None
    owner: str = ""
    external_writes: bool = False
    request_id: str | None = None
    principal: str = ""


class Asking(NamedTuple):
    """Who asks for a one-shot transaction: a label, the request, and whose the transaction is to be."""

    owner: str = ""
    request_id: str | None = None
    principal: str = ""


Guard = Callable[[Transaction | None], None]  # looks at the transaction, None when it has ended, and may refuse


class _EndedInGroups(NamedTuple):
    """A transaction that acknowledges no more, why not (None: it committed), and whether that is a failed attempt.

    It is none when somebody else was first, and when a commit was interrupted, by a restart say.
    """

    transaction_id: int
    reason: ReturnReason | None
    counts: bool
    pending: Mapping[int, Spans]


def _asked_by(edit: Edit, request_id: str | None) -> Edit:
    """The edit that dooms a transaction at its commit, with the request by which that was asked for."""
    return replace(edit, request_id=request_id) if isinstance(edit, Doomed) else edit


class CommitStage:
    """The stages of one store's transactions."""

    def __init__(self, manager: TransactionManager, topics: TopicParticipant, groups: Groups, clock: Clock) -> None:
        self._manager = manager
        self._topics = topics
        self._groups = groups
        self._clock = clock

    def apply(self, group: Group, made: Sequence[Edit]) -> None:
        """In a stage: make the edits true, log them, and tell topics and groups of the transactions that they end."""
        for edit in made:
            if isinstance(edit, Invalidated):  # before anything is changed: the stage may have to run again
                found = map(self._manager.state.find, edit.ids)
                self._topics.require([transaction for transaction in found if transaction is not None])
        if not len(self._manager.state.groups):
            self._apply(group, made)
            return
        for edit in made:
            ended = self._ended_in_groups(edit)
            self._apply(group, (edit,))
            for each in ended:
                self._tell_groups(group, each)

    def _ended_in_groups(self, edit: Edit) -> list[_EndedInGroups]:
        """The transactions that the edit takes out of the groups in which they acknowledged, or were dealt messages."""
        state = self._manager.state
        if isinstance(edit, Committed):
            return [_EndedInGroups(edit.id, None, False, dict(state.groups.pending_of(edit.id)))]
        if not isinstance(edit, Aborting | Aborted | Invalidated):
            return []
        found = []
        reason = ReturnReason.TIMED_OUT if edit.timed_out else ReturnReason.ABORTED
        for key in edit.ids if isinstance(edit, Invalidated) else (edit.id,):
            transaction = state.find(key)
            if transaction is not None and transaction.state is not State.ABORTING:  # whose abort they have heard of
                counts = transaction.state is State.OPEN and transaction.doomed is None
                found.append(_EndedInGroups(key, reason, counts, dict(state.groups.pending_of(key))))
        return found

    def _tell_groups(self, group: Group, ended: _EndedInGroups) -> None:
        made = self._groups.transaction_ended(
            group, ended.transaction_id, ended.reason, ended.pending, counts=ended.counts
        )
        if ended.reason is not None and ended.counts:
            returns = self._manager.state.groups.returns_of(ended.pending, ended.reason, group.now_ms)
            self._manager.apply(group, [*returns, *made])

    def _apply(self, group: Group, made: Sequence[Edit]) -> None:
        for transaction, state in self._manager.apply(group, made):
            if state is State.INVALID:
                self._topics.invalidate(group, transaction)
            if transaction.topics:
                # Called after the manager's own part of the group, so that readers who are woken see the new state.
                group.when_durable(partial(self._topics.ended, transaction))

    def begin(
        self, group: Group, asked: Beginning, session: SessionBinding | None = None, *, changes_deferred: bool = False
    ) -> Transaction:
        """In a stage: begin a transaction. `changes_deferred`: what it changes is logged with its commit only."""
        state = self._manager.state
        proposal = state.begin(group.now_ms, *asked, session=session, changes_deferred=changes_deferred)
        self._manager.apply(group, proposal.edits)
        return state.get(proposal.transaction_id)

    def commit(
        self,
        transaction_id: int,
        plan: TopicPlan,
        request_id: str | None = None,
        deferred_changes: frozenset[bytes] | None = None,
        guard: Guard | None = None,
    ) -> Callable[[Group], Outcome | BasaltError | None]:
        """The stage that publishes what was planned and all that was stored, and decides.

        Its answer may be a refusal, which is durable by then. None: rows are to be placed first, by a stage of another lane. A `guard`
        raises when it must not be, and then nothing has changed.
        """
        started_ms = self._clock.monotonic_ms()

        def stage(group: Group) -> Outcome | BasaltError | None:
            manager, topics = self._manager, self._topics
            state = manager.state
            if guard is not None:
                guard(state.find(transaction_id))
            at_once = manager.atomic or not _has_rows(plan, state.find(transaction_id))
            proposal = state.commit(
                transaction_id, group.now_ms, inline=at_once, request_id=request_id, deferred_changes=deferred_changes,
            )  # fmt: skip
            if proposal.refusal is not None or not proposal.edits:
                self.apply(group, proposal.edits)
                return proposal.refusal or state.outcome(transaction_id)
            transaction = state.get(transaction_id)
            topics.check(plan, transaction)
            planned = plan.acknowledgements
            if planned or state.groups.pending_of(transaction_id):
                lost = self._groups.check(planned, transaction, group.now_ms)
                if lost is not None:
                    self.apply(group, [_asked_by(edit, request_id) for edit in lost.edits])
                    return lost.refusal or state.outcome(transaction_id)
            if at_once:
                topics.commit(group, plan, transaction.write_pointer, transaction)
            else:
                self._join(group, transaction.write_pointer, plan)
            if planned:  # they are the transaction's from here on, and the groups' once it has committed
                self.apply(group, self._groups.stage(group, planned, transaction_id, group.now_ms))
            self.apply(group, proposal.edits)
            if not at_once:
                return None
            group.when_durable(partial(self.count_commit, started_ms))
            return state.outcome(transaction_id)

        return stage

    def place(self, group: Group, transaction_id: int, plan: TopicPlan) -> None:
        """In a stage of the lane of topics: add the rows of a commit whose intent is durable. Refused where it was given up since."""
        state = self._manager.state
        state.commit(transaction_id, group.now_ms)
        transaction = state.get(transaction_id)
        self._topics.check(plan, transaction)
        self._topics.place(group, plan, transaction)

    def decide(self, group: Group, transaction_id: int, started_ms: float) -> Outcome:
        """In a stage of the log: the rows of a commit are durable, so it is done. Refused where it was given up since."""
        state = self._manager.state
        state.commit(transaction_id, group.now_ms)
        self.apply(group, state.finish(transaction_id, group.now_ms).edits)
        group.when_durable(partial(self.count_commit, started_ms))
        return state.outcome(transaction_id)

    def give_up(self, group: Group, transaction_id: int) -> Transaction | None:
        """In a stage of the log: rows of a commit could not be placed. Returns the transaction while it is to be rolled back."""
        state = self._manager.state
        self.apply(group, state.give_up(transaction_id, group.now_ms).edits)
        return state.find(transaction_id)

    def one_shot(self, group: Group, plan: TopicPlan, asked: Asking) -> Outcome:
        """In a stage: begin, add the plan's rows and commit, unless that was done before under the same request id.

        Where rows and log are not one batch, only of a plan without rows.
        """
        manager = self._manager
        state = manager.state
        made = state.begin_committed(group.now_ms, *asked)
        if not made.edits:
            return state.outcome(made.transaction_id)
        self._topics.check(plan, None)
        if plan.acknowledgements:
            self._groups.check(plan.acknowledgements, None, group.now_ms, made.transaction_id)
        self._topics.commit(group, plan, made.transaction_id, None)
        manager.apply(group, made.edits)
        self.acknowledge(group, plan, made.transaction_id)
        return state.outcome(made.transaction_id)

    def acknowledge(self, group: Group, plan: TopicPlan, writer: int) -> None:
        """In the stage of a one-shot transaction, behind its outcome: what is acknowledged without it would be lost work."""
        if plan.acknowledgements:
            made = self._groups.stage(group, plan.acknowledgements, None, group.now_ms, writer)
            self._manager.apply(group, made)

    def one_shot_of(
        self, plan: TopicPlan, asked: Asking, staged: Callable[[Group], None] | None = None
    ) -> Callable[[Group], Outcome]:
        """The stage of a one-shot transaction, counted as a commit that begins now. Calls `staged` once nothing refuses it any more."""
        started_ms = self._clock.monotonic_ms()

        def stage(group: Group) -> Outcome:
            outcome = self.one_shot(group, plan, asked)
            group.when_durable(partial(self.count_commit, started_ms))
            if staged is not None:
                staged(group)
            return outcome

        return stage

    def answered_one_shot(self, group: Group, asked: Asking) -> Outcome | None:
        """In a stage: the outcome of an earlier one-shot transaction with this request id."""
        state = self._manager.state
        if state.in_flight.has_request(asked.request_id):
            raise NotLoadedError(self._manager.until_decided)
        first = state.first_one_shot(asked.request_id, asked.owner)
        return None if first is None else state.outcome(first)

    def count_commit(self, started_ms: float) -> None:
        """A commit that began then is done."""
        self._manager.totals.commits.add((self._clock.monotonic_ms() - started_ms) / 1_000)

    def _join(self, group: Group, write_pointer: int, plan: TopicPlan) -> None:
        """Log the plan's topics: if rows and outcome are not one batch, recovery must know where to look for rows."""
        for join in self._topics.joins(plan):
            self._manager.join_in_log(group, write_pointer, join)


FOREVER = position((1 << 64) - 1, 0xFFFF)
REMOVED_TOGETHER_MAX = 100  # writers whose stored payloads one group removes: others wait for it
MARKER_BYTES = 512  # what a marker counts in the queue


class Publication(NamedTuple):
    """Messages that a commit publishes to one topic."""

    log: TopicLog
    messages: Sequence[Buffer]
    extras: Sequence[Extras] | None


class TopicPlan(NamedTuple):
    """The messages and markers that a commit will publish, checked before its stage. Markers come after their messages.
    What it acknowledges in groups is decided with it.

    It holds the logs, so that its stage finds them in memory.
    """

    publications: list[Publication]
    markers: Sequence[tuple[TopicLog, Marker]] = ()
    segments: Sequence[int] | None = None  # the write pointers whose stored payloads it publishes; None: all
    acknowledgements: Sequence[PlannedAcknowledgement] = ()

    @property
    def topics(self) -> list[Topic]:
        return [log.topic for log in self.logs]

    @property
    def logs(self) -> list[TopicLog]:
        logs = [publication.log for publication in self.publications]
        if self.markers:
            logs += [log for log, _ in self.markers]
        return logs

    @property
    def payload_bytes(self) -> int:
        total = len(self.markers) * MARKER_BYTES
        for publication in self.publications:
            total += sum(map(len, publication.messages))
        return total


def _has_rows(plan: TopicPlan, transaction: Transaction | None) -> bool:
    """True when the commit has, or may have, something to write in topics; or cells may be under way, for which it waits."""
    joined = transaction is not None and (transaction.topics or transaction.tables)
    return bool(plan.publications or plan.markers or joined)


def _add_publication(publications: list[Publication], number: int, part: WorkPublish, log: TopicLog) -> None:
    messages, extras = RecordColumns.of(part.records) if part.records else (part.messages, None)
    if len(messages) > PUBLISH_MESSAGES_MAX:
        raise TooLargeError(
            f"publish[{number}] has {len(messages)} messages, the limit is {PUBLISH_MESSAGES_MAX}",
            field=f"publish[{number}].messages",
            hint="give the same topic several times",
        )
    if messages:
        publications.append(Publication(log, messages, extras))


class TopicParticipant:
    """Commits and rolls back what transactions did to topics."""

    def __init__(
        self, logs: TopicLogs, roll_backs: RollBacks, writer: GroupCommit, markers: TopicMarkers, *, store_drops: bool
    ) -> None:
        """`store_drops`: the store drops rows of failed writers itself, so the ends of their logs must be noted before.
        A store that does not gets notes of failed writers of transactional tables, because nothing else finds their
        cells.
        """
        self._logs = logs
        self._roll_backs = roll_backs
        self._staged = logs.staged
        self._writer = writer
        self._markers = markers
        self._store_drops = store_drops

    def recovered(self, last_pointer: int, lent: PointerRuns) -> None:
        """Forget where rows of transactions up to this pointer lie: their roll backs search for them. Those of loans have none."""
        self._logs.recovered(last_pointer, lent)

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
            _add_publication(publications, number, part, log)
        return TopicPlan(publications, (), work.segments)

    async def plan(self, work: Work | None, transaction: Transaction | None) -> TopicPlan:
        """Check the work, and read where its topics end, and what was stored under the transaction's pointers."""
        publications: list[Publication] = []
        for number, part in enumerate(work.publish if work is not None else ()):
            title = self._logs.title(part.namespace, part.topic)
            log = self._logs.find(title) or await self._logs.open(title)
            _add_publication(publications, number, part, log)
        segments = None if work is None else work.segments
        if transaction is not None:
            await self._read_ahead(transaction, early_rows=segments is not None)
        return TopicPlan(publications, await self._planned_markers(() if work is None else work.markers), segments)

    async def _read_ahead(self, transaction: Transaction, *, early_rows: bool) -> None:
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

    def check(self, plan: TopicPlan, transaction: Transaction | None) -> None:
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
                raise InputError(
                    "a one-shot transaction has stored nothing, and no segments",
                    field="segments",
                    hint="Leave them out.",
                )
            self._check_segments(plan.segments, transaction)

    def _taking_messages(self, plan: TopicPlan, transaction: Transaction | None) -> Iterator[TopicLog]:
        """The logs with markers to which the commit adds messages: those of its work, and what was stored."""
        yield from (publication.log for publication in plan.publications)
        if transaction is None or not any(log.marked for log in self._logs.loaded_joined(transaction.topics).values()):
            return
        segments = transaction.pointers if plan.segments is None else plan.segments
        yield from (log for log, _, _ in self._unpublished(transaction, segments))

    def _check_segments(self, segments: Sequence[int], transaction: Transaction) -> None:
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

    def joins(self, plan: TopicPlan) -> list[Join]:
        """The plan's topics, each once, as they are before its rows."""
        topics = {topic.keys.generation_key: topic for topic in plan.topics}
        return [Join(*key, self.newest_ms(topic)) for key, topic in topics.items()]

    def newest_ms(self, topic: Topic) -> int:
        """No row that is appended to the topic from now on has an earlier publish time."""
        return self._logs.loaded(topic.title).newest_ms

    def place(self, group: Group, plan: TopicPlan, transaction: Transaction) -> None:
        """In a stage: the same as `commit`, of which the outcome follows. Where the rows lie is noted until then."""
        newest = {log: log.newest for log in self._logs.loaded_joined(transaction.topics).values()}
        self.commit(group, plan, transaction.write_pointer, transaction)
        self._note_undecided(newest, transaction.write_pointer)

    def place_one_shot(self, group: Group, plan: TopicPlan, write_pointer: int) -> None:
        """In a stage: the same of a one-shot transaction."""
        newest = {log: log.newest for log in plan.logs}
        self.commit(group, plan, write_pointer, None)
        self._note_undecided(newest, write_pointer)

    @staticmethod
    def _note_undecided(before: Mapping[TopicLog, bytes], write_pointer: int) -> None:
        for log, newest in before.items():
            if log.newest != newest:
                log.note_uncommitted(write_pointer, newest, log.newest)

    def commit(self, group: Group, plan: TopicPlan, write_pointer: int, transaction: Transaction | None) -> None:
        """In a stage: a reference to all that was stored, in each topic and under each pointer; then the work's rows.

        With segments: under these pointers, in their order; what was stored under others is removed. Where rows and outcome
        are not one batch, a commit that is decided and has no outcome is rolled back, so nothing is missed then either.
        """
        if (transaction is None or not transaction.topics) and not plan.markers:
            for log, messages, extras in plan.publications:
                log.append(group, messages, extras, write_pointer)
            return
        unpublished: list[tuple[TopicLog, int, Reference]] = []
        lost = unpublished
        if transaction is not None and transaction.topics:
            segments = transaction.pointers if plan.segments is None else plan.segments
            unpublished = self._unpublished(transaction, segments)
            lost = self._unpublished(transaction, sorted(frozenset(transaction.pointers).difference(segments)))
        for log, pointer, reference in unpublished:
            # No note is left that these are published: the writer ends here, or is rolled back.
            log.refer(group, reference, pointer, *self._staged.unpublished_counts(log, pointer))
        for log, messages, extras in plan.publications:
            log.append(group, messages, extras, write_pointer)
        for log, marker in plan.markers:
            self._markers.emit(group, log, marker, write_pointer)
        for log, pointer, _ in lost:
            self._staged.remove_unpublished(group, log, pointer)

    def _unpublished(self, transaction: Transaction, pointers: Sequence[int]) -> list[tuple[TopicLog, int, Reference]]:
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

    async def roll_back(self, transaction: Transaction) -> None:
        """Hide the transaction's rows and delete what it stored; repeating it changes nothing."""
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
                await self._writer.run(partial(self._remove_unpublished, log, pointers))

    def _remove_unpublished(self, log: TopicLog, pointers: Sequence[int], group: Group) -> None:
        if log.ended:
            return
        self._staged.require({log: pointers})
        for pointer in pointers:
            self._staged.remove_unpublished(group, log, pointer)

    async def hold(self, transactions: Sequence[Transaction]) -> object:
        """Open the topics of transactions that are about to go to the invalid list; they stay open while what is returned is held."""
        return await self._logs.hold(
            {title_of(join.topic) for transaction in transactions for join in transaction.topics}
        )

    def require(self, transactions: Sequence[Transaction]) -> None:
        """In a stage, before anything is changed: what `invalidate` needs of these transactions is in memory, and no shard of
        theirs moves."""
        for transaction in transactions:
            self._logs.gate.require([join.topic for join in transaction.topics])
            self._logs.gate.require([table.table for table in transaction.tables])
        if self._store_drops:
            self._logs.loaded_joined([join for transaction in transactions for join in transaction.topics])

    def invalidate(self, group: Group, transaction: Transaction) -> None:
        """In a stage: leave notes, so that retention finds the rows of a writer that went to the invalid list."""
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
                group, join, list(transaction.pointers), start, stop or FOREVER, log, in_log=True
            )

    def ended(self, transaction: Transaction) -> None:
        """The outcome is durable: wake the readers that it held back, forget what it stored."""
        pointers = frozenset(transaction.pointers)
        for join in transaction.topics:
            log = self._logs.find_joined(join)
            if log is not None:
                log.end_writers(pointers)
                log.notify()
