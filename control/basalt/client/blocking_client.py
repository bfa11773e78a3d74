"""The blocking client. Its methods are plans (`topics`, `messages`, `transactions`, `admin`), run to their end.

Its async twin is `async_client`; docs/reference/client.md describes both.
"""

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
from basalt.client.followers import following
from basalt.client.handles import Handle, NamedFacts, SessionFacts, TopicFacts, TransactionFacts, blocking
from basalt.client.plans.drivers import BlockingDriver
from basalt.client.plans.scopes import ClientScope, TopicScope
from basalt.client.readers import reading
from basalt.client.table_handles import Table, Tables, TransactionalTable
from basalt.client.transaction import commit_protocol as ending
from basalt.client.transaction import named_transactions, open_transaction, participation, transactions
from basalt.client.transaction.named_transactions import NamedScope
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.client.transaction.participants import Participant
from basalt.client.transaction.transactional_table import in_use


class Topics(Handle[ClientScope]):
    """Topics by name: `client.topics`."""

    create = blocking(topics.create)
    update = blocking(topics.update)
    replace = blocking(topics.replace)
    get = blocking(topics.get)
    list = blocking(topics.names)
    delete = blocking(topics.delete)
    truncate = blocking(topics.truncate)


class Topic(TopicFacts, Handle[TopicScope]):
    """One topic: `client.topic("orders")`. Making one asks nothing of the server."""

    publish = blocking(messages.publish)
    publish_records = blocking(messages.publish_records)
    store = blocking(messages.store)
    roll_back = blocking(messages.roll_back)
    poll = blocking(messages.poll)
    range = blocking(arrow.read_range)
    publish_arrow = blocking(arrow.publish_arrow)
    store_arrow = blocking(arrow.store_arrow)
    stats = blocking(topic_facts.stats)
    message = blocking(topic_facts.message)
    peek = blocking(topic_facts.peek)
    holder = blocking(topic_facts.holder)
    read = reading(reading_plans.read)
    watermark = blocking(marker_plans.watermark)
    end = blocking(marker_plans.end)
    markers = blocking(marker_plans.facts)
    wait_until_ended = blocking(marker_plans.wait_until_ended)
    stable_end = blocking(ranges.stable_end)
    advance = blocking(ranges.advance)
    splits = blocking(ranges.splits)
    follow = following(following_plans.follow)


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


class Transaction(TransactionFacts, Handle[OpenTransaction]):
    """`with client.transaction() as tx:` commits at the end of the block, or aborts when it raises."""

    publish = blocking(open_transaction.publish)
    store = blocking(open_transaction.store)
    poll = blocking(open_transaction.poll)
    read = reading(open_transaction.read)
    watermark = blocking(open_transaction.watermark)
    end = blocking(open_transaction.end)
    changes = blocking(open_transaction.changes)
    checkpoint = blocking(participation.checkpoint)
    commit = blocking(ending.commit)
    abort = blocking(ending.abort)
    add = blocking(participation.add)
    _enter = blocking(participation.enter)
    _leave = blocking(ending.leave)

    def table(self, name: str, *, namespace: str | None = None) -> TransactionalTable:
        """A table as this transaction sees and changes it. Nothing is asked of the server."""
        return TransactionalTable(in_use(self._scope, name, namespace), self._driver)

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, raised: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._leave(raised)


class Session(SessionFacts, Handle[SessionScope]):
    """A session that this run holds: `client.session("billing", run="2026-11-22")`."""

    def transaction(
        self,
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
        owner: str = "",
        kind: TransactionKind = "short",
        outside_writes: bool = False,
        participants: Iterable[Participant] = (),
    ) -> Transaction:
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
        return Transaction(begun, self._driver)


class NamedTransaction(NamedFacts, Handle[NamedScope]):
    """A transaction that several processes share: `client.named_transaction("etl", run, version)`. Ended by its id."""

    segment = blocking(named_transactions.segment)


class Sessions(Handle[ClientScope]):
    """Sessions by name: `client.sessions`. To work in one use `client.session()`."""

    get = blocking(sessions.get)
    list = blocking(sessions.known)
    delete = blocking(sessions.delete)


class Admin(Handle[ClientScope]):
    """What operators ask and do: `client.admin`. Answers are JSON values, as docs/reference/http-api.md shows them."""

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

    publish_atomically = blocking(transactions.publish_atomically)
    ready = blocking(admin.ready)
    live = blocking(admin.live)
    version = blocking(admin.version)

    def __init__(self, scope: ClientScope, driver: BlockingDriver) -> None:
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

    def topic(self, name: str, *, namespace: str | None = None) -> Topic:
        """A topic to publish to and read from. It need not exist yet, and nothing is asked of the server."""
        return Topic(self._scope.topic(name, namespace), self._driver)

    def table(self, name: str, *, namespace: str | None = None) -> Table:
        """A table, to read what is committed. It need not exist yet, and nothing is asked of the server."""
        return Table(self._scope.table(name, namespace), self._driver)

    def session(self, name: str, *, run: str | None = None) -> Session:
        """Open a named session, which fences every run that has it open, but for the same `run` (None: a run of its own)."""
        return Session(self._driver.run(sessions.open_session(self._scope, name, run=run)), self._driver)

    def named_transaction(
        self,
        session: str,
        run: str,
        version: int,
        *,
        ledger: str | None = None,
        kind: TransactionKind = "long",
        timeout_ms: int | None = None,
        owner: str = "",
    ) -> NamedTransaction:
        """The transaction of this run for this version of a session's work, which all processes of the run share.

        The first one begins it, the others join. `SessionFencedError`: another run has taken the session over.
        `SessionForeignError`: its versions were counted under another `ledger`. Leaving it leaves it open: it is ended
        by its id, with `client.transactions`.
        """
        begun = self._driver.run(
            named_transactions.begin(
                self._scope, session, run, version, ledger=ledger, kind=kind, timeout_ms=timeout_ms, owner=owner
            )
        )
        return NamedTransaction(begun, self._driver)

    def transaction(
        self,
        *,
        timeout_ms: int | None = None,
        owner: str = "",
        kind: TransactionKind = "short",
        outside_writes: bool = False,
        participants: Iterable[Participant] = (),
    ) -> Transaction:
        """A transaction for a `with` block. After `timeout_ms` (None: the server's default) the server aborts it.

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
        return Transaction(settings, self._driver)

    def close(self) -> None:
        """Close every connection. An embedded store is closed too."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
