"""`at-members`: what calls cost servers that share the topics of one HBase, by where they are answered, in the same run.

Processor time is that of both servers of a pair, and of nothing else. Each pair of figures is of calls that take turns: passed on by one server and
sent to the topic's owner itself; to topics and tables of a member and of the leader.
"""

from __future__ import annotations

import itertools
import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from basalt.api.bodies.messages import ConsumeRequest
from basalt.api.codecs.avro import encode_consume_request
from basalt_engine.keys import table_prefix
from basalt_engine.stores.shards import shard_of
from bench.figures import Figure
from bench.load import drive, request, turns
from bench.members import Source, acknowledge_all, timed
from bench.observing import Ways, in_turns
from bench.processes import Process
from bench.setting_up import BATCH, NAMESPACE, path, publish_request
from bench.sharing import Sharers, hbase_with_coprocessor

CLIENTS = 8
A_CLAIM = 10  # messages that are fetched and acknowledged a call
PASSED_MAX, PASSED_READ_MAX = 1.8, 3.0  # of a direct call's processor; the hop is most of what costs the owner little
AT_MEMBER_MIN = 0.9  # of what the leader does a second of processor
JSON = "application/json"

_numbers = itertools.count()


def at_members(folder: Path, quick: bool) -> Iterator[Figure]:
    """Passed on, and at members."""
    calls = 400 if quick else 2_000
    with hbase_with_coprocessor(folder) as tables, ExitStack() as stack:
        pair = Sharers(stack, folder, tables("pair"))
        leader, member = pair.add(), pair.add()
        yield from _passed_on(pair, leader, member, calls)
        yield _acknowledging(pair, leader, member, calls)
        yield _cells(pair, leader, member, calls)


def _passed_on(pair: Sharers, leader: Process, member: Process, calls: int) -> Iterator[Figure]:
    """Calls that the leader passes on to a member, and a member to the leader."""
    poll = encode_consume_request(ConsumeRequest())
    for owner, other, whose in ((member, leader, "a member's"), (leader, member, "the leader's")):
        topic = pair.topic(f"passed-{other.pid}", owner)
        for title, clients, count, data, target in (
            ("publish 1 a call", CLIENTS, calls, publish_request(topic, 1), PASSED_MAX),
            (f"publish 1 a call by {8 * CLIENTS}", 8 * CLIENTS, 2 * calls, publish_request(topic, 1), PASSED_MAX),
            ("GET of a topic", CLIENTS, calls, request(path(topic), b"", JSON, "GET"), PASSED_READ_MAX),
            (f"publish {BATCH} a call", 1, calls // 40, publish_request(topic, BATCH), PASSED_MAX),
            ("poll 2,000", 1, calls // 40, request(path(topic, "/poll"), poll), PASSED_READ_MAX),
        ):
            ways: Ways = {
                "passed": partial(drive, other.port, clients, count, data),
                "direct": partial(drive, owner.port, clients, count, data),
            }
            cost = in_turns(ways, lambda _: pair.cpu_s(), count)
            yield Figure(
                f"{title}, {whose} topic, passed on", cost["passed"], "us/call", "us/call direct", cost["direct"], target,
                at_most=True, cpu_us=cost["passed"],
            )  # fmt: skip


def _acknowledging(pair: Sharers, leader: Process, member: Process, calls: int) -> Figure:
    """Fetches that acknowledge what the one before was dealt, of a topic's group."""
    total = calls * A_CLAIM
    ways: Ways = {}
    for name, owner in (("member", member), ("leader", leader)):
        topic = pair.topic(f"grouped-{name}", owner)
        drive(owner.port, 1, total // BATCH, publish_request(topic, BATCH))
        ways[name] = partial(_acknowledge, owner, topic)
    cost = in_turns(ways, lambda _: pair.cpu_s(), calls)
    return Figure(
        f"fetch and acknowledge {A_CLAIM} a call, a member's topic", 1e6 / cost["member"], "calls/s of processor",
        "calls/s of processor, the leader's topic", 1e6 / cost["leader"], AT_MEMBER_MIN, cpu_us=cost["member"],
    )  # fmt: skip


def _acknowledge(owner: Process, topic: str) -> None:
    source = Source(topic, f"group-{next(_numbers)}")
    drive(owner.port, 1, 1, source.put())
    timed(owner.port, source, ("",) * CLIENTS, partial(acknowledge_all, limit=A_CLAIM))


def _cells(pair: Sharers, leader: Process, member: Process, calls: int) -> Figure:
    """Writes of a cell each in a transaction, to a table."""
    ways: Ways = {}
    for name, owner in (("member", member), ("leader", leader)):
        table = f"cells-{name}"
        drive(leader.port, 1, 1, request(f"/v1/namespaces/{NAMESPACE}/tables/{table}", b"", JSON, "PUT"))
        pair.move_shard(shard_of(table_prefix(NAMESPACE, table)), owner)
        ways[name] = partial(_write, pair, owner, table, calls)
    cost = in_turns(ways, lambda _: pair.cpu_s(), calls)
    return Figure(
        "cell writes, a member's table", 1e6 / cost["member"], "calls/s of processor", "calls/s of processor, the leader's table",
        1e6 / cost["leader"], AT_MEMBER_MIN, cpu_us=cost["member"],
    )  # fmt: skip


def _write(pair: Sharers, owner: Process, table: str, calls: int) -> None:
    with pair.client(pair.servers[0]) as client:
        transaction = client.transactions.begin()
        puts = [
            {"transaction": transaction.id, "generation": 1, "puts": [{"row": _coded(f"row {number}"), "column": _coded("c"), "value": _coded("v")}]}
            for number in range(calls)
        ]  # fmt: skip
        where = f"/v1/namespaces/{NAMESPACE}/tables/{table}/write"
        drive(owner.port, CLIENTS, calls, turns([request(where, json.dumps(each).encode(), JSON) for each in puts]))
        client.transactions.abort(transaction)


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()
