"""A keyed group that is resized while it works: members in four processes consume, transform and produce, and become fewer and more.

What they handed on equals what was published, as multisets and in the order of each key. `BASALT_KILL_SEED` draws the same keys and the
same members that leave again.
"""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import pytest

import basalt
from basalt.client import Client
from tests.system import resized_worker
from tests.system.resized_worker import INPUTS, NAMESPACE, OUTPUTS
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.system]

PROCESSES = 4
SIZES = (10, 3, 12)  # members, one after the other
KEYS = 300
STAGE_MESSAGES_MIN = 6_000  # handed on before the next change; on a slower store a caller asks for fewer
EACH_MESSAGES_MIN = 20  # of them, by each member that is there
PUBLISHED_AT_ONCE = 200
AHEAD_MAX = 2_000  # published and not handed on: there is always work, and it does not grow
WAIT_SECONDS_MAX = 240.0  # a bound for a hang

Meanwhile = Callable[[int], None]


class Publisher:
    """Publishes keyed messages, numbered within each key, as long as the block lasts; never far ahead of what was handed on."""

    def __init__(self, url: str, chances: random.Random, handed_on: Callable[[], int]) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        self._url = url
        self._chances = chances
        self._handed_on = handed_on
        self._ending = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed  # what it published last may be there, and is not among what it knows to have sent

    def _run(self) -> None:
        try:
            self._publish()
        except BaseException as failed:
            self._failed = failed

    def _publish(self) -> None:
        count = Counter[int]()
        with basalt.connect(self._url, namespace=NAMESPACE) as client:
            while not self._ending.is_set():
                if len(self.sent) - self._handed_on() > AHEAD_MAX:
                    self._ending.wait(0.005)
                    continue
                batch = list[tuple[bytes, bytes]]()
                for _ in range(PUBLISHED_AT_ONCE):
                    key = self._chances.randrange(KEYS)
                    count[key] += 1
                    batch.append((b"key-%d" % key, b"%d of key %d" % (count[key], key)))
                client.topic(INPUTS).publish_records(basalt.RecordIn(payload, key) for key, payload in batch)
                self.sent += batch


class Follower:
    """Reads what was handed on, as it comes."""

    def __init__(self, client: Client) -> None:
        self.seen: list[tuple[bytes | None, bytes]] = []
        self.by_member = Counter[str]()
        self._topic = client.topic(OUTPUTS)
        self._place: bytes | None = None

    def read(self) -> None:
        while True:
            page = self._topic.poll(self._place, inclusive=self._place is None)
            for message in page:
                self.seen.append((message.key, bytes(message.payload)))
                self.by_member[dict(message.headers)["member"].decode()] += 1
            if not len(page):
                return
            self._place = page.next_id

    def wait_until(self, done: Callable[[], bool], workers: Workers) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            self.read()
            if done():
                return
            workers.check()
            assert time.monotonic() < deadline, f"{len(self.seen)} were handed on: {self.by_member}"
            time.sleep(0.02)


class Workers:
    """Four processes, and the members in them."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, resized_worker.__file__, url]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            for _ in range(PROCESSES)
        ]
        self._place: dict[str, int] = {}
        self._made = 0

    @property
    def members(self) -> list[str]:
        return list(self._place)

    def resize(self, size: int, chances: random.Random, meanwhile: Meanwhile) -> None:
        """Have so many members; who leaves is drawn. All begin, or leave, at the same time, in the midst of which `meanwhile` is called."""
        begun = [f"member-{self._made + number}" for number in range(size - len(self._place))]
        left = chances.sample(self.members, max(0, len(self._place) - size))
        self._made += len(begun)
        for name in begun:
            counts = Counter(self._place.values())
            self._place[name] = min(range(PROCESSES), key=lambda place: counts[place])
            self._tell(self._place[name], f"begin {name}")
        told = [(self._place.pop(name), name) for name in left]
        for place, name in told:
            self._tell(place, f"leave {name}")
        meanwhile(size)
        for place, word, name in (
            *((self._place[name], "begun", name) for name in begun),
            *((at, "left", gone) for at, gone in told),
        ):
            self._hear(place, word, name)

    def _tell(self, place: int, line: str) -> None:
        stdin = self._processes[place].stdin
        assert stdin is not None
        stdin.write(line + "\n")

    def _hear(self, place: int, word: str, name: str) -> None:
        stdout = self._processes[place].stdout
        assert stdout is not None
        said = stdout.readline().split()
        assert said[:1] == [word], f"{said} in place of {word} {name}"

    def check(self) -> None:
        assert [process.poll() for process in self._processes] == [None] * PROCESSES

    def stop(self) -> list[int]:
        """Let all leave; the processes' exit codes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        return [process.wait(WAIT_SECONDS_MAX) for process in self._processes]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def by_key(messages: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for key, payload in messages:
        found[key].append(payload)
    return found


def resize_under_load(
    url: str, seed: int, stage_messages_min: int = STAGE_MESSAGES_MIN, meanwhile: Meanwhile = lambda size: None
) -> None:
    """Ten members, three, twelve, while messages are published: all are handed on once, in the order of their keys.

    `meanwhile` is called in the midst of each change, with the number of members that there will be.
    """
    chances = random.Random(seed)
    with basalt.connect(url, namespace=NAMESPACE, timeout_ms=60_000) as client:
        for topic in (INPUTS, OUTPUTS):
            client.topics.create(topic)
        follower, workers = Follower(client), Workers(url)
        try:
            with Publisher(url, random.Random(seed), lambda: len(follower.seen)) as publisher:
                for size in SIZES:
                    follower.wait_until(lambda: len(publisher.sent) > len(follower.seen), workers)  # under load
                    workers.resize(size, chances, meanwhile)
                    assert len(workers.members) == size
                    work_a_stage(follower, workers, stage_messages_min)
            follower.wait_until(lambda: len(follower.seen) >= len(publisher.sent), workers)
            assert workers.stop() == [0] * PROCESSES
        finally:
            workers.kill()
        follower.read()
    assert Counter(follower.seen) == Counter(publisher.sent), "lost or doubled"
    assert by_key(follower.seen) == by_key(publisher.sent), "order of a key"  # type: ignore[arg-type]


def work_a_stage(follower: Follower, workers: Workers, messages_min: int) -> None:
    """Go on until the group as it is now has handed on so many messages, and each of its members some."""
    before, seen = follower.by_member.copy(), len(follower.seen)

    def done() -> bool:
        each = [follower.by_member[name] - before[name] for name in workers.members]
        return len(follower.seen) - seen >= messages_min and min(each) >= EACH_MESSAGES_MIN

    follower.wait_until(done, workers)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    process.start("--set", "log.level=warning")
    yield process
    process.kill()


def test_a_keyed_group_that_is_resized_under_load_keeps_order_and_loses_and_doubles_nothing(server: ServerProcess):
    seed = int(os.environ.get("BASALT_KILL_SEED") or secrets.randbits(32))
    print(f"BASALT_KILL_SEED={seed}")
    resize_under_load(server.url, seed)
