"""Rights at every call, generated from the table of operations: who lacks one is told so, learns nothing else, and changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from basalt.access.needs import PUBLIC, SELF, needs
from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import ANONYMOUS, Principal, internal, parse_principal
from basalt.access.quotas import QuotaLimits, Quotas
from basalt.access.resources import VERBS
from basalt.api.bodies.messages import PublishRequest, Work, WorkAcknowledge, WorkMarker, WorkPublish
from basalt.api.codecs import avro
from basalt.errors import ForbiddenError
from basalt.http.app import ANYBODY, OPERATIONS, build_app
from basalt.http.asgi.front import Front
from basalt.http.asgi.requests import BodyBudget, Head
from basalt.http.routes.route_table import Operation, Request, RouteTable
from basalt.http.routing import Routes
from basalt.settings import Settings
from basalt.settings.tree import TransactionSettings
from basalt_engine.table import TABLE_NAMES, Row
from tests.control.http.conftest import AVRO, Client, Reply

ETL = parse_principal("token:etl")
OWN = "transactions:anonymous"
NONSENSE = "?nonsense=1"  # no call has such a parameter: who may make the call is told that, and nothing is done
DATA = {"read", "write", "manage"}
IMPLYING = {
    "topic": DATA,
    "group": DATA,
    "table": DATA,
    "session": {"transact", "manage"},
    "transactions": {"transact"},
}


class World(NamedTuple):
    """A server, and names of things that it has; or had it, if nobody had made any."""

    client: Client
    names: dict[str, str]

    def ask(self, caller: Caller, method: str, path: str, query: str = "", body: Any = b"") -> Reply:
        self.client.app = build_app(self.client.services, caller)
        raw = body if isinstance(body, bytes) else None
        return self.client.call(
            method, path.format_map(self.names) + query, body, AVRO if raw else None, Basalt_Request_Id="r"
        )

    def stored(self) -> dict[str, list[Row]]:
        store = self.client.services.store
        return {name: list(store.table(name).scan(b"", None)) for name in TABLE_NAMES}


def made(client: Client) -> World:
    """Everything that a path can name."""
    path = client.topic()
    client.topic("other")
    client.topic("dead")
    client.publish(path, "a", "b", "c")
    message = client.poll(path).json()[0]["id"].encode("latin-1").hex()
    for call in (
        ("PUT", "/v1/namespaces/shop/tables/accounts"),
        ("PUT", "/v1/namespaces/shop/tables/others"),
        ("PUT", f"{path}/groups/billing"),
        ("PUT", f"{path}/groups/others"),
        ("POST", f"{path}/producers/p", {"run": "r"}),
        ("POST", "/v1/transactions/sessions/s", {"run": "r"}),
        ("POST", "/v1/transactions/sessions/others", {"run": "r"}),
    ):
        assert client.call(*call).status == 200, call
    begun = client.begin()
    puts = [{"row": "cg==", "column": "Yw==", "value": ""}]
    written = client.call(
        "POST", "/v1/namespaces/shop/tables/accounts/write", {"transaction": begun["id"], "puts": puts}
    )
    assert written.status == 200, written.body
    client.publish(path, "d", pointer=begun["writePointer"])
    claim = int(client.call("POST", f"{path}/groups/billing/fetch?limit=1").header("basalt-claim"))
    held = client.call("POST", f"{path}/groups/billing/acknowledge", {"claims": [claim], "transaction": begun["id"]})
    assert held.status == 200, held.body
    client.run(client.app.sampler.look_at_groups(client.clock.now_ms()))
    client.services.series.topics.observe(client.clock.now_ms(), {"shop:orders": (1, 1)}, ["shop:orders"])
    pointer = str(begun["writePointer"])  # which names the transaction too, and in any installation
    return World(
        client,
        {
            "namespace": "shop", "topic": "orders", "group": "billing", "member": "m", "table": "accounts", "message": message,
            "transaction": pointer, "pointer": pointer, "producer": "p", "session": "s", "region": "abc", "backup": "b1",
            "job": "stats", "token": "0123456789abcdef", "grant": "0123456789abcdef", "role": "readers",
            "subject": "role:readers", "server": "m1",
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def worlds(open_client: Callable[[Settings, bool], Client]) -> tuple[World, World]:
    """A server that has everything, and one that has nothing, asked for the same names."""
    full = made(open_client(Settings(), True))
    return full, World(open_client(Settings(), True), full.names)


@pytest.fixture
def world(client: Client) -> World:
    return made(client)


def granted(verbs: set[str], principal: Principal = ETL) -> Caller:
    """Who has these verbs on everything."""
    return Caller(principal, Policy([parse_grant(str(principal), verbs, "*")]))


def elsewhere() -> Caller:
    """Who has every right on things of other names."""
    resources = [
        "namespace:shop2",
        "topic:shop:orders2",
        "group:shop:orders:billing2",
        "table:shop:accounts2",
        "session:s2",
    ]
    verbs = {"session": ["manage", "transact"]}
    data = ["read", "write", "manage", "inspect"]
    grants = [parse_grant(str(ETL), verbs.get(each.partition(":")[0], data), each) for each in resources]
    return Caller(ETL, Policy([*grants, parse_grant(str(ETL), ["transact"], "transactions:token:other")]))


def callers() -> Iterator[tuple[str, Caller, Callable[[str, str], bool]]]:
    """Who asks, and whether they have a verb on the resources of a kind."""

    def having(verbs: set[str]) -> Callable[[str, str], bool]:
        return lambda verb, kind: verb in verbs or (verb == "observe" and bool(verbs & IMPLYING.get(kind, set())))

    yield "nobody", Caller(ETL, Policy()), lambda verb, kind: False
    yield "anonymous", Caller(ANONYMOUS, Policy()), lambda verb, kind: kind == "transactions"  # which are its own
    yield "elsewhere", elsewhere(), lambda verb, kind: False
    for verb in VERBS:
        yield f"{verb} alone", granted({verb}), having({verb})
        yield f"all but {verb}", granted(set(VERBS) - {verb}), having(set(VERBS) - {verb})
    yield "superuser", Caller(ETL, Policy(superusers=[str(ETL)])), lambda verb, kind: True
    yield "internal", Caller(internal("console"), Policy()), lambda verb, kind: True


def called(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


@pytest.mark.parametrize("operation", OPERATIONS, ids=called)
def test_who_lacks_a_right_is_refused_before_anything_of_the_request_is_looked_at(operation: Operation, worlds):
    full, empty = worlds
    before = full.stored(), empty.stored()
    for name, caller, has in callers():
        needed = operation.needs
        is_allowed = all(has(right.verb, right.kind) for right in needed.rights)
        may_absent = is_allowed
        if needed.on_transaction is not None:
            is_allowed = has(needed.on_transaction, "transactions")
            may_absent = is_allowed and name != "anonymous"  # whose own an absent one is not
        for method in (operation.method, *(["HEAD"] if operation.method == "GET" else [])):
            there, absent = (each.ask(caller, method, operation.path, NONSENSE, b"{") for each in (full, empty))
            assert there.status == (400 if is_allowed else 403), (name, method)
            assert absent.status == (400 if may_absent else 403), (name, method)
            if not is_allowed:
                assert there == absent, name
        if not is_allowed:
            continue
        assert there.header("content-type") == "application/problem+json"
    assert (full.stored(), empty.stored()) == before


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each.needs.shown], ids=called)
def test_a_refusal_names_who_which_verb_and_what(operation: Operation, worlds):
    full, _ = worlds
    reply = full.ask(Caller(ETL, Policy()), operation.method, operation.path)
    assert (reply.status, reply.code) == (403, "forbidden")
    right = operation.needs.shown[0].replace("transaction:", "transaction ").format_map(full.names)
    assert reply.json()["detail"] == f"token:etl may not {right}"


def test_the_calls_that_take_no_right_are_these():
    assert {called(each) for each in OPERATIONS if each.needs.is_public} == {
        "GET /livez", "GET /readyz", "GET /v1", "GET /openapi.json",
    }  # fmt: skip
    assert {called(each) for each in OPERATIONS if not each.needs.is_public and not each.needs.shown} == {
        "GET /v1/admin/groups",
        "GET /v1/admin/namespaces",
        "GET /v1/admin/pipelines",
        "GET /v1/admin/series",
        "GET /v1/admin/tables",
        "GET /v1/admin/topics",
        "GET /v1/namespaces/{namespace}/tables",
        "GET /v1/namespaces/{namespace}/topics",
        "GET /v1/transactions",
        "GET /v1/transactions/sessions",
        "GET /v1/auth/whoami",
        "POST /v1/auth/check",
        "POST /v1/auth/logins",
        "DELETE /v1/auth/logins",
        "GET /v1/admin/tokens",
        "GET /v1/admin/tokens/{token}",
        "DELETE /v1/admin/tokens/{token}",
        "POST /v1/admin/tokens/{token}/rotate",
        "GET /v1/admin/grants",
        "POST /v1/admin/grants",
        "DELETE /v1/admin/grants/{grant}",
        "GET /v1/admin/roles",
        "GET /v1/admin/quotas/{subject}",
        "POST /v1/transactions",
    }


def test_a_call_that_says_nothing_of_its_rights_cannot_be_made():
    with pytest.raises(TypeError, match="needs"):
        RouteTable("some")("GET", "/v1/some")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="needs"):
        Operation(method="GET", path="/v1/some", handler=made, tag="some")  # type: ignore[call-arg]
    with pytest.raises(AssertionError, match="no such names"):
        RouteTable("some")("GET", "/v1/some/{topic}", needs("read", "topic:{namespace}:{topic}"))(made)


def test_every_path_tells_its_methods_to_everybody(worlds):
    full, _ = worlds
    for operation in OPERATIONS:
        assert full.ask(Caller(ETL, Policy()), "OPTIONS", operation.path).status == 204


# What a query or a body names.


LAG = "lag_messages:shop:orders/billing"


class Example(NamedTuple):
    """A call with something in it that takes a right; `of_state`: what it names is named by what was done before."""

    call: str
    query: str
    body: Any
    rights: tuple[str, ...]
    of_state: bool = False


ORDERS = {"namespace": "shop", "topic": "orders"}
OTHER = {"namespace": "shop", "topic": "other"}
TOPIC, GROUP, TABLE = (
    "/v1/namespaces/{namespace}/topics/{topic}",
    "/groups/{group}",
    "/v1/namespaces/{namespace}/tables/{table}",
)
TRANSACTIONS, TRANSACTION = "/v1/transactions", "/v1/transactions/{transaction}"
PUBLISHED = {"transactionWritePointer": "{pointer}"}
PLACE = {"startTimestamp": 1, "startSequenceId": 0, "endTimestamp": 1, "endSequenceId": 0}
RECORDS = {"records": [{"payload": "a"}], "transactionWritePointer": "{pointer}"}
PUTS = {"transaction": "{transaction}", "puts": [{"row": "cg==", "column": "Yw==", "value": ""}]}
WORK = {
    "publish": [{**OTHER, "messages": ["a"]}],
    "markers": [{**ORDERS, "task": "t", "taskCount": 1, "kind": "end_of_stream"}],
    "acknowledge": [{**ORDERS, "group": "others", "upTo": "\0" * 19 + "\1"}],
}
WORK_AVRO = avro.encode_work(
    Work(
        [WorkPublish("shop", "other", [b"a"])],
        [WorkMarker("shop", "orders", "t", 1, "end_of_stream")],
        acknowledge=[WorkAcknowledge("shop", "orders", "others", up_to=b"\0" * 19 + b"\1")],
    )
)
OF_WORK = (
    "write topic:shop:other",
    "write topic:shop:orders",
    "read group:shop:orders:others",
    "read topic:shop:orders",
)
DONE_BEFORE = (
    "write topic:shop:orders", "write table:shop:accounts", "read group:shop:orders:billing", "read topic:shop:orders",
)  # fmt: skip
UNDER = (f"transact {OWN}",)
DEAD = ("manage topic:shop:dead", "write topic:shop:dead")
EXAMPLES = (
    Example("GET /v1/admin/series", "?names=open", b"", ("observe cluster",)),
    Example("GET /v1/admin/series", f"?names={LAG}", b"", ("observe group:shop:orders:billing",)),
    Example("GET /v1/admin/series", "?names=published_per_s:shop:orders", b"", ("observe topic:shop:orders",)),
    Example(f"POST {TOPIC}/publish", "", {**PUBLISHED, "messages": ["a"]}, UNDER),
    Example(f"POST {TOPIC}/store", "", {**PUBLISHED, "messages": ["a"]}, UNDER),
    Example(f"POST {TOPIC}/rollback", "", {**PUBLISHED, **PLACE}, UNDER),
    Example(f"POST {TOPIC}/records", "", RECORDS, UNDER),
    Example(f"POST {TOPIC}/records/store", "", RECORDS, UNDER),
    Example(f"POST {TOPIC}/poll", "?transaction={transaction}", {}, UNDER),
    Example(f"GET {TOPIC}/records", "?transaction={transaction}", b"", UNDER),
    Example(f"POST {TABLE}/read", "", {"rows": ["cg=="], "transaction": "{transaction}"}, UNDER),
    Example(f"POST {TABLE}/scan", "", {"transaction": "{transaction}"}, UNDER),
    Example(f"POST {TABLE}/write", "", PUTS, UNDER),
    Example(f"POST {TRANSACTIONS}", "", {}, ("transact cluster",)),
    Example(f"POST {TRANSACTIONS}", "", {"session": "s", "sessionEpoch": 1}, ("transact session:s",)),
    Example(f"POST {TRANSACTIONS}", "", {"session": "s", "run": "r", "version": 1}, ("transact session:s",)),
    Example(f"POST {TRANSACTIONS}", "", {"work": WORK}, ("transact cluster", *OF_WORK)),
    Example(f"POST {TRANSACTIONS}", "", WORK_AVRO, ("transact cluster", *OF_WORK)),
    Example(f"POST {TRANSACTION}/commit", "", WORK, OF_WORK),
    Example(f"POST {TRANSACTION}/commit", "", WORK_AVRO, OF_WORK),
    Example(f"POST {TRANSACTION}/commit", "", b"", DONE_BEFORE, of_state=True),
    Example(f"POST {TRANSACTION}/participants", "", {"kind": "topic", **OTHER}, ("write topic:shop:other",)),
    Example(f"PUT {TOPIC}{GROUP}", "", {"deadLetterTopic": "dead"}, DEAD),
    Example(f"PUT {TOPIC}{GROUP}/options", "", {"deadLetterTopic": "shop/dead"}, DEAD),
    Example(f"POST {TOPIC}{GROUP}/fetch", "?transaction={transaction}", b"", UNDER),
    Example(f"POST {TOPIC}{GROUP}/fetch", "", WORK, ("transact cluster", *OF_WORK)),
    Example(f"POST {TOPIC}{GROUP}/fetch", "", WORK_AVRO, ("transact cluster", *OF_WORK)),
    Example(f"POST {TOPIC}{GROUP}/fetch", "", {"acknowledge": WORK["acknowledge"]}, OF_WORK[2:]),
    Example("POST /v1/auth/check", "", {"verb": "observe", "resource": "cluster", "principal": "token:a"}, ("inspect cluster",)),
    Example("POST /v1/admin/grants", "", {"subject": "token:a", "verbs": ["grant"], "resource": "*"}, ("grant *",)),
    Example("GET /v1/admin/quotas/{subject}", "", b"", ("inspect cluster",)),
    Example(f"POST {TOPIC}{GROUP}/acknowledge", "", {"claims": [1], "transaction": "{transaction}"}, UNDER),
)  # fmt: skip


# Where transactions are managed elsewhere nobody knows whose a pointer is, and the right is one on the topic.
UNDER_OTHERS = ("transact topic:shop:orders",)
UNDER_OTHERS_POINTERS = tuple(
    each._replace(rights=UNDER_OTHERS)
    for each in EXAMPLES
    if each.rights == UNDER and each.body and "transactionWritePointer" in each.body
)


class Recording(Policy):
    """Grants everything but a few rights, and notes what it was asked."""

    def __init__(self, *denied: str) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.denied = denied

    def allows(self, principal: Principal, verb: str, resource: object) -> bool:
        self.asked.append(f"{verb} {resource}")
        return self.asked[-1] not in self.denied


def operation_of(example: Example) -> Operation:
    return next(each for each in OPERATIONS if called(each) == example.call)


def declared(operation: Operation, names: dict[str, str]) -> list[str]:
    on_transaction = operation.needs.on_transaction
    own = [] if on_transaction is None else [f"{on_transaction} {OWN}"]
    return [*own, *(str(right).format_map(names) for right in operation.needs.rights)]


def filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: filled(each, names) for key, each in value.items()}
    if value == "{pointer}":
        return int(names["pointer"])
    return value.format_map(names) if isinstance(value, str) and value.startswith("{") else value


def asked_by(example: Example, world: World, policy: Policy) -> Reply:
    method, path = example.call.split(" ")
    query = example.query.format_map(world.names)
    return world.ask(Caller(ETL, policy), method, path, query, filled(example.body, world.names))


def test_every_right_that_a_handler_has_to_ask_for_has_an_example():
    shown: dict[str, set[str]] = {}
    for example in (*EXAMPLES, *UNDER_OTHERS_POINTERS):
        kinds = {re.sub(r"^(\w+) (\w+).*", r"\1 \2", right) for right in example.rights}
        shown.setdefault(example.call, set()).update(kinds)
    assert shown == {called(each): set(each.needs.in_body) for each in OPERATIONS if each.needs.in_body}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: f"{each.call} {each.rights[0]}")
def test_a_handler_asks_for_each_right_that_is_declared_for_it(example: Example, world: World):
    operation = operation_of(example)
    policy = Recording()
    reply = asked_by(example, world, policy)
    assert reply.status == 200 or reply.code in ("claim_lost", "conflict", "group_exists"), reply.body
    by_state = DONE_BEFORE if operation.path == f"{TRANSACTION}/commit" else ()
    expected = {*declared(operation, world.names), *example.rights}
    assert expected <= set(policy.asked) <= expected | set(by_state)


def judged_by_a_handler() -> Iterator[Any]:
    """Each example with each of its rights that is not one of the path, which is judged before."""
    for example in EXAMPLES:
        of_path = declared(
            operation_of(example), {"namespace": "shop", "topic": "orders", "group": "billing", "table": "accounts"}
        )
        yield from (
            pytest.param(example, right, id=f"{example.call} {right}")
            for right in example.rights
            if right not in of_path
        )


@pytest.mark.parametrize(("example", "right"), list(judged_by_a_handler()))
def test_who_lacks_a_right_on_what_a_body_names_is_refused_whether_it_is_there_or_not(
    example: Example, right: str, world: World, connect: Callable[[Settings], Client]
):
    empty = World(connect(Settings()), world.names)
    before = world.stored(), empty.stored()
    there = asked_by(example, world, Recording(right))
    assert (there.status, there.code) == (403, "forbidden"), there.body
    # The refusal of a transaction does not tell whose it is, nor whether there is one.
    shown = f"transact transaction {world.names['pointer']}" if right.endswith(OWN) else right
    assert there.json()["detail"] == f"token:etl may not {shown}"
    if not example.of_state:
        unknown = ("transact transactions:*",) if right.endswith(OWN) else ()
        assert asked_by(example, empty, Recording(right, *unknown)) == there
    assert (world.stored(), empty.stored()) == before


@pytest.mark.parametrize("example", UNDER_OTHERS_POINTERS, ids=lambda each: each.call)
def test_under_the_pointers_of_another_manager_one_writes_with_a_right_on_the_topic(
    example: Example, connect: Callable[[Settings], Client]
):
    client = connect(Settings(transactions=TransactionSettings(manager="external")))
    names = {"namespace": "shop", "topic": "orders", "pointer": "1700000000000000000"}
    world, policy = World(client, names), Recording(*UNDER_OTHERS)
    absent = asked_by(example, world, policy)
    world.ask(ANYBODY, "PUT", TOPIC)
    before = world.stored()
    assert asked_by(example, world, policy) == absent
    assert (absent.status, absent.json()["detail"]) == (403, "token:etl may not transact topic:shop:orders")
    assert world.stored() == before
    assert asked_by(example, world, Recording(f"transact {OWN}", "transact transactions:*")).status == 200


def test_a_commit_that_is_refused_leaves_the_transaction_open(world: World):
    example = next(each for each in EXAMPLES if each.of_state)
    assert asked_by(example, world, Recording("write table:shop:accounts")).status == 403
    shown = world.ask(ANYBODY, "GET", TRANSACTION)
    assert shown.json()["state"] == "OPEN"
    assert asked_by(example, world, Recording()).json()["state"] == "COMMITTED"


# Lists.


LISTS = {
    "GET /v1/admin/series": (
        "observe group:shop:orders:billing", lambda found: [each["name"] for each in found["figures"]],
        [LAG, LAG.replace("messages", "seconds")],
    ),
    "GET /v1/namespaces/{namespace}/topics": ("observe topic:shop:orders", lambda found: found, ["orders"]),
    "GET /v1/namespaces/{namespace}/tables": ("observe table:shop:accounts", lambda found: found, ["accounts"]),
    "GET /v1/admin/namespaces": ("observe topic:shop:orders", lambda found: found, ["shop"]),
    "GET /v1/admin/tables": (
        "observe table:shop:accounts", lambda found: [each["name"] for each in found["tables"]], ["accounts"],
    ),
    "GET /v1/admin/groups": (
        "observe group:shop:orders:billing", lambda found: [each["name"] for each in found["groups"]], ["billing"],
    ),
    "GET /v1/admin/pipelines": (
        "observe topic:shop:orders", lambda found: [each["topic"] for each in found["topics"]], ["orders"],
    ),
    "GET /v1/admin/topics": (
        "observe topic:shop:orders", lambda found: [each["name"] for each in found["topics"]], ["orders"],
    ),
    "GET /v1/transactions/sessions": (
        "observe session:s", lambda found: [each["name"] for each in found["sessions"]], ["s"],
    ),
    "GET /v1/transactions": (f"observe {OWN}", lambda found: [each["state"] for each in found["transactions"]], ["OPEN"]),
    f"GET {TOPIC}/groups": (
        "observe group:shop:orders:billing", lambda found: [each["name"] for each in found["groups"]], ["billing"],
    ),
}  # fmt: skip


def test_every_list_that_is_declared_to_leave_things_out_is_tried():
    shown = {call: re.sub(r":.*", "", right) for call, (right, _, _) in LISTS.items()}
    assert shown == {called(each): each.needs.filters for each in OPERATIONS if each.needs.filters}


@pytest.mark.parametrize("call", LISTS)
def test_a_list_leaves_out_what_one_may_not_observe(call: str, world: World):
    world.client.topic("orders", "market")
    for topic in ("shop/topics/orders", "market/topics/orders"):
        marker = {"task": "t", "kind": "watermark", "eventTimeMs": 1}
        assert world.client.call("POST", f"/v1/namespaces/{topic}/markers", marker).status == 200
    method, path = call.split(" ")
    right, names_of, expected = LISTS[call]
    verb, resource = right.split(" ")
    around = [parse_grant(str(ETL), ["observe"], "topic:shop:orders")] if path.endswith("/groups") else []
    seeing = Policy([parse_grant(str(ETL), [verb], resource), *around])
    assert names_of(world.ask(Caller(ETL, seeing), method, path).json()) == expected
    assert names_of(world.ask(Caller(ETL, Policy(around)), method, path).json()) == []
    everything = names_of(world.ask(ANYBODY, method, path).json())
    assert set(everything) >= set(expected)
    assert len(everything) > len(expected) or call == "GET /v1/transactions"


def test_a_page_of_groups_neither_shows_nor_names_a_hidden_one(world: World):
    seeing = Policy(
        [
            parse_grant(str(ETL), ["observe"], resource)
            for resource in ("topic:shop:orders", "group:shop:orders:billing")
        ]
    )
    for query in ("?limit=1", "?figures=true", "?limit=1&figures=true"):
        page = world.ask(Caller(ETL, seeing), "GET", f"{TOPIC}/groups", query).json()
        assert ([each["name"] for each in page["groups"]], page["next"]) == (["billing"], None)


def test_who_may_not_observe_the_cluster_is_told_the_names_of_its_parts_alone(world: World):
    shown = world.ask(Caller(ETL, Policy()), "GET", "/readyz").json()
    assert {part["detail"] for part in shown["parts"]} == {""}
    assert "" not in {part["detail"] for part in world.ask(granted({"observe"}), "GET", "/readyz").json()["parts"]}


# Heads that are known.


_REQUEST = PublishRequest(None, [b"quick"])


class Prompt:
    """The way to a client whose request is here as a whole."""

    client = "192.0.2.7"
    internal, is_admitted, id_is_clients, scheme, certificate, end_point_hash = False, False, True, "http", None, None

    def __init__(self) -> None:
        self.statuses: list[int] = []

    async def receive(self) -> tuple[bytes, bool]:
        return avro.encode_publish_request(_REQUEST), False

    async def send(self, request: Request, status: int, headers: Any, parts: Any) -> None:
        self.send_now(request, status, headers, list(parts))

    def send_now(self, request: Request, status: int, headers: Any, parts: Any) -> None:
        self.statuses.append(status)


def asking(caller: Caller, head: Head) -> Request:
    return Request(None, None, None, BodyBudget(1), caller, head, Prompt(), 0.0, None, None)


def test_a_head_that_is_known_is_judged_again_for_another_caller():
    routes, path = Routes(OPERATIONS, Front(), Quotas(QuotaLimits())), "/v1/namespaces/shop/topics/orders/publish"
    head = Head("POST", path, path.encode(), b"", {b"host": b"localhost"})
    writer, reader = granted({"write"}), granted({"read"})
    found = routes.find(asking(writer, head))
    for _ in range(2):
        with pytest.raises(ForbiddenError):
            routes.find(asking(reader, head))
    assert routes.find(asking(writer, head)) is found
    revoked = Caller(writer.principal, Policy())
    with pytest.raises(ForbiddenError):
        routes.find(asking(revoked, head))


def test_a_publish_that_is_answered_without_a_coroutine_is_judged_each_time(world: World):
    path = TOPIC.format_map(world.names)
    head = Head(
        "POST",
        f"{path}/publish",
        f"{path}/publish".encode(),
        b"",
        {b"host": b"localhost", b"content-type": AVRO.encode()},
    )
    client, body = world.client, avro.encode_publish_request(_REQUEST)

    async def story() -> list[int]:
        app, exchange = build_app(client.services, granted({"write"})), Prompt()
        assert app.begin_whole(head, exchange, None, body) is None
        while not exchange.statuses:
            await asyncio.sleep(0)
        app._caller = Caller(ETL, Policy())  # as when the right was taken back
        answering = app.begin_whole(head, exchange, None, body)
        assert answering is not None
        await answering
        return exchange.statuses

    assert client.run(story()) == [200, 403]
    client.app = build_app(client.services)
    assert client.payloads(path, "?isolation=uncommitted").count("quick") == 1


def test_a_one_shot_that_is_answered_without_a_coroutine_is_judged(world: World):
    head = Head(
        "POST", TRANSACTIONS, TRANSACTIONS.encode(), b"", {b"host": b"localhost", b"content-type": AVRO.encode()}
    )
    work = avro.encode_work(Work([WorkPublish("shop", "other", [b"quick"])]))
    client = world.client

    client.publish(
        "/v1/namespaces/shop/topics/other", "a"
    )  # so that the topic is in memory, and nothing must be waited for

    async def story(caller: Caller) -> tuple[int, bool]:
        app, exchange = build_app(client.services, caller), Prompt()
        exchange.receive = lambda: asyncio.sleep(0, (work, False))
        answering = app.begin_whole(head, exchange, None, work)
        if answering is not None:
            await answering
        while not exchange.statuses:
            await asyncio.sleep(0)
        return exchange.statuses[0], answering is None

    before = world.stored()
    assert client.run(story(granted({"transact"}))) == (403, False)
    assert client.run(story(granted({"write"}))) == (403, False)
    assert world.stored() == before
    assert client.run(story(granted({"write", "transact"}))) == (200, True)
    assert world.stored() != before


def test_public_calls_and_those_on_oneself_ask_no_policy():
    policy = Recording()
    PUBLIC.judge(Caller(ETL, policy), {})
    SELF.judge(Caller(ETL, policy), {})
    assert policy.asked == []
