"""One server's part in the lease, step by step and on its own thread. Its races are in test_lease_model, what follows in failover's tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import LOOKS_PER_LEASE, RENEWALS_PER_LEASE, Candidate
from basalt.cluster.led_store import Term
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.stores.memory import MemoryStore

LEASE_MS = 240
LOOK_MS = LEASE_MS // LOOKS_PER_LEASE
RENEWAL_MS = LEASE_MS // RENEWALS_PER_LEASE
HANG_S = 60.0


class Seeker:
    """A server that wants to lead."""

    def __init__(self, store: MemoryStore, clock: ManualClock, name: str) -> None:
        self.terms: list[Term] = []
        candidate = Candidate(name, f"http://{name}:4780", f"{name}-1", LEASE_MS)
        self.leadership = Leadership(store.another(), clock, candidate, on_term=self.terms.append)
        self.leadership.seek()

    @property
    def leads(self) -> bool:
        return self.leadership.is_leader


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def seekers(clock: ManualClock) -> Iterator[tuple[Seeker, Seeker]]:
    store = MemoryStore(atomic=False)
    both = Seeker(store, clock, "first"), Seeker(store, clock, "second")
    yield both
    for seeker in both:
        seeker.leadership.stop()


def until(is_so: Callable[[], bool]) -> None:
    stop_s = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < stop_s, "it did not come to be"
        time.sleep(0.001)


def test_steps_before_their_time_do_not_put_the_next_look_off(seekers: tuple[Seeker, Seeker], clock: ManualClock):
    first, second = (seeker.leadership for seeker in seekers)
    first.step()
    second.step()  # it knows now that the first one leads
    first.release()
    for _ in range(LOOK_MS):  # and looks again a look later, however often it was asked meanwhile
        clock.advance(1)
        second.step()
    assert second.is_leader


def test_a_server_that_is_about_to_stop_leaves_a_free_lease_to_others_and_keeps_its_own(
    seekers: tuple[Seeker, Seeker], clock: ManualClock
):
    first, second = (seeker.leadership for seeker in seekers)
    first.step()
    first.withdraw()
    second.withdraw()
    clock.advance(RENEWAL_MS)
    first.step()
    second.step()
    assert first.is_leader
    first.release()
    clock.advance(2 * LEASE_MS)
    second.step()
    assert not second.is_leader


def test_a_look_that_follows_a_refusal_is_not_put_off_either(seekers: tuple[Seeker, Seeker], clock: ManualClock):
    first, second = (seeker.leadership for seeker in seekers)
    first.step()
    second.step()
    clock.advance(LEASE_MS - 1)
    first.release()  # after its end: it stays as it is
    first.seek()
    first.step()
    clock.advance(1)
    second.step()  # the record is another one than it knows: refused
    assert (first.is_leader, second.is_leader) == (True, False)
    first.release()
    for _ in range(LOOK_MS):
        clock.advance(1)
        second.step()
    assert second.is_leader


@pytest.mark.parametrize("is_read", [True, False])
def test_a_renewal_of_its_own_that_arrives_late_takes_no_lead_from_it(
    seekers: tuple[Seeker, Seeker], clock: ManualClock, monkeypatch: pytest.MonkeyPatch, is_read: bool
):
    first, second = (seeker.leadership for seeker in seekers)
    first.step()
    second.step()
    system = first._system
    replace, get, late = system.replace, system.get, list[tuple[str, str, bytes | None, bytes]]()

    def unanswered(*asked: Any) -> bool:
        late.append(asked)
        raise UnknownOutcomeError("no answer in time")

    def late_first(*asked: Any) -> bool:
        if late and not is_read:
            monkeypatch.setattr(system, "get", unread)
        return replace(*late.pop()) and replace(*asked) if late else replace(*asked)

    def unread(*_: Any) -> bytes | None:
        monkeypatch.setattr(system, "get", get)
        raise StoreError("the network is down")

    monkeypatch.setattr(system, "replace", unanswered)
    clock.advance(RENEWAL_MS)
    first.step()
    monkeypatch.setattr(system, "replace", late_first)
    clock.advance(LOOK_MS)
    first.step()
    assert first.is_leader == is_read, "who cannot read what is there leads no more"
    if is_read:
        clock.advance(LOOK_MS)
        first.step()
        clock.advance(LEASE_MS // 2)
        second.step()
        assert (first.is_leader, second.is_leader, first.terms) == (True, False, 1)


def test_what_nobody_has_foreseen_is_tried_again(
    seekers: tuple[Seeker, Seeker], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    first, _ = (seeker.leadership for seeker in seekers)
    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError):
        broken.setattr(first, "_act", lambda: 1 // 0)
        first.step()
    first.step()
    assert first.is_leader


def test_its_thread_takes_the_lease_and_renews_it_for_as_long_as_it_runs(
    seekers: tuple[Seeker, Seeker], clock: ManualClock
):
    first, second = seekers
    first.leadership.start()
    until(lambda: first.leads)
    second.leadership.start()
    (term,) = first.terms
    for _ in range(3 * RENEWALS_PER_LEASE):
        renewed_ms = term._until_ms
        clock.advance(RENEWAL_MS)  # the time of leases stands still until it is renewed
        until(lambda before_ms=renewed_ms: term._until_ms > before_ms)  # type: ignore[misc]
    assert (first.leads, second.leads, len(first.terms)) == (True, False, 1)


def test_a_lease_that_is_given_up_at_a_stop_is_taken_by_the_others_thread(
    seekers: tuple[Seeker, Seeker], clock: ManualClock
):
    first, second = seekers
    first.leadership.start()
    until(lambda: first.leads)
    second.leadership.start()
    until(lambda: second.leadership.leader_url == "http://first:4780")
    first.leadership.stop()
    clock.advance(LOOK_MS)
    until(lambda: second.leads)
    assert (second.terms[0].epoch, first.terms[0].over) == (2, "it gave the lease up")


def test_a_server_that_is_told_to_look_takes_a_lease_that_was_given_up_without_waiting(
    seekers: tuple[Seeker, Seeker], clock: ManualClock
):
    first, second = seekers
    first.leadership.step()
    second.leadership.step()
    first.leadership.release()
    second.leadership.step()
    assert not second.leads, "its next look is not due"
    second.leadership.look()
    second.leadership.step()
    assert second.leads


def test_a_server_that_leaves_the_lead_to_others_takes_it_again_after_its_rest(
    seekers: tuple[Seeker, Seeker], clock: ManualClock
):
    first, _ = seekers
    first.leadership.step()
    first.leadership.release("nobody hears it", rest_ms=4 * LEASE_MS)
    assert first.terms[0].over == "nobody hears it"
    first.leadership.seek()
    for _ in range(4 * LOOKS_PER_LEASE - 1):
        clock.advance(LOOK_MS)
        first.leadership.step()
        assert not first.leads
    clock.advance(LOOK_MS)
    first.leadership.step()
    assert first.leads


def test_whoever_settles_waits_for_a_write_that_is_under_way(seekers: tuple[Seeker, Seeker]):
    first, _ = seekers
    with first.leadership._lock:
        settling = threading.Thread(target=first.leadership.settle)
        settling.start()
        assert settling.is_alive()
    settling.join(HANG_S)
    assert not settling.is_alive()
