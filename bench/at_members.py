"""`at-members`: what calls cost servers that share the topics of one HBase, by where they are answered, in the same run.

Processor time is that of both servers of a pair, and of nothing else. Each pair of figures is of calls that take turns: passed on by one server and
sent to the topic's owner itself; to topics and tables of a member and of the leader.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import uvloop
from msgspec.json import encode

from basalt.api.bodies.messages import ConsumeRequest
from basalt.api.bodies.tables import WriteRequest
from basalt.api.codecs.avro import encode_consume_request
from basalt_engine.keys import table_prefix
from basalt_engine.stores.shards import shard_of
from bench.figures import Figure
from bench.load import Connection, drive, request, turns
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
        for clients in (CLIENTS, 8 * CLIENTS):
            yield _acknowledging(pair, leader, member, clients, calls)
        yield from _cells(pair, leader, member, calls)


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


def _acknowledging(pair: Sharers, leader: Process, member: Process, clients: int, calls: int) -> Figure:
    """Fetches that acknowledge what the one before was dealt, of a topic's group."""
    total = calls * A_CLAIM
    ways: Ways = {}
    for name, owner in (("member", member), ("leader", leader)):
        topic = pair.topic(f"grouped-{name}-{clients}", owner)
        drive(owner.port, 1, total // BATCH, publish_request(topic, BATCH))
        ways[name] = partial(_acknowledge, owner, topic, clients)
    cost = in_turns(ways, lambda _: pair.cpu_s(), calls)
    return Figure(
        f"fetch and acknowledge {A_CLAIM} a call by {clients}, a member's topic", 1e6 / cost["member"], "calls/s of processor",
        "calls/s of processor, the leader's topic", 1e6 / cost["leader"], AT_MEMBER_MIN, cpu_us=cost["member"],
    )  # fmt: skip


def _acknowledge(owner: Process, topic: str, clients: int) -> None:
    source = Source(topic, f"group-{next(_numbers)}")
    drive(owner.port, 1, 1, source.put())
    timed(owner.port, source, ("",) * clients, partial(acknowledge_all, limit=A_CLAIM))


def _cells(pair: Sharers, leader: Process, member: Process, calls: int) -> Iterator[Figure]:
    """Writes of a cell each to a table in one transaction, and transactions that write one: begun, written and committed, as the client does."""
    tables = {"member": member, "leader": leader}
    for name, owner in tables.items():
        drive(leader.port, 1, 1, request(_table(name), b"", JSON, "PUT"))
        pair.move_shard(shard_of(table_prefix(NAMESPACE, _name(name))), owner)
    for title, way, count in (
        ("cell writes", _write, calls),
        ("transactions that write a cell", _transact, calls // 2),
    ):
        ways: Ways = {name: partial(way, pair, owner, name, count) for name, owner in tables.items()}
        cost = in_turns(ways, lambda _: pair.cpu_s(), count)
        yield Figure(
            f"{title}, a member's table", 1e6 / cost["member"], "calls/s of processor", "calls/s of processor, the leader's table",
            1e6 / cost["leader"], AT_MEMBER_MIN, cpu_us=cost["member"],
        )  # fmt: skip


def _name(whose: str) -> str:
    return f"cells-{whose}"


def _table(whose: str, call: str = "") -> str:
    return f"/v1/namespaces/{NAMESPACE}/tables/{_name(whose)}{call}"


def _put(whose: str, transaction: str, write_pointer: int, number: int) -> bytes:
    """The write of one cell, as the client of this tree sends it."""
    body = WriteRequest(transaction, generation=1, write_pointer=write_pointer)
    body.put(b"row %d" % number, b"c", b"v")
    return request(_table(whose, "/write"), encode(body), JSON)


def _write(pair: Sharers, owner: Process, whose: str, calls: int) -> None:
    with pair.client(pair.servers[0]) as client:
        transaction = client.transactions.begin()
        puts = [_put(whose, transaction.id, transaction.write_pointer, number) for number in range(calls)]
        drive(owner.port, CLIENTS, calls, turns(puts))
        client.transactions.abort(transaction)


def _transact(pair: Sharers, owner: Process, whose: str, calls: int) -> None:
    uvloop.run(_transactions(pair.servers[0].port, owner.port, whose, calls))


async def _transactions(leads: int, owns: int, whose: str, calls: int) -> None:
    """Begins and commits go to the leader, which has the work of them in any case, and cells to their owner."""
    loop, numbers = asyncio.get_running_loop(), iter(range(calls))

    async def client() -> None:
        leader, owner = [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for port in (leads, owns)]
        for number in numbers:
            begun = await leader.call(request("/v1/transactions", b'{"snapshot":false}', JSON))
            told = json.loads(begun.partition(b"\r\n\r\n")[2])
            await owner.call(_put(whose, told["id"], told["writePointer"], number))
            await leader.call(request(f"/v1/transactions/{told['id']}/commit", b""))
        leader.close()
        owner.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
