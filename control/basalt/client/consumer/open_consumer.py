"""Plans for a consumer in use: it makes its group, joins, claims one batch after the other, and leaves.

What is claimed and not decided when the next batch is asked for, or when the consumer ends, goes back to the group: counted as an
attempt where its handling failed. Lease and claims are renewed from the side (`renew`), by a thread or a task.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable
from typing import TypeVar, Unpack

from msgspec import structs

from basalt.api.bodies.groups import (
    Acknowledged,
    AcknowledgeRequest,
    GroupFigures,
    GroupInfo,
    GroupOptions,
    MemberStanding,
    Released,
    ReleaseRequest,
    Sought,
)
from basalt.api.bodies.messages import ACKNOWLEDGED_CLAIMS_MAX, MEMBER_CHARS_MAX, REASON_CHARS_MAX, Work, is_member
from basalt.client.calls import groups
from basalt.client.calls.groups import Dealt, GroupOptionsGiven, GroupScope
from basalt.client.calls.messages import FOLLOW_WAIT_MS, PositionLike
from basalt.client.consumer.batches import Acknowledgements, Batch, Consumed, Membership, hex_ids
from basalt.client.plans import ClientScope, Rest, Steps
from basalt.errors import (
    BY_CODE,
    AcknowledgeConflictError,
    BasaltError,
    ClaimLostError,
    ConflictError,
    GroupNotFoundError,
    InputError,
    MemberFencedError,
    NotFoundError,
    RetryError,
    TransactionConflictError,
    UnavailableError,
)

T = TypeVar("T")

RENEWALS_PER_LEASE = 3  # two may be lost before the lease is
EMPTY_REST_MS = 20  # after an answer without messages: a server that does not wait is not asked without end
RENEW_AGAIN_MS = 1_000  # after a renewal that failed; a lease is hardly ever so short that this is too late
ASIDE_MS_MAX = (
    5_000  # of a call from the side, and of each at the end: whoever closes waits for them, also where no server is
)
FAILED_REST_MS = 1_000  # after one that says what failed: about as long as a server takes to be itself again
HOST_CHARS_MAX = 100  # of a host's name in the name of a member, which has 255
# What an empty fetch may wait for. Anything else is the code of an error behind a Work that was carried out.
WAITS = frozenset({
    "no_messages", "held", "paused", "unacked", "delayed", "parked", "standby", "draining", "claimed", "spans", "stopping",
})  # fmt: skip

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.-]")


class OpenConsumer:
    """The state of one `with client.consumer(…)` block: the group, who its member is, and the batch that is out."""

    def __init__(self, group: GroupScope, options: GroupOptionsGiven, member: str | None) -> None:
        self.group = group
        self.options = options
        self.member = Membership(group, made_up_name() if member is None else member)
        self.info: GroupInfo | None = None  # None: it has not joined
        self.made_group = False
        self.current: Batch | None = None  # the batch that its user has in hand
        self.waiting_for: str | None = None  # why the last fetch was empty
        self.processing = False
        self.closing = False

    def joined(self) -> GroupInfo:
        """Return the group as it was when it joined. `InputError` when it did not."""
        if self.info is None:
            raise InputError(
                f"the consumer of group {self.group} has not joined",
                field="consumer",
                hint="Use it in a with block: with client.consumer(topic, group=name) as consumer: ...",
            )
        self.member.check()
        return self.info

    def renewal_ms(self) -> int:
        """The time between two renewals: several fit into a lease, and into a claim."""
        options = self.joined().options
        return max(1, min(options.member_ms, options.claim_ms) // RENEWALS_PER_LEASE)


def consumer(
    scope: ClientScope,
    topic: str,
    *,
    group: str,
    member: str | None = None,
    namespace: str | None = None,
    **options: Unpack[GroupOptionsGiven],
) -> OpenConsumer:
    """A consumer of a group of the topic, for a `with` block (`async with` in the async client).

    The block makes the group if it is not there, with these options (`mode`, `start`, `dead_letter_topic` and the others of
    `GroupOptions`), and joins as `member`: None makes a name up. `GroupExistsError` when it is there with others than the options
    that are given here. Joining again under the same name fences the process that had it (`MemberFencedError` there).
    """
    if member is not None and not _is_members_name(member):
        raise InputError(
            f"member {str(member)[:80]!r} is not the name of a member",
            field="member",
            hint=f"Use 1 to {MEMBER_CHARS_MAX} printable characters without a slash, or leave it out.",
        )
    return OpenConsumer(GroupScope(scope.topic(topic, namespace=namespace), group), options, member)


def _is_members_name(given: object) -> bool:
    return isinstance(given, str) and given != "" and is_member(given)


def made_up_name() -> str:
    """A member's name that no other process has: of the host, the process, and chance."""
    host = _NOT_IN_NAMES.sub("-", socket.gethostname())[:HOST_CHARS_MAX] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def enter(consumer: OpenConsumer) -> Steps[None]:
    """Make the group, if need be, and join it."""
    if consumer.info is not None:
        raise InputError(
            f"the consumer of group {consumer.group} was used before",
            field="consumer",
            hint="Make another for another block: client.consumer(topic, group=name).",
        )
    info = yield from _made(consumer)
    if info.options.mode == "tracked":
        raise InputError(
            f"group {consumer.group} is tracked: it deals nothing, somebody else keeps its position",
            field="group",
            hint="Consume with a group of another mode.",
        )
    consumer.info = info
    standing = yield from groups.sign_of_life(consumer.group, consumer.member.name, 0)
    consumer.member.epoch = standing.epoch


