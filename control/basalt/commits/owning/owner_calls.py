"""The calls by which the coordinator has the owners of other servers do their part, and the side that answers them.

A commit's payloads are carried once, and are read where they came: as views of the bytes of their frame. Format: docs/formats/links.md,
"Owners". The asking side is `basalt.commits.owning.owners`.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import msgspec

from basalt.api.bodies.messages import RecordIn, Work, WorkMarker, WorkPublish
from basalt.catalog.topics import TopicName
from basalt.cluster.links.frames import CallKind, Kind
from basalt.cluster.links.link import Handlers
from basalt.commits.owning.owner import Owner
from basalt.transactions.protocol import Close, JoinedTransaction, Place, Prepare, Prepared, RollBack
from basalt.transactions.rules.transaction import Join

# The fields of a record and of a marker, in the order of their structs.
_Record: TypeAlias = tuple[
    memoryview, memoryview | None, tuple[tuple[str, memoryview], ...], int | None, int | None
]  # fmt: skip
_Marker: TypeAlias = tuple[str, str, str, int, str, int | None]
_Publish: TypeAlias = tuple[str, str, tuple[memoryview, ...], tuple[_Record, ...]]


class PrepareCall(msgspec.Struct, frozen=True, array_like=True):
    """One owner's part of what a commit brings, and of what the transaction has joined; None when it has ended, or is to begin."""

    transaction: JoinedTransaction | None
    publish: tuple[_Publish, ...]
    markers: tuple[_Marker, ...]
    segments: tuple[int, ...] | None

    @classmethod
    def of(cls, asked: Prepare) -> PrepareCall:
        """The call that carries this; payloads are not copied."""
        work = asked.work or Work()
        publish = tuple(
            (part.namespace, part.topic, tuple(part.messages), tuple(map(msgspec.structs.astuple, part.records)))
            for part in work.publish
        )
        markers = tuple(map(msgspec.structs.astuple, work.markers))
        segments = None if work.segments is None else tuple(work.segments)
        return cls(
            asked.transaction, cast("tuple[_Publish, ...]", publish), cast("tuple[_Marker, ...]", markers), segments
        )

    @property
    def asked(self) -> Prepare:
        """The message that was carried."""
        publish = [
            WorkPublish(namespace, topic, messages, [RecordIn(*record) for record in records])
            for namespace, topic, messages, records in self.publish
        ]
        return Prepare(Work(publish, [WorkMarker(*marker) for marker in self.markers], self.segments), self.transaction)


PREPARE: CallKind[PrepareCall, Prepared] = CallKind(Kind.PREPARE, "prepare", PrepareCall, Prepared)
PLACE: CallKind[Place, None] = CallKind(Kind.PLACE, "place", Place, type(None))
ROLL_BACK: CallKind[RollBack, None] = CallKind(Kind.ROLL_BACK, "roll_back", RollBack, type(None))
DROP: CallKind[int, None] = CallKind(Kind.DROP, "drop", int, type(None))
NOTE_ENDS: CallKind[tuple[JoinedTransaction, ...], None] = CallKind(
    Kind.NOTE_ENDS, "note_ends", tuple[JoinedTransaction, ...], type(None)
)
CLOSE: CallKind[Close, None] = CallKind(Kind.CLOSE, "close", Close, type(None))
JOIN_OF: CallKind[TopicName, Join] = CallKind(Kind.JOIN_OF, "join_of", TopicName, Join)


def answer_for(owner: Owner, handlers: Handlers) -> None:
    """Answer the coordinator's calls with the owner that this server is, until it ends to serve: then links refuse them.

    What a call needs of the log was told over the same link before it: a link keeps the order.
    """
    handlers.add(PREPARE, lambda _, asked: owner.prepare(asked.asked))
    handlers.add(PLACE, lambda _, asked: owner.place(asked))
    handlers.add(ROLL_BACK, lambda _, asked: owner.roll_back(asked))
    handlers.add(DROP, lambda _, number: owner.drop(Prepared(number)))
    handlers.add(NOTE_ENDS, lambda _, transactions: owner.note_ends(transactions))
    handlers.add(CLOSE, lambda _, told: owner.close(told))
    handlers.add(JOIN_OF, lambda _, title: owner.join_of(title))
