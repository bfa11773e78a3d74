"""A member: one run of a server, with its lease, its map, its reigns, its loans, and what it carries through for clients.

Leases are those of `basalt.cluster.lease`, renewed and judged by the same rules: each member counts on a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from basalt.cluster.lease import (
    LEASE,
    LOOKS_PER_LEASE,
    RENEWALS_PER_LEASE,
    Candidate,
    Lease,
    Passed,
    Read,
    Refused,
    Role,
    Unanswered,
    Wrote,
    is_free,
    renewed,
    step,
    taken,
)
from tests.sim.members.hbase import SYSTEM, OwnersMap
from tests.sim.members.leader import LEASE_MS, Leader
from tests.sim.members.ledger import Run, View
from tests.sim.members.play import AbortedError, CallError, Lane, Play, Process, RefusedError, UnansweredError
from tests.sim.members.reign import Reign

if TYPE_CHECKING:
    from tests.sim.members.world import MembersWorld

BEAT_MS = 100
LOAN_USE_MS = 1_500  # the product's is 5 s: a loan that is idle for longer is given back
COORDINATOR_TRIES = 40  # of a commit's decision, before the carrier says that it does not know
PAUSE_MS = 30  # before something is tried again
MEMBER, LEAD, MAP = "member:", "lease:coordinator", "owners:map"


class Clock(NamedTuple):
    """A member's two clocks: the one for people may be wrong by any time, the other runs at about the right rate."""

    play: Play
    rate: float
    wrong_by_ms: int

    def monotonic_ms(self) -> float:
        """The time since some moment."""
        return self.play.now_ms * self.rate

    def wall_ms(self) -> int:
        """The time of day."""
        return 1_000_000 + int(self.play.now_ms) + self.wrong_by_ms


class Held:
    """One lease row, as one member takes and renews it."""

    def __init__(self, member: Member, key: str) -> None:
        self.member, self.key = member, key
        self.lease = Lease()

    def is_on(self) -> bool:
        """True while the lease lasts, by this member's own clock."""
        now_ms = self.member.clock.monotonic_ms()
        if self.lease.role is Role.LEADER and now_ms >= self.lease.until_ms:
            self.lease = step(self.lease, Passed(now_ms))
        return self.lease.role is Role.LEADER

    def saw(self, stored: bytes | None) -> None:
        """The row was read."""
        self.lease = looked(self.lease, stored, self.member.clock.monotonic_ms())

    async def write(self, *, begins: bool = False) -> None:
        """Take the lease, or renew it; what has become of it, the next look tells when no answer came."""
        clock, before = self.member.clock, self.lease
        owner = Candidate(self.member.instance, "", self.member.instance, LEASE_MS)
        is_new = begins or before.record is None
        record = taken(before, owner, clock.wall_ms()) if is_new else renewed(before, clock.wall_ms())
        stored, sent_ms = LEASE.encode(record), clock.monotonic_ms()
        hbase = self.member.hbase
        try:
            await self.member.ask_hbase_bare(SYSTEM, lambda: hbase.replace(self.key, before.stored, stored))
        except RefusedError:
            self.lease = step(self.lease, Refused())
        except UnansweredError:
            self.lease = step(self.lease, Unanswered())
        else:
            self.lease = step(self.lease, Wrote(stored, sent_ms, clock.monotonic_ms()))


def looked(lease: Lease, stored: bytes | None, now_ms: float) -> Lease:
    """What is known after a look; most find what the last one has found."""
    return (
        lease
        if lease.known and stored == lease.stored and lease.since_ms is not None
        else step(lease, Read(stored, now_ms))
    )


class Loan:
    """Write pointers that this member may use for one-shots, one after the other."""

    __slots__ = ("next", "run", "until_ms")

    def __init__(self, run: Run, until_ms: float) -> None:
        self.run, self.next, self.until_ms = run, run.first, until_ms


