"""One server's membership: it renews its own row, watches those of all others and the map of owners, and as the leader ends those that are over.

As long as its lease lasts, so does a term (`led_store.Term`), in which it may serve what it is given.

It has a thread and a handle on the store of its own, for a renewal must not wait behind a long write or a busy event loop, nor the
leader's lease behind a scan of all rows. The rules are in `members`.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from basalt.cluster import members as rules
from basalt.cluster.leader import STOP_WAIT_S, Leadership
from basalt.cluster.lease import LOOKS_PER_LEASE as TRIES_PER_LEASE
from basalt.cluster.lease import RENEWALS_PER_LEASE, Candidate, Read, Refused, Unanswered, Wrote
from basalt.cluster.led_store import Term
from basalt.cluster.links.beats import Beats
from basalt.cluster.members import MEMBER, MemberRecord, OwnMember, Seen, State
from basalt.cluster.owners import KIND as MAP_KIND
from basalt.cluster.owners import NAME as MAP_NAME
from basalt.cluster.owners import OwnersMap
from basalt_engine import __version__
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.system import FACTS, SystemTable
from basalt_engine.table import Store

ROUNDS_MAX = 3  # of a renewal: one is refused, the next finds that the membership was ended, the last begins another
# Rows that are ended or removed: each takes some milliseconds, and the next renewal waits for them.
CHANGES_PER_LOOK_MAX = 32

log = logging.getLogger("basalt.membership")


class Owner(NamedTuple):
    """A member that owns shards, as another server knows it. Of one that is in no list, name and address are empty."""

    instance: str
    name: str
    url: str
    state: State
    secret: str = ""  # by which it knows that a call comes from another server


class Membership:
    """This server as a member, and all members as it knows them. `step` is for its thread, and for tests that have none."""

    def __init__(
        self, store: Store, clock: Clock, candidate: Candidate, leadership: Leadership, version: str = __version__, *,
        on_term: Callable[[Term], None] | None = None,
    ) -> None:  # fmt: skip
        self.begun = 0  # how many memberships this server has begun
        self.seen: Mapping[str, Seen] = {}  # as of the last look; replaced as a whole
        self._runs: tuple[Mapping[str, Seen], Mapping[str, Seen]] = (self.seen, {})  # the same, by the runs of servers
        self.looked_ms: float | None = None  # when that was answered
        self.owners: OwnersMap | None = None  # as of the last look, too; None: there was none
        self.when_dealt: Callable[[OwnersMap], None] | None = (
            None  # called by this thread with each map that it has not seen yet
        )
        self.beats = Beats()  # what this server has heard over its links while it leads
        self.installation = ""  # by which members know that they share the store; empty until it was read
        self.candidate = candidate
        self.version = version
        self._store = store
        self._system = SystemTable(store.table(SystemTable.name))
        self._clock = clock
        self._leadership = leadership
        self._own = OwnMember(candidate.instance)
        self._term: Term | None = None
        self._on_term = on_term
        self._map_stored: bytes | None = None
        self._told_full = False
        self._failing: set[str] = set()  # of what this server does, that which failed the last time
        self._renew_at_ms = self._look_at_ms = 0.0
        self._look_asked = False
        self._stopping = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="basalt-membership", daemon=True)

    @property
    def instance(self) -> str:
        """The name of this server's row."""
        return self._own.instance

    @property
    def reachable(self) -> bool:
        """True unless the last renewal, or the last look at all rows, failed."""
        return not self._failing

    @property
    def is_on(self) -> bool:
        """True while nobody can have ended this server's membership."""
        return self._own.is_on(self._clock.monotonic_ms())

    @property
    def lease_age_ms(self) -> float | None:
        """For how long this server's row has not been renewed; None: it never was written."""
        renewed_ms = self._own.renewed_ms
        return None if renewed_ms is None else self._clock.monotonic_ms() - renewed_ms

    def may_serve(self) -> set[str]:
        """The runs of servers that serve, for all that this one knows: a membership of theirs lasts, or was ended while it was renewed, by whichever leader.

        Of that they hear with their next renewal, and before it their own clocks have the lease last: others could write while they still answer readers.
        """
        now_ms = self._clock.monotonic_ms()
        return {seen.record.run for seen in self.seen.values() if seen.may_go_on(now_ms)}

    def others_reading(self) -> list[str]:
        """The memberships of other servers under which readers may go on, as `may_serve` has it: by the names of their rows."""
        now_ms = self._clock.monotonic_ms()
        return [name for name, seen in self.seen.items() if name != self.instance and seen.may_go_on(now_ms)]

    def owner(self, instance: str) -> Owner:
        """The owner of shards that has this name in the map.

        The leader is known by its lease, whatever became of its membership, for it serves without one. Who is in no list is dead.
        """
        leadership, candidate = self._leadership, self.candidate
        if instance == candidate.instance and leadership.is_leader:
            return Owner(instance, candidate.holder, candidate.url, "live")
        lease = leadership.leader
        if lease is not None and lease.instance == instance:
            is_silent = leadership.unchanged_ms >= lease.lease_ms / rules.SILENT_PARTS
            return Owner(instance, lease.holder, lease.url, "silent" if is_silent else "live", lease.secret)
        seen = self._of_run(instance)
        if seen is None:
            return Owner(instance, "", "", "dead")
        record = seen.record
        return Owner(instance, record.holder, record.url, seen.state(self._clock.monotonic_ms()), record.secret)

    def silent(self) -> list[str]:
        """The runs of other servers that have not renewed their rows for long, and whose memberships nobody has ended."""
        now_ms = self._clock.monotonic_ms()
        others = [(name, seen) for name, seen in self.seen.items() if name != self.instance]
        return [seen.record.run or name for name, seen in others if seen.state(now_ms) == "silent"]

    def row_of(self, run: str) -> str | None:
        """The name of the row of this run's membership: the one by which its links know it."""
        found = self._of_run(run)
        return next((instance for instance, each in self.seen.items() if each is found), None)

    def _of_run(self, run: str) -> Seen | None:
        """The membership that this run of a server has now, or had last: its first one may have been ended."""
        seen, runs = self._runs
        if seen is not self.seen:
            seen = self.seen
            runs = rules.by_run(seen)
            self._runs = seen, runs
        return runs.get(run)

    def shard_states(self) -> Counter[State] | None:
        """The number of shards by the state of their owner; None before there is a map."""
        owners = self.owners
        if owners is None:
            return None
        states: Counter[State] = Counter()
        for instance, count in owners.counts().items():
            states[self.owner(instance).state] += count
        return states

    def start(self) -> None:
        """Be a member from now on, on a thread."""
        self._thread.start()

    def look(self) -> None:
        """Read all rows at once, and not when it is due: something has happened."""
        self._look_asked = True
        self._wake.set()

    def stop(self) -> None:
        """End this server's membership, so that nobody waits for the end of its lease, and close the handle."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(STOP_WAIT_S)
        try:
            if self.reachable:  # else it would take the time that is left for the rest of the stop
                with self._lock:
                    self._leave()
        except BasaltError as error:
            log.warning("the membership could not be ended, and runs out: %s", error.message)
        finally:
            self._store.close()

    def step(self) -> float:
        """Do what is due; after how many milliseconds there is more to do."""
        with self._lock:
            self._notice()
            if self._look_asked:
                self._look_asked, self._look_at_ms = False, 0.0
            due = [(self._renew_at_ms, "renewed", self._renew), (self._look_at_ms, "watched", self._look)]
            if self._own.stored is None:  # whoever begins knows first how many there are
                due.reverse()
            for at_ms, what, do in due:
                if self._clock.monotonic_ms() >= at_ms:
                    self._try(what, do)
            return max(0.0, min(self._renew_at_ms, self._look_at_ms) - self._clock.monotonic_ms())

    def _run(self) -> None:
        while not self._stopping:
            try:
                wait_ms = self.step()
            except Exception:  # without renewals, and without a word, the membership would end
                log.exception("the members could not be looked at")
                wait_ms = self._part_ms(TRIES_PER_LEASE)
            self._wake.wait(wait_ms / 1_000)
            self._wake.clear()

    def _notice(self) -> None:
        """Take note of a lease that has run out. Nobody may have ended the membership, but nothing is to be served in the same term again."""
        if self._term is not None and not self._term.is_on():
            self._term.end("its lease ran out before it could be renewed")

    def _try(self, what: str, do: Callable[[], None]) -> None:
        try:
            do()
        except BasaltError as error:
            if what not in self._failing:
                self._failing.add(what)
                log.warning("memberships cannot be %s: %s", what, error.message)
        else:
            if what in self._failing:
                self._failing.remove(what)
                log.info("memberships are %s again", what)

    def _renew(self) -> None:
        self._renew_at_ms = self._clock.monotonic_ms() + self._part_ms(TRIES_PER_LEASE)  # unless it is done
        try:
            for _ in range(ROUNDS_MAX):
                if not self._own.known:
                    stored = self._system.get(MEMBER.kind, self._own.instance)
                    self._own = rules.step(self._own, Read(stored, self._clock.monotonic_ms()))
                if self._own.is_over:
                    self._begin_anew()
                if self._own.stored is None and self._is_full():
                    return
                if self._write():
                    self._renew_at_ms = self._clock.monotonic_ms() + self._part_ms(RENEWALS_PER_LEASE)
                    return
        except BasaltError:
            self._own = rules.step(self._own, Unanswered())
            raise

    def _begin_anew(self) -> None:
        former, self._own = self._own, OwnMember(secrets.token_hex(8))
        if self._term is not None:
            self._term.end("its membership was ended")
        if former.stored is not None:
            log.warning(
                "the membership %s was ended: it was not renewed for a whole lease, or had no link to the leader; a new one begins as %s",
                former.instance, self._own.instance,
            )  # fmt: skip

    def _is_full(self) -> bool:
        full = rules.is_full(self.seen)
        if full and not self._told_full:
            log.warning("there are %d members, and no more may begin: this server is not told of", rules.MEMBERS_MAX)
        self._told_full = full
        return full

    def _write(self) -> bool:
        record = rules.renewed(self._own) or self._first()
        body, sent_ms = MEMBER.encode(record), self._clock.monotonic_ms()
        if not self._system.replace(MEMBER.kind, self._own.instance, self._own.stored, body):
            self._own = rules.step(self._own, Refused())
            return False
        self._own = rules.step(self._own, Wrote(body, sent_ms, self._clock.monotonic_ms()))
        if record.count == 1:
            self.begun += 1
            log.info("is a member, as %s", self._own.instance)
        self._renewed()
        return True

    def _renewed(self) -> None:
        """The lease goes on, and with it the term. One that is over is followed by another: also of the same membership, after a write was refused."""
        own = self._own
        if self._term is not None:
            self._term.extend(own.until_ms)
        if self._term is None or not self._term.is_on():
            self._notice()
            self._term = Term(self._clock, 0, own.until_ms, own.instance)
            if self._on_term is not None:
                self._on_term(self._term)

    def _first(self) -> MemberRecord:
        by = self.candidate
        now_ms = self._clock.now_ms()
        return MemberRecord(by.holder, by.url, self.version, now_ms, by.lease_ms, 1, 0, by.link, by.instance, by.secret)

    def _look(self) -> None:
        self._look_at_ms = self._clock.monotonic_ms() + self._part_ms(rules.LOOKS_PER_LEASE)
        if not self.installation and (facts := FACTS.get(self._system)) is not None:
            self.installation = facts.instance
        rows = list(self._system.scan(MEMBER.kind, rows_max=rules.ROWS_MAX))
        at_ms = self._clock.monotonic_ms()
        self.seen, self.looked_ms = rules.looked(self.seen, rows, at_ms), at_ms
        if self._leadership.is_leader:
            self._tidy()
        self._look_at_map()

    def _look_at_map(self) -> None:
        stored = self._system.get(MAP_KIND, MAP_NAME)
        if stored != self._map_stored:  # else it need not be taken apart: it is 8 KiB, and changes rarely
            self.owners = None if stored is None else OwnersMap.decode(stored)
            self._map_stored = stored
            if self.owners is not None and self.when_dealt is not None:
                self.when_dealt(self.owners)

    def _tidy(self) -> None:
        """End the memberships that are over, and remove rows of the dead. Of two leaders each may do it: every write is conditional."""
        left, now_ms = CHANGES_PER_LOOK_MAX, self._clock.monotonic_ms()
        for instance, seen in self.seen.items():
            if not left or instance == self._own.instance or seen.record.is_over:
                continue
            if seen.may_end(now_ms):
                left -= 1
                self._end(instance, seen, "it was not renewed for its whole lease")
            elif instance in self.beats.to_end:
                left -= 1
                self._end(
                    instance, seen, "it renews its row, and has had no link to the leader for too long", unaware=True
                )
        for instance in rules.removable(self.seen, now_ms)[:left]:
            self._remove(instance, self.seen[instance].stored)

    def _end(self, instance: str, seen: Seen, why: str, *, unaware: bool = False) -> None:
        body = MEMBER.encode(rules.ended(seen, self._clock.now_ms(), unaware=unaware))
        if self._system.replace(MEMBER.kind, instance, seen.stored, body):
            log.warning(
                "ended the membership %s of %s at %s: %s", instance, seen.record.holder, seen.record.url, why
            )  # fmt: skip
            self.seen = rules.looked(self.seen, self._bodies({instance: body}), self._clock.monotonic_ms())

    def _bodies(self, newer: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
        return [(instance, newer.get(instance, seen.stored)) for instance, seen in self.seen.items()]

    def _leave(self) -> None:
        if self._term is not None:
            self._term.end("it stops")
        own = self._own
        stored = self._system.get(MEMBER.kind, own.instance)
        if stored is not None and not MEMBER.decode(stored).is_over:
            self._remove(own.instance, stored)

    def _remove(self, instance: str, stored: bytes) -> None:
        """Remove a row that nobody writes any more. The store compares it first, and so writes later than whoever wrote it."""
        if self._system.is_still(MEMBER.kind, instance, stored):
            self._system.remove(MEMBER.kind, instance)

    def _part_ms(self, parts: int) -> float:
        return self.candidate.lease_ms / parts
