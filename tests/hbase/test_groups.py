"""Consumer groups over HTTP on HBase: the same calls have the same answers as in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt.settings.tree import HBaseSettings, StoreSettings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from tests.control.http.group_client import GroupClient

pytestmark = pytest.mark.hbase

ORDERS, INVOICES = "/v1/namespaces/shop/topics/orders", "/v1/namespaces/shop/topics/invoices"
DEAD = "/v1/namespaces/shop/topics/dead"
GROUP = f"{ORDERS}/groups/billing"
TOLD = ("basalt-after", "basalt-through", "basalt-attempt", "basalt-waiting-for")
_MADE_UP = r'"(requestId|id|transaction|claim)":("[0-9a-f-]*"|[0-9]+)'  # ids, and the numbers of claims
ENTRY = {"namespace": "shop", "topic": "orders", "group": "billing"}


def transcript(store: Any) -> list[Any]:
    """A group's life, call by call, and what was answered."""
    settings = Settings()
    if store.kind == "hbase":
        place = HBaseSettings(thrift2=store.address, prefix=store.prefix)
        settings = Settings(store=StoreSettings(kind="hbase", hbase=place))
    with asyncio.Runner() as runner:
        services = runner.run(open_services(settings, None, store=store, clock=ManualClock()))
        client = GroupClient(services, runner)
        told = list(calls(client))
        runner.run(services.close())
    return told


def calls(client: GroupClient) -> Iterator[Any]:
    begun: dict[str, Any] = {}
    rounds: dict[str, str] = {}

    def in_order(round_: str) -> str:
        """The number that a round would have if they were counted from 1: the first of a group is drawn."""
        return rounds.setdefault(round_, str(len(rounds) + 1))

    def told(method: str, target: str, body: Any = b"") -> Any:
        reply = client.call(method, target, body)
        text = re.sub(_MADE_UP, "", reply.body.decode("latin-1"))
        text = re.sub(r'(?<="round":)[0-9]+', lambda found: in_order(found[0]), text)
        round_ = reply.header("basalt-round")
        headers = (reply.header(name) for name in TOLD)
        return reply, (method, target, reply.status, round_ and in_order(round_), *headers, text)

    def one(method: str, target: str, body: Any = b"") -> Any:
        return told(method, target, body)[1]

    for path in (ORDERS, INVOICES):
        yield one("PUT", path, {"spread": "2"})
    yield one("PUT", GROUP, {"claimMs": 60_000, "retryDelayMs": 0})
    for number in range(4):
        yield one("POST", f"{ORDERS}/publish", {"messages": [f"m{number}.{index}" for index in range(5)]})
        client.pass_ms(3)
    reply, line = told("POST", f"{GROUP}/fetch?limit=7&member=w1")
    yield line
    claim = int(reply.header("basalt-claim") or 0)
    work = {"acknowledge": [{**ENTRY, "claims": [claim], "member": "w1"}]}
    yield one(
        "POST",
        f"{GROUP}/fetch?limit=2",
        {**work, "publish": [{"namespace": "shop", "topic": "invoices", "messages": ["a"]}]},
    )
    yield one("POST", f"{GROUP}/release", {"claims": [claim + 1], "delayMs": 0})
    reply, line = told("POST", f"{GROUP}/fetch?limit=2")
    yield line
    claim = int(reply.header("basalt-claim") or 0)
    begun = client.begin()
    yield one("POST", f"{GROUP}/acknowledge", {"claims": [claim], "transaction": begun["id"]})
    client.call("POST", f"/v1/transactions/{begun['id']}/abort")
    yield one("POST", f"{GROUP}/fetch?limit=2")
    begun = client.begin()
    work = {"acknowledge": [{**ENTRY, "claims": [claim + 1]}]}
    assert client.call("POST", f"/v1/transactions/{begun['id']}/commit", work).status == 200
    yield one("GET", f"{GROUP}/claims")
    yield one("GET", GROUP)
    yield one("POST", f"{GROUP}/seek", {"to": "start"})
    yield one("POST", f"{GROUP}/fetch?limit=100")
    yield one("POST", f"{GROUP}/fetch")
    yield one("POST", f"{INVOICES}/poll", {})
    client.pass_ms(3)
    yield one("POST", f"{ORDERS}/truncate", {"beforeMs": client.clock.now_ms()})  # with what is claimed
    yield one("POST", f"{ORDERS}/publish", {"messages": ["behind it"]})
    yield one("POST", f"{GROUP}/fetch?limit=100")
    yield one("GET", GROUP)
    yield one("DELETE", ORDERS)
    yield one("PUT", ORDERS, {"spread": "2"})
    yield one("GET", GROUP)
    yield one("PUT", GROUP, {"attemptsMax": 1, "deadLetterTopic": "dead"})
    yield one("POST", f"{ORDERS}/publish", {"messages": ["bad", "good"]})
    reply, line = told("POST", f"{GROUP}/fetch?limit=1")
    yield line
    yield one("DELETE", DEAD)
    yield one("POST", f"{GROUP}/release", {"claims": [int(reply.header("basalt-claim") or 0)]})
    yield one("GET", f"{GROUP}/messages?state=parked")
    yield one("POST", f"{GROUP}/fetch?limit=1")
    yield one("DELETE", GROUP)
    yield one("GET", GROUP)


def test_a_group_lives_alike(hbase_tables: Any) -> None:
    assert transcript(hbase_tables.emptied()) == transcript(MemoryStore(atomic=False))
