"""The server process: the one place that picks a store and wires the services, and that runs the HTTP face."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from basalt.allocator import keep_large_buffers
from basalt.audit import Audit
from basalt.backups import Backups
from basalt.errors import InvalidSettingError, UnavailableError
from basalt.group_commit import GroupCommit
from basalt.http.app import build_app
from basalt.http.protocol import GuardedProtocol
from basalt.installation import install
from basalt.jobs import build_jobs
from basalt.leadership.lease import Candidate
from basalt.logs import set_up_logging
from basalt.member import Member
from basalt.messaging.appender import Appender
from basalt.messaging.arrivals import Arrivals
from basalt.messaging.blocking import Blocking
from basalt.messaging.cell_activity import CellActivity
from basalt.messaging.decisions import Decisions
from basalt.messaging.fetch import Limits as FetchLimits
from basalt.messaging.holds import Holds
from basalt.messaging.messaging import Messaging
from basalt.messaging.participant import TopicParticipant, TopicPlan
from basalt.messaging.peek import Peek
from basalt.messaging.ranges import Ranges
from basalt.messaging.stable_end import StableEnds
from basalt.messaging.stored import StoredPayloads
from basalt.messaging.tail import TailCache
from basalt.messaging.topic_markers import TopicMarkers
from basalt.messaging.truncation import Truncation
from basalt.messaging.usage import Usage
from basalt.messaging.writers import ExternalWriters
from basalt.pruning.hbase_cluster import HBaseCluster
from basalt.pruning.prune import Pruner
from basalt.pruning.publisher import SnapshotPublisher
from basalt.pruning.regions import Cluster
from basalt.scheduler import Scheduler
from basalt.services import Services
from basalt.settings import Settings
from basalt.settings.tree import HBaseSettings
from basalt.tables.catalog import Catalog
from basalt.tables.tables import Tables
from basalt.tephra.face import ThriftFace, check_thrift
from basalt.topics import Topics
from basalt.transactions.coordinator import Coordinator
from basalt.transactions.ids import TransactionIds
from basalt.transactions.limits import Limits
from basalt.transactions.log import SHARED_ENTRIES_KEPT, TableTransactionLog
from basalt_engine.clock import Clock, SystemClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

BUCKETS_EMBEDDED = 16  # as an HBase installation has by default, so that tables move there unchanged
GRACE_S = 8  # what SIGTERM leaves open requests; the rest of its 10 s is for the store
KEEP_ALIVE_S = 75  # longer than a long poll, so that a client's next one finds its connection open
BACKLOG = 2_048
STORE_THREADS = (
    20  # that wait for HBase, each with one of the store's 32 connections; Python's default is the cores + 4
)
ANY_HOST = ("0.0.0.0", "::", "")  # addresses to listen on that name no host  # noqa: S104
SWITCH_INTERVAL_S = 0.000_5  # a thread that has synced a write gets the interpreter back soon; the default is 5 ms
GC_THRESHOLDS = (
    50_000,
    20,
    100,
)  # requests leave few cycles; the default would scan the tail cache many times a second


def open_store(settings: Settings, data_directory: Path | None) -> Store:
    """The store that the settings name, open."""
    if settings.store.kind == "memory":
        return MemoryStore()
    if settings.store.kind == "hbase":
        return _open_hbase(settings.store.hbase)
    if data_directory is None:
        raise InvalidSettingError("store.kind rocks needs a data directory", field="data", hint="name one with --data")
    return RocksStore.open(data_directory, sync=settings.store.sync)


def _open_hbase(settings: HBaseSettings) -> Store:
    try:
        from basalt_engine.stores.hbase.store import HBaseStore, NoTableError
    except ImportError as error:
        raise InvalidSettingError(
            f"store.kind hbase needs libraries that are not here: {error}",
            field="store.kind",
            hint="install them with `pip install basalt-mq[hbase]`",
        ) from None
    if settings.thrift2 is None:
        raise InvalidSettingError(
            "store.kind hbase needs the address of HBase's Thrift 2 gateway",
            field="store.hbase.thrift2",
            hint="start one with `hbase thrift2 start` and name it as host:port",
        )
    try:
        return HBaseStore.open(settings.thrift2, settings.prefix)
    except NoTableError as error:
        raise InvalidSettingError(error.message, field="store.hbase.prefix", hint=error.hint) from None


async def open_services(
    settings: Settings,
    data_directory: Path | None,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    epoch: int = 0,
    cluster: Cluster | None = None,
) -> Services:
    """All services over the store that the settings name, recovered and ready. Close them with `Services.close`.

    `epoch` is that under which this server leads a store that others have open too; 0 where it has it to itself.
    `cluster` are the region servers that keep the store's tables, where they are not those of the settings.
    """
    clock = clock or SystemClock()
    store = store or open_store(settings, data_directory)
    try:
        return await _wire(settings, data_directory, store, clock, epoch, cluster)
    except BaseException:
        store.close()
        raise


async def _wire(
    settings: Settings, data_directory: Path | None, store: Store, clock: Clock, epoch: int, cluster: Cluster | None
) -> Services:
    system = SystemTable(store.table(SystemTable.name))
    facts = install(system, clock, settings.store.hbase.buckets if store.kind == "hbase" else BUCKETS_EMBEDDED)
    writer = GroupCommit(store, clock, queue_bytes_max=settings.messaging.queue_bytes_max)
    topics = Topics(store, clock, facts.buckets)
    limits = transaction_limits(settings)
    kept = 0 if store.atomic else SHARED_ENTRIES_KEPT
    log = TableTransactionLog(store.table("transaction_log"), limits, entries_kept=kept)
    transactions: Coordinator[TopicPlan] = Coordinator(store, clock, writer, log, epoch=epoch)
    manager = transactions if settings.transactions.manager == "builtin" else None
    arrivals, stored = Arrivals(), StoredPayloads(store, clock)
    tail = TailCache(settings.messaging.cache_bytes_max)
    appender = Appender(store, tail, arrivals)
    topics.when_deleted.append(appender.forget)
    messaging = Messaging(
        store, clock, topics, writer, manager or ExternalWriters(),
        tail=tail, arrivals=arrivals, appender=appender, stored=stored,
        limits=FetchLimits(settings.messaging.fetch_messages_max, settings.messaging.fetch_bytes_max),
        lifetime_ms_max=settings.transactions.lifetime_ms_max,
    )  # fmt: skip
    decisions = Decisions(manager)
    holds = Holds(store, clock, messaging, decisions)
    ends = StableEnds(store, messaging, holds, manager)
    topics.when_deleted.append(ends.forget)
    markers = TopicMarkers(store, clock, topics, messaging, writer, ends)
    participant = TopicParticipant(topics, messaging, stored, writer, markers, notes_cells=not store.applies_retention)
    transactions.attach(participant)
    await transactions.recover()
    usage = Usage(store, clock, topics, messaging, writer, holds)
    peek = Peek(topics, messaging, decisions, holds)
    activity = CellActivity()
    tables = Tables(store, Catalog(store, clock, facts.buckets), transactions, activity)
    pruner = _pruner(settings, store, clock, transactions, cluster)
    jobs = build_jobs(
        settings, store, clock, topics, messaging, usage, markers, writer, transactions, log, decisions, pruner, activity
    )  # fmt: skip
    scheduler = Scheduler(store, clock, jobs, settings.jobs)
    ids, ranges = TransactionIds(facts.instance), Ranges(store, clock, topics, messaging, ends)
    truncation = Truncation(
        clock, topics, markers, ends, holds, ranges, lambda pointer: ids.text(transactions.id_of(pointer))
    )
    return Services(
        settings=settings, clock=clock, store=store, system=system, writer=writer, topics=topics, messaging=messaging, markers=markers, tables=tables,
        peek=peek, usage=usage, transactions=transactions, ids=ids, pruner=pruner, scheduler=scheduler, backups=Backups(store, clock, data_directory),
        blocking=Blocking(store, clock, topics, messaging, usage), ranges=ranges, truncation=truncation, audit=Audit(store, clock),
        started_ms=clock.now_ms(), instance=facts.instance,
    )  # fmt: skip


def _pruner(
    settings: Settings, store: Store, clock: Clock, transactions: Coordinator[TopicPlan], cluster: Cluster | None
) -> Pruner:
    """Pruning by regions where the store has some; by retention's notes elsewhere."""
    lifetime_ms_max = settings.transactions.lifetime_ms_max
    if store.kind == "hbase":
        cluster = cluster or _hbase_cluster(settings.store.hbase)
    publisher = None if cluster is None else SnapshotPublisher(store, clock, transactions, lifetime_ms_max)
    return Pruner(
        store, clock, transactions, lifetime_ms_max=lifetime_ms_max, cluster=cluster, publisher=publisher,
        compactions_max=settings.store.hbase.prune_compactions, window=settings.jobs.prune.window,
        forget_outside=settings.transactions.prune_outside,
    )  # fmt: skip


