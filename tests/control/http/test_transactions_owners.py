"""A transaction belongs to the principal that began it, and somebody else, who may do as much with the data, gets nowhere with it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import Principal, parse_principal
from basalt.api.bodies.messages import PublishRequest, RecordIn, RecordsRequest
from basalt.api.codecs import avro
from basalt.http.app import ANYBODY, build_app
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TABLE_NAMES, Row
from tests.control.http.conftest import AVRO, Client, Reply

ETL, MALLORY, ALICE = map(parse_principal, ("token:etl", "token:mallory", "jwt:alice@example.org"))
DATA = ("observe", "read", "write", "manage", "inspect")
TOPIC, OTHER = "/v1/namespaces/shop/topics/orders", "/v1/namespaces/shop/topics/other"
TABLE, GROUP = "/v1/namespaces/shop/tables/accounts", f"{TOPIC}/groups/billing"
TRANSACTIONS, SESSIONS = "/v1/transactions", "/v1/transactions/sessions"
LINES, ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"


def may(principal: Principal, *more: tuple[str, str]) -> list[Any]:
    """The grants of somebody who works with the shop's data, and more."""
    grants = [(DATA, "namespace:shop"), (("transact",), "cluster"), *(((verb,), resource) for verb, resource in more)]
    return [parse_grant(str(principal), verbs, resource) for verbs, resource in grants]


EVERYBODY = Policy([*may(ETL), *may(MALLORY), *may(ALICE)], superusers=["token:root"])


