"""Commits that come to a member whose topics their messages are for: the bytes stay there, and the leader decides."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
import uvloop

import basalt
from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.codecs import avro
from basalt.cluster.links.frames import Kind
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from tests.control.server.sharing_servers import SHARING, STEP_S, Sharers, SharingServer, Story, read_with, sharers
from tests.control.server.test_failover_one_shots import LEADERS, OWN, with_topics
from tests.control.server.test_failover_sharing import read
from tests.led_servers import HANG_S

AVRO, JSON = "avro/binary", "application/json"
ROOT = "Bearer " + "r" * 40
ASKED = replace(SHARING, auth=AuthSettings(kinds=("token",), bootstrap_token="r" * 40))


def run(story: Story, count: int = 2, settings: Settings = SHARING) -> None:
    async def all_of_it() -> None:
        async with sharers(count, settings) as world:
            await story(world)

    uvloop.run(all_of_it())


def work(*topics: str, text: str = "m") -> bytes:
    return avro.encode_work(Work(publish=[WorkPublish("shop", topic, [text.encode()]) for topic in topics]))


def with_segments(pointer: int) -> bytes:
    publish = [{"namespace": "shop", "topic": OWN, "messages": ["brought"]}]
    return json.dumps({"publish": publish, "segments": [{"writePointer": pointer}]}).encode()


async def begun(server: SharingServer, **asked: Any) -> str:
    told = await server.ask("POST", "/v1/transactions", asked)
    assert told.status == 200, told.body
    id_: str = told.json()["id"]
    return id_


async def commit(server: SharingServer, transaction: str, body: bytes, **given: str) -> Any:
    given = {name.replace("_", "-"): value for name, value in given.items()}
    given.setdefault("Content-Type", AVRO)
    return await server.ask("POST", f"/v1/transactions/{transaction}/commit", body, **given)


async def hears(member: SharingServer) -> None:
    """Return once the member has heard of all that was begun: a commit of what it does not know it passes on."""
    await member.services.transactions.manager.ask()


def commits_over_links(world: Sharers) -> list[int]:
    """Have the calls counted by which members have commits carried."""
    asked: list[int] = []
    handlers = world.leader.member.links.handlers
    handled = handlers.find(Kind.COMMIT)
    assert handled is not None

    def counted(instance: str, question: Any) -> Any:
        asked.append(question.transaction.id)
        return handled.answer(instance, question)

    handlers._by_number[Kind.COMMIT] = handled._replace(answer=counted)
    return asked


def test_a_member_prepares_what_is_for_its_own_topics_and_passes_on_all_else():
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            asked, passed = commits_over_links(world), member.passing.outcomes
            for _ in range(2):
                transaction = await begun(member)
                await hears(member)
                before = passed["answered"]
                told = await commit(member, transaction, work(OWN))
                assert (told.status, told.json()["state"]) == (200, "COMMITTED"), told.body
                assert passed["answered"] == before
            assert len(asked) == 2
            for topics in ((LEADERS,), (OWN, LEADERS)):
                transaction = await begun(member)
                before = passed["answered"]
                assert (await commit(member, transaction, work(*topics))).status == 200
                assert passed["answered"] == before + 1
            assert len(asked) == 2
            for brought in (work(), b""):
                transaction = await begun(member)
                await hears(member)
                assert (await commit(member, transaction, brought)).status == 200
            assert len(asked) == 4
            assert len(await read(client, OWN)) == 3
            assert not member.services.owner._prepared, "nothing is kept"

    run(story)


def test_what_was_stored_at_other_owners_is_placed_with_it():
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            asked = commits_over_links(world)
            for segments in (False, True):
                begun_ = (await member.ask("POST", "/v1/transactions", {})).json()
                for topic in (LEADERS, OWN):
                    target = f"/v1/namespaces/shop/topics/{topic}/store"
                    stored = {"messages": ["stored"], "transactionWritePointer": begun_["writePointer"]}
                    assert (await member.ask("POST", target, stored)).status == 200
                await hears(member)
                brought = with_segments(begun_["writePointer"]) if segments else work(OWN, text="brought")
                told = await commit(member, begun_["id"], brought, Content_Type=JSON if segments else AVRO)
                assert told.status == 200, told.body
            assert len(asked) == 2
            assert await read(client, OWN) == ["stored", "brought"] * 2
            assert await read(client, LEADERS) == ["stored"] * 2

    run(story)


def alike(told: Any, transaction: str) -> tuple[int, bytes, dict[str, str]]:
    """An answer without what differs from call to call, and from server to server."""
    own = ("basalt-owner", "basalt-leader", "basalt-request-id", "date", "content-length")
    headers = {name: value for name, value in told.headers.items() if name not in own}
    differing = rb'"(requestId|writePointer|beganMs|expiresMs|readPointer|atMs|sinceMs)":("[^"]*"|\d+)|(?<="transaction":)"[^"]*"'
    body = re.sub(differing, b"", told.body.replace(transaction.encode(), b"TX"))
    return told.status, re.sub(rb"\d{4}-\d\d-\d\dT[0-9:.]+Z", b"TIME", body), headers


def unnamed(body: bytes) -> bytes:
    """Without the request's own id."""
    return re.sub(rb'"requestId":"[^"]*"', b"", body)


