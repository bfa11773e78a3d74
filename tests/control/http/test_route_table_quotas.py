"""Quotas over HTTP: who is refused and when, before anything of a body is read; what is charged; and places that are given back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from basalt.access import quotas
from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import internal, parse_principal
from basalt.access.quotas import OFF, WAITING_FETCHES, QuotaLimits
from basalt.access.resources import VERBS
from basalt.api.bodies.messages import PublishRequest
from basalt.api.codecs import avro
from basalt.http.app import OPERATIONS, build_app
from basalt.http.asgi.requests import Head
from basalt.server.wiring import open_services
from basalt.settings import Settings
from tests.control.http.conftest import AVRO, JSON, Client, Reply
from tests.control.http.test_route_table_rights import Prompt

ETL, ALICE = parse_principal("token:etl"), parse_principal("jwt:alice")
EVERYTHING = [parse_grant(str(who), VERBS, "*") for who in (ETL, ALICE)]
ORDERS = "/v1/namespaces/shop/topics/orders"


class As:
    """A server with quotas, and calls of several callers; time stands still unless a test moves it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.clock: Any = client.clock
        self.policy = Policy(EVERYTHING)
        client.topic()

    def limit(self, **limits: Any) -> None:
        """The rule of token:etl."""
        self.use({str(ETL): QuotaLimits(**limits)})

    def use(self, rows: Mapping[str, QuotaLimits]) -> None:
        self.client.services.quotas.use(rows)

    def app(self, who: Any = ETL) -> Any:
        return build_app(self.client.services, Caller(who, self.policy))

    def call(self, method: str, target: str, body: Any = b"", media_type: str | None = None, who: Any = ETL) -> Reply:
        self.client.app = self.app(who)
        return self.client.call(method, target, body, media_type)

    def publish(self, size_bytes: int, who: Any = ETL) -> Reply:
        body = avro.encode_publish_request(PublishRequest(None, [b"m" * size_bytes]))
        return self.call("POST", f"{ORDERS}/publish", body, AVRO, who)

    def poll(self, query: str = "", who: Any = ETL, **wanted: Any) -> Reply:
        return self.call("POST", f"{ORDERS}/poll{query}", wanted, who=who)


@pytest.fixture
def served(client: Client, monkeypatch: pytest.MonkeyPatch) -> As:
    monkeypatch.setattr(quotas, "HELD_MS", 0)
    return As(client)


def is_throttled(reply: Reply, quota: str) -> dict[str, Any]:
    """The problem of an answer that says that this quota is used up."""
    assert (reply.status, reply.code) == (429, "throttled"), reply.body
    problem: dict[str, Any] = reply.json()
    assert problem["field"] == quota
    seconds = reply.header("retry-after")
    assert seconds is not None
    assert int(seconds) * 1_000 >= problem["retryAfterMs"] > (int(seconds) - 1) * 1_000
    return problem


def test_a_burst_passes_then_calls_are_refused_and_when_the_time_that_is_told_has_passed_the_next_one_passes(
    served: As,
) -> None:
    served.limit(requests_per_s=4)
    assert [served.call("GET", ORDERS).status for _ in range(8)] == [200] * 8
    problem = is_throttled(served.call("GET", ORDERS), "requests_per_s")
    served.clock.advance(problem["retryAfterMs"])
    assert served.call("GET", ORDERS).status == 200
    problem = is_throttled(served.call("GET", ORDERS), "requests_per_s")
    assert problem["retryAfterMs"] == 250
    assert served.call("GET", ORDERS, who=ALICE).status == 200


def test_a_large_body_overdraws_and_the_next_one_waits_until_it_is_paid_back(served: As) -> None:
    served.limit(publish_bytes_per_s=100_000)
    assert served.publish(1_000_000).status == 200
    problem = is_throttled(served.publish(1), "publish_bytes_per_s")
    assert 8_000 <= problem["retryAfterMs"] <= 8_002
    assert served.poll().status == 200  # which publishes nothing
    served.clock.advance(problem["retryAfterMs"] - 1)
    is_throttled(served.publish(1), "publish_bytes_per_s")
    served.clock.advance(1)
    assert served.publish(1).status == 200


