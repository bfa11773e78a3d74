"""Dead letters: messages that failed too often, or were rejected, go to the topic that their group names for them.

A message is published there and acknowledged by one one-shot transaction of the server, or by the commit that rejects it, so it
is in one of the two places at any time and in both at none. What came back for the last time is *parked* in its group, by the
same entry of the log that counts the attempt. So nothing is to be remembered: whatever is parked, and has a topic to go to, is
moved; and what that topic refuses stays parked, and is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from basalt.api.bodies.groups import GroupOptions
from basalt.api.bodies.messages import RecordIn, Rejection, Work, WorkAcknowledge, WorkPublish
from basalt.catalog.topics import TopicName, title_of
from basalt.commits.owning.owner import Owner
from basalt.errors import BusyError, ConflictError, MessageNotFoundError, TooLargeError, TopicNotFoundError
from basalt.groups.groups import Groups, dead_letter_title
from basalt.groups.live_group import LiveGroup, options_of
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.read.log_reader import SliceLimits, before
from basalt.messaging.read.slices import Slice
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.groups import NEVER_MS, GroupState
from basalt_engine.clock import Clock
from basalt_engine.errors import CorruptionError, InputError
from basalt_engine.keys import position_fields, topic_prefix
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.records import Buffer, Extras

MOVED_MAX = 100  # messages that one one-shot transaction moves
MOVED_BYTES_MAX = 4 << 20
REJECTED_BYTES_MAX = 32 << 20  # of all messages that one decision rejects: they are in memory until it is written
TRY_AGAIN_MS = 60_000  # after the topic of dead letters refused a message
REFUSED_MAX = (
    10_000  # messages of one group of which this is remembered; of more, the whole group is let be for as long
)
HEADER_PREFIX = "basalt-dead-"  # of the headers that say where a dead letter comes from

OneShot = Callable[[Work, str], Awaitable[object]]
log = logging.getLogger("basalt.groups")


class _Dead(NamedTuple):
    """A message that is to become a dead letter."""

    id: bytes
    payload: Buffer
    extras: Extras
    attempts: int
    reason: str

    def record(self, title: TopicName, group: str) -> RecordIn:
        """The message as it was, with headers that say where it comes from. One that was a dead letter before says so anew."""
        published_ms, _ = position_fields(self.id[:POSITION_BYTES])
        told = {
            "topic": str(title), "group": group, "id": self.id.hex(), "attempts": str(self.attempts), "reason": self.reason,
            "published-ms": str(published_ms),
        }  # fmt: skip
        kept = [(name, value) for name, value in self.extras.headers if not name.startswith(HEADER_PREFIX)]
        added = [(HEADER_PREFIX + name, value.encode()) for name, value in told.items()]
        return RecordIn(bytes(self.payload), self.extras.key, (*kept, *added), self.extras.event_time_ms)


class DeadLetters:
    """Moves messages of all groups of one store to the topics for them."""

    def __init__(self, clock: Clock, manager: TransactionManager, groups: Groups, owner: Owner) -> None:
        self._owner = owner
        self._clock = clock
        self._manager = manager
        self._groups = groups
        self._logs = groups.desk.logs
        self._messages = groups.desk.messages
        self._refused: dict[
            int, tuple[float, set[bytes] | None]
        ] = {}  # by group: since when, and which; None: too many

    async def with_rejected(self, work: Work) -> Work:
        """The same work, in which what is rejected is among the ids that are acknowledged, and published as dead letters."""
        if not any(entry.reject for entry in work.acknowledge):
            return work
        publish, acknowledge, bytes_left = list(work.publish), list[WorkAcknowledge](), REJECTED_BYTES_MAX
        _check_once(work.acknowledge)
        for entry in work.acknowledge:
            if entry.reject:
                rejected = await self._rejected(entry, bytes_left)
                bytes_left -= sum(len(record.payload) for record in rejected.records)
                publish.append(rejected)
            ids = dict.fromkeys((*map(bytes, entry.ids), *(bytes(each.id) for each in entry.reject)))
            acknowledge.append(_replaced(entry, tuple(ids)))
        return Work(publish, work.markers, work.segments, acknowledge)

    async def _rejected(self, entry: WorkAcknowledge, bytes_max: int) -> WorkPublish:
        title = self._logs.title(entry.namespace, entry.topic)
        live = await self._groups.find(title, entry.group)
        if live.options.dead_letter_topic is None:
            raise ConflictError(
                f"group {entry.group} has no topic for dead letters: nothing can be rejected",
                field="reject",
                hint="give it one (deadLetterTopic), or release the message: it is parked when it has failed too often",
            )
        topic_log, state = await live.open()
        reasons: dict[bytes, Rejection] = {bytes(each.id): each for each in entry.reject}
        records = []
        for message_id in sorted(reasons):
            found = await self._read(topic_log, before(message_id), message_id, 1)
            if not found or found[0].first_id() != message_id:
                raise MessageNotFoundError(
                    f"topic {title} has no message {message_id.hex()}",
                    field="reject",
                    hint="send ids as a fetch answered them",
                )
            known = state.returns.at(message_id)
            attempts = 1 if known is None else known.attempts + 1
            dead = next(_messages(found[0], attempts, reasons[message_id].reason))
            records.append(dead.record(title, entry.group))
            bytes_max -= len(dead.payload)
            if bytes_max < 0:
                raise TooLargeError(
                    f"what is rejected has over {REJECTED_BYTES_MAX >> 20} MiB",
                    field="reject",
                    hint="reject fewer messages with one decision",
                )
        return self._publication(title, live.options, records)

    def _publication(self, title: TopicName, options: GroupOptions, records: list[RecordIn]) -> WorkPublish:
        return WorkPublish(*dead_letter_title(self._logs, title, options), records=records)

    # What is parked.

    async def move(self, one_shot: OneShot) -> int:
        """Move what is parked and has a topic to go to; how many messages. Costs next to nothing where nothing is.

        Raises, once all others are moved, why a group's messages cannot be read.
        """
        if not self._manager.is_known:
            return 0
        moved, table, unreadable = 0, self._manager.state.groups, list[CorruptionError]()
        for number in [number for number in self._refused if number not in table.by_number]:
            del self._refused[number]
        for number in [number for number, state in table.by_number.items() if len(state.returns)]:
            state = table.by_number.get(number)
            if (
                state is None
                or options_of(state).dead_letter_topic is None
                or not self._groups.live.is_here(state.prefix)
            ):
                continue
            parked = [
                (after, through) for after, through, attempt in state.returns if attempt.not_before_ms == NEVER_MS
            ]
            if parked:
                try:
                    moved += await self._move_of(state, parked, one_shot)
                except CorruptionError as error:
                    log.warning("dead letters of group %s of %s: %s", state.name, title_of(state.prefix), error)
                    unreadable.append(error)
        if unreadable:
            raise unreadable[0]
        return moved

    async def _move_of(self, state: GroupState, parked: list[tuple[bytes, bytes]], one_shot: OneShot) -> int:
        title, moved = title_of(state.prefix), 0
        now_ms = self._clock.monotonic_ms()
        since_ms, known = self._refused.get(state.number, (now_ms, set()))
        refused = known if now_ms - since_ms < TRY_AGAIN_MS else set()
        if refused is None:
            return 0
        if refused is not known:
            since_ms = now_ms
        round_ = state.round
        try:
            live = await self._groups.find(title, state.name)
            topic_log, _ = await live.open()
        except InputError:  # its topic is gone, and so is the group soon
            return 0
        if not await self._has_topic(live):
            self._refused[state.number] = now_ms, None
            return 0
        for after, through in parked:
            place = after
            while place < through and live.state.round == round_:
                slices = await self._read(topic_log, place, through, MOVED_MAX)
                if not slices:
                    break
                place = slices[-1].last_id()
                dead = [each for part in slices for each in self._dead(live, part) if each.id not in refused]
                done = await self._move_some(live, dead, round_, one_shot)
                moved += len(done)
                refused |= {each.id for each in dead} - done
        if refused:
            self._refused[state.number] = since_ms, refused if len(refused) <= REFUSED_MAX else None
        else:
            self._refused.pop(state.number, None)
        return moved

    async def _has_topic(self, live: LiveGroup) -> bool:
        """False where the topic of dead letters was deleted: then no message need be tried."""
        if live.options.dead_letter_topic is None:
            return False
        title = dead_letter_title(self._logs, live.title, live.options)
        try:
            if self._groups.live.is_here(topic_prefix(*title)):
                await self._owner.join_of(title)
            elif (await self._logs.catalog.describe(title)).generation < 0:
                raise self._logs.catalog.absent(title)
        except TopicNotFoundError:
            log.warning(
                "dead letters of group %s of %s stay parked: topic %s is not there", live.state.name, live.title, title
            )
            return False
        return True

    def _dead(self, live: LiveGroup, part: Slice) -> Iterator[_Dead]:
        """Those of the messages that are parked still, and not acknowledged by a transaction."""
        state = live.state
        for each in _messages(part, 0, ""):
            attempt = state.returns.at(each.id)
            if attempt is None or attempt.not_before_ms != NEVER_MS or live.dispatcher.pending.covers(each.id):
                continue
            reason = attempt.reason.name.lower().replace("_", " ")
            yield each._replace(attempts=attempt.attempts, reason=reason)

    async def _move_some(self, live: LiveGroup, dead: list[_Dead], round_: int, one_shot: OneShot) -> set[bytes]:
        """Move these, all together or else each for itself; the ids of those that were moved."""
        if not dead:
            return set()
        if await self._move_together(live, dead, round_, one_shot):
            done = {each.id for each in dead}
        elif len(dead) > 1:
            done = {each.id for each in dead if await self._move_together(live, [each], round_, one_shot)}
        else:
            done = set()
        live.totals.were_dead_lettered(len(done))
        return done

    async def _move_together(self, live: LiveGroup, dead: list[_Dead], round_: int, one_shot: OneShot) -> bool:
        title, name = live.title, live.state.name
        records = [each.record(title, name) for each in dead]
        entry = WorkAcknowledge(*title, name, tuple(each.id for each in dead), round=round_)
        work = Work([self._publication(title, live.options, records)], acknowledge=[entry])
        try:
            await one_shot(work, f"group {name}")
        except (InputError, BusyError) as error:  # other groups are not to wait for this one
            if len(dead) == 1:
                log.warning(
                    "message %s of group %s of %s stays parked: %s", dead[0].id.hex(), name, title, error.message
                )
            return False
        log.info("group %s of %s: %d messages became dead letters", name, title, len(dead))
        return True

    async def _read(self, topic_log: TopicLog, after: bytes, through: bytes, messages_max: int) -> list[Slice]:
        limits = SliceLimits(messages_max, MOVED_BYTES_MAX, 1, through)
        return (await self._messages.read_committed(topic_log, after, limits)).slices


def _check_once(entries: Sequence[WorkAcknowledge]) -> None:
    """A message that two entries reject would be two dead letters."""
    seen = set[tuple[str, str, str, bytes]]()
    for entry in entries:
        for each in entry.reject:
            rejected = (entry.namespace, entry.topic, entry.group, bytes(each.id))
            if rejected in seen:
                raise InputError(
                    f"message {rejected[3].hex()} of group {entry.group} is rejected twice", field="reject"
                )
            seen.add(rejected)


def _messages(part: Slice, attempts: int, reason: str) -> Iterator[_Dead]:
    for message_id, payload, extras in zip(part.ids(), part.payloads(), part.extras(), strict=True):
        yield _Dead(message_id, payload, extras, attempts, reason)


def _replaced(entry: WorkAcknowledge, ids: tuple[bytes, ...]) -> WorkAcknowledge:
    return WorkAcknowledge(
        entry.namespace, entry.topic, entry.group, ids, entry.up_to, entry.member, entry.epoch, entry.round, entry.claims,
        entry.except_ids, entry.reject,
    )  # fmt: skip
