"""Refusals, for want of a right: told in the log, counted, and let through where rights are not enforced yet.

With `auth.enforce = false` nothing is refused, and what would be is noted here: an operator looks at it, grants what is missing, and
switches on without stopping anybody. It is in memory alone: a restart begins anew.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from basalt.access.resources import EVERYTHING, KINDS
from basalt_engine.clock import Clock

NOTED_MAX = 10_000  # different refusals that are kept; beyond, the longest unseen goes
LINE_MS = 60_000  # one line of the log for all like refusals of this time
LINES_MAX = 100  # of the log in such a time: whoever asks for ever other things must not fill it
RESOURCE_CHARS_MAX = 300  # of what is kept: a path may name anything, in thousands of characters

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
        # By verb and kind of resource, for the metrics. From 0 on: a series that begins at 1 has not risen, for whoever compares two scrapes.
        self.counts: Counter[tuple[str, str]] = Counter(
            {(verb, kind): 0 for kind, each in KINDS.items() if kind != EVERYTHING for verb in each.verbs}
        )
        self._lines = 0  # of the log, since then
        self._lines_ms = float("-inf")

    def note(self, principal: str, verb: str, resource: str) -> None:
        """Something was refused, or would be."""
        now_ms = self._clock.now_ms()
        if len(resource) > RESOURCE_CHARS_MAX:
            resource = resource[:RESOURCE_CHARS_MAX] + "…"
        asked = principal, verb, resource
        found = self._found.pop(asked, None)
        if found is None:
            found = Refusal(*asked, now_ms)
            if len(self._found) >= NOTED_MAX:
                del self._found[next(iter(self._found))]
        self._found[asked] = found
        found.count += 1
        found.last_ms = now_ms
        kind = resource.partition(":")[0]
        self.counts[verb, "credential" if " " in kind else kind] += 1
        if found.told_count and now_ms - found.told_ms < LINE_MS:
            return
        if not self._may_tell():
            return
        times = found.count - found.told_count
        found.told_ms, found.told_count = now_ms, found.count
        word = "was refused" if self.enforced else "would be refused"
        fields = {"principal": principal, "verb": verb, "resource": resource, "count": times}
        log.warning("%s %s %s on %s, %d times", principal, word, verb, resource, times, extra={"fields": fields})

    def _may_tell(self) -> bool:
        """Tell whether the log may have another line in this minute, by the clock that never steps."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._lines_ms >= LINE_MS:
            self._lines, self._lines_ms = 0, now_ms
        self._lines += 1
        if self._lines == LINES_MAX + 1:
            log.warning(
                "more than %d rights were missing within a minute; the list of refusals has the others", LINES_MAX
            )
        return self._lines <= LINES_MAX

    def newest(self, limit: int) -> list[Refusal]:
        """The refusals that were seen last, newest first."""
        return list(reversed(self._found.values()))[:limit]