def test_reading_is_charged_by_what_is_sent_and_publishing_goes_on(served: As) -> None:
    served.limit(fetch_bytes_per_s=100_000)
    served.publish(500_000, ALICE)
    assert served.poll().status == 200
    problem = is_throttled(served.poll(), "fetch_bytes_per_s")
    assert 3_000 <= problem["retryAfterMs"] <= 3_010
    assert served.publish(10).status == 200
    assert served.call("GET", ORDERS).status == 200


def test_a_refusal_reads_nothing_of_the_body(served: As) -> None:
    served.limit(publish_bytes_per_s=1)
    assert served.publish(100).status == 200

    async def never() -> None:
        raise AssertionError("the body was asked for")

    for path in ("publish", "store", "records", "records/store"):
        served.client.app = served.app()
        reply: list[int] = []

        async def send(message: Any, reply: list[int] = reply) -> None:
            if message["type"] == "http.response.start":
                reply.append(message["status"])

        target = f"{ORDERS}/{path}"
        scope = {
            "type": "http", "method": "POST", "path": target, "raw_path": target.encode(), "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", AVRO.encode()), (b"content-length", b"9999999")],
            "client": None, "http_version": "1.1",
        }  # fmt: skip
        served.client.run(served.client.app(scope, never, send))
        assert reply == [429]


@pytest.mark.parametrize("who", [parse_principal("token:boss"), internal("jobs")])
def test_superusers_and_parts_of_the_server_are_never_told_to_wait(served: As, who: Any) -> None:
    served.policy = Policy(superusers=["token:boss"])
    served.use({"everyone": QuotaLimits(1, 1, 1, 1, 1, 1, 1)})
    for _ in range(5):
        assert served.publish(1_000, who).status == 200
        assert served.poll("?waitMs=1", who).status == 200
    for number in range(3):
        assert served.call("PUT", f"/v1/namespaces/shop/topics/t{number}", who=who).status == 200


def test_with_quotas_off_nobody_has_an_account(served: As) -> None:
    for _ in range(100):
        assert served.call("GET", ORDERS).status == 200
    assert len(served.client.services.quotas) == 0


def test_a_path_that_no_call_has_counts_and_probes_do_not(served: As) -> None:
    served.limit(requests_per_s=1)
    assert [served.call("GET", "/v2").status for _ in range(3)] == [404, 404, 429]
    assert [served.call("GET", path).status for path in ("/livez", "/readyz", "/v1")] == [200, 200, 429]


def test_a_call_that_is_refused_for_its_rights_counts_and_comes_behind_the_quota(served: As) -> None:
    served.policy = Policy()
    served.limit(requests_per_s=1)
    assert [served.call("GET", ORDERS).status for _ in range(3)] == [403, 403, 429]


def test_a_refusal_of_who_does_not_wait_is_kept_back(served: As, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "HELD_MS", 1_000)
    served.limit(requests_per_s=1)
    slept: list[float] = []
    really_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds < 1:  # the server looks meanwhile how late its loop is
            await really_sleep(seconds)
        else:
            slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert [served.call("GET", ORDERS).status for _ in range(5)] == [200, 200, 429, 429, 429]
    assert len(slept) == 2
    assert all(1.0 <= seconds <= 1.5 for seconds in slept)  # within the two seconds of a bucket


