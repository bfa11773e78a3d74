"""The async client: the same plans as `blocking_client`, awaited. docs/reference/client.md describes both."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from basalt.api.bodies.transactions import TransactionKind
from basalt.client import following as following_plans
from basalt.client import reading as reading_plans
from basalt.client.calls import admin, arrow, messages, ranges, sessions, topic_facts, topics
from basalt.client.calls import markers as marker_plans
from basalt.client.calls.sessions import SessionScope
from basalt.client.followers import async_following
from basalt.client.handles import AsyncHandle, NamedFacts, SessionFacts, TopicFacts, TransactionFacts, awaiting
from basalt.client.plans.drivers import AsyncDriver
from basalt.client.plans.scopes import ClientScope, TopicScope
from basalt.client.readers import async_reading
from basalt.client.table_handles import AsyncTable, AsyncTables, AsyncTransactionalTable
from basalt.client.transaction import commit_protocol as ending
from basalt.client.transaction import named_transactions, open_transaction, participation, transactions
from basalt.client.transaction.named_transactions import NamedScope
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.client.transaction.participants import Participant
from basalt.client.transaction.transactional_table import in_use


class AsyncTopics(AsyncHandle[ClientScope]):
    """Topics by name: `client.topics`."""

    create = awaiting(topics.create)
    update = awaiting(topics.update)
    replace = awaiting(topics.replace)
    get = awaiting(topics.get)
    list = awaiting(topics.names)
    delete = awaiting(topics.delete)
    truncate = awaiting(topics.truncate)


class AsyncTopic(TopicFacts, AsyncHandle[TopicScope]):
    """One topic: `client.topic("orders")`. Making one asks nothing of the server."""

    publish = awaiting(messages.publish)
    publish_records = awaiting(messages.publish_records)
    store = awaiting(messages.store)
    roll_back = awaiting(messages.roll_back)
    poll = awaiting(messages.poll)
    range = awaiting(arrow.read_range)
    publish_arrow = awaiting(arrow.publish_arrow)
    store_arrow = awaiting(arrow.store_arrow)
    stats = awaiting(topic_facts.stats)
    message = awaiting(topic_facts.message)
    peek = awaiting(topic_facts.peek)
    holder = awaiting(topic_facts.holder)
    read = async_reading(reading_plans.read)
    watermark = awaiting(marker_plans.watermark)
    end = awaiting(marker_plans.end)
    markers = awaiting(marker_plans.facts)
    wait_until_ended = awaiting(marker_plans.wait_until_ended)
    stable_end = awaiting(ranges.stable_end)
    advance = awaiting(ranges.advance)
    splits = awaiting(ranges.splits)
    follow = async_following(following_plans.follow)


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


class AsyncTransaction(TransactionFacts, AsyncHandle[OpenTransaction]):
    """`async with client.transaction() as tx:` commits at the end of the block, or aborts when it raises."""

    publish = awaiting(open_transaction.publish)
    store = awaiting(open_transaction.store)
    poll = awaiting(open_transaction.poll)
    read = async_reading(open_transaction.read)
    watermark = awaiting(open_transaction.watermark)
    end = awaiting(open_transaction.end)
    changes = awaiting(open_transaction.changes)
    checkpoint = awaiting(participation.checkpoint)
    commit = awaiting(ending.commit)
    abort = awaiting(ending.abort)
    add = awaiting(participation.add)
    _enter = awaiting(participation.enter)
    _leave = awaiting(ending.leave)

    def table(self, name: str, *, namespace: str | None = None) -> AsyncTransactionalTable:
        """A table as this transaction sees and changes it. Nothing is asked of the server."""
        return AsyncTransactionalTable(in_use(self._scope, name, namespace), self._driver)

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, raised: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._leave(raised)


class AsyncSession(SessionFacts, AsyncHandle[SessionScope]):
    """A session that this run holds: `await client.session("billing", run="2026-11-22")`."""

    def transaction(
        self,
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
        owner: str = "",
        kind: TransactionKind = "short",
        outside_writes: bool = False,
        participants: Iterable[Participant] = (),
    ) -> AsyncTransaction:
        """A transaction of the session, as `client.transaction()` makes them. With a `version`, its commit makes that the
        session's; when it was committed before, `tx.committed_before` says so, and there is nothing to do. Versions are
        compared, not listed: once 9 is committed, 8 counts as done. Give rising versions.
        """
        begun = sessions.transaction_in(
            self._scope,
            version,
            timeout_ms=timeout_ms,
            owner=owner,
            kind=kind,
            outside_writes=outside_writes,
            participants=participants,
        )
        return AsyncTransaction(begun, self._driver)


class AsyncNamedTransaction(NamedFacts, AsyncHandle[NamedScope]):
    """A transaction that several processes share: `client.named_transaction("etl", run, version)`. Ended by its id."""

    segment = awaiting(named_transactions.segment)


class AsyncSessions(AsyncHandle[ClientScope]):
    """Sessions by name: `client.sessions`. To work in one use `client.session()`."""

    get = awaiting(sessions.get)
    list = awaiting(sessions.known)
    delete = awaiting(sessions.delete)


class AsyncAdmin(AsyncHandle[ClientScope]):
    """What operators ask and do: `client.admin`. Answers are JSON values, as docs/reference/http-api.md shows them."""

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

    def topic(self, name: str, *, namespace: str | None = None) -> AsyncTopic:
        """A topic to publish to and read from. It need not exist yet, and nothing is asked of the server."""
        return AsyncTopic(self._scope.topic(name, namespace), self._driver)

    def table(self, name: str, *, namespace: str | None = None) -> AsyncTable:
        """A table, to read what is committed. It need not exist yet, and nothing is asked of the server."""
        return AsyncTable(self._scope.table(name, namespace), self._driver)

    async def session(self, name: str, *, run: str | None = None) -> AsyncSession:
        """Open a named session, which fences every run that has it open, but for the same `run` (None: a run of its own)."""
        return AsyncSession(await self._driver.run(sessions.open_session(self._scope, name, run=run)), self._driver)

    async def named_transaction(
        self,
        session: str,
        run: str,
        version: int,
        *,
        ledger: str | None = None,
        kind: TransactionKind = "long",
        timeout_ms: int | None = None,
        owner: str = "",
    ) -> AsyncNamedTransaction:
        """The transaction of this run for this version of a session's work, which all processes of the run share.

        The first one begins it, the others join. `SessionFencedError`: another run has taken the session over.
        `SessionForeignError`: its versions were counted under another `ledger`. Leaving it leaves it open: it is ended
        by its id, with `client.transactions`.
        """
        begun = await self._driver.run(
            named_transactions.begin(
                self._scope, session, run, version, ledger=ledger, kind=kind, timeout_ms=timeout_ms, owner=owner
            )
        )
        return AsyncNamedTransaction(begun, self._driver)

    def transaction(
        self,
        *,
        timeout_ms: int | None = None,
        owner: str = "",
        kind: TransactionKind = "short",
        outside_writes: bool = False,
        participants: Iterable[Participant] = (),
    ) -> AsyncTransaction:
        """A transaction for an `async with` block. After `timeout_ms` (None: the server's default) the server aborts it.

        `participants` commit and roll back with it (`TransactionAware`), in this order.
        """
        settings = OpenTransaction(
            self._scope,
            kind=kind,
            timeout_ms=timeout_ms,
            owner=owner,
            outside_writes=outside_writes,
            participants=participants,
        )
        return AsyncTransaction(settings, self._driver)

    async def close(self) -> None:
        """Close every connection. An embedded store is closed too."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()
