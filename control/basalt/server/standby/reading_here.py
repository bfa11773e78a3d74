"""Ranges that a server which does not lead reads itself: the leader says who may and what is seen, this one brings the bytes.

So the leader's work for a range is that of a small answer, however much is in it, and bulk reading grows with servers. Whatever is unclear is
passed on, as all other calls. Why so: docs/decisions/0067-ranges-are-read-by-permit.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from basalt.api.codecs.arrow import Source
from basalt.errors import BasaltError
from basalt.http.asgi.requests import Head, RequestHead
from basalt.http.asgi.responses import Response
from basalt.http.collectors import counter, counters
from basalt.http.routes.messages import load_arrow
from basalt.http.routes.ranges import range_answer
from basalt.http.routes.route_table import TOPIC_PATH
from basalt.messaging.ranges import Range
from basalt.messaging.read.range_permit import RangePermit
from basalt.messaging.stored_ranges import StoredRanges
from basalt.settings import Settings
from basalt.transactions.rules.transaction import TransactionIds
from basalt_engine.clock import Clock
from basalt_engine.keys import NAME_EXPRESSION
from basalt_engine.table import Store

READS_MAX = 16  # at a time: each has up to 48 MiB in memory; one more is passed on
ROUTE = TOPIC_PATH + "/range"
_RANGE = re.compile(f"/v1/namespaces/{NAME_EXPRESSION}/topics/{NAME_EXPRESSION}/range", re.ASCII)

_WITH_BODY = frozenset((b"content-length", b"transfer-encoding"))

log = logging.getLogger("basalt.reading")


class ReadingHere:
    """Reads ranges for one server that does not lead. `open_store` opens one more handle on the store, at the first range."""

    def __init__(self, open_store: Callable[[], Store], clock: Clock, settings: Settings) -> None:
        self._open_store = open_store
        self._clock = clock
        self._is_on = settings.cluster.reads
        self._store: Store | None = None
        self._ranges: StoredRanges | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        self.under_way = 0
        # Permits, by what became of them: the range was read here; the topic has changed since, or the store did not answer.
        self.outcomes: Counter[str] = Counter({"read": 0, "changed": 0, "failed": 0})
        self.messages = self.payload_bytes = 0
        self.read_s = 0.0

    @staticmethod
    def is_range(head: Head) -> bool:
        """Tell whether a call with this head asks for a range."""
        return head.method == "GET" and head.path.endswith("/range") and _RANGE.fullmatch(head.path) is not None

    def may_read(self, request: RequestHead, body: bytes | None) -> bool:
        """Tell whether the leader is to be asked for a permit: the call is for a range, has no body, and there is room for its answer.

        `body`: where it is here as a whole; else the headers tell.
        """
        if not self._is_on or not self.is_range(request.head) or self.under_way >= READS_MAX:
            return False
        headers = request.headers
        return not body if body is not None else _WITH_BODY.isdisjoint(headers)

    async def read(self, permit: bytes) -> Response | None:
        """The answer; None: the leader is to be asked for it."""
        if self.under_way >= READS_MAX:
            return None
        self.under_way += 1
        began_ms = self._clock.monotonic_ms()
        outcome = "failed"
        try:
            asked = RangePermit.decode(permit)
            await load_arrow()
            found = await (await self._opened()).read(asked)
            if found is None:
                outcome = "changed"
                return None
            answer = _answer(asked, found)
            outcome = "read"
            self.messages += found.messages
            self.payload_bytes += found.payload_bytes
            return answer
        except BasaltError as error:
            log.warning("a range could not be read here, so the leader reads it: %s", error.message)
            return None
        finally:
            self.under_way -= 1
            self.outcomes[outcome] += 1
            if outcome == "read":
                self.read_s += (self._clock.monotonic_ms() - began_ms) / 1_000

    async def close(self) -> None:
        """Let go of the store."""
        async with self._opening:
            self._is_closed, store, self._store, self._ranges = True, self._store, None, None
            if store is not None:
                await asyncio.to_thread(store.close)

    async def _opened(self) -> StoredRanges:
        async with self._opening:
            if self._ranges is None:
                store = await asyncio.to_thread(self._open_store)
                if self._is_closed:
                    store.close()
                self._store, self._ranges = store, StoredRanges(store, self._clock)
            return self._ranges


def _answer(asked: RangePermit, found: Range) -> Response:
    source = Source(asked.topic.encode(), asked.stored().generation)
    return range_answer(found, asked.columns, source, TransactionIds(asked.coordinator))


class ReadingMetrics(Collector):
    """The series of the ranges that a server reads without leading."""

    def __init__(self, reading: ReadingHere) -> None:
        self._reading = reading

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        reading = self._reading
        text = "Ranges that the leader permitted this server to read, by what became of them"
        yield counters("basalt_cluster_ranges_permitted", text, "outcome", reading.outcomes)
        text = "Messages of ranges that this server has read without leading"
        yield counter("basalt_cluster_range_messages", text, reading.messages)
        text = "Bytes of payloads of these messages"
        yield counter("basalt_cluster_range_bytes", text, reading.payload_bytes)
        text = "Time from a permit until the range was read"
        yield SummaryMetricFamily("basalt_cluster_range_seconds", text, reading.outcomes["read"], reading.read_s)
