"""The rules of consumer groups: what may happen next to a group and to a message in it, as proposals. Pure.

Of one message in one group the log knows four states: available, returned, pending in a transaction, acknowledged. Claims are
not among them: they keep members out of each other's way, and are looked at before anything here is asked. So of two that acknowledge
one message the first wins, whether or not somebody held it, and a transaction that comes second is doomed:

    event                   available      returned       pending in T                           acknowledged
    acknowledge, plain      acknowledged   acknowledged   refused                                done before
    acknowledge in T        pending        pending        T's own: done before; another's: lost  lost
    acknowledge, one-shot   acknowledged   acknowledged   refused                                refused
    release                 returned       returned       refused                                done before
    a claim ends            returned       returned       stays                                  stays
    T commits               -              -              acknowledged                           -
    T aborts, times out     -              -              returned                               -
    seek                    available      available      refused, or forced: T is lost          available above the floor
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from basalt.errors import BusyError, GroupExistsError, InputError
from basalt.transactions.rules import edits, refusals
from basalt.transactions.rules.edits import Edit, Proposal, ReturnReason
from basalt.transactions.rules.groups import NEVER_MS, GroupState, GroupTable
from basalt.transactions.rules.transaction import ACKNOWLEDGED_KEY, Loss, State, Transaction
from basalt.transactions.rules.transaction_table import StateImage, TransactionTable
from basalt_engine.spans.spans import Spans

GROUP_NAME_CHARS_MAX = 255  # shown in messages, and in each path of the group
SPANS_MAX = 65_536  # in which one transaction acknowledges; its commit merges them into those of its groups
# So many spans each group may have whatever others have: beyond `group_spans_max` over all groups, one that has more is dealt
# nothing new, and beyond twice as many (its members are at work on what they were dealt) it acknowledges nothing that adds spans.
# docs/decisions/0041-scattered-groups-fill-their-gaps.md
OWN_SPANS = 1_000
OVERRUN = 2
RETRY_DOUBLINGS_MAX = 40  # a delay of 1 ms is 34 years by then; what the options allow is less


class Acknowledging(NamedTuple):
    """The edits by which messages are acknowledged at once. `already`: how many of the spans were so before, as a whole."""

    proposal: Proposal
    already: int


class GroupRules(GroupTable):
    """All groups of one transaction state, and the proposals by which they move."""

    def __init__(self, transactions: TransactionTable, image: StateImage) -> None:
        super().__init__(image.groups_made, image.groups, image.acknowledging)
        self._transactions = transactions

    def get(self, number: int) -> GroupState:
        """The group; `GroupNotFoundError` when it was deleted, or its topic was."""
        group = self.by_number.get(number)
        if group is None:
            raise refusals.no_group(f"number {number}")
        return group

    def propose_make(
        self, prefix: bytes, generation: int, name: str, options: bytes, floor: bytes, now_ms: int, round_: int
    ) -> Proposal:
        """A new group, which has acknowledged all up to `floor`. No edits when it is there with these options."""
        if not 0 < len(name) <= GROUP_NAME_CHARS_MAX or not name.isprintable() or "/" in name or name in (".", ".."):
            raise InputError(
                f"a group's name is 1 to {GROUP_NAME_CHARS_MAX} printable characters without a slash, not {name[:40]!r}",
                field="group",
            )
        known = self.find(prefix, generation, name)
        if known is None:
            made = edits.GroupMade(self.groups_made + 1, now_ms, generation, prefix, name, options, floor, round_)
            return Proposal((made,))
        if known.options != options:
            raise GroupExistsError(
                f"group {name} is there with other options: {_difference(known.options, options)}",
                field="group",
                hint="change them, or name another group",
            )
        return Proposal(())

    def propose_change(self, number: int, options: bytes, paused: bool, now_ms: int) -> Proposal:
        """Other options, or a pause that begins or ends. No edits when it is so."""
        group = self.get(number)
        if (group.options, group.paused) == (options, paused):
            return Proposal(())
        return Proposal((edits.GroupChanged(number, now_ms, options, paused),))

    def propose_seek(self, number: int, floor: bytes, now_ms: int, round_: int, force: bool = False) -> Proposal:
        """Go on behind `floor`, in this round, in which it never was. Transactions that have acknowledged and not committed are in the way:
        `ConflictError`, or with `force` they are doomed.
        """
        group = self.get(number)
        doomed: list[Edit] = []
        for transaction_id in self.pending_in(number):
            transaction = self._transactions.by_id[transaction_id]
            if not force or transaction.state is not State.OPEN:
                raise refusals.acknowledges(transaction, group.name)
            if transaction.doomed is None:
                loss = Loss(0, ACKNOWLEDGED_KEY + f"positions of group {group.name}".encode(), "")
                doomed.append(edits.Doomed(transaction_id, loss, None, now_ms))
        return Proposal((*doomed, edits.GroupSought(number, now_ms, round_, floor)))

    def propose_forget(self, numbers: Iterable[int], force: bool = False) -> Proposal:
        """Forget these groups, of which such as are gone do not count. Transactions that have acknowledged and not
        committed are in the way: `ConflictError`, or with `force` they commit whatever else they did.
        """
        gone = sorted({number for number in numbers if number in self.by_number})
        for number in gone:
            for transaction_id in () if force else self.pending_in(number):
                raise refusals.acknowledges(self._transactions.by_id[transaction_id], self.by_number[number].name)
        return Proposal((edits.GroupsForgotten(tuple(gone)),) if gone else ())

    def propose_acknowledge(self, number: int, spans: Spans, now_ms: int, writer: int = 0) -> Acknowledging:
        """Acknowledge at once; for a one-shot transaction, `writer`, only if none of it is acknowledged. The edit may keep the spans.

        `AcknowledgeConflictError` when some of it is pending in a transaction; of a one-shot `TransactionConflictError`
        in both cases.
        """
        group = self.get(number)
        is_new = not group.acknowledged.meets(spans)
        if self.held_in(number).meets(spans) or (writer and not is_new):
            for after, through in spans:
                holder = self.pending_holder(number, after, through)
                if holder is not None:
                    raise refusals.acknowledged_by(
                        self._transactions.by_id[holder], through, group.name, one_shot=bool(writer)
                    )
                if writer and group.acknowledged.overlaps(after, through):
                    raise refusals.acknowledged_before(through, group.name)
        fresh = spans
        if not is_new:
            fresh = Spans([each for each in spans if not group.acknowledged.contains(*each)])
        if not fresh:
            return Acknowledging(Proposal(()), len(spans))
        self._check_room(group, fresh, group.acknowledged)
        made = edits.Acknowledged(writer, number, now_ms, fresh)
        return Acknowledging(Proposal((made,)), len(spans) - len(fresh))

    def taken_by(
        self, transaction: Transaction, number: int, spans: Spans, now_ms: int
    ) -> edits.AcknowledgedIn | Loss | None:
        """The edit by which messages are pending in an open transaction, or who was first; None when it has them all.

        `TransactionProposals.acknowledge_in` asks.
        """
        group = self.get(number)
        own = self.pending_of(transaction.id).get(number, Spans())
        fresh = spans.minus(own)
        if not fresh:
            return None
        loss = self._loss(group, fresh)
        if loss is not None:
            return loss
        held = sum(map(len, self.pending_of(transaction.id).values()))
        if held + len(fresh) > SPANS_MAX:
            raise refusals.too_much(transaction, SPANS_MAX, "spans of acknowledged messages")
        self._check_room(group, fresh, group.acknowledged, own)
        return edits.AcknowledgedIn(transaction.id, number, now_ms, fresh)

    def propose_return(
        self, number: int, spans: Spans, reason: ReturnReason, not_before_ms: int, now_ms: int
    ) -> Proposal:
        """Some messages come back unacknowledged; such as are acknowledged stay so, and such as are pending.

        `AcknowledgeConflictError` when a release is about what is pending. UNPARKED: they have come back never.
        """
        group = self.get(number)
        left, held = group.unacknowledged(spans), self.held_in(number)
        if reason is ReturnReason.RELEASED and held.meets(left):
            for after, through in left:
                holder = self.pending_holder(number, after, through)
                if holder is not None:
                    raise refusals.acknowledged_by(self._transactions.by_id[holder], through, group.name)
        left.subtract(held)
        if reason is ReturnReason.UNPARKED:
            left = left.common(group.returns)
        return Proposal((edits.Returned(number, now_ms, reason, not_before_ms, left),) if left else ())

    def returns_of(self, pending: Mapping[int, Spans], reason: ReturnReason, now_ms: int) -> Sequence[Edit]:
        """The edits by which what was pending in a transaction comes back, once the transaction acknowledges nothing more."""
        made: list[Edit] = []
        for number, spans in pending.items():
            group = self.by_number.get(number)
            if group is None:
                continue
            for attempts, alike in group.returns.once_more(group.unacknowledged(spans)).items():
                if alike:
                    again_ms = retry_at_ms(group.options, attempts, now_ms)
                    made.append(edits.Returned(number, now_ms, reason, again_ms, alike))
        return made

    def _loss(self, group: GroupState, spans: Spans) -> Loss | None:
        """The loss against whoever was first to acknowledge some of this, which is not the caller's own."""
        if not (group.acknowledged.meets(spans) or self.held_in(group.number).meets(spans)):
            return None
        for after, through in spans:
            lost = ACKNOWLEDGED_KEY + f"{through.hex()} of group {group.name}".encode()
            holder = self.pending_holder(group.number, after, through)
            if holder is not None:
                return Loss(holder, lost, self._transactions.by_id[holder].owner)
            if group.acknowledged.overlaps(after, through):
                return Loss(0, lost, "")
        return None

    def is_scattered(self, number: int) -> bool:
        """True for a group that is dealt nothing new: there are too many spans, and it has more than any group may have."""
        return self.span_count >= self._transactions.limits.group_spans_max and self.spans_of(number) > OWN_SPANS

    def _check_room(self, group: GroupState, fresh: Spans, *joined: Spans) -> None:
        """`BusyError` when there are far too many spans, many of them this group's, and these come to them instead of joining some."""
        maximum = OVERRUN * self._transactions.limits.group_spans_max
        if self.span_count + len(fresh) <= maximum or self.spans_of(group.number) + len(fresh) <= OWN_SPANS:
            return
        added = len(fresh) - sum(spans.joined_by(*each) for spans in joined for each in fresh)
        if added > 0 and self.span_count + added > maximum:
            raise BusyError(
                f"groups have {self.span_count:,} spans of acknowledged messages with gaps between them, group {group.name}"
                f" {self.spans_of(group.number):,} of them: beyond {maximum:,} none acknowledges what adds to its own",
                hint="acknowledge what lies in the gaps (fetch deals it), or raise subscriptions.spans_max",
            )


