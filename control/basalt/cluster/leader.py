"""One server's part in the question who leads: takes the lease when it may, renews it, tells when it is lost.

It has a thread and a handle on the store of its own, for a renewal must not wait behind a long write or a busy event loop.
The rules are in `lease`; what follows from a term that is over, in `led_store`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from basalt.cluster import lease as rules
from basalt.cluster.lease import LEASE, Candidate, Lease, LeaseRecord, Role
from basalt.cluster.led_store import Term
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

STOP_WAIT_S = 5  # a renewal that is under way for longer hangs in the network; what it does is harmless

log = logging.getLogger("basalt.leadership")


class Leadership:
    """The leader, as this server knows it. `step` is for its thread, and for tests that have none."""

    def __init__(self, store: Store, clock: Clock, candidate: Candidate, *, on_term: Callable[[Term], None]) -> None:
        self.candidate = candidate
        self.terms = 0  # how often this server has taken the lease
        self.reachable = True  # whether the last look at the record was answered
        self._store = store
        self._system = SystemTable(store.table(SystemTable.name))
        self._clock = clock
        self._on_term = on_term
        self._lease = Lease()
        self._term: Term | None = None
        self._seeking = False
        self._withdrawn = False
        self._stopping = False
        self._asked = False  # to look at the record at once
        self._rests_until_ms = 0.0  # the lease is left to others until then
        self._next_ms = 0.0  # when the record is to be renewed or looked at again
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="basalt-leadership", daemon=True)

    @property
    def is_leader(self) -> bool:
        """True while this server leads."""
        return self._term is not None and self._term.is_on()

    @property
    def epoch(self) -> int:
        """The newest epoch that this server knows of; 0 when there was never a leader."""
        record = self._lease.record
        return 0 if record is None else record.epoch

    @property
    def leader(self) -> LeaseRecord | None:
        """The lease of the server that leads, as far as this one knows it; None when there is none, or it is this one."""
        record = self._lease.record
        if record is None or record.is_released or record.instance == self.candidate.instance:
            return None
        return record

    @property
    def leader_url(self) -> str | None:
        """The address of that server."""
        leader = self.leader
        return None if leader is None else leader.url

    @property
    def unchanged_ms(self) -> float:
        """For how long the lease record has been as it is: of a leader, since it was last renewed."""
        since_ms = self._lease.since_ms
        return 0.0 if since_ms is None else self._clock.monotonic_ms() - since_ms

    def start(self) -> None:
        """Watch the lease from now on, on a thread."""
        self._thread.start()

    def seek(self) -> None:
        """Take the lease as soon as that is allowed. Holds for one term: seek again after it."""
        self._seeking = True
        self._next_ms = 0.0
        self._wake.set()

    def withdraw(self) -> None:
        """Leave the lease to others from now on, for this server is about to stop. One that it has, it keeps."""
        self._withdrawn = True

    def look(self) -> None:
        """Look at the record at once, and not when it is due: something has happened."""
        self._asked = True
        self._wake.set()

    def settle(self) -> None:
        """Return once a write of the record that is under way is answered."""
        with self._lock:
            pass

    def release(self, why: str = "it gave the lease up", *, rest_ms: float = 0.0) -> None:
        """Give the lease up, if this server has it, so that another need not wait for its end. Write nothing after it.

        For `rest_ms` this server does not take it again, also when it seeks it.
        """
        with self._lock:
            self._seeking = False
            self._rests_until_ms = self._clock.monotonic_ms() + rest_ms
            self._notice()
            if self._lease.role is not Role.LEADER:
                return
            record, expected = rules.released(self._lease), self._lease.stored
            self._apply(rules.Ended(), why)
            try:
                self._system.replace(LEASE.kind, LEASE.name, expected, LEASE.encode(record))
            except BasaltError as error:
                log.warning("the lease could not be given up, and runs out: %s", error.message)

    def stop(self) -> None:
        """Give the lease up and watch it no more; close the handle."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(STOP_WAIT_S)
        self.release()
        self._store.close()

    def step(self) -> float:
        """Do what is due; after how many milliseconds there is more to do."""
        with self._lock:
            self._notice()
            asked, self._asked = self._asked, False
            if asked or self._clock.monotonic_ms() >= self._next_ms:
                try:
                    self._act()
                    self._answered(True)
                except BasaltError as error:
                    self._answered(False, error.message)
                    self._apply(rules.Unanswered())
                self._next_ms = float("inf")
            self._next_ms = min(self._next_ms, self._due_ms())  # a step before it puts nothing off
            return max(0.0, self._next_ms - self._clock.monotonic_ms())

    def _run(self) -> None:
        while not self._stopping:
            try:
                wait_ms = self.step()
            except Exception:  # without renewals, and without a word, nobody would lead
                log.exception("the lease could not be looked at")
                wait_ms = self._look_ms()
            self._wake.wait(wait_ms / 1_000)
            self._wake.clear()

    def _notice(self) -> None:
        """Take note of a term that is over, and of one whose lease has run out."""
        self._apply(rules.Passed(self._clock.monotonic_ms()), "its lease ran out before it could be renewed")
        if self._lease.role is Role.LEADER and not self.is_leader:
            self._apply(rules.Ended())

    def _act(self) -> None:
        if not self._may_write():
            self._read_lease()
        if self._may_write():
            leads, now_ms = self._lease.role is Role.LEADER, self._clock.now_ms()
            record = rules.renewed(self._lease, now_ms) if leads else rules.taken(self._lease, self.candidate, now_ms)
            self._write(LEASE.encode(record))

    def _may_write(self) -> bool:
        """True when the lease may be renewed, or taken, by what is known of the record."""
        if self._lease.role is Role.LEADER:
            return self._lease.known
        now_ms = self._clock.monotonic_ms()
        rests = now_ms < self._rests_until_ms
        return (
            self._seeking
            and not self._withdrawn
            and not rests
            and rules.is_free(self._lease, self.candidate.instance, now_ms)
        )

    def _read_lease(self) -> None:
        stored = self._system.get(LEASE.kind, LEASE.name)
        self._apply(rules.Read(stored, self._clock.monotonic_ms()), "another server has taken the lease")

    def _write(self, body: bytes) -> None:
        sent_ms = self._clock.monotonic_ms()
        if self._system.replace(LEASE.kind, LEASE.name, self._lease.stored, body):
            self._apply(rules.Wrote(body, sent_ms, self._clock.monotonic_ms()), "its renewal came too late")
            return
        try:
            self._read_lease()  # it may be its own: a renewal that was not answered, and has arrived late
        except BasaltError:
            self._apply(rules.Refused(), "another server has taken the lease")
            raise

    def _apply(self, event: rules.Event, why: str = "it stopped") -> None:
        before, self._lease = self._lease, rules.step(self._lease, event)
        if self._lease.role is Role.LEADER:
            if before.role is Role.LEADER and self._term is not None:
                self._term.extend(self._lease.until_ms)
            else:
                self._begin_term()
        elif before.role is Role.LEADER and self._term is not None:
            self._term.end(why)
            log.warning("leads no more under epoch %d: %s", self._term.epoch, self._term.over)

    def _begin_term(self) -> None:
        self._seeking = False
        self.terms += 1
        self._term = Term(self._clock, self.epoch, self._lease.until_ms)
        log.info("leads under epoch %d", self.epoch)
        self._on_term(self._term)

    def _answered(self, reachable: bool, why: str = "") -> None:
        if reachable != self.reachable:
            self.reachable = reachable
            if reachable:
                log.info("the lease can be read again")
            else:
                log.warning("the lease can be neither read nor renewed: %s", why)

    def _due_ms(self) -> float:
        now_ms, lease, since_ms = self._clock.monotonic_ms(), self._lease, self._lease.since_ms
        if lease.known and since_ms is not None:
            if lease.role is Role.LEADER:
                return since_ms + self.candidate.lease_ms / rules.RENEWALS_PER_LEASE
            if self._seeking:
                ripe_ms = since_ms + (0 if lease.record is None else lease.record.lease_ms)
                ripe_ms = max(ripe_ms, self._rests_until_ms)
                return min(now_ms + self._look_ms(), max(now_ms, ripe_ms))
        return now_ms + self._look_ms()

    def _look_ms(self) -> float:
        return self.candidate.lease_ms / rules.LOOKS_PER_LEASE
