"""Measures the wait of readers of committed messages: for their own commit, and for transactions of others."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import basalt
from bench import processes
from bench.figures import Figure
from bench.reading import paced_p50_ms
from bench.setting_up import MESSAGE_BYTES, NAMESPACE, RawRocks, create_topics

PER_SECOND = 50
OPEN_S = 4.0
ABOVE_SYNC_MS = 5.0
WAIT_MS = 2_000
JOIN_S = 30


@dataclass
class _Reader:
    """A reader of committed messages, which waits at the end of a topic and notes when each message came."""

    url: str
    topic: str
    stop: threading.Event = field(default_factory=threading.Event)
    ready: threading.Event = field(default_factory=threading.Event)
    arrived_s: dict[bytes, float] = field(default_factory=dict)

    def run(self) -> None:
        with basalt.connect(self.url, namespace=NAMESPACE) as client:
            topic, start = client.topic(self.topic), None
            self.ready.set()
            while not self.stop.is_set():
                page = topic.poll(start=start, inclusive=start is None, isolation="committed", wait_ms=WAIT_MS)
                now_s = time.perf_counter()
                self.arrived_s.update((bytes(message.payload).strip(), now_s) for message in page)
                start = page.next_id or start


def commits(folder: Path, quick: bool) -> Iterator[Figure]:
    """From the call of a commit to the delivery of its message, at 50 transactions a second."""
    count = 100 if quick else 500
    raw = RawRocks(folder / "raw")
    with processes.basalt(folder / "data") as server:
        create_topics(server, "live")
        url = f"http://127.0.0.1:{server.port}"
        reader, thread = _reading(url, "live")
        called_s: dict[bytes, float] = {}
        with basalt.connect(url, namespace=NAMESPACE) as client:
            due = time.perf_counter() + 0.2
            for number in range(count):
                time.sleep(max(due - time.perf_counter(), 0))
                due += 1 / PER_SECOND
                with client.transaction() as tx:
                    tx.store("live", _message(number))
                    called_s[_message(number).strip()] = time.perf_counter()
        _finish(reader, thread, count)
    waited_ms = [(reader.arrived_s[name] - called_s[name]) * 1_000 for name in called_s]
    sync_ms = paced_p50_ms(count, lambda: raw.put(1))
    raw.close()
    yield Figure(
        "commit to delivery, p50", median(waited_ms), "ms", f"ms: synced put + {ABOVE_SYNC_MS:g} ms",
        sync_ms + ABOVE_SYNC_MS, 1.0, at_most=True,
    )  # fmt: skip


def held(folder: Path, quick: bool) -> Iterator[Figure]:
    """Publish to a topic, with transactions and without, while one transaction on it is open for 4 s."""
    open_s = 1.0 if quick else OPEN_S
    with processes.basalt(folder / "data") as server:
        create_topics(server, "shared")
        url = f"http://127.0.0.1:{server.port}"
        reader, thread = _reading(url, "shared")
        with basalt.connect(url, namespace=NAMESPACE) as client, client.transaction() as slow:
            topic = client.topic("shared")
            slow.store("shared", b"stored by the open one")
            slow.publish("shared", b"buffered by the open one")
            began_s, numbers = time.perf_counter(), itertools.count()
            while time.perf_counter() - began_s < open_s:
                topic.publish(_message(next(numbers)))
                with client.transaction() as quick_one:
                    quick_one.publish("shared", _message(next(numbers)))
                time.sleep(2 / PER_SECOND)
            sent = next(numbers)
            time.sleep(0.1)  # the last of them is on its way
            delivered = len(reader.arrived_s)  # while the transaction is still open
        _finish(reader, thread, sent + 2)
    yield Figure(
        f"delivered while a transaction is open for {open_s:g} s",
        delivered,
        "messages",
        "messages of others",
        sent,
        1.0,
    )


def _reading(url: str, topic: str) -> tuple[_Reader, threading.Thread]:
    reader = _Reader(url, topic)
    thread = threading.Thread(target=reader.run)
    thread.start()
    reader.ready.wait(JOIN_S)
    return reader, thread


def _finish(reader: _Reader, thread: threading.Thread, expected: int) -> None:
    stop_s = time.monotonic() + JOIN_S
    while len(reader.arrived_s) < expected and time.monotonic() < stop_s:
        time.sleep(0.01)
    reader.stop.set()
    thread.join(JOIN_S)
    assert len(reader.arrived_s) == expected, (len(reader.arrived_s), expected)


def _message(number: int) -> bytes:
    return str(number).encode().ljust(MESSAGE_BYTES)
