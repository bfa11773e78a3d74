"""Batches of messages that a consumer has claimed, and what one decision acknowledges and rejects of them.

A batch that was not given back is named by its claim, a number: no work for each message on either side. After a restart the server knows no
claims any more, and after a seek not this one; then the same messages are named by their ids, with the round of the group in which
they were dealt.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias, overload

from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import ACKNOWLEDGED_CLAIMS_MAX, Rejection, WorkAcknowledge
from basalt.client.calls.groups import Dealt, GroupScope
from basalt.client.calls.pages import Message
from basalt.errors import InputError, MemberFencedError

if TYPE_CHECKING:
    from collections.abc import Sequence, Set


class ConsumedMessage(Message, frozen=True, gc=False, kw_only=True):
    """One message of a batch; `batch` is the batch that it came in."""

    batch: Batch


class Membership:
    """A member of a group: its name, the newest epoch that the server told, and whether another has taken its name."""

    def __init__(self, group: GroupScope, name: str) -> None:
        self.group = group
        self.name = name
        self.epoch = 0  # 0: joins
        self.fenced: MemberFencedError | None = None
        self.unsure = False  # whether the server has claims of this member that nobody here knows of
        self.out: dict[
            int, Batch
        ] = {}  # by claim the batches that are claimed and not decided: whose claims are renewed

    def check(self) -> None:
        """Raise `MemberFencedError` once another process has joined under this name."""
        if self.fenced is not None:
            raise self.fenced


class Batch:
    """The messages of one claim, in order: iterate, index, `len`. They are this member's until they are acknowledged or released.

    `attempt` counts from 1: how often they were dealt. `claim`, `after`, `through` and `round` are the server's names for it.
    """

    def __init__(self, member: Membership, dealt: Dealt) -> None:
        assert dealt.claim is not None
        self._member = member
        self._page = dealt.page
        self.claim = dealt.claim
        self.after = dealt.after
        self.through = dealt.through
        self.round = dealt.round
        self.attempt = dealt.attempt
        self.released = False  # its claim is over, and only ids name its messages
        self.held = False  # by a transaction, whose end decides about it
        self.blameless = False  # its return is no attempt: others were faster, or an interrupt came
        self._left: set[bytes] | None = None  # of its messages those not decided yet; None: all
        member.out[self.claim] = self

    @property
    def member(self) -> Membership:
        """The member that it was dealt to."""
        return self._member

    @property
    def decided(self) -> bool:
        """True once all its messages are acknowledged, rejected or released."""
        return self._left is not None and not self._left

    @property
    def bytes(self) -> int:
        """The bytes of all payloads together."""
        return self._page.bytes

    def ids(self) -> list[builtins.bytes]:
        """The id of each message."""
        return self._page.ids()

    def decide(self, ids: Iterable[builtins.bytes] | None = None) -> None:
        """Note that these messages (None: all) are acknowledged, rejected or released."""
        if ids is None:
            self._left = set()
        else:
            if self._left is None:
                self._left = set(self._page.ids())
            self._left.difference_update(ids)
        if not self._left:
            self._member.out.pop(self.claim, None)

    def __len__(self) -> int:
        return len(self._page)

    @overload
    def __getitem__(self, index: int) -> ConsumedMessage: ...

    @overload
    def __getitem__(self, index: slice) -> list[ConsumedMessage]: ...

    def __getitem__(self, index: int | slice) -> ConsumedMessage | list[ConsumedMessage]:
        if isinstance(index, slice):
            return list(map(self._consumed, self._page[index]))
        return self._consumed(self._page[index])

    def __iter__(self) -> Iterator[ConsumedMessage]:
        return map(self._consumed, self._page)

    def __repr__(self) -> str:
        return f"Batch({len(self)} messages of group {self._member.group}, claim={self.claim}, attempt={self.attempt})"

    def _consumed(self, message: Message) -> ConsumedMessage:
        return ConsumedMessage(message.id, message.payload, message.carried, batch=self)


Consumed: TypeAlias = Batch | ConsumedMessage | Iterable[ConsumedMessage | Batch]


class _Part:
    """The decision about one batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.whole = False
        self.ids: dict[bytes, None] = {}  # in the order in which they were named
        self.rejected: dict[bytes, str] = {}

    def acknowledged(self) -> list[bytes]:
        """The ids of what is acknowledged without being rejected."""
        return [each for each in (self.batch.ids() if self.whole else self.ids) if each not in self.rejected]


