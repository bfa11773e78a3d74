"""The calls about consumer groups between the coordinator and the owners of their topics, as they go over a link. Format: docs/formats/links.md, "Groups"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from basalt.api.bodies.messages import Rejection, Work, WorkAcknowledge
from basalt.catalog.topics import TopicName
from basalt.cluster.links.frames import CallKind, Kind
from basalt.commits.owner_calls import PrepareCall
from basalt.transactions.protocol import Prepare

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
