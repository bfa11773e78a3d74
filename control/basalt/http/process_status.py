"""The server's process from within, for `GET /v1/admin/process`: what waits, what is kept in memory, what runs beside the event loop.

All of it is read from counts that are there anyway; nothing is walked through, so a look costs the same however much there is.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from basalt.api.bodies.operations import (
    ProcessCache,
    ProcessGateway,
    ProcessInfo,
    ProcessQueue,
    ProcessThreads,
)
from basalt.http.asgi.requests import BodyBudget
from basalt.http.services import Services
from basalt_engine import __version__

if TYPE_CHECKING:
    from basalt_engine.stores.hbase.gateway import Gateway

_NUMBER = re.compile(r"[-_]\d+(?:_\d+)?$")  # of one of several threads that do the same
_PROC = Path("/proc/self")  # of Linux alone


def process_info(services: Services, bodies: BodyBudget) -> ProcessInfo:
    """Read all of it."""
    lag, connections, used = services.loop_lag, services.connections, os.times()
    return ProcessInfo(
        pid=os.getpid(),
        version=__version__,
        python=platform.python_version(),
        started_ms=services.started_ms,
        at_ms=services.clock.now_ms(),
        cpu_seconds=round(used.user + used.system, 2),
        resident_bytes=resident_bytes(),
        open_files=_open_files(),
        loop_lag_ms=round(1_000 * lag.last_s, 3),
        loop_lag_ms_max=round(1_000 * lag.max_s, 3),
        tasks=len(asyncio.all_tasks()),
        connections=connections.total,
        connections_max=connections.total_max,
        queues=_queues(services, bodies),
        caches=_caches(services),
        threads=_threads(),
        gateways=_gateways(services.gateways),
    )


def _queues(services: Services, bodies: BodyBudget) -> tuple[ProcessQueue, ...]:
    writer, memory = services.writer, services.topics.memory
    return (
        ProcessQueue("calls that wait for a group commit", writer.waiting, None, writer.queue_bytes, writer.queue_bytes_max),
        ProcessQueue("calls for which the store is read first", writer.loading, None, None, None),
        ProcessQueue("fetches that wait for messages", memory.waiting, memory.limits.waiting, None, None),
        ProcessQueue("request bodies that are not whole yet", None, None, bodies.taken_bytes, bodies.total_bytes_max),
    )  # fmt: skip


def _caches(services: Services) -> tuple[ProcessCache, ...]:
    tails, memory, producers = services.topics.tails, services.topics.memory, services.producers
    answers, log = tails.answers, services.transactions.journal
    return (
        ProcessCache("newest rows of topics", None, None, tails.bytes, tails.bytes_max, tails.hits, tails.misses),
        ProcessCache(
            "messages as they were answered", len(answers), None, answers.bytes, answers.bytes_max, answers.hits, answers.made
        ),
        ProcessCache("topics", len(memory.recent), memory.limits.logs, None, None, None, None),
        ProcessCache("topics with an index or markers", len(memory.detailed), memory.limits.detailed, None, None, None, None),
        ProcessCache("entries of indexes", memory.block_entries, memory.limits.block_entries, None, None, None, None),
        ProcessCache("producers", producers.known, services.settings.producers.memory_max, None, None, None, None),
        ProcessCache("edits for timelines", log.weight, None, None, None, None, None),
        ProcessCache("principals that quotas are counted for", len(services.quotas), None, None, None, None, None),
    )  # fmt: skip


def _threads() -> tuple[ProcessThreads, ...]:
    names = Counter(_NUMBER.sub("", thread.name) for thread in threading.enumerate())
    return tuple(ProcessThreads(name, number) for name, number in sorted(names.items()))


def _gateways(gateways: Mapping[str, Gateway]) -> tuple[ProcessGateway, ...]:
    found = []
    for pool, gateway in gateways.items():
        ended = Counter[str]()
        for (_, outcome), count in list(gateway.calls.ended.items()):  # threads add to it
            ended[outcome] += count
        connections, calls = gateway.pool, ended.total()
        mean_ms = round(1_000 * gateway.calls.durations.sum_s / calls, 3) if calls else None
        found.append(
            ProcessGateway(
                gateway.address,
                pool,
                *connections,
                calls=calls,
                refused=ended["refused"],
                lost=ended["lost"],
                mean_ms=mean_ms,
            )
        )
    return tuple(found)


def resident_bytes() -> int | None:
    """The memory of this process that is in use; None where nobody tells, for only Linux does."""
    with suppress(OSError, ValueError, IndexError):
        return int((_PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _open_files() -> int | None:
    with suppress(OSError):
        return sum(1 for _ in (_PROC / "fd").iterdir()) - 1  # but for that of the listing itself
    return None