class Shop:
    """One server, asked by several principals."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.policy = EVERYBODY
        self.services = client.services

    def ask(
        self, who: Principal, method: str, target: str, body: Any = b"", media: str | None = None, **headers: str
    ) -> Reply:
        self.client.app = build_app(self.services, Caller(who, self.policy))
        return self.client.call(method, target, body, media, **headers)

    def begin(self, who: Principal = ETL, **wanted: object) -> Any:
        reply = self.ask(who, "POST", TRANSACTIONS, {"snapshot": False, **wanted})
        assert reply.status == 200, reply.body
        return reply.json()

    def done(self, who: Principal, method: str, target: str, body: Any = b"") -> Any:
        reply = self.ask(who, method, target, body)
        assert reply.status == 200, reply.body
        return reply.json() if reply.body else None

    def stored(self) -> dict[str, list[Row]]:
        store = self.services.store
        return {name: list(store.table(name).scan(b"", None)) for name in TABLE_NAMES}

    def read(self, query: str = "") -> list[str]:
        self.client.app = build_app(self.services, ANYBODY)
        return self.client.payloads(TOPIC, query)

    def restart(self) -> None:
        """Another server over the same store: it reads the log."""
        run = self.client.run
        run(self.services.close())
        services = run(open_services(Settings(), None, store=self.services.store, clock=ManualClock()))
        self.services = self.client.services = services


@pytest.fixture(params=["one batch", "row by row"])
def shop(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Shop]:
    store = KeptStore(atomic=request.param == "one batch")
    services = runner.run(open_services(Settings(), None, store=store, clock=ManualClock()))
    made = Shop(Client(services, runner))
    for target in (TOPIC, OTHER, TABLE, GROUP):
        made.done(ETL, "PUT", target)
    made.done(ETL, "POST", f"{TOPIC}/publish", {"messages": ["a", "b"]})
    yield made
    runner.run(made.services.close())


class KeptStore(MemoryStore):
    """A store that outlives the server that closes it."""

    def close(self) -> None:
        pass


def arrow(*messages: bytes) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"value": pyarrow.array(messages, pyarrow.binary())})
    out = io.BytesIO()
    with pyarrow.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


class Attack(NamedTuple):
    """A call under a transaction: `{pointer}` in target, or what `body` makes of its pointer."""

    method: str
    target: str
    body: Callable[[int], Any] = lambda pointer: b""
    media: str | None = None


PUTS = [{"row": "cg==", "column": "Yw==", "value": "dg=="}]
RANGE = {"startTimestamp": 1, "startSequenceId": 0, "endTimestamp": 1, "endSequenceId": 0}
UNDER_A_POINTER = {
    "publish": Attack("POST", f"{TOPIC}/publish", lambda p: {"transactionWritePointer": p, "messages": ["x"]}),
    "publish what was stored": Attack(
        "POST", f"{TOPIC}/publish", lambda p: {"transactionWritePointer": p, "messages": []}
    ),
    "publish as Avro": Attack(
        "POST", f"{TOPIC}/publish", lambda p: avro.encode_publish_request(PublishRequest(p, [b"x"])), AVRO
    ),
    "publish as Arrow": Attack(
        "POST", f"{TOPIC}/publish?transactionWritePointer={{pointer}}", lambda p: arrow(b"x"), ARROW
    ),
    "store": Attack("POST", f"{TOPIC}/store", lambda p: {"transactionWritePointer": p, "messages": ["x"]}),
    "store as Arrow": Attack(
        "POST", f"{TOPIC}/store?transactionWritePointer={{pointer}}", lambda p: arrow(b"x"), ARROW
    ),
    "records": Attack(
        "POST", f"{TOPIC}/records", lambda p: {"transactionWritePointer": p, "records": [{"payload": "x"}]}
    ),
    "records as lines": Attack(
        "POST", f"{TOPIC}/records?transactionWritePointer={{pointer}}", lambda p: b'{"payload":"x"}\n', LINES
    ),
    "store records": Attack(
        "POST", f"{TOPIC}/records/store", lambda p: {"transactionWritePointer": p, "records": [{"payload": "x"}]}
    ),
    "store records as Avro": Attack(
        "POST",
        f"{TOPIC}/records/store",
        lambda p: avro.encode_records_request(RecordsRequest(p, [RecordIn(b"x")])),
        AVRO,
    ),
    "roll back": Attack("POST", f"{TOPIC}/rollback", lambda p: {"transactionWritePointer": p, **RANGE}),
}
BY_ID = {
    "commit": Attack("POST", f"{TRANSACTIONS}/{{pointer}}/commit"),
    "commit with work": Attack(
        "POST",
        f"{TRANSACTIONS}/{{pointer}}/commit",
        lambda p: {"publish": [{"namespace": "shop", "topic": "orders", "messages": ["x"]}]},
    ),
    "abort": Attack("POST", f"{TRANSACTIONS}/{{pointer}}/abort"),
    "invalidate": Attack("POST", f"{TRANSACTIONS}/{{pointer}}/invalidate"),
    "checkpoint": Attack("POST", f"{TRANSACTIONS}/{{pointer}}/checkpoint"),
    "changes": Attack("POST", f"{TRANSACTIONS}/{{pointer}}/changes", lambda p: {"changes": ["cm93"]}),
    "participants": Attack(
        "POST",
        f"{TRANSACTIONS}/{{pointer}}/participants",
        lambda p: {"kind": "topic", "namespace": "shop", "topic": "other"},
    ),
    "show": Attack("GET", f"{TRANSACTIONS}/{{pointer}}"),
    "timeline": Attack("GET", f"{TRANSACTIONS}/{{pointer}}/timeline"),
    "write cells": Attack("POST", f"{TABLE}/write", lambda p: {"transaction": str(p), "puts": PUTS}),
    "read cells": Attack("POST", f"{TABLE}/read", lambda p: {"transaction": str(p), "rows": ["cg=="]}),
    "scan cells": Attack("POST", f"{TABLE}/scan", lambda p: {"transaction": str(p)}),
    "poll": Attack("POST", f"{TOPIC}/poll?transaction={{pointer}}", lambda p: {}),
    "read records": Attack("GET", f"{TOPIC}/records?transaction={{pointer}}"),
    "fetch": Attack("POST", f"{GROUP}/fetch?transaction={{pointer}}"),
    "acknowledge": Attack("POST", f"{GROUP}/acknowledge", lambda p: {"claims": [1], "transaction": str(p)}),
}
ATTACKS = {**UNDER_A_POINTER, **BY_ID}


def tried(shop: Shop, who: Principal, attack: Attack, pointer: int) -> Reply:
    target = attack.target.replace("{pointer}", str(pointer))
    return shop.ask(who, attack.method, target, attack.body(pointer), attack.media, Basalt_Request_Id="r")


def told(reply: Reply, pointer: int) -> tuple[int, str, bytes]:
    """What a refusal tells, without the name by which it was asked for."""
    return reply.status, reply.code, reply.body.replace(str(pointer).encode(), b"ID")


@pytest.mark.parametrize("name", ATTACKS)
def test_nobody_gets_anywhere_with_anothers_transaction_nor_learns_of_it(name: str, shop: Shop):
    begun = shop.begin(ETL, owner="secret-label")
    pointer = begun["writePointer"]
    shop.done(ETL, "POST", f"{TOPIC}/store", {"transactionWritePointer": pointer, "messages": ["mine"]})
    before = shop.stored()
    refused = tried(shop, MALLORY, ATTACKS[name], pointer)
    assert told(refused, pointer)[:2] == (403, "forbidden")
    assert b"etl" not in refused.body
    assert b"secret-label" not in refused.body
    absent = tried(shop, MALLORY, ATTACKS[name], pointer + 12_345)
    assert told(absent, pointer + 12_345) == told(refused, pointer)
    assert shop.stored() == before
    assert shop.done(ETL, "GET", f"{TRANSACTIONS}/{pointer}")["state"] == "OPEN"
    allowed = tried(shop, ETL, ATTACKS[name], pointer)
    assert allowed.status == 200 or allowed.code == "claim_lost", allowed.body  # which there is none of


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("fetch", "acknowledge")])
def test_of_one_that_ended_another_learns_no_more_than_of_one_that_never_began(name: str, shop: Shop):
    pointer = shop.begin(ETL)["writePointer"]
    shop.done(ETL, "POST", f"{TRANSACTIONS}/{pointer}/abort")
    refused = tried(shop, MALLORY, ATTACKS[name], pointer)
    assert told(refused, pointer)[:2] == (403, "forbidden")
    assert told(tried(shop, MALLORY, ATTACKS[name], pointer + 9), pointer + 9) == told(refused, pointer)
    mine = tried(shop, ETL, ATTACKS[name], pointer)
    assert mine.status != 403, "its owner is told how it ended"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_anonymous_transaction_is_no_principals(name: str, shop: Shop):
    """As one that began before authentication was switched on."""
    shop.client.app = build_app(shop.services, ANYBODY)
    pointer = shop.client.begin()["writePointer"]
    assert tried(shop, ETL, ATTACKS[name], pointer).status == 403
    shop.policy = Policy([*may(ETL, ("transact", "transactions:anonymous"))])
    reply = tried(shop, ETL, ATTACKS[name], pointer)
    assert reply.status == 200 or reply.code == "claim_lost", reply.body


@pytest.mark.parametrize("name", [*UNDER_A_POINTER, "write cells"])
def test_a_checkpoint_is_its_owners_too(name: str, shop: Shop):
    begun = shop.begin(ETL)
    pointer = shop.done(ETL, "POST", f"{TRANSACTIONS}/{begun['id']}/checkpoint")["writePointer"]
    assert pointer != begun["writePointer"]
    before = shop.stored()
    assert tried(shop, MALLORY, ATTACKS[name], pointer).status == 403
    assert shop.stored() == before
    if name in UNDER_A_POINTER:
        assert tried(shop, ETL, ATTACKS[name], pointer).status == 200


def test_who_may_transact_on_anothers_transactions_acts_on_them(shop: Shop):
    shop.policy = Policy([*may(ETL), *may(MALLORY, ("transact", "transactions:token:e*"))])
    pointer = shop.begin(ETL)["writePointer"]
    for attack in UNDER_A_POINTER.values():
        assert tried(shop, MALLORY, attack, pointer).status == 200
    assert shop.done(MALLORY, "POST", f"{TRANSACTIONS}/{pointer}/commit")["state"] == "COMMITTED"


def test_who_may_only_observe_them_looks_and_does_no_more(shop: Shop):
    shop.policy = Policy([*may(ETL), *may(MALLORY, ("observe", "transactions:token:etl"))])
    pointer = shop.begin(ETL)["writePointer"]
    looks = {name for name, attack in ATTACKS.items() if tried(shop, MALLORY, attack, pointer).status == 200}
    assert looks == {"show", "timeline"}


def test_who_may_act_on_all_is_told_what_there_is_not(shop: Shop):
    root = parse_principal("token:root")
    pointer = shop.begin(ETL)["writePointer"]
    assert shop.done(root, "GET", f"{TRANSACTIONS}/{pointer}")["principal"] == "token:etl"
    absent = shop.ask(root, "GET", f"{TRANSACTIONS}/{pointer + 1}")
    assert (absent.status, absent.code) == (404, "transaction_not_found")
    elsewhere = shop.ask(root, "GET", f"{TRANSACTIONS}/{'f' * 16}{pointer:016x}")
    assert (elsewhere.status, elsewhere.code) == (404, "transaction_not_found")


def test_an_id_of_another_installation_is_one_of_which_nothing_is_known(shop: Shop):
    given = f"{'f' * 16}{1:016x}"
    for method, target, body in (
        ("GET", f"{TRANSACTIONS}/{given}", b""),
        ("POST", f"{TABLE}/write", {"transaction": given, "puts": PUTS}),
    ):
        refused = shop.ask(MALLORY, method, target, body)
        assert (refused.status, refused.code) == (403, "forbidden")


def test_lists_show_ones_own(shop: Shop):
    begun = [shop.begin(who)["id"] for who in (ETL, MALLORY, ETL)]

    def listed(who: Principal) -> list[tuple[str, str]]:
        return [(each["id"], each["principal"]) for each in shop.done(who, "GET", TRANSACTIONS)["transactions"]]

    assert listed(ETL) == [(begun[0], "token:etl"), (begun[2], "token:etl")]
    assert listed(MALLORY) == [(begun[1], "token:mallory")]
    assert listed(ALICE) == []


# Request ids.


ONE_SHOT = {"work": {"publish": [{"namespace": "shop", "topic": "orders", "messages": ["paid"]}]}}


def test_a_begin_with_anothers_request_id_begins_another_transaction(shop: Shop):
    mine = shop.ask(ETL, "POST", TRANSACTIONS, {}, Basalt_Request_Id="guessed").json()
    theirs = shop.ask(MALLORY, "POST", TRANSACTIONS, {}, Basalt_Request_Id="guessed").json()
    assert theirs["id"] != mine["id"]
    assert shop.ask(ETL, "POST", TRANSACTIONS, {}, Basalt_Request_Id="guessed").json()["id"] == mine["id"]
    assert shop.ask(MALLORY, "POST", TRANSACTIONS, {}, Basalt_Request_Id="guessed").json()["id"] == theirs["id"]


def test_a_one_shot_with_anothers_request_id_is_done_and_not_taken_for_the_others(shop: Shop):
    for who in (ETL, MALLORY, ETL, MALLORY):
        assert shop.ask(who, "POST", TRANSACTIONS, ONE_SHOT, Basalt_Request_Id="once").status == 200
    assert shop.read().count("paid") == 2


def test_a_publish_with_anothers_idempotency_key_is_done(shop: Shop):
    for who in (ETL, MALLORY, ETL, MALLORY):
        reply = shop.ask(who, "POST", f"{TOPIC}/publish", {"messages": ["paid"]}, Idempotency_Key="once")
        assert reply.status == 200
    assert shop.read().count("paid") == 2


def test_a_fetch_with_anothers_request_id_gets_a_claim_of_its_own(shop: Shop):
    claims = [
        shop.ask(who, "POST", f"{GROUP}/fetch?limit=1", Basalt_Request_Id="f").header("basalt-claim")
        for who in (ETL, MALLORY, ETL, MALLORY)
    ]
    assert len(set(claims)) == 2
    assert claims[:2] == claims[2:]


def test_a_request_id_that_is_used_for_something_else_is_quoted_as_the_client_wrote_it(shop: Shop):
    for who in (ETL, MALLORY):
        shop.ask(who, "POST", TRANSACTIONS, {}, Basalt_Request_Id="my-request")
        reused = shop.ask(who, "POST", TRANSACTIONS, ONE_SHOT, Basalt_Request_Id="my-request")
        assert (reused.status, reused.code) == (409, "request_reused")
        assert "request id 'my-request' was used for the begin" in reused.json()["detail"]


def test_request_ids_stay_ones_own_over_a_restart(shop: Shop):
    mine = shop.ask(ETL, "POST", TRANSACTIONS, {}, Basalt_Request_Id="guessed").json()
    shop.restart()
    assert shop.ask(MALLORY, "POST", TRANSACTIONS, {}, Basalt_Request_Id="guessed").json()["id"] != mine["id"]
    assert shop.ask(ETL, "POST", TRANSACTIONS, {}, Basalt_Request_Id="guessed").json()["id"] == mine["id"]


# After the end, and over a restart.


@pytest.mark.parametrize("with_snapshot", [False, True], ids=["of the log", "of a snapshot"])
def test_owners_outlive_the_server(with_snapshot: bool, shop: Shop):
    mine, ended = shop.begin(ETL), shop.begin(ETL)
    shop.done(ETL, "POST", f"{TRANSACTIONS}/{ended['id']}/commit")
    shot = shop.done(ETL, "POST", TRANSACTIONS, ONE_SHOT)
    if with_snapshot:
        shop.client.run(shop.services.transactions.write_log_snapshot())
    shop.restart()
    for begun in (mine, ended, shot):
        assert shop.ask(MALLORY, "GET", f"{TRANSACTIONS}/{begun['id']}").status == 403
        assert shop.ask(ETL, "GET", f"{TRANSACTIONS}/{begun['id']}").status == 200
    assert tried(shop, MALLORY, ATTACKS["commit"], mine["writePointer"]).status == 403
    assert tried(shop, ETL, ATTACKS["commit"], mine["writePointer"]).json()["state"] == "COMMITTED"


def test_whose_a_transaction_is_is_asked_of_the_log_when_that_has_to_be_read_first(shop: Shop):
    pointer = shop.begin(ETL)["writePointer"]
    for who, status in ((MALLORY, 403), (ETL, 200)):
        for name in ("show", "publish", "write cells"):
            shop.services.transactions.manager.lost()
            assert tried(shop, who, ATTACKS[name], pointer).status == status, (who, name)


# Rights that are taken back.


def test_a_right_that_is_taken_back_between_store_and_commit_stops_the_commit_which_stays_open(shop: Shop):
    pointer = shop.begin(ETL)["writePointer"]
    shop.done(ETL, "POST", f"{TOPIC}/store", {"transactionWritePointer": pointer, "messages": ["late"]})
    without = [grant for grant in may(ETL) if "write" not in grant.verbs]
    reading = parse_grant(str(ETL), ["read", "observe"], "namespace:shop")
    shop.policy = Policy([*without, reading, parse_grant(str(ETL), ["write"], "topic:shop:other")])
    refused = tried(shop, ETL, ATTACKS["commit"], pointer)
    assert (refused.status, refused.json()["detail"]) == (403, "token:etl may not write topic:shop:orders")
    assert shop.done(ETL, "GET", f"{TRANSACTIONS}/{pointer}")["state"] == "OPEN"
    assert "late" not in shop.read()
    shop.policy = EVERYBODY
    assert tried(shop, ETL, ATTACKS["commit"], pointer).json()["state"] == "COMMITTED"
    assert "late" in shop.read()


def test_what_another_call_adds_while_a_commit_is_on_its_way_is_judged_too(shop: Shop):
    """The commit is judged where it is decided: what its caller saw before may be less than what it makes true."""
    shop.policy = Policy([
        *(parse_grant(str(ETL), ["write", "read", "observe"], f"topic:shop:{name}") for name in ("orders",)),
        parse_grant(str(ETL), ["transact"], "cluster"),
        *may(MALLORY, ("transact", "transactions:token:etl")),
    ])  # fmt: skip
    pointer = shop.begin(ETL)["writePointer"]
    services, theirs = shop.services, build_app(shop.services, Caller(MALLORY, shop.policy))
    plan = services.transactions._owner.plan

    async def meanwhile(work: Any, transaction: Any) -> Any:
        planned = await plan(work, transaction)
        asking = Client(services, shop.client.runner)
        asking.app = theirs
        body = {"transactionWritePointer": pointer, "messages": ["smuggled"]}
        assert (await asking.ask("POST", f"{OTHER}/store", body)).status == 200
        return planned

    services.transactions._owner.plan = meanwhile
    refused = tried(shop, ETL, ATTACKS["commit"], pointer)
    assert (refused.status, refused.json()["detail"]) == (403, "token:etl may not write topic:shop:other")
    assert shop.done(ETL, "GET", f"{TRANSACTIONS}/{pointer}")["state"] == "OPEN"


def test_a_commit_that_is_repeated_needs_no_right_that_was_taken_back_since(shop: Shop):
    pointer = shop.begin(ETL)["writePointer"]
    shop.done(ETL, "POST", f"{TOPIC}/store", {"transactionWritePointer": pointer, "messages": ["paid"]})
    assert tried(shop, ETL, ATTACKS["commit"], pointer).status == 200
    shop.policy = Policy([])
    assert tried(shop, ETL, ATTACKS["commit"], pointer).json()["state"] == "COMMITTED"


# Sessions.


def test_anothers_session_cannot_be_fenced(shop: Shop):
    shop.policy = Policy([*may(ETL, ("transact", "session:billing")), *may(MALLORY)])
    opened = shop.done(ETL, "POST", f"{SESSIONS}/billing", {"run": "monday"})
    before = shop.stored()
    for target, body in (
        (f"{SESSIONS}/billing", {"run": "mallory"}),
        (TRANSACTIONS, {"session": "billing", "sessionEpoch": opened["epoch"]}),
        (TRANSACTIONS, {"session": "billing", "run": "monday", "version": 7}),
        (TRANSACTIONS, {"session": "billing", "run": "mallory", "version": 7}),
    ):
        assert shop.ask(MALLORY, "POST", target, body).status == 403
    assert shop.ask(MALLORY, "DELETE", f"{SESSIONS}/billing").status == 403
    assert shop.stored() == before
    shown = shop.done(ETL, "GET", f"{SESSIONS}/billing")
    assert (shown["run"], shown["epoch"], shown["principal"]) == ("monday", opened["epoch"], "token:etl")


def test_who_may_transact_on_the_session_acts_on_its_transactions_and_on_no_others(shop: Shop):
    shop.policy = Policy([
        *may(ETL, ("transact", "session:billing")), *may(MALLORY, ("transact", "session:billing")), *may(ALICE),
    ])  # fmt: skip
    shop.done(ETL, "POST", f"{SESSIONS}/billing", {"run": "monday"})
    named = {"session": "billing", "run": "monday", "version": 7}
    mine = shop.begin(ETL, **named)
    assert shop.begin(MALLORY, **named)["id"] == mine["id"], "each process of a run joins it, whoever it is"
    assert mine["principal"] == "token:etl"
    alone = shop.begin(ETL)["writePointer"]
    for name, attack in UNDER_A_POINTER.items():
        assert tried(shop, MALLORY, attack, mine["writePointer"]).status == 200, name
        assert tried(shop, ALICE, attack, mine["writePointer"]).status == 403, name
        assert tried(shop, MALLORY, attack, alone).status == 403, name
    assert tried(shop, MALLORY, ATTACKS["commit"], mine["writePointer"]).json()["state"] == "COMMITTED"


def test_a_run_of_another_principal_that_may_takes_the_session_over(shop: Shop):
    both = [("transact", "session:billing")]
    shop.policy = Policy([*may(ETL, *both), *may(MALLORY, *both)])
    shop.done(ETL, "POST", f"{SESSIONS}/billing", {"run": "monday"})
    mine = shop.begin(ETL, session="billing", sessionEpoch=1)
    shop.done(MALLORY, "POST", f"{SESSIONS}/billing", {"run": "tuesday"})
    assert shop.done(ETL, "GET", f"{SESSIONS}/billing")["principal"] == "token:mallory"
    fenced = tried(shop, ETL, ATTACKS["commit"], mine["writePointer"])
    assert (fenced.status, fenced.code) == (409, "session_fenced")


# What others are called.


def test_a_lost_conflict_names_the_winner_only_to_who_may_look_at_it(shop: Shop):
    theirs, mine = shop.begin(ETL, owner="payroll"), shop.begin(MALLORY)
    for who, begun in ((ETL, theirs), (MALLORY, mine)):
        shop.done(who, "POST", f"{TRANSACTIONS}/{begun['id']}/changes", {"changes": ["c2FsYXJ5OmFsaWNl"]})
    shop.done(ETL, "POST", f"{TRANSACTIONS}/{theirs['id']}/commit")
    lost = tried(shop, MALLORY, ATTACKS["commit"], mine["writePointer"])
    assert (lost.status, lost.code) == (409, "transaction_conflict")
    detail = lost.json()["detail"]
    assert f"to transaction {theirs['writePointer']}, which committed first" in detail
    assert "payroll" not in detail
    assert "salary" not in detail
    steps = shop.done(MALLORY, "GET", f"{TRANSACTIONS}/{mine['id']}/timeline")["steps"]
    step = next(each for each in steps if each["event"] == "conflict_lost")
    assert set(step["detail"]) == {"winner"}
    shop.policy = Policy([*may(MALLORY, ("observe", "transactions:token:etl"))])
    again = tried(shop, MALLORY, ATTACKS["commit"], mine["writePointer"])
    assert "payroll" in again.json()["detail"]
    assert "salary:alice" in again.json()["detail"]


def test_the_holder_of_a_topics_readers_is_named_only_to_who_may_look_at_it(shop: Shop):
    begun = shop.begin(ETL, owner="payroll")
    body = {"transactionWritePointer": begun["writePointer"], "messages": ["early"]}
    shop.done(ETL, "POST", f"{TOPIC}/publish", body)
    hidden, seen = (shop.done(who, "GET", f"{TOPIC}/holder") for who in (MALLORY, ETL))
    assert hidden["heldBy"] == seen["heldBy"] == begun["id"]
    assert (hidden.get("owner"), hidden.get("expiresMs")) == (None, None)
    assert seen["owner"] == "payroll"


def test_who_holds_a_message_of_a_group_is_named_only_to_who_may_look_at_it(shop: Shop):
    begun = shop.begin(ETL, owner="payroll")
    claim = int(shop.ask(ETL, "POST", f"{GROUP}/fetch?limit=1").header("basalt-claim"))
    shop.done(ETL, "POST", f"{GROUP}/acknowledge", {"claims": [claim], "transaction": begun["id"]})
    for who, owner in ((MALLORY, None), (ETL, "payroll")):
        (pending,) = shop.done(who, "GET", f"{GROUP}/messages?state=pending")["messages"]
        assert (pending["transaction"], pending.get("owner")) == (begun["id"], owner)
        one = shop.ask(who, "GET", f"{GROUP}/messages/{pending['id']}")
        assert (b"payroll" in one.body) == (owner is not None)
        sought = shop.ask(who, "POST", f"{GROUP}/seek", {"to": "end"})
        assert (sought.status, sought.code) == (409, "conflict")
        assert (b"payroll" in sought.body) == (owner is not None)


OPERATOR = ("observe", "cluster"), ("operate", "cluster")


def test_operators_see_that_there_is_a_transaction_and_only_who_may_look_whose_and_where(shop: Shop):
    begun = shop.begin(ETL, owner="payroll")
    pointer = begun["writePointer"]
    shop.done(ETL, "POST", f"{TOPIC}/publish", {"transactionWritePointer": pointer, "messages": ["early"]})
    shop.done(ETL, "POST", f"{TABLE}/write", {"transaction": begun["id"], "puts": PUTS})
    for more, seen in (((), False), ((("observe", "transactions:token:etl"),), True)):
        shop.policy = Policy([*may(ALICE, *OPERATOR, *more)])
        (listed,) = shop.done(ALICE, "GET", "/v1/admin/transactions")["transactions"]
        (hanging,) = shop.done(ALICE, "GET", "/v1/admin/transactions/hanging")["hanging"]
        described = shop.done(ALICE, "GET", f"/v1/admin/transactions/{begun['id']}")
        for shown in (listed, hanging, described):
            assert shown["id"] == begun["id"]
            assert (shown["owner"], shown["principal"]) == (("payroll", "token:etl") if seen else ("", None))
            assert bool(shown["topics"]) == bool(shown["tables"]) == seen
            assert ("payroll" in str(shown)) == seen
            assert ("orders" in str(shown)) == seen
        for query in ("owner=payroll", "topic=shop:orders"):
            found = shop.done(ALICE, "GET", f"/v1/admin/transactions?{query}")["transactions"]
            assert len(found) == seen, "nor is it found by what is not shown"


def test_the_end_of_anothers_transaction_is_told_to_operators_without_names(shop: Shop):
    begun = shop.begin(ETL, owner="payroll", externalWrites=True)
    body = {"transactionWritePointer": begun["writePointer"], "messages": ["early"]}
    shop.done(ETL, "POST", f"{TOPIC}/publish", body)
    shop.done(ETL, "POST", f"{TRANSACTIONS}/{begun['id']}/invalidate")
    shop.policy = Policy([*may(ALICE, *OPERATOR)])
    described = shop.done(ALICE, "GET", f"/v1/admin/transactions/{begun['id']}")
    assert (described["owner"], described["principal"], described["topics"]) == ("", None, [])
    refused = shop.ask(ALICE, "POST", f"/v1/admin/transactions/{begun['id']}/abort")
    assert refused.code == "external_writes"
    assert b"payroll" not in refused.body
    shop.policy = Policy([*may(ALICE, *OPERATOR, ("observe", "transactions:token:etl"))])
    assert shop.done(ALICE, "GET", f"/v1/admin/transactions/{begun['id']}")["owner"] == "payroll"


def test_an_operator_ends_anothers_transaction_by_hand(shop: Shop):
    begun = shop.begin(ETL)
    shop.policy = Policy([*may(ALICE, *OPERATOR)])
    assert shop.done(ALICE, "POST", f"/v1/admin/transactions/{begun['id']}/abort")["state"] == "ABORTED"
    assert shop.ask(ALICE, "POST", f"{TRANSACTIONS}/{begun['id']}/abort").status == 403


# Where nobody has to prove who they are.


def test_where_nobody_is_judged_nothing_belongs_to_anybody(shop: Shop):
    """Also of calls from within the process, as an embedded client's: who opens the directory owns it."""
    for caller in (ANYBODY, Caller(parse_principal("internal:embedded"), None)):
        shop.client.app = build_app(shop.services, caller)
        begun = shop.client.begin()
        assert begun["principal"] == "anonymous"
        assert shop.services.transactions.state.get(begun["writePointer"]).principal == ""
    shop.client.app = build_app(shop.services, ANYBODY)
    assert shop.client.call("POST", f"{TRANSACTIONS}/{begun['id']}/commit").status == 200