def _hbase_cluster(settings: HBaseSettings) -> Cluster:
    from basalt_engine.stores.hbase.cluster import ClusterCalls

    assert settings.thrift2 is not None, "the store was opened through it"
    calls = ClusterCalls(settings.thrift2, settings.prefix, settings.thrift)
    return HBaseCluster(calls, calls.compactor)


def transaction_limits(settings: Settings) -> Limits:
    """The manager's limits, from the settings."""
    given = settings.transactions
    return Limits(
        timeout_ms_default=given.timeout_ms_default,
        timeout_ms_max=given.timeout_ms_max,
        long_timeout_ms=given.long_timeout_ms,
        lifetime_ms_max=given.lifetime_ms_max,
        changes_max=given.changes_max,
        change_bytes_max=given.change_bytes_max,
        sessions_max=given.sessions_max,
        session_ms_max=given.session_ms_max,
        allow_reset=given.allow_reset,
    )


class _Server(uvicorn.Server):
    """uvicorn, telling when it is ready and when it was asked to stop."""

    def __init__(self, config: uvicorn.Config, stop_waiting: Callable[[], None], port_file: Path | None) -> None:
        super().__init__(config)
        self._stop_waiting = stop_waiting
        self._port_file = port_file

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and self._port_file is not None:
            port = self.servers[0].sockets[0].getsockname()[1]
            partial = self._port_file.with_name(self._port_file.name + ".partial")
            partial.write_text(f"{port}\n")
            partial.replace(self._port_file)  # whoever waits for the file never reads half of it

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stop_waiting()
        super().handle_exit(sig, frame)