def leave(consumer: OpenConsumer, raised: BaseException | None) -> Steps[None]:
    """Give back what is claimed, and leave. What goes wrong in that is left to the lease's end."""
    consumer.closing = True
    if consumer.info is None or consumer.member.fenced is not None or isinstance(raised, UnavailableError):
        return
    answered = True
    if raised is not None:
        answered = yield from settle(consumer, counts=is_failure(raised), reason=reason_of(raised))
    if answered:
        yield from _depart(consumer)


def _depart(consumer: OpenConsumer) -> Steps[None]:
    member = consumer.member
    try:
        yield from groups.leave(consumer.group, member.name, member.epoch, timeout_ms_max=ASIDE_MS_MAX)
    except BasaltError:
        return


def renew(consumer: OpenConsumer) -> Steps[int | None]:
    """Renew the lease and the claims of what is out. Returns the milliseconds to the next time; None: it is a member no more."""
    try:
        yield from _sign_of_life(consumer)
    except (MemberFencedError, NotFoundError):
        return None
    except BasaltError:  # the next one may come through, and the user's own calls say what is wrong
        return min(RENEW_AGAIN_MS, consumer.renewal_ms())
    return consumer.renewal_ms()


def _sign_of_life(consumer: OpenConsumer) -> Steps[MemberStanding]:
    member = consumer.member

    def ask(epoch: int) -> Steps[MemberStanding]:
        return groups.sign_of_life(consumer.group, member.name, epoch, sorted(member.out), timeout_ms_max=ASIDE_MS_MAX)

    standing = yield from as_member(consumer, ask)
    member.epoch = max(member.epoch, standing.epoch)
    return standing


def _free_what_nobody_has(consumer: OpenConsumer) -> Steps[None]:
    """Give back claims that the server holds for this member and nobody here knows of.

    An interrupt or a cancellation met the answer that named them, or the call that gave them back. They would keep their messages from
    everybody until `claim_ms`. While no server answers, that is left to the next fetch.
    """
    member = consumer.member
    if not member.unsure:
        return
    try:
        standing = yield from _sign_of_life(consumer)
        unknown = tuple(claim for claim in standing.claims if claim not in member.out)
        for first in range(0, len(unknown), ACKNOWLEDGED_CLAIMS_MAX):
            some = unknown[first : first + ACKNOWLEDGED_CLAIMS_MAX]
            body = ReleaseRequest(
                claims=some, member=member.name, epoch=member.epoch, round=standing.round, counts=False
            )
            yield from groups.release(consumer.group, body, timeout_ms_max=ASIDE_MS_MAX)
    except RetryError:
        return
    except ConflictError:
        consumer.member.check()
    member.unsure = False


def as_member(consumer: OpenConsumer, ask: Callable[[int], Steps[T]]) -> Steps[T]:
    """Make a call under the member's epoch. It is fenced only if the call was made under the newest epoch that is known."""
    member = consumer.member
    while True:
        consumer.joined()
        epoch = member.epoch
        try:
            return (yield from ask(epoch))
        except MemberFencedError as fenced:
            if member.epoch == epoch:  # else a renewal has joined it anew meanwhile, after a restart of the server
                member.fenced = fenced
                raise


def fetch(
    consumer: OpenConsumer, *, limit: int | None, wait_ms: int, work: Callable[[], Work | None] = lambda: None
) -> Steps[Batch | None]:
    """Carry out the work, if any, and claim the next batch; None where there is none yet. It waits for its server."""

    def ask(epoch: int) -> Steps[Dealt]:
        return groups.fetch(
            consumer.group, consumer.member.name, epoch, limit=limit, wait_ms=wait_ms, work=work(), patient=True
        )

    member = consumer.member
    yield from _free_what_nobody_has(consumer)
    try:
        dealt = yield from as_member(consumer, ask)
    except (BasaltError, GeneratorExit):
        raise
    except BaseException:  # an interrupt: the answer may have been on its way
        member.unsure = True
        raise
    member.epoch = max(member.epoch, dealt.epoch)
    consumer.waiting_for = dealt.waiting_for
    if dealt.claim is None:
        return None
    consumer.current = Batch(member, dealt)
    return consumer.current