# With tokens.


ASKED = Settings(auth=AuthSettings(kinds=("token",), bootstrap_token="b" * 40))


class Asker:
    """Somebody who sends a token."""

    def __init__(self, client: Client, token: str) -> None:
        self.client = client
        self.token = token

    def __call__(self, method: str, target: str, body: object = b"", **headers: str) -> Reply:
        return self.client.call(method, target, body, Authorization=f"Bearer {self.token}", **headers)


def with_token(root: Asker, name: str, *grants: tuple[list[str], str]) -> Asker:
    for verbs, resource in grants:
        given = {"subject": f"token:{name}", "verbs": verbs, "resource": resource}
        assert root("POST", "/v1/admin/grants", given).status == 200
    return Asker(root.client, root("POST", "/v1/admin/tokens", {"name": name}).json()["token"])


WORKS = (list(DATA), "namespace:shop"), (["transact"], "cluster")


def test_who_proves_who_they_are_owns_what_they_begin(connect: Callable[[Settings], Client]):
    client = connect(ASKED)
    root = Asker(client, "b" * 40)
    etl, other, mallory = (with_token(root, name, *WORKS) for name in ("etl", "etl", "mallory"))
    assert root("PUT", TOPIC).status == 200
    begun = etl("POST", TRANSACTIONS, {"owner": "payroll"}, Basalt_Request_Id="r").json()
    assert begun["principal"] == "token:etl"
    body = {"transactionWritePointer": begun["writePointer"], "messages": ["paid"]}
    assert mallory("POST", f"{TOPIC}/publish", body).status == 403
    assert mallory("POST", f"{TRANSACTIONS}/{begun['id']}/commit").status == 403
    assert mallory("POST", TRANSACTIONS, {}, Basalt_Request_Id="r").json()["id"] != begun["id"]
    assert other("POST", f"{TOPIC}/publish", body).status == 200, "another token of the same principal is the same one"
    assert other("POST", TRANSACTIONS, {"owner": "payroll"}, Basalt_Request_Id="r").json()["id"] == begun["id"]
    (refusal,) = (each for each in client.services.refusals.newest(10) if each.principal == "token:mallory")
    assert (refusal.verb, refusal.resource, refusal.count) == ("transact", "transactions:token:etl", 2)
    assert etl("POST", f"{TRANSACTIONS}/{begun['id']}/commit").json()["state"] == "COMMITTED"


