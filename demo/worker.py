"""One worker of the demo's second act, as a process: counts the visits of each client in what its group deals to it.

Counts are published, and the batch acknowledged, in one commit: the pattern that any consumer may copy. It needs to know
nothing of crashes, neither of its own nor of the server's.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import basalt
from basalt.client import RecordIn

VISITS_TOPIC = "visits"
COUNTS_TOPIC = "visit-counts"
GROUP = "visit-counters"
MEMBER_MS = 2_000  # the lease: so long after a SIGKILL others get what a worker had
WORK_S = 0.01  # what a batch would take if there were more to do than to count


class Count(NamedTuple):
    """Visits of one client in one batch; the first and the last of them by the numbers of their lines."""

    client: str
    visits: int
    first: int
    last: int
    worker: str


def key_of(client: str) -> bytes:
    """A client as the key of a message; lines of a log are bytes, of any encoding."""
    return client.encode(errors="surrogateescape")


def text_of(key: bytes) -> str:
    """The client of such a key."""
    return key.decode(errors="surrogateescape")


def counts_of(visits: Iterable[tuple[str, int]], worker: str) -> list[Count]:
    """Count a batch's visits, each the client and the line's number, by client."""
    found: dict[str, Count] = {}
    for client, line in visits:
        known = found.get(client)
        found[client] = Count(
            client, 1 if known is None else known.visits + 1, line if known is None else known.first, line, worker
        )
    return list(found.values())


def main(words: list[str]) -> int:
    """Work for the group until SIGTERM, then give back what is in hand: `python -m demo.worker URL NAME BATCH`."""
    url, name, limit = words
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    def count(batch: Any, out: Any) -> None:
        visits = ((text_of(message.key), int(message.payload)) for message in batch)
        time.sleep(WORK_S)
        records = [RecordIn(json.dumps(each).encode(), key_of(each.client)) for each in counts_of(visits, name)]
        out.publish(COUNTS_TOPIC, records)

    with (
        basalt.connect(url) as client,
        client.consumer(VISITS_TOPIC, group=GROUP, member=name) as consumer,
    ):
        consumer.process(count, limit=int(limit))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