def rest(consumer: OpenConsumer) -> Steps[None]:
    """Rest after a fetch that brought nothing, or raise what it says cannot be mended by waiting."""
    word = (consumer.waiting_for or "").partition(" ")[0]
    if word in WAITS or not word:
        yield Rest(EMPTY_REST_MS)
        return
    kind = BY_CODE.get(word, RetryError)
    error = kind(f"fetch from group {consumer.group}: it is {word}")
    if isinstance(error, MemberFencedError):
        consumer.member.fenced = error
    if isinstance(error, MemberFencedError | NotFoundError):
        raise error
    yield Rest(FAILED_REST_MS)


class BatchCursor:
    """The place of an iterator of batches. What of the last one is not decided is given back when the next one is asked for."""

    def __init__(self, consumer: OpenConsumer, limit: int | None, wait: bool) -> None:
        check_count(limit, "limit")
        self.done = False
        self._consumer = consumer
        self._limit = limit
        self._wait = wait

    def next_items(self) -> Steps[Iterable[Batch]]:
        """Claim the next batch."""
        consumer = self._consumer
        yield from settle(consumer, counts=True, reason="it was not acknowledged")
        if self._is_closed():
            return ()
        wait_ms = FOLLOW_WAIT_MS if self._wait else 0
        batch = yield from fetch(consumer, limit=self._limit, wait_ms=wait_ms)
        if self._is_closed():  # meanwhile, by another thread: what came now came to a member that has left
            yield from settle(consumer, counts=False, reason="")
            yield from _depart(consumer)
            return ()
        if batch is not None:
            return (batch,)
        self.done = not self._wait
        yield from rest(consumer)
        return ()

    def _is_closed(self) -> bool:
        self.done = self.done or self._consumer.closing
        return self._consumer.closing


def batches(consumer: OpenConsumer, *, limit: int | None = None, wait: bool = True) -> BatchCursor:
    """Batch after batch, of `limit` messages at most: acknowledge each, in a transaction or with `acknowledge`.

    What is not acknowledged when the next one is asked for goes back to the group, and counts as an attempt. It waits for more without
    end, and for a server that cannot be reached; `wait=False`: until nothing is there to be claimed, and `waiting_for` says why.
    """
    return BatchCursor(consumer, limit, wait)


def acknowledge(consumer: OpenConsumer, given: Consumed) -> Steps[Acknowledged]:
    """Acknowledge a batch, or some of its messages, at once. `ClaimLostError`: another member has them by now."""
    told = _own(consumer, given)

    def ask(epoch: int) -> Steps[Acknowledged]:
        return groups.acknowledge(consumer.group, _request(told, epoch, by_ids=False))

    def ask_by_ids(epoch: int) -> Steps[Acknowledged]:
        return groups.acknowledge(consumer.group, _request(told, epoch, by_ids=True))

    if not told.entries():
        return Acknowledged(0, 0)
    try:
        answer = yield from as_member(consumer, ask)
    except ClaimLostError:  # after a restart of the server, or a seek: the ids tell which
        answer = yield from as_member(consumer, ask_by_ids)
    told.decide()
    return answer


def release(
    consumer: OpenConsumer, given: Consumed, *, delay_ms: int | None = None, counts: bool = True, reason: str = ""
) -> Steps[Released]:
    """Give a batch, or some of its messages, back to the group, which deals them again: after `delay_ms`, or its own delay.

    `counts=False`: it was no attempt.
    """
    told = _own(consumer, given)
    if not isinstance(reason, str):
        raise TypeError(f"reason is text, not {reason!r}")

    def ask(epoch: int) -> Steps[Released]:
        entry = _request(told, epoch, by_ids=False)
        body = ReleaseRequest(
            entry.ids, entry.claims, (), entry.member, epoch, entry.round, delay_ms, counts, reason[:REASON_CHARS_MAX]
        )
        return groups.release(consumer.group, body)

    if not told.entries():
        return Released(0)
    answer = yield from as_member(consumer, ask)
    told.decide()
    for batch in told.batches:
        batch.released = batch.released or batch.decided
    return answer


def settle(consumer: OpenConsumer, *, counts: bool, reason: str) -> Steps[bool]:
    """Give back what is left of the batch in hand, and of those before it that no transaction holds any more.

    False: no server answered.
    """
    consumer.current = None
    for batch in tuple(consumer.member.out.values()):
        if not (batch.held or (yield from give_back(batch, counts=counts, reason=reason))):
            return False
    return True


