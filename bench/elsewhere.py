"""Measures what ranges cost that a server reads which does not lead, beside the same ranges passed on to the leader: on a standalone HBase.

What counts is the leader's processor time, for there is one leader; and that of both servers, which should not grow by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import basalt
from bench import processes
from bench.figures import Figure
from bench.load import drive, request
from bench.on_hbase import running_hbase, server_on
from bench.setting_up import BATCH, MESSAGE_BYTES, NAMESPACE, create_topics, path, publish_request

ROUNDS = 5
CALLS = 10  # a round
RANGE_BYTES = 8 << 20  # of payloads, in one answer
LEADER_TARGET = 0.3  # of what the leader does when it reads: it judges the caller, and says where the topic is settled
BOTH_TARGET = 1.0  # of what both do when the call is passed on: the answer takes one hop less


def elsewhere(folder: Path, quick: bool) -> Iterator[Figure]:
    """Ranges of 8 MiB, read by a server that does not lead, and passed on by one that is not to read."""
    messages = RANGE_BYTES // MESSAGE_BYTES
    uncached = "messaging.cache_bytes_max=0"  # bulk readers read what is in no memory any more
    with (
        running_hbase(folder) as gateways,
        server_on(folder / "leader", gateways, uncached) as leader,
        server_on(folder / "reads", gateways, uncached) as reads,
        server_on(folder / "passes", gateways, uncached, "cluster.reads=false") as passes,
    ):
        create_topics(leader, "bulk")
        drive(leader.port, 1, 2 * messages // BATCH, publish_request("bulk", BATCH))
        with basalt.connect(f"http://127.0.0.1:{leader.port}", namespace=NAMESPACE) as client:
            end = client.topic("bulk").stable_end().id
        assert end is not None
        data = request(path("bulk", f"/range?through={end.hex()}&columns=id,value"), b"", "application/json", "GET")
        rounds = 2 if quick else ROUNDS
        leader_us: dict[str, float] = {}
        both_us: dict[str, float] = {}
        for name, server in (("passed on", passes), ("read", reads)):
            found = [_round(leader, server, data, messages, warm=not turn) for turn in range(rounds + 1)][1:]
            leader_us[name], both_us[name] = (median(each) for each in zip(*found, strict=True))
        for title, by, target in (("leader", leader_us, LEADER_TARGET), ("both servers", both_us, BOTH_TARGET)):
            yield Figure(
                f"range of {RANGE_BYTES >> 20} MiB by a server that does not lead: {title}", by["read"] * 1_000,
                "us/1,000 messages", "us/1,000 messages passed on", by["passed on"] * 1_000, target, at_most=True,
                cpu_us=by["read"], note=f"messages of {MESSAGE_BYTES} bytes",
            )  # fmt: skip


def _round(
    leader: processes.Process, server: processes.Process, data: bytes, messages: int, *, warm: bool
) -> tuple[float, float]:
    """Microseconds of the leader's processor, and of both, for a message."""
    before = leader.cpu_s(), server.cpu_s()
    calls = 1 if warm else CALLS
    drive(server.port, 1, calls, data)
    led_s, own_s = leader.cpu_s() - before[0], server.cpu_s() - before[1]
    return led_s / calls / messages * 1e6, (led_s + own_s) / calls / messages * 1e6
