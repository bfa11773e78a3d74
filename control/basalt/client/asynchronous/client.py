"""The client's objects. Their methods are plans (`basalt.client.calls`, `basalt.client.transaction`), run by a driver.

docs/reference/client.md describes them for both clients.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from basalt.api.bodies.transactions import Outcome
from basalt.client.asynchronous.driver import AsyncDriver, AsyncHandle, awaiting, making, opening
from basalt.client.asynchronous.iterators import AsyncFollower, AsyncReader, AsyncRowReader
from basalt.client.calls import (
    admin,
    arrow,
    following,
    messages,
    ranges,
    reading,
    sessions,
    tables,
    topics,
    transactions,
)
from basalt.client.calls import markers as marker_calls
from basalt.client.calls.sessions import NamedScope, SessionScope
from basalt.client.plans.scopes import ClientScope, TableScope, TopicScope
from basalt.client.transaction import commit_protocol, open_transaction, transactional_table
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.client.transaction.transactional_table import TableInUse


class AsyncTopics(AsyncHandle[ClientScope]):
    """Topics by name: `client.topics`."""

    create = awaiting(topics.create)
    update = awaiting(topics.update)
    replace = awaiting(topics.replace)
    get = awaiting(topics.get)
    list = awaiting(topics.names)
    delete = awaiting(topics.delete)
    truncate = awaiting(topics.truncate)


class AsyncTopic(AsyncHandle[TopicScope]):
    """One topic: `client.topic("orders")`. Making one asks nothing of the server."""

    publish = awaiting(messages.publish)
    publish_records = awaiting(messages.publish_records)
    store = awaiting(messages.store)
    roll_back = awaiting(messages.roll_back)
    poll = awaiting(messages.poll)
    range = awaiting(arrow.read_range)
    publish_arrow = awaiting(arrow.publish_arrow)
    store_arrow = awaiting(arrow.store_arrow)
    stats = awaiting(topics.stats)
    message = awaiting(topics.message)
    peek = awaiting(topics.peek)
    holder = awaiting(topics.holder)
    read = making(AsyncReader, reading.read)
    watermark = awaiting(marker_calls.watermark)
    end = awaiting(marker_calls.end)
    markers = awaiting(marker_calls.facts)
    wait_until_ended = awaiting(marker_calls.wait_until_ended)
    stable_end = awaiting(ranges.stable_end)
    advance = awaiting(ranges.advance)
    splits = awaiting(ranges.splits)
    follow = making(AsyncFollower, following.follow)

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.namespace


class AsyncTables(AsyncHandle[ClientScope]):
    """Tables by name: `client.tables`."""

    create = awaiting(tables.create)
    get = awaiting(tables.get_info)
    list = awaiting(tables.names)
    delete = awaiting(tables.delete)


class AsyncTable(AsyncHandle[TableScope]):
    """One table as it is committed: `client.table("accounts")`. Making one asks nothing of the server."""

    get = awaiting(tables.get)
    scan = making(AsyncRowReader, transactional_table.scan_committed)
    write = awaiting(tables.write)

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.namespace


class AsyncTransactionalTable(AsyncHandle[TableInUse]):
    """One table within a transaction: `tx.table("accounts")`. What is put and deleted is sent at the commit."""

    get = awaiting(transactional_table.get)
    put = awaiting(transactional_table.put)
    delete = awaiting(transactional_table.delete)
    delete_row = awaiting(transactional_table.delete_row)
    scan = making(AsyncRowReader, transactional_table.scan)

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.scope.namespace


class AsyncTransactions(AsyncHandle[ClientScope]):
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


class AsyncTransaction(AsyncHandle[OpenTransaction]):
    """`async with client.transaction() as tx:` commits at the end of the block, or aborts when it raises."""

    publish = awaiting(open_transaction.publish)
    store = awaiting(open_transaction.store)
    poll = awaiting(open_transaction.poll)
    read = making(AsyncReader, open_transaction.read)
    table = making(AsyncTransactionalTable, transactional_table.in_use)
    watermark = awaiting(open_transaction.watermark)
    end = awaiting(open_transaction.end)
    changes = awaiting(open_transaction.changes)
    checkpoint = awaiting(commit_protocol.checkpoint)
    commit = awaiting(commit_protocol.commit)
    abort = awaiting(commit_protocol.abort)
    add = awaiting(commit_protocol.add)
    _enter = awaiting(commit_protocol.enter)
    _leave = awaiting(commit_protocol.leave)

    @property
    def id(self) -> str:
        """Its id, as the server and its operators know it."""
        return self._scope.described().id

    @property
    def write_pointer(self) -> int:
        """The pointer that it writes under, for writes elsewhere."""
        return self._scope.described().write_pointer

    @property
    def committed_before(self) -> bool:
        """True if its session had committed this version before: leave the block's work out, there is no transaction."""
        return self._scope.committed_before

    @property
    def outcome(self) -> Outcome | None:
        """The transaction's end; None while it is open, and when the end could not be learnt."""
        return self._scope.outcome

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, raised: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._leave(raised)


