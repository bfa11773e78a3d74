"""Consumer groups: their options, members, claims and figures, and what is acknowledged, released and sought.

Ids are hex digits in JSON, times milliseconds since 1970 by the server's clock. Routes: docs/reference/http-api.md#consumer-groups.
What a Work acknowledges is in `messages`: it travels with a commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field

from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import (
    ACKNOWLEDGED_CLAIMS_MAX,
    ACKNOWLEDGED_ITEMS_MAX,
    LONG_MAX,
    MEMBER_CHARS_MAX,
    REASON_CHARS_MAX,
    WorkAcknowledge,
    check_acknowledge,
    check_count,
    check_long,
    check_place,
    is_member,
)
from basalt.errors import InputError, InvalidNameError

GroupMode: TypeAlias = Literal["shared", "keyed", "stream", "tracked"]

ATTEMPTS_MAX = 65_535  # attempts are counted in 16 bits
MEMBER_MS_MIN = 1_000  # a lease that is shorter would be lost to one slow call
MEMBER_MS_MAX = 12 * 3_600_000
DELAY_MS_MAX = 30 * 86_400_000  # of a retry or a release: longer, and the message is better off in a topic of its own
BY_CHARS_MAX = 255  # of who reports a position

_KEY = re.compile(r"key|header:.{1,255}", re.DOTALL)


class GroupOptions(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Options of a group; an absent option has its default.

    `key` is what lanes of a keyed group are told apart by: "key", the message's, or "header:NAME". `start` is where a group begins
    to read, and means nothing to one that has begun. `attempts_max` 0: a message is dealt for ever; `expire_ms` 0: an unused group is kept.
    """

    mode: GroupMode = "shared"
    key: str = "key"
    start: str = "start"
    member_ms: int = 30_000
    claim_ms: int = 300_000
    unacked_max: int = 10_000
    attempts_max: int = 8
    retry_delay_ms: int = 1_000
    retry_delay_ms_max: int = 300_000
    dead_letter_topic: str | None = None
    expire_ms: int = 0


DEFAULT_OPTIONS = GroupOptions()


class GroupFigures(Struct, frozen=True, rename="camel"):
    """Figures of a group. `lag_messages` are living and not acknowledged; the oldest is `lag_seconds` old. `exact` false: counting was
    given up, for what it counts lies in too many pieces.

    `unread` of them were never dealt; `claimed`, `pending`, `delayed` and `parked` are in those states: so many at least, if not `exact`.
    `oldest` is the id of the oldest. `returned` (by reason), `dead_lettered` and `conflicts` are counted since this server began to serve.
    """

    lag_messages: int
    exact: bool
    lag_seconds: float
    unread: int
    claimed: int
    pending: int
    delayed: int
    parked: int
    spans: int
    acknowledged_ms: int | None
    fetched_per_second: float
    acknowledged_per_second: float
    oldest: HexMessageId | None = None
    returned: Mapping[str, int] = {}
    dead_lettered: int = 0
    conflicts: int = 0


class GroupInfo(Struct, frozen=True, rename="camel"):
    """A group: up to `floor` everything is acknowledged. `round` is another one after each seek; `figures` null: not counted now."""

    namespace: str
    topic: str
    generation: int
    name: str
    number: int
    options: GroupOptions
    paused: bool
    round: int
    floor: HexMessageId
    made_ms: int
    used_ms: int
    members: int
    claims: int
    figures: GroupFigures | None = None


class GroupList(Struct, frozen=True):
    """The groups of a topic, by name. `next` is the `start` of the page behind it, and null in the last one."""

    groups: tuple[GroupInfo, ...]
    next: str | None = None


class OptionChange(Struct, frozen=True):
    """An option of a group that changes, and its values as JSON has them."""

    option: str
    before: str
    after: str


class ChangedGroup(Struct, frozen=True, rename="camel"):
    """A group with its options after a change of them, and what that changes; `dry_run`: what it would be."""

    group: GroupInfo
    changes: tuple[OptionChange, ...]
    dry_run: bool = False


class DeletedGroup(Struct, frozen=True, rename="camel"):
    """A group that is forgotten, with how far it was; `pending` are the transactions that have acknowledged something in it, and commit
    without that. `dry_run`: it would be.
    """

    namespace: str
    topic: str
    name: str
    floor: HexMessageId
    spans: int
    members: int
    claims: int
    pending: tuple[str, ...] = ()
    dry_run: bool = False


class ListedGroup(Struct, frozen=True, rename="camel"):
    """A group in the list of all. Its lag is as it was at `counted_ms`; null: nobody has counted it since the server started.

    `exact` false: so many messages at least.
    """

    namespace: str
    topic: str
    name: str
    mode: GroupMode
    paused: bool
    members: int
    claims: int
    used_ms: int
    lag_messages: int | None
    lag_seconds: float | None
    exact: bool
    counted_ms: int | None


