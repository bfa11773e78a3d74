"""The demo's second act: workers of a consumer group count the visits of each client, while workers and the server are killed.

The group grows from one worker to three, loses one and gets it back, loses the server, and ends with two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import basalt
from basalt.api.positions import START, after_id
from basalt.client import Client, RecordIn
from demo.access_log import NotAnAccessLineError, parse
from demo.server_pair import ServerPair
from demo.server_process import ServerProcess
from demo.worker import COUNTS_TOPIC, GROUP, MEMBER_MS, VISITS_TOPIC, Count, key_of

BATCHES = 120  # so that there is time for every incident; a batch takes some hundredths of a second
RETRY_DELAY_MS = 100
PUBLISHED_MAX = 10_000  # visits in one request
POLL_S = 0.02
GIVE_UP_S = 120.0  # without any progress; far more than a lease and a restart take
BAR_CHARS = 24


class Visit(NamedTuple):
    """One page view: who, and the number of its line."""

    client: str
    line: int


def visits_of(lines: Iterable[bytes]) -> list[Visit]:
    """The page views among the lines of a log."""
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Visit(parse(line).client, number))
        except NotAnAccessLineError:
            continue
    return found


def differences(visits: Sequence[Visit], counts: Sequence[Count]) -> list[str]:
    """The faults of the counts, one sentence each; none when each visit was counted once, and those of a client in order."""
    direct = Counter(visit.client for visit in visits)
    counted: Counter[str] = Counter()
    last: dict[str, int] = defaultdict(int)
    found, late = [], list[str]()
    for count in counts:
        counted[count.client] += count.visits
        if count.first <= last[count.client]:
            late.append(f"line {count.first} of {count.client} behind line {last[count.client]}")
        last[count.client] = max(last[count.client], count.last)
    if late:
        found.append(f"{len(late):,} times visits of a client were counted out of order, first {late[0]}")
    lost, twice = direct - counted, counted - direct
    if lost:
        found.append(f"{lost.total():,} visits of {len(lost):,} clients were not counted")
    if twice:
        found.append(f"{twice.total():,} visits of {len(twice):,} clients were counted twice")
    return found


class Workers:
    """The worker processes, by name."""

    def __init__(self, url: str, batch: int, log: Path) -> None:
        self._url = url
        self._batch = batch
        self._log = log
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        """Start workers; one that is killed is replaced by a process of the same name."""
        for name in names:
            command = [sys.executable, "-m", "demo.worker", self._url, name, str(self._batch)]
            with self._log.open("ab") as log:
                self._processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """SIGKILL: whatever it had in hand stays undone."""
        self._processes[name].kill()
        self._processes.pop(name).wait()

    def check(self) -> None:
        """`RuntimeError` when a worker ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                tail = self._log.read_bytes()[-2_000:].decode(errors="replace")
                raise RuntimeError(f"{name} ended by itself (exit code {process.returncode}):\n{tail}")

    def stop(self) -> None:
        """Let all of them give back what they have in hand, and end."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()


class Act:
    """The second act, on a server that runs. After `play`, `counts` are what the workers published."""

    def __init__(self, server: ServerProcess | ServerPair, visits: Sequence[Visit], say: Callable[[str], None]) -> None:
        self.counts: list[Count] = []
        self.kills = 0
        self._server = server
        self._visits = visits
        self._say = say
        self._counted = 0
        self._began = time.monotonic()
        self._start = START  # behind the last count that was read
        self._workers = Workers(server.url, max(1, len(visits) // BATCHES), server.log.with_name("workers.log"))

    def play(self) -> None:
        """Publish the visits, have them counted, and kill on the way."""
        self._began = time.monotonic()
        with basalt.connect(self._server.url) as client:
            self._set_up(client)
            try:
                for share, incident in self._incidents():
                    self._wait_until(client, share)
                    incident()
                self._wait_until(client, 1.0)
                self._tell("all is counted")
            finally:
                self._workers.stop()
            self._read(client)  # what should not be there

    def _incidents(self) -> tuple[tuple[float, Callable[[], None]], ...]:
        return (
            (0.0, self._begin),
            (0.2, self._grow),
            (0.4, self._replace),
            (0.6, self._kill_server),
            (0.75, self._shrink),
        )

    def _begin(self) -> None:
        self._workers.start("worker-1")
        self._tell("worker-1 begins, alone")

    def _grow(self) -> None:
        self._workers.start("worker-2", "worker-3")
        self._tell("worker-2 and worker-3 join: the clients are shared out among three")

    def _replace(self) -> None:
        self._workers.kill("worker-2")
        self.kills += 1
        self._workers.start("worker-2")
        self._tell("SIGKILL of worker-2 in the midst of its work; a new process takes its name")

    def _kill_server(self) -> None:
        began = time.monotonic()
        self._server.kill()
        self._server.start()
        self.kills += 1
        took_s = time.monotonic() - began
        self._tell(f"SIGKILL of the server, back in {took_s:.1f} s; the workers go on by themselves")

    def _shrink(self) -> None:
        self._workers.kill("worker-3")
        self.kills += 1
        self._tell(f"SIGKILL of worker-3, for good: its clients go to the other two within {MEMBER_MS // 1_000} s")

    def _set_up(self, client: Client) -> None:
        for topic in (VISITS_TOPIC, COUNTS_TOPIC):
            client.topics.create(topic)
        group = client.topic(VISITS_TOPIC).group(GROUP)
        group.create(mode="keyed", member_ms=MEMBER_MS, retry_delay_ms=RETRY_DELAY_MS, attempts_max=0)
        records = [RecordIn(str(visit.line).encode(), key_of(visit.client)) for visit in self._visits]
        for start in range(0, len(records), PUBLISHED_MAX):
            client.topic(VISITS_TOPIC).publish(records[start : start + PUBLISHED_MAX])

    def _wait_until(self, client: Client, share: float) -> None:
        moved_s = time.monotonic()
        while self._counted < share * len(self._visits):
            if self._read(client):
                moved_s = time.monotonic()
            self._workers.check()
            if time.monotonic() - moved_s > GIVE_UP_S:
                raise RuntimeError(f"the workers stand still at {self._counted:,} of {len(self._visits):,} visits")
            time.sleep(POLL_S)

    def _read(self, client: Client) -> bool:
        """Read what was counted since; False when nothing was."""
        before = len(self.counts)
        for message in client.topic(COUNTS_TOPIC).read(self._start):
            self._start = after_id(message.id)
            self.counts.append(Count(*json.loads(message.payload)))
            self._counted += self.counts[-1].visits
        return len(self.counts) > before

    def _tell(self, sentence: str) -> None:
        share = self._counted / len(self._visits) if self._visits else 1.0
        self._say(f"{share:>6.0%} {time.monotonic() - self._began:5.1f} s  {sentence}")


def shares(counts: Sequence[Count]) -> list[str]:
    """A line for each worker: a bar as long as its share, its visits, and of how many clients."""
    visits: Counter[str] = Counter()
    clients: dict[str, set[str]] = defaultdict(set)
    for count in counts:
        visits[count.worker] += count.visits
        clients[count.worker].add(count.client)
    most = max(visits.values(), default=0)
    return [
        f"  {worker}  {'█' * -(-number * BAR_CHARS // most):<{BAR_CHARS}}  {number:>9,} visits of {len(clients[worker]):,} clients"
        for worker, number in sorted(visits.items())
    ]