class _RetryOptions(msgspec.Struct, rename="camel"):
    """The options of a group that are about messages that came back."""

    attempts_max: int = 8
    retry_delay_ms: int = 1_000
    retry_delay_ms_max: int = 300_000


@lru_cache(maxsize=1_024)  # groups have few different options
def _retry_options(options: bytes) -> _RetryOptions:
    try:
        return msgspec.json.decode(options, type=_RetryOptions)
    except msgspec.DecodeError:  # an abort must not fail for the options of a group
        return _RetryOptions()


def retry_at_ms(options: bytes, attempts: int, now_ms: int) -> int:
    """The time before which a message is not dealt again that has now come back so often; `NEVER_MS` after the last attempt."""
    found = _retry_options(options)
    if 0 < found.attempts_max <= attempts:
        return NEVER_MS
    delay_ms = found.retry_delay_ms << min(attempts - 1, RETRY_DOUBLINGS_MAX)
    return now_ms + min(delay_ms, found.retry_delay_ms_max)


def _difference(there: bytes, asked: bytes) -> str:
    has, wanted = (msgspec.json.decode(options, type=dict[str, object]) for options in (there, asked))
    said = {name: msgspec.json.encode(value).decode() for name, value in has.items()}
    return ", ".join(
        f"{name} is {said.get(name, 'not there')}, not {msgspec.json.encode(value).decode()}"
        for name, value in wanted.items()
        if has.get(name) != value
    )
