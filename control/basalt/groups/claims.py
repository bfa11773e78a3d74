"""The claims of one group: which messages were dealt to whom, until when. In memory only, and pure: times are arguments.

Claims are no locks. They keep members out of each other's way, and end by acknowledgement, release, their time, their
member's end or the end of their transaction. Of a member the last ones that ended are remembered, so that a repeated
acknowledgement is told that it was done already, and one that came too late that the claim is lost.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from basalt_engine.spans.span_map import SpanMap
from basalt_engine.spans.spans import Spans

K = TypeVar("K", str, int)
MANY_SPANS = 16  # of one claim: whose each message is, is found out once somebody asks
DUE_PASSED_OVER = 16  # entries of the heap of due times for each claim that has not ended
ENDED_MAX = 64  # claims that have ended, remembered of each member
ENDED_SPANS_MAX = 2_000  # of them all, in which a keyed group's claims are as many as messages: some 250 KB
REMEMBERED_MEMBERS_MAX = 1_000  # whose ended claims are remembered; who ended none for the longest time goes first
_NOTHING = Spans()  # left of a claim that has ended; never changed


class ClaimEnd(Enum):
    """The end of a claim."""

    ACKNOWLEDGED = "acknowledged"  # durably, or by a transaction that has not ended yet
    LOST = "lost"  # given back, timed out, revoked: its messages may be another's by now


class Claim:
    """The messages that one fetch dealt: of (after, through], all but what other claims and acknowledgements cover.

    `left` is what of them is neither acknowledged nor given back, `spans` that and what was acknowledged. Times are those of
    the monotonic clock. `attempt` counts from 1. A claim without a member is known by its number alone.
    """

    __slots__ = (
        "after", "attempt", "end", "epoch", "left", "member", "messages", "messages_left", "number", "released", "request_id", "round",
        "since_ms", "spans", "through", "torn", "transaction_id", "until_ms",
    )  # fmt: skip

    def __init__(
        self, number: int, spans: Spans, messages: int, *, since_ms: float, until_ms: float, member: str = "", epoch: int = 0,
        transaction_id: int | None = None, round_: int = 0, attempt: int = 1, request_id: str | None = None,
    ) -> None:  # fmt: skip
        self.number = number
        self.after, self.through = spans.begin, spans.end
        self.spans = self.left = spans  # one set, until something of it is acknowledged
        self.messages = self.messages_left = messages
        self.member = member
        self.epoch = epoch
        self.transaction_id = transaction_id
        self.since_ms = since_ms
        self.until_ms = until_ms
        self.round = round_
        self.attempt = attempt
        self.request_id = request_id
        self.end: ClaimEnd | None = None
        self.released = False  # who had it gave the last of it back
        self.torn = (
            False  # some of it was acknowledged by a transaction that did not commit, and may be another's by now
        )


class ClaimPart(NamedTuple):
    """Some of what a claim has left, and how many messages that is where it is not all."""

    claim: Claim
    spans: Spans
    messages: int

    @classmethod
    def whole(cls, claim: Claim) -> ClaimPart:
        """All that it has left."""
        return cls(claim, claim.left, claim.messages_left)

    @property
    def is_whole(self) -> bool:
        """True when the claim has nothing else left."""
        return self.spans is self.claim.left or self.spans == self.claim.left


def parts_of(
    found: Iterable[tuple[bytes, bytes, Claim]], messages: Mapping[Claim, int] = MappingProxyType({})
) -> list[ClaimPart]:
    """The spans of each claim among these, as parts of so many messages; 0 where it is not said."""
    spans: dict[Claim, list[tuple[bytes, bytes]]] = {}
    for begin, end, claim in found:
        spans.setdefault(claim, []).append((begin, end))
    return [ClaimPart(claim, _of_left(claim, pairs), messages.get(claim, 0)) for claim, pairs in spans.items()]


def _of_left(claim: Claim, pairs: list[tuple[bytes, bytes]]) -> Spans:
    """These spans, of what the claim has left; most claims have one span, and all of it is meant."""
    is_whole = len(pairs) == len(claim.left) == 1 and pairs[0] == (claim.after, claim.through)
    return claim.left if is_whole else Spans(pairs)


class Caller(NamedTuple):
    """Who acknowledges or releases: a member by name and epoch, claims by number, or a transaction that claims were dealt to."""

    member: str = ""
    epoch: int = 0
    claims: Set[int] = frozenset()
    transaction_id: int | None = None

    def owns(self, claim: Claim) -> bool:
        """True when the claim is the caller's. One without a member is whose who knows its number."""
        if claim.member and self.member and (claim.member, claim.epoch) != (self.member, self.epoch or claim.epoch):
            return False
        if claim.number in self.claims or (claim.member and claim.member == self.member):
            return True
        return claim.transaction_id is not None and claim.transaction_id == self.transaction_id


