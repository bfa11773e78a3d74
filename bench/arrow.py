"""Messages as Apache Arrow: how fast ranges get out, and rows in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa

import basalt
from basalt.api.bodies.messages import PublishRequest
from basalt.api.codecs.avro import encode_publish_request
from bench import processes
from bench.figures import Figure
from bench.load import drive, request
from bench.reading import constant_reader, count_payloads, read_all
from bench.setting_up import BATCH, MESSAGE_BYTES, NAMESPACE, cpu_us_per, create_topics, messages, path, publish_request

ROUNDS = 5
ARROW = "application/vnd.apache.arrow.stream"
WHOLE = None  # all columns
NO_VALUES = ("id", "publish_time")

Count = Callable[[bytes], int]


def arrow(folder: Path, quick: bool) -> Iterator[Figure]:
    """A topic of 1 KB messages as one range after the other, and a store of 1 KB rows."""
    yield from ranges(folder / "ranges", 50_000 if quick else 200_000)
    yield from stored(folder / "stored", 50 if quick else 200)


def ranges(folder: Path, total: int) -> Iterator[Figure]:
    """A range read by the client, against a poll of the same messages, and constant bytes of the same stack."""
    for name, cache in (("from the tail cache", "1GiB"), ("from the store", "0")):
        data = folder / name.replace(" ", "-")
        with processes.basalt(data, f"messaging.cache_bytes_max={cache}") as server, processes.trivial() as bare:
            create_topics(server, "full")
            drive(server.port, 2, total // BATCH, publish_request("full", BATCH))
            client = basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE)
            end = client.topic("full").stable_end().id
            assert end is not None
            constant, polled = constant_reader(bare.port), []
            for _ in range(ROUNDS + 1):
                start = time.perf_counter()
                assert read_all(client, count_payloads) == total
                polled.append(total / (time.perf_counter() - start))
            bytes_rate = median(constant(total * MESSAGE_BYTES) for _ in range(ROUNDS)) / MESSAGE_BYTES
            yield from _range_figures(client, server, end, total, name, (bytes_rate, median(polled[1:])))
            client.close()


def _range_figures(
    client: basalt.client.Client,
    server: processes.Process,
    end: bytes,
    total: int,
    name: str,
    rates: tuple[float, float],
) -> Iterator[Figure]:
    constant_rate, poll_rate = rates
    plain, opened = "rows/s constant", "rows/s polled"
    for how, columns, count, yardstick, rate, target in (
        ("as bytes", WHOLE, None, plain, constant_rate, 0.4),
        ("opened by pyarrow", WHOLE, rows_of, opened, poll_rate, 0.8),
        ("without values", NO_VALUES, rows_of, opened, poll_rate, 1.0),
    ):
        ours, cpu_us = [], []
        read_range(client, end, columns, count)
        for _ in range(ROUNDS):
            before_s, start = server.cpu_s(), time.perf_counter()
            read = read_range(client, end, columns, count)
            ours.append(total / (time.perf_counter() - start))
            cpu_us.append(cpu_us_per(server, before_s, total))
            assert read in (0, total), (read, total)
        yield Figure(
            f"range of {total:,} {how} {name}", median(ours), "rows/s", yardstick, rate, target, cpu_us=median(cpu_us)
        )


def read_range(client: basalt.client.Client, end: bytes, columns: Sequence[str] | None, count: Count | None) -> int:
    """Read a topic through `end`; what `count` counted in the answers."""
    topic, after, counted = client.topic("full"), None, 0
    while True:
        page = topic.range(after, end, columns=columns)
        counted += 0 if count is None else count(page.body)
        if page.next_id is None:
            return counted
        after = page.next_id


def rows_of(body: bytes) -> int:
    """The rows of a stream, whose columns are all there to be used."""
    with pa.ipc.open_stream(body) as batches:
        return sum(batch.num_rows for batch in batches)


def stored(folder: Path, requests: int) -> Iterator[Figure]:
    """Rows stored under an open transaction as Arrow, against the same as Avro."""
    with processes.basalt(folder / "data") as server:
        create_topics(server, "arrow", "avro")
        with basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE) as client:
            pointer = client.transactions.begin(kind="long").write_pointer
        rows = pa.table({"value": pa.array(messages(BATCH), pa.binary())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        query = f"/store?transactionWritePointer={pointer}"
        as_arrow = request(path("arrow", query), sink.getvalue().to_pybytes(), ARROW)
        as_avro = request(path("avro", "/store"), encode_publish_request(PublishRequest(pointer, messages(BATCH))))
        ours, theirs, cpu_us = [], [], []
        for _ in range(ROUNDS):
            theirs.append(drive(server.port, 4, requests, as_avro).per_second * BATCH)
            before_s = server.cpu_s()
            ours.append(drive(server.port, 4, requests, as_arrow).per_second * BATCH)
            cpu_us.append(cpu_us_per(server, before_s, requests * BATCH))
        yield Figure(
            f"store of Arrow, {BATCH} rows", median(ours), "rows/s", "rows/s stored as Avro", median(theirs), 0.9,
            cpu_us=median(cpu_us),
        )  # fmt: skip