COMMITS: dict[str, tuple[bytes, dict[str, str]]] = {
    "avro": (work(OWN), {}),
    "json": (b'{"publish":[{"namespace":"shop","topic":"orders","messages":["m"]}]}', {"Content-Type": JSON}),
    "a topic that is not there": (work(OWN, "nothing"), {}),
    "no topic's name": (work("no topic"), {}),
    "no work": (b"{", {"Content-Type": JSON}),
    "no avro": (b"\xff", {}),
    "a type that there is not": (work(OWN), {"Content-Type": "text/plain"}),
    "a segment that is none": (with_segments(17), {"Content-Type": JSON}),
    "too many messages": (avro.encode_work(Work(publish=[WorkPublish("shop", OWN, [b""] * 65_536)])), {}),
    "a request id that is none": (work(OWN), {"Basalt-Request-Id": "x" * 200}),
    "nothing": (b"", {}),
    "a coding": (gzip.compress(work(OWN)), {"Content-Encoding": "gzip"}),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMITS)
def test_a_commit_is_answered_at_a_member_as_at_the_leader(name: str):
    body, given = COMMITS[name]

    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            for before in ("nothing", "commit", "abort"):
                answers = []
                for server in (world.leader, member):
                    transaction = await begun(world.leader)
                    if before != "nothing":
                        brought = work(OWN) if before == "commit" else b""
                        await world.leader.ask(
                            "POST", f"/v1/transactions/{transaction}/{before}", brought, Content_Type=AVRO
                        )
                    answers.append(alike(await commit(server, transaction, body, **given), transaction))
                assert answers[0] == answers[1], before

    run(story)


