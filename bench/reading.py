"""Measures reading: messages a second, and the time from their publish on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import basalt
from basalt.client.attempts import Send
from basalt.client.calls.pages import Page
from basalt.client.http_transport import HttpTransport
from basalt.client.plans import Answer
from basalt.client.servers import parse_url
from bench import processes
from bench.figures import Figure
from bench.load import drive
from bench.setting_up import (
    BATCH,
    MESSAGE_BYTES,
    NAMESPACE,
    RawRocks,
    cpu_us_per,
    create_topics,
    messages,
    publish_request,
)

ROUNDS = 5


def poll(folder: Path, quick: bool) -> Iterator[Figure]:
    """A full topic through the Python client, against constant bytes from the same stack to the same client."""
    total = 50_000 if quick else 200_000
    for name, cache in (("from the tail cache", "1GiB"), ("from the store", "0")):
        data = folder / name.replace(" ", "-")
        with processes.basalt(data, f"messaging.cache_bytes_max={cache}") as server, processes.trivial() as bare:
            create_topics(server, "full")
            body = publish_request("full", BATCH)
            drive(server.port, 2, total // BATCH, body)
            client = basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE)
            fetch_constant = constant_reader(bare.port)
            for how, count_messages in (("payloads", count_payloads), ("Message objects", count_objects)):
                ours, theirs, cpu_us = [], [], []
                read_all(client, count_messages)  # the first pass also finds its memory
                fetch_constant(total * MESSAGE_BYTES)
                for _ in range(ROUNDS):
                    theirs.append(fetch_constant(total * MESSAGE_BYTES))
                    before_s, start = server.cpu_s(), time.perf_counter()
                    count = read_all(client, count_messages)
                    assert count == total, (count, total)
                    ours.append(total * MESSAGE_BYTES / (time.perf_counter() - start))
                    cpu_us.append(cpu_us_per(server, before_s, total))
                yield Figure(
                    f"poll of {total:,} {how} {name}", median(ours), "bytes/s", "bytes/s constant", median(theirs), 0.4,
                    cpu_us=median(cpu_us),
                )  # fmt: skip
            client.close()


def read_all(client: basalt.client.Client, count_messages: Callable[[Page], int]) -> int:
    """Read a topic to its end in full pages, looking at each payload."""
    topic, count, start = client.topic("full"), 0, None
    while True:
        page = topic.poll(start=start, inclusive=start is None)
        if not len(page):
            return count
        count += count_messages(page)
        start = page.next_id


def count_payloads(page: Page) -> int:
    """The messages of the right size, by views of their payloads."""
    return list(map(len, page.payloads())).count(MESSAGE_BYTES)


def count_objects(page: Page) -> int:
    """The messages of the right size, each as an object with an id and a payload of its own."""
    return sum(1 for message in page if len(message.payload) == MESSAGE_BYTES)


def constant_reader(port: int) -> Callable[[int], float]:
    """A function that fetches so many bytes in answers of 10 MiB through the client's own transport; bytes/s."""
    url = parse_url(f"http://127.0.0.1:{port}")
    transport = HttpTransport(url, headers={}, tls=None, monotonic_ms=lambda: time.monotonic() * 1_000)
    size = 10 << 20
    request = Send("GET", f"/bytes/{size}", {}, b"", 30_000)

    def fetch(total: int) -> float:
        answers = -(-total // size)
        start = time.perf_counter()
        for _ in range(answers):
            answer = transport.send(request)
            assert isinstance(answer, Answer), answer
            assert len(answer.body) == size
        return answers * size / (time.perf_counter() - start)

    return fetch


def delivery(folder: Path, quick: bool) -> Iterator[Figure]:
    """From publish to delivery by long poll at 200 messages/s, against one raw synced put and one trivial call."""
    count = 400 if quick else 2_000
    raw = RawRocks(folder / "raw")
    with processes.basalt(folder / "data") as server, processes.trivial() as bare:
        create_topics(server, "live")
        url = f"http://127.0.0.1:{server.port}"
        latencies: list[float] = []
        ready = threading.Event()
        consumer = threading.Thread(target=consume, args=(url, count, latencies, ready))
        consumer.start()
        ready.wait(10)
        with basalt.connect(url, namespace=NAMESPACE) as client:
            topic, due = client.topic("live"), time.perf_counter() + 0.2
            for _ in range(count):
                time.sleep(max(due - time.perf_counter(), 0))
                due += 1 / 200
                topic.publish(str(time.perf_counter_ns()).encode().ljust(MESSAGE_BYTES))
        consumer.join(30)
        assert len(latencies) == count, len(latencies)
        url_of_bare = parse_url(f"http://127.0.0.1:{bare.port}")
        transport = HttpTransport(url_of_bare, headers={}, tls=None, monotonic_ms=lambda: time.monotonic() * 1_000)
        trivial = Send("POST", "/trivial", {}, messages(1)[0], 30_000)
        put_ms, call_ms = paced_p50_ms(count, lambda: raw.put(1)), paced_p50_ms(count, lambda: transport.send(trivial))
        yield Figure(
            "publish to delivery, 200 msg/s, p50", median(latencies), "ms", "ms: synced put + trivial call, each at 200/s",
            put_ms + call_ms, 2.0, at_most=True,
        )  # fmt: skip
    raw.close()


def paced_p50_ms(count: int, call: Callable[[], object]) -> float:
    """The median time of a call at the rate of the messages: a machine that sleeps in between is slower than a busy one."""
    times, due = [], time.perf_counter()
    for _ in range(count):
        time.sleep(max(due - time.perf_counter(), 0))
        due += 1 / 200
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1_000)
    return median(times)


def consume(url: str, count: int, latencies: list[float], ready: threading.Event) -> None:
    """Long-poll from the start on, and note how old each message is."""
    with basalt.connect(url, namespace=NAMESPACE) as client:
        topic, start = client.topic("live"), None
        ready.set()
        while len(latencies) < count:
            page = topic.poll(start=start, inclusive=start is None, wait_ms=5_000)
            now_ns = time.perf_counter_ns()
            latencies += [(now_ns - int(bytes(message.payload))) / 1e6 for message in page]
            start = page.next_id or start
