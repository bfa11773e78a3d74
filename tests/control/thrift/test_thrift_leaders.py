"""Two servers on one store: the one that leads serves Tephra's clients, and the next one after it goes on with their transactions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TClient
from thriftpy2.transport import TFramedTransport, TSocket, TTransportException

from basalt.cluster.lease import Candidate
from basalt.server.failover import Member
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt.settings.tree import ThriftSettings
from basalt.thrift.wire import types
from basalt_engine.clock import SystemClock
from basalt_engine.stores.memory import MemoryStore

LEASE_MS = 1_000
WAIT_S = 20.0


class Server:
    """One of the two. Both are to listen on the same port, which only one at a time can."""

    def __init__(self, store: MemoryStore, name: str, port: int) -> None:
        settings = replace(Settings(), thrift=ThriftSettings(port=port))
        clock = SystemClock()
        self.member = Member(
            clock,
            Candidate(name, f"http://{name}:4780", f"{name}-1", LEASE_MS),
            open_store=store.another,
            open_services=lambda led, epoch: open_services(settings, None, store=led, clock=clock, epoch=epoch),
            start_thrift=lambda services: services.start_thrift("127.0.0.1"),
        )
        self.member.leadership.start()
        self._running = asyncio.ensure_future(self.member.run())

    @property
    def leads(self) -> bool:
        return self.member._serving is not None

    async def stop(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        await self.member.close()


def call(port: int, story: Callable[[Any], Any]) -> Any:
    transport = TFramedTransport(TSocket("127.0.0.1", port, socket_timeout=int(WAIT_S * 1_000)))
    transport.open()
    try:
        return story(TClient(types.TTransactionServer, TBinaryProtocol(transport)))
    finally:
        transport.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


def run(story: Callable[[Server, Server, int], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        store = MemoryStore(atomic=False)
        first = Server(store, "first", port)
        await until(lambda: first.leads)
        second = Server(store, "second", port)
        try:
            await story(first, second, port)
        finally:
            for server in (first, second):
                await server.stop()

    uvloop.run(all_of_it())


def test_the_next_leader_goes_on_with_the_transactions_of_tephras_clients():
    async def story(first: Server, second: Server, port: int) -> None:
        tx = await asyncio.to_thread(call, port, lambda client: client.startShortClientId("app"))
        await asyncio.to_thread(call, port, lambda client: client.canCommitOrThrow(tx.id, {b"row"}))
        await first.stop()
        await until(lambda: second.leads)
        other = await asyncio.to_thread(call, port, lambda client: client.startShort())
        assert other.inProgress == [tx.id]
        with pytest.raises(types.TTransactionNotInProgressException, match="told its change set before"):
            await asyncio.to_thread(call, port, lambda client: client.commitOrThrow(tx.id, tx.id))
        await asyncio.to_thread(call, port, lambda client: client.canCommitOrThrow(tx.id, {b"row"}))
        await asyncio.to_thread(call, port, lambda client: client.commitOrThrow(tx.id, tx.id))
        with pytest.raises(types.TTransactionConflictException):
            await asyncio.to_thread(call, port, lambda client: client.canCommitOrThrow(other.id, {b"row"}))

    run(story)


def test_a_leader_whose_term_ends_serves_no_more():
    async def story(first: Server, second: Server, port: int) -> None:
        def hold(client: Any) -> None:
            client.startShort()
            first.member.leadership.release()
            for _ in range(10_000):  # until it is heard that the term is over
                client.startShort()

        with pytest.raises((TTransportException, TApplicationException)):
            await asyncio.to_thread(call, port, hold)
        await until(lambda: first.leads or second.leads)
        assert (await asyncio.to_thread(call, port, lambda client: client.status())) == "OK"

    run(story)