class AsyncSession(AsyncHandle[SessionScope]):
    """A session that this run holds: `await client.session("billing", run="2026-11-22")`."""

    transaction = making(AsyncTransaction, open_transaction.transaction_in)

    @property
    def name(self) -> str:
        """Its name."""
        return self._scope.name

    @property
    def run(self) -> str:
        """The run that opened it: this one."""
        return self._scope.run

    @property
    def epoch(self) -> int:
        """The epoch that this run holds; once another run opens the session, it is over."""
        return self._scope.epoch

    @property
    def version(self) -> int | None:
        """The newest version of its work that was committed when it was opened; None: none was."""
        return self._scope.version


class AsyncNamedTransaction(AsyncHandle[NamedScope]):
    """A transaction that several processes share: `client.named_transaction("etl", run, version)`. Ended by its id."""

    segment = awaiting(sessions.segment)

    @property
    def committed_before(self) -> bool:
        """True if its session had committed this version before: leave the work out, there is no transaction."""
        return self._scope.id is None

    @property
    def committed_by(self) -> str | None:
        """The transaction that had committed the session's newest version then; None: this one is open."""
        return self._scope.committed_by

    @property
    def id(self) -> str:
        """Its id, which commits or aborts it. `TransactionEndedError` when its version was committed before."""
        return self._scope.described()[0]

    @property
    def write_pointer(self) -> int:
        """Its newest write pointer when it was begun or joined. Others may store under it: see `segment`."""
        return self._scope.described()[1]

    @property
    def expires_ms(self) -> int | None:
        """When the server aborts it, by its clock."""
        return self._scope.expires_ms


class AsyncSessions(AsyncHandle[ClientScope]):
    """Sessions by name: `client.sessions`. To work in one use `client.session()`."""

    get = awaiting(sessions.get)
    list = awaiting(sessions.known)
    delete = awaiting(sessions.delete)


class AsyncAdmin(AsyncHandle[ClientScope]):
    """The questions and acts of operators: `client.admin`. docs/reference/http-api.md describes the answers."""

    namespaces = awaiting(admin.namespaces)
    topics = awaiting(admin.topics)
    jobs = awaiting(admin.jobs)
    run_job = awaiting(admin.run_job)
    pause_job = awaiting(admin.pause_job)
    resume_job = awaiting(admin.resume_job)
    job_history = awaiting(admin.job_history)
    settings = awaiting(admin.settings)
    store = awaiting(admin.store)
    snapshot = awaiting(admin.snapshot)
    publish_snapshot = awaiting(admin.publish_snapshot)
    prune_status = awaiting(admin.prune_status)
    prune = awaiting(admin.prune)
    prune_explain = awaiting(admin.prune_explain)
    prune_regions = awaiting(admin.prune_regions)
    prune_region = awaiting(admin.prune_region)
    prune_history = awaiting(admin.prune_history)
    prune_restore = awaiting(admin.prune_restore)
    transactions = awaiting(admin.transactions)
    hanging_transactions = awaiting(admin.hanging_transactions)
    describe_transaction = awaiting(admin.describe_transaction)
    abort_transaction = awaiting(admin.abort_transaction)
    invalidate_transaction = awaiting(admin.invalidate_transaction)
    audit = awaiting(admin.audit)
    backup = awaiting(admin.backup)


class AsyncClient(AsyncHandle[ClientScope]):
    """A connection to a server, or to a store in this process. Any number of tasks of one event loop may use it at once."""

    topic = making(AsyncTopic, ClientScope.topic)
    table = making(AsyncTable, ClientScope.table)
    transaction = making(AsyncTransaction, open_transaction.transaction)
    session = opening(AsyncSession, sessions.open_session)
    named_transaction = opening(AsyncNamedTransaction, sessions.named_transaction)
    publish_atomically = awaiting(transactions.publish_atomically)
    ready = awaiting(admin.ready)
    live = awaiting(admin.live)
    version = awaiting(admin.version)

    def __init__(self, scope: ClientScope, driver: AsyncDriver) -> None:
        super().__init__(scope, driver)
        self.topics = AsyncTopics(scope, driver)
        self.tables = AsyncTables(scope, driver)
        self.transactions = AsyncTransactions(scope, driver)
        self.sessions = AsyncSessions(scope, driver)
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