class _Remembered:
    """The claims of one member that ended of late."""

    __slots__ = ("by_number", "order", "spans")

    def __init__(self) -> None:
        self.by_number: dict[int, Claim] = {}
        self.order: deque[int] = deque()
        self.spans = 0  # of them all

    def add(self, claims: Sequence[Claim]) -> None:
        """Remember these, too, and forget the oldest where they are too many."""
        for claim in claims[-ENDED_MAX:]:
            self.by_number[claim.number] = claim
            self.order.append(claim.number)
            self.spans += len(claim.spans)
        while len(self.order) > ENDED_MAX or (self.spans > ENDED_SPANS_MAX and len(self.order) > 1):
            self.spans -= len(self.by_number.pop(self.order.popleft()).spans)

    def forget(self, number: int) -> None:
        """This claim has not ended after all."""
        self.order.remove(number)
        self.spans -= len(self.by_number.pop(number).spans)


class Claims:
    """The claims of one group that have not ended, and the last of those that have."""

    def __init__(self) -> None:
        self._by_number: dict[int, Claim] = {}
        # Claims of many spans that are not in the next two yet: most of them end before anybody asks for one of their messages.
        self._unplaced: dict[int, Claim] = {}
        # Of which a part is acknowledged: whoever ends a transaction asks these alone, not ten thousand.
        self._begun: dict[int, Claim] = {}
        self._taken = Spans()  # what claims cover
        self._held = SpanMap[Claim]()  # the same, and whose each is
        self._of_member: dict[str, dict[int, Claim]] = {}
        self._of_transaction: dict[int, dict[int, Claim]] = {}
        self._messages_of: dict[str, int] = {}  # claimed by each member
        self._by_request: dict[str, Claim] = {}
        # A heap; entries of claims that ended, or were renewed, are passed over.
        self._due: list[tuple[float, int]] = []
        self._ended: OrderedDict[str, _Remembered] = OrderedDict()  # by member
        self.messages = 0  # claimed, all together

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Claim]:
        return iter(list(self._by_number.values()))

    def add(self, claim: Claim) -> None:
        """A new claim, of what no other covers."""
        self._by_number[claim.number] = claim
        if len(claim.left) < MANY_SPANS:
            assert not self._taken.meets(claim.left), "a message is claimed once"
            self._held.fill([(claim.left, claim)])
            self._taken.update(claim.left)
        else:
            self._unplaced[claim.number] = claim
        self._of_member.setdefault(claim.member, {})[claim.number] = claim
        if claim.transaction_id is not None:
            self._of_transaction.setdefault(claim.transaction_id, {})[claim.number] = claim
        self._count(claim, claim.messages_left)
        self._push_due(claim)
        if claim.request_id is not None:
            self._by_request[claim.request_id] = claim

    def find(self, number: int, member: str = "") -> Claim | None:
        """The claim of this number, if it has not ended or is remembered. `end` says which."""
        claim = self._by_number.get(number)
        if claim is not None:
            return claim
        remembered = self._ended.get(member)
        found = None if remembered is None else remembered.by_number.get(number)
        if found is None and not member:  # who gives no name may still mean a member's claim
            return next((each.by_number[number] for each in self._ended.values() if number in each.by_number), None)
        return found

    def of_request(self, request_id: str | None) -> Claim | None:
        """The claim that was dealt for this request id, while it has not ended."""
        return None if request_id is None else self._by_request.get(request_id)

    def holder(self, message_id: bytes) -> Claim | None:
        """The claim that covers this id."""
        found = self.span_of(message_id)
        return None if found is None else found[2]

    def span_of(self, message_id: bytes) -> tuple[bytes, bytes, Claim] | None:
        """The claimed span that covers this id, and whose it is."""
        self._place()
        return self._held.span_of(message_id)

    def holders(self, after: bytes, through: bytes) -> Iterator[tuple[bytes, bytes, Claim]]:
        """The parts of (after, through] that claims cover, in order: each part, and whose it is. Do not change claims meanwhile."""
        self._place()
        return self._held.within(after, through)

    def common(self, spans: Spans) -> list[tuple[bytes, bytes, Claim]]:
        """The parts of these spans that claims cover, in order: each part, and whose it is."""
        self._place()
        return self._held.common(spans)

    def take(self, parts: Sequence[ClaimPart], *, acknowledged: bool) -> list[Claim]:
        """Take these parts, which do not overlap, out of their claims, all at once: they are acknowledged, or given back.

        Returns the claims that ended by it. One that has no message left ends though it has gaps in which none lies: these are
        nobody's, and stay in its `left`.
        """
        whole = [part for part in parts if part.is_whole]
        some = [part for part in parts if not part.is_whole] if len(whole) < len(parts) else []
        if some:
            self._place()
        placed = [part.spans for part in parts if self._unplaced.pop(part.claim.number, None) is None]
        if placed:
            spans = placed[0] if len(placed) == 1 else Spans.union(placed)
            self._held.subtract(spans)
            self._taken.subtract(spans)
        ended = [part.claim for part in whole]
        for claim in ended:
            claim.left = _NOTHING
            if not acknowledged:
                claim.spans = _NOTHING
        ended += [part.claim for part in some if not self._has_kept(part, acknowledged=acknowledged)]
        self._finish(ended, ClaimEnd.ACKNOWLEDGED if acknowledged else ClaimEnd.LOST)
        return ended

    def _has_kept(self, part: ClaimPart, *, acknowledged: bool) -> bool:
        """Note that the claim does not have this part any more; True where something is left of it."""
        claim = part.claim
        if acknowledged and claim.spans is claim.left:
            claim.left = claim.left.minus(part.spans)
        elif acknowledged or claim.spans is claim.left:
            claim.left.subtract(part.spans)
        else:
            claim.left.subtract(part.spans)
            claim.spans.subtract(part.spans)
        if not claim.left:
            return False
        gone = min(claim.messages_left, part.messages)
        if gone == claim.messages_left > 0:
            self._held.remove_of(claim, claim.left)
            self._taken.subtract(claim.left)
            claim.spans = claim.spans.minus(claim.left)
            return False
        claim.messages_left -= gone
        self._count(claim, -gone)
        if acknowledged:
            self._begun[claim.number] = claim
        return True

    def forget_acknowledged(self, spans: Spans) -> None:
        """A transaction that had acknowledged these spans did not commit: claims that ended by that are lost, others are torn."""
        for claim in self._begun.values():
            if spans.meets(claim.spans):
                claim.torn = True
        for remembered in self._ended.values():
            for claim in remembered.by_number.values():
                if claim.end is ClaimEnd.ACKNOWLEDGED and spans.meets(claim.spans):
                    claim.end = ClaimEnd.LOST

    def tear(self, parts: Sequence[ClaimPart]) -> None:
        """Somebody else acknowledged these parts of claims: what a member made of the whole of one is not to count."""
        self.take(parts, acknowledged=True)
        for claim, _, _ in parts:
            claim.torn = claim.torn or claim.end is None

    def forget_undone(self, done: Spans) -> None:
        """These spans are all that is acknowledged. A claim that ended by more than that could be written goes on; one that did in part is lost."""
        for claim in self._begun.values():
            acknowledged = claim.spans.minus(claim.left)
            claim.torn = claim.torn or not all(done.contains(*pair) for pair in acknowledged)
        for remembered in self._ended.values():
            for claim in list(remembered.by_number.values()):
                if claim.end is not ClaimEnd.ACKNOWLEDGED or all(done.contains(*pair) for pair in claim.spans):
                    continue
                if claim.spans.meets(done) or claim.spans.meets(self.taken):
                    claim.end = ClaimEnd.LOST
                else:
                    remembered.forget(claim.number)
                    self._go_on(claim)

    def _go_on(self, claim: Claim) -> None:
        claim.end, claim.left, claim.messages_left = None, claim.spans, claim.messages
        self.add(claim)

    def revoke_all(self) -> list[Claim]:
        """End all claims, and forget those that had ended: the group was sought."""
        revoked = list(self._by_number.values())
        for claim in revoked:
            claim.end = ClaimEnd.LOST
        self._taken, self._held = Spans(), SpanMap()
        self.messages = 0
        for known in (
            self._by_number, self._unplaced, self._begun, self._of_member, self._of_transaction, self._messages_of, self._by_request, self._due, self._ended,
        ):  # fmt: skip
            known.clear()
        return revoked

    def renew(self, claim: Claim, until_ms: float) -> None:
        """The claim lasts until then."""
        claim.until_ms = until_ms
        self._push_due(claim)

    def _push_due(self, claim: Claim) -> None:
        if len(self._due) > DUE_PASSED_OVER * (
            len(self._by_number) + 1
        ):  # else one long claim would keep those of all that ended
            self._due = [(each.until_ms, each.number) for each in self._by_number.values() if each is not claim]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (claim.until_ms, claim.number))

    def due_ms(self) -> float | None:
        """When the next claim runs out."""
        if len(self._due) > 2 * len(self._by_number) + DUE_PASSED_OVER:  # popping thousands that ended would take long
            self._due = [(each.until_ms, each.number) for each in self._by_number.values()]
            heapq.heapify(self._due)
        while self._due:
            until_ms, number = self._due[0]
            claim = self._by_number.get(number)
            if claim is not None and claim.until_ms == until_ms:
                return until_ms
            heapq.heappop(self._due)
        return None

    def run_out(self, now_ms: float) -> list[Claim]:
        """The claims whose time is up; they stay until they are ended."""
        due_ms = self.due_ms()
        if due_ms is None or due_ms > now_ms:
            return []
        return [claim for claim in self._by_number.values() if claim.until_ms <= now_ms]

    def of_member(self, name: str, epoch: int | None = None) -> list[Claim]:
        """The claims of a member, of one epoch or of any."""
        found = self._of_member.get(name, {}).values()
        return [claim for claim in found if epoch is None or claim.epoch == epoch]

    def of_transaction(self, transaction_id: int) -> list[Claim]:
        """The claims that were dealt to a transaction."""
        return list(self._of_transaction.get(transaction_id, {}).values())

    def most(self) -> str:
        """The member that holds the most messages; empty when nobody has a name."""
        return max(self._messages_of, key=self._messages_of.__getitem__, default="")

    def overlap(self, after: bytes, through: bytes) -> bool:
        """True when a claim covers some of (after, through]. Behind all claims that is known without their spans."""
        return any(claim.through > after for claim in self._by_number.values()) and self.taken.overlaps(after, through)

    @property
    def taken(self) -> Spans:
        """The spans that claims cover."""
        self._place()
        return self._taken

    def _place(self) -> None:
        """Know whose each span is, also of the claims that were left for later."""
        if not self._unplaced:
            return
        placed = list(self._unplaced.values())
        self._unplaced.clear()
        self._held.fill([(claim.left, claim) for claim in placed])
        self._taken.update(Spans([pair for claim in placed for pair in claim.left]))

    def _count(self, claim: Claim, messages: int) -> None:
        self.messages += messages
        self._messages_of[claim.member] = self._messages_of.get(claim.member, 0) + messages

    def _finish(self, claims: Sequence[Claim], end: ClaimEnd) -> None:
        """These claims have ended: of each member the last are remembered."""
        by_member: dict[str, list[Claim]] = {}
        for claim in claims:
            del self._by_number[claim.number]
            by_member.setdefault(claim.member, []).append(claim)
            if claim.transaction_id is not None:
                _take(self._of_transaction, claim.transaction_id, claim.number)
            if claim.request_id is not None and self._by_request.get(claim.request_id) is claim:
                del self._by_request[claim.request_id]
            if self._begun:
                self._begun.pop(claim.number, None)
        for member, some in by_member.items():
            messages = sum([claim.messages_left for claim in some])
            self.messages -= messages
            self._messages_of[member] -= messages
            for claim in some:
                claim.end = end
                claim.messages_left = 0
                _take(self._of_member, member, claim.number)
            if member not in self._of_member:
                del self._messages_of[member]
            self._remember(member, some)

    def _remember(self, member: str, claims: Sequence[Claim]) -> None:
        remembered = self._ended.get(member)
        if remembered is None:
            remembered = self._ended[member] = _Remembered()
            if len(self._ended) > REMEMBERED_MEMBERS_MAX:
                self._ended.popitem(last=False)
        self._ended.move_to_end(member)
        remembered.add(claims)


