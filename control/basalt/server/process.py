"""The server process: it opens the services, runs the HTTP and Thrift faces, and ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from basalt.cluster.lease import LOOKS_PER_LEASE as TRIES_PER_LEASE
from basalt.cluster.lease import Candidate
from basalt.cluster.links.link_tls import LinkTls, link_text
from basalt.errors import UnavailableError
from basalt.http.app import build_app
from basalt.http.asgi.handshake import Handshake
from basalt.http.asgi.protocol import HttpConnection
from basalt.http.collectors import TlsMetrics
from basalt.http.traces import Traces
from basalt.server.authentication import check_authentication, is_asked
from basalt.server.failover import FailoverServer
from basalt.server.listening import ANY_HOST, ListenAddress, family_of, has_clear_links, link_address, listen_address
from basalt.server.processes.supervised import Supervised
from basalt.server.server_log import set_up_logging
from basalt.server.stop_signals import StopSignals
from basalt.server.tls import Tls
from basalt.server.wiring import RunningServices, Shared, check_sharing, open_services, open_store, pages_of
from basalt.settings import Settings
from basalt.thrift.face import check_thrift
from basalt_engine import __version__
from basalt_engine.clock import SystemClock
from basalt_engine.stores.rocks.data_directory import others_may
from basalt_engine.table import Store

GRACE_S = 8  # what SIGTERM leaves open requests; the rest of its 10 s is for the store
KEEP_ALIVE_S = 75  # longer than a long poll, so that a client's next one finds its connection open
BACKLOG = 2_048
SWITCH_INTERVAL_S = 0.000_5  # a thread that has synced a write gets the interpreter back soon; the default is 5 ms
# Requests leave few cycles; the default would scan the tail cache many times a second.
GC_THRESHOLDS = (50_000, 20, 100)
MMAP_BYTES_MIN = 64 << 20  # buffers below this size come from the heap
TRIM_BYTES_MIN = 128 << 20  # free memory at the heap's end that is kept; the queue and a few fetches fill it
HSTS = ("strict-transport-security", "max-age=31536000")  # a year, in seconds; without names below the server's own
DATE_S = 1.0  # the date in an answer's head is in whole seconds

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

log = logging.getLogger("basalt.server")


class _Server(uvicorn.Server):
    """uvicorn, telling when it is ready and when it was asked to stop."""

    def __init__(
        self, config: uvicorn.Config, stop_waiting: Callable[[], None], ready: Callable[[], None], tls: Tls | None
    ) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_exit = asyncio.Event()
        super().__init__(config)
        self._stop_waiting = stop_waiting
        self._ready = ready
        self._tls = tls

    @property
    def should_exit(self) -> bool:
        """True once it was asked to end; signal handlers and callbacks set it."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, asked: bool) -> None:
        self._should_exit = asked
        if asked and self._loop is not None:
            self._loop.call_soon_threadsafe(self._asked_to_exit.set)

    async def main_loop(self) -> None:
        """Renew the date in the answers' heads until it should exit: uvicorn's own loop is most of what an idle server does."""
        self._loop = asyncio.get_running_loop()
        watching = None if self._tls is None else self._loop.create_task(self._tls.watch())
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked_to_exit.wait(), DATE_S)
        if watching is not None:
            watching.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.should_exit:  # a signal came first: `serve` returns without having served
            return
        await super().startup(sockets=sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `StopSignals`, which had them before and has them after."""
        yield

    def drain(self, number: int) -> None:
        """Take no more requests, answer those that are open, and end; asked again by Ctrl-C, do not wait for them."""
        tell_service_manager("STOPPING=1\nSTATUS=answers what is open, then closes the store")
        self._stop_waiting()
        self.handle_exit(number, None)


class _Process:
    """One run of a server: what it was told, and the lines of its log that say so."""

    def __init__(
        self, settings: Settings, signals: StopSignals, port_file: Path | None, tell: Callable[[str], None] | None,
        supervised: Supervised | None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.supervised = supervised
        self.signals = signals
        self.clock = SystemClock()
        self.data_directory = None if settings.server.data is None else Path(settings.server.data)
        self._port_file = port_file
        self._tell = tell
        self._started_ms = self.clock.monotonic_ms()
        self.traces = Traces.configured(os.environ, f"{socket.gethostname()}:{os.getpid()}")

    def has_store(self, took_ms: float) -> None:
        """Say what runs on what. Not before the store is open: a start that is refused says only why."""
        store = self.settings.store
        place = {"memory": "memory, lost at the end", "hbase": f"HBase, through {store.hbase.thrift2}"}.get(
            store.kind, f"RocksDB in {self.data_directory and self.data_directory.absolute()}"
        )
        log.info("Basalt %s, process %d: opened %s, in %d ms", __version__, os.getpid(), place, took_ms)
        if store.kind == "rocks" and self.data_directory is not None and (allowed := others_may(self.data_directory)):
            log.warning(
                "other users of this machine may %s %s, and so every payload in its files: chmod 700 %s",
                allowed, self.data_directory.absolute(), self.data_directory.absolute(),
            )  # fmt: skip

    def answers(self, listener: socket.socket) -> None:
        """Requests are answered from now on: say where, and to whom that is open."""
        host, port = listener.getsockname()[:2]
        serves = "serves"
        if self.settings.store.kind == "hbase":
            shares = self.settings.cluster.share
            serves = (
                "answers, and serves the topics that it is given," if shares else "answers, and serves while it leads,"
            )
        url = url_of(self.settings, listener)
        log.info("%s at %s, %d ms after its start", serves, url, self._age_ms())
        if is_asked(self.settings):
            log.info("asks callers who they are: auth.kinds is %s", ", ".join(self.settings.auth.kinds))
            if not self.settings.auth.enforce:
                log.warning(
                    "refuses nobody (auth.enforce is false): whoever reaches its ports may do everything, and what would be refused is noted"
                )
        elif not ListenAddress(self.settings.server.host, host).is_loopback:
            log.warning(
                "listens on %s, beyond this machine, and asks nobody who they are (auth.kinds is none): whoever reaches its ports"
                " may read, write and delete everything; let only those reach them who may", host,
            )  # fmt: skip
        tell_service_manager(f"READY=1\nSTATUS={serves} at {url}")
        if self._port_file is not None:
            write_port(self._port_file, port)
        if self._tell is not None:
            self._tell(url)

    def stopped(self) -> None:
        log.info("stopped, %d s after its start; all that it acknowledged is kept", self._age_ms() / 1_000)

    def _age_ms(self) -> float:
        return self.clock.monotonic_ms() - self._started_ms


def serve(
    settings: Settings,
    signals: StopSignals,
    *,
    port_file: Path | None = None,
    tell: Callable[[str], None] | None = None,
    supervised: Supervised | None = None,
) -> None:
    """Run a server until a signal stops it; then answer what is open within 10 s and return.

    `tell` is called with its URL once it answers, and `port_file` gets the port. `supervised`: it is one of several processes.
    """
    set_up_logging(settings.log, None if supervised is None else supervised.number)
    keep_large_buffers()
    gc.set_threshold(*GC_THRESHOLDS)  # before the store is read: what is kept of it would be scanned over and over
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    process = _Process(settings, signals, port_file, tell, supervised)
    try:
        uvloop.run(_serve(process))
    finally:
        if process.traces is not None:
            process.traces.close()
    process.stopped()


def write_port(file: Path, port: int) -> None:
    """Write the port into the file. A script that waits for the file never reads half of it."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(f"{port}\n")
    partial.replace(file)


def listen(address: ListenAddress, port: int, field: str = "port") -> socket.socket:
    """A socket that listens there; `UnavailableError` when another process does, or nobody may."""
    try:
        return socket.create_server((address.literal, port), family=family_of(address.literal), backlog=BACKLOG)
    except OSError as error:
        raise UnavailableError(
            f"cannot listen on {address} port {port}: {error.strerror or error}",
            field=field,
            hint="another process may have it; port 0 picks a free one",
        ) from error


async def _serve(process: _Process) -> None:
    settings, signals = process.settings, process.signals
    check_thrift(settings)
    check_authentication(settings)
    check_sharing(settings)
    address = listen_address(settings)
    tls = None if settings.tls.certificate is None else Tls(settings.tls, process.clock)
    signals.stage = "it opened the store"
    if settings.store.kind == "hbase":
        await _serve_in_turn(process, address, tls)
        return
    began_ms = process.clock.monotonic_ms()
    store = open_store(settings, process.data_directory)
    process.has_store(process.clock.monotonic_ms() - began_ms)
    signals.stage = "it recovered transactions"
    services = await open_services(settings, process.data_directory, store=store, clock=process.clock)
    try:
        signals.stage = "it opened its ports"
        listener = listen(address, settings.server.port)
        signals.stage = "it started its jobs"
        await services.scheduler.start()
        signals.stage = "it opened its ports"
        thrift = await services.start_thrift(address.literal)
        try:
            services.traces = process.traces
            app = build_app(services, further_routes=pages_of(settings))
            app.metrics.watch()
            server = _http_server(app, services.stop_waiting, lambda: process.answers(listener), tls)
            services.collectors += [] if tls is None else [TlsMetrics(tls.handshakes)]
            _heed(signals, server, tls)
            app.sampler.start()
            try:
                await server.serve(sockets=[listener])
            finally:
                app.sampler.stop()
        finally:
            await thrift.stop()
    finally:
        await services.close()


async def _serve_in_turn(process: _Process, address: ListenAddress, tls: Tls | None) -> None:
    """Serve a store that other servers have open too: as a standby at once, and in full while this one leads."""
    settings, clock = process.settings, process.clock
    link_at, link_port = link_address(settings)
    if has_clear_links(settings):
        log.warning(
            "links between servers are not encrypted, and messages and credentials go over them: set tls.certificate on all servers, or"
            " let cluster.listen, here %s, be in a network that only the servers are in", link_at,
        )  # fmt: skip
    listener, supervised = listen(address, settings.server.port), process.supervised
    link_listener = listen(link_at, link_port, "cluster.listen")
    candidate = Candidate(
        f"{socket.gethostname()}:{os.getpid()}",
        settings.leader.url or url_of(settings, listener),
        secrets.token_hex(8) if supervised is None else supervised.run,
        settings.leader.lease_ms,
        secrets.token_hex(32),
        link_text(_reached_at(link_at.host, link_listener), is_secure=tls is not None),
    )
    began_ms = clock.monotonic_ms()
    failover_server = FailoverServer(
        clock, candidate,
        open_store=lambda: open_store(settings, None),
        open_rows=lambda: open_store(settings, None, again_ms=settings.leader.lease_ms / TRIES_PER_LEASE),
        open_services=functools.partial(_open, process),
        start_thrift=lambda services: services.start_thrift(address.literal), settings=settings,
    )  # fmt: skip
    process.has_store(clock.monotonic_ms() - began_ms)
    server = _http_server(failover_server, failover_server.stop_waiting, lambda: process.answers(listener), tls)
    if tls is not None:
        failover_server.measure(TlsMetrics(tls.handshakes))
    _heed(process.signals, server, tls)
    failover_server.leadership.start()
    failover_server.membership.start()
    link_tls = LinkTls(settings.cluster.ca, None if tls is None else tls.shown_on_links)
    await failover_server.links.start(link_listener, link_tls)
    running = asyncio.create_task(failover_server.run())
    running.add_done_callback(lambda _: setattr(server, "should_exit", True))
    if supervised is not None:
        supervised.look_by(failover_server.look)
    try:
        await server.serve(sockets=[listener] if supervised is None else [listener, supervised.listener])
    finally:
        running.cancel()
        try:
            await running  # what made it end is why this server does
        except asyncio.CancelledError:
            pass
        finally:
            await failover_server.close()


async def _open(process: _Process, store: Store, epoch: int, shared: Shared | None) -> RunningServices:
    services = await open_services(process.settings, None, store=store, clock=process.clock, epoch=epoch, shared=shared)
    services.traces = process.traces
    return services


def _http_server(app: ASGIApp, stop_waiting: Callable[[], None], ready: Callable[[], None], tls: Tls | None) -> _Server:
    protocol: Any = HttpConnection if tls is None else functools.partial(Handshake, tls.handshakes)
    config = uvicorn.Config(
        app, http=protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=GRACE_S, timeout_keep_alive=KEEP_ALIVE_S, backlog=BACKLOG,
        server_header=False, proxy_headers=False, headers=[HSTS] if tls is not None and tls.hsts else [],
    )  # fmt: skip
    gc.freeze()
    return _Server(config, stop_waiting, ready, tls)


def _heed(signals: StopSignals, server: _Server, tls: Tls | None) -> None:
    """Signals mean from now on what they mean for a server that has clients."""
    signals.drain_by(server.drain)
    if tls is not None:
        signals.reload_by(tls.ask)


def url_of(settings: Settings, listener: socket.socket) -> str:
    """The URL at which clients on other hosts find this server; a wildcard address becomes this machine's name."""
    scheme = "http" if settings.tls.certificate is None else "https"
    return f"{scheme}://{_reached_at(settings.server.host, listener)}"


def _reached_at(host: str, listener: socket.socket) -> str:
    name = socket.gethostname() if host in ANY_HOST else host
    return f"{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"


def tell_service_manager(state: str) -> None:
    """Tell systemd how this process is, where it runs as a unit of `Type=notify`; elsewhere nobody asks."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # how systemd writes a socket that has no file
        address = "\0" + address[1:]
    # A manager that does not listen must not stop the server: a start that it never hears of, it ends by itself.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.sendto(state.encode(), address)


def keep_large_buffers() -> bool:
    """Tell the C allocator to keep the memory of large buffers; False where it has no `mallopt` (musl, macOS).

    Every publish and every fetch makes buffers of about a megabyte. By default glibc maps each of them and unmaps it again,
    and the kernel clears each page anew: measured, encoding a record batch of 500 KB takes 470 µs then and 80 µs otherwise.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES_MIN)) and bool(mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES_MIN))
