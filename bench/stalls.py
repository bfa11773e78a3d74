"""The longest stall of a server's event loop under each of the calls and jobs that once were long: nobody else is served meanwhile.

    python -m bench.stalls [--quick] [--json] [--size NAME=NUMBER ...] [NAME ...]

A ticker in the server's own loop measures it (`bench.ticking_server`), in a process of its own. The data is made before, in the store
itself where there is much of it. Two figures are printed: how late the latest tick came, which the other programs of the machine
lengthen, and the most processor time that the loop's thread took between two ticks, which they do not, but in which waiting
for a disk or for another thread is missing. `idle` is a server that has nothing to do. `PYTHONPATH` chooses the tree.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from zlib import DEFLATED, MAX_WBITS, compressobj

import zstandard

import basalt
from basalt.api.bodies.operations import JobAct
from bench import processes
from bench.captured import captured, encoded, with_id
from bench.filling import multiply_row, multiply_topic
from bench.load import drive, request, turns
from bench.ticking_server import Ticks

QUICK = 10  # sizes are divided by it
TOPIC = "topic-000000"
TTL_S = 86_400
EXPIRED_MS = 10 * TTL_S * 1_000  # this long ago: overdue for retention
EXPIRY_COLUMN = b"x"  # of a message row: docs/formats/message-table.md
PAST = (1).to_bytes(8, "big")
MIB = 1 << 20
CLIENTS = 16
STORE_BYTES = 8 * MIB  # of one request
TIMEOUT_MS = 600_000
OPEN_MS = 600_000  # as long as a short transaction may be open; a long one is not rolled back but hidden
IDLE_S = 3.0
RETENTION_RUNS_MAX = 50
OK = 200
WAIT_S = 0.05  # between two looks at what happens by itself
WAITED_MAX = 1_000  # such looks
GROUPS_PATH = f"/v1/namespaces/default/topics/{TOPIC}/groups"
OPEN_MAX = 10_000  # transactions; the server lets 20,000 be open


@dataclass(frozen=True, slots=True)
class Stalled:
    """The measurements of one scenario. `memory_mib`: the most that the server had resident."""

    name: str
    size: int
    late_ms: float
    cpu_ms: float
    took_s: float
    memory_mib: float
    note: str


class Watched(NamedTuple):
    """A server whose loop ticks, and a client of it."""

    process: processes.Process
    client: basalt.client.Client
    ticks: Ticks

    def during(self, name: str, size: int, call: Callable[[], object]) -> Stalled:
        """The longest stall while the call is made. What it returns is noted as text."""
        self.ticks.start_over()
        began_s = time.perf_counter()
        note = call()
        took_s = time.perf_counter() - began_s
        stall = self.ticks.longest()
        text = "" if note is None else str(note)
        return Stalled(name, size, stall.late_ms, stall.cpu_ms, took_s, self.process.peak_mib(), text)

    def send(self, data: bytes, count: int = 1) -> None:
        drive(self.process.port, min(count, CLIENTS), count, data)


@contextmanager
def _served(folder: Path, *settings: str) -> Iterator[Watched]:
    """A server on the data directory. Its own jobs do not run: they are called for where they are measured."""
    off = [f"jobs.{job}.enabled=false" for job in ("retention", "log-snapshot", "prune", "stats")]
    ticks = folder / "ticks"
    with (
        processes.basalt(folder / "data", *off, *settings, ticks=ticks) as process,
        basalt.connect(f"http://127.0.0.1:{process.port}", timeout_ms=TIMEOUT_MS) as client,
    ):
        yield Watched(process, client, Ticks(ticks))


def names(count: int) -> list[str]:
    """Names of one length, so that a request for the first is one for any other with its name put in."""
    return [f"topic-{number:06d}" for number in range(count)]


def _idle(folder: Path, seconds: int) -> Stalled:
    with _served(folder) as server:
        return server.during("idle", seconds, lambda: time.sleep(seconds))


def _retention_expired(folder: Path, rows: int) -> Stalled:
    """Rows whose topic's TTL is over."""
    with _served(folder) as server:
        server.client.topics.create(TOPIC, ttl=TTL_S)
        server.client.topic(TOPIC).publish([b"expires"])
    multiply_row(folder / "data", TOPIC, rows, shift_ms=-EXPIRED_MS)
    with _served(folder) as server:
        return server.during("retention-expired", rows, lambda: _retention(server.client))


