"""Transactional tables at an owner that does not lead: what a client reads and writes there, whoever is asked, and while the table moves."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator

import pytest

import basalt
from basalt.transactions.follow_calls import ENTRIES, Entries, Taken
from basalt.transactions.protocol import Place
from basalt_engine.keys import table_prefix
from basalt_engine.stores.shards import shard_of
from tests.control.server.passing_pair import Told
from tests.control.server.sharing_servers import STEP_S, Sharers, SharingServer
from tests.control.server.test_failover_sharing import read, run
from tests.led_servers import HANG_S

TABLE = "/v1/namespaces/shop/tables/stock"
SHARD = shard_of(table_prefix("shop", "stock"))


async def give(world: Sharers, to: SharingServer) -> None:
    """Move the table's shard to this server, as an operator does."""
    async with asyncio.timeout(HANG_S):
        while SHARD not in to.held:
            told = await world.leader.ask("POST", "/v1/admin/cluster/moves", {"shards": [SHARD], "to": to.instance})
            assert told.status in (200, 409, 503), told.body
            await asyncio.sleep(STEP_S)


class Deafness:
    """A member that hears of no commit, once its rows are placed, until it asks or this ends."""

    def __init__(self, member: SharingServer) -> None:
        self.is_deaf = False
        links, manager, owner = member.member.links, member.services.transactions.manager, member.services.owner
        pushed, place = manager._pushed, owner.place  # type: ignore[attr-defined]

        def heard(instance: str, entries: Entries) -> Taken:
            return Taken(manager.applied) if self.is_deaf else pushed(instance, entries)  # type: ignore[attr-defined]

        async def placed(asked: Place) -> None:
            await place(asked)
            self.is_deaf = True

        owner.place = placed  # type: ignore[method-assign]
        links.handlers.remove(ENTRIES)
        links.handlers.add(ENTRIES, heard)


def put_of(value: int) -> list[dict[str, str]]:
    return [{"row": "Y2hhaXI=", "column": "Yw==", "value": b64encode(b"%d" % value).decode()}]


async def answered(server: SharingServer, path: str, body: dict[str, object]) -> Told:
    """The answer of whoever has the table. One that was passed on to a server that has just lost it is sent again, as clients do."""
    while (told := await server.ask("POST", f"{TABLE}/{path}", body)).status == 503:
        assert told.json()["code"] == "shard_moving", told.body
    return told


async def value_at(server: SharingServer, transaction: str | None = None) -> int | None:
    """The number in the one cell, as this server answers it."""
    asked: dict[str, object] = {"rows": ["Y2hhaXI="]} | ({} if transaction is None else {"transaction": transaction})
    told = await answered(server, "read", asked)
    assert told.status == 200, told.body
    cells = told.json()["cells"]
    return int(b64decode(cells[0]["value"])) if cells else None


async def begun(server: SharingServer) -> str:
    return str((await server.ask("POST", "/v1/transactions", {})).json()["id"])


async def write(server: SharingServer, transaction: str, value: int) -> None:
    told = await answered(server, "write", {"transaction": transaction, "puts": put_of(value)})
    assert told.status < 300, told.body


async def commit(server: SharingServer, transaction: str) -> None:
    told = await server.ask("POST", f"/v1/transactions/{transaction}/commit")
    assert told.status == 200, told.body


def test_cells_are_written_and_read_at_the_member_that_owns_the_table_whoever_is_asked():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        await give(world, member)
        told = await world.leader.ask("PUT", TABLE, {})
        assert (told.status, told.headers["basalt-owner"]) == (200, member.url)
        deafness = Deafness(member)
        for number in range(6):
            server = world.servers[number % 2]
            ident = await begun(server)
            await write(server, ident, number)
            assert await value_at(server, ident) == number
            assert await value_at(world.leader) == (number - 1 if number else None)
            await commit(server, ident)
            for asked in world.servers:
                assert await value_at(asked) == number, "what was committed before a read is there"
            late = await server.ask("POST", f"{TABLE}/write", {"transaction": ident, "puts": put_of(99)})
            assert late.status in (404, 409), late.body
            deafness.is_deaf = False
        assert (await member.ask("GET", "/v1/namespaces/shop/tables")).json() == ["stock"]
        assert (await world.leader.ask("DELETE", TABLE)).status < 300
        assert (await member.ask("GET", TABLE)).status == 404
        assert (await member.ask("PUT", TABLE, {})).json()["generation"] == 2
        assert await value_at(world.leader) is None

    run(story)


