"""The leader's lease: one record in the system table, and the rules by which `leader` takes, renews and gives it up. Pure.

The record is only ever replaced by check-and-write, so of several servers one gets it, and every taking raises the epoch.
No rule compares the clocks of two servers. A leader counts its lease from before it sent the renewal, and stops a
margin before the end; a standby counts from when it first read a record, and takes it over once it has stayed as it is for
the whole lease. So nobody leads beside another while their clocks run at about the same rate. Where one does not,
the epoch keeps the data right: see docs/operations/several-servers.md. Format: docs/formats/system-table.md, "lease".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from basalt_engine.system import SystemRecord

MARGIN_PARTS = 6  # of the lease, one is left unused: two clocks may differ in rate by a fifth before two servers lead
RENEWALS_PER_LEASE = 4  # two may be lost before the third is too late
LOOKS_PER_LEASE = (
    12  # how often a standby looks: without a link, too, a lease that was given up is taken within half a second
)


class LeaseRecord(msgspec.Struct, frozen=True):
    """The leader, present or last. `expire_ms` is for people, and differs in every renewal; no rule asks what time it means.

    Nobody holds a lease whose `holder` is empty: it was given up. The epoch stays. Who knows `secret` has read the record, and so shares
    the store: by it the leader believes what another server says of a call that it passes on. `link` is where it takes links of members.
    """

    holder: str
    url: str
    epoch: int
    expire_ms: int
    instance: str
    lease_ms: int
    secret: str = ""
    link: str = ""

    @property
    def is_released(self) -> bool:
        """True when its holder gave it up."""
        return not self.holder


LEASE = SystemRecord("lease", "leader", LeaseRecord)


class Candidate(NamedTuple):
    """A server that would lead: its name for people, its address for clients, and this run of it, for the record. `secret`: its own. `link`: where it
    takes links of other servers, empty where it takes none."""

    holder: str
    url: str
    instance: str
    lease_ms: int
    secret: str = ""
    link: str = ""


class Role(enum.Enum):
    """The present part of a server."""

    STANDBY = "standby"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Lease:
    """One server's knowledge of the lease. Times are those of its own monotonic clock."""

    role: Role = Role.STANDBY
    stored: bytes | None = None  # the record as it was last read or written here
    record: LeaseRecord | None = None
    known: bool = False  # `stored` is the newest that this server can know: not before the first read, nor in doubt
    since_ms: float | None = None  # the record has been as it is since then at least; None: it was never read
    until_ms: float = 0.0  # a leader stops then, unless it renews before


class Read(NamedTuple):
    """The record was read; the answer came at `at_ms`."""

    stored: bytes | None
    at_ms: float


class Wrote(NamedTuple):
    """A check-and-write put this record in place; it was sent at `sent_ms` and answered at `at_ms`."""

    stored: bytes
    sent_ms: float
    at_ms: float


class Refused(NamedTuple):
    """A check-and-write found another record than the one expected."""


class Unanswered(NamedTuple):
    """A read or a check-and-write failed, or nobody knows what became of it."""


class Passed(NamedTuple):
    """It is `now_ms`."""

    now_ms: float


class Ended(NamedTuple):
    """This server leads no more, whatever the record says: it was fenced, or gave the lease up."""


Event = Read | Wrote | Refused | Unanswered | Passed | Ended


def step(lease: Lease, event: Event) -> Lease:
    """The server's knowledge after the event."""
    match event:
        case Read(stored, at_ms):
            return _read(lease, stored, at_ms)
        case Wrote(stored, sent_ms, at_ms):
            return _wrote(lease, stored, sent_ms, at_ms)
        case Refused() | Ended():
            return replace(lease, role=Role.STANDBY, known=False)
        case Unanswered():
            return replace(lease, known=False)
        case Passed(now_ms):
            over = lease.role is Role.LEADER and now_ms >= lease.until_ms
            return replace(lease, role=Role.STANDBY, known=False) if over else lease


def _read(lease: Lease, stored: bytes | None, at_ms: float) -> Lease:
    record = None if stored is None else LEASE.decode(stored)
    if lease.role is Role.LEADER:
        held = lease.record
        assert held is not None
        if record is not None and (record.instance, record.epoch) == (held.instance, held.epoch):
            # Ours, perhaps by a renewal whose answer was lost. It is counted when one is answered.
            return replace(lease, stored=stored, record=record, known=True)
        return Lease(Role.STANDBY, stored, record, True, at_ms)
    # Every record differs from all before it, so the same bytes have been there all the time.
    since_ms = lease.since_ms if stored == lease.stored and lease.since_ms is not None else at_ms
    return Lease(Role.STANDBY, stored, record, True, since_ms)


def _wrote(lease: Lease, stored: bytes, sent_ms: float, at_ms: float) -> Lease:
    record = LEASE.decode(stored)
    if lease.role is Role.LEADER and at_ms >= lease.until_ms:  # too late: its writes have been refused meanwhile
        return Lease(Role.STANDBY, stored, record, False, at_ms)
    until_ms = end_ms(sent_ms, record.lease_ms)
    if at_ms >= until_ms:  # it was a long time under way
        return Lease(Role.STANDBY, stored, record, False, at_ms)
    return Lease(Role.LEADER, stored, record, True, at_ms, until_ms)


def end_ms(sent_ms: float, lease_ms: int) -> float:
    """Until when its holder goes by a lease that it asked for at `sent_ms`: a margin before others may take it for over."""
    return sent_ms + lease_ms - lease_ms / MARGIN_PARTS


def is_free(lease: Lease, instance: str, now_ms: float) -> bool:
    """True when a standby may take the lease now."""
    record = lease.record
    if lease.role is Role.LEADER or not lease.known:
        return False
    if record is None or record.is_released or record.instance == instance:  # a term of its own that is over
        return True
    assert lease.since_ms is not None
    return now_ms - lease.since_ms >= record.lease_ms


def taken(lease: Lease, by: Candidate, now_ms: int) -> LeaseRecord:
    """The record with which a server takes the lease; `now_ms` is wall time."""
    before = lease.record
    epoch, expired_ms = (0, 0) if before is None else (before.epoch, before.expire_ms)
    expire_ms = max(now_ms + by.lease_ms, expired_ms + 1)
    return LeaseRecord(by.holder, by.url, epoch + 1, expire_ms, by.instance, by.lease_ms, by.secret, by.link)


def renewed(lease: Lease, now_ms: int) -> LeaseRecord:
    """The record with which a leader goes on: never the same as before, even when the wall clock stands still."""
    assert lease.record is not None
    expire_ms = max(now_ms + lease.record.lease_ms, lease.record.expire_ms + 1)
    return msgspec.structs.replace(lease.record, expire_ms=expire_ms)


def released(lease: Lease) -> LeaseRecord:
    """The record with which a leader gives the lease up."""
    assert lease.record is not None
    return msgspec.structs.replace(lease.record, holder="", url="", expire_ms=0, instance="", secret="", link="")
