"""What is known of topics and tables ends with the reign of their shard: a look at everything that a server's services hold. And each route to a
topic or a table comes to the gate: a look at all of them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import types
from collections import deque
from typing import Any

import pytest

from basalt.cluster import shard_gate
from basalt.http.app import OPERATIONS
from basalt.server.failover import FailoverServer
from basalt.server.standby.reading_here import ReadingHere
from basalt.server.wiring import RunningServices
from basalt_engine.keys import table_prefix
from basalt_engine.stores.memory import MemoryTable
from basalt_engine.stores.shards import shard_of
from tests.control.operations.test_shard_moves import SHARD, TOPIC, Alone, Begun, held_take, run, transact

TABLE = "/v1/namespaces/shop/tables/prices"
SHARDS = [SHARD, shard_of(table_prefix("shop", "prices"))]


async def _in_use(server: Alone) -> tuple[Begun, str]:
    """A topic and a table of which everything is known that can be: an open transaction, and the id of a message."""
    await server.said("PUT", TABLE)
    await server.said("PUT", f"{TOPIC}/groups/readers", {})
    transaction = await transact(server, "stored")
    await server.said("POST", f"{TOPIC}/publish", {"messages": ["plain"]})
    numbers = {"Basalt_Producer": "till", "Basalt_Sequence": "0", "Basalt_Sequence_After": "-1"}
    await server.said("POST", f"{TOPIC}/publish", {"messages": ["numbered"]}, **numbers)
    await server.said("POST", f"{TOPIC}/markers", {"task": "t", "taskCount": 2, "eventTimeMs": 5, "kind": "watermark"})
    found = await server.said("POST", f"{TOPIC}/poll", {})
    await server.said("POST", f"{TOPIC}/groups/readers/fetch?member=ann&limit=1")
    await server.said("GET", f"{TOPIC}/stats")
    await server.said("GET", f"{TOPIC}/stable-end")
    cell = {"row": "cg==", "column": "Yw==", "value": ""}
    await server.said("POST", f"{TABLE}/write", {"transaction": transaction.id, "puts": [cell]})
    await server.said("POST", f"{TABLE}/read", {"transaction": transaction.id, "rows": ["cg=="]})
    await server.said("POST", f"{TOPIC}/publish", transaction.work("early"))
    return transaction, found[0]["id"].encode("latin-1").hex()


# Routes.

# They show rows as the store has them, and open no log: the topic's own, and the map of owners.
ENDS_AT_METADATA = {
    "/v1/admin/namespaces/{namespace}/topics/{topic}",
    "/v1/admin/namespaces/{namespace}/topics/{topic}/explain",
    "/v1/cluster/owners/{namespace}/{topic}",
    "/v1/cluster/owners/{namespace}/tables/{table}",
}
NUMBERED = "startTimestamp endTimestamp startSequenceId endSequenceId"


def _request(path: str, method: str, transaction: Begun, message: str) -> tuple[str, object]:
    """A good call of the route: its query and its body."""
    work = {"messages": ["x"]}
    rolled_back = {"transactionWritePointer": transaction.pointer, **dict.fromkeys(NUMBERED.split(), 1)}
    bodies: dict[tuple[str, str], object] = {
        ("POST", "/publish"): work, ("POST", "/rollback"): rolled_back,
        ("POST", "/poll"): {}, ("PUT", "/{group}"): {}, ("PUT", "/options"): {}, ("POST", "/acknowledge"): {"ids": [message]},
        ("POST", "/release"): {"ids": [message]}, ("POST", "/seek"): {"to": "start"}, ("POST", "/position"): {"upTo": message},
        ("POST", "/markers"): {"task": "t", "taskCount": 2, "eventTimeMs": 6, "kind": "watermark"}, ("PUT", "/properties"): {},
        ("PATCH", "/properties"): {"ttl": 60}, ("POST", "/truncate"): {"beforeMs": 1}, ("POST", "/read"): {"rows": ["cg=="]},
        ("POST", "/write"): {"transaction": transaction.id, "puts": [{"row": "cg==", "column": "Yw==", "value": ""}]},
        ("POST", "/scan"): {}, ("POST", "/unpark"): {"all": True}, ("POST", "/records"): {"records": [{"payload": "x"}]}, ("POST", "/{producer}"): {"run": "r"},
        ("POST", "/records/store"): {"records": [{"payload": "x"}], "transactionWritePointer": transaction.pointer},
        ("POST", "/store"): transaction.work("x"),
    }  # fmt: skip
    body = next((body for (verb, end), body in bodies.items() if verb == method and path.endswith(end)), None)
    through = f"through={message}" if path.endswith(("/splits", "/range")) else ""
    through += "&n=1" if path.endswith("/splits") else ""
    return through, body


def test_every_route_to_a_topic_or_a_table_waits_at_the_gate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shard_gate, "MOVING_WAIT_MS_MAX", 2)
    paths = [(each.method, each.path) for each in OPERATIONS if "{topic}" in each.path or "{table}" in each.path]
    assert len(paths) > 50

    async def story(server: Alone) -> None:
        transaction, message = await _in_use(server)
        taken, go_on = held_take(server)
        moving = asyncio.create_task(server.move(topic=None, shards=SHARDS))
        await asyncio.to_thread(taken.wait)
        answered = {}
        for method, path in paths:
            query, body = _request(path, method, transaction, message)
            names = {
                "namespace": "shop", "topic": "orders", "table": "prices", "group": "readers", "member": "ann", "message": message, "producer": "till",
            }  # fmt: skip
            target = path.format_map(names) + (f"?{query}" if query else "")
            answer = await server.ask(method, target, body)
            code = json.loads(answer.body).get("code") if answer.status >= 400 else answer.status
            if code != "shard_moving" and path not in ENDS_AT_METADATA:
                answered[f"{method} {path}"] = answer.body.decode()
        assert not answered, "\n".join(f"{path}: {body}" for path, body in answered.items())
        where = json.loads((await server.ask("GET", "/v1/admin/namespaces/shop/topics/orders/explain")).body)
        assert any("shard_moving" in each for each in where["obstacles"]), where
        for work in ({"work": {"publish": [{"namespace": "shop", "topic": "orders", "messages": ["x"]}]}},):
            assert json.loads((await server.ask("POST", "/v1/transactions", work)).body)["code"] == "shard_moving"
        ending = await server.ask("POST", f"/v1/transactions/{transaction.id}/commit")
        assert json.loads(ending.body)["code"] == "shard_moving"
        go_on.set()
        assert (await moving).status == 200
        owner = json.loads((await server.ask("GET", "/v1/cluster/owners/shop/orders")).body)
        assert (owner["epoch"], owner["why"]) == (2, "move")
        assert owner["sinceMs"] is not None
        await server.said("POST", f"/v1/transactions/{transaction.id}/commit")
        assert sorted(await server.read()) == ["early", "numbered", "plain", "stored"]

    run(story)


# Memory.

_PASSED_OVER = (
    types.ModuleType,
    types.FunctionType,
    types.FrameType,
    types.CodeType,
    type,
    types.BuiltinFunctionType,
    MemoryTable,
    FailoverServer,  # which has the services, and answers calls that come over links
    ReadingHere,  # reads ranges of other owners, by their word, from a store of its own
    asyncio.Task, asyncio.AbstractEventLoop, types.CoroutineType,  # calls under way, and the way to this test
)  # fmt: skip
NAMES = (b"shop:orders:", b"shop:~prices:", "shop:orders", "orders", "prices")


def _elsewhere(services: RunningServices) -> list[object]:
    """What may know a topic's name though no reign of it is here."""
    manager, memory = services.transactions.manager, services.topics.memory
    meter: Any = memory.meter
    return [
        services.clock,  # which in this test leads to the server that asks
        services.store, services.leadership, services.membership,
        manager.state, manager.state.groups, services.transactions.journal,  # the coordinator's: what the log says, of all topics
        meter.__self__, services.series_days, services.series,  # figures of the past
        services.shard_moves, services.shard_holding,  # the move itself is under way
    ]  # fmt: skip


