"""Bad credentials: so many a second of each address are verified, and addresses do not take memory without end."""

from __future__ import annotations

import pytest

from basalt.access.failed_proofs import ADDRESSES_MAX, FAILED_PER_S_MAX, FailedProofs, network_of

NOW = 7_000_000.0


def fail(proofs: FailedProofs, address: str | None, times: int, now_ms: float = NOW) -> None:
    for _ in range(times):
        proofs.failed(address, now_ms)


def test_an_address_that_sends_bad_ones_waits_and_others_do_not() -> None:
    proofs = FailedProofs()
    assert proofs.may_verify("10.0.0.1", NOW)
    fail(proofs, "10.0.0.1", 2 * FAILED_PER_S_MAX - 1)
    assert proofs.may_verify("10.0.0.1", NOW)
    proofs.failed("10.0.0.1", NOW)
    assert not proofs.may_verify("10.0.0.1", NOW)
    assert proofs.may_verify("10.0.0.2", NOW)
    error = proofs.refusal("10.0.0.1", NOW)
    assert (error.retry_after_ms, error.held_ms, proofs.throttled_total) == (1, 1_000, 1)
    assert proofs.may_verify("10.0.0.1", NOW + 1)


def test_over_a_minute_sixteen_a_second_are_verified_however_many_come() -> None:
    proofs, verified = FailedProofs(), 0
    for ms in range(60_000):
        if proofs.may_verify("10.0.0.1", NOW + ms):
            proofs.failed("10.0.0.1", NOW + ms)
            verified += 1
    assert 60 * FAILED_PER_S_MAX <= verified <= 62 * FAILED_PER_S_MAX + 1


def test_a_clock_that_is_set_back_does_not_shut_an_address_out() -> None:
    proofs = FailedProofs()
    fail(proofs, "10.0.0.1", 2 * FAILED_PER_S_MAX, NOW)
    earlier = NOW - 3_600_000
    assert not proofs.may_verify("10.0.0.1", earlier)
    assert proofs.may_verify("10.0.0.1", earlier + proofs.refusal("10.0.0.1", earlier).retry_after_ms)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:DB8:0:0:ffff::7", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no:address", "no:address"),
        (None, "local"),
    ],
)
def test_all_addresses_of_one_network_count_as_one(address: str | None, network: str) -> None:
    assert network_of(address) == network


def test_whoever_takes_another_address_of_a_network_gains_nothing() -> None:
    proofs = FailedProofs()
    for number in range(2 * FAILED_PER_S_MAX):
        proofs.failed(f"2001:db8::{number:x}", NOW)
    assert not proofs.may_verify("2001:db8::ffff", NOW)


def test_quiet_addresses_go_as_others_come_and_there_are_never_more_than_the_limit() -> None:
    proofs = FailedProofs()
    for number in range(5_000):
        proofs.failed(f"10.0.{number >> 8}.{number & 255}", NOW + number)
    assert len(proofs) < 500
    full = FailedProofs(addresses_max=50)
    for number in range(500):
        full.failed(f"10.0.{number >> 8}.{number & 255}", NOW)
    assert len(full) == 50
    assert ADDRESSES_MAX == 100_000
