"""Both clients at servers that share topics: ranges are read by all of them, whichever of them dies, and a client that knows the owners has no call passed on."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from pyarrow import ipc

import basalt
from basalt import errors
from basalt.client import Batch, Output
from basalt.client.attempts import Send
from basalt.client.consumer import processing
from basalt.client.plans import Answer, Reply
from basalt.client.servers import PREPARED_BYTES_MAX, SPREAD_BYTES_MIN
from basalt.cluster.links.frames import Kind
from tests.control.server.sharing_servers import Sharers, SharingServer, read_with, sharers
from tests.control.server.test_failover_tables import give as give_stock

TEXTS = [f"{number} " + "x" * 250_000 for number in range(24)]  # some 6 MB: several answers of 1 MiB
BEFORE, AFTER = 2, 3  # pages that are read before a server dies, and while it is dead at least


class Seen:
    """What a client has sent, and to whom."""

    def __init__(self, client: Any) -> None:
        self.calls: list[tuple[str, Send, Reply]] = []
        servers = client._driver._transport._servers
        open_one = servers._open_one
        servers._open_one = lambda url: _Watched(open_one(url), url.text, self.calls)

    def begin(self) -> None:
        """Forget what was sent so far."""
        self.calls.clear()

    @property
    def elsewhere(self) -> list[str]:
        """The targets of calls that did not come to who answers them: passed on, or sent back."""
        return [
            f"{server}{request.target}: {reply}" for server, request, reply in self.calls
            if not isinstance(reply, Answer) or reply.status == 503 or "basalt-owner" in reply.headers
        ]  # fmt: skip


class _Watched:
    def __init__(self, inner: Any, url: str, calls: list[tuple[str, Send, Reply]]) -> None:
        self._inner, self._url, self._calls = inner, url, calls

    def send(self, request: Send) -> Any:
        reply = self._inner.send(request)
        if not inspect.isawaitable(reply):
            self._calls.append((self._url, request, reply))
            return reply

        async def later() -> Reply:
            self._calls.append((self._url, request, told := await reply))
            return told

        return later()

    def close(self) -> Any:
        return self._inner.close()


class Side:
    """One of the two clients, used alike from within the servers' loop."""

    def __init__(self, name: str, *servers: SharingServer) -> None:
        self._is_async = name == "async"
        connect: Any = basalt.aio.connect if self._is_async else basalt.connect
        self.client = connect(",".join(server.url for server in servers), namespace="shop")
        self.seen = Seen(self.client)

    async def do(self, act: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Call it: the blocking one in a thread, for the servers are in this one."""
        return await (act(*args, **given) if self._is_async else asyncio.to_thread(act, *args, **given))

    async def all_of(self, reader: Any) -> list[Any]:
        """All that a reader gives."""
        return [each async for each in reader] if self._is_async else await asyncio.to_thread(list, reader)

    async def handled(self, consumer: Any, copies: str) -> list[str]:
        """Handle and acknowledge all that the group has, and publish it again."""
        found: list[str] = []

        def handle(batch: Batch, out: Output) -> None:
            found.extend(message.text for message in batch)
            out.publish(copies, [message.payload for message in batch])

        async def handle_async(batch: Batch, out: Output) -> None:
            handle(batch, out)

        def is_over() -> bool:
            return bool(consumer.waiting_for == "no_messages")

        if self._is_async:
            async with consumer:
                await consumer.process(handle_async, until=is_over, limit=3)
        else:

            def process() -> None:
                with consumer:
                    consumer.process(handle, until=is_over, limit=3)

            await asyncio.to_thread(process)
        return found

    async def in_transaction(self, topic: str, table: str) -> None:
        """Store a message and write a cell, and read both, all of it in a transaction."""
        if self._is_async:
            async with self.client.transaction() as tx:
                await tx.publish(topic, ["published"])
                await tx.store(topic, ["stored"])
                cells = tx.table(table)
                await cells.put("row", {"column": b"1"})
                await cells.get("row")
        else:

            def transact() -> None:
                with self.client.transaction() as tx:
                    tx.publish(topic, ["published"])
                    tx.store(topic, ["stored"])
                    cells = tx.table(table)
                    cells.put("row", {"column": b"1"})
                    cells.get("row")

            await asyncio.to_thread(transact)

    async def publish_in_transaction(self, topic: str, text: str) -> None:
        """Publish in a transaction that brings it with its commit."""
        if self._is_async:
            async with self.client.transaction() as tx:
                await tx.publish(topic, [text])
        else:

            def transact() -> None:
                with self.client.transaction() as tx:
                    tx.publish(topic, [text])

            await asyncio.to_thread(transact)

    async def publish_at_once(self, topic: str, text: str) -> None:
        """Publish in a one-shot transaction."""
        await self.do(self.client.publish_atomically, {topic: [text]})

    async def close(self) -> None:
        await self.do(self.client.close)


@pytest.fixture(params=["blocking", "async"])
def side(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "ROUND_WAIT_MS", 100)


def run(story: Callable[[Sharers], Awaitable[None]], count: int = 3) -> None:
    async def all_of_it() -> None:
        async with sharers(count) as world:
            await story(world)

    uvloop.run(all_of_it())


async def all_know(world: Sharers) -> None:
    """Return once all servers know the newest map: until then a call for what has just moved may be sent back."""
    await world.until(lambda: len({server.member._owners() for server in world.living}) == 1, "all know the map")


async def filled(world: Sharers, owner: SharingServer) -> None:
    """A topic of this owner with all texts."""
    await world.give("orders", owner)
    await all_know(world)
    async with basalt.aio.connect(owner.url, namespace="shop") as client:
        await client.topics.create("orders")
        for text in TEXTS:
            await client.topic("orders").publish([text])


def texts_of(page: Any) -> list[str]:
    with ipc.open_stream(page.body) as stream:
        return [value.decode() for batch in stream for value in batch.column("value").to_pylist()]


def reads(world: Sharers) -> dict[str, int]:
    """How many ranges each server has read that did not own the topic."""
    return {server.name: server.member._standby.reading.outcomes["read"] for server in world.servers}


def passed_on(world: Sharers) -> Counter[str]:
    return sum((server.passing.outcomes for server in world.servers), Counter())


def test_ranges_that_are_read_side_by_side_are_read_by_all_servers_as_often_and_the_owner_gives_a_permit(side):
    async def story(world: Sharers) -> None:
        owner = world.members[0]
        await filled(world, owner)
        one = Side(side, *world.servers)
        topic = one.client.topic("orders")
        end = (await one.do(topic.stable_end)).id
        splits = await one.do(topic.splits, None, end, 6)
        one.seen.begin()
        texts = []
        for turn, split in enumerate(splits):
            page = await one.do(topic.range, split.after, split.through, turn=turn, columns=["value"])
            assert page.next_id is None
            texts += texts_of(page)
        assert texts == TEXTS
        assert Counter(server for server, *_ in one.seen.calls) == dict.fromkeys(
            (each.url for each in world.servers), 2
        )
        assert reads(world) == {each.name: 0 if each is owner else 2 for each in world.servers}
        assert one.seen.elsewhere == []
        await one.close()

    run(story)


@pytest.mark.parametrize("dies", ["reader", "owner"])
def test_a_server_that_dies_in_the_midst_of_a_range_costs_no_message_and_brings_none_twice(side, dies):
    async def story(world: Sharers) -> None:
        owner, other = world.members
        await filled(world, owner)
        one = Side(side, *world.servers)
        topic = one.client.topic("orders")
        end = (await one.do(topic.stable_end)).id
        # A turn by which the one that is to die has the range.
        victim = owner if dies == "owner" else other
        place = {one.client._driver._transport._servers.ranges.choose(turn).text: turn for turn in range(3)}[victim.url]
        shift = _turn_of_zero(topic)
        texts: list[str] = []
        after, pages, asked = None, 0, []
        while True:
            if pages == BEFORE:
                await victim.die()
                if victim is owner:  # who permits ranges from now on is known once its membership has ended
                    await world.until(lambda: world.all_is_dealt(), "the topic has another owner")
            one.seen.begin()
            page = await one.do(
                topic.range, after, end, turn=place - shift, columns=["value"], bytes_max=SPREAD_BYTES_MIN
            )
            asked.append({server for server, *_ in one.seen.calls})
            texts += texts_of(page)
            pages, after = pages + 1, page.next_id
            if after is None:
                break
        assert texts == TEXTS
        assert pages >= BEFORE + AFTER
        assert asked[:BEFORE] == [{victim.url}] * BEFORE
        assert victim.url in asked[BEFORE]
        assert not any(victim.url in servers for servers in asked[BEFORE + 1 :])
        await one.close()

    run(story)


def _turn_of_zero(topic: Any) -> int:
    """The place among all servers of a range of this topic whose turn is the first one."""
    from basalt.client.servers import place_of_range

    place = place_of_range(topic._scope.path("range"), None, 0, None)
    assert place is not None
    return place % 3


def test_a_client_that_was_given_one_server_reads_from_those_that_it_has_met_too(side):
    async def story(world: Sharers) -> None:
        owner = world.members[0]
        await filled(world, owner)
        one = Side(side, world.members[1])
        topic = one.client.topic("orders")
        end = (await one.do(topic.stable_end)).id  # which tells who owns the topic
        one.seen.begin()
        for turn in range(4):
            await one.do(topic.range, None, end, turn=turn)
        assert {server for server, *_ in one.seen.calls} >= {owner.url, world.members[1].url}
        assert one.seen.elsewhere == []
        await one.close()

    run(story)


async def everything(one: Side, topic: str, table: str, copies: str) -> None:
    """One of each of the calls that programs make all day."""
    client, do = one.client, one.do
    orders = client.topic(topic)
    await do(orders.publish, ["a", "b"])
    await do(orders.publish_records, [basalt.client.RecordIn(b"c")])
    producer = await do(client.producer, topic, f"{copies}-producer")
    await do(producer.publish, ["d"])
    assert await do(orders.poll, limit=2)
    assert len(await one.all_of(orders.read())) >= 4
    assert await do(orders.stats)
    end = (await do(orders.stable_end)).id
    await do(orders.advance, None)
    await do(orders.range, None, end, size_bytes=4)  # small: the owner reads it
    await do(client.topics.get, topic)
    assert await one.handled(client.consumer(topic, group=f"{copies}-readers", member="ann"), copies)
    await do(orders.group(f"{copies}-readers").get)
    await one.in_transaction(topic, table)
    await do(client.table(table).get, "row")
    await one.all_of(client.table(table).scan())


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_of_a_client_that_knows_the_owners_no_call_is_passed_on_nor_sent_back(side, asked):
    async def story(world: Sharers) -> None:
        await world.until(lambda: world.all_is_dealt(), "all is dealt")
        for topic, owner in zip(("orders", "copies"), world.members, strict=True):
            await world.give(topic, owner)
        await give_stock(world, world.members[1])
        await all_know(world)
        one = Side(side, world.servers[asked])
        for topic in ("orders", "copies"):
            await one.do(one.client.topics.create, topic)
        await one.do(one.client.tables.create, "stock")
        await everything(one, "orders", "stock", "copies")
        before, _ = passed_on(world), one.seen.begin()
        for _ in range(2):
            await everything(one, "orders", "stock", "copies")
        assert one.seen.elsewhere == []
        assert len(one.seen.calls) > 40
        assert passed_on(world) == before
        await one.close()

    run(story)


def decided_for(world: Sharers, owner: SharingServer) -> Counter[Kind]:
    """Have counted from now on what this server has prepared, or placed, and the leader decides without its bytes."""
    counts: Counter[Kind] = Counter()
    handlers = world.leader.member.links.handlers
    for kind in (Kind.COMMIT, Kind.DECIDE_ONE_SHOTS):
        handled = handlers.find(kind)
        assert handled is not None

        def counted(instance: str, question: Any, kind: Kind = kind, handled: Any = handled) -> Any:
            counts[kind] += instance == owner.instance
            return handled.answer(instance, question)

        handlers._by_number[kind] = handled._replace(answer=counted)
    return counts


def receivers(seen: Seen) -> list[str]:
    """The servers that got commits and one-shots, in order."""
    return [
        server for server, request, _ in seen.calls
        if request.target.endswith("/commit") or (request.target == "/v1/transactions" and request.topics)
    ]  # fmt: skip


async def known_to(world: Sharers, one: Side, owner: SharingServer) -> None:
    """A topic of this owner, which the client has learned in passing."""
    await world.give("orders", owner)
    await all_know(world)
    await one.do(one.client.topics.create, "orders")


async def texts_in(world: Sharers) -> list[str]:
    async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
        return [message.text async for message in client.topic("orders").read()]


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_commits_and_one_shots_of_a_client_that_knows_the_owner_are_prepared_there_each_time(side, asked):
    async def story(world: Sharers) -> None:
        await world.until(lambda: world.all_is_dealt(), "all is dealt")
        owner, count = world.members[0], 10
        one = Side(side, world.servers[asked])
        await known_to(world, one, owner)
        before, decided = passed_on(world), decided_for(world, owner)
        one.seen.begin()
        for number in range(count):
            await one.publish_in_transaction("orders", f"commit {number}")
            await one.publish_at_once("orders", f"one-shot {number}")
        assert decided == {Kind.COMMIT: count, Kind.DECIDE_ONE_SHOTS: count}
        assert receivers(one.seen) == [owner.url] * (2 * count)
        assert len(one.seen.calls) == 3 * count, "a begin, a commit, a one-shot: nothing is asked besides"
        assert one.seen.elsewhere == []
        assert passed_on(world) == before
        assert await texts_in(world) == [
            f"{what} {number}" for number in range(count) for what in ("commit", "one-shot")
        ]
        await one.close()

    run(story)


def test_what_an_owner_would_not_prepare_goes_to_the_leader_at_once(side):
    async def story(world: Sharers) -> None:
        await world.until(lambda: world.all_is_dealt(), "all is dealt")
        one = Side(side, world.leader)
        await known_to(world, one, world.members[0])
        await world.give("copies", world.members[1])
        await all_know(world)
        await one.do(one.client.topics.create, "copies")
        before = passed_on(world)
        one.seen.begin()
        await one.do(one.client.publish_atomically, {"orders": ["a"], "copies": ["a"]})
        await one.publish_at_once("orders", "x" * PREPARED_BYTES_MAX)
        assert [server for server, *_ in one.seen.calls] == [world.leader.url] * 2
        assert passed_on(world) == before
        await one.close()

    run(story)


def test_commits_of_a_topic_that_has_moved_are_passed_on_once_and_all_is_done(side):
    async def story(world: Sharers) -> None:
        await world.until(lambda: world.all_is_dealt(), "all is dealt")
        former, owner = world.members
        one = Side(side, world.leader)
        await known_to(world, one, former)
        await world.give("orders", owner)
        await all_know(world)
        before = passed_on(world)
        one.seen.begin()
        for number in range(4):
            await one.publish_at_once("orders", f"{number}")
        assert receivers(one.seen) == [former.url, *[world.leader.url] * 3]
        assert (passed_on(world) - before).total() == 1
        assert await texts_in(world) == ["0", "1", "2", "3"]
        await one.close()

    run(story)


class Publishers:
    """A client that publishes in both ways, text by text, until it is over. What was refused, so that nothing happened, is done again."""

    def __init__(self, one: Side) -> None:
        self.told, self.unknown, self.over = set[str](), set[str](), False
        acts = (one.publish_in_transaction, one.publish_at_once)
        self.tasks = [
            asyncio.ensure_future(self.publish(*each)) for each in zip(("commit", "one-shot"), acts, strict=True)
        ]

    async def publish(self, what: str, act: Callable[[str, str], Awaitable[None]]) -> None:
        number = 0
        while not self.over:
            text = f"{what} {number}"
            try:
                await act("orders", text)
                self.told.add(text)
            except errors.UnknownOutcomeError:
                self.unknown.add(text)
            except (errors.RetryError, errors.TransactionEndedError):
                continue
            number += 1

    async def end(self) -> None:
        self.over = True
        await asyncio.gather(*self.tasks)


def test_when_the_owner_dies_under_commits_and_one_shots_nothing_is_lost_and_nothing_doubled(side):
    async def story(world: Sharers) -> None:
        await world.until(lambda: world.all_is_dealt(), "all is dealt")
        victim = world.members[0]
        one = Side(side, *world.servers)
        await known_to(world, one, victim)
        decided, load = decided_for(world, victim), Publishers(one)

        def have_grown(by: int, since: int) -> bool:
            return len(load.told) > since + by

        def are_decided() -> bool:
            return min(decided[Kind.COMMIT], decided[Kind.DECIDE_ONE_SHOTS]) > 1

        await world.until(lambda: have_grown(20, 0) and are_decided(), "commits go on, at the owner that is to die")
        await victim.die()
        before = len(load.told)
        await world.until(lambda: have_grown(20, before), "commits go on without it")
        await load.end()
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            shown = await read_with(client, "orders", load.told)
        assert set(shown) <= load.told | load.unknown
        await one.close()

    run(story)
