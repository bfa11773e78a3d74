"""Why a message is not with a member of a group: the first reason that holds, what frees it, and when. Pure.

The order is that in which a message passes them: whether it is there at all, what the log has decided about it, who has it,
what it waits for, what the whole group waits for. `basalt explain group` shows one; what is in a `Situation` the group says.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class Presence(Enum):
    """The answers to: does a reader of committed messages find a message under an id?"""

    THERE = "there"
    ABSENT = "absent"
    EXPIRED = "expired"
    HIDDEN = "hidden"


class Work(NamedTuple):
    """A transaction: its id as it is shown, its owner, and when its time is up."""

    id: str
    owner: str = ""
    deadline_ms: int = 0

    @property
    def text(self) -> str:
        """The transaction in a sentence."""
        return f"transaction {self.id}" + (f" of {self.owner}" if self.owner else "")


class Holder(NamedTuple):
    """A member ("" when nobody gave a name) that has had something since a time, and has it until another at the latest."""

    member: str
    since_ms: int
    until_ms: int

    @property
    def text(self) -> str:
        """The member in a sentence."""
        return named(self.member)


def named(member: str) -> str:
    """A member in a sentence."""
    return f"member {member}" if member else "a caller without a member"


class Acknowledgement(NamedTuple):
    """The act that acknowledged a message, as far as the journal still knows: its transaction ("": none), and when."""

    at_ms: int | None = None
    by: str = ""


class Return(NamedTuple):
    """A message that was dealt and came back: so many times, last for this reason. `not_before_ms` None: it is parked."""

    attempts: int
    reason: str
    not_before_ms: int | None


class Ahead(NamedTuple):
    """The message before this one in its lane, and what has it ("": nothing has)."""

    message_id: str
    with_: str = ""


class Draining(NamedTuple):
    """The slot of a message, which another member still works on."""

    slot: int
    holder: Holder


class Unacknowledged(NamedTuple):
    """A group that may have no more unacknowledged messages, and the member that has most of them."""

    messages: int
    messages_max: int
    member: str
    member_messages: int


class Situation(NamedTuple):
    """All that is known of one message in one group."""

    now_ms: int
    presence: Presence = Presence.THERE
    acknowledged: Acknowledgement | None = None
    pending: Work | None = None
    claimed: Holder | None = None
    held_by: Work | None = None
    returned: Return | None = None
    ahead: Ahead | None = None
    draining: Draining | None = None
    silent: Holder | None = None  # the owner of its slot, which nobody has heard since
    paused: bool = False
    needs_member: bool = False  # the group has none
    unacknowledged: Unacknowledged | None = None
    spans: int | None = None  # of the group, while it is dealt nothing behind all that it has acknowledged
    dead_letter_topic: str | None = None
    before: int = 0  # messages that come before it and were not read yet
    before_exact: bool = True


class Explanation(NamedTuple):
    """The reason, as a word and as a sentence; what frees the message, and by when at the latest; since when it is so."""

    reason: str
    text: str
    freed_by: str
    at_ms: int | None = None
    since_ms: int | None = None


def explain(situation: Situation) -> Explanation:
    """The first reason that holds."""
    return next(found for rule in RULES if (found := rule(situation)) is not None)


_ABSENT = {
    Presence.ABSENT: "no message of this topic's generation has this id",
    Presence.EXPIRED: "it has expired: its TTL is over, or the topic was truncated behind it",
    Presence.HIDDEN: "its transaction was aborted or failed, so nobody sees it",
}


def _absent(it: Situation) -> Explanation | None:
    if it.presence is Presence.THERE:
        return None
    return Explanation(it.presence.value, _ABSENT[it.presence], "nothing: the group passes it by")


def _acknowledged(it: Situation) -> Explanation | None:
    if it.acknowledged is None:
        return None
    at_ms, by = it.acknowledged
    text = f"it is acknowledged by {by}" if by else "it is acknowledged"
    return Explanation("acknowledged", text, "a seek to a place before it", since_ms=at_ms)


def _pending(it: Situation) -> Explanation | None:
    if it.pending is None:
        return None
    text = f"{it.pending.text} acknowledges it, and has not ended"
    return Explanation(
        "pending", text, "the commit or abort of that transaction, or its time-out", it.pending.deadline_ms
    )


def _claimed(it: Situation) -> Explanation | None:
    if it.claimed is None:
        return None
    holder = it.claimed
    return Explanation(
        "claimed", f"{holder.text} works on it", "its acknowledgement or release, or the end of the claim",
        holder.until_ms, holder.since_ms,
    )  # fmt: skip


def _held(it: Situation) -> Explanation | None:
    if it.held_by is None:
        return None
    text = f"it lies at or behind a row of {it.held_by.text}, which has not ended"
    return Explanation("held", text, "the end of that transaction, or its time-out", it.held_by.deadline_ms)


def _parked(it: Situation) -> Explanation | None:
    if it.returned is None or it.returned.not_before_ms is not None:
        return None
    if it.dead_letter_topic is None:
        text = f"it is parked: {_tries(it.returned)}, and the group names no topic for dead letters"
        return Explanation("parked", text, "`basalt group unpark`, or a topic for dead letters")
    text = f"it is parked: {_tries(it.returned)}, and topic {it.dead_letter_topic} has not taken it as a dead letter"
    return Explanation("parked", text, "that topic, which is tried each minute, or `basalt group unpark`")


def _delayed(it: Situation) -> Explanation | None:
    if it.returned is None or (it.returned.not_before_ms or 0) <= it.now_ms:
        return None
    return Explanation("delayed", f"it is delayed: {_tries(it.returned)}", "time alone", it.returned.not_before_ms)


def _behind(it: Situation) -> Explanation | None:
    if it.ahead is None:
        return None
    has = it.ahead.with_ or "is not acknowledged"
    text = f"it comes behind message {it.ahead.message_id} of its lane, which {has}"
    return Explanation("behind", text, f"the acknowledgement of {it.ahead.message_id}")


def _drains(it: Situation) -> Explanation | None:
    if it.draining is None:
        return None
    slot, holder = it.draining
    text = f"slot {slot}, where its key is, moves to another member, and {holder.text} still works on messages of it"
    return Explanation("draining", text, "the end of that work", holder.until_ms, holder.since_ms)


def _silent(it: Situation) -> Explanation | None:
    if it.silent is None:
        return None
    holder = it.silent
    text = f"{holder.text} owns its slot, and is silent"
    return Explanation("silent", text, "its next fetch, or the end of its lease", holder.until_ms, holder.since_ms)


def _paused(it: Situation) -> Explanation | None:
    return Explanation("paused", "the group is paused", "`basalt group resume`") if it.paused else None


def _no_member(it: Situation) -> Explanation | None:
    if not it.needs_member:
        return None
    return Explanation("no_member", "the group has no member that could take it", "a member that joins, by a fetch")


def _unacknowledged(it: Situation) -> Explanation | None:
    if it.unacknowledged is None:
        return None
    messages, messages_max, member, most = it.unacknowledged
    mostly = f"; {most:,} of them with {named(member)}" if most else ""
    text = f"{messages:,} messages are dealt and not acknowledged, and no more than {messages_max:,} may be{mostly}"
    return Explanation("unacked", text, "acknowledgements, or a higher unackedMax")


def _scattered(it: Situation) -> Explanation | None:
    if it.spans is None:
        return None
    text = (
        f"what the group has acknowledged lies in {it.spans:,} pieces, and all groups together have too many: it is dealt"
        " what lies between them"
    )
    return Explanation("spans", text, "acknowledgements of what lies between, or a higher subscriptions.spans_max")


def _not_read_yet(it: Situation) -> Explanation:
    if it.before == 0 and it.before_exact:
        return Explanation("next", "it is the next that the group deals", "a fetch")
    count = f"{it.before:,} message{'' if it.before == 1 else 's'}{'' if it.before_exact else ' or more'}"
    text = f"it was not dealt yet: {count} before it {'was not' if it.before == 1 else 'were not'} either"
    return Explanation("unread", text, "fetches of what comes before it")


Rule = Callable[[Situation], Explanation | None]
RULES: tuple[Rule, ...] = (
    _absent, _acknowledged, _pending, _claimed, _held, _parked, _delayed, _behind, _drains, _silent, _paused, _no_member,
    _unacknowledged, _scattered, _not_read_yet,
)  # fmt: skip


def _tries(returned: Return) -> str:
    times = "once" if returned.attempts == 1 else f"{returned.attempts} times"
    return f"it came back {times}, last because {REASONS.get(returned.reason, returned.reason)}"


REASONS = {
    "released": "its member released it",
    "aborted": "its transaction aborted",
    "timed_out": "its transaction timed out",
    "claim_expired": "its claim ran out",
    "member_lost": "its member was lost",
}
