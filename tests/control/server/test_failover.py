"""Two whole servers over one store in one process: who answers what, before, in and after a change of leader."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from basalt.client.attempts import Send
from basalt.client.plans import Answer
from basalt.cluster import owners
from basalt.cluster.lease import RENEWALS_PER_LEASE
from basalt.cluster.led_store import LedStore
from basalt.cluster.members import LOOKS_PER_LEASE, OwnMember
from basalt.cluster.owners import OwnersMap
from basalt.embedded import exchange
from basalt.server import failover
from basalt.server.wiring import RunningServices, Shared, open_services
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from basalt.settings.cluster import ClusterSettings
from basalt_engine.errors import CorruptionError, StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from basalt_engine.table import Store
from tests.led_servers import HANG_S, LEASE_MS, LOOK_MS, ONE_LEADS, LeaseTime, LedServer

DAY_MS = 86_400_000
TOPIC = "/v1/namespaces/shop/topics/orders"


class Server(LedServer):
    """One member, with the calls that the tests make."""

    def __init__(
        self, time: LeaseTime, store: MemoryStore, name: str, settings: Settings = ONE_LEADS, link: str = ""
    ) -> None:
        self.settings = settings
        super().__init__(time, store, name, open_services=self.open_services, settings=settings, link=link)
        self.fails: BaseException | None = None
        self.answering_epochs: list[int | None] = []

    async def open_services(self, store: Store, epoch: int, shared: Shared | None) -> RunningServices:
        if self.fails is not None:
            raise self.fails
        return await open_services(self.settings, None, store=store, clock=self.clock, epoch=epoch, shared=shared)

    async def ask(self, method: str, target: str, body: object = None, **given: str) -> Answer:
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        given = {"Host": "localhost", "Basalt-Direct": "1"} | {
            name.replace("_", "-"): value for name, value in given.items()
        }
        reply = await exchange(self.member, Send(method, target, headers, data, HANG_S * 1_000), given)
        assert isinstance(reply, Answer), reply
        return reply

    async def publish(self, text: str) -> Answer:
        return await self.ask("POST", f"{TOPIC}/publish", {"messages": [text]})

    async def read(self) -> list[str]:
        answer = await self.ask("POST", f"{TOPIC}/poll", {})
        assert answer.status == 200, answer.body
        return [message["payload"] for message in json.loads(answer.body)]

    async def serves(self) -> bool:
        return (await self.ask("GET", "/readyz")).status == 200

    async def until_it_serves(self) -> None:
        await self.time.until(self.serves)

    async def answers(self) -> bool:
        """Whether a call is answered by services, and in which term is noted then."""
        if (await self.ask("GET", TOPIC)).status != 200:
            return False
        self.answering_epochs.append(self.served_epoch)
        return True

    async def has_services(self) -> bool:
        return self.served_epoch is not None

    async def ended(self) -> bool:
        return self.running.done()

    async def leads(self) -> bool:
        return self.member.leadership.is_leader


@asynccontextmanager
async def pair(settings: Settings = ONE_LEADS) -> AsyncIterator[tuple[Server, Server]]:
    """A leader and a standby."""
    time, store = LeaseTime(), MemoryStore(atomic=False)
    first = Server(time, store, "first", settings)
    await first.until_it_serves()
    second = Server(time, store, "second", settings)
    await time.until(lambda: _says_who_leads(second, first))
    try:
        yield first, second
    finally:
        for server in (first, second):
            await server.stop()


async def _says_who_leads(server: Server, leader: Server) -> bool:
    return (await server.ask("GET", "/v1/namespaces")).headers.get("basalt-leader") == leader.url


async def _has(rests: list[float], count: int) -> bool:
    return len(rests) >= count


async def _epoch_is(server: Server, epoch: int) -> bool:
    return server.member.leadership.epoch == epoch


def run(story: Callable[[Server, Server], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with pair() as (leader, standby):
            assert (await leader.ask("PUT", TOPIC)).status == 200
            await story(leader, standby)

    asyncio.run(all_of_it())


async def _members(server: Server) -> dict[str, tuple[str | None, str]]:
    """Role and state of each member, as the leader tells them."""
    told = json.loads((await server.ask("GET", "/v1/cluster")).body)
    return {each["name"]: (each["role"], each["state"]) for each in told["members"]}


async def _are(server: Server, **members: tuple[str | None, str]) -> bool:
    return await _members(server) == members


LEADER, STANDBY, DEAD = ("leader", "live"), ("standby", "live"), (None, "dead")


def test_the_leader_tells_who_the_members_are_and_a_standby_does_not():
    async def story(leader: Server, standby: Server) -> None:
        await leader.time.until(lambda: _are(leader, first=LEADER, second=STANDBY))
        leader.time.pass_on()
        leader.time.pass_on()  # the standby looks, too
        told = json.loads((await leader.ask("GET", "/v1/cluster")).body)
        assert (told["shared"], told["epoch"], told["members"][1]["url"]) == (True, 1, standby.url)
        refused = await standby.ask("GET", "/v1/cluster")
        assert (refused.status, json.loads(refused.body)["code"]) == (503, "not_leader")
        for server in (leader, standby):
            parts = json.loads((await server.ask("GET", "/readyz")).body)["parts"]
            assert parts[-1] == {"name": "member", "ok": True, "latencyMs": 0.0, "detail": "its lease is on"}
            figures = (await server.ask("GET", "/metrics")).body.decode()
            assert 'basalt_cluster_members{state="live"} 2.0' in figures
            assert "basalt_cluster_memberships_total 1.0" in figures

    run(story)


def test_a_leader_without_a_membership_serves_all_the_same():
    async def story(leader: Server, standby: Server) -> None:
        await leader.time.until(lambda: _are(leader, first=LEADER, second=STANDBY))
        membership = leader.member.membership
        membership._own = OwnMember("other")
        ready = await leader.ask("GET", "/readyz")
        assert (ready.status, json.loads(ready.body)["parts"][-1]["detail"]) == (200, "its lease is not on")

    run(story)


def test_a_new_leader_tells_at_once_who_died_and_who_stands_by():
    async def story(leader: Server, standby: Server) -> None:
        third = Server(leader.time, leader._store, "third")
        try:
            await leader.time.until(lambda: _are(leader, first=LEADER, second=STANDBY, third=STANDBY))
            await leader.die()
            with third.stopped():  # else it might take the lead
                await standby.until_it_serves()
            members = await _members(standby)
            assert members["second"] == LEADER
            assert members["first"] in {(None, "dead"), ("standby", "silent")}  # its lease ends with that of its lead
            await standby.time.until(lambda: _are(standby, first=DEAD, second=LEADER, third=STANDBY))
        finally:
            await third.stop()

    run(story)


def test_who_stops_in_an_orderly_way_is_no_member_from_then_on():
    async def story(leader: Server, standby: Server) -> None:
        await leader.time.until(lambda: _are(leader, first=LEADER, second=STANDBY))
        await leader.stop()
        await standby.until_it_serves()
        waited_ms = await standby.time.until(lambda: _are(standby, second=LEADER))
        assert waited_ms <= LEASE_MS / LOOKS_PER_LEASE  # its next look; no lease was waited for

    run(story)


def test_both_tell_prometheus_who_leads():
    async def story(leader: Server, standby: Server) -> None:
        figures = {server: (await server.ask("GET", "/metrics")).body.decode() for server in (leader, standby)}
        assert "basalt_leader 1.0" in figures[leader]
        assert "basalt_leader_terms_total 1.0" in figures[leader]
        assert "basalt_leader 0.0" in figures[standby]
        assert "basalt_leader_terms_total 0.0" in figures[standby]
        for server in (leader, standby):
            assert "basalt_leader_epoch 1.0" in figures[server]
            assert "basalt_tls_handshakes_going_on 0.0" in figures[server]
            assert "basalt_event_loop_lag_max_seconds" in figures[server]
            assert server.member.loop_lag.is_measured
        leading = leader.member._serving
        assert leading is not None
        assert leading.services.watching is not None, "what alerts go by is looked at while it leads"
        assert leading.services.loop_lag is leader.member.loop_lag

    run(story)


def test_a_leader_that_stops_hands_over_at_once():
    async def story(leader: Server, standby: Server) -> None:
        assert (await leader.publish("one")).status == 200
        await leader.stop()
        assert await standby.time.until(standby.leads) <= LOOK_MS
        await standby.until_it_serves()
        assert await standby.read() == ["one"]
        assert (await standby.publish("two")).status == 200
        assert await standby.read() == ["one", "two"]

    run(story)


def test_a_leader_that_is_killed_is_followed_after_its_lease():
    async def story(leader: Server, standby: Server) -> None:
        assert (await leader.publish("one")).status == 200
        await leader.die()
        waited_ms = await standby.time.until(standby.leads)
        # The lease was last renewed up to a quarter of it before, and is looked at up to a look after it was.
        assert LEASE_MS - LEASE_MS / RENEWALS_PER_LEASE - LOOK_MS <= waited_ms <= LEASE_MS + 2 * LOOK_MS
        await standby.until_it_serves()
        assert await standby.read() == ["one"]

    run(story)


def test_a_leader_whose_lease_has_run_out_serves_nothing_and_becomes_a_standby():
    async def story(leader: Server, standby: Server) -> None:
        assert (await leader.publish("one")).status == 200
        with leader.stopped():
            await standby.until_it_serves()
            assert (await standby.publish("two")).status == 200
            leader.clock.ahead_ms += 60_000  # it wakes, and has not looked at the lease yet
            answer = await leader.ask("POST", f"{TOPIC}/poll", {})  # first: a refused write ends the term
            assert answer.status == 503
            assert (await leader.publish("late")).status == 503
        await leader.time.until(lambda: _says_who_leads(leader, standby))
        assert await standby.read() == ["one", "two"]

    run(story)


def test_what_a_former_leader_still_tries_to_write_is_refused_and_never_seen():
    async def story(leader: Server, standby: Server) -> None:
        serving = leader.member._serving
        assert serving is not None
        former = serving.services
        with leader.stopped():
            # A call that was let in before the stop, and goes on after it: no check of the request stops it.
            leader.clock.ahead_ms -= DAY_MS  # not even its own clock tells it
            await standby.until_it_serves()
            with pytest.raises(StoreError):
                await former.messaging.publish(_title(), [b"late"])
        assert await standby.read() == []
        await leader.time.until(lambda: _says_who_leads(leader, standby))

    run(story)


def test_the_lead_can_go_to_and_fro():
    async def story(leader: Server, standby: Server) -> None:
        texts = []
        for round_number in range(3):
            for was, becomes in ((leader, standby), (standby, leader)):
                texts.append(f"{round_number} by {was.url}")
                assert (await was.publish(texts[-1])).status == 200
                with was.gave_up():
                    await becomes.until_it_serves()
        assert await leader.read() == texts
        assert leader.member.leadership.epoch == 7

    run(story)


def test_a_server_that_cannot_begin_its_term_leaves_the_lease_to_the_other():
    async def story(leader: Server, standby: Server) -> None:
        standby.fails = StoreError("the tables cannot be read")
        with leader.gave_up():
            await standby.time.until(lambda: _epoch_is(standby, 2))
        await leader.until_it_serves()
        assert not standby.running.done()
        assert leader.member.leadership.epoch == 3

    run(story)


def test_a_server_that_cannot_begin_for_long_rests_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch):
    rests: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float, *result: object) -> object:
        if delay_s >= failover.REST_S_MIN:
            rests.append(delay_s)
        return await sleep(min(delay_s, 0.01), *result)

    async def story(leader: Server, standby: Server) -> None:
        monkeypatch.setattr(failover, "REST_S_MIN", 1_000.0)
        monkeypatch.setattr(failover, "REST_S_MAX", 2_500.0)
        await leader.stop()
        standby.running.cancel()
        standby.fails = StoreError("the tables cannot be read")
        standby.running = asyncio.ensure_future(standby.member.run())
        monkeypatch.setattr(asyncio, "sleep", noted)
        await standby.time.until(lambda: _has(rests, 5))
        assert rests == [1_000, 2_000, 2_500, 2_500, 2_500]
        standby.fails = None
        await standby.until_it_serves()

    run(story)


def test_a_server_that_finds_damage_ends_and_says_so():
    async def story(leader: Server, standby: Server) -> None:
        standby.fails = CorruptionError("the log has a hole")
        await leader.stop()
        await standby.time.until(standby.ended)
        with pytest.raises(CorruptionError, match="hole"):
            await standby.running

    run(story)


def test_a_term_that_is_given_up_before_its_services_are_ready_serves_nothing():
    async def story(leader: Server, standby: Server) -> None:
        before_the_first_is_ready(standby, lambda: asyncio.to_thread(standby.member.leadership.release))
        with leader.gave_up():
            await standby.time.until(standby.answers)
        assert standby.answering_epochs == [3]  # that of its second term
        assert standby.member.leadership.terms == 2
        assert len(standby.opened) == 4  # one for the lease, one for the membership, one for each term

    run(story)


def test_a_term_that_runs_out_before_its_services_are_ready_serves_nothing():
    async def story(leader: Server, standby: Server) -> None:
        async def stop_for_long() -> None:
            standby.is_stopped = True
            standby.clock.ahead_ms += LEASE_MS

        before_the_first_is_ready(standby, stop_for_long)
        with leader.gave_up():
            await standby.time.until(standby.has_services)
            assert not await standby.answers()  # and nobody has noticed yet that the term is over
            standby.is_stopped = False
            await standby.time.until(standby.answers)
        assert standby.answering_epochs == [3]
        assert standby.member.leadership.terms == 2
        assert len(standby.opened) == 4

    run(story)


def before_the_first_is_ready(server: Server, happens: Callable[[], Awaitable[None]]) -> None:
    """Have something happen after the services of its next term are open, and before they serve."""

    async def slowly(store: Store, epoch: int, shared: Shared | None) -> RunningServices:
        services = await server.open_services(store, epoch, shared)
        server.member._open_services = server.open_services
        await happens()
        return services

    server.member._open_services = slowly


def test_whoever_leads_owns_every_shard_under_an_epoch_of_its_own():
    def dealt(server: Server) -> tuple[OwnersMap, set[int]]:
        assert server.member._serving is not None
        store = server.member._serving.services.store
        found = OwnersMap.decode(SystemTable(store.table("system")).get(owners.KIND, owners.NAME) or b"")
        return found, set(found.shards_of(server.member.leadership.candidate.instance).values())

    async def story(leader: Server, standby: Server) -> None:
        first, epochs = dealt(leader)
        assert (first.version, first.leader_epoch, len(first.members), epochs) == (1, 1, 1, {1})
        await leader.die()
        await standby.until_it_serves()
        second, epochs = dealt(standby)
        assert (second.version, second.leader_epoch, len(second.members), epochs) == (2, 2, 1, {2})

    run(story)


def test_the_store_of_a_leader_is_guarded():
    async def story(leader: Server, _standby: Server) -> None:
        assert leader.member._serving is not None
        assert type(leader.member._serving.services.store) is LedStore

    run(story)


def _title():
    from basalt.catalog.topics import topic_name

    return topic_name("shop", "orders")


ROOT = {"Authorization": "Bearer " + "r" * 40}
ASKED = replace(ONE_LEADS, auth=AuthSettings(kinds=("token",), bootstrap_token="r" * 40))


def test_who_was_let_in_and_who_was_not_is_the_same_at_the_server_that_takes_over():
    async def story() -> None:
        async with pair(ASKED) as (leader, standby):
            assert (await leader.ask("PUT", TOPIC, **ROOT)).status == 200
            grant = {"subject": "token:etl", "verbs": ["write"], "resource": "topic:shop:orders"}
            assert (await leader.ask("POST", "/v1/admin/grants", grant, **ROOT)).status == 200
            made = [
                json.loads((await leader.ask("POST", "/v1/admin/tokens", {"name": "etl"}, **ROOT)).body)
                for _ in range(2)
            ]
            good, revoked = ({"Authorization": f"Bearer {each['token']}"} for each in made)
            await leader.ask("DELETE", f"/v1/admin/tokens/{made[1]['info']['id']}", **ROOT)
            await leader.die()
            await standby.until_it_serves()
            published = [
                (await standby.ask("POST", f"{TOPIC}/publish", {"messages": ["a"]}, **given)).status
                for given in (good, revoked, {})
            ]
            assert published == [200, 401, 401]

    asyncio.run(story())


def test_a_server_that_is_stopped_before_it_serves_anything_leaves_no_task_behind():
    async def story() -> None:
        server = Server(LeaseTime(), MemoryStore(atomic=False), "first", Settings(cluster=ClusterSettings(share=True)))
        async with asyncio.timeout(HANG_S):
            while not server.member._memberships._getters:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
        await server.stop()
        left = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        assert not left, left

    asyncio.run(story())


def test_a_leader_that_stops_tells_its_links_and_the_standby_takes_the_lease_at_once():
    """No lease time passes between the stop and the next term: a standby without a link would look half a second later."""

    async def story() -> None:
        time, store = LeaseTime(), MemoryStore(atomic=False)
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        first, second = (
            Server(time, store, name, link=f"127.0.0.1:{listener.getsockname()[1]}")
            for name, listener in zip(("first", "second"), listeners, strict=True)
        )
        second.is_stopped = True
        await first.until_it_serves()
        second.is_stopped = False
        for server, listener in zip((first, second), listeners, strict=True):
            await server.member.links.start(listener)
        links = second.member.links
        await time.until(lambda: _is(lambda: links.to_leader is not None))
        stopped_ms = time.now_ms
        await first.stop()
        async with asyncio.timeout(HANG_S):
            while not second.member.leadership.is_leader:
                second.member.leadership.step()
                await asyncio.sleep(0.001)
        assert time.now_ms == stopped_ms
        await second.stop()

    asyncio.run(story())


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()