def give_back(batch: Batch, *, counts: bool, reason: str = "") -> Steps[bool]:
    """Give back what is left of a batch. False: no server answered; then the next fetch sees to it, or its claim ends by itself."""
    member = batch.member
    if batch.decided:
        return True
    batch.released = True
    body = ReleaseRequest(
        claims=(batch.claim,),
        member=member.name,
        epoch=member.epoch,
        round=batch.round,
        counts=counts and not batch.blameless,
        reason=reason[:REASON_CHARS_MAX],
    )
    batch.decide()
    if member.fenced is not None:
        return True
    try:
        yield from groups.release(member.group, body, timeout_ms_max=ASIDE_MS_MAX)
    except InputError:
        return True  # its claim has ended
    except BaseException as unanswered:  # an interrupt, too
        member.unsure = True
        if isinstance(unanswered, BasaltError):
            return False
        raise
    return True


def lag(consumer: OpenConsumer) -> Steps[GroupFigures]:
    """The lag of the group, in messages and seconds, and what its messages wait for."""
    figures = (yield from groups.get(consumer.group)).figures
    assert figures is not None, "of one group the server always tells them"
    return figures


def seek(
    consumer: OpenConsumer,
    to: PositionLike,
    *,
    dry_run: bool = False,
    force: bool = False,
    reason: str = "",
    by: str = "",
) -> Steps[Sought]:
    """Let the whole group go on from a position; what its members have claimed is revoked."""
    return groups.seek(consumer.group, to, dry_run=dry_run, force=force, reason=reason, by=by)


def pause(consumer: OpenConsumer, *, reason: str = "", by: str = "") -> Steps[GroupInfo]:
    """Deal nothing to anybody until the group is resumed; what is claimed may be acknowledged."""
    return groups.pause(consumer.group, reason=reason, by=by)


def resume(consumer: OpenConsumer, *, reason: str = "", by: str = "") -> Steps[GroupInfo]:
    """Deal again."""
    return groups.resume(consumer.group, reason=reason, by=by)


def check_count(count: int | None, field: str) -> None:
    """Refuse what is not the number of something: `TypeError`, `InputError`. None is every such number."""
    if count is None:
        return
    if not isinstance(count, int):
        raise TypeError(f"{field} is a whole number, not {count!r}")
    if count < 1:
        raise InputError(f"{field} is {count}; it must be 1 or more", field=field)


def is_lost(raised: BaseException) -> bool:
    """True if others were faster: at the messages in hand, or at what they were to change."""
    if type(raised) is ConflictError:
        return raised.field != "reject"  # the group has no topic for dead letters, and gets none by trying again
    return isinstance(raised, ClaimLostError | AcknowledgeConflictError | TransactionConflictError)


def is_failure(raised: BaseException) -> bool:
    """True if what was raised counts as an attempt at the messages in hand: no interrupt, no outage, and not that others were faster."""
    return isinstance(raised, Exception) and not (isinstance(raised, RetryError | MemberFencedError) or is_lost(raised))


def reason_of(raised: BaseException) -> str:
    """The error, as the reason of a return."""
    return f"{type(raised).__name__}: {raised}"[:REASON_CHARS_MAX]


def _made(consumer: OpenConsumer) -> Steps[GroupInfo]:
    group, given = consumer.group, consumer.options
    try:
        info = yield from groups.get(group)
    except GroupNotFoundError:
        made = yield from groups.put(group, GroupOptions(**given))
        consumer.made_group = True
        return made
    wanted = structs.replace(info.options, **given)
    if wanted == info.options:
        return info
    return (yield from groups.put(group, wanted))  # refused, with the difference


def _own(consumer: OpenConsumer, given: Consumed) -> Acknowledgements:
    consumer.joined()
    told = Acknowledgements()
    told.acknowledge(given)
    for batch in told.batches:
        if batch.member is not consumer.member:
            raise InputError(
                f"{batch!r} is not of this consumer of group {consumer.group}",
                field="batch",
                hint="Acknowledge it with its own consumer; in a transaction batches of several meet.",
            )
    return told


def _request(told: Acknowledgements, epoch: int, *, by_ids: bool) -> AcknowledgeRequest:
    entries = told.entries(by_ids=by_ids)
    first = entries[0]
    if any(entry.round != first.round for entry in entries):
        hint = "Acknowledge each batch by itself."
        raise InputError("the messages are of batches on both sides of a seek", field="messages", hint=hint)
    return AcknowledgeRequest(hex_ids(first.ids), None, tuple(first.claims), (), first.member, epoch, first.round)