class Member:
    """One run of a server."""

    def __init__(self, world: MembersWorld, instance: str, clock: Clock) -> None:
        self.world, self.instance, self.clock = world, instance, clock
        self.play, self.hbase, self.links = world.play, world.hbase, world.links
        self.process = Process()
        self.membership = Held(self, MEMBER + instance)
        self.lead = Held(self, LEAD)
        self.seen: dict[str, Lease] = {}  # the memberships of all
        self.map = OwnersMap()
        self.reigns: dict[str, Reign] = {}
        self.taken: dict[str, int] = {}  # the last epoch of each shard that was ever this member's
        self.leader: Leader | None = None
        self.stands_by_until_ms = 0.0  # a leader that nobody is linked to lets others try
        self.leader_epoch = 0  # the highest that this member has heard of
        self.view = View()
        self.loan: Loan | None = None
        self.undecided: set[int] = set()
        self._loan_lane = Lane(self.play)
        self._asking = Lane(self.play)
        self._question: Any = None
        self._tokens = 0
        for loop in (self._be_a_member(), self._look(), self._beat()):
            self.play.start(loop, self.process)

    # Lease.

    def is_on(self) -> bool:
        """True while this member may read, write and answer."""
        return self.membership.is_on()

    def check_lease(self) -> None:
        """Before each write and each read."""
        if not self.is_on():
            raise RefusedError(f"the lease of {self.instance} is over")

    def check_answer(self) -> None:
        """Before an answer that says that something was done."""
        if not self.is_on():
            raise UnansweredError(f"the lease of {self.instance} is over")

    async def ask_hbase_bare(self, region: str, action: Callable[[], Any]) -> Any:
        """A call of HBase without a lease: of the rows of leases."""
        return await self.hbase.call(self.process, region, action)

    async def ask_hbase(self, region: str, action: Callable[[], Any]) -> Any:
        """A call of HBase, whose answer is of use only while the lease is on."""
        self.check_lease()
        value = await self.ask_hbase_bare(region, action)
        self.check_answer()
        return value

    async def _be_a_member(self) -> None:
        self.membership.lease = step(self.membership.lease, Read(None, self.clock.monotonic_ms()))
        while self.process.alive:
            if self.membership.lease.known:
                await self.membership.write()
            await self.play.sleep(LEASE_MS / RENEWALS_PER_LEASE)

    async def _look(self) -> None:
        """Read all rows about members: a link may be cut, but who has no HBase can do nothing anyway."""
        while self.process.alive:
            try:
                rows = await self.ask_hbase_bare(SYSTEM, lambda: dict(self.hbase.system))
            except CallError:
                pass
            else:
                self._see(rows)
                await self._seek_to_lead()
            await self.play.sleep(LEASE_MS / LOOKS_PER_LEASE)

    def _see(self, rows: dict[str, Any]) -> None:
        now_ms = self.clock.monotonic_ms()
        own = rows.get(self.membership.key)
        self.membership.saw(own)
        record = self.membership.lease.record
        if own is not None and record is not None and record.is_released:  # the leader has ended it: this run is over
            self.process.kill()
            return
        for key, stored in rows.items():
            if key.startswith(MEMBER):
                name = key.removeprefix(MEMBER)
                self.seen[name] = looked(self.seen.get(name, Lease()), stored, now_ms)
        if self.leader is None:
            self.lead.saw(rows.get(LEAD))
            if self.lead.lease.record is not None:
                self.leader_epoch = max(self.leader_epoch, self.lead.lease.record.epoch)
        self.take_map(rows[MAP])

    async def _seek_to_lead(self) -> None:
        free = is_free(self.lead.lease, self.instance, self.clock.monotonic_ms())
        if self.leader is None and self.is_on() and free and self.play.now_ms >= self.stands_by_until_ms:
            await self.lead.write(begins=True)
            if self.lead.is_on() and self.lead.lease.record is not None:
                self.leader_epoch = self.lead.lease.record.epoch
                self.leader = Leader(self, self.leader_epoch)

    # Map and links.

    def take_map(self, new: OwnersMap) -> None:
        """Begin and end reigns as the map says; an older map says nothing."""
        if new.version <= self.map.version:
            return
        self.map = new
        for shard, (owner, epoch) in new.owners.items():
            mine = self.reigns.get(shard)
            if mine is not None and (owner != self.instance or mine.epoch != epoch):
                mine.stop()
            if owner == self.instance and self.is_new_reign(shard, epoch):
                self.taken[shard] = epoch
                self.reigns[shard] = reign = Reign(self, shard, epoch)
                self.play.start(reign.take(), self.process)

    def is_new_reign(self, shard: str, epoch: int) -> bool:
        """A reign that has ended is not taken up again: times of its writes would begin anew. The leader grants the shard anew."""
        return epoch > self.taken.get(shard, 0)

    def reign(self, shard: str) -> Reign:
        """The reign over a shard, if it is this member's."""
        if shard not in self.reigns:
            raise RefusedError(f"{self.instance} does not own {shard}")
        return self.reigns[shard]

    def leading(self) -> Leader:
        """What leads here, while its lease is on."""
        if self.leader is None or not self.leader.is_on():
            raise RefusedError(f"{self.instance} does not lead")
        return self.leader

    async def ask_leader(self, call: str, *arguments: object) -> Any:
        """A call of the coordinator."""
        record = self.lead.lease.record
        return await self.links.call(self, record.instance if record else None, "coordinate", call, *arguments)

    async def coordinate(self, call: str, *arguments: object) -> Any:
        """A call that came for the coordinator."""
        return await getattr(self.leading().coordinator, call)(*arguments)

    async def ask_owner(self, shard: str, call: str, *arguments: object) -> Any:
        """A call of the shard's owner, as this member's map has it."""
        owner, _ = self.map.owners.get(shard, (None, 0))
        return await self.links.call(self, owner, "own", shard, call, *arguments)

    async def own(self, shard: str, call: str, *arguments: object) -> Any:
        """A call that came for the owner of a shard."""
        return await getattr(self.reign(shard), call)(*arguments)

    async def hear_leader(self, epoch: int, shard: str, call: str, *arguments: object) -> Any:
        """A call that the leader sends to the owner of a shard; of a former leader nothing is taken."""
        if epoch < self.leader_epoch:
            raise RefusedError("a later leader is known")
        self.leader_epoch = epoch
        done = getattr(self.reign(shard), call)(*arguments)
        return await done if done is not None else None

    async def _beat(self) -> None:
        """Tell the leader what is held here, and get the view."""
        while self.process.alive:
            await self.play.sleep(BEAT_MS)
            if self.is_on():
                held = {shard: reign.epoch for shard, reign in self.reigns.items()}
                self.play.start(self._beat_once(held), self.process)

    async def _beat_once(self, held: dict[str, int]) -> None:
        record = self.lead.lease.record
        leader = record.instance if record else None
        self.see_view(await self.links.call(self, leader, "hear_beat", self.instance, held))

    async def hear_beat(self, instance: str, held: dict[str, int]) -> View | None:
        """A beat that came for the leader."""
        return self.leading().hear_beat(instance, held)

    # Views.

    async def hear_view(self, view: View) -> None:
        """The coordinator tells how transactions have ended."""
        self.see_view(view)

    def see_view(self, view: View | None) -> None:
        """Keep the newest: an older one is a beginning of it."""
        if view is not None and view.version > self.view.version:
            self.view = view

    async def newer_view(self) -> View:
        """The coordinator's view of now: asked for once for all who have come before the question is sent."""
        if self._question is None:
            self._question = self.play.answer()
            self.play.start(self._ask_for_view(self._question), self.process)
        view: View = await self.play.within(LEASE_MS, self._question)
        self.check_answer()
        return view

    async def _ask_for_view(self, answer: Any) -> None:
        async with self._asking:
            self._question = None  # who comes from now on may know of what this answer does not
            try:
                self.see_view(await self.ask_leader("view"))
                answer.give(self.view)
            except CallError as error:
                answer.give(error=error)

    # One-shots of this member's own shards.

    async def one_shot(self, texts: dict[str, str], request: str) -> int:
        """Pointer from the loan, rows in their lanes, then the decision; the pointer of whoever was first with this request."""
        reigns = [self.reign(topic) for topic in sorted(texts)]
        for reign in reigns:
            reign.serve()
        writer = await self._pointer()
        placed = True
        try:
            for reign in reigns:
                async with reign.lane:
                    await reign.append(writer, (texts[reign.shard],))
        except CallError:
            placed = False
        first = await self._decided(writer, placed, request)
        self.check_answer()
        if first is None:
            raise AbortedError(f"one-shot {writer} was given up")
        return first

    async def _pointer(self) -> int:
        async with self._loan_lane:
            loan = self.loan
            if loan is None or loan.next > loan.run.last or self.clock.monotonic_ms() >= loan.until_ms:
                self.loan = None
                left = None if loan is None or loan.next > loan.run.last else Run(loan.next, loan.run.last)
                run = await self.ask_leader("lend", self.instance, left)
                loan = self.loan = Loan(run, self.clock.monotonic_ms() + LOAN_USE_MS)
            loan.next += 1
            return loan.next - 1

    async def _decided(self, writer: int, placed: bool, request: str) -> int | None:
        """The coordinator's decision, asked for until a coordinator has answered."""
        while True:
            try:
                first: int | None = await self.ask_leader("decide_one_shot", self.instance, writer, placed, request)
                return first
            except (RefusedError, UnansweredError):
                await self.play.sleep(PAUSE_MS)

    # Commits that this member carries through.

    async def commit(self, writer: int | None, parts: dict[str, tuple[str, ...]], request: str | None = None) -> int:
        """A commit over any owners; without a writer it is a one-shot, which begins with its intent."""
        self.check_lease()
        self._tokens += 1
        token = f"{self.instance}/{self._tokens}"
        for topic, texts in parts.items():
            await self.ask_owner(topic, "prepare", token, texts)
        intended = await self.ask_leader("intend", self.instance, writer, tuple(parts), request)
        writer = intended.writer
        if intended.outcome is None:
            placed = await self._place_all(writer, intended.joins, token, parts)
            outcome, writer = await self._decide(writer, placed)
        else:
            outcome = intended.outcome
        self.check_answer()
        if outcome != "committed":
            raise AbortedError(f"transaction {writer} is rolled back; run it again")
        return writer

    async def _place_all(
        self, writer: int, joins: tuple[str, ...], token: str, parts: dict[str, tuple[str, ...]]
    ) -> bool:
        try:
            for shard in joins:
                await self.ask_owner(shard, "place", writer, token, len(parts.get(shard, ())))
        except CallError:
            return False
        return True

    async def _decide(self, writer: int, placed: bool) -> tuple[str, int]:
        for _ in range(COORDINATOR_TRIES):
            try:
                outcome: tuple[str, int] = await self.ask_leader("decide", writer, placed)
                return outcome
            except (RefusedError, UnansweredError):
                await self.play.sleep(PAUSE_MS)
        raise UnansweredError(f"nobody knows how transaction {writer} ended")

    # What clients call: passed on once where it is not this member's.

    async def serve(self, call: str, shard: str, *arguments: object) -> Any:
        """A client's call about one shard."""
        self.check_lease()
        return await self.ask_owner(shard, call, *arguments)

    async def serve_one_shot(self, texts: dict[str, str], request: str) -> int:
        """One member's own rows take the short way; rows of several owners are a commit."""
        self.check_lease()
        owners = {self.map.owners.get(topic, (None, 0))[0] for topic in texts}
        if len(owners) == 1:
            first: int = await self.links.call(self, owners.pop(), "one_shot", texts, request)
            return first
        return await self.commit(None, {topic: (text,) for topic, text in texts.items()}, request)

    async def serve_transaction(self, call: str, *arguments: object) -> Any:
        """A call of the coordinator, passed on."""
        self.check_lease()
        return await self.ask_leader(call, *arguments)
