"""The client's objects, made of plans by a driver. docs/reference/client.md describes them for both clients.

Their methods are plans (`basalt.client.calls`, `basalt.client.transaction`), so each has one signature, one docstring and one
body: `publish = awaiting(messages.publish)`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from ssl import SSLContext
from types import TracebackType
from typing import Self

from basalt.client import handles
from basalt.client.asynchronous.driver import AsyncDriver, AsyncItems, awaiting, opening
from basalt.client.asynchronous.transport import AsyncCredential, AsyncRedirectingTransport, AsyncTransport
from basalt.client.attempts import TIMEOUT_MS_DEFAULT, Environment, RetryPolicy
from basalt.client.calls import (
    access,
    admin,
    groups,
    messages,
    producers,
    quotas,
    reading,
    tables,
    topics,
    transactions,
)
from basalt.client.calls.groups import GroupScope
from basalt.client.calls.pages import Message, Page
from basalt.client.calls.producers import ProducerScope
from basalt.client.calls.reading import FollowCursor, TopicCursor
from basalt.client.calls.tables import TableRow
from basalt.client.calls.transactions import NamedTransactionScope, SessionScope
from basalt.client.consumer import open_consumer, processing
from basalt.client.consumer.batches import Batch
from basalt.client.consumer.open_consumer import OpenConsumer
from basalt.client.consumer.renewal import AsyncRenewal
from basalt.client.credential import Token, credential_of, hidden, proves
from basalt.client.handles import Handle, making
from basalt.client.kerberos import check_library, negotiate
from basalt.client.plans import ClientScope, TableScope, TopicScope
from basalt.client.producers import AutomaticProducers
from basalt.client.servers import Servers, ServerUrl, in_the_open, parse_urls, shown
from basalt.client.tls import Tls, tls_context
from basalt.client.transaction import commit_protocol, open_transaction, transactional_table
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.client.transaction.transactional_table import TableInUse
from basalt_engine.clock import Clock, SystemClock

NAMESPACE_DEFAULT = "default"
log = logging.getLogger("basalt.client")


class AsyncReader(AsyncItems[Message], handles.ReaderFacts):
    """The messages of a topic, page after page. `pages()` gives them a page at a time, which costs less."""

    _cursor: TopicCursor

    async def pages(self) -> AsyncIterator[Page | list[Message]]:
        """The rest, a page at a time; the last may be a list, cut at the bounds."""
        while not self._cursor.done:
            page = await self._driver.run(self._cursor.next_items())
            if page:
                yield page


class AsyncRowReader(AsyncItems[TableRow]):
    """The rows of a scan, page after page."""


class AsyncFollower(AsyncItems[Message], handles.FollowerFacts):
    """The messages of a topic in order, up to its end; markers are told on the way.

    With the blocking client a callback that is a coroutine function is a `TypeError`.
    """

    _cursor: FollowCursor

    def __init__(self, cursor: FollowCursor, driver: AsyncDriver) -> None:
        super().__init__(cursor, driver)
        # blocking: cursor.refuse_coroutines()


class AsyncBatches(AsyncItems[Batch]):
    """The batches of a consumer, one after the other."""


class AsyncTopics(Handle[ClientScope, AsyncDriver]):
    """Topics by name: `client.topics`."""

    create = awaiting(topics.create)
    would_create = awaiting(topics.would_create)
    update = awaiting(topics.update)
    would_update = awaiting(topics.would_update)
    replace = awaiting(topics.replace)
    get = awaiting(topics.get)
    list = awaiting(topics.names)
    delete = awaiting(topics.delete)
    truncate = awaiting(topics.truncate)


class AsyncGroup(Handle[GroupScope, AsyncDriver], handles.GroupFacts):
    """One consumer group, for operators: `client.topic("orders").group("billing")`. To work for it use `client.consumer()`."""

    create = awaiting(groups.create)
    get = awaiting(groups.get)
    update = awaiting(groups.update)
    delete = awaiting(groups.delete)
    members = awaiting(groups.members)
    remove_member = awaiting(groups.remove_member)
    claims = awaiting(groups.claims)
    slots = awaiting(groups.slots)
    messages = awaiting(groups.messages)
    message = awaiting(groups.message)
    release = awaiting(groups.give_back)
    seek = awaiting(groups.seek)
    pause = awaiting(groups.pause)
    resume = awaiting(groups.resume)
    unpark = awaiting(groups.unpark)
    report_position = awaiting(groups.report_position)


class AsyncTopic(Handle[TopicScope, AsyncDriver], handles.NamedFacts[TopicScope]):
    """One topic: `client.topic("orders")`. Making one asks nothing of the server."""

    publish = awaiting(messages.publish)
    publish_json = awaiting(messages.publish_json)
    publish_records = awaiting(messages.publish_records)
    store = awaiting(messages.store)
    roll_back = awaiting(messages.roll_back)
    poll = awaiting(messages.poll)
    range = awaiting(messages.read_range)
    publish_arrow = awaiting(messages.publish_arrow)
    store_arrow = awaiting(messages.store_arrow)
    stats = awaiting(topics.stats)
    message = awaiting(topics.message)
    peek = awaiting(topics.peek)
    back = awaiting(topics.back)
    holder = awaiting(topics.holder)
    read = making(AsyncReader, reading.read)
    watermark = awaiting(topics.watermark)
    end = awaiting(topics.end)
    markers = awaiting(topics.markers)
    wait_until_ended = awaiting(topics.wait_until_ended)
    stable_end = awaiting(topics.stable_end)
    advance = awaiting(topics.advance)
    splits = awaiting(topics.splits)
    follow = making(AsyncFollower, reading.follow)
    group = making(AsyncGroup, groups.group)
    groups = awaiting(groups.list_groups)
    delete_producer = awaiting(producers.delete_producer)
    producers = awaiting(producers.producers)


class AsyncTables(Handle[ClientScope, AsyncDriver]):
    """Tables by name: `client.tables`."""

    create = awaiting(tables.create)
    get = awaiting(tables.get_info)
    list = awaiting(tables.names)
    delete = awaiting(tables.delete)


class AsyncTable(Handle[TableScope, AsyncDriver], handles.NamedFacts[TableScope]):
    """One table as it is committed: `client.table("accounts")`. Making one asks nothing of the server."""

    get = awaiting(tables.get)
    scan = making(AsyncRowReader, transactional_table.scan_committed)
    write = awaiting(tables.write)


class AsyncTransactionalTable(Handle[TableInUse, AsyncDriver], handles.TransactionalTableFacts):
    """One table within a transaction: `tx.table("accounts")`. What is put and deleted is sent at the commit."""

    get = awaiting(transactional_table.get)
    put = awaiting(transactional_table.put)
    delete = awaiting(transactional_table.delete)
    delete_row = awaiting(transactional_table.delete_row)
    scan = making(AsyncRowReader, transactional_table.scan)


class AsyncTransactions(Handle[ClientScope, AsyncDriver]):
    """Transactions by id: `client.transactions`. For a block of work use `client.transaction()`."""

    begin = awaiting(transactions.begin)
    get = awaiting(transactions.get)
    list = awaiting(transactions.open_ones)
    commit = awaiting(transactions.commit)
    commit_segments = awaiting(transactions.commit_segments)
    abort = awaiting(transactions.abort)
    invalidate = awaiting(transactions.invalidate)
    checkpoint = awaiting(transactions.checkpoint)
    changes = awaiting(transactions.changes)
    timeline = awaiting(transactions.timeline)


class AsyncTransaction(Handle[OpenTransaction, AsyncDriver], handles.TransactionFacts):
    """`async with client.transaction() as tx:` commits at the end of the block, or aborts when it raises."""

    publish = awaiting(open_transaction.publish)
    publish_json = awaiting(open_transaction.publish_json)
    store = awaiting(open_transaction.store)
    poll = awaiting(open_transaction.poll)
    read = making(AsyncReader, open_transaction.read)
    table = making(AsyncTransactionalTable, transactional_table.in_use)
    watermark = awaiting(open_transaction.watermark)
    end = awaiting(open_transaction.end)
    acknowledge = awaiting(open_transaction.acknowledge)
    reject = awaiting(open_transaction.reject)
    changes = awaiting(open_transaction.changes)
    checkpoint = awaiting(commit_protocol.checkpoint)
    commit = awaiting(commit_protocol.commit)
    abort = awaiting(commit_protocol.abort)
    add = awaiting(commit_protocol.add)
    _enter = awaiting(commit_protocol.enter)
    _leave = awaiting(commit_protocol.leave)

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, raised: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._leave(raised)


class AsyncConsumer(Handle[OpenConsumer, AsyncDriver], handles.ConsumerFacts):
    """`async with client.consumer("orders", group="billing") as orders:` joins the group, and leaves it at the end of the block.

    Lease and claims are renewed from the side meanwhile.
    """

    batches = making(AsyncBatches, open_consumer.batches)
    process = awaiting(processing.process)
    acknowledge = awaiting(open_consumer.acknowledge)
    release = awaiting(open_consumer.release)
    lag = awaiting(open_consumer.lag)
    seek = awaiting(open_consumer.seek)
    pause = awaiting(open_consumer.pause)
    resume = awaiting(open_consumer.resume)
    _enter = awaiting(open_consumer.enter)
    _leave = awaiting(open_consumer.leave)
    _renew = awaiting(open_consumer.renew)

    def __init__(self, scope: OpenConsumer, driver: AsyncDriver) -> None:
        super().__init__(scope, driver)
        self._renewal: AsyncRenewal | None = None

    async def close(self) -> None:
        """Leave the group; what is claimed goes back to it, uncounted. While `process` runs: have it return, with all decided."""
        self._scope.closing = True
        if not self._scope.processing:
            await self._end(None)

    async def _end(self, raised: BaseException | None) -> None:
        renewal, self._renewal = self._renewal, None  # first: another thread may close it at the same time
        if renewal is not None:
            await renewal.stop()
            await self._leave(raised)

    async def __aenter__(self) -> Self:
        await self._enter()
        self._renewal = AsyncRenewal(self._renew, self._scope.renewal_ms())
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, raised: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._end(raised)


class AsyncSession(Handle[SessionScope, AsyncDriver], handles.SessionFacts):
    """A session that this run holds: `await client.session("billing", run="2026-11-22")`."""

    transaction = making(AsyncTransaction, open_transaction.transaction)


class AsyncProducer(Handle[ProducerScope, AsyncDriver], handles.ProducerFacts):
    """A named producer that this run holds: `await client.producer("orders", "file-7", run="2026-11-23")`."""

    publish = awaiting(producers.publish)


class AsyncNamedTransaction(Handle[NamedTransactionScope, AsyncDriver], handles.NamedTransactionFacts):
    """A transaction that several processes share: `client.named_transaction("etl", run, version)`. Ended by its id."""

    segment = awaiting(transactions.segment)


class AsyncSessions(Handle[ClientScope, AsyncDriver]):
    """Sessions by name: `client.sessions`. To work in one use `client.session()`."""

    get = awaiting(transactions.get_session)
    list = awaiting(transactions.list_sessions)
    delete = awaiting(transactions.delete_session)


class AsyncAuth(Handle[ClientScope, AsyncDriver]):
    """Who this client is to the server, and what it may do: `client.auth`."""

    whoami = awaiting(access.whoami)
    check = awaiting(access.check)
    login = awaiting(access.login)
    logout = awaiting(access.logout)
    refusals = awaiting(access.refusals)
    principals = awaiting(access.principals)


class AsyncTokens(Handle[ClientScope, AsyncDriver]):
    """Tokens, by their ids, which are no secrets: `client.tokens`."""

    create = awaiting(access.create_token)
    list = awaiting(access.list_tokens)
    get = awaiting(access.get_token)
    rotate = awaiting(access.rotate_token)
    revoke = awaiting(access.revoke_token)


class AsyncGrants(Handle[ClientScope, AsyncDriver]):
    """Grants, by their ids: `client.grants`."""

    add = awaiting(access.add_grant)
    list = awaiting(access.list_grants)
    remove = awaiting(access.remove_grant)


class AsyncRoles(Handle[ClientScope, AsyncDriver]):
    """Roles by name: `client.roles`."""

    list = awaiting(access.list_roles)
    get = awaiting(access.get_role)
    set = awaiting(access.set_role)
    remove = awaiting(access.remove_role)


class AsyncQuotas(Handle[ClientScope, AsyncDriver]):
    """The quotas of a server, by subject: `client.quotas`. docs/operations/security.md tells whose rule holds."""

    list = awaiting(quotas.list_quotas)
    describe = awaiting(quotas.describe_quota)
    set = awaiting(quotas.set_quota)
    remove = awaiting(quotas.remove_quota)


class AsyncAdmin(Handle[ClientScope, AsyncDriver]):
    """The questions and acts of operators: `client.admin`. docs/reference/http-api.md describes the answers."""

    namespaces = awaiting(admin.namespaces)
    topics = awaiting(admin.topics)
    topics_page = awaiting(admin.topics_page)
    jobs = awaiting(admin.jobs)
    job = awaiting(admin.job)
    run_job = awaiting(admin.run_job)
    pause_job = awaiting(admin.pause_job)
    resume_job = awaiting(admin.resume_job)
    job_history = awaiting(admin.job_history)
    settings = awaiting(admin.settings)
    set_settings = awaiting(admin.set_settings)
    metrics = awaiting(admin.metrics)
    alerts = awaiting(admin.alerts)
    process = awaiting(admin.process)
    store = awaiting(admin.store)
    cluster = awaiting(admin.cluster)
    cluster_members = awaiting(admin.cluster_members)
    move_shards = awaiting(admin.move_shards)
    drain_member = awaiting(admin.drain_member)
    undrain_member = awaiting(admin.undrain_member)
    balance_shards = awaiting(admin.balance_shards)
    cluster_shards = awaiting(admin.cluster_shards)
    topic_owner = awaiting(admin.topic_owner)
    table_owner = awaiting(admin.table_owner)
    explain_topic = awaiting(admin.explain_topic)
    snapshot = awaiting(admin.snapshot)
    publish_snapshot = awaiting(admin.publish_snapshot)
    prune_status = awaiting(admin.prune_status)
    prune = awaiting(admin.prune)
    prune_explain = awaiting(admin.prune_explain)
    prune_invalid = awaiting(admin.prune_invalid)
    prune_compact = awaiting(admin.prune_compact)
    prune_regions = awaiting(admin.prune_regions)
    prune_region = awaiting(admin.prune_region)
    prune_history = awaiting(admin.prune_history)
    prune_restore = awaiting(admin.prune_restore)
    tables = awaiting(admin.tables)
    groups = awaiting(admin.groups)
    pipelines = awaiting(admin.pipelines)
    transactions = awaiting(admin.transactions)
    hanging_transactions = awaiting(admin.hanging_transactions)
    invalid_transactions = awaiting(admin.invalid_transactions)
    describe_transaction = awaiting(admin.describe_transaction)
    abort_transaction = awaiting(admin.abort_transaction)
    invalidate_transaction = awaiting(admin.invalidate_transaction)
    audit = awaiting(admin.audit)
    series = awaiting(admin.series)
    backup = awaiting(admin.backup)
    backups = awaiting(admin.backups)
    verify_backup = awaiting(admin.verify_backup)
    delete_backup = awaiting(admin.delete_backup)


class AsyncClient(Handle[ClientScope, AsyncDriver]):
    """A connection to a server, or to a store in this process. Any number of tasks of one event loop may use it at once."""

    topic = making(AsyncTopic, ClientScope.topic)
    table = making(AsyncTable, ClientScope.table)
    transaction = making(AsyncTransaction, open_transaction.transaction)
    consumer = making(AsyncConsumer, open_consumer.consumer)
    producer = opening(AsyncProducer, producers.open_producer)
    session = opening(AsyncSession, transactions.open_session)
    named_transaction = opening(AsyncNamedTransaction, transactions.named_transaction)
    publish_atomically = awaiting(processing.publish_atomically)
    ready = awaiting(admin.ready)
    live = awaiting(admin.live)
    version = awaiting(admin.version)

    def __init__(self, scope: ClientScope, driver: AsyncDriver) -> None:
        super().__init__(scope, driver)
        self.topics = AsyncTopics(scope, driver)
        self.tables = AsyncTables(scope, driver)
        self.transactions = AsyncTransactions(scope, driver)
        self.sessions = AsyncSessions(scope, driver)
        self.auth = AsyncAuth(scope, driver)
        self.tokens = AsyncTokens(scope, driver)
        self.grants = AsyncGrants(scope, driver)
        self.roles = AsyncRoles(scope, driver)
        self.quotas = AsyncQuotas(scope, driver)
        self.admin = AsyncAdmin(scope, driver)

    @property
    def namespace(self) -> str:
        """The namespace that topic names are in, unless a call says otherwise."""
        return self._scope.namespace

    async def close(self) -> None:
        """Close every connection. An embedded store is closed too."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()