def _retention_rolled_back(folder: Path, rows: int) -> Stalled:
    """Rows of a transaction that was aborted, each of which is looked at."""
    _abandoned(folder, rows)
    with _served(folder) as server:
        _abort_all(server.client)
        return server.during("retention-rolled-back", rows, lambda: _retention(server.client))


def _retention(client: basalt.client.Client) -> str:
    """Run the job until it finds nothing more; what its first run did."""
    first = ""
    for _ in range(RETENTION_RUNS_MAX):
        report = _report(client.admin.run_job("retention"))
        first = first or str(report)
        if not report:
            break
    return first


def _report(act: JobAct) -> Mapping[str, int | str]:
    """The report of the run that was made of a job."""
    assert act.run is not None, "it was no dry run"
    return act.run.report


def _log_snapshot(folder: Path, transactions: int) -> Stalled:
    """So many transactions in the state that is written: some open, the others remembered, with the ids of their requests."""
    open_ones = min(transactions // 10, OPEN_MAX)
    begin = captured(lambda client: client.transactions.begin(kind="long", snapshot=False))
    one_shot = captured(lambda client: client.publish_atomically({TOPIC: [b"message"]}))
    with _served(folder) as server:
        server.client.topics.create(TOPIC)
        drive(server.process.port, 1, open_ones, begin)
        # Few clients, so that each log entry holds few of them: more than 10,000 entries call for a snapshot.
        clients = 4 if transactions >= 50_000 else 1
        drive(
            server.process.port, clients, transactions - open_ones, lambda number: with_id(one_shot, f"call-{number}")
        )
        return server.during("log-snapshot", transactions, lambda: _report(server.client.admin.run_job("log-snapshot")))


def _metrics(folder: Path, topics: int) -> Stalled:
    with _served(folder) as server:
        server.client.topics.create(TOPIC)
    multiply_topic(folder / "data", TOPIC, names(topics)[1:])
    publish = captured(lambda client: client.topic(TOPIC).publish([b"message"]))
    with _served(folder) as server:
        bodies = [publish.replace(TOPIC.encode(), name.encode()) for name in names(topics)]
        drive(server.process.port, CLIENTS, topics, turns(bodies))
        return server.during("metrics", topics, lambda: server.send(request("/metrics", b"", method="GET")))


def _roll_back(folder: Path, rows: int) -> Stalled:
    """The abort of a transaction that wrote with its pointer before this process began."""
    _abandoned(folder, rows)
    with _served(folder) as server:
        return server.during("roll-back", rows, lambda: _abort_all(server.client))


def _abandoned(folder: Path, rows: int) -> None:
    """A transaction that is open, and the rows that it published; its server is gone."""
    with _served(folder) as server:
        server.client.topics.create(TOPIC)
        begun = server.client.transactions.begin(timeout_ms=OPEN_MS)
        server.client.topic(TOPIC).publish([b"rolled back"], write_pointer=begun.write_pointer)
    multiply_row(folder / "data", TOPIC, rows)


def _abort_all(client: basalt.client.Client) -> None:
    for transaction in client.transactions.list():
        client.transactions.abort(transaction.id)


def _listing(folder: Path, topics: int) -> Stalled:
    with _served(folder) as server:
        server.client.topics.create(TOPIC)
    multiply_topic(folder / "data", TOPIC, names(topics)[1:])
    with _served(folder) as server:
        return server.during("listing", topics, lambda: f"{len(server.client.topics.list())} names")


def _large_publish(folder: Path, size: int, name: str, coding: str, encode: Callable[[bytes], bytes]) -> Stalled:
    """Messages of 1 KB that compress to about a half."""
    messages = [os.urandom(512) + bytes(512) for _ in range(size // 1_040)]
    publish = encoded(captured(lambda client: client.topic(TOPIC).publish(messages)), coding, encode)
    with _served(folder) as server:
        server.client.topics.create(TOPIC)
        server.client.topic(TOPIC).publish([b"warm"])
        return server.during(name, size, lambda: server.send(publish))


def _zstd(folder: Path, size: int) -> Stalled:
    return _large_publish(folder, size, "publish-zstd", "zstd", zstandard.ZstdCompressor().compress)


def _gzip(folder: Path, size: int) -> Stalled:
    return _large_publish(folder, size, "publish-gzip-members", "gzip", lambda body: gzip_members(body, 1_000))


def gzip_members(body: bytes, members: int) -> bytes:
    """The body as so many gzip members behind each other."""
    step = -(-len(body) // members)
    parts = []
    for start in range(0, len(body), step):
        member = compressobj(1, DEFLATED, MAX_WBITS | 16)
        parts.append(member.compress(body[start : start + step]) + member.flush())
    return b"".join(parts)


def _hidden_rows(folder: Path, rows: int) -> Stalled:
    """A poll from the start of a topic whose rows of 60 KB are over by a TTL of their own."""
    with _served(folder) as server:
        server.client.topics.create(TOPIC)
        server.client.topic(TOPIC).publish([os.urandom(60_000)])
        first = server.client.topic(TOPIC).poll().next_id
    multiply_row(folder / "data", TOPIC, rows, columns={EXPIRY_COLUMN: PAST})
    with _served(folder) as server:

        def poll() -> str:
            topic, start, polls = server.client.topic(TOPIC), first, 0
            while True:
                page = topic.poll(start=start, inclusive=False, isolation="committed")
                polls += 1
                if not page.next_id or page.next_id == start:
                    return f"{polls} polls"
                start = page.next_id

        return server.during("poll-hidden-rows", rows, poll)


def _stats_after_kill(folder: Path, mib: int) -> Stalled:
    """One transaction has stored and committed so much; then the server was killed, and its counts with it."""
    message = os.urandom(MIB)
    with _served(folder) as server:
        server.client.topics.create(TOPIC)
        begun = server.client.transactions.begin()
        for _ in range(max(1, mib * MIB // STORE_BYTES)):
            server.client.topic(TOPIC).store([message] * (STORE_BYTES // MIB), begun.write_pointer)
        server.client.transactions.commit(begun.id)
        os.kill(server.process.pid, signal.SIGKILL)
    with _served(folder) as server:
        return server.during("stats-after-kill", mib, lambda: server.client.topic(TOPIC).stats())


def _many_checkpoints(folder: Path, count: int) -> Stalled:
    """A commit of as many write pointers as topics, something stored in each topic."""
    with _served(folder) as server:
        server.client.topics.create(TOPIC)
    multiply_topic(folder / "data", TOPIC, names(count)[1:])
    with _served(folder) as server:
        begun = server.client.transactions.begin(timeout_ms=OPEN_MS)
        for name in names(count):
            server.client.topic(name).store([b"stored"], begun.write_pointer)
            begun = server.client.transactions.checkpoint(begun.id)
        return server.during("commit-checkpoints", count, lambda: server.client.transactions.commit(begun.id).state)


GROUP = "billing"
MEMBER = "mary"
GROUP_FETCHES = 200
GROUP_ROW_MESSAGES = 1_000
LEASE_MS = 2_000  # of a member that is lost while somebody watches
NAMED_MAX = 1_000  # claims that one call may name


class _Group(NamedTuple):
    """A group of which one member has many claims, of a message each; as many messages are free."""

    server: Watched
    epoch: int  # the member's

    def ask(self, path: str, body: object = None, method: str = "POST") -> Any:
        """The answer of one call on the group, which must be a 200."""
        connection = HTTPConnection("127.0.0.1", self.server.process.port, timeout=TIMEOUT_MS / 1_000)
        with contextlib.closing(connection):
            data = b"" if body is None else json.dumps(body).encode()
            connection.request(method, GROUPS_PATH + path, data, {"content-type": "application/json"})
            answer = connection.getresponse()
            read = answer.read()
        if answer.status != OK:
            raise RuntimeError(read[:500].decode(errors="replace"))
        return json.loads(read) if read else None

    def claims(self) -> list[int]:
        """The member's claims, in the order in which they were dealt."""
        return sorted(self.ask(f"/{GROUP}/members/{MEMBER}", {"epoch": self.epoch})["claims"])

    def name(self, verb: str, claims: Sequence[int], **asked: object) -> str:
        """Acknowledge or release claims by their names, in as few calls as can be."""
        told = [
            self.ask(f"/{GROUP}/{verb}", {"claims": claims[at : at + NAMED_MAX], "member": MEMBER, **asked})
            for at in range(0, len(claims), NAMED_MAX)
        ]
        return f"{len(claims)} claims in {len(told)} calls"

    def ids(self, count: int) -> list[str]:
        """The ids of the topic's first messages, of which each claim is one."""
        found: list[bytes] = []
        while len(found) < count:
            start = found[-1] if found else None
            found += self.server.client.topic(TOPIC).poll(start=start, inclusive=not found).ids()
        return [each.hex() for each in found[:count]]

    def fetch(self, count: int) -> None:
        path = f"{GROUPS_PATH}/{GROUP}/fetch?member={MEMBER}&epoch={self.epoch}&limit=1"
        self.server.send(request(path, b""), count)


@contextmanager
def _claimed(folder: Path, claims: int, lease_ms: int = OPEN_MS, **options: object) -> Iterator[_Group]:
    with _served(folder) as server:
        server.client.topics.create(TOPIC)
        for _ in range(-(-2 * claims // GROUP_ROW_MESSAGES)):
            server.client.topic(TOPIC).publish([b"message"] * GROUP_ROW_MESSAGES)
        group = _Group(server, 0)
        given = {"unackedMax": 2 * claims, "memberMs": lease_ms, "retryDelayMs": 0, **options}
        group.ask(f"/{GROUP}", given, "PUT")
        group = _Group(server, group.ask(f"/{GROUP}/members/{MEMBER}")["epoch"])
        group.fetch(claims)
        yield group


def _group_fetches(folder: Path, claims: int) -> Stalled:
    with _claimed(folder, claims) as group:
        return group.server.during("group-fetches", claims, lambda: group.fetch(GROUP_FETCHES))


def _group_seek(folder: Path, claims: int) -> Stalled:
    with _claimed(folder, claims) as group:
        return group.server.during(
            "group-seek", claims, lambda: group.ask(f"/{GROUP}/seek", {"to": "start"})["claimsRevoked"]
        )


def _group_shown(folder: Path, claims: int) -> Stalled:
    """Everything that an operator asks of a group."""
    with _claimed(folder, claims) as group:

        def ask() -> str:
            for path in ("", "/members", "/messages"):
                group.ask(f"/{GROUP}{path}", method="GET")
            return f"{len(group.ask(f'/{GROUP}/claims', method='GET')['claims'])} claims shown"

        return group.server.during("group-shown", claims, ask)


def _group_leave(folder: Path, claims: int) -> Stalled:
    with _claimed(folder, claims) as group:
        return group.server.during(
            "group-leave", claims, lambda: group.ask(f"/{GROUP}/members/{MEMBER}?epoch={group.epoch}", method="DELETE")
        )


def _group_member_lost(folder: Path, claims: int) -> Stalled:
    """The lease of the member that has all claims runs out: each of them comes back, which is logged."""
    with _claimed(folder, claims, LEASE_MS) as group:

        def wait() -> str:
            time.sleep(LEASE_MS / 1_000)
            for _ in range(WAITED_MAX):
                left: int = group.ask("", method="GET")["groups"][0]["claims"]
                if not left:
                    break
                time.sleep(WAIT_S)
            return f"{left} claims left"

        return group.server.during("group-member-lost", claims, wait)


def _group_abort(folder: Path, claims: int) -> Stalled:
    """The abort of a transaction that acknowledges all claims, and so all of them come back."""
    with _claimed(folder, claims) as group:
        begun = group.server.client.transactions.begin(timeout_ms=OPEN_MS)
        group.name("acknowledge", group.claims()[::2], transaction=begun.id)
        return group.server.during("group-abort", claims, lambda: group.server.client.transactions.abort(begun.id))


def _group_acknowledge(folder: Path, claims: int) -> Stalled:
    with _claimed(folder, claims) as group:
        return group.server.during("group-acknowledge", claims, lambda: group.name("acknowledge", group.claims()))


def _group_acknowledge_ids(folder: Path, messages: int) -> Stalled:
    """Every second message of those that nobody has claimed, by one call: each is a span of its own."""
    with _claimed(folder, messages) as group:
        group.ask("/others", {}, "PUT")
        ids = group.ids(2 * messages)[::2]
        return group.server.during(
            "group-acknowledge-ids", messages, lambda: group.ask("/others/acknowledge", {"ids": ids})["acknowledged"]
        )


def _group_up_to(folder: Path, gaps: int) -> Stalled:
    """Everything up to a message, every second one before which is acknowledged, and the others claimed."""
    with _claimed(folder, 2 * gaps) as group:
        group.name("acknowledge", group.claims()[::2])
        asked = {"upTo": group.ids(2 * gaps)[-1], "member": MEMBER}
        return group.server.during(
            "group-up-to", gaps, lambda: group.ask(f"/{GROUP}/acknowledge", asked)["acknowledged"]
        )


def _group_release(folder: Path, claims: int) -> Stalled:
    with _claimed(folder, claims) as group:
        return group.server.during("group-release", claims, lambda: group.name("release", group.claims()))


def _group_unpark(folder: Path, messages: int) -> Stalled:
    """Every second message is parked, and the others acknowledged."""
    with _claimed(folder, 2 * messages, attemptsMax=1) as group:
        held = group.claims()
        group.name("acknowledge", held[1::2])
        group.name("release", held[::2])
        ids = group.ids(2 * messages)[::2]
        return group.server.during(
            "group-unpark", messages, lambda: group.ask(f"/{GROUP}/unpark", {"ids": ids})["unparked"]
        )


# Each with its size: rows, transactions, topics, bytes, MiB, checkpoints and topics, claims or messages.
SCENARIOS: dict[str, tuple[Callable[[Path, int], Stalled], int]] = {
    "retention-expired": (_retention_expired, 1_000_000),
    "retention-rolled-back": (_retention_rolled_back, 1_000_000),
    "log-snapshot": (_log_snapshot, 100_000),
    "metrics": (_metrics, 10_000),
    "roll-back": (_roll_back, 300_000),
    "listing": (_listing, 100_000),
    "publish-zstd": (_zstd, 10 * MIB),
    "publish-gzip-members": (_gzip, 10 * MIB),
    "poll-hidden-rows": (_hidden_rows, 10_000),
    "stats-after-kill": (_stats_after_kill, 512),
    "commit-checkpoints": (_many_checkpoints, 300),
    "group-fetches": (_group_fetches, 10_000),
    "group-seek": (_group_seek, 10_000),
    "group-shown": (_group_shown, 10_000),
    "group-leave": (_group_leave, 10_000),
    "group-member-lost": (_group_member_lost, 10_000),
    "group-abort": (_group_abort, 10_000),
    "group-acknowledge": (_group_acknowledge, 5_000),
    "group-acknowledge-ids": (_group_acknowledge_ids, 5_000),
    "group-up-to": (_group_up_to, 5_000),
    "group-release": (_group_release, 5_000),
    "group-unpark": (_group_unpark, 5_000),
}


def table(results: Sequence[Stalled]) -> str:
    rows = [("scenario", "size", "latest tick", "CPU between ticks", "took", "memory", "")]
    rows += [
        (
            result.name, f"{result.size:,}", f"{result.late_ms:,.1f} ms", f"{result.cpu_ms:,.1f} ms",
            f"{result.took_s:,.2f} s", f"{result.memory_mib:,.0f} MiB", result.note[:60],
        )
        for result in results
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def sizes(quick: bool, given: Sequence[str]) -> dict[str, int]:
    """The size of each scenario; `given` are those of the command line, as NAME=NUMBER."""
    found = {name: size // QUICK if quick else size for name, (_, size) in SCENARIOS.items()}
    for text in given:
        name, _, number = text.partition("=")
        if name not in found or not number.isdecimal() or int(number) < 1:
            raise ValueError(f"--size {text}: write NAME=NUMBER, with one of {', '.join(found)}")
        found[name] = int(number)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.stalls", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(SCENARIOS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help=f"sizes divided by {QUICK}")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=NUMBER", help="the size of one scenario")
    parser.add_argument("--json", action="store_true", help="print JSON lines, and no table")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in SCENARIOS]:
        parser.error(f"no scenario is called {unknown[0]}; there are {', '.join(SCENARIOS)}")
    try:
        chosen = sizes(arguments.quick, arguments.size)
    except ValueError as error:
        parser.error(str(error))
    results = []
    for name in ("idle", *(arguments.names or SCENARIOS)):
        measure, size = (_idle, round(IDLE_S)) if name == "idle" else (SCENARIOS[name][0], chosen[name])
        folder = Path(tempfile.mkdtemp(prefix="basalt-stalls-"))
        try:
            results.append(measure(folder, size))
        except (basalt.errors.BasaltError, RuntimeError) as error:  # the others are measured all the same
            results.append(Stalled(name, size, math.nan, math.nan, math.nan, math.nan, f"FAILED: {error}"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(asdict(results[-1])), file=sys.stdout if arguments.json else sys.stderr, flush=True)
    if not arguments.json:
        print(table(results))
    return int(any(math.isnan(result.late_ms) for result in results))


if __name__ == "__main__":
    sys.exit(main())
