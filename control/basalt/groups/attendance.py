"""The members of a group as their own calls and people see them: signs of life, leaving, who works on what, and
how far each slot is behind.

All of it is in memory and answered at once. Times are shown by the wall clock, and kept by the monotonic one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import islice

from basalt.api.bodies.groups import (
    ClaimInfo,
    ClaimList,
    MemberInfo,
    MemberList,
    MemberRequest,
    MemberStanding,
    SlotInfo,
    SlotList,
)
from basalt.api.bodies.json import HexMessageId
from basalt.groups.claims import Claim
from basalt.groups.live_group import LiveGroup
from basalt_engine.clock import Clock
from basalt_engine.keys import MessageId
from basalt_engine.spans.spans import ZERO_ID

CLAIMS_SHOWN_MAX = 5_000  # of a group, at some 250 bytes each
CLAIMS_TURN = 500  # of them without a pause
SLOT_LOOKS_MAX = 20_000  # messages that one call looks at, some 10 ms: a window may have a million


def renew(live: LiveGroup, clock: Clock, name: str, asked: MemberRequest) -> MemberStanding:
    """Renew the member's lease, and the claims that it names if they are still its own; or join. `MemberFencedError`."""
    state, member = live.state, live.join(name, asked.epoch)
    assert member is not None, "it has a name"
    own = live.dispatcher.claims.of_member(name, member.epoch)
    wanted, until_ms = frozenset(asked.extend), clock.monotonic_ms() + live.options.claim_ms
    for claim in own:
        if claim.number in wanted and claim.until_ms < until_ms:
            live.dispatcher.claims.renew(claim, until_ms)
    return MemberStanding(member.epoch, state.round, slots_of(live, name), tuple(sorted(claim.number for claim in own)))


def slots_of(live: LiveGroup, name: str) -> int:
    """The number of slots that a member of a keyed group has; 0 in others."""
    lanes = live.dispatcher.lanes
    if lanes is None:
        return 0
    lanes.assign(live.members)
    return len(lanes.slots.of(name))


async def leave(live: LiveGroup, name: str, epoch: int) -> None:
    """The member goes, and what it has claimed is free, as if it had never been dealt. `MemberFencedError`; nothing for who is none."""
    _ = live.state
    member = live.members.leave(name, epoch)
    if member is None:
        return
    await live.give_all_back(member)
    live.wake()  # another member's turn may have come


def members_of(live: LiveGroup, clock: Clock) -> MemberList:
    """The members, by name."""
    _, shown = live.state, _wall_times(clock)
    claims = Counter((claim.member, claim.epoch) for claim in live.dispatcher.claims)
    found = [
        MemberInfo(
            member.name, member.epoch, slots_of(live, member.name), claims[member.name, member.epoch], shown(member.seen_ms),
            shown(member.seen_ms + live.members.lease_ms), live._stands_by(member.name),
        )
        for member in live.members
    ]  # fmt: skip
    return MemberList(tuple(sorted(found, key=lambda member: member.name)))


async def claims_of(
    live: LiveGroup, clock: Clock, transaction_text: Callable[[int], str], limit: int = CLAIMS_SHOWN_MAX
) -> ClaimList:
    """The claims that have not ended, oldest first."""
    _, shown = live.state, _wall_times(clock)

    def info(claim: Claim) -> ClaimInfo:
        transaction = None if claim.transaction_id is None else transaction_text(claim.transaction_id)
        return ClaimInfo(
            claim.number, claim.member, HexMessageId(claim.after), HexMessageId(claim.through), claim.messages_left, claim.attempt,
            shown(claim.since_ms), shown(claim.until_ms), transaction,
        )  # fmt: skip

    told = list[ClaimInfo]()
    for number, claim in enumerate(
        islice(live.dispatcher.claims, min(limit, CLAIMS_SHOWN_MAX)), 1
    ):  # as they were dealt
        told.append(info(claim))
        if number % CLAIMS_TURN == 0:
            await asyncio.sleep(0)
    return ClaimList(tuple(told))


def slots_behind(live: LiveGroup, now_ms: int, limit: int) -> SlotList:
    """The slots of a keyed group that have messages, the furthest behind first.

    Which slot a message belongs to is known once its key has been read, and a group reads ahead only as far as it deals: so this tells of
    what was read.
    """
    _ = live.state  # which tells whether the group is still there
    lanes = live.dispatcher.lanes
    if lanes is None:
        return SlotList(live.options.mode, (), None)
    lanes.assign(live.members)
    messages, claimed, looked_at = Counter[int](), Counter[int](), 0
    oldest: dict[int, bytes] = {}
    for slot, message_id, is_claimed in islice(lanes.peek(), SLOT_LOOKS_MAX):
        looked_at += 1
        messages[slot] += 1
        claimed[slot] += is_claimed
        if slot not in oldest or message_id < oldest[slot]:
            oldest[slot] = message_id
    owners, draining = lanes.slots.owners, dict[int, str]()
    for owner in set(owners):
        if owner is not None:
            draining.update(lanes.slots.draining_of(owner))
    shown = [
        SlotInfo(
            slot, owners[slot], messages[slot], claimed[slot], _age_s(oldest[slot], now_ms), HexMessageId(oldest[slot]),
            draining.get(slot),
        )
        for slot in sorted(oldest, key=oldest.__getitem__)[:limit]
    ]  # fmt: skip
    through = lanes.window.place
    return SlotList(
        live.options.mode,
        tuple(shown),
        None if through == ZERO_ID else HexMessageId(through),
        len(oldest) - len(shown),
        looked_at < SLOT_LOOKS_MAX,
    )


def _age_s(message_id: bytes, now_ms: int) -> float:
    return max(now_ms - MessageId.decode(message_id).publish_ms, 0) / 1_000


def _wall_times(clock: Clock) -> Callable[[float], int]:
    ahead_ms = clock.now_ms() - clock.monotonic_ms()
    return lambda at_ms: round(at_ms + ahead_ms)
