"""Refusals, for want of a right: told in the log, counted, and let through where rights are not enforced yet.

With `auth.enforce = false` nothing is refused, and what would be is noted here: an operator looks at it, grants what is missing, and
switches on without stopping anybody. It is in memory alone: a restart begins anew.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from basalt_engine.clock import Clock

NOTED_MAX = 10_000  # different refusals that are kept; beyond, the longest unseen goes
LINE_MS = 60_000  # one line of the log for all like refusals of this time

log = logging.getLogger("basalt.access")


@dataclass(slots=True)
class Refusal:
    """All refusals of one right on one thing to one principal."""

    principal: str
    verb: str
    resource: str
    first_ms: int
    last_ms: int = 0
    count: int = 0
    told_ms: int = 0  # when the log last had a line
    told_count: int = 0


class Refusals:
    """The refusals of one server."""

    def __init__(self, clock: Clock, *, enforced: bool) -> None:
        self._clock = clock
        self.enforced = enforced
        self._found: dict[tuple[str, str, str], Refusal] = {}  # the longest unseen first
        self.counts: Counter[tuple[str, str]] = Counter()  # by verb and kind of resource, for the metrics

    def note(self, principal: str, verb: str, resource: str) -> None:
        """Something was refused, or would be."""
        now_ms = self._clock.now_ms()
        asked = principal, verb, resource
        found = self._found.pop(asked, None)
        if found is None:
            found = Refusal(*asked, now_ms)
            if len(self._found) >= NOTED_MAX:
                del self._found[next(iter(self._found))]
        self._found[asked] = found
        found.count += 1
        found.last_ms = now_ms
        self.counts[verb, resource.partition(":")[0]] += 1
        if found.told_count and now_ms - found.told_ms < LINE_MS:
            return
        times = found.count - found.told_count
        found.told_ms, found.told_count = now_ms, found.count
        word = "was refused" if self.enforced else "would be refused"
        fields = {"principal": principal, "verb": verb, "resource": resource, "count": times}
        log.warning("%s %s %s on %s, %d times", principal, word, verb, resource, times, extra={"fields": fields})

    def newest(self, limit: int) -> list[Refusal]:
        """The refusals that were seen last, newest first."""
        return list(reversed(self._found.values()))[:limit]
