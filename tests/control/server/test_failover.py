"""Two whole servers over one store in one process: who answers what, before, in and after a change of leader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

from basalt.client.attempts import Send
from basalt.client.plans import Answer
from basalt.cluster.lease import Candidate
from basalt.cluster.led_store import LedStore
from basalt.embedded import exchange
from basalt.server.failover import FailoverServer
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import SystemClock
from basalt_engine.errors import CorruptionError, StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Store

LEASE_MS = 1_000
WAIT_SECONDS_MAX = 20.0
TOPIC = "/v1/namespaces/shop/topics/orders"


class StoppedClock(SystemClock):
    """A process's clock. While the process is stopped its leadership thread is made to wait; then it wakes much later."""

    def __init__(self) -> None:
        self.ahead_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.ahead_ms


class Server:
    """One member, with the calls that the tests make."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.url = f"http://{name}:4780"
        self.clock = StoppedClock()
        self.opened: list[MemoryStore] = []
        self.fails: BaseException | None = None
        self._store = store
        self.member = FailoverServer(
            self.clock,
            Candidate(name, self.url, f"{name}-1", LEASE_MS),
            open_store=self._open_store,
            open_services=self._open_services,
        )
        self.member.leadership.start()
        self.running = asyncio.ensure_future(self.member.run())

    def _open_store(self) -> MemoryStore:
        self.opened.append(self._store.another())
        return self.opened[-1]

    async def _open_services(self, store: Store, epoch: int):
        if self.fails is not None:
            raise self.fails
        return await open_services(Settings(), None, store=store, clock=self.clock, epoch=epoch)

    async def ask(self, method: str, target: str, body: object = None) -> Answer:
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        reply = await exchange(self.member, Send(method, target, headers, data, 30_000), {})
        assert isinstance(reply, Answer), reply
        return reply

    async def publish(self, text: str) -> Answer:
        return await self.ask("POST", f"{TOPIC}/publish", {"messages": [text]})

    async def read(self) -> list[str]:
        answer = await self.ask("POST", f"{TOPIC}/poll", {})
        assert answer.status == 200, answer.body
        return [message["payload"] for message in json.loads(answer.body)]

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not await is_so():
                await asyncio.sleep(0.01)

    async def serves(self) -> bool:
        return (await self.ask("GET", "/readyz")).status == 200

    async def stop(self) -> None:
        self.running.cancel()
        with suppress(asyncio.CancelledError, CorruptionError):
            await self.running
        await self.member.close()

    async def die(self) -> None:
        """As after kill -9: nothing is written, and nothing given up."""
        self.running.cancel()
        leadership = self.member.leadership
        leadership._stopping = True
        leadership._wake.set()
        await asyncio.to_thread(leadership._thread.join)
        for store in self.opened:
            store.close()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Server, Server]]:
    """A leader and a standby."""
    store = MemoryStore(atomic=False)
    first = Server(store, "first")
    await first.until(first.serves)
    second = Server(store, "second")
    await second.until(lambda: _says_who_leads(second, first))
    try:
        yield first, second
    finally:
        for server in (first, second):
            await server.stop()


async def _says_who_leads(server: Server, leader: Server) -> bool:
    return (await server.ask("GET", "/v1/namespaces")).headers.get("basalt-leader") == leader.url


async def _epoch_is(server: Server, epoch: int) -> bool:
    return server.member.leadership.epoch == epoch


@contextmanager
def gave_up(leader: Server) -> Iterator[None]:
    """The leader gives the lease up, and does not take it again meanwhile."""
    leader.member.leadership.release()
    with leader.member.leadership._lock:
        yield


def run(story: Callable[[Server, Server], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with pair() as (leader, standby):
            assert (await leader.ask("PUT", TOPIC)).status == 200
            await story(leader, standby)

    asyncio.run(all_of_it())


def test_a_standby_says_who_leads_and_does_nothing():
    async def story(leader: Server, standby: Server) -> None:
        for answer in (await standby.publish("no"), await standby.ask("GET", "/v1/admin/jobs")):
            assert answer.status == 503
            problem = json.loads(answer.body)
            assert problem["code"] == "not_leader"
            assert problem["leader"] == answer.headers["basalt-leader"] == leader.url
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["basalt-request-id"] == problem["requestId"]
        assert await leader.read() == []

    run(story)


def test_a_standby_lives_and_is_not_ready():
    async def story(leader: Server, standby: Server) -> None:
        assert (await standby.ask("GET", "/livez")).status == 200
        assert (await standby.ask("GET", "/v1")).status == 200
        ready = await standby.ask("GET", "/readyz")
        assert ready.status == 503
        parts = {part["name"]: part for part in json.loads(ready.body)["parts"]}
        assert parts["leader"] == {
            "name": "leader", "ok": False, "latencyMs": 0.0, "detail": f"standby: {leader.url} leads"
        }  # fmt: skip
        assert (await standby.ask("DELETE", "/readyz")).status == 405
        ready = json.loads((await leader.ask("GET", "/readyz")).body)
        assert ready["parts"][-1] == {"name": "leader", "ok": True, "latencyMs": 0.0, "detail": "leads under epoch 1"}

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

    run(story)


def test_a_leader_that_stops_hands_over_at_once():
    async def story(leader: Server, standby: Server) -> None:
        assert (await leader.publish("one")).status == 200
        began_ms = standby.clock.monotonic_ms()
        await leader.stop()
        await standby.until(standby.serves)
        assert standby.clock.monotonic_ms() - began_ms < LEASE_MS
        assert await standby.read() == ["one"]
        assert (await standby.publish("two")).status == 200
        assert await standby.read() == ["one", "two"]

    run(story)


def test_a_leader_that_is_killed_is_followed_after_its_lease():
    async def story(leader: Server, standby: Server) -> None:
        assert (await leader.publish("one")).status == 200
        began_ms = standby.clock.monotonic_ms()
        await leader.die()
        await standby.until(standby.serves)
        waited_ms = standby.clock.monotonic_ms() - began_ms
        assert LEASE_MS / 2 < waited_ms < 3 * LEASE_MS
        assert await standby.read() == ["one"]

    run(story)


def test_a_leader_whose_lease_has_run_out_serves_nothing_and_becomes_a_standby():
    async def story(leader: Server, standby: Server) -> None:
        assert (await leader.publish("one")).status == 200
        with leader.member.leadership._lock:  # stopped: its thread does nothing
            standby_serves = asyncio.ensure_future(standby.until(standby.serves))
            await standby_serves
            assert (await standby.publish("two")).status == 200
            leader.clock.ahead_ms += 60_000  # it wakes, and has not looked at the lease yet
            assert (await leader.publish("late")).status == 503
            answer = await leader.ask("POST", f"{TOPIC}/poll", {})
            assert answer.status == 503
        await leader.until(lambda: _says_who_leads(leader, standby))
        assert await standby.read() == ["one", "two"]

    run(story)


def test_what_a_former_leader_still_tries_to_write_is_refused_and_never_seen():
    async def story(leader: Server, standby: Server) -> None:
        serving = leader.member._serving
        assert serving is not None
        former = serving.services
        with leader.member.leadership._lock:
            # A call that was let in before the stop, and goes on after it: no check of the request stops it.
            leader.clock.ahead_ms -= 10_000  # not even its own clock tells it
            await standby.until(standby.serves)
            with pytest.raises(StoreError):
                await former.messaging.publish(_title(), [b"late"])
        assert await standby.read() == []
        await leader.until(lambda: _says_who_leads(leader, standby))

    run(story)


def test_the_lead_can_go_to_and_fro():
    async def story(leader: Server, standby: Server) -> None:
        texts = []
        for round_number in range(3):
            for was, becomes in ((leader, standby), (standby, leader)):
                texts.append(f"{round_number} by {was.url}")
                assert (await was.publish(texts[-1])).status == 200
                with gave_up(was):
                    await becomes.until(becomes.serves)
        assert await leader.read() == texts
        assert leader.member.leadership.epoch == 7

    run(story)


def test_a_server_that_cannot_begin_its_term_leaves_the_lease_to_the_other():
    async def story(leader: Server, standby: Server) -> None:
        standby.fails = StoreError("the tables cannot be read")
        with gave_up(leader):
            await standby.until(lambda: _epoch_is(standby, 2))
        await leader.until(leader.serves)
        assert not standby.running.done()
        assert leader.member.leadership.epoch == 3

    run(story)


def test_a_server_that_finds_damage_ends_and_says_so():
    async def story(leader: Server, standby: Server) -> None:
        standby.fails = CorruptionError("the log has a hole")
        await leader.stop()
        with pytest.raises(CorruptionError, match="hole"):
            await asyncio.wait_for(standby.running, WAIT_SECONDS_MAX)

    run(story)


def test_a_term_that_is_over_before_its_services_are_ready_serves_nothing():
    async def story(leader: Server, standby: Server) -> None:
        opened = standby._open_services

        async def slowly(store: Store, epoch: int):
            services = await opened(store, epoch)
            standby.member._open_services = opened
            await asyncio.to_thread(standby.member.leadership.release)
            return services

        standby.member._open_services = slowly
        with gave_up(leader):
            await standby.until(standby.serves)  # in its second try
        assert standby.member.leadership.epoch == 3
        assert len(standby.opened) == 3  # one for the lease, one for each term

    run(story)


def test_the_store_of_a_leader_is_guarded():
    async def story(leader: Server, _standby: Server) -> None:
        assert leader.member._serving is not None
        assert type(leader.member._serving.services.store) is LedStore

    run(story)


def _title():
    from basalt.catalog.topics import topic_name

    return topic_name("shop", "orders")
