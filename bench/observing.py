"""`observed`: what it costs a server to make spans for a collector, and to count for quotas, beside one that does neither, in the same run.

Processor time is the servers' own; the collector, which forgets what it takes, is in this process. Most of both is done before a call is carried out or after, so a
server that shares topics pays as much for each call that it answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from bench import processes
from bench.figures import Figure
from bench.load import drive
from bench.processes import Process
from bench.setting_up import create_topics, one_shot_request, publish_request

ROUNDS = 7
CLIENTS = 8
SPANS_MAX, SAMPLED_MAX, QUOTAS_MAX = 3.5, 1.15, 1.15
MANY = 1 << 30  # a quota that nobody reaches, and that is counted all the same

Ways = dict[str, Callable[[], object]]


def observed(folder: Path, quick: bool) -> Iterator[Figure]:
    """Publishes and one-shots with spans, with some, with quotas, and with neither."""
    with collector() as place, ExitStack() as stack:
        exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": place, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        sampled = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
        quotas = f"quota.requests_per_s={MANY}", f"quota.publish_bytes_per_s={MANY}"
        several = {
            "plain": stack.enter_context(processes.basalt(folder / "plain")),
            "spans": stack.enter_context(processes.basalt(folder / "spans", environment=exporting)),
            "sampled": stack.enter_context(processes.basalt(folder / "sampled", environment=exporting | sampled)),
            "quotas": stack.enter_context(processes.basalt(folder / "quotas", *quotas)),
        }
        yield from _figures(several, 400 if quick else 4_000)


def in_turns(ways: Ways, cpu_s: Callable[[str], float], calls: int) -> dict[str, float]:
    """The processor microseconds of a call each way: the median of rounds in turns, after one that warms up."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name in ways if turn % 2 else reversed(ways):
            before_s = cpu_s(name)
            ways[name]()
            if turn:
                found[name].append((cpu_s(name) - before_s) * 1e6 / calls)
    return {name: median(each) for name, each in found.items()}


def _figures(several: dict[str, Process], calls: int) -> Iterator[Figure]:
    """Publishes and one-shots of servers that make spans, of all calls or of one in a hundred, or count for quotas."""
    for server in several.values():
        create_topics(server, "topic")
    for title, data in (("publish", publish_request("topic", 1)), ("one-shot", one_shot_request(1, "topic"))):
        ways: Ways = {name: partial(drive, server.port, CLIENTS, calls, data) for name, server in several.items()}
        cost = in_turns(ways, lambda name: several[name].cpu_s(), calls)
        for name, what, target in (
            ("spans", "spans of all calls", SPANS_MAX),
            ("sampled", "spans of one call in a hundred", SAMPLED_MAX),
            ("quotas", "quotas of requests and bytes", QUOTAS_MAX),
        ):
            yield Figure(
                f"{title} 1 a call with {what}", cost[name], "us/call", "us/call without", cost["plain"], target, at_most=True,
                cpu_us=cost[name],
            )  # fmt: skip


@contextmanager
def collector() -> Iterator[str]:
    """Take spans and forget them, at this address."""

    class Forgets(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forgets)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
