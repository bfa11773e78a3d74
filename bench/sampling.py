"""Measures what it costs to keep the history of figures: one look of the sampler, with many topics and groups, beside a scrape of /metrics.

A server looks once a second, so a look of 1 ms is 0.1 % of a processor. All of it is done in this process, without a socket; processor time counts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from basalt.access.policy import Caller
from basalt.access.principal import internal
from basalt.client.attempts import Send
from basalt.embedded import exchange
from basalt.http.app import Frame, build_app
from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from bench.figures import Figure

TOPICS, GROUPS = 500, 200
WARM_LOOKS = 30  # until each group was counted once
OK = 200
LOOK_MS_MAX, BUSY_LOOK_MS_MAX = 1.0, 10.0  # the limits that the README of this folder promises
SCRAPE_PART, BUSY_SCRAPE_PART = 0.04, 0.3


class Host(NamedTuple):
    """A server in this process."""

    services: RunningServices
    app: Frame


def sampling(folder: Path, quick: bool) -> Iterator[Figure]:
    """One look at many topics and groups that do nothing, and where something is new for each group."""
    with asyncio.Runner() as runner:
        yield from runner.run(_measured(folder, 20 if quick else 200))


async def _measured(folder: Path, rounds: int) -> list[Figure]:
    services = await open_services(Settings(), folder / "data")
    host = Host(services, build_app(services, Caller(internal("bench"), None)))
    try:
        await _fill(host)
        scrape_ms = await _cpu_ms(lambda: _call(host, "GET", "/metrics"), max(rounds // 20, 3))
        for _ in range(WARM_LOOKS):
            await _look(host)
        quiet_ms = await _cpu_ms(lambda: _look(host), rounds)
        busy_ms = await _cpu_ms(lambda: _look(host), max(rounds // 10, 3), before=lambda: _publish(host))
    finally:
        await services.close()
    quiet = f"a look at {TOPICS} topics and {GROUPS} groups that do nothing"
    busy = f"a look at {TOPICS} topics and {GROUPS} groups with something new"
    yardstick, limit = "ms of a scrape of /metrics", "ms at most"
    return [
        Figure(quiet, quiet_ms, "ms", yardstick, scrape_ms, SCRAPE_PART, at_most=True),
        Figure(quiet, quiet_ms, "ms", limit, LOOK_MS_MAX, 1.0, at_most=True),
        Figure(busy, busy_ms, "ms", yardstick, scrape_ms, BUSY_SCRAPE_PART, at_most=True),
        Figure(busy, busy_ms, "ms", limit, BUSY_LOOK_MS_MAX, 1.0, at_most=True),
    ]


async def _fill(host: Host) -> None:
    for number in range(TOPICS):
        await _call(host, "PUT", _topic(number), {})
    for number in range(GROUPS):
        await _call(host, "PUT", f"{_topic(number)}/groups/billing", {})
    await _publish(host)


async def _publish(host: Host) -> None:
    for number in range(TOPICS):
        await _call(host, "POST", f"{_topic(number)}/publish", {"messages": ["x"]})


async def _look(host: Host) -> None:
    clock = host.services.clock
    host.app.sampler.sample(clock.now_ms(), clock.monotonic_ms())
    await host.app.sampler.look_at_groups(clock.now_ms())


async def _cpu_ms(
    work: Callable[[], Awaitable[object]], rounds: int, before: Callable[[], Awaitable[object]] | None = None
) -> float:
    """The median of the processor time."""
    found: list[float] = []
    for _ in range(rounds):
        if before is not None:
            await before()
        began_s = time.process_time()
        await work()
        found.append((time.process_time() - began_s) * 1_000)
    return sorted(found)[len(found) // 2]


async def _call(host: Host, method: str, path: str, body: object = None) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    headers = {"host": "localhost"} | ({"content-type": "application/json"} if data else {})
    answer = await exchange(host.app, Send(method, path, headers, data, 60_000), {})
    if getattr(answer, "status", 0) != OK:
        raise RuntimeError(f"{method} {path}: {answer}")


def _topic(number: int) -> str:
    return f"/v1/namespaces/default/topics/topic-{number:03d}"
