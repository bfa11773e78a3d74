"""Measures what a call costs that a server passes on to the one that leads, beside the same call to that one itself.

Both servers' processor time counts. The two ways take turns in each round, so that what else the machine does meets both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from basalt.api.bodies.messages import ConsumeRequest
from basalt.api.codecs.avro import encode_consume_request
from bench import processes
from bench.figures import Figure
from bench.load import drive, request
from bench.setting_up import BATCH, MESSAGE_BYTES, create_topics, path, publish_request

ROUNDS = 7
CLIENTS = 8
TARGET = 1.8  # of the direct call's processor time; another hop reads, writes and copies all of it once more
READ_TARGET = 3.0  # of what costs the leader little: there the hop is most of it


def passed(folder: Path, quick: bool) -> Iterator[Figure]:
    """Calls through a server that does not lead."""
    with (
        processes.passing("leader", str(folder / "data")) as leader,
        processes.passing("standby", str(leader.port)) as standby,
    ):
        create_topics(standby, "publish", "single", "poll")
        drive(leader.port, 1, 4, publish_request("poll", BATCH))
        poll = request(path("poll", "/poll"), encode_consume_request(ConsumeRequest()))
        get = request(path("single"), b"", "application/json", "GET")
        for title, clients, calls, data, target in (
            (
                f"publish 1 a call, passed on, {CLIENTS} clients",
                CLIENTS,
                400 if quick else 4_000,
                publish_request("single", 1),
                TARGET,
            ),
            (f"GET of a topic, passed on, {CLIENTS} clients", CLIENTS, 400 if quick else 4_000, get, READ_TARGET),
            ("publish 500 a call, passed on", 1, 20 if quick else 60, publish_request("publish", BATCH), TARGET),
            ("poll 2,000, passed on", 1, 20 if quick else 60, poll, READ_TARGET),
        ):
            cpu_us: tuple[list[float], list[float]] = ([], [])
            rates: tuple[list[float], list[float]] = ([], [])
            for turn in range(ROUNDS + 1):
                for side in (0, 1) if turn % 2 else (1, 0):
                    before_s = leader.cpu_s() + standby.cpu_s()
                    load = drive((standby.port, leader.port)[side], clients, calls, data)
                    if turn:  # the first round warms up
                        cpu_us[side].append((leader.cpu_s() + standby.cpu_s() - before_s) / calls * 1e6)
                        rates[side].append(load.per_second)
            (ours, theirs), (our_rate, their_rate) = map(median, cpu_us), map(median, rates)
            yield Figure(
                title, ours, "us/call", "us/call direct", theirs, target, at_most=True, cpu_us=ours,
                note=f"both servers' processor; messages of {MESSAGE_BYTES} bytes; {our_rate:,.0f} calls/s, direct {their_rate:,.0f}",
            )  # fmt: skip