def test_each_refusal_is_counted_once_in_the_metrics(served: As) -> None:
    served.limit(requests_per_s=1)
    head = Head("POST", f"{ORDERS}/publish", f"{ORDERS}/publish".encode(), b"", {b"host": b"localhost", b"content-type": AVRO.encode()})  # fmt: skip
    body = avro.encode_publish_request(PublishRequest(None, [b"m"]))

    async def story() -> list[int]:
        app, exchange = served.app(), Prompt()
        for number in range(5):
            answering = app.begin_whole(head, exchange, None, body)
            if answering is not None:
                await answering
            while len(exchange.statuses) <= number:
                await asyncio.sleep(0)
        return exchange.statuses

    assert served.client.run(story()) == [200, 200, 429, 429, 429]
    shown = served.call("GET", "/metrics", who=ALICE).body.decode()
    assert 'basalt_throttled_total{quota="requests_per_s"} 3.0' in shown
    assert 'basalt_throttled_total{quota="topics"} 0.0' in shown
    assert "basalt_quota_accounts 2.0" in shown


def test_a_publish_that_one_stage_answers_is_charged_once_and_one_that_is_not_too(served: As) -> None:
    served.limit(publish_bytes_per_s=1_000_000)
    body = avro.encode_publish_request(PublishRequest(None, [b"m" * 1_000]))
    head = Head("POST", f"{ORDERS}/publish", f"{ORDERS}/publish".encode(), b"", {b"host": b"localhost", b"content-type": AVRO.encode()})  # fmt: skip

    async def story() -> None:
        app, exchange = served.app(), Prompt()
        exchange.receive = lambda: asyncio.sleep(0, (body, False))
        for number in range(3):  # the first one may have to load the topic
            answering = app.begin_whole(head, exchange, None, body)
            if answering is not None:
                await answering
            while len(exchange.statuses) <= number:
                await asyncio.sleep(0)

    served.client.run(story())
    account = served.client.services.quotas.known(ETL)
    assert account is not None
    assert account.used(_quota("publish_bytes_per_s"), served.client.clock.monotonic_ms()) == 3 * len(body)


def _quota(name: str) -> Any:
    from basalt.access.quotas import QUOTAS

    return next(quota for quota in QUOTAS if quota.name == name)


# Places.


def test_waits_are_counted_while_they_last_and_the_one_too_many_is_refused(served: As) -> None:
    served.limit(waiting_fetches=2)
    account = served.client.services.quotas

    async def story() -> list[int]:
        app = served.client.app = served.app()
        waits = [asyncio.create_task(served.client.ask("POST", f"{ORDERS}/poll?waitMs=60000", {})) for _ in range(2)]
        while (known := account.known(ETL)) is None or known.held[WAITING_FETCHES.place] < 2:
            await asyncio.sleep(0)
        refused = await served.client.ask("POST", f"{ORDERS}/poll?waitMs=60000", {})
        is_throttled(refused, "waiting_fetches")
        without_wait = await served.client.ask("POST", f"{ORDERS}/poll", {})
        served.client.app = served.app(ALICE)
        body = avro.encode_publish_request(PublishRequest(None, [b"m"]))
        await served.client.ask("POST", f"{ORDERS}/publish", body, AVRO)
        answered = await asyncio.gather(*waits)
        served.client.app = app
        again = await served.client.ask("POST", f"{ORDERS}/poll?waitMs=1", {})
        return [without_wait.status, *(each.status for each in answered), again.status]

    assert served.client.run(story()) == [200] * 4
    known = account.known(ETL)
    assert known is not None
    assert known.held == [0] * len(known.held)


def test_a_client_that_goes_away_gives_its_wait_back(served: As) -> None:
    served.limit(waiting_fetches=1)
    known_quotas = served.client.services.quotas

    async def story() -> None:
        served.client.app = served.app()
        gone = asyncio.Event()
        wait = asyncio.create_task(
            served.client.exchange("POST", f"{ORDERS}/poll?waitMs=60000", [b"{}"], JSON, gone=gone)
        )
        while (known := known_quotas.known(ETL)) is None or not known.held[WAITING_FETCHES.place]:
            await asyncio.sleep(0)
        gone.set()
        await wait
        assert known.held[WAITING_FETCHES.place] == 0

    served.client.run(story())


