"""Two servers on one store: the one that leads serves Tephra's clients, and the next one after it goes on with their transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TClient
from thriftpy2.transport import TFramedTransport, TSocket, TTransportException

from basalt.server.wiring import open_services
from basalt.settings.tree import ThriftSettings
from basalt.thrift.wire import types
from basalt_engine.stores.memory import MemoryStore
from tests.led_servers import HANG_S, ONE_LEADS, LeaseTime, LedServer
from tests.ports import reserved_port


class Server(LedServer):
    """One of the two. Both are to listen on the same port, which only one at a time can."""

    def __init__(self, time: LeaseTime, store: MemoryStore, name: str, port: int) -> None:
        settings = replace(ONE_LEADS, thrift=ThriftSettings(port=port))
        super().__init__(
            time, store, name,
            open_services=lambda led, epoch, shared: open_services(
                settings, None, store=led, clock=self.clock, epoch=epoch, shared=shared
            ),
            start_thrift=lambda services: services.start_thrift("127.0.0.1"),
        )  # fmt: skip

    async def serves(self) -> bool:
        serving = self.member._serving
        return serving is not None and serving.term.is_on()  # else it is about to hear that it leads no more


def call(port: int, story: Callable[[Any], Any]) -> Any:
    transport = TFramedTransport(TSocket("127.0.0.1", port, socket_timeout=int(HANG_S * 1_000)))
    transport.open()
    try:
        return story(TClient(types.TTransactionServer, TBinaryProtocol(transport)))
    finally:
        transport.close()


def run(story: Callable[[Server, Server, int], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        with reserved_port() as port:
            time, store = LeaseTime(), MemoryStore(atomic=False)
            first = Server(time, store, "first", port)
            await time.until(first.serves)
            second = Server(time, store, "second", port)
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
        await second.time.until(second.serves)
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

        async def one_serves() -> bool:
            return await first.serves() or await second.serves()

        with pytest.raises((TTransportException, TApplicationException)):
            await asyncio.to_thread(call, port, hold)
        await first.time.until(one_serves)
        assert (await asyncio.to_thread(call, port, lambda client: client.status())) == "OK"

    run(story)
