"""As whom clients of Tephra are judged, for they cannot prove who they are: `thrift.principal`, and what that one is granted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from thriftpy2.thrift import TApplicationException

from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import parse_principal
from basalt.api.bodies.messages import Work
from basalt.catalog.topics import topic_name
from basalt.http.app import OPERATIONS, Frame
from basalt.http.asgi.front import Front
from basalt.http.routing import Routes
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from basalt.settings.tree import ThriftSettings
from basalt.thrift.calls import BAD_ARGUMENT
from basalt.thrift.wire import METHODS, types
from basalt.transactions.rules.transaction import State
from tests.control.http.conftest import Client, Reply
from tests.control.thrift.conftest import Serving

FACE = "thrift:default"
ETL = parse_principal("token:etl")
ORDERS = topic_name("shop", "orders")
PUBLISH = "/v1/namespaces/shop/topics/orders/publish"


PROVING = AuthSettings(kinds=("token",), bootstrap_token="x" * 40)


def judge_by(serving: Serving, grants: list[Any]) -> None:
    """Have these grants in force, and no others."""
    directory = serving.services.directory
    directory.entries = replace(directory.entries, policy=Policy(grants))


def granted(*rights: str, to: str = FACE) -> list[Any]:
    return [parse_grant(to, [verb], resource) for verb, _, resource in (right.partition(" ") for right in rights)]


@pytest.fixture
def serving() -> Iterator[Serving]:
    with Serving(Settings(auth=PROVING, thrift=ThriftSettings(principal=FACE))) as started:
        judge_by(started, granted("transact cluster"))
        yield started


def refused(call: Callable[..., Any], *arguments: Any) -> str:
    """What a refused call says: by an exception of its own where it has one, which no client tries again."""
    with pytest.raises((TApplicationException, types.TGenericException)) as caught:
        call(*arguments)
    if isinstance(caught.value, TApplicationException):
        assert caught.value.type == TApplicationException.INTERNAL_ERROR
    else:
        assert caught.value.originalExceptionClass == BAD_ARGUMENT
    return str(caught.value.message)


def over_http(serving: Serving, caller: Caller, method: str, target: str, body: object = b"") -> Reply:
    async def ask(services: Any) -> Reply:
        client = Client.__new__(Client)
        client.app = Frame(services, Routes(OPERATIONS, Front.of(services.settings), services.quotas), caller)
        return await client.ask(method, target, body)

    reply: Reply = serving.do(ask)
    return reply


def test_what_begins_there_belongs_to_its_principal(serving: Serving):
    with serving.client() as client:
        begun = [client.startShort(), client.startShortClientId("app"), client.startLong()]
    state = serving.services.transactions.state
    assert {state.get(tx.id).principal for tx in begun} == {FACE}


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "startShort": lambda client, tx: client.startShort(),
    "startShortTimeout": lambda client, tx: client.startShortTimeout(10),
    "startShortClientId": lambda client, tx: client.startShortClientId("app"),
    "startShortWithTimeout": lambda client, tx: client.startShortWithTimeout(10),
    "startShortWithClientIdAndTimeOut": lambda client, tx: client.startShortWithClientIdAndTimeOut("app", 10),
    "startLong": lambda client, tx: client.startLong(),
    "startLongClientId": lambda client, tx: client.startLongClientId("app"),
    "canCommitTx": lambda client, tx: client.canCommitTx(tx, {b"row"}),
    "canCommitOrThrow": lambda client, tx: client.canCommitOrThrow(tx.id, {b"row"}),
    "checkpoint": lambda client, tx: client.checkpoint(tx),
    "commitTx": lambda client, tx: client.commitTx(tx),
    "commitOrThrow": lambda client, tx: client.commitOrThrow(tx.id, tx.writePointer),
    "abortTx": lambda client, tx: client.abortTx(tx),
    "invalidateTx": lambda client, tx: client.invalidateTx(tx.id),
    "invalidTxSize": lambda client, tx: client.invalidTxSize(),
    "status": lambda client, tx: client.status(),
    "getSnapshot": lambda client, tx: client.getSnapshot(),
    "truncateInvalidTx": lambda client, tx: client.truncateInvalidTx({tx.id}),
    "truncateInvalidTxBefore": lambda client, tx: client.truncateInvalidTxBefore(1),
    "pruneNow": lambda client, tx: client.pruneNow(),
    "resetState": lambda client, tx: client.resetState(),
}
NEEDS = {
    "status": None, "getSnapshot": "observe", "truncateInvalidTx": "operate", "truncateInvalidTxBefore": "operate",
    "pruneNow": "operate", "resetState": "operate",
}  # fmt: skip
OF_A_TRANSACTION = [
    "canCommitTx", "canCommitOrThrow", "checkpoint", "commitTx", "commitOrThrow", "abortTx", "invalidateTx",
]  # fmt: skip


def test_every_method_is_tried():
    assert CALLS.keys() == METHODS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_each_call_takes_its_right_on_the_cluster(name: str, serving: Serving):
    with serving.client() as client:
        tx = client.startShort()
        verb, others = NEEDS.get(name, "transact"), {"transact", "operate", "observe", "inspect"}
        judge_by(serving, granted(*(f"{other} cluster" for other in others - {verb})))
        if verb is None:
            assert CALLS[name](client, tx) == "OK"
            return
        assert f"{FACE} may not {verb} cluster" in refused(CALLS[name], client, tx)
        judge_by(serving, granted(f"{verb} cluster"))
        if name == "resetState":
            assert "transactions.allow_reset" in refused(CALLS[name], client, tx)
        else:
            CALLS[name](client, tx)


@pytest.mark.parametrize("name", OF_A_TRANSACTION)
def test_anothers_transaction_and_one_that_never_began_are_refused_alike(name: str, serving: Serving):
    theirs = over_http(
        serving, Caller(ETL, Policy(granted("transact cluster", to=str(ETL)))), "POST", "/v1/transactions", {}
    ).json()
    with serving.client() as client:
        tx = client.startShort()
        told = []
        for pointer in (theirs["writePointer"], tx.id + 7):
            stranger = types.TTransaction(**{**tx.__dict__, "id": pointer, "writePointer": pointer})
            told.append(refused(CALLS[name], client, stranger).replace(str(pointer), "ID"))
        assert told[0] == told[1]
        assert f"{FACE} may not transact transaction ID" in told[0]
        assert "etl" not in told[0]
        CALLS[name](client, tx)
    assert serving.services.transactions.state.get(theirs["writePointer"]).state is State.OPEN


@pytest.mark.parametrize("name", OF_A_TRANSACTION)
def test_whose_it_is_is_asked_of_the_log_when_that_has_to_be_read_first(name: str, serving: Serving):
    with serving.client() as client:
        theirs = serving.do(lambda services: services.transactions.begin(principal=str(ETL)))
        tx = client.startShort()
        CALLS["canCommitTx"](client, tx)
        stranger = types.TTransaction(**{**tx.__dict__, "id": theirs.id, "writePointer": theirs.id})

        async def lose(services: Any) -> None:
            services.transactions.manager.lost()

        serving.do(lose)
        assert "may not transact" in refused(CALLS[name], client, stranger)


def test_who_publishes_over_http_under_such_a_pointer_may_transact_on_the_faces_transactions(serving: Serving):
    serving.do(lambda services: services.topics.create(ORDERS, {}))
    with serving.client() as client:
        tx = client.startShort()
        body = {"transactionWritePointer": tx.writePointer, "messages": ["paid"]}
        writing = granted("write topic:shop:orders", "transact cluster", to=str(ETL))
        assert over_http(serving, Caller(ETL, Policy(writing)), "POST", PUBLISH, body).status == 403
        allowed = Policy([*writing, *granted("transact transactions:thrift:*", to=str(ETL))])
        assert over_http(serving, Caller(ETL, allowed), "POST", PUBLISH, body).status == 200
        # Its commit makes the message true, so the face's principal writes it, too.
        client.canCommitOrThrow(tx.id, {b"row"})
        assert "may not write topic:shop:orders" in refused(client.commitOrThrow, tx.id, tx.writePointer)
        assert serving.services.transactions.state.get(tx.id).state is State.OPEN
        judge_by(serving, granted("transact cluster", "write topic:shop:orders"))
        client.commitOrThrow(tx.id, tx.writePointer)
    assert serving.services.transactions.state.outcome(tx.id).state is State.COMMITTED


def test_a_conflict_names_the_winner_only_to_who_may_look_at_it(serving: Serving):
    with serving.client() as client:
        tx = client.startShort()

        async def win(services: Any) -> None:
            winner = await services.transactions.begin(owner="payroll", principal=str(ETL))
            await services.transactions.set_changes(winner.id, [b"salary:alice"])
            await services.transactions.commit(winner.id, Work())

        serving.do(win)
        for more, shown in (((), ("", "")), (("observe transactions:token:etl",), ("salary:alice", "payroll"))):
            judge_by(serving, granted("transact cluster", *more))
            with pytest.raises(types.TTransactionConflictException) as caught:
                client.canCommitOrThrow(tx.id, {b"salary:alice"})
            assert (caught.value.conflictingKey, caught.value.conflictingClient) == shown


def test_what_is_in_the_way_of_a_truncation_is_named_only_to_who_may_look_at_it(serving: Serving):
    serving.do(lambda services: services.transactions.begin(owner="payroll", principal=str(ETL)))
    later_s = serving.clock.now_ms() + 60_000
    with serving.client() as client:
        for more, is_named in (((), False), (("observe transactions:token:etl",), True)):
            judge_by(serving, granted("operate cluster", *more))
            with pytest.raises(types.TInvalidTruncateTimeException) as caught:
                client.truncateInvalidTxBefore(later_s)
            assert ("payroll" in caught.value.message) is is_named


def test_a_face_that_is_full_names_the_oldest_only_to_who_may_look_at_it(serving: Serving):
    state = serving.services.transactions.state
    state.limits = replace(state.limits, in_progress_max=1)
    with serving.client() as client:
        serving.do(lambda services: services.transactions.begin(owner="payroll", principal=str(ETL)))
        for more, is_named in (((), False), (("observe transactions:token:etl",), True)):
            judge_by(serving, granted("transact cluster", *more))
            with pytest.raises(TApplicationException) as caught:
                client.startShort()
            assert ("payroll" in caught.value.message) is is_named


def test_where_nobody_has_to_prove_who_they_are_the_face_is_open_as_ever():
    with Serving(Settings(thrift=ThriftSettings(principal=FACE))) as serving, serving.client() as client:
        tx = client.startShort()
        client.commitTx(tx)
        client.getSnapshot()
        assert serving.services.transactions.state.outcome(tx.id).principal == ""


def test_a_client_from_elsewhere_is_turned_out_at_once(caplog: pytest.LogCaptureFixture):
    settings = Settings(thrift=ThriftSettings(networks=("192.0.2.0/24", "2001:db8::/32")))
    with caplog.at_level(logging.WARNING, "basalt.tephra"), Serving(settings) as serving:
        for _ in range(5):
            with serving.socket() as connection:
                assert connection.recv(1) == b""
        assert serving.services.thrift.refused == 5
        assert serving.services.thrift.connections == 0
    lines = [record.getMessage() for record in caplog.records if "thrift.networks" in record.getMessage()]
    assert lines == ["a client at 127.0.0.1 is turned out: its address is in none of thrift.networks"], "once a minute"


@pytest.mark.parametrize(
    ("networks", "peer", "admitted"),
    [
        (("127.0.0.0/8", "::1/128"), "127.9.9.9", True),
        (("127.0.0.0/8", "::1/128"), "::1", True),
        (("127.0.0.0/8",), "::ffff:127.0.0.1", True),
        (("127.0.0.0/8", "::1/128"), "10.0.0.1", False),
        (("10.0.0.0/8",), "::ffff:10.1.2.3", True),
        (("10.0.0.0/8",), "127.0.0.1", False),
        (("fe80::/10",), "fe80::1%eth0", True),
        (("0.0.0.0/0", "::/0"), "somebody", False),
    ],
)
def test_networks_hold_addresses_however_they_are_written(
    networks: tuple[str, ...], peer: str, admitted: bool, serving: Serving
):
    settings = replace(serving.settings, thrift=ThriftSettings(port=0, networks=networks))

    async def ask(services: Any) -> bool:
        from basalt.thrift.server import TephraServer

        return TephraServer(services._served_by_thrift(), settings.thrift.networks)._admits(peer)

    assert serving.do(ask) is admitted
