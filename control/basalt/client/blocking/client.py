# Generated from basalt/client/asynchronous/client.py by deploy/blocking_twin.py: edit that one, then run `make format`.
"""The client's objects, made of plans by a driver. docs/reference/client.md describes them for both clients.

Their methods are plans (`basalt.client.calls`, `basalt.client.transaction`), so each has one signature, one docstring and one
body: `publish = blocking(messages.publish)`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from ssl import SSLContext
from types import TracebackType
from typing import Self

from basalt.client import handles
from basalt.client.attempts import TIMEOUT_MS_DEFAULT, Environment, RetryPolicy
from basalt.client.blocking.driver import Driver, Items, blocking, opening
from basalt.client.blocking.transport import Credential, RedirectingTransport, Transport
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
from basalt.client.consumer.renewal import Renewal
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


class Reader(Items[Message], handles.ReaderFacts):
    """The messages of a topic, page after page. `pages()` gives them a page at a time, which costs less."""

    _cursor: TopicCursor

    def pages(self) -> Iterator[Page | list[Message]]:
        """The rest, a page at a time; the last may be a list, cut at the bounds."""
        while not self._cursor.done:
            page = self._driver.run(self._cursor.next_items())
            if page:
                yield page


class RowReader(Items[TableRow]):
    """The rows of a scan, page after page."""


class Follower(Items[Message], handles.FollowerFacts):
    """The messages of a topic in order, up to its end; markers are told on the way.

    With the blocking client a callback that is a coroutine function is a `TypeError`.
    """

    _cursor: FollowCursor

    def __init__(self, cursor: FollowCursor, driver: Driver) -> None:
        super().__init__(cursor, driver)
        cursor.refuse_coroutines()


class Batches(Items[Batch]):
    """The batches of a consumer, one after the other."""


class Topics(Handle[ClientScope, Driver]):
    """Topics by name: `client.topics`."""

    create = blocking(topics.create)
    would_create = blocking(topics.would_create)
    update = blocking(topics.update)
    would_update = blocking(topics.would_update)
    replace = blocking(topics.replace)
    get = blocking(topics.get)
    list = blocking(topics.names)
    delete = blocking(topics.delete)
    truncate = blocking(topics.truncate)


class Group(Handle[GroupScope, Driver], handles.GroupFacts):
    """One consumer group, for operators: `client.topic("orders").group("billing")`. To work for it use `client.consumer()`."""

    create = blocking(groups.create)
    get = blocking(groups.get)
    update = blocking(groups.update)
    delete = blocking(groups.delete)
    members = blocking(groups.members)
    remove_member = blocking(groups.remove_member)
    claims = blocking(groups.claims)
    slots = blocking(groups.slots)
    messages = blocking(groups.messages)
    message = blocking(groups.message)
    release = blocking(groups.give_back)
    seek = blocking(groups.seek)
    pause = blocking(groups.pause)
    resume = blocking(groups.resume)
    unpark = blocking(groups.unpark)
    report_position = blocking(groups.report_position)


class Topic(Handle[TopicScope, Driver], handles.NamedFacts[TopicScope]):
    """One topic: `client.topic("orders")`. Making one asks nothing of the server."""

    publish = blocking(messages.publish)
    publish_json = blocking(messages.publish_json)
    publish_records = blocking(messages.publish_records)
    store = blocking(messages.store)
    roll_back = blocking(messages.roll_back)
    poll = blocking(messages.poll)
    range = blocking(messages.read_range)
    publish_arrow = blocking(messages.publish_arrow)
    store_arrow = blocking(messages.store_arrow)
    stats = blocking(topics.stats)
    message = blocking(topics.message)
    peek = blocking(topics.peek)
    back = blocking(topics.back)
    holder = blocking(topics.holder)
    read = making(Reader, reading.read)
    watermark = blocking(topics.watermark)
    end = blocking(topics.end)
    markers = blocking(topics.markers)
    wait_until_ended = blocking(topics.wait_until_ended)
    stable_end = blocking(topics.stable_end)
    advance = blocking(topics.advance)
    splits = blocking(topics.splits)
    follow = making(Follower, reading.follow)
    group = making(Group, groups.group)
    groups = blocking(groups.list_groups)
    delete_producer = blocking(producers.delete_producer)
    producers = blocking(producers.producers)


class Tables(Handle[ClientScope, Driver]):
    """Tables by name: `client.tables`."""

    create = blocking(tables.create)
    get = blocking(tables.get_info)
    list = blocking(tables.names)
    delete = blocking(tables.delete)


class Table(Handle[TableScope, Driver], handles.NamedFacts[TableScope]):
    """One table as it is committed: `client.table("accounts")`. Making one asks nothing of the server."""

    get = blocking(tables.get)
    scan = making(RowReader, transactional_table.scan_committed)
    write = blocking(tables.write)


class TransactionalTable(Handle[TableInUse, Driver], handles.TransactionalTableFacts):
    """One table within a transaction: `tx.table("accounts")`. What is put and deleted is sent at the commit."""

    get = blocking(transactional_table.get)
    put = blocking(transactional_table.put)
    delete = blocking(transactional_table.delete)
    delete_row = blocking(transactional_table.delete_row)
    scan = making(RowReader, transactional_table.scan)


class Transactions(Handle[ClientScope, Driver]):
    """Transactions by id: `client.transactions`. For a block of work use `client.transaction()`."""

    begin = blocking(transactions.begin)
    get = blocking(transactions.get)
    list = blocking(transactions.open_ones)
    commit = blocking(transactions.commit)
    commit_segments = blocking(transactions.commit_segments)
    abort = blocking(transactions.abort)
    invalidate = blocking(transactions.invalidate)
    checkpoint = blocking(transactions.checkpoint)
    changes = blocking(transactions.changes)
    timeline = blocking(transactions.timeline)


class Transaction(Handle[OpenTransaction, Driver], handles.TransactionFacts):
    """`with client.transaction() as tx:` commits at the end of the block, or aborts when it raises."""

    publish = blocking(open_transaction.publish)
    publish_json = blocking(open_transaction.publish_json)
    store = blocking(open_transaction.store)
    poll = blocking(open_transaction.poll)
    read = making(Reader, open_transaction.read)
    table = making(TransactionalTable, transactional_table.in_use)
    watermark = blocking(open_transaction.watermark)
    end = blocking(open_transaction.end)
    acknowledge = blocking(open_transaction.acknowledge)
    reject = blocking(open_transaction.reject)
    changes = blocking(open_transaction.changes)
    checkpoint = blocking(commit_protocol.checkpoint)
    commit = blocking(commit_protocol.commit)
    abort = blocking(commit_protocol.abort)
    add = blocking(commit_protocol.add)
    _enter = blocking(commit_protocol.enter)
    _leave = blocking(commit_protocol.leave)

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, raised: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._leave(raised)


class Consumer(Handle[OpenConsumer, Driver], handles.ConsumerFacts):
    """`with client.consumer("orders", group="billing") as orders:` joins the group, and leaves it at the end of the block.

    Lease and claims are renewed from the side meanwhile.
    """

    batches = making(Batches, open_consumer.batches)
    process = blocking(processing.process)
    acknowledge = blocking(open_consumer.acknowledge)
    release = blocking(open_consumer.release)
    lag = blocking(open_consumer.lag)
    seek = blocking(open_consumer.seek)
    pause = blocking(open_consumer.pause)
    resume = blocking(open_consumer.resume)
    _enter = blocking(open_consumer.enter)
    _leave = blocking(open_consumer.leave)
    _renew = blocking(open_consumer.renew)

    def __init__(self, scope: OpenConsumer, driver: Driver) -> None:
        super().__init__(scope, driver)
        self._renewal: Renewal | None = None

    def close(self) -> None:
        """Leave the group; what is claimed goes back to it, uncounted. While `process` runs: have it return, with all decided."""
        self._scope.closing = True
        if not self._scope.processing:
            self._end(None)

    def _end(self, raised: BaseException | None) -> None:
        renewal, self._renewal = self._renewal, None  # first: another thread may close it at the same time
        if renewal is not None:
            renewal.stop()
            self._leave(raised)

    def __enter__(self) -> Self:
        self._enter()
        self._renewal = Renewal(self._renew, self._scope.renewal_ms())
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, raised: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end(raised)


class Session(Handle[SessionScope, Driver], handles.SessionFacts):
    """A session that this run holds: `client.session("billing", run="2026-11-22")`."""

    transaction = making(Transaction, open_transaction.transaction)


class Producer(Handle[ProducerScope, Driver], handles.ProducerFacts):
    """A named producer that this run holds: `client.producer("orders", "file-7", run="2026-11-23")`."""

    publish = blocking(producers.publish)


class NamedTransaction(Handle[NamedTransactionScope, Driver], handles.NamedTransactionFacts):
    """A transaction that several processes share: `client.named_transaction("etl", run, version)`. Ended by its id."""

    segment = blocking(transactions.segment)


class Sessions(Handle[ClientScope, Driver]):
    """Sessions by name: `client.sessions`. To work in one use `client.session()`."""

    get = blocking(transactions.get_session)
    list = blocking(transactions.list_sessions)
    delete = blocking(transactions.delete_session)


class Auth(Handle[ClientScope, Driver]):
    """Who this client is to the server, and what it may do: `client.auth`."""

    whoami = blocking(access.whoami)
    check = blocking(access.check)
    login = blocking(access.login)
    logout = blocking(access.logout)
    refusals = blocking(access.refusals)
    principals = blocking(access.principals)


class Tokens(Handle[ClientScope, Driver]):
    """Tokens, by their ids, which are no secrets: `client.tokens`."""

    create = blocking(access.create_token)
    list = blocking(access.list_tokens)
    get = blocking(access.get_token)
    rotate = blocking(access.rotate_token)
    revoke = blocking(access.revoke_token)


class Grants(Handle[ClientScope, Driver]):
    """Grants, by their ids: `client.grants`."""

    add = blocking(access.add_grant)
    list = blocking(access.list_grants)
    remove = blocking(access.remove_grant)


class Roles(Handle[ClientScope, Driver]):
    """Roles by name: `client.roles`."""

    list = blocking(access.list_roles)
    get = blocking(access.get_role)
    set = blocking(access.set_role)
    remove = blocking(access.remove_role)


class Quotas(Handle[ClientScope, Driver]):
    """The quotas of a server, by subject: `client.quotas`. docs/operations/security.md tells whose rule holds."""

    list = blocking(quotas.list_quotas)
    describe = blocking(quotas.describe_quota)
    set = blocking(quotas.set_quota)
    remove = blocking(quotas.remove_quota)


class Admin(Handle[ClientScope, Driver]):
    """The questions and acts of operators: `client.admin`. docs/reference/http-api.md describes the answers."""

    namespaces = blocking(admin.namespaces)
    topics = blocking(admin.topics)
    topics_page = blocking(admin.topics_page)
    jobs = blocking(admin.jobs)
    job = blocking(admin.job)
    run_job = blocking(admin.run_job)
    pause_job = blocking(admin.pause_job)
    resume_job = blocking(admin.resume_job)
    job_history = blocking(admin.job_history)
    settings = blocking(admin.settings)
    set_settings = blocking(admin.set_settings)
    metrics = blocking(admin.metrics)
    alerts = blocking(admin.alerts)
    process = blocking(admin.process)
    store = blocking(admin.store)
    cluster = blocking(admin.cluster)
    cluster_members = blocking(admin.cluster_members)
    move_shards = blocking(admin.move_shards)
    drain_member = blocking(admin.drain_member)
    undrain_member = blocking(admin.undrain_member)
    balance_shards = blocking(admin.balance_shards)
    cluster_shards = blocking(admin.cluster_shards)
    topic_owner = blocking(admin.topic_owner)
    table_owner = blocking(admin.table_owner)
    explain_topic = blocking(admin.explain_topic)
    snapshot = blocking(admin.snapshot)
    publish_snapshot = blocking(admin.publish_snapshot)
    prune_status = blocking(admin.prune_status)
    prune = blocking(admin.prune)
    prune_explain = blocking(admin.prune_explain)
    prune_invalid = blocking(admin.prune_invalid)
    prune_compact = blocking(admin.prune_compact)
    prune_regions = blocking(admin.prune_regions)
    prune_region = blocking(admin.prune_region)
    prune_history = blocking(admin.prune_history)
    prune_restore = blocking(admin.prune_restore)
    tables = blocking(admin.tables)
    groups = blocking(admin.groups)
    pipelines = blocking(admin.pipelines)
    transactions = blocking(admin.transactions)
    hanging_transactions = blocking(admin.hanging_transactions)
    invalid_transactions = blocking(admin.invalid_transactions)
    describe_transaction = blocking(admin.describe_transaction)
    abort_transaction = blocking(admin.abort_transaction)
    invalidate_transaction = blocking(admin.invalidate_transaction)
    audit = blocking(admin.audit)
    series = blocking(admin.series)
    backup = blocking(admin.backup)
    backups = blocking(admin.backups)
    verify_backup = blocking(admin.verify_backup)
    delete_backup = blocking(admin.delete_backup)


class Client(Handle[ClientScope, Driver]):
    """A connection to a server, or to a store in this process. Any number of threads may use it at once."""

    topic = making(Topic, ClientScope.topic)
    table = making(Table, ClientScope.table)
    transaction = making(Transaction, open_transaction.transaction)
    consumer = making(Consumer, open_consumer.consumer)
    producer = opening(Producer, producers.open_producer)
    session = opening(Session, transactions.open_session)
    named_transaction = opening(NamedTransaction, transactions.named_transaction)
    publish_atomically = blocking(processing.publish_atomically)
    ready = blocking(admin.ready)
    live = blocking(admin.live)
    version = blocking(admin.version)

    def __init__(self, scope: ClientScope, driver: Driver) -> None:
        super().__init__(scope, driver)
        self.topics = Topics(scope, driver)
        self.tables = Tables(scope, driver)
        self.transactions = Transactions(scope, driver)
        self.sessions = Sessions(scope, driver)
        self.auth = Auth(scope, driver)
        self.tokens = Tokens(scope, driver)
        self.grants = Grants(scope, driver)
        self.roles = Roles(scope, driver)
        self.quotas = Quotas(scope, driver)
        self.admin = Admin(scope, driver)

    @property
    def namespace(self) -> str:
        """The namespace that topic names are in, unless a call says otherwise."""
        return self._scope.namespace

    def close(self) -> None:
        """Close every connection. An embedded store is closed too."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


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
) -> Client:
    """Make a client of the server (or servers) at this URL, as `basalt.connect`, which also takes `embedded:`. Nothing is sent yet."""
    # Here, for the client's library is large, and blocking clients do without it.
    from basalt.client.http_transport import HttpTransport

    token = hidden(token)
    clock, servers, retries = SystemClock(), parse_urls(url), RetryPolicy(timeout_ms, attempts_max)
    source, always = credential_of(token, headers or {}, kerberos=kerberos)
    if kerberos:
        check_library()
    secured = tls_context(tls, secure=servers[0].scheme == "https")
    if (kerberos or proves(source, always)) and (plain := in_the_open(servers)) is not None:
        log.warning("what proves who calls goes to %s without TLS: whoever is on the way there can read it", plain)

    def open_one(server: ServerUrl) -> Transport:
        return HttpTransport(server, headers=always, tls=secured, sign=negotiate if kerberos else None)

    transport = RedirectingTransport(
        Servers(servers, open_one, clock.monotonic_ms, guarded=kerberos or source is not None or bool(always)),
        None if source is None else Credential(source, clock.now_ms),
    )
    return client_of(transport, shown(servers), namespace, retries, clock, dedup=dedup)


def client_of(
    transport: Transport, url: str, namespace: str, retries: RetryPolicy, clock: Clock, *, dedup: bool = True
) -> Client:
    """Make a client over this transport; `url` is for error messages. With `dedup` it numbers what it publishes."""
    from time import sleep

    driver = Driver(transport, Environment(retries, url, clock.monotonic_ms), sleep)
    automatic = AutomaticProducers(clock.monotonic_ms) if dedup else None
    return Client(ClientScope(namespace, clock.now_ms, automatic), driver)