class ListedGroups(Struct, frozen=True, rename="camel"):
    """Groups over all topics, in the order that was asked for. `next` is the `after` of the page behind, null in the last one.

    `found` are all that the filters let through; the lag of `uncounted` of them is not known, so in an order by lag they come last.
    """

    groups: tuple[ListedGroup, ...]
    found: int
    uncounted: int
    next: str | None = None


class SlotInfo(Struct, frozen=True, rename="camel"):
    """Messages of a slot that are not acknowledged, as far as the group has been read ahead: `claimed` of them are worked on.

    `owner` is the member that has the slot; `draining` the one whose claims end first. The oldest message is `lag_seconds` old.
    """

    slot: int
    owner: str | None
    messages: int
    claimed: int
    lag_seconds: float
    oldest: HexMessageId
    draining: str | None = None


class SlotList(Struct, frozen=True, rename="camel"):
    """Slots of a keyed group that have messages, the furthest behind first; `left_out` more have some.

    Behind `through` nothing was read ahead: which slots the messages there belong to is not known. `exact` false: there are more messages
    than were looked through. A group of another `mode` has no slots: all of it is one lane.
    """

    mode: GroupMode
    slots: tuple[SlotInfo, ...]
    through: HexMessageId | None
    left_out: int = 0
    exact: bool = True


class MemberInfo(Struct, frozen=True, rename="camel"):
    """A member: how many slots it has (keyed) and claims; its lease ends at `expires_ms` unless it calls. `standby`: it waits for a turn."""

    name: str
    epoch: int
    slots: int
    claims: int
    seen_ms: int
    expires_ms: int
    standby: bool = False


class MemberList(Struct, frozen=True):
    """The members of a group, by name."""

    members: tuple[MemberInfo, ...]


class MemberRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The body of a sign of life: epoch 0 joins. The claims `extend` last `claimMs` from now on."""

    epoch: int = 0
    extend: tuple[int, ...] = ()


class MemberStanding(Struct, frozen=True):
    """Answer to a sign of life: the claims that are still its own, among others."""

    epoch: int
    round: int
    slots: int
    claims: tuple[int, ...]


class ClaimInfo(Struct, frozen=True, rename="camel"):
    """A claim: the messages of (after, through] that were dealt to `member` ("" is none), until `until_ms`."""

    claim: int
    member: str
    after: HexMessageId
    through: HexMessageId
    messages: int
    attempt: int
    since_ms: int
    until_ms: int
    transaction: str | None = None


class ClaimList(Struct, frozen=True):
    """The claims of a group, oldest first."""

    claims: tuple[ClaimInfo, ...]


class GroupMessage(Struct, frozen=True, rename="camel"):
    """A message as a group has it, or a run of them up to `through`; its `state` is acknowledged, available, claimed, delayed, parked or pending.

    `until_ms` is when that changes by itself; `explanation` and `next_step` are given of one that was asked for by its id.
    """

    id: HexMessageId
    state: str
    through: HexMessageId | None = None
    attempts: int = 0
    reason: str | None = None
    member: str | None = None
    claim: int | None = None
    transaction: str | None = None
    owner: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    explanation: str | None = None
    next_step: str | None = None


class GroupMessages(Struct, frozen=True):
    """Messages of a group that are not acknowledged, in the order of the topic."""

    messages: tuple[GroupMessage, ...]


class AcknowledgeRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Messages to acknowledge: claims, ids, or all up to an id; less those of `except_ids`. With a transaction: when it commits."""

    ids: tuple[HexMessageId, ...] = ()
    up_to: HexMessageId | None = None
    claims: tuple[int, ...] = ()
    except_ids: tuple[HexMessageId, ...] = field(default=(), name="except")
    member: str = ""
    epoch: int = 0
    round: int = 0
    transaction: str | None = None


class Acknowledged(Struct, frozen=True, omit_defaults=True):
    """Count of messages that the call acknowledged, and of those that were acknowledged before; `exact` false: so many at least."""

    acknowledged: int
    already: int
    exact: bool = True


class ReleaseRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Messages to give back: they are dealt again, after `delay_ms` where it is given. `counts` false: it was no attempt, and
    there is no delay.
    """

    ids: tuple[HexMessageId, ...] = ()
    claims: tuple[int, ...] = ()
    except_ids: tuple[HexMessageId, ...] = field(default=(), name="except")
    member: str = ""
    epoch: int = 0
    round: int = 0
    delay_ms: int | None = None
    counts: bool = True
    reason: str = ""
    up_to: HexMessageId | None = None


class Released(Struct, frozen=True):
    """Count of messages that were given back."""

    released: int


class SeekRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The place where a group shall go on: start, end, now, an id, @TIME or -DURATION."""

    to: str


