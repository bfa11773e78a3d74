"""The facts of an installation: fixed when its tables are made, and the same at every start. System entry `install:facts`."""

from __future__ import annotations

import secrets

import msgspec

from basalt_engine.clock import Clock
from basalt_engine.errors import CorruptionError
from basalt_engine.system import SystemRecord, SystemTable


class InstallationFacts(msgspec.Struct, frozen=True):
    """Over how many salt buckets rows are spread, when the tables were made, and a name that no other installation has."""

    buckets: int
    created_ms: int
    instance: str

    @classmethod
    def new(cls, buckets: int, clock: Clock) -> InstallationFacts:
        """The facts of an installation that is made now."""
        return cls(buckets, clock.now_ms(), secrets.token_hex(8))


FACTS = SystemRecord("install", "facts", InstallationFacts)


def install(system: SystemTable, clock: Clock, buckets: int) -> InstallationFacts:
    """The facts of this store: written at the first start; `CorruptionError` when it was made with other buckets."""
    facts = FACTS.get(system)
    if facts is None:
        facts = InstallationFacts.new(buckets, clock)
        system.replace(FACTS.kind, FACTS.name, None, FACTS.encode(facts))
        return facts
    if facts.buckets != buckets:
        raise CorruptionError(
            f"the tables were made with {facts.buckets} salt buckets, not {buckets}: rows would not be found"
        )
    return facts