def test_a_token_that_is_limited_to_other_rights_acts_on_no_transaction_of_its_principal(
    connect: Callable[[Settings], Client],
):
    client = connect(ASKED)
    root = Asker(client, "b" * 40)
    etl = with_token(root, "etl", *WORKS)
    only = [{"verbs": ["transact"], "resource": "cluster"}]
    limited = Asker(client, root("POST", "/v1/admin/tokens", {"name": "etl", "only": only}).json()["token"])
    begun = limited("POST", TRANSACTIONS, {}).json()
    assert limited("POST", f"{TRANSACTIONS}/{begun['id']}/commit").status == 403
    assert etl("POST", f"{TRANSACTIONS}/{begun['id']}/commit").status == 200


def test_where_rights_are_not_enforced_yet_everybody_acts_and_it_is_noted(connect: Callable[[Settings], Client]):
    client = connect(replace(ASKED, auth=replace(ASKED.auth, enforce=False)))
    root = Asker(client, "b" * 40)
    etl, mallory = (with_token(root, name, *WORKS) for name in ("etl", "mallory"))
    begun = etl("POST", TRANSACTIONS, {}).json()
    named = {"session": "billing", "run": "monday", "version": 7}
    assert root("POST", "/v1/admin/grants", {
        "subject": "token:mallory", "verbs": ["transact"], "resource": "session:billing",
    }).status == 200  # fmt: skip
    joined = etl("POST", TRANSACTIONS, named).json()
    assert mallory("GET", f"{TRANSACTIONS}/{joined['id']}").status == 200
    assert [each for each in client.services.refusals.newest(10) if each.principal == "token:mallory"] == []
    assert mallory("POST", f"{TRANSACTIONS}/{begun['id']}/commit").json()["state"] == "COMMITTED"
    noted = [each.resource for each in client.services.refusals.newest(10) if each.principal == "token:mallory"]
    assert noted == ["transactions:token:etl"]
