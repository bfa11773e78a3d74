"""A worker of a consumer group, as a process: `consuming_worker.py URL MEMBER MODE [LEASE_MS]`. It publishes what it consumes again.

It says `joined` once it has, and stops when it is fenced (exit code 3), or by SIGTERM. Whatever else happens is for its killer.
"""

from __future__ import annotations

import signal
import sys
import threading

import basalt
from basalt.errors import MemberFencedError

BATCH = 5
PATIENT_MS = 120_000  # a server that was killed is back by then, on a loaded machine too
FENCED = 3


def main(url: str, member: str, mode: str, lease_ms: int) -> int:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def handle(batch: basalt.Batch, out: basalt.Output) -> None:
        for message in batch:
            out.publish("copies", message.payload, key=message.key, headers={"member": member})

    with basalt.connect(url, namespace="shop", timeout_ms=PATIENT_MS) as client:
        options = {"member_ms": lease_ms, "claim_ms": 60_000, "retry_delay_ms": 10}
        try:
            with client.consumer("orders", group="copying", mode=mode, member=member, **options) as orders:  # type: ignore[arg-type]
                print("joined", flush=True)
                orders.process(handle, until=stopping.is_set, limit=BATCH)
        except MemberFencedError:
            return FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