def _take(claims: dict[K, dict[int, Claim]], key: K, number: int) -> None:
    """Take a claim out of those of one key, and the key with its last one."""
    of_key = claims[key]
    del of_key[number]
    if not of_key:
        del claims[key]


# The company in which a keyed group's messages failed: whose fault it was is told by who fails alone afterwards. Once one of those that failed together has
# failed alone, it was the reason, as far as anybody knows: the others are spared, and dealt in company again. A restart forgets all of this.
ALONE_ATTEMPTS = 2  # so often failed, a message is dealt alone


class _Company:
    """Messages that failed together."""

    __slots__ = ("is_spared",)

    def __init__(self) -> None:
        self.is_spared = False


class Companies:
    """The companies of one group's messages that came back, by the messages' ids."""

    def __init__(self) -> None:
        self._of: dict[bytes, _Company] = {}

    def failed(self, ids: Sequence[bytes]) -> None:
        """These failed together, or one alone, which spares those with which it failed before."""
        if len(ids) == 1:
            former = self._of.pop(ids[0], None)
            if former is not None:
                former.is_spared = True
            return
        company = _Company()
        for message_id in ids:
            self._of[message_id] = company

    def forget(self, ids: Iterable[bytes]) -> None:
        """These come back no more."""
        for message_id in ids if self._of else ():
            self._of.pop(message_id, None)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._of.clear()

    def is_alone(self, message_id: bytes, attempts: int, attempts_max: int) -> bool:
        """True when the next attempt of a message is alone: it failed often and is not spared, or that is the last one."""
        if 0 < attempts == attempts_max - 1:
            return True  # whatever is known: nothing becomes a dead letter for another's failure
        company = self._of.get(message_id)
        return attempts >= ALONE_ATTEMPTS and not (company is not None and company.is_spared)