def connect(
    url: str,
    *,
    namespace: str = NAMESPACE_DEFAULT,
    timeout_ms: int = TIMEOUT_MS_DEFAULT,
    attempts_max: int | None = None,
    token: Token | None = None,
    headers: Mapping[str, str] | None = None,
    tls: SSLContext | Tls | None = None,
    kerberos: bool = False,
    dedup: bool = True,
) -> AsyncClient:
    """Make a client of the server (or servers) at this URL, as `basalt.connect`, which also takes `embedded:`. Nothing is sent yet."""
    # Here, for the async client's library is large, and blocking clients do without it.
    from basalt.client.aiohttp_transport import AiohttpTransport

    token = hidden(token)
    clock, servers, retries = SystemClock(), parse_urls(url), RetryPolicy(timeout_ms, attempts_max)
    source, always = credential_of(token, headers or {}, kerberos=kerberos)
    if kerberos:
        check_library()
    secured = tls_context(tls, secure=servers[0].scheme == "https")
    if (kerberos or proves(source, always)) and (plain := in_the_open(servers)) is not None:
        log.warning("what proves who calls goes to %s without TLS: whoever is on the way there can read it", plain)

    def open_one(server: ServerUrl) -> AsyncTransport:
        return AiohttpTransport(server, headers=always, tls=secured, sign=negotiate if kerberos else None)

    transport = AsyncRedirectingTransport(
        Servers(servers, open_one, clock.monotonic_ms, guarded=kerberos or source is not None or bool(always)),
        None if source is None else AsyncCredential(source, clock.now_ms),
    )
    return client_of(transport, shown(servers), namespace, retries, clock, dedup=dedup)


def client_of(
    transport: AsyncTransport, url: str, namespace: str, retries: RetryPolicy, clock: Clock, *, dedup: bool = True
) -> AsyncClient:
    """Make a client over this transport; `url` is for error messages. With `dedup` it numbers what it publishes."""
    from asyncio import sleep  # blocking: from time import sleep

    driver = AsyncDriver(transport, Environment(retries, url, clock.monotonic_ms), sleep)
    automatic = AutomaticProducers(clock.monotonic_ms) if dedup else None
    return AsyncClient(ClientScope(namespace, clock.now_ms, automatic), driver)
