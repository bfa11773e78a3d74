"""The age of an identity provider's keys, by which somebody is called before no token can be checked any more."""

from __future__ import annotations

import asyncio

from basalt.access.proofs.jwks import ALGORITHMS, Jwks
from basalt.http.collectors import JwksMetrics
from basalt_engine.clock import ManualClock
from tests.control.access.proofs.identity_provider import key_set, public_jwk


def age_s(keys: Jwks) -> float:
    (family,) = JwksMetrics(keys).collect()
    (sample,) = family.samples
    assert sample.name == "basalt_jwks_age_seconds"
    return sample.value


def test_the_age_counts_from_the_last_reading_that_succeeded_or_from_the_start(tmp_path):
    clock, file = ManualClock(), tmp_path / "keys.json"
    keys = Jwks(str(file), ALGORITHMS, clock)
    clock.advance(7_000)
    asyncio.run(keys.read())
    assert age_s(keys) == 7.0
    file.write_bytes(key_set(public_jwk()))
    asyncio.run(keys.read())
    assert age_s(keys) == 0.0
    clock.advance(5_000)
    asyncio.run(keys.read())  # the same again: so they are as of now
    assert age_s(keys) == 0.0
    clock.advance(5_000)
    file.unlink()
    asyncio.run(keys.read())
    assert age_s(keys) == 5.0
