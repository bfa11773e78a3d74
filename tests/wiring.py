"""All services over a store and a clock of the test's choosing, without a socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.catalog.catalog import Catalog
from basalt.catalog.topics import TopicName, topic_name
from basalt.messaging.log.topic_log import LOG_LIMITS, LogLimits
from basalt.messaging.read.log_reader import Fetch
from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from basalt.settings.tree import HBaseSettings, MessagingSettings, StoreSettings
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.clock import ManualClock
from basalt_engine.metadata import TopicMetadata
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Store

A = topic_name("shop", "orders")
B = topic_name("shop", "invoices")


class Wired:
    """The services, and the shortest words for what the stories do with them."""

    def __init__(self, services: RunningServices, clock: ManualClock, store: Store) -> None:
        self.services = services
        self.clock = clock
        self.store = store
        self.topics = services.topics
        self.messaging = services.messaging
        self.transactions = services.transactions

    @classmethod
    async def start(
        cls,
        store: Store | None = None,
        clock: ManualClock | None = None,
        *,
        settings: Settings | None = None,
        cached: bool = True,
        cluster: Any | None = None,
        memory: LogLimits = LOG_LIMITS,
    ) -> Wired:
        """Services over a store; `cached=False` makes every fetch read it, a small `memory` nearly everything else."""
        store, clock = store or MemoryStore(), clock or ManualClock()
        messaging = MessagingSettings(cache_bytes_max=(1 << 20) if cached else 0)
        given = settings or Settings(messaging=messaging)
        if store.kind == "hbase" and given.store.kind != "hbase":
            opened: Any = store
            place = HBaseSettings(thrift2=opened.address, prefix=opened.prefix)
            given = replace(given, store=StoreSettings(kind="hbase", hbase=place))
        services = await open_services(given, None, store=store, clock=clock, cluster=cluster, memory=memory)
        return cls(services, clock, store)

    async def restarted(self, *, cached: bool = True) -> Wired:
        """The same store under new services, as after a crash."""
        return await Wired.start(self.store, self.clock, cached=cached)

    async def publish(self, title: TopicName, *messages: str, tx: Transaction | None = None) -> None:
        """Publish text messages, under the transaction's write pointer if one is given."""
        await self.messaging.publish(title, encoded(messages), None if tx is None else tx.write_pointer)

    async def store_aside(self, title: TopicName, *messages: str, tx: Transaction) -> None:
        """Store text messages under a transaction."""
        await self.messaging.store(title, encoded(messages), tx.write_pointer)

    async def commit(self, tx: Transaction, **work: Sequence[str]) -> None:
        """Commit, publishing what `orders=` and `invoices=` list."""
        await self.transactions.commit(tx.id, shop_work(**work))

    async def read(self, title: TopicName, *, tx: Transaction | None = None, committed: bool = False) -> list[str]:
        """All messages, as text: of everybody, committed, or under the transaction's snapshot."""
        snapshot = None if tx is None else tx.snapshot()
        return texts(await self.messaging.fetch(title, None, True, snapshot=snapshot, committed=committed))

    async def page_through(self, title: TopicName, limit: int, *, committed: bool = False) -> list[str]:
        """All messages, read `limit` at a time, each page from the last message's id on."""
        found: list[str] = []
        start: bytes | None = None
        while True:
            page = await self.messaging.fetch(title, start, start is None, messages_max=limit, committed=committed)
            if not page.messages:
                return found
            found += texts(page)
            start = page.slices[-1].last_id()


async def described(catalog: Catalog[Any, Any], namespace: str | None) -> list[tuple[Any, TopicMetadata]]:
    """All that is stored of each entry, deleted ones too."""
    return [each async for page in catalog.pages(namespace) for each in page]


def encoded(messages: Sequence[str]) -> list[bytes]:
    return [message.encode() for message in messages]


def texts(page: Fetch) -> list[str]:
    return [bytes(payload).decode() for piece in page.slices for payload in piece.payloads()]


def ids(page: Fetch) -> list[bytes]:
    return [message_id for piece in page.slices for message_id in piece.ids()]


def shop_work(orders: Sequence[str] = (), invoices: Sequence[str] = ()) -> Work:
    """Work that publishes to the two topics of the stories."""
    parts = [(A, orders), (B, invoices)]
    return Work(publish=[WorkPublish(*title, encoded(messages)) for title, messages in parts if messages])