def _names_known(services: RunningServices) -> dict[str, object]:
    """The paths by which something with the topic's or the table's name is reached from the services."""
    found: dict[str, object] = {}
    seen: set[int] = {id(each) for each in _elsewhere(services)}
    waiting: deque[tuple[str, Any]] = deque([("services", services)])
    while waiting:
        path, thing = waiting.popleft()
        if isinstance(thing, (bytes, str)) and thing in NAMES:
            found[path] = thing
        if id(thing) in seen or isinstance(thing, (*_PASSED_OVER, bytes, str)):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            parts = [(f"{path}[{key!r:.40}]", value) for key, value in thing.items()] + [
                (f"{path}.keys", key) for key in thing
            ]
        elif type(thing).__module__.startswith("basalt"):
            slots = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())} | set(
                getattr(thing, "__dict__", ())
            )
            parts = [(f"{path}.{name}", getattr(thing, name, None)) for name in sorted(slots)]
            if isinstance(thing, tuple):
                parts += [(f"{path}[]", each) for each in thing]
        else:
            parts = [(f"{path}<{type(thing).__name__}>", each) for each in gc.get_referents(thing)]
        waiting.extend(parts)
    return found


def test_nothing_that_the_services_hold_knows_a_topic_or_a_table_whose_reign_is_over():
    async def story(server: Alone) -> None:
        await _in_use(server)
        serving = server.member._serving
        assert serving is not None
        services = serving.services
        known = " ".join(_names_known(services))
        for part in (".live._by_number[", "._known[", "._writes."):
            assert part in known
        taken, go_on = held_take(server)
        moving = asyncio.create_task(server.move(topic=None, shards=SHARDS))
        await asyncio.to_thread(taken.wait)
        gc.collect()
        assert _names_known(services) == {}
        go_on.set()
        assert (await moving).status == 200

    run(story)
