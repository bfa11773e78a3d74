"""The connections of a server, and that there are no more than it takes: of all clients together, and of each address. So it is with
streams: answers that go on for as long as somebody looks.

A connection too many is closed when it is accepted, before anything of it is read: an answer would take memory and time that those who
open them without end must not cost. So one address cannot keep the others out. Nobody fills the log either.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from basalt.access.failed_proofs import network_of
from basalt.errors import ThrottledError
from basalt.settings.tree import HttpSettings

STREAMS_MAX = 64  # of a server: each reads on for somebody who may have gone to lunch
STREAMS_OF_LOGIN_MAX = 4  # so that nobody takes all of them, by tabs that were forgotten
RETRY_MS = 5_000
TOLD_S = 60  # one line of the log for all connections that were refused in this time

log = logging.getLogger("basalt.http")


class Connections:
    """The connections that are open, by address. An IPv6 network counts as one."""

    def __init__(self, total_max: int, per_address_max: int) -> None:
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._by_network: dict[str, int] = {}
        self.total = 0
        self.refused: Counter[str] = Counter({"total": 0, "address": 0})  # by the limit that they were over
        self._told_s = -float(TOLD_S)
        self._untold = 0

    @classmethod
    def of(cls, settings: HttpSettings) -> Connections:
        """None yet, with the limits of the settings."""
        return cls(settings.connections_max, settings.connections_per_address_max)

    @property
    def total_max(self) -> int:
        """The most that all clients may have together."""
        return self._total_max

    def open(self, address: str | None, now_s: float) -> bool:
        """Count one more; False: it is one too many, and must be closed. `now_s` is of a clock that never goes back."""
        network = network_of(address)
        of_network = self._by_network.get(network, 0)
        if self.total >= self._total_max:
            self._refuse("total", network, now_s)
            return False
        if of_network >= self._per_address_max:
            self._refuse("address", network, now_s)
            return False
        self.total += 1
        self._by_network[network] = of_network + 1
        return True

    def close(self, address: str | None) -> None:
        """One that was counted has ended."""
        network = network_of(address)
        self.total -= 1
        left = self._by_network[network] - 1
        if left:
            self._by_network[network] = left
        else:
            del self._by_network[network]

    def _refuse(self, limit: str, network: str, now_s: float) -> None:
        self.refused[limit] += 1
        self._untold += 1
        if now_s - self._told_s < TOLD_S:
            return
        key = "http.connections_max" if limit == "total" else "http.connections_per_address_max"
        most = self._total_max if limit == "total" else self._per_address_max
        log.warning(
            "closed %d connections at once, the last one from %s: there are %d already, as many as %s allows",
            self._untold, network, most, key,
        )  # fmt: skip
        self._told_s, self._untold = now_s, 0


class OpenStreams:
    """Counts the open streams of one server."""

    def __init__(self) -> None:
        self._of_login: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._of_login.total()

    @contextmanager
    def one_more(self, login: str) -> Iterator[None]:
        """Hold a place while a stream is open; `ThrottledError` when all are taken."""
        if self._of_login[login] >= STREAMS_OF_LOGIN_MAX or len(self) >= STREAMS_MAX:
            refused = ThrottledError(
                f"there are {self._of_login[login]} open streams of yours, and {len(self)} in all; the limits are"
                f" {STREAMS_OF_LOGIN_MAX} and {STREAMS_MAX}",
                hint="Close a page that follows a topic.",
            )
            refused.retry_after_ms = RETRY_MS
            raise refused
        self._of_login[login] += 1
        try:
            yield
        finally:
            self._of_login[login] -= 1
            if not self._of_login[login]:
                del self._of_login[login]