def test_waits_of_groups_and_for_markers_count_too(served: As) -> None:
    served.limit(waiting_fetches=OFF)
    assert served.call("PUT", f"{ORDERS}/groups/g", {}).status == 200
    served.use({"everyone": QuotaLimits(waiting_fetches=1)})
    known_quotas = served.client.services.quotas

    async def story() -> None:
        served.client.app = served.app()
        gone = asyncio.Event()
        wait = asyncio.create_task(
            served.client.exchange("POST", f"{ORDERS}/groups/g/fetch?waitMs=60000&member=a", [b""], gone=gone)
        )
        while (known := known_quotas.known(ETL)) is None or not known.held[WAITING_FETCHES.place]:
            await asyncio.sleep(0)
        is_throttled(await served.client.ask("GET", f"{ORDERS}/markers?waitMs=60000&until=ended"), "waiting_fetches")
        gone.set()
        await wait

    served.client.run(story())


def test_a_principal_creates_so_many_topics_and_deleting_one_makes_room_also_after_a_restart(served: As) -> None:
    served.limit(topics=2)
    shop = "/v1/namespaces/shop/topics"
    assert [served.call("PUT", f"{shop}/t{number}").status for number in range(2)] == [200, 200]
    problem = is_throttled(served.call("PUT", f"{shop}/t2"), "topics")
    assert problem["retryAfterMs"] == 60_000  # nothing that ends by itself
    assert served.call("PUT", f"{shop}/t1").code == "topic_exists"  # as a call that is sent again is told
    assert served.call("PUT", f"{shop}/t2", who=ALICE).status == 200
    assert served.call("DELETE", f"{shop}/t0").status == 200
    served.client.services.topics.catalog._creators._counts = None  # type: ignore[misc]  # as a server that was started anew
    assert served.call("PUT", f"{shop}/t3").status == 200
    is_throttled(served.call("PUT", f"{shop}/t4"), "topics")


def test_topics_that_are_created_at_once_are_no_more_than_the_quota(served: As) -> None:
    served.limit(topics=3)

    async def story() -> list[int]:
        served.client.app = served.app()
        replies = await asyncio.gather(
            *(served.client.ask("PUT", f"/v1/namespaces/shop/topics/t{number}") for number in range(10))
        )
        return [reply.status for reply in replies]

    assert sorted(served.client.run(story())) == [200] * 3 + [429] * 7


def test_every_call_that_brings_or_takes_messages_or_cells_has_its_bytes_counted() -> None:
    counted = {(each.method, each.path.rpartition("}")[2] or each.path): tuple(meter.name for meter in each.meters) for each in OPERATIONS if each.meters}  # fmt: skip
    publish, fetch = ("publish_bytes_per_s",), ("fetch_bytes_per_s",)
    assert counted == {
        ("POST", "/publish"): publish,
        ("POST", "/store"): publish,
        ("POST", "/records"): publish,
        ("POST", "/records/store"): publish,
        ("POST", "/v1/transactions"): publish,
        ("POST", "/commit"): publish,
        ("POST", "/changes"): publish,
        ("POST", "/write"): publish,
        ("POST", "/fetch"): (*publish, *fetch),
        ("POST", "/poll"): fetch,
        ("GET", "/records"): fetch,
        ("GET", "/range"): fetch,
        ("GET", "/messages"): fetch,
        ("POST", "/read"): fetch,
        ("POST", "/scan"): fetch,
    }


# Transactions and sessions.

TRANSACTIONS = "/v1/transactions"


def again(served: As) -> As:
    """The same store, served by a server that was started anew."""
    services = served.client.run(
        open_services(Settings(), None, store=served.client.services.store, clock=served.clock)
    )
    other = object.__new__(As)
    other.client, other.clock, other.policy = Client(services, served.client.runner), served.clock, served.policy
    return other