class Sought(Struct, frozen=True, rename="camel"):
    """Effect of a seek: messages that are `skipped`, and those that come once more (`exact` false: estimated).

    `doomed` are transactions that had acknowledged something and can no longer commit.
    """

    floor: HexMessageId
    round: int
    skipped: int
    repeated: int
    exact: bool
    claims_revoked: int
    doomed: tuple[str, ...] = ()
    dry_run: bool = False


class UnparkRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parked messages to deal again, from their first attempt on: some by id, or all."""

    ids: tuple[HexMessageId, ...] = ()
    all: bool = False


class Unparked(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Count of messages that were unparked; `dry_run`: that would be, so many at least if not `exact`."""

    unparked: int
    exact: bool = True
    dry_run: bool = False


class PositionRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Progress of somebody who keeps a position: everything up to the id is done."""

    up_to: HexMessageId
    by: str = ""


def check_options(options: GroupOptions, unacked_max: int, claim_ms_max: int) -> None:
    """Options that mean something, within the server's limits for unacknowledged messages and for claims.

    The names in it, and where it starts, are checked where they are looked up.
    """
    if not _KEY.fullmatch(options.key) or not options.key.isprintable():
        raise InputError("key is neither key nor header:NAME", field="key", hint="Say what lanes are told apart by.")
    check_long(options.member_ms, "memberMs", minimum=MEMBER_MS_MIN, maximum=MEMBER_MS_MAX)
    check_long(options.claim_ms, "claimMs", minimum=MEMBER_MS_MIN, maximum=claim_ms_max)
    check_long(options.unacked_max, "unackedMax", minimum=1, maximum=unacked_max)
    check_long(options.attempts_max, "attemptsMax", minimum=0, maximum=ATTEMPTS_MAX)
    check_long(options.retry_delay_ms, "retryDelayMs", minimum=0, maximum=DELAY_MS_MAX)
    check_long(options.retry_delay_ms_max, "retryDelayMsMax", minimum=options.retry_delay_ms, maximum=DELAY_MS_MAX)
    check_long(options.expire_ms, "expireMs", minimum=0, maximum=LONG_MAX >> 16)


def acknowledge_of(namespace: str, topic: str, group: str, asked: AcknowledgeRequest) -> WorkAcknowledge:
    """The request as a Work has it, checked."""
    entry = WorkAcknowledge(
        namespace, topic, group, asked.ids, asked.up_to, asked.member, asked.epoch, asked.round, asked.claims, asked.except_ids
    )  # fmt: skip
    check_acknowledge(entry)
    check_items(asked.ids, asked.claims, asked.except_ids)
    check_count(len(asked.claims), ACKNOWLEDGED_CLAIMS_MAX, "claims")
    return entry


def check_release(asked: ReleaseRequest) -> None:
    """A release names messages as an acknowledgement does; its delay is one that a group waits for."""
    acknowledge_of(
        "",
        "",
        "",
        AcknowledgeRequest(
            asked.ids, asked.up_to, asked.claims, asked.except_ids, asked.member, asked.epoch, asked.round
        ),
    )
    if asked.delay_ms is not None:
        check_long(asked.delay_ms, "delayMs", minimum=0, maximum=DELAY_MS_MAX)
        if not asked.counts:
            raise InputError(
                "delayMs and counts false: what was no attempt is dealt again at once",
                field="delayMs",
                hint="Leave out delayMs, or let the release count as an attempt.",
            )
    if len(asked.reason) > REASON_CHARS_MAX:
        raise InputError(f"reason has over {REASON_CHARS_MAX} characters", field="reason", hint="Shorten it.")


def check_items(*lists: Sequence[object]) -> None:
    """Not more ids and claims than one call may name."""
    check_count(sum(map(len, lists)), ACKNOWLEDGED_ITEMS_MAX, "ids")


def check_member_request(member: str, asked: MemberRequest) -> None:
    """A sign of life is of a member, and extends claims that can be."""
    if not member or not is_member(member):
        raise InvalidNameError(
            f"member {member[:40]!r} is no member's name",
            field="member",
            hint=f"Use 1 to {MEMBER_CHARS_MAX} printable characters, such as a host name and a number.",
        )
    check_long(asked.epoch, "epoch", minimum=0)
    check_items(asked.extend)
    for claim in asked.extend:
        check_long(claim, "extend", minimum=1)


def check_unpark(asked: UnparkRequest) -> None:
    """Some messages, or all."""
    check_items(asked.ids)
    for message_id in asked.ids:
        check_place(message_id, "ids")
    if asked.all == bool(asked.ids):
        raise InputError(
            "ids and all: exactly one of them is to be given", field="ids", hint='Send ids, or {"all": true}.'
        )


def check_position(asked: PositionRequest) -> None:
    """A position that can be, of somebody who can be shown in one line."""
    check_place(asked.up_to, "upTo")
    if len(asked.by) > BY_CHARS_MAX or (asked.by and not asked.by.isprintable()):
        hint = "Use a name that tells people whom to ask."
        raise InputError(f"by is at most {BY_CHARS_MAX} printable characters", field="by", hint=hint)
