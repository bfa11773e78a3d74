"""The server process: the one place that picks a store and wires the services, and that runs the HTTP face."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

import uvicorn
import uvloop

from basalt.allocator import keep_large_buffers
from basalt.backups import Backups
from basalt.errors import InvalidSettingError, UnavailableError
from basalt.group_commit import GroupCommit
from basalt.http.app import build_app
from basalt.http.protocol import GuardedProtocol
from basalt.installation import install
from basalt.jobs import build_jobs
from basalt.logs import set_up_logging
from basalt.messaging.appender import Appender
from basalt.messaging.arrivals import Arrivals
from basalt.messaging.decisions import Decisions
from basalt.messaging.fetch import Limits as FetchLimits
from basalt.messaging.holds import Holds
from basalt.messaging.messaging import Messaging
from basalt.messaging.participant import TopicParticipant, TopicPlan
from basalt.messaging.peek import Peek
from basalt.messaging.stored import StoredPayloads
from basalt.messaging.tail import TailCache
from basalt.messaging.usage import Usage
from basalt.messaging.writers import ExternalWriters
from basalt.scheduler import Scheduler
from basalt.services import Services
from basalt.settings import Settings
from basalt.topics import Topics
from basalt.transactions.coordinator import Coordinator
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
        raise InvalidSettingError(
            "store.kind hbase comes with the extra basalt-mq[hbase], which this version does not have yet",
            field="store.kind",
            hint="use rocks, or memory for a try",
        )
    if data_directory is None:
        raise InvalidSettingError("store.kind rocks needs a data directory", field="data", hint="name one with --data")
    return RocksStore.open(data_directory, sync=settings.store.sync)


async def open_services(
    settings: Settings,
    data_directory: Path | None,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    epoch: int = 0,
) -> Services:
    """All services over the store that the settings name, recovered and ready. Close them with `Services.close`.

    `epoch` is that under which this server leads a store that others have open too; 0 where it has it to itself.
    """
    clock = clock or SystemClock()
    store = store or open_store(settings, data_directory)
    try:
        return await _wire(settings, data_directory, store, clock, epoch)
    except BaseException:
        store.close()
        raise


async def _wire(settings: Settings, data_directory: Path | None, store: Store, clock: Clock, epoch: int) -> Services:
    system = SystemTable(store.table(SystemTable.name))
    facts = install(system, clock, BUCKETS_EMBEDDED)
    writer = GroupCommit(store, clock, queue_bytes_max=settings.messaging.queue_bytes_max)
    topics = Topics(store, clock, facts.buckets)
    limits = transaction_limits(settings)
    kept = 0 if store.atomic else SHARED_ENTRIES_KEPT
    log = TableTransactionLog(store.table("transaction_log"), limits, entries_kept=kept)
    transactions: Coordinator[TopicPlan] = Coordinator(store, clock, writer, log, epoch=epoch)
    manager = transactions if settings.transactions.manager == "builtin" else None
    arrivals, stored = Arrivals(), StoredPayloads(store)
    tail = TailCache(settings.messaging.cache_bytes_max)
    appender = Appender(store, tail, arrivals)
    topics.when_deleted.append(appender.forget)
    messaging = Messaging(
        store, clock, topics, writer, manager or ExternalWriters(),
        tail=tail, arrivals=arrivals, appender=appender, stored=stored,
        limits=FetchLimits(settings.messaging.fetch_messages_max, settings.messaging.fetch_bytes_max),
        lifetime_ms_max=settings.transactions.lifetime_ms_max,
    )  # fmt: skip
    transactions.attach(TopicParticipant(topics, messaging, stored, writer))
    await transactions.recover()
    decisions = Decisions(manager)
    holds = Holds(store, clock, messaging, decisions)
    usage = Usage(store, clock, topics, messaging, writer, holds)
    peek = Peek(topics, messaging, decisions, holds)
    jobs = build_jobs(settings, store, clock, topics, messaging, usage, writer, transactions, log, decisions)
    scheduler = Scheduler(store, clock, jobs, settings.jobs)
    return Services(
        settings=settings, clock=clock, store=store, system=system, writer=writer, topics=topics, messaging=messaging,
        peek=peek, usage=usage, transactions=transactions, scheduler=scheduler, backups=Backups(store, clock, data_directory),
        started_ms=clock.now_ms(), instance=facts.instance,
    )  # fmt: skip


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
    )


class _Server(uvicorn.Server):
    """uvicorn, telling when it is ready and when it was asked to stop."""

    def __init__(self, config: uvicorn.Config, services: Services, port_file: Path | None) -> None:
        super().__init__(config)
        self._services = services
        self._port_file = port_file

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and self._port_file is not None:
            port = self.servers[0].sockets[0].getsockname()[1]
            partial = self._port_file.with_name(self._port_file.name + ".partial")
            partial.write_text(f"{port}\n")
            partial.replace(self._port_file)  # whoever waits for the file never reads half of it

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._services.stop_waiting()
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
    services = await open_services(settings, data_directory)
    try:
        listener = _listen(host, port)
        await services.scheduler.start()
        config = uvicorn.Config(
            build_app(services), http=GuardedProtocol, ws="none", lifespan="off", log_config=None, access_log=False,
            timeout_graceful_shutdown=GRACE_S, timeout_keep_alive=KEEP_ALIVE_S, backlog=BACKLOG,
            server_header=False, proxy_headers=False,
        )  # fmt: skip
        server = _Server(config, services, port_file)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        await server.serve(sockets=[listener])
    finally:
        await services.close()