def test_open_transactions_are_counted_until_they_end_by_whatever_and_over_a_restart(served: As) -> None:
    served.limit(open_transactions=2)
    first, second = (served.call("POST", TRANSACTIONS, {"timeoutMs": 20_000}).json() for _ in range(2))
    is_throttled(served.call("POST", TRANSACTIONS, {}), "open_transactions")
    assert served.call("POST", TRANSACTIONS, {}, who=ALICE).status == 200
    assert served.call("POST", f"{TRANSACTIONS}/{first['id']}/commit").status == 200
    assert served.call("POST", TRANSACTIONS, {"timeoutMs": 20_000}).status == 200
    is_throttled(served.call("POST", TRANSACTIONS, {}), "open_transactions")

    restarted = again(served)
    restarted.limit(open_transactions=2)
    is_throttled(restarted.call("POST", TRANSACTIONS, {}), "open_transactions")
    assert restarted.call("POST", f"{TRANSACTIONS}/{second['id']}/abort").status == 200
    assert restarted.call("POST", TRANSACTIONS, {"timeoutMs": 20_000}).status == 200
    is_throttled(restarted.call("POST", TRANSACTIONS, {}), "open_transactions")
    restarted.clock.advance(21_000)  # their time is over
    restarted.client.run(restarted.client.services.transactions.expire())
    assert restarted.call("POST", TRANSACTIONS, {}).status == 200


def test_a_begin_that_is_sent_again_is_answered_with_the_transaction_that_it_began(served: As) -> None:
    served.limit(open_transactions=1)
    served.client.app = served.app()
    begun = [served.client.call("POST", TRANSACTIONS, {}, Basalt_Request_Id="one").json()["id"] for _ in range(2)]
    assert begun[0] == begun[1]
    is_throttled(served.client.call("POST", TRANSACTIONS, {}, Basalt_Request_Id="two"), "open_transactions")


def test_one_shots_are_not_open_and_begins_at_once_are_no_more_than_the_quota(served: As) -> None:
    served.limit(open_transactions=2)
    work = {"work": {"publish": [{"namespace": "shop", "topic": "orders", "messages": ["m"]}]}}
    assert [served.call("POST", TRANSACTIONS, work).status for _ in range(5)] == [200] * 5

    async def story() -> list[int]:
        served.client.app = served.app()
        return [
            reply.status
            for reply in await asyncio.gather(*(served.client.ask("POST", TRANSACTIONS, {}) for _ in range(6)))
        ]

    assert sorted(served.client.run(story())) == [200] * 2 + [429] * 4


def test_sessions_are_counted_for_who_opened_them_last_and_one_s_own_is_opened_again(served: As) -> None:
    served.limit(sessions=2)
    sessions = f"{TRANSACTIONS}/sessions"
    assert [served.call("POST", f"{sessions}/s{number}", {"run": "a"}).status for number in range(2)] == [200, 200]
    is_throttled(served.call("POST", f"{sessions}/s2", {"run": "a"}), "sessions")
    assert served.call("POST", f"{sessions}/s1", {"run": "b"}).status == 200
    is_throttled(served.call("POST", TRANSACTIONS, {"session": "s2", "run": "a", "version": 1}), "sessions")
    assert served.call("POST", TRANSACTIONS, {"session": "s1", "run": "c", "version": 1}).status == 200
    restarted = again(served)
    restarted.limit(sessions=2)
    is_throttled(restarted.call("POST", f"{sessions}/s2", {"run": "a"}), "sessions")
    assert restarted.call("POST", f"{sessions}/s0", {"run": "b"}, who=ALICE).status == 200  # hers from now on
    assert restarted.call("POST", f"{sessions}/s2", {"run": "a"}).status == 200


def test_processes_that_join_a_named_transaction_hold_no_further_place(served: As) -> None:
    served.limit(open_transactions=1)
    asked = {"session": "s", "run": "a", "version": 1}
    begun = [served.call("POST", TRANSACTIONS, asked).json()["id"] for _ in range(3)]
    assert len(set(begun)) == 1
    is_throttled(served.call("POST", TRANSACTIONS, {}), "open_transactions")