def serve(
    settings: Settings,
    *,
    data_directory: Path | None,
    host: str = "127.0.0.1",
    port: int = 4780,
    port_file: Path | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT; then answer what is open within 10 s and return."""
    set_up_logging(settings.log)
    keep_large_buffers()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again when it is done: that is a clean end
    uvloop.run(_serve(settings, data_directory, host, port, port_file))


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; `UnavailableError` when another process does, or nobody may."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UnavailableError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            field="port",
            hint="another process may have it; port 0 picks a free one",
        ) from error


async def _serve(settings: Settings, data_directory: Path | None, host: str, port: int, port_file: Path | None) -> None:
    check_thrift(settings)
    if settings.store.kind == "hbase":
        await _serve_in_turn(settings, host, port, port_file)
        return
    services = await open_services(settings, data_directory)
    try:
        listener = _listen(host, port)
        await services.scheduler.start()
        thrift = await ThriftFace.start(services, host)
        try:
            await _http_server(build_app(services), services.stop_waiting, port_file).serve(sockets=[listener])
        finally:
            await thrift.stop()
    finally:
        await services.close()


async def _serve_in_turn(settings: Settings, host: str, port: int, port_file: Path | None) -> None:
    """Serve a store that other servers have open too: as a standby at once, and in full while this one leads."""
    clock = SystemClock()
    waiting = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="basalt-store")
    asyncio.get_running_loop().set_default_executor(waiting)
    listener = _listen(host, port)
    url = settings.leader.url or _url_of(host, listener)
    candidate = Candidate(f"{socket.gethostname()}:{os.getpid()}", url, secrets.token_hex(8), settings.leader.lease_ms)
    member = Member(
        clock, candidate,
        open_store=lambda: open_store(settings, None),
        open_services=lambda store, epoch: open_services(settings, None, store=store, clock=clock, epoch=epoch),
        start_thrift=lambda services: ThriftFace.start(services, host),
    )  # fmt: skip
    server = _http_server(member, member.stop_waiting, port_file)
    member.leadership.start()
    running = asyncio.create_task(member.run())
    running.add_done_callback(lambda _: setattr(server, "should_exit", True))
    try:
        await server.serve(sockets=[listener])
    finally:
        running.cancel()
        try:
            await running  # what made it end is why this server does
        except asyncio.CancelledError:
            pass
        finally:
            await member.close()


def _http_server(app: ASGIApp, stop_waiting: Callable[[], None], port_file: Path | None) -> _Server:
    config = uvicorn.Config(
        app, http=GuardedProtocol, ws="none", lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=GRACE_S, timeout_keep_alive=KEEP_ALIVE_S, backlog=BACKLOG,
        server_header=False, proxy_headers=False,
    )  # fmt: skip
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    return _Server(config, stop_waiting, port_file)


def _url_of(host: str, listener: socket.socket) -> str:
    """Where clients on other hosts find this server, as far as it can tell."""
    name = socket.gethostname() if host in ANY_HOST else host
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"
