"""`basalt bench`: a small, bounded load on a server: what it does here, with this network and this disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from basalt.cli.options import Invocation, command, dry_run_option
from basalt.cli.output import Column, columns, progress, size_text
from basalt_engine.clock import SystemClock

if TYPE_CHECKING:
    from basalt.client import Client

MESSAGES_DEFAULT = 50_000
MESSAGES_MAX = 10_000_000
SECONDS_DEFAULT = 5
SECONDS_MAX = 600
BENCH_TTL_SECONDS = 3_600  # if the topic is not deleted after all, its messages do not stay
SINGLE_CALLS_MAX = 2_000  # enough for a 99th percentile

_COLUMNS = (
    *columns("part calls messages messages_per_s", counts="calls messages messages_per_s", messages_per_s="messages/s"),
    Column("bytes_per_s", size_text, "bytes/s"),
    *columns("p50_ms p99_ms"),
)

Step = Callable[[], int]  # one call; answers how many messages it moved, 0 when there is no more to do


@command()
@click.option(
    "--messages", type=click.IntRange(1, MESSAGES_MAX), default=MESSAGES_DEFAULT, show_default=True, help="To publish."
)
@click.option(
    "--size", "size_bytes", type=click.IntRange(0, 1_048_576), default=1_000, show_default=True, help="Bytes each."
)
@click.option(
    "--batch", type=click.IntRange(1, 65_536), default=500, show_default=True, help="Messages in one request."
)
@click.option(
    "--seconds",
    type=click.IntRange(1, SECONDS_MAX),
    default=SECONDS_DEFAULT,
    show_default=True,
    help="At most, for each part.",
)
@click.option("--keep", is_flag=True, help="Leave the topic there.")
@dry_run_option
def bench(
    invocation: Invocation, messages: int, size_bytes: int, batch: int, seconds: int, keep: bool, dry_run: bool
) -> None:
    """Measure publish and poll rates of a server.

    It uses a topic of its own, one connection and one call at a time: so it tells latencies and what one client gets, not
    what the server could do at most.
    """
    name = f"bench-{secrets.token_hex(4)}"
    if dry_run:
        wanted = {"topic": name, "messages": messages, "size_bytes": size_bytes, "dry_run": True}
        invocation.out.done(f"would publish up to {messages} messages of {size_bytes} bytes to topic {name}", wanted)
        return
    payloads = [os.urandom(size_bytes) for _ in range(min(batch, messages))]  # random: no compression flatters the disk
    with invocation.client() as client:
        client.topics.create(name, ttl=BENCH_TTL_SECONDS)
        try:
            rows = _run(client, name, payloads, messages, seconds)
        finally:
            if not keep:
                client.topics.delete(name)
    invocation.out.rows(_COLUMNS, rows)


def _run(client: Client, name: str, payloads: list[bytes], messages: int, seconds: int) -> list[dict[str, Any]]:
    topic = client.topic(name)
    size_bytes = len(payloads[0])
    single_max = min(messages, SINGLE_CALLS_MAX)
    next_id: bytes | None = None

    def publish_batch() -> int:
        topic.publish(payloads)
        return len(payloads)

    def publish_one() -> int:
        topic.publish(payloads[:1])
        return 1

    def one_shot() -> int:
        client.publish_atomically({name: payloads[:1]})
        return 1

    def poll() -> int:
        nonlocal next_id
        page = topic.poll(next_id, inclusive=next_id is None)
        next_id = page.next_id or next_id
        return len(page.ids())

    parts: tuple[tuple[str, Step, int], ...] = (
        (f"publish, {len(payloads)} a request", publish_batch, messages),
        ("publish, one a request", publish_one, single_max),
        ("transaction of one message", one_shot, single_max),
        ("poll from the start", poll, messages + 2 * single_max + len(payloads)),
    )
    return [_measure(part, step, most, seconds, size_bytes) for part, step, most in parts]


def _measure(part: str, step: Step, messages_max: int, seconds: int, size_bytes: int) -> dict[str, Any]:
    clock = SystemClock()
    durations_ms: list[float] = []
    messages = 0
    start_ms = now_ms = clock.monotonic_ms()
    with progress(part, messages_max) as advance:
        while messages < messages_max and now_ms - start_ms < seconds * 1_000:
            before_ms = now_ms
            moved = step()
            now_ms = clock.monotonic_ms()
            if not moved:
                break
            durations_ms.append(now_ms - before_ms)
            messages += moved
            advance(moved)
    elapsed_s = max(now_ms - start_ms, 0.001) / 1_000
    durations_ms.sort()
    return {
        "part": part,
        "calls": len(durations_ms),
        "messages": messages,
        "elapsed_ms": round(elapsed_s * 1_000, 1),
        "messages_per_s": round(messages / elapsed_s, 1),
        "bytes_per_s": round(messages * size_bytes / elapsed_s),
        "p50_ms": _percentile(durations_ms, 0.50),
        "p99_ms": _percentile(durations_ms, 0.99),
    }


def _percentile(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3) if ordered else None
