"""Sightings: the principals that called of late, and when each token was used last. In memory: what is kept of tokens the directory saves.

An operator looks at them before a token is revoked, and to find who comes in at all.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from basalt.access.policy import Caller
from basalt.access.records import TokenUse
from basalt_engine.clock import Clock

SEEN_MAX = 10_000  # principals; beyond, the longest unseen goes
NOTED_EVERY_MS = 1_000.0  # calls of one credential that come closer are one sighting: most come by the thousand


@dataclass(slots=True)
class Sighting:
    """A principal as it was seen last, and when it was seen first."""

    principal: str
    first_ms: int
    last_ms: int = 0
    credential: str = ""
    via: str = ""
    address: str = ""


class Sightings:
    """The sightings of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, Sighting] = OrderedDict()  # the longest unseen first
        self.of_tokens: dict[str, TokenUse] = {}  # by id, since they were taken last

    def note(self, caller: Caller, address: str | None, at_ms: float) -> None:
        """Somebody makes a call; `at_ms` is by the clock that never steps, by which the caller's next one is left out for a while."""
        caller.noted_ms = at_ms
        now_ms, name = self._clock.now_ms(), str(caller.principal)
        found = self._seen.pop(name, None)
        if found is None:
            found = Sighting(name, now_ms)
            if len(self._seen) >= SEEN_MAX:
                self._seen.popitem(last=False)
        self._seen[name] = found
        found.last_ms, found.credential, found.address = now_ms, caller.credential, address or ""
        found.via = "" if caller.via is None else str(caller.via)
        kind, _, credential_id = caller.credential.partition(" ")
        if kind in ("token", "login"):
            self.of_tokens[credential_id] = TokenUse(now_ms, address or "")

    def take_tokens(self) -> dict[str, TokenUse]:
        """The uses of tokens since they were taken last: about one for each that is in use."""
        taken, self.of_tokens = self.of_tokens, {}
        return taken

    def newest(self, limit: int) -> list[Sighting]:
        """The principals that were seen last, newest first."""
        return list(reversed(self._seen.values()))[:limit]
