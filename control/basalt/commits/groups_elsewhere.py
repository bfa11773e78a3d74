"""Acknowledgements of commits in consumer groups whose topics other servers own, and the other side of it. Format of the calls: docs/formats/links.md, "Groups".

Only the owner of a topic knows who has claimed what. So before the intent of a commit it is asked to acknowledge in the transaction, as a
client may do before; once that is in the log, the commit decides about it as about all else. docs/decisions/0077-groups-are-dealt-by-owners.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import msgspec

from basalt.api.bodies.messages import Rejection, Work, WorkAcknowledge, WorkPublish
from basalt.catalog.topics import TopicName
from basalt.cluster.links.frames import CallKind, Kind
from basalt.cluster.links.link import Handlers
from basalt.commits.dead_letters import DeadLetters
from basalt.commits.owning.owner_calls import PrepareCall
from basalt.commits.owning.owners import Owners
from basalt.errors import TopicExistsError, TopicNotFoundError
from basalt.groups.groups import Groups
from basalt.groups.owned_groups import OwnedGroups
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.transactions.manager import TransactionManager
from basalt.transactions.protocol import Prepare
from basalt.transactions.rules.transaction import State, Transaction
from basalt_engine.keys import topic_prefix

# The fields of an entry of a Work, in the order of its struct; what is rejected as (id, reason).
_Acknowledge: TypeAlias = tuple[
    str, str, str, tuple[bytes, ...], bytes | None, str, int, int, tuple[int, ...], tuple[bytes, ...], tuple[tuple[bytes, str], ...]
]  # fmt: skip


def _carried(entry: WorkAcknowledge) -> _Acknowledge:
    return (
        entry.namespace, entry.topic, entry.group, tuple(map(bytes, entry.ids)),
        None if entry.up_to is None else bytes(entry.up_to), entry.member, entry.epoch, entry.round, tuple(entry.claims),
        tuple(map(bytes, entry.except_ids)), tuple((bytes(each.id), each.reason) for each in entry.reject),
    )  # fmt: skip


def _read(carried: _Acknowledge) -> WorkAcknowledge:
    reject = tuple(Rejection(*each) for each in carried[-1])
    return WorkAcknowledge(*carried[:-1], reject)


class AcknowledgeCall(msgspec.Struct, frozen=True, array_like=True):
    """Acknowledge this in an open transaction that is about to commit; and look at the order of all that it acknowledges at this owner."""

    transaction_id: int
    entries: tuple[_Acknowledge, ...]

    @classmethod
    def of(cls, transaction_id: int, entries: Sequence[WorkAcknowledge]) -> AcknowledgeCall:
        """The call that carries these entries."""
        return cls(transaction_id, tuple(map(_carried, entries)))

    @property
    def asked(self) -> list[WorkAcknowledge]:
        """The entries."""
        return list(map(_read, self.entries))


class WorkCall(msgspec.Struct, frozen=True, array_like=True):
    """A whole Work, and as which one-shot transaction it is asked for."""

    parts: PrepareCall
    entries: tuple[_Acknowledge, ...]
    owner: str = ""
    request_id: str | None = None
    principal: str = ""

    @classmethod
    def of(cls, work: Work, owner: str = "", request_id: str | None = None, principal: str = "") -> WorkCall:
        """The call that carries this work; payloads are not copied."""
        return cls(
            PrepareCall.of(Prepare(work, None)), tuple(map(_carried, work.acknowledge)), owner, request_id, principal
        )

    @property
    def work(self) -> Work:
        """The work that was carried."""
        work = self.parts.asked.work or Work()
        return Work(work.publish, work.markers, work.segments, list(map(_read, self.entries)))


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """The one-shot transaction that carried a Work out."""

    transaction_id: int


ACKNOWLEDGE: CallKind[AcknowledgeCall, None] = CallKind(Kind.ACKNOWLEDGE, "acknowledge", AcknowledgeCall, type(None))
REJECTED: CallKind[WorkCall, WorkCall] = CallKind(Kind.REJECTED, "rejected", WorkCall, WorkCall)
CARRY: CallKind[WorkCall, Carried] = CallKind(Kind.CARRY, "carry", WorkCall, Carried)
MAKE_TOPIC: CallKind[TopicName, None] = CallKind(Kind.MAKE_TOPIC, "make_topic", TopicName, type(None))
HAVE_TOPIC: CallKind[TopicName, None] = CallKind(Kind.HAVE_TOPIC, "have_topic", TopicName, type(None))

ACKNOWLEDGE_MS_MAX = 5_000  # of the owner, who asks the coordinator's log, which is late after 4 s


class GroupsElsewhere:
    """The groups of other owners, as the coordinator has them."""

    def __init__(self, manager: TransactionManager, owners: Owners, logs: TopicLogs) -> None:
        self._manager = manager
        self._owners = owners
        self._logs = logs

    def _member_of(self, entry: WorkAcknowledge) -> str:
        return self._owners.member_of(topic_prefix(*self._logs.title(entry.namespace, entry.topic)))

    def has_some(self, entries: Sequence[WorkAcknowledge]) -> bool:
        """True where another server owns the topic of one of these."""
        return any(self._member_of(entry) != self._owners.member for entry in entries)

    async def acknowledged(self, work: Work | None, found: Transaction | None) -> Work | None:
        """Have acknowledged in the transaction what other owners have; the rest of the work, with what they publish of it as dead letters.

        Raises why one of them refuses. The transaction stays open then, with what others have acknowledged in it, unless it is doomed.
        """
        entries = [] if work is None else list(work.acknowledge)
        apart: dict[str, list[WorkAcknowledge]] = {}
        for entry in entries:
            apart.setdefault(self._member_of(entry), []).append(entry)
        here = apart.pop(self._owners.member, [])
        is_open = found is not None and found.state is State.OPEN
        if found is not None and is_open:
            for member in self._members_of_pending(found.id):
                apart.setdefault(member, [])
        if not apart:
            return work
        publish: list[WorkPublish] = [] if work is None else list(work.publish)
        if found is not None and is_open:
            for member, asked in apart.items():
                if any(entry.reject for entry in asked):
                    call = WorkCall.of(Work(acknowledge=asked))
                    told = (await self._owners.ask(member, REJECTED, call, ACKNOWLEDGE_MS_MAX)).work
                    publish += told.publish
                    asked[:] = told.acknowledge
            calls: list[Any] = [
                self._owners.ask(member, ACKNOWLEDGE, AcknowledgeCall.of(found.id, asked), ACKNOWLEDGE_MS_MAX)
                for member, asked in apart.items()
            ]
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
        return None if work is None else Work(publish, work.markers, work.segments, here)

    def _members_of_pending(self, transaction_id: int) -> set[str]:
        table = self._manager.state.groups
        prefixes = {table.by_number[number].prefix for number in table.pending_of(transaction_id)}
        return {self._owners.member_of(prefix) for prefix in prefixes} - {self._owners.member}

    async def make_topic(self, title: TopicName) -> None:
        """Have a topic, whoever owns it: one for dead letters."""
        member = self._owners.member_of(topic_prefix(*title))
        if member == self._owners.member:
            await have_topic(self._logs, title)
        else:
            await self._owners.ask(member, HAVE_TOPIC, title, ACKNOWLEDGE_MS_MAX)


class GroupsHere:
    """The groups of this owner, as the coordinator in another server asks about them."""

    def __init__(self, groups: Groups, dead_letters: DeadLetters) -> None:
        self._groups = groups
        self._dead_letters = dead_letters
        self._logs = groups.desk.logs

    async def acknowledge(self, asked: AcknowledgeCall) -> None:
        """Acknowledge in the transaction, and refuse what would be out of order once it has committed."""
        for entry in asked.asked:
            live = await self._groups.find(self._logs.title(entry.namespace, entry.topic), entry.group)
            await self._groups.acknowledge_entry(live, entry, asked.transaction_id)
        await cast("OwnedGroups", self._groups).check_pending(asked.transaction_id)

    async def rejected(self, asked: WorkCall) -> WorkCall:
        """The messages that are to be dead letters, and the entries in which they are among the ids."""
        return WorkCall.of(await self._dead_letters.with_rejected(asked.work))

    async def have_topic(self, title: TopicName) -> None:
        """Make the topic unless it is there."""
        await have_topic(self._logs, title)


def answer_for_groups(groups: GroupsHere, handlers: Handlers) -> None:
    """Answer the coordinator's calls with the groups that this server has, until it ends to serve: then links refuse them."""
    handlers.add(ACKNOWLEDGE, lambda _, asked: groups.acknowledge(asked))
    handlers.add(REJECTED, lambda _, asked: groups.rejected(asked))
    handlers.add(HAVE_TOPIC, lambda _, title: groups.have_topic(title))


async def have_topic(logs: TopicLogs, title: TopicName) -> None:
    """Make a topic of this owner, unless it is there."""
    try:
        await logs.open(title)
    except TopicNotFoundError:
        try:
            await logs.create(title, {})
        except TopicExistsError:
            pass
