"""Stories over the Thrift face and the rest of the server: both faces on one transaction, and many clients at once."""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
from typing import Any

import pytest
from thriftpy2.transport import TTransportException

from basalt.api.bodies.messages import Work
from basalt.catalog.topics import topic_name
from basalt.errors import UnavailableError
from basalt.http.app import build_app
from basalt.settings import Settings
from basalt.settings.tree import ServerSettings, ThriftSettings
from basalt.thrift.wire import types
from tests.control.thrift.conftest import Serving

ORDERS = topic_name("shop", "orders")


class Http:
    """Calls of the HTTP API on the server's own loop."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._app = build_app(serving.services)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        async def story(_):
            sent, waiting = [], [{"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}]

            async def receive():
                return waiting.pop() if waiting else {"type": "http.disconnect"}

            async def send(part):
                sent.append(part)

            headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
            scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
                     "headers": headers, "http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
                     "scheme": "http", "root_path": "", "asgi": {"version": "3.0"}}  # fmt: skip
            await self._app(scope, receive, send)
            content = b"".join(part.get("body", b"") for part in sent)
            return sent[0]["status"], json.loads(content) if content else None

        return self._serving.do(story)


def texts_seen_by(serving: Serving, *, committed: bool) -> list[str]:
    async def story(services):
        page = await services.messaging.fetch(ORDERS, None, True, committed=committed)
        return [bytes(payload).decode() for piece in page.slices for payload in piece.payloads()]

    return serving.do(story)


@pytest.fixture
def http(serving: Serving) -> Http:
    called = Http(serving)
    serving.do(lambda services: services.topics.create(ORDERS, {}))
    return called


def publish(http: Http, text: str, write_pointer: int) -> None:
    body = {"transactionWritePointer": write_pointer, "messages": [text]}
    status, answer = http.call("POST", "/v1/namespaces/shop/topics/orders/publish", body)
    assert status == 200, answer


def test_what_is_published_under_a_tephra_transaction_shows_with_its_commit(serving: Serving, http: Http):
    with serving.client() as client:
        tx = client.startShortClientId("app@host")
        status, shown = http.call("GET", f"/v1/transactions/{tx.id}")
        assert (status, shown["owner"], shown["externalWrites"]) == (200, "app@host", True)
        publish(http, "paid", tx.writePointer)
        assert texts_seen_by(serving, committed=True) == []
        client.canCommitOrThrow(tx.id, {b"account:17"})
        client.commitOrThrow(tx.id, tx.writePointer)
    assert texts_seen_by(serving, committed=True) == ["paid"]
    assert http.call("GET", f"/v1/transactions/{tx.id}")[1]["state"] == "COMMITTED"


def test_what_is_published_under_a_tephra_transaction_is_undone_with_its_abort(serving: Serving, http: Http):
    with serving.client() as client:
        tx = client.checkpoint(client.startShort())
        publish(http, "never", tx.writePointer)
        client.abortTx(tx)
    assert texts_seen_by(serving, committed=True) == []
    status, problem = http.call("POST", f"/v1/transactions/{tx.id}/commit")
    assert (status, problem["code"]) == (409, "transaction_ended")


def test_a_conflict_is_found_between_the_faces(serving: Serving, http: Http):
    begun = http.call("POST", "/v1/transactions", {"owner": "worker"})[1]
    with serving.client() as client:
        tx = client.startShort()
        change = base64.b64encode(b"row").decode()
        assert http.call("POST", f"/v1/transactions/{begun['id']}/changes", {"changes": [change]})[0] == 200
        assert http.call("POST", f"/v1/transactions/{begun['id']}/commit")[0] == 200
        assert client.canCommitTx(tx, {b"row"}).value is False


def test_many_clients_at_once_each_get_their_own_answers(serving: Serving):
    ids: list[int] = []
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with serving.client() as client:
                for turn in range(20):
                    tx = client.startShortClientId(f"client {number}")
                    assert serving.services.transactions.state.get(tx.id).owner == f"client {number}"
                    client.canCommitOrThrow(tx.id, {b"%d %d" % (number, turn)})
                    client.commitOrThrow(tx.id, tx.writePointer)
                    ids.append(tx.id)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(ids)) == 32 * 20
    assert serving.services.transactions.state.transactions() == []


def test_a_long_invalid_list_comes_whole(serving: Serving):
    async def many(services):
        ids = []
        for _ in range(3_000):
            transaction = await services.transactions.begin(external_writes=True)
            ids.append(transaction.id)
            await services.transactions.invalidate(transaction.id)
        return ids

    ids = serving.do(many)
    with serving.client() as client:
        for _ in range(3):
            tx = client.startShort()
            assert tx.invalids == ids
            client.commitTx(tx)


def test_an_answer_that_no_client_would_read_is_refused(serving: Serving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("basalt.thrift.wire.RESULT_BYTES_MAX", 50)
    with serving.client() as client, pytest.raises(Exception, match="prune it"):
        client.startShort()


def test_calls_under_way_are_answered_when_the_server_stops(serving: Serving):
    with serving.client() as client:
        client.startShort()
        serving.stop()
        with pytest.raises((TTransportException, OSError)):
            client.status()


def test_a_transaction_that_changed_nothing_commits_after_a_restart_and_one_whose_set_was_lost_does_not():
    first = Serving(Settings())
    first.store.close = lambda: None  # its rows outlive the server, as those on a disk do
    with first, first.client() as client:
        silent, told = client.startShort(), client.startShort()
        client.canCommitOrThrow(told.id, {b"row"})
    second = Serving(Settings())
    second.store, second.clock = first.store, first.clock
    with second, second.client() as client:
        client.commitOrThrow(silent.id, silent.writePointer)
        with pytest.raises(types.TTransactionNotInProgressException, match="tell it again"):
            client.commitOrThrow(told.id, told.writePointer)
        client.canCommitOrThrow(told.id, {b"row"})
        client.commitOrThrow(told.id, told.writePointer)


def test_one_shots_are_read_by_the_next_tephra_transaction(serving: Serving, http: Http):
    serving.do(lambda services: services.transactions.one_shot(Work(), "worker"))
    with serving.client() as client:
        before = client.startShort()
        outcome = serving.do(lambda services: services.transactions.one_shot(Work(), "worker"))
        after = client.startShort()
    assert before.readPointer < outcome.id == after.readPointer


# The settings.


def test_a_port_that_is_taken_is_named(serving: Serving):
    async def again(services):
        taken = dataclasses.replace(services.settings, thrift=ThriftSettings(port=serving.port))
        services.settings = taken
        await services.start_thrift("127.0.0.1")

    with pytest.raises(UnavailableError, match="cannot listen"):
        serving.do(again)


def test_the_face_listens_on_the_address_that_was_looked_up_and_asks_for_the_name_no_second_time(serving: Serving):
    async def named(services):
        services.settings = dataclasses.replace(
            services.settings, server=ServerSettings(host="nobody.invalid"), thrift=ThriftSettings(port=0)
        )
        face = await services.start_thrift("127.0.0.1")
        await face.stop()
        return face.port

    assert serving.do(named) > 0