class Acknowledgements:
    """All that one decision (a transaction, a one-shot, a call) acknowledges and rejects, batch by batch."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def batches(self) -> list[Batch]:
        """The batches that it decides about, wholly or in part."""
        return [part.batch for part in self._parts.values()]

    def acknowledge(self, given: Consumed) -> None:
        """Acknowledge a batch, but for what of it is rejected; some messages; or several of these."""
        named = (given,) if isinstance(given, Batch | Message) else given
        if not isinstance(named, Iterable):
            raise _not_acknowledged(given)
        for each in named:
            if isinstance(each, Batch):
                self._part(each).whole = True
            else:
                self._part(_batch_of(each)).ids[each.id] = None

    def reject(self, message: ConsumedMessage, reason: str) -> None:
        """Make a message a dead letter of its group, whatever else is said of its batch."""
        if isinstance(message, Batch):
            raise TypeError(f"what is rejected is one message, not {message!r}: reject its messages one by one")
        if not isinstance(reason, str):
            raise TypeError(f"the reason of a rejection is text, not {reason!r}")
        self._part(_batch_of(message)).rejected[message.id] = reason

    def entries(self, *, by_ids: bool = False) -> list[WorkAcknowledge]:
        """The part of a Work that says it, an entry for each group and member; `by_ids`: without the names of claims.

        Of more claims than one call may name the others' messages are named. `MemberFencedError` when the member is one no more.
        """
        merged: dict[tuple[GroupScope, str, int, int], list[_Part]] = {}
        for part in self._parts.values():
            batch, member = part.batch, part.batch.member
            member.check()
            if part.whole or part.ids or part.rejected:
                merged.setdefault((member.group, member.name, member.epoch, batch.round), []).append(part)
        whole = [part for part in self._parts.values() if part.whole and not by_ids and not part.batch.released]
        claimed = frozenset(part.batch.claim for part in whole[:ACKNOWLEDGED_CLAIMS_MAX])
        return [_entry(*who, parts, claimed) for who, parts in merged.items()]

    def decide(self) -> None:
        """Note that it has come true."""
        for part in self._parts.values():
            part.batch.decide(None if part.whole else (*part.ids, *part.rejected))

    def _part(self, batch: Batch) -> _Part:
        return self._parts.setdefault(id(batch), _Part(batch))


def hex_ids(ids: Iterable[bytes]) -> tuple[HexMessageId, ...]:
    """Ids as JSON has them."""
    return tuple(map(HexMessageId, ids))


def _entry(
    group: GroupScope, member: str, epoch: int, round_number: int, parts: Sequence[_Part], claimed: Set[int]
) -> WorkAcknowledge:
    ids, claims, reject = list[bytes](), list[int](), list[Rejection]()
    for part in parts:
        if part.whole and not part.batch.released and part.batch.claim in claimed:
            claims.append(part.batch.claim)
        else:
            ids += part.acknowledged()
        reject += [Rejection(each, reason) for each, reason in part.rejected.items()]
    topic = group.topic
    return WorkAcknowledge(
        topic.namespace, topic.name, group.name, ids, None, member, epoch, round_number, claims, (), reject
    )


def _batch_of(message: object) -> Batch:
    if isinstance(message, ConsumedMessage):
        return message.batch
    if isinstance(message, Message):
        raise InputError(
            f"message {message.hex_id} is of no batch of a group",
            field="messages",
            hint="Acknowledge messages as a consumer's batch has them.",
        )
    raise _not_acknowledged(message)


def _not_acknowledged(given: object) -> TypeError:
    return TypeError(f"what is acknowledged or rejected is of a batch: it, or its messages; not {type(given).__name__}")
