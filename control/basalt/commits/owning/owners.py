"""The owners of all topics, as the coordinator has them: each message is split by who has the topics' shards.

What is here goes to this server's own topics directly, the rest over links, to all at once. The map of owners says who has which
shard (`ShardGate.owners`); a server that has lost one refuses what is about it, so a map that is old does no harm. A commit of which
one owner does not answer is given up; a roll back is tried again until each owner has answered. docs/decisions/0070-commits-over-several-owners.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from basalt.api.bodies.messages import Work, WorkMarker, WorkPublish
from basalt.catalog.topics import TopicName
from basalt.cluster.links.frames import CallKind
from basalt.cluster.links.link import Link
from basalt.cluster.links.links import Links
from basalt.cluster.shard_gate import SEND_AGAIN
from basalt.commits.owning.owner import PREPARED_MS_MAX, Owner
from basalt.commits.owning.owner_calls import CLOSE, DROP, JOIN_OF, NOTE_ENDS, PLACE, PREPARE, ROLL_BACK, PrepareCall
from basalt.errors import ShardMovingError, UnavailableError, UnknownOutcomeError
from basalt.messaging.log.roll_back import RollBacks
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.runtime.group_commit import Group, NotLoadedError
from basalt.runtime.write_lanes import TopicLanes
from basalt.transactions.open_pointers import OpenPointers
from basalt.transactions.protocol import Close, JoinedTransaction, Place, Prepare, Prepared, RollBack
from basalt.transactions.rules.transaction import Join, TableJoin
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.keys import topic_prefix
from basalt_engine.snapshot import PointerRuns
from basalt_engine.stores.shards import shard_of

ASKED_MS_MAX = 4_000  # for an answer that a client waits for: it hears about its transaction within five seconds
ROLL_BACK_MS_MAX = 60_000  # a roll back may have to search a whole topic; what is rolled back by then stays so

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")

log = logging.getLogger("basalt.transactions")


class _KeptApart(NamedTuple):
    """The parts that several owners keep of one commit, and since when.

    `carrier` is the member to which the commit came, if to one: it lets go of its part by itself.
    """

    numbers: Mapping[str, int]  # by member
    topics: Mapping[bytes, str]  # of the work: the members that keep its messages, by the topics' prefixes
    has_segments: bool
    since_ms: float
    carrier: str | None = None


class Owners(Owner):
    """The owner of this server's topics, which has the others do their part. Of one map for all shards nothing is split."""

    def __init__(
        self, logs: TopicLogs, roll_backs: RollBacks, writer: TopicLanes, markers: TopicMarkers, pointers: OpenPointers,
        clock: Clock, *, store_drops: bool, links: Links, member: str, place_ms: int,
    ) -> None:  # fmt: skip
        """`member` is the name by which the map knows this server; `place_ms` is the longest that the rows of a commit may take."""
        super().__init__(logs, roll_backs, writer, markers, pointers, clock, store_drops=store_drops)
        self.links = links
        self.member = member
        self._place_ms = place_ms
        self._apart: dict[int, _KeptApart] = {}  # by number, which fall from -1; the oldest first
        self._apart_before = 0
        self._noted: Counter[tuple[str, JoinedTransaction]] = Counter()  # by member: for stages that wait to run
        self._tasks: set[asyncio.Task[None]] = set()

    # Who has what.

    def member_of(self, prefix: bytes) -> str:
        """The name of the server that owns the topic or table of this prefix."""
        owners = self._logs.gate.owners
        return self.member if owners is None else owners.owner_of(shard_of(prefix))

    @property
    def _has_every_shard(self) -> bool:
        owners = self._logs.gate.owners
        return owners is None or owners.members == (self.member,)

    def _split(self, transaction: JoinedTransaction) -> dict[str, JoinedTransaction]:
        """The parts of what the transaction has joined, by member; one that has joined nothing is here."""
        if self._has_every_shard or not (transaction.topics or transaction.tables):
            return {self.member: transaction}
        topics: dict[str, list[Join]] = {}
        tables: dict[str, list[TableJoin]] = {}
        for join in transaction.topics:
            topics.setdefault(self.member_of(join.topic), []).append(join)
        for table in transaction.tables:
            tables.setdefault(self.member_of(table.table), []).append(table)
        return {
            member: replace(transaction, topics=tuple(topics.get(member, ())), tables=tuple(tables.get(member, ())))
            for member in topics | tables
        }

    def _split_work(self, work: Work | None) -> dict[str, Work]:
        if work is None:
            return {}
        publish: dict[str, list[WorkPublish]] = {}
        markers: dict[str, list[WorkMarker]] = {}
        for part in work.publish:
            publish.setdefault(self._member_of_part(part), []).append(part)
        for marker in work.markers:
            markers.setdefault(self._member_of_part(marker), []).append(marker)
        return {
            member: Work(publish.get(member, ()), markers.get(member, ()), work.segments)
            for member in publish | markers
        }

    def _member_of_part(self, part: WorkPublish | WorkMarker) -> str:
        return self.member_of(topic_prefix(*self._logs.title(part.namespace, part.topic)))

    def has_all(self, work: Work) -> bool:
        if self._has_every_shard:
            return True
        parts: list[WorkPublish | WorkMarker] = [*work.publish, *work.markers]
        return all(self._member_of_part(part) == self.member for part in parts)

    # Commits.

    async def prepare(self, asked: Prepare) -> Prepared:
        """As an owner does; of each that has a part of the work, or was joined: it may refuse what was stored there."""
        if self._has_every_shard:
            return await super().prepare(asked)
        works = self._split_work(asked.work)
        joined = {} if asked.transaction is None else self._split(asked.transaction)
        if not {self.member}.issuperset(works.keys() | joined.keys()):
            return await self._prepare_apart(asked, works, joined)
        return await super().prepare(asked)

    async def _prepare_apart(
        self, asked: Prepare, works: Mapping[str, Work], joined: Mapping[str, JoinedTransaction]
    ) -> Prepared:
        calls = self._prepare_calls(asked, works, joined)
        has_segments = asked.work is not None and asked.work.segments is not None
        return self._keep_apart(await self._all_prepared(calls), has_segments=has_segments)

    def _prepare_calls(
        self, asked: Prepare, works: Mapping[str, Work], joined: Mapping[str, JoinedTransaction]
    ) -> dict[str, Coroutine[Any, Any, Prepared]]:
        nothing = Work(segments=None if asked.work is None else asked.work.segments)
        calls: dict[str, Coroutine[Any, Any, Prepared]] = {}
        for member in dict.fromkeys((*works, *joined)):
            transaction = asked.transaction
            if transaction is not None:
                transaction = joined.get(member) or replace(transaction, topics=(), tables=())
                if member not in works and asked.work is None and not transaction.topics:
                    self._link_of(member)  # of a table nothing is prepared
                    continue
            part = Prepare(works.get(member, nothing), transaction)
            here = member == self.member
            calls[member] = (
                super().prepare(part) if here else self.ask(member, PREPARE, PrepareCall.of(part), ASKED_MS_MAX)
            )
        return calls

    async def prepared_by(
        self, carrier: str, prepared: Prepared, transaction: JoinedTransaction, segments: Sequence[int] | None
    ) -> Prepared:
        """As `prepare` of a commit whose work a member has checked, and keeps: the others that were joined look at what was stored there."""
        if any(self.member_of(join.topic) != carrier for join in prepared.topics):
            raise ShardMovingError("a topic of the commit has another owner by now; nothing was done", hint=SEND_AGAIN)
        parts = {carrier: prepared}
        asked = Prepare(Work(segments=segments), transaction)
        joined = self._split(transaction) if transaction.topics or transaction.tables else {}
        others = {member: joined[member] for member in joined if member != carrier}
        if others:
            parts |= await self._all_prepared(self._prepare_calls(asked, {}, others))
        return self._keep_apart(parts, has_segments=segments is not None, carrier=carrier)

    async def _all_prepared(self, calls: Mapping[str, Coroutine[Any, Any, Prepared]]) -> dict[str, Prepared]:
        """All that these owners prepare, by member; where one refuses, the others let go of their parts."""
        answers = dict(zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True))
        prepared = {member: answer for member, answer in answers.items() if isinstance(answer, Prepared)}
        for answer in answers.values():
            if isinstance(answer, BaseException):
                self._drop_apart({member: each.number for member, each in prepared.items()})
                raise answer
        return prepared

    def _keep_apart(
        self, prepared: Mapping[str, Prepared], *, has_segments: bool, carrier: str | None = None
    ) -> Prepared:
        numbers = {member: each.number for member, each in prepared.items() if each.number}
        topics = tuple(join for each in prepared.values() for join in each.topics)
        if not numbers:
            return Prepared()
        members = {join.topic: member for member, each in prepared.items() for join in each.topics}
        now_ms = self._clock.monotonic_ms()
        while self._apart and next(iter(self._apart.values())).since_ms < now_ms - PREPARED_MS_MAX:
            del self._apart[next(iter(self._apart))]
        self._apart_before -= 1
        self._apart[self._apart_before] = _KeptApart(numbers, members, has_segments, now_ms, carrier)
        return Prepared(self._apart_before, topics, sum(each.payload_bytes for each in prepared.values()))

    def drop(self, prepared: Prepared) -> None:
        if prepared.number >= 0:
            super().drop(prepared)
        elif (kept := self._apart.pop(prepared.number, None)) is not None:
            self._drop_apart({member: number for member, number in kept.numbers.items() if member != kept.carrier})

    def _drop_apart(self, numbers: Mapping[str, int]) -> None:
        for member, number in numbers.items():
            if member == self.member:
                super().drop(Prepared(number))
            elif number:  # what is not dropped is let go after a minute
                self._keep(self.ask(member, DROP, number, ASKED_MS_MAX))

    async def place(self, asked: Place) -> None:
        """All owners place at once; the first refusal counts, and the others go on: what they place is rolled back."""
        parts = self._split(asked.transaction)
        if asked.number >= 0 and parts.keys() == {self.member}:
            await self._place_part(self.member, asked)
            return
        numbers = self._numbers(asked.number, asked.transaction.id, parts)
        if len(parts) == 1:
            ((member, part),) = parts.items()
            await self._place_part(member, Place(part, numbers.get(member, 0)))
            return
        await asyncio.gather(*[
            self._place_part(member, Place(part, numbers.get(member, 0))) for member, part in parts.items()
        ])  # fmt: skip

    async def _place_part(self, member: str, part: Place) -> None:
        """Have a member place its part. What it has given up since is placed by whoever has it now: all of that is in the store."""
        try:
            await (super().place(part) if member == self.member else self.ask(member, PLACE, part, self._place_ms))
        except ShardMovingError as moving:
            if part.number:  # what was prepared is nowhere else
                raise
            try:
                async with asyncio.timeout(self._place_ms / 1_000):
                    parts = await self._moved(member, part.transaction)
            except TimeoutError:  # nobody waits any more, and who stops waits for all that was begun
                raise moving from None
            await asyncio.gather(*(self._place_part(each, Place(moved, 0)) for each, moved in parts.items()))

    async def _moved(self, member: str, transaction: JoinedTransaction) -> Mapping[str, JoinedTransaction]:
        """The parts of this, once the map gives some of it to another member."""
        while (parts := self._split(transaction)).keys() <= {member}:
            await self._logs.gate.changed()
        return parts

    def _numbers(self, number: int, transaction_id: int, parts: Mapping[str, JoinedTransaction]) -> Mapping[str, int]:
        """The numbers under which the owners keep what the commit brings, by member. Refused where one of them has lost a topic of it since."""
        if not number:
            return {}
        if number > 0:  # all of it was here
            plan = self._plan_of(number, transaction_id)
            members = {each.keys.prefix: self.member for each in plan.topics}
            kept = _KeptApart({self.member: number}, members, plan.segments is not None, 0.0)
        elif (found := self._apart.get(number)) is None:
            raise UnavailableError("what the commit brings was not kept until now", hint="send it again")
        else:
            kept = found
        moved = any(self.member_of(prefix) != member for prefix, member in kept.topics.items())
        if moved or (kept.has_segments and not parts.keys() <= kept.numbers.keys()):
            raise UnavailableError("a topic of the transaction has another owner since", hint="send it again")
        return kept.numbers

    async def closed(self, transaction: JoinedTransaction) -> None:
        await self._of_all({
            member: self.ask(member, CLOSE, Close(transaction.id), ASKED_MS_MAX)
            for member in self._split(transaction)
            if member != self.member
        })  # fmt: skip

    async def roll_back(self, asked: RollBack) -> None:
        """As an owner does, at each that was joined. One that does not answer fails it, once all others are done."""
        parts = self._split(asked.transaction)
        if parts.keys() == {self.member}:
            await super().roll_back(asked)
            return
        self.close(Close(asked.transaction.id))
        await self._of_all({
            member: super(Owners, self).roll_back(RollBack(part)) if member == self.member
            else self.ask(member, ROLL_BACK, RollBack(part), ROLL_BACK_MS_MAX)
            for member, part in parts.items()
        })  # fmt: skip

    # The invalid list.

    async def hold(self, transactions: Sequence[JoinedTransaction]) -> Callable[[], None]:
        """As an owner does; the others note what they have of them, as far as they can be reached."""
        parts = [self._split(transaction) for transaction in transactions]
        here = [each[self.member] for each in parts if self.member in each]
        elsewhere: dict[str, list[JoinedTransaction]] = {}
        for each in parts:
            for member, part in each.items():
                if member != self.member:
                    elsewhere.setdefault(member, []).append(part)
        releases = [await super().hold(here)]
        for member, missing in elsewhere.items():
            try:
                releases.append(await self._ends_noted({member: missing}))
            except BasaltError as error:
                log.warning("commits that are to be given up wait for their owner: %s", error)
        return partial(_release_all, releases)

    def require(self, transactions: Sequence[JoinedTransaction]) -> None:
        """As an owner does; and the others have taken their last write of these transactions, and noted where it lies."""
        here: list[JoinedTransaction] = []
        missing: dict[str, list[JoinedTransaction]] = {}
        for transaction in transactions:
            for member, part in self._split(transaction).items():
                if member == self.member:
                    here.append(part)
                elif (member, part) not in self._noted:
                    missing.setdefault(member, []).append(part)
        super().require(here)
        if missing:
            raise NotLoadedError(partial(self._ends_noted, missing))

    async def _ends_noted(self, missing: Mapping[str, Sequence[JoinedTransaction]]) -> Callable[[], None]:
        """Have the members do so; until what is returned is called, it is known that they did."""
        await self._of_all({
            member: self.ask(member, NOTE_ENDS, tuple(parts), ASKED_MS_MAX) for member, parts in missing.items()
        })  # fmt: skip
        noted = [(member, part) for member, parts in missing.items() for part in parts]
        self._noted.update(noted)
        return partial(self._forget_noted, noted)

    def _forget_noted(self, noted: Sequence[tuple[str, JoinedTransaction]]) -> None:
        for each in noted:
            self._noted[each] -= 1
            if self._noted[each] <= 0:
                del self._noted[each]

    def invalidate(self, group: Group, transaction: JoinedTransaction) -> None:
        """As an owner does; the other owners have left their notes before: rows of their shards are theirs to write."""
        part = self._split(transaction).get(self.member)
        if part is None:
            self.close(Close(transaction.id))
        else:
            super().invalidate(group, part)

    # And.

    def recovered(self, last_pointer: int, lent: PointerRuns) -> None:
        super().recovered(last_pointer, lent)
        self._noted.clear()

    async def join_of(self, title: TopicName) -> Join:
        member = self.member_of(topic_prefix(*title))
        if member == self.member:
            return await super().join_of(title)
        return await self.ask(member, JOIN_OF, title, ASKED_MS_MAX)

    async def ask(self, member: str, kind: CallKind[Q, A], question: Q, timeout_ms: int) -> A:
        """Ask a member. No answer counts as a refusal: whoever asks goes on as if nothing had been done, and undoes what was."""
        try:
            return await self._link_of(member).call(kind, question, timeout_ms)
        except UnknownOutcomeError as error:
            raise UnavailableError(error.message, hint="send the same call again after Retry-After") from error

    def _link_of(self, member: str) -> Link:
        link = self.links.of_run(member)
        if link is None:
            raise UnavailableError(
                f"server {member}, which has topics of the transaction, cannot be reached",
                hint="send the same call again after Retry-After: the topics get another owner, if it does not come back",
            )
        return link

    @staticmethod
    async def _of_all(calls: Mapping[str, Coroutine[Any, Any, None]]) -> None:
        """Wait for all; then raise what the first of them that failed has raised."""
        for answer in await asyncio.gather(*calls.values(), return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for, and whose failure does no harm."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._was_done)

    def _was_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


def _release_all(releases: Sequence[Callable[[], None]]) -> None:
    for release in releases:
        release()
