"""A server that does not lead reads ranges itself: callers get what the leader would have sent, and nobody gets what it would have refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
import uvloop

from basalt.errors import UnavailableError
from basalt.http.asgi.requests import Head
from basalt.http.routes.ranges import PERMIT, PERMIT_ASKED
from basalt.server.standby.reading_here import READS_MAX, ReadingHere
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from basalt.settings.cluster import ClusterSettings
from tests.control.server.passing_pair import TOPIC, PortServer, Told, passing_pair, until
from tests.led_servers import ONE_LEADS

ROOT = "Bearer " + "r" * 40
ASKED = replace(ONE_LEADS, auth=AuthSettings(kinds=("token",), bootstrap_token="r" * 40))
QUOTAS = "/v1/admin/quotas"
NOT_EQUAL = ("date", "basalt-owner")


def run(story: Callable[[PortServer, PortServer], Awaitable[None]], *settings: Settings) -> None:
    async def all_of_it() -> None:
        async with passing_pair(*settings) as (leader, standby):
            assert (await leader.ask("PUT", TOPIC, Authorization=ROOT)).status == 200
            await story(leader, standby)

    uvloop.run(all_of_it())


async def publish(server: PortServer, *texts: str, **given: str) -> None:
    assert (await server.ask("POST", f"{TOPIC}/publish", {"messages": list(texts)}, **given)).status == 200


async def range_of(server: PortServer, more: str = "", **given: str) -> str:
    """The target of a call for all that is settled."""
    end = (await server.ask("GET", f"{TOPIC}/stable-end", **given)).json()["id"]
    return f"{TOPIC}/range?through={end}{more}"


def without_who(told: Told) -> tuple[int, dict[str, str], bytes]:
    return told.status, {name: value for name, value in told.headers.items() if name not in NOT_EQUAL}, told.body


async def same(leader: PortServer, standby: PortServer, target: str, **given: str) -> Told:
    given = {"Basalt_Request_Id": "the-same", **given}
    direct = await leader.ask("GET", target, **given)
    told = await standby.ask("GET", target, **given)
    assert without_who(told) == without_who(direct)
    return told


async def a_token(leader: PortServer, *verbs: str) -> str:
    """The credential of somebody who has these rights on all topics."""
    if verbs:
        grant = {"subject": "token:etl", "verbs": list(verbs), "resource": "topic:shop:*"}
        given = await leader.ask("POST", "/v1/admin/grants", grant, Authorization=ROOT)
        assert given.status == 200, given.body
    made = await leader.ask("POST", "/v1/admin/tokens", {"name": "etl"}, Authorization=ROOT)
    assert made.status == 200, made.body
    return "Bearer " + made.json()["token"]


def outcomes(server: PortServer) -> dict[str, int]:
    return dict(server.member._standby.reading.outcomes)


def test_a_range_is_read_by_the_server_that_was_asked_and_is_the_same():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, *(f"message {number}" for number in range(2_000)))
        begun = (await leader.ask("POST", "/v1/transactions", {})).json()
        await leader.ask(
            "POST", f"{TOPIC}/publish", {"messages": ["no"], "transactionWritePointer": begun["writePointer"]}
        )
        await leader.ask("POST", f"/v1/transactions/{begun['writePointer']}/invalidate", {})
        await publish(leader, "last")
        for more in ("", "&columns=id,value", "&bytesMax=1000", "&isolation=uncommitted", "&generation=1"):
            told = await same(leader, standby, await range_of(leader, more))
            assert told.status == 200
            assert "basalt-owner" not in told.headers
        coded = await same(leader, standby, await range_of(leader), Accept_Encoding="gzip")
        assert coded.headers["content-encoding"] == "gzip"
        assert outcomes(standby) == {"read": 6, "changed": 0, "failed": 0}
        assert outcomes(leader) == {"read": 0, "changed": 0, "failed": 0}
        figures = (await standby.ask("GET", "/metrics")).body.decode()
        assert 'basalt_cluster_ranges_permitted_total{outcome="read"} 6.0' in figures
        assert "basalt_cluster_range_seconds_count 6.0" in figures
        reading = standby.member._standby.reading
        assert f"basalt_cluster_range_messages_total {float(reading.messages)}" in figures
        assert reading.messages > 5 * 1_000
        assert reading.payload_bytes > reading.messages

    run(story)


def test_a_client_that_goes_to_the_owner_itself_may_read_ranges_anywhere():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a")
        target = await range_of(leader)
        assert (await same(leader, standby, target, Basalt_Direct="1")).status == 200
        refused = await standby.ask("GET", f"{TOPIC}/stable-end", Basalt_Direct="1")
        assert refused.json()["code"] in ("not_owner", "not_leader")

    run(story)


def test_what_the_leader_refuses_is_refused_here():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a")
        target = await range_of(leader)
        end = urlsplit(target).query.removeprefix("through=")
        for wrong in (
            f"{TOPIC}/range",
            f"{TOPIC}/range?through=zz",
            f"{TOPIC}/range?through={'f' * 40}",
            f"{TOPIC}/range?through={end}&after={'f' * 40}",
            f"{TOPIC}/range?through={end}&generation=7",
            f"{TOPIC}/range?through={end}&columns=nothing",
            f"{TOPIC}/range?through={end}&wrong=1",
            f"/v1/namespaces/shop/topics/absent/range?through={end}",
        ):
            told = await same(leader, standby, wrong)
            assert told.status >= 400
            assert told.headers["basalt-owner"] == leader.url
        assert sum(outcomes(standby).values()) == 0

    run(story)


def test_nobody_reads_here_who_may_not_read_there():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "secret", Authorization=ROOT)
        target = await range_of(leader, Authorization=ROOT)
        stranger = await a_token(leader)
        for given, status in (({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": stranger}, 403)):
            told = await standby.ask("GET", target, **given)
            assert told.status == status, told.body
            assert b"secret" not in told.body
        assert sum(outcomes(standby).values()) == 0
        assert b"secret" in (await same(leader, standby, target, Authorization=ROOT)).body
        assert outcomes(standby)["read"] == 1

    run(story, ASKED)


def test_where_a_quota_limits_the_caller_the_leader_reads_and_counts():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a", Authorization=ROOT)
        target = await range_of(leader, Authorization=ROOT)
        reader, everyone = await a_token(leader, "read", "observe"), f"{QUOTAS}/everyone"
        assert "basalt-owner" not in (await same(leader, standby, target, Authorization=reader)).headers
        put = await leader.ask("PUT", everyone, {"fetchBytesPerS": 1 << 30}, Authorization=ROOT)
        assert put.status == 200, put.body
        told = await same(leader, standby, target, Authorization=reader)
        assert (told.status, told.headers["basalt-owner"]) == (200, leader.url)
        assert outcomes(standby)["read"] == 1

    run(story, ASKED)


def test_a_permit_is_for_servers_alone():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a")
        for server in (leader, standby):  # a caller's own word goes no further
            told = await server.ask("GET", await range_of(leader), **{PERMIT_ASKED.decode().replace("-", "_"): "1"})
            assert told.headers["content-type"] != PERMIT.decode()
            assert told.status == 200

    run(story)


def test_a_topic_that_goes_between_permit_and_answer_is_the_leaders_to_answer():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a")
        target = await range_of(leader)
        reading = standby.member._standby.reading
        read = reading.read

        async def delete_first(permit: bytes) -> object:
            await leader.ask("DELETE", TOPIC)
            return await read(permit)

        reading.read = delete_first  # type: ignore[method-assign, assignment]
        told = await standby.ask("GET", target)
        assert (told.status, told.json()["code"]) == (404, "topic_not_found")
        assert outcomes(standby) == {"read": 0, "changed": 1, "failed": 0}

    run(story)


def test_a_store_that_does_not_answer_here_is_the_leaders_to_read():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a")
        reading = standby.member._standby.reading

        def fail() -> None:
            raise UnavailableError("the gateway is away")

        reading._open_store = fail  # type: ignore[assignment]
        told = await same(leader, standby, await range_of(leader))
        assert (told.status, told.headers["basalt-owner"]) == (200, leader.url)
        assert outcomes(standby) == {"read": 0, "changed": 0, "failed": 1}

    run(story)


def test_what_the_leader_permitted_is_read_though_it_is_gone():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a", "b")
        target = await range_of(leader)
        direct = await leader.ask("GET", target, Basalt_Request_Id="the-same")
        reading = standby.member._standby.reading
        read = reading.read

        async def cut_first(permit: bytes) -> object:
            await leader.hang_up()
            return await read(permit)

        reading.read = cut_first  # type: ignore[method-assign, assignment]
        assert without_who(await standby.ask("GET", target, Basalt_Request_Id="the-same")) == without_who(direct)

    run(story)


@pytest.mark.parametrize(
    ("body", "is_read"), [(b"content-length: 0\r\n\r\n", True), (b"\r\n", True), (b"content-length: 1\r\n\r\nx", False)]
)
def test_calls_that_begin_alike_are_all_read_here_but_for_those_with_a_body(body: bytes, is_read: bool):
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a")
        target = await range_of(leader)
        reader, writer = await standby.line()
        for number in range(1, 4):
            writer.write(b"GET %s HTTP/1.1\r\nhost: localhost\r\n%s" % (target.encode(), body))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            assert outcomes(standby)["read"] == (number if is_read else 0)
        writer.close()

    run(story)


def test_one_more_than_there_is_room_for_is_passed_on():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a")
        target, reading = await range_of(leader), standby.member._standby.reading
        reading.under_way = READS_MAX
        told = await same(leader, standby, target)
        assert told.headers["basalt-owner"] == leader.url
        reading.under_way = READS_MAX - 1
        assert "basalt-owner" not in (await same(leader, standby, target)).headers
        assert reading.under_way == READS_MAX - 1

    run(story)


def test_reading_here_can_be_switched_off():
    off = Settings(cluster=ClusterSettings(share=False, reads=False))

    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, "a")
        told = await same(leader, standby, await range_of(leader))
        assert told.headers["basalt-owner"] == leader.url
        assert sum(outcomes(standby).values()) == 0

    run(story, off)


def test_many_at_a_time_each_get_their_own():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await publish(leader, *(f"{number:04d}" for number in range(500)))
        target = await range_of(leader, "&bytesMax=400&columns=value")
        wanted = (await leader.ask("GET", target)).body
        told = await asyncio.gather(*(standby.ask("GET", target) for _ in range(3 * READS_MAX)))
        assert {each.body for each in told} == {wanted}
        await until(lambda: standby.member._standby.reading.under_way == 0)

    run(story)


@pytest.mark.parametrize(
    ("method", "path", "is_range"),
    [
        ("GET", f"{TOPIC}/range", True),
        ("HEAD", f"{TOPIC}/range", False),
        ("GET", f"{TOPIC}/ranges", False),
        ("GET", "/v1/namespaces/shop/tables/orders/range", False),
        ("GET", "/v1/namespaces/shop/topics/or/ders/range", False),
        ("GET", f"{TOPIC}/range/", False),
    ],
)
def test_only_calls_for_ranges_are_taken_for_such(method: str, path: str, is_range: bool):
    assert ReadingHere.is_range(Head(method, path, path.encode(), b"", {})) is is_range
