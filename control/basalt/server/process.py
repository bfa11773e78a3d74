"""The server process: it opens the services, runs the HTTP and Thrift faces, and ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uvicorn
import uvloop
from starlette.types import ASGIApp

from basalt.cluster.lease import Candidate
from basalt.errors import UnavailableError
from basalt.http.app import build_app
from basalt.http.asgi.protocol import GuardedProtocol
from basalt.server.failover import FailoverServer
from basalt.server.stop_signals import StopSignals
from basalt.server.wiring import open_services, open_store
from basalt.settings import LogSettings, Settings
from basalt.thrift.face import check_thrift
from basalt_engine.clock import SystemClock

GRACE_S = 8  # what SIGTERM leaves open requests; the rest of its 10 s is for the store
KEEP_ALIVE_S = 75  # longer than a long poll, so that a client's next one finds its connection open
BACKLOG = 2_048
ANY_HOST = ("0.0.0.0", "::", "")  # addresses to listen on that name no host  # noqa: S104
SWITCH_INTERVAL_S = 0.000_5  # a thread that has synced a write gets the interpreter back soon; the default is 5 ms
# Requests leave few cycles; the default would scan the tail cache many times a second.
GC_THRESHOLDS = (50_000, 20, 100)
MMAP_BYTES_MIN = 64 << 20  # buffers below this size come from the heap
TEXT_LINE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"  # of the log, for people
TRIM_BYTES_MIN = 128 << 20  # free memory at the heap's end that is kept; the queue and a few fetches fill it

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


class _Server(uvicorn.Server):
    """uvicorn, telling when it is ready and when it was asked to stop."""

    def __init__(self, config: uvicorn.Config, stop_waiting: Callable[[], None], port_file: Path | None) -> None:
        super().__init__(config)
        self._stop_waiting = stop_waiting
        self._port_file = port_file

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.should_exit:  # a signal came first: `serve` returns without having served
            return
        await super().startup(sockets=sockets)
        if self.started and self._port_file is not None:
            port = self.servers[0].sockets[0].getsockname()[1]
            partial = self._port_file.with_name(self._port_file.name + ".partial")
            partial.write_text(f"{port}\n")
            partial.replace(self._port_file)  # a script that waits for the file never reads half of it

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `StopSignals`, which had them before and has them after."""
        yield

    def drain(self, number: int) -> None:
        """Take no more requests, answer those that are open, and end; asked again by Ctrl-C, do not wait for them."""
        self._stop_waiting()
        self.handle_exit(number, None)


def serve(
    settings: Settings,
    signals: StopSignals,
    *,
    data_directory: Path | None,
    host: str = "127.0.0.1",
    port: int = 4780,
    port_file: Path | None = None,
) -> None:
    """Run a server until a signal stops it; then answer what is open within 10 s and return."""
    set_up_logging(settings.log)
    keep_large_buffers()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(_serve(settings, signals, data_directory, host, port, port_file))


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


async def _serve(
    settings: Settings, signals: StopSignals, data_directory: Path | None, host: str, port: int, port_file: Path | None
) -> None:
    check_thrift(settings)
    signals.stage = "it opened the store"
    if settings.store.kind == "hbase":
        await _serve_in_turn(settings, signals, host, port, port_file)
        return
    store = open_store(settings, data_directory)
    signals.stage = "it recovered transactions"
    services = await open_services(settings, data_directory, store=store)
    try:
        signals.stage = "it opened its ports"
        listener = _listen(host, port)
        signals.stage = "it started its jobs"
        await services.scheduler.start()
        signals.stage = "it opened its ports"
        thrift = await services.start_thrift(host)
        try:
            server = _http_server(build_app(services), services.stop_waiting, port_file)
            signals.drain_by(server.drain)
            await server.serve(sockets=[listener])
        finally:
            await thrift.stop()
    finally:
        await services.close()


async def _serve_in_turn(
    settings: Settings, signals: StopSignals, host: str, port: int, port_file: Path | None
) -> None:
    """Serve a store that other servers have open too: as a standby at once, and in full while this one leads."""
    clock = SystemClock()
    listener = _listen(host, port)
    url = settings.leader.url or _url_of(host, listener)
    candidate = Candidate(f"{socket.gethostname()}:{os.getpid()}", url, secrets.token_hex(8), settings.leader.lease_ms)
    failover_server = FailoverServer(
        clock, candidate,
        open_store=lambda: open_store(settings, None),
        open_services=lambda store, epoch: open_services(settings, None, store=store, clock=clock, epoch=epoch),
        start_thrift=lambda services: services.start_thrift(host),
    )  # fmt: skip
    server = _http_server(failover_server, failover_server.stop_waiting, port_file)
    signals.drain_by(server.drain)
    failover_server.leadership.start()
    running = asyncio.create_task(failover_server.run())
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
            await failover_server.close()


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
    """The URL at which clients on other hosts find this server; a wildcard address becomes this machine's name."""
    name = socket.gethostname() if host in ANY_HOST else host
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"


class JsonLines(logging.Formatter):
    """Writes each record as one JSON object, for machines; `fields` of a record become members of it."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            event |= fields
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(event, enc_hook=str).decode()


def set_up_logging(settings: LogSettings) -> None:
    """Log to standard error in the format and from the level that the settings name."""
    handler = logging.StreamHandler(sys.stderr)
    text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    handler.setFormatter(logging.Formatter(TEXT_LINE) if text else JsonLines())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error", "apscheduler"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


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
