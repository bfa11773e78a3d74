# Generated from basalt/client/asynchronous/client.py by deploy/blocking_twin.py: edit that one, then run `make format`.
"""The client's objects. Their methods are plans (`basalt.client.calls`, `basalt.client.transaction`), run by a driver.

docs/reference/client.md describes them for both clients.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from basalt.api.bodies.transactions import Outcome
from basalt.client.blocking.driver import Driver, Handle, blocking, making, opening
from basalt.client.blocking.iterators import Follower, Reader, RowReader
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


class Topics(Handle[ClientScope]):
    """Topics by name: `client.topics`."""

    create = blocking(topics.create)
    update = blocking(topics.update)
    replace = blocking(topics.replace)
    get = blocking(topics.get)
    list = blocking(topics.names)
    delete = blocking(topics.delete)
    truncate = blocking(topics.truncate)


class Topic(Handle[TopicScope]):
    """One topic: `client.topic("orders")`. Making one asks nothing of the server."""

    publish = blocking(messages.publish)
    publish_records = blocking(messages.publish_records)
    store = blocking(messages.store)
    roll_back = blocking(messages.roll_back)
    poll = blocking(messages.poll)
    range = blocking(arrow.read_range)
    publish_arrow = blocking(arrow.publish_arrow)
    store_arrow = blocking(arrow.store_arrow)
    stats = blocking(topics.stats)
    message = blocking(topics.message)
    peek = blocking(topics.peek)
    holder = blocking(topics.holder)
    read = making(Reader, reading.read)
    watermark = blocking(marker_calls.watermark)
    end = blocking(marker_calls.end)
    markers = blocking(marker_calls.facts)
    wait_until_ended = blocking(marker_calls.wait_until_ended)
    stable_end = blocking(ranges.stable_end)
    advance = blocking(ranges.advance)
    splits = blocking(ranges.splits)
    follow = making(Follower, following.follow)

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.namespace


class Tables(Handle[ClientScope]):
    """Tables by name: `client.tables`."""

    create = blocking(tables.create)
    get = blocking(tables.get_info)
    list = blocking(tables.names)
    delete = blocking(tables.delete)


class Table(Handle[TableScope]):
    """One table as it is committed: `client.table("accounts")`. Making one asks nothing of the server."""

    get = blocking(tables.get)
    scan = making(RowReader, transactional_table.scan_committed)
    write = blocking(tables.write)

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.namespace


class TransactionalTable(Handle[TableInUse]):
    """One table within a transaction: `tx.table("accounts")`. What is put and deleted is sent at the commit."""

    get = blocking(transactional_table.get)
    put = blocking(transactional_table.put)
    delete = blocking(transactional_table.delete)
    delete_row = blocking(transactional_table.delete_row)
    scan = making(RowReader, transactional_table.scan)

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self._scope.scope.name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._scope.scope.namespace


class Transactions(Handle[ClientScope]):
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


class Transaction(Handle[OpenTransaction]):
    """`with client.transaction() as tx:` commits at the end of the block, or aborts when it raises."""

    publish = blocking(open_transaction.publish)
    store = blocking(open_transaction.store)
    poll = blocking(open_transaction.poll)
    read = making(Reader, open_transaction.read)
    table = making(TransactionalTable, transactional_table.in_use)
    watermark = blocking(open_transaction.watermark)
    end = blocking(open_transaction.end)
    changes = blocking(open_transaction.changes)
    checkpoint = blocking(commit_protocol.checkpoint)
    commit = blocking(commit_protocol.commit)
    abort = blocking(commit_protocol.abort)
    add = blocking(commit_protocol.add)
    _enter = blocking(commit_protocol.enter)
    _leave = blocking(commit_protocol.leave)

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

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, raised: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._leave(raised)


class Session(Handle[SessionScope]):
    """A session that this run holds: `client.session("billing", run="2026-11-22")`."""

    transaction = making(Transaction, open_transaction.transaction_in)

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


class NamedTransaction(Handle[NamedScope]):
    """A transaction that several processes share: `client.named_transaction("etl", run, version)`. Ended by its id."""

    segment = blocking(sessions.segment)

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


class Sessions(Handle[ClientScope]):
    """Sessions by name: `client.sessions`. To work in one use `client.session()`."""

    get = blocking(sessions.get)
    list = blocking(sessions.known)
    delete = blocking(sessions.delete)


class Admin(Handle[ClientScope]):
    """The questions and acts of operators: `client.admin`. docs/reference/http-api.md describes the answers."""

    namespaces = blocking(admin.namespaces)
    topics = blocking(admin.topics)
    jobs = blocking(admin.jobs)
    run_job = blocking(admin.run_job)
    pause_job = blocking(admin.pause_job)
    resume_job = blocking(admin.resume_job)
    job_history = blocking(admin.job_history)
    settings = blocking(admin.settings)
    store = blocking(admin.store)
    snapshot = blocking(admin.snapshot)
    publish_snapshot = blocking(admin.publish_snapshot)
    prune_status = blocking(admin.prune_status)
    prune = blocking(admin.prune)
    prune_explain = blocking(admin.prune_explain)
    prune_regions = blocking(admin.prune_regions)
    prune_region = blocking(admin.prune_region)
    prune_history = blocking(admin.prune_history)
    prune_restore = blocking(admin.prune_restore)
    transactions = blocking(admin.transactions)
    hanging_transactions = blocking(admin.hanging_transactions)
    describe_transaction = blocking(admin.describe_transaction)
    abort_transaction = blocking(admin.abort_transaction)
    invalidate_transaction = blocking(admin.invalidate_transaction)
    audit = blocking(admin.audit)
    backup = blocking(admin.backup)


class Client(Handle[ClientScope]):
    """A connection to a server, or to a store in this process. Any number of threads may use it at once."""

    topic = making(Topic, ClientScope.topic)
    table = making(Table, ClientScope.table)
    transaction = making(Transaction, open_transaction.transaction)
    session = opening(Session, sessions.open_session)
    named_transaction = opening(NamedTransaction, sessions.named_transaction)
    publish_atomically = blocking(transactions.publish_atomically)
    ready = blocking(admin.ready)
    live = blocking(admin.live)
    version = blocking(admin.version)

    def __init__(self, scope: ClientScope, driver: Driver) -> None:
        super().__init__(scope, driver)
        self.topics = Topics(scope, driver)
        self.tables = Tables(scope, driver)
        self.transactions = Transactions(scope, driver)
        self.sessions = Sessions(scope, driver)
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
