"""Members: a row of the system table for each run of a server on a shared store, and the rules by which its membership lasts. Pure.

They are those of the leader's lease in `lease`. A member renews its row by check-and-write and counts from before it sent the
renewal; those who watch count from when they first read a row, and it is over once it has stayed as it is for a whole lease. No two
clocks are compared. The leader alone says so, in the row and by check-and-write again: a row that was renewed meanwhile is left alone,
so nobody's membership is ended while its own clock tells it that it lasts. Format: docs/formats/system-table.md, "member".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from basalt.cluster.lease import Read, Refused, Unanswered, Wrote, end_ms
from basalt_engine.system import SystemRecord

# Everybody reads all rows so often. With leases of 6 s a hundred members make 100 scans a second, and 67 renewals.
LOOKS_PER_LEASE = 6
SILENT_PARTS = 2  # of the lease: two renewals were missed, and another look
MEMBERS_MAX = 128  # each reads the rows of all others; the design is for a hundred
# Of one look: a server that is started over and over, and killed, leaves no scan without an end.
ROWS_MAX = 2 * MEMBERS_MAX
DEAD_KEPT_MS = 600_000  # an operator sees who died of late, and no write of it is under way any more
DEAD_MAX = 32  # and of these the newest: a server in a loop of crashes leaves one every few seconds

State: TypeAlias = Literal["live", "silent", "dead"]


class MemberRecord(msgspec.Struct, frozen=True):
    """A membership, present or over. `began_ms` and `ended_ms` are of some server's clock, for people; no rule asks what they mean.

    `count` rises with every renewal, so no two records of a row are the same. `ended_ms` is 0 while the membership lasts. `link` is where
    the member takes links of others; `run` is the run of the server, whose lease would have it as its instance: a run may have several memberships.
    `secret` proves to the member that a call comes from another server, as that of the lease does to the leader. `unaware`: it was ended while it renewed
    its row, so it hears of it with its next renewal, and goes by its own clock until then.
    """

    holder: str
    url: str
    version: str
    began_ms: int
    lease_ms: int
    count: int
    ended_ms: int
    link: str = ""
    run: str = ""
    secret: str = ""
    unaware: bool = False

    @property
    def is_over(self) -> bool:
        """True once a leader has ended it."""
        return self.ended_ms != 0


MEMBER = SystemRecord("member", "", MemberRecord)


@dataclass(frozen=True, slots=True)
class OwnMember:
    """One server's knowledge of its own membership. Times are those of its own monotonic clock."""

    instance: str
    stored: bytes | None = None  # the row as it was last read or written here; None: it was never seen there
    known: bool = True  # `stored` is the newest that this server can know; nobody else has a row of a new instance
    renewed_ms: float | None = None  # when a write of it was last answered
    until_ms: float = 0.0  # it lasts until then, unless it is renewed before
    is_over: bool = False  # the leader has ended it, or its row is gone: another one must begin

    def is_on(self, now_ms: float) -> bool:
        """True while nobody can have ended it."""
        return not self.is_over and now_ms < self.until_ms


def step(own: OwnMember, event: Read | Wrote | Refused | Unanswered) -> OwnMember:
    """The member's knowledge after the event."""
    match event:
        case Read(None, _):
            # A row that was there has been removed, which happens to those of the dead alone. Or a first one never got there: it may
            # still do so, and nobody may take it for a renewal then. So an instance is begun once.
            return _over(own)
        case Read(stored, _):
            assert stored is not None
            # Ours, perhaps by a renewal whose answer was lost. It is counted when one is answered.
            return _over(own) if MEMBER.decode(stored).is_over else replace(own, stored=stored, known=True)
        case Wrote(stored, sent_ms, at_ms):
            until_ms = end_ms(sent_ms, MEMBER.decode(stored).lease_ms)
            return replace(own, stored=stored, known=True, renewed_ms=at_ms, until_ms=until_ms)
        case Refused() | Unanswered():
            return replace(own, known=False)


def _over(own: OwnMember) -> OwnMember:
    return replace(own, known=False, is_over=True)


def renewed(own: OwnMember) -> MemberRecord | None:
    """The record with which a membership goes on: never the same as before. None: it has yet to begin."""
    if own.stored is None:
        return None
    record = MEMBER.decode(own.stored)
    return msgspec.structs.replace(record, count=record.count + 1)


class Seen(NamedTuple):
    """A member's row as somebody who watches knows it: it has been as it is since `since_ms` of the watcher's clock at least."""

    stored: bytes
    record: MemberRecord
    since_ms: float

    def state(self, now_ms: float) -> State:
        """The member's state: silent once it has missed two renewals, dead once its membership was ended."""
        if self.record.is_over:
            return "dead"
        return "silent" if now_ms - self.since_ms >= self.record.lease_ms / SILENT_PARTS else "live"

    def may_go_on(self, now_ms: float) -> bool:
        """True while its server may answer readers under it: it lasts, or was ended less than a lease ago by somebody of whom the server may not know.

        The row says so for each leader that comes; each counts from when it saw the row as over, for no renewal that succeeds is sent later.
        """
        record = self.record
        return not record.is_over or (record.unaware and now_ms - self.since_ms < record.lease_ms)

    def may_end(self, now_ms: float) -> bool:
        """True when the leader may end the membership, by check-and-write against `stored`."""
        return not self.record.is_over and now_ms - self.since_ms >= self.record.lease_ms


def by_run(seen: Mapping[str, Seen]) -> dict[str, Seen]:
    """The membership of each run of a server that has any: one that lasts before one that is over, and of several the newest."""
    runs: dict[str, Seen] = {}
    for instance, each in seen.items():
        run = each.record.run or instance
        known = runs.get(run)
        if known is None or _age(known) < _age(each):
            runs[run] = each
    return runs


def _age(seen: Seen) -> tuple[bool, int]:
    return not seen.record.is_over, seen.record.began_ms


def looked(before: Mapping[str, Seen], rows: Iterable[tuple[str, bytes]], at_ms: float) -> dict[str, Seen]:
    """The knowledge of a watcher after a look, whose answer came at `at_ms`. Rows that are not there any more are forgotten."""
    seen: dict[str, Seen] = {}
    for instance, stored in rows:
        known = before.get(instance)
        # Every record differs from all before it, so the same bytes have been there all the time.
        seen[instance] = known if known and known.stored == stored else Seen(stored, MEMBER.decode(stored), at_ms)
    return seen


def ended(seen: Seen, now_ms: int, *, unaware: bool = False) -> MemberRecord:
    """The record with which the leader ends a membership; `now_ms` is wall time. Nothing is proved to the dead."""
    return msgspec.structs.replace(seen.record, ended_ms=max(now_ms, 1), secret="", unaware=unaware)


def removable(seen: Mapping[str, Seen], now_ms: float) -> list[str]:
    """The dead whose rows are to go: those that were kept for long enough, and all but the newest. None that may still go on."""
    dead = [
        (each.since_ms, each.record.ended_ms, instance) for instance, each in seen.items() if not each.may_go_on(now_ms)
    ]
    dead.sort(reverse=True)
    return [
        instance
        for place, (since_ms, _, instance) in enumerate(dead)
        if place >= DEAD_MAX or now_ms - since_ms >= DEAD_KEPT_MS
    ]


def is_full(seen: Mapping[str, Seen]) -> bool:
    """True when no more members may begin. Two that begin at the same moment may both: the limit is no promise."""
    return sum(not each.record.is_over for each in seen.values()) >= MEMBERS_MAX