CALLS: dict[str, tuple[str, str, bytes, dict[str, str]]] = {
    "status": ("GET", "", b"", {}),
    "status with a query": ("GET", "?x=1", b"", {}),
    "the head of a status": ("HEAD", "", b"", {}),
    "abort": ("POST", "/abort", b"", {}),
    "abort with a body": ("POST", "/abort", b'{"x":1}', {"Content-Type": JSON}),
    "checkpoint": ("POST", "/checkpoint", b"", {}),
    "checkpoint with its snapshot": ("POST", "/checkpoint", b'{"snapshot":true}', {"Content-Type": JSON}),
    "checkpoint without": ("POST", "/checkpoint", b'{"snapshot":false}', {"Content-Type": JSON}),
    "checkpoint with nonsense": ("POST", "/checkpoint", b'{"snapshot":7}', {"Content-Type": JSON}),
    "invalidate": ("POST", "/invalidate", b"", {}),
    "timeline": ("GET", "/timeline", b"", {}),
    "commit": ("POST", "/commit", b"", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_each_call_about_a_transaction_is_answered_at_a_member_as_at_the_leader(name: str):
    method, rest, body, given = CALLS[name]

    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            for before in ("nothing", "checkpoint", "commit", "abort", "invalidate"):
                answers = []
                for server in (world.leader, member):
                    transaction = await begun(world.leader)
                    if before != "nothing":
                        await world.leader.ask("POST", f"/v1/transactions/{transaction}/{before}")
                    told = await server.ask(method, f"/v1/transactions/{transaction}{rest}", body, **given)
                    answers.append(alike(told, transaction))
                    if method == "GET":
                        other = await world.leader.ask(method, f"/v1/transactions/{transaction}{rest}", body, **given)
                        assert unnamed(told.body) == unnamed(other.body)
                assert answers[0] == answers[1], before

    run(story)


BEGINS = [
    b"", b"{}", b'{"kind":"long","timeoutMs":5000,"owner":"me","externalWrites":true}', b'{"snapshot":false}',
    b'{"kind":"none"}', b'{"timeoutMs":0}', b'{"timeoutMs":99999999999}', b"[", b'{"run":"r"}',
    b'{"session":"s","run":"r","version":1}', b'{"session":"s"}', b'{"owner":"%s"}' % (b"x" * 300),
]  # fmt: skip


@pytest.mark.parametrize("body", BEGINS)
@pytest.mark.parametrize("given", [{}, {"Basalt-Request-Id": "once"}], ids=["", "once"])
def test_a_begin_is_answered_at_a_member_as_at_the_leader(body: bytes, given: dict[str, str]):
    async def story(world: Sharers) -> None:
        (member,) = world.members
        await world.until(lambda: member.member.links.to_leader is not None, "there is a link")
        await world.until(lambda: member.services.transactions.manager.is_known, "the log is read")
        answers, bodies = [], []
        for server in (world.leader, member, world.leader):
            told = await server.ask("POST", "/v1/transactions", body, **given)
            answers.append(alike(told, told.json().get("id") or "?"))
            bodies.append(told.body)
        assert answers[0] == answers[1]
        if given and answers[0][0] == 200:
            assert len(set(bodies)) == 1, "the same one, with the same snapshot"
        if answers[0][0] == 200 and b"session" not in body:
            assert member.passing.outcomes["answered"] == 0

    run(story)


@pytest.mark.parametrize("transaction", ["1", "abc", "18446744073709551615", "sessions"])
def test_a_commit_of_what_is_no_transaction_is_answered_alike(transaction: str):
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            answers = [
                alike(await commit(server, transaction, work(OWN)), transaction) for server in (world.leader, member)
            ]
            assert answers[0] == answers[1]

    run(story)


async def somebody(world: Sharers, name: str, *grants: tuple[list[str], str]) -> str:
    """The credential of somebody to whom this is granted, whom all servers know."""
    for verbs, resource in grants:
        body = {"subject": f"token:{name}", "verbs": verbs, "resource": resource}
        given = await world.leader.ask("POST", "/v1/admin/grants", body, Authorization=ROOT)
        assert given.status == 200, given.body
    new = await world.leader.ask("POST", "/v1/admin/tokens", {"name": name}, Authorization=ROOT)
    assert new.status == 200, new.body
    credential = f"Bearer {new.json()['token']}"
    async with asyncio.timeout(HANG_S):
        for server in world.servers:
            while (
                await server.ask("GET", f"/v1/namespaces/shop/topics/{OWN}", Authorization=credential)
            ).status == 401:
                await asyncio.sleep(STEP_S)
    return credential


def test_rights_hold_at_a_member_as_at_the_leader():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        await world.give(OWN, member, Authorization=ROOT)
        for topic in (OWN, LEADERS):
            assert (
                await world.leader.ask("PUT", f"/v1/namespaces/shop/topics/{topic}", Authorization=ROOT)
            ).status == 200
        everything = (["transact"], "cluster"), (["read", "write"], "namespace:shop")
        one, other = await somebody(world, "one", *everything), await somebody(world, "other", *everything)
        few = await somebody(world, "few", (["transact"], "cluster"), (["write"], f"topic:shop:{LEADERS}"))
        asked = commits_over_links(world)
        for begins, commits in ((one, one), (one, other), (few, few), (one, "Bearer nobody"), (one, ROOT)):
            answers = []
            for server in (world.leader, member):
                new = await world.leader.ask("POST", "/v1/transactions", {}, Authorization=begins)
                transaction = new.json()["id"]
                await hears(member)
                told = await commit(server, transaction, work(OWN), Authorization=commits)
                answers.append(alike(told, transaction))
            assert answers[0] == answers[1], (begins, commits)
        assert len(asked) == 2, "those that were let in"

    run(story, settings=ASKED)


def test_who_may_not_write_any_more_where_a_transaction_has_stored_does_not_commit_it_at_a_member_either():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        await world.give(OWN, member, Authorization=ROOT)
        for topic in (OWN, LEADERS):
            await world.leader.ask("PUT", f"/v1/namespaces/shop/topics/{topic}", Authorization=ROOT)
        grants = (["transact"], "cluster"), (["read", "write"], f"topic:shop:{OWN}")
        one = await somebody(world, "one", *grants)
        answers = []
        for server in (world.leader, member):
            new = (await world.leader.ask("POST", "/v1/transactions", {}, Authorization=one)).json()
            told = await world.leader.ask(
                "POST",
                f"/v1/namespaces/shop/topics/{LEADERS}/store",
                {"messages": ["m"], "transactionWritePointer": new["writePointer"]},
                Authorization=ROOT,
            )
            assert told.status == 200, told.body
            answers.append(alike(await commit(server, new["id"], work(OWN), Authorization=one), new["id"]))
        assert answers[0] == answers[1]
        assert answers[0][0] == 403

    run(story, settings=ASKED)


class Commits:
    """Clients that commit at a server of their own, ask what became of what is unknown, and run anew what was rolled back."""

    def __init__(self, world: Sharers) -> None:
        self.world, self.told, self.over = world, set[str](), asyncio.Event()
        self.tasks = [asyncio.ensure_future(self.commit(number)) for number in range(6)]

    async def commit(self, number: int) -> None:
        for call in itertools.count():
            text = f"{number}.{call}"
            while text not in self.told and not self.over.is_set():
                with suppress(aiohttp.ClientError, OSError, TimeoutError, KeyError):
                    await self.one(self.world.living[number % len(self.world.living)], text)
            if self.over.is_set():
                return

    async def one(self, server: SharingServer, text: str) -> None:
        transaction = (await server.ask("POST", "/v1/transactions", {})).json()["id"]
        while True:
            told = await self.anywhere(server, transaction, text)
            if told.status == 200:
                self.told.add(text)
                return
            if told.status != 503 or self.over.is_set():  # it ended, and is run anew
                assert told.status in (404, 409, 410, 503), told.body
                return
            await asyncio.sleep(STEP_S)

    async def anywhere(self, server: SharingServer, transaction: str, text: str) -> Any:
        """The answer of the server, or of another one when that has died."""
        while True:
            try:
                return await commit(server, transaction, work(OWN, text=text))
            except (aiohttp.ClientError, OSError, TimeoutError):
                server = self.world.living[0]

    async def end(self) -> list[str]:
        """All that is committed, each once."""
        self.over.set()
        await asyncio.gather(*self.tasks)
        async with basalt.aio.connect(self.world.living[0].url, namespace="shop") as client:
            return await read_with(client, OWN, self.told)


def test_what_was_told_to_be_committed_shows_once_when_the_leader_dies_and_when_a_member_does():
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
        load = Commits(world)
        for victim in (world.leader, member):
            before = len(load.told)
            await world.until(lambda: len(load.told) > before + 30, "calls go on")  # noqa: B023
            await victim.die()
            before = len(load.told)
            await world.until(lambda: len(load.told) > before + 30, "calls go on without it")  # noqa: B023
        await load.end()

    run(story, 3)


def test_links_that_break_all_the_time_lose_and_double_nothing():
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
        asked = commits_over_links(world)
        load = Commits(world)
        for _ in range(12):
            before = len(load.told)
            await world.until(lambda: len(load.told) > before + 10, "calls go on")  # noqa: B023
            links = member.member.links
            if links.to_leader is not None:
                links.to_leader.close("the story breaks it")
        await load.end()
        assert asked

    run(story)
