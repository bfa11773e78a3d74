"""Topics as participants of transactions: what commit publishes, and what abort takes back.

Commit gives a transaction's messages their places: those of its work, and one reference per topic and write pointer to
what was stored. So an open transaction holds nobody back but readers of rows that its client published early by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from basalt.api.bodies.work import PUBLISH_MESSAGES_MAX, Work, WorkMarker
from basalt.api.markers.marker import Marker
from basalt.catalog.topics import Topic, Topics, title_of, topic_name
from basalt.errors import InputError, TooLargeError, TopicNotFoundError
from basalt.messaging.log.staged_payloads import StoredPayloads
from basalt.messaging.markers.topic_markers import TopicMarkers, check_shape
from basalt.messaging.publish import Messaging
from basalt.runtime.group_commit import Group, GroupCommit
from basalt.tables import garbage_cells as hidden_cells
from basalt.transactions.rules.states import Join, Transaction
from basalt_engine.keys import position, position_fields
from basalt_engine.messages import Reference
from basalt_engine.records import Buffer

FOREVER = position((1 << 64) - 1, 0xFFFF)
REMOVED_TOGETHER_MAX = 100  # writers whose stored payloads one group removes: others wait for it
MARKER_BYTES = 512  # what a marker counts in the queue


class Publication(NamedTuple):
    """Messages that a commit publishes to one topic."""

    topic: Topic
    messages: Sequence[Buffer]


class TopicPlan(NamedTuple):
    """What a commit will publish, checked before its stage. Markers come after the messages that they are about."""

    publications: list[Publication]
    markers: Sequence[tuple[Topic, Marker]] = ()
    segments: Sequence[int] | None = None  # the write pointers whose stored payloads it publishes; None: all

    @property
    def topics(self) -> list[Topic]:
        return [*(publication.topic for publication in self.publications), *(topic for topic, _ in self.markers)]

    @property
    def payload_bytes(self) -> int:
        markers_bytes = len(self.markers) * MARKER_BYTES
        return markers_bytes + sum(sum(map(len, publication.messages)) for publication in self.publications)


class TopicParticipant:
    """Commits and rolls back what transactions did to topics."""

    def __init__(
        self, topics: Topics, messaging: Messaging, stored: StoredPayloads, writer: GroupCommit, markers: TopicMarkers,
        *, notes_cells: bool,
    ) -> None:  # fmt: skip
        """`notes_cells`: failed writers of transactional tables are noted, for nobody else finds their cells."""
        self._topics = topics
        self._messaging = messaging
        self._stored = stored
        self._writer = writer
        self._markers = markers
        self._notes_cells = notes_cells

    def recovered(self, last_pointer: int) -> None:
        """Where the rows of transactions up to this pointer lie is to be searched, when they are rolled back."""
        self._messaging.early.nothing_known_of(last_pointer)
        self._stored.recovered(last_pointer)

    async def unknown_writers(self, topics: Sequence[Join], last_pointer: int) -> Mapping[int, Sequence[Join]]:
        """The writers after this pointer that have rows in these topics, from the given times on; where their rows lie.

        What a write that was given up has left undecided is decided on the way.
        """
        # Also in topics that are not in use: a commit goes by which references of the transaction's there are.
        await self._messaging.appender.settle_all()
        found: dict[int, list[Join]] = {}
        for join in topics:
            topic = await self._joined(join)
            if topic is None:
                continue  # whatever is left of its generation is never served again
            await self._messaging.appender.ready(topic)
            rows = await self._messaging.rows_after(topic, position(join.from_ms, 0), last_pointer)
            for writer, where in rows.items():
                for at in where:
                    self._messaging.early.found(topic.keys[:2], writer, at)
                found.setdefault(writer, []).append(join._replace(from_ms=position_fields(where[0])[0]))
        return found

    async def plan(self, work: Work | None, transaction: Transaction | None) -> TopicPlan:
        """Check the work, and read where its topics end, and what was stored under the transaction's pointers."""
        if work is not None and work.acknowledge:
            hint = "leave it empty: it arrives with consumer groups"
            raise InputError("acknowledge is not supported yet", field="acknowledge", hint=hint)
        publications = []
        for number, part in enumerate(work.publish if work is not None else ()):
            topic = await self._topics.get(topic_name(part.namespace, part.topic))
            if len(part.messages) > PUBLISH_MESSAGES_MAX:
                raise TooLargeError(
                    f"publish[{number}] has {len(part.messages)} messages, the limit is {PUBLISH_MESSAGES_MAX}",
                    field=f"publish[{number}].messages",
                    hint="give the same topic several times",
                )
            await self._messaging.appender.ready(topic)
            if part.messages:
                publications.append(Publication(topic, part.messages))
        segments = None if work is None else work.segments
        if transaction is not None:
            await self._read_ahead(transaction, early_rows=segments is not None)
        return TopicPlan(publications, await self._planned_markers(() if work is None else work.markers), segments)

    async def _read_ahead(self, transaction: Transaction, *, early_rows: bool) -> None:
        """Know what the stage would have to read otherwise: of a transaction that is older than this process."""
        for join in transaction.topics:
            topic = await self._joined(join)
            if topic is None:
                continue
            for pointer in transaction.pointers:
                await self._stored.ready(topic, pointer)
            if early_rows and not self._messaging.early.all_known(transaction):
                rows = await self._messaging.rows_after(topic, position(join.from_ms, 0), transaction.id - 1)
                for pointer in transaction.pointers:
                    for at in rows.get(pointer, ()):
                        self._messaging.early.found(topic.keys[:2], pointer, at)

    async def _planned_markers(self, markers: Sequence[WorkMarker]) -> list[tuple[Topic, Marker]]:
        planned = []
        for number, part in enumerate(markers):
            topic = await self._topics.get(topic_name(part.namespace, part.topic))
            marker = Marker(part.task, part.task_count, part.event_time_ms)
            check_shape(marker, f"markers[{number}]")
            await self._markers.ready(topic)
            planned.append((topic, marker))
        return planned

    def check(self, plan: TopicPlan, transaction: Transaction | None) -> None:
        """In a stage: every topic is still the one that was planned for, and segments are the transaction's."""
        for topic in plan.topics:
            if self._topics.known(topic.title).generation != topic.generation:
                raise TopicNotFoundError(
                    f"topic {topic.title} was deleted and created again meanwhile", field="topic", hint="send it again"
                )
        if plan.markers:
            self._markers.check(
                [(self._topics.known(topic.title), marker) for topic, marker in plan.markers], "markers"
            )
        if plan.segments is not None:
            if transaction is None:
                raise InputError(
                    "a one-shot transaction has stored nothing, and no segments",
                    field="segments",
                    hint="Leave them out.",
                )
            self._check_segments(plan.segments, transaction)

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
        places = dict.fromkeys(left, 0)
        for join in transaction.topics:
            for pointer in sorted(self._messaging.early.writers_in(join[:2], places)):
                raise InputError(
                    f"segment {pointer} of transaction {transaction.id} is left out, and has published messages in topic"
                    f" {title_of(join.topic)} ahead of the commit, which would show them",
                    field="segments",
                    hint="Store what may be left out, and do not publish it. Abort this one, or name the segment, too.",
                )

    def newest_ms(self, topic: Topic) -> int:
        """No row that is appended to the topic from now on has an earlier publish time."""
        return self._messaging.newest_ms(topic)

    def commit(self, group: Group, plan: TopicPlan, write_pointer: int, transaction: Transaction | None) -> None:
        """In a stage: a reference to all that was stored, in each topic and under each pointer; then the work's rows.

        With segments: under these pointers, in their order; what was stored under others is removed. Where rows and outcome
        are not one batch, a commit that is decided and has no outcome is rolled back, so nothing is missed then either.
        """
        # Read first: a read may fail, and then nothing must have been added that the group would write all the same.
        unbound: list[tuple[Topic, int, Reference]] = []
        lost = unbound
        if transaction is not None:
            segments = transaction.pointers if plan.segments is None else plan.segments
            unbound = self._unbound(transaction, segments)
            lost = self._unbound(transaction, sorted(frozenset(transaction.pointers).difference(segments)))
        publications = [(self._topics.known(topic.title), messages) for topic, messages in plan.publications]
        for topic, pointer, reference in unbound:
            payload_bytes = self._stored.unbound_bytes(topic, pointer)
            # No note is left that these are published: the writer ends here, or is rolled back.
            self._messaging.appender.refer(group, topic, reference, pointer, payload_bytes)
        for topic, messages in publications:
            self._messaging.appender.append(group, topic, messages, None, write_pointer)
        for topic, marker in plan.markers:
            self._markers.emit(group, self._topics.known(topic.title), marker, write_pointer)
        for topic, pointer, _ in lost:
            self._stored.remove_unbound(group, topic, pointer)

    def _unbound(self, transaction: Transaction, pointers: Sequence[int]) -> list[tuple[Topic, int, Reference]]:
        """What was stored under the pointers and no reference publishes yet; where its topics end is known from then on."""
        found = []
        places = {pointer: place for place, pointer in enumerate(pointers)}
        for join in transaction.topics:
            # Not every pointer in every topic: of hundreds each, few pairs exist.
            writers = self._stored.writers_in(join[:2], places)
            topic = (
                self._known(join) if writers else None
            )  # a topic that was deleted took along all that was stored in it
            for pointer in writers if topic is not None else ():
                assert topic is not None
                reference = self._stored.unbound(topic, pointer)
                if reference is not None:
                    self._messaging.appender.newest(topic)
                    found.append((topic, pointer, reference))
        return found

    async def roll_back(self, transaction: Transaction) -> None:
        """Hide the transaction's rows and delete what it stored; repeating it changes nothing."""
        for join in transaction.topics:
            topic = await self._joined(join)
            if topic is None:
                continue
            rows = self._messaging.early.range_of(topic.keys[:2], transaction, position(join.from_ms, 0))
            if rows is not None:
                await self._messaging.hide(topic, list(transaction.pointers), *rows)
            for start in range(0, len(transaction.pointers), REMOVED_TOGETHER_MAX):
                pointers = transaction.pointers[start : start + REMOVED_TOGETHER_MAX]
                for pointer in pointers:
                    await self._stored.ready(topic, pointer)
                await self._writer.run(partial(self._remove_unbound, topic, pointers))

    def _remove_unbound(self, topic: Topic, pointers: Sequence[int], group: Group) -> None:
        for pointer in pointers:
            self._stored.remove_unbound(group, topic, pointer)

    def invalidate(self, group: Group, transaction: Transaction) -> None:
        """In a stage: leave notes, so that retention finds the rows of a writer that went to the invalid list."""
        if self._notes_cells:
            hidden_cells.note(group, transaction)
        for join in transaction.topics:
            topic = self._known(join)
            if topic is not None:
                # Also where it has no rows: its stored payloads are found by the note, too.
                from_position = position(join.from_ms, 0)
                rows = self._messaging.early.range_of(topic.keys[:2], transaction, from_position)
                start, stop = (from_position, from_position) if rows is None else rows
                self._messaging.note_hidden(group, topic, list(transaction.pointers), start, stop or FOREVER)

    def ended(self, transaction: Transaction) -> None:
        """The outcome is durable: wake the readers that it held back, forget what it stored."""
        places = {pointer: place for place, pointer in enumerate(transaction.pointers)}
        for join in transaction.topics:
            key = (join.topic, join.generation)
            for pointer in self._stored.writers_in(key, places):
                self._stored.forget(key, pointer)
            for pointer in self._messaging.early.writers_in(key, places):
                self._messaging.early.forget(key, pointer)
            self._messaging.arrivals.notify(key)

    async def _joined(self, join: Join) -> Topic | None:
        try:
            topic = await self._topics.get(title_of(join.topic))
        except TopicNotFoundError:
            return None
        return topic if topic.generation == join.generation else None

    def _known(self, join: Join) -> Topic | None:
        try:
            topic = self._topics.known(title_of(join.topic))
        except TopicNotFoundError:
            return None
        return topic if topic.generation == join.generation else None