def test_nobody_is_asked_about_a_write_whose_client_says_its_newest_pointer_unless_that_is_news():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        await give(world, member)
        assert (await member.ask("PUT", TABLE, {})).status == 200
        deafness, manager = Deafness(member), member.services.transactions.manager
        ask, asked = manager.ask, list[str]()

        async def counted() -> None:
            asked.append("what is decided")
            await ask()

        async def written(info: dict[str, object], **more: object) -> list[str]:
            """What was asked for a write with the pointer of this answer."""
            asked.clear()
            body = {"transaction": ident, "puts": put_of(1), "writePointer": info["writePointer"]} | more
            told = await member.ask("POST", f"{TABLE}/write", body)
            assert told.status == 200, told.body
            return asked.copy()

        async def pointer() -> int:
            told = await member.ask("POST", f"{TABLE}/read", {"rows": ["Y2hhaXI="], "transaction": ident})
            return int(told.json()["cells"][0]["writePointer"])

        begun = (await world.leader.ask("POST", "/v1/transactions", {})).json()
        ident = begun["id"]
        await ask()
        manager.ask = counted  # type: ignore[method-assign]
        assert await written(begun) == []
        assert await written(begun, writePointer=None) == ["what is decided"]
        assert await written(begun, deleteRows=["YmVk"]) == ["what is decided"], "deleting a row reads it"
        deafness.is_deaf = True
        moved = (await world.leader.ask("POST", f"/v1/transactions/{ident}/checkpoint")).json()
        assert await written(moved) == ["what is decided"]
        assert await pointer() == moved["writePointer"] > begun["writePointer"]
        assert await written(begun) == [], "an older one is no reason to ask, nor to write under it"
        assert await pointer() == moved["writePointer"]
        begun = (await world.leader.ask("POST", "/v1/transactions", {})).json()
        ident = begun["id"]
        assert await written(begun) == ["what is decided"]
        deafness.is_deaf = False
        await commit(world.leader, ident)
        late = await member.ask("POST", f"{TABLE}/write", {"transaction": ident, "puts": put_of(9), "writePointer": 1})
        assert late.status in (404, 409), late.body

    run(story)


def test_cells_at_one_owner_and_messages_at_another_are_one_transaction():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        await give(world, member)
        await world.give("orders", world.leader)
        assert (await member.ask("PUT", TABLE, {})).status == 200
        async with basalt.aio.connect(member.url, namespace="shop") as client:
            await client.topics.create("orders")
            async with client.transaction() as tx:
                await tx.table("stock").put("chair", {"c": "1"})
                await tx.publish("orders", ["one"])
                await tx.store("orders", ["stored"])
            with pytest.raises(KeyError):
                async with client.transaction() as tx:
                    await tx.store("orders", ["rolled back"])
                    ident = str(tx.id)
                    await write(member, ident, 2)
                    raise KeyError
            assert (await member.ask("GET", f"/v1/transactions/{ident}")).json()["state"] == "INVALID"
            assert await value_at(member) == 1
            assert await read(client, "orders") == ["one", "stored"]
        pointers = member.services.tables.pointers
        await world.until(lambda: not len(pointers), "the member hears that all are over")

    run(story)


def test_a_table_that_moves_under_load_loses_no_write_and_leaves_no_call_without_an_answer():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        assert (await member.ask("PUT", TABLE, {})).status == 200
        over = asyncio.Event()
        done = 0

        async def load() -> None:
            nonlocal done
            while not over.is_set():
                server = world.servers[done % 2]
                ident = await begun(server)
                assert await value_at(server, ident) == (done or None)
                await write(server, ident, done + 1)
                assert await value_at(server, ident) == done + 1
                await commit(server, ident)
                done += 1
                assert await value_at(world.servers[done % 2]) == done

        loading = asyncio.create_task(load())
        for number in range(10):
            await give(world, member if number % 2 else world.leader)
            before = done
            await world.until(lambda before=before: loading.done() or done > before + 2, "calls are answered")
        over.set()
        await loading

    run(story)


def test_cells_of_an_owner_that_dies_are_there_under_the_next_one_and_their_transaction_goes_on():
    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        await give(world, member)
        assert (await member.ask("PUT", TABLE, {})).status == 200
        first = await begun(leader)
        await write(leader, first, 1)
        await commit(leader, first)
        second = await begun(leader)
        await write(leader, second, 2)
        await member.die()
        await world.until(world.all_is_dealt, "the leader has its shards")
        assert (await value_at(leader), await value_at(leader, second)) == (1, 2)
        await commit(leader, second)
        assert await value_at(leader) == 2

    run(story)


def test_versions_that_a_reader_at_a_member_may_need_are_kept():
    """Also where it reads under a transaction that the leader has ended, of which the member has not heard."""

    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        await give(world, member)
        assert (await member.ask("PUT", TABLE, {})).status == 200

        async def changed(value: int) -> None:
            ident = await begun(leader)
            await write(leader, ident, value)
            await commit(leader, ident)

        async def bound() -> int:
            return (await leader.services.transactions.manager_snapshot()).visibility_upper_bound

        await changed(1)
        old = await begun(leader)
        assert await value_at(member, old) == 1
        pointer = int(leader.services.ids.parse(old, "id"))
        manager = member.services.transactions.manager
        await manager.ask()
        view = manager.state.get(pointer).snapshot()
        with manager.reading(view):
            await commit(leader, old)
            await changed(2)
            await changed(3)
            for _ in range(3):
                assert await bound() < pointer
                await member.services.scheduler.run_now("retention")
                await asyncio.sleep(STEP_S)
            assert [row async for row in _versions(member)] == [3, 2, 1]
        async with asyncio.timeout(HANG_S):
            while await bound() < pointer:
                await asyncio.sleep(STEP_S)
        assert (await manager.snapshot()).visibility_upper_bound > pointer
        await member.services.scheduler.run_now("retention")
        assert [row async for row in _versions(member)] == [3]

    run(story)


async def _versions(server: SharingServer) -> AsyncIterator[int]:
    """The values of all versions that the store has, the newest first."""
    for row in server.services.store.table("cell").scan(b"", None):
        yield int(next(iter(row.columns.values()))[-1:])
