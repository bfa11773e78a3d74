"""SIGKILL in a loop against the real server on RocksDB, with synced writes: whatever it acknowledged is there, once.

Clients publish, run transactions, delete and create topics and read until the process dies: at a random moment, at a named
point (tests/system/killing_server.py), or while it recovers. Behind each kill the lost answers are settled and everything
is read and compared with what the clients were told. `BASALT_KILL_SEED` draws the same options again;
tests/budgets.py says how many rounds there are, `BASALT_KILL_ROUNDS` another number.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.budgets import KILL_ROUNDS as ROUNDS
from tests.system import killing_server
from tests.system.bank_clients import BankClient
from tests.system.caller import Caller
from tests.system.clients import TOPICS
from tests.system.expectations import CHURNED, STABLE, Expectations
from tests.system.server_process import ServerProcess
from tests.system.settling import Settling

pytestmark = pytest.mark.system

KILLS_MIN = 30
FIRST_STARTS, FIRST_START_KILLS = 2, 4
FAULT_ROUNDS_MAX = 30  # far more than any fault has needed to be found
ANSWERS_MAX = 300  # that the clients get before a kill at any moment: about half a second's
LOAD_SECONDS_MAX = 60.0  # for them, on a machine that is slow
POINT_SECONDS_MAX = 3.0  # a point that is not reached by then ends as a random moment does
RECOVERY_STARTS_MAX = 5  # a recovery keeps a processor busy for less than so many first starts
KILLER = (str(Path(killing_server.__file__)),)
REAL = ("-m", "basalt.cli.main")


class KillLoop:
    """One data directory, many processes."""

    def __init__(self, folder: Path, seed: int, fault: str = "") -> None:
        self.chances = random.Random(seed)
        self.expected = Expectations()
        self.server = ServerProcess(folder)
        self.fault = {"BASALT_BREAK": fault} if fault else {}
        self.kills: Counter[str] = Counter()
        self.compared = 0
        self.first_start_cpu_s = 0.0  # from the beginning of the process to its first answer
        self.slowest_recovery_cpu_s = 0.0
        self.clients = 0
        self.point = ""
        self._callers: list[Caller] = []

    def run(self, rounds: int) -> None:
        """Kill it so many times under load, and now and then while it recovers."""
        self._launch()
        self._ready()
        self.first_start_cpu_s = self.slowest_recovery_cpu_s
        for topic in (*STABLE, *CHURNED):
            self.server.ask_json("PUT", f"{TOPICS}/{topic}")
        self._bank_client().open_accounts()
        for number in range(rounds):
            self._load(number)
            for _ in range(0 if self.fault else 2 if number % 4 == 0 else self.chances.randint(0, 1)):
                self._kill_in_recovery()
            self._launch()
            self._ready()
            self._compare()

    def _launch(self, point: str = "") -> None:
        """Start a process; at a point of recovery, in one that will kill itself there."""
        self.point = point
        if not point and not self.fault and self.chances.random() < 0.5:
            self.point = self.chances.choice(sorted(killing_server.LOAD))
        cleaning = "clean-up" in self.point
        options = [
            f"messaging.cache_bytes_max={self.chances.choice((0, 65_536, 268_435_456))}",
            f"jobs.retention.interval_ms={100 if cleaning else self.chances.choice((100, 3_600_000))}",
            f"jobs.stats.interval_ms={self.chances.choice((100, 3_600_000))}",
            "jobs.log-snapshot.interval_ms=100",
            "transactions.expiry_interval_ms=100",
            "log.level=warning",
        ]
        environment = dict(self.fault)
        self.server.program = REAL
        small_limits = not self.fault and self.chances.random() < 0.5
        if self.point or self.fault or small_limits:
            self.server.program = KILLER
            environment |= {"BASALT_LOG_SNAPSHOT": str(self.chances.choice((1, 50)))}
        if small_limits:
            environment |= {"BASALT_SMALL_LIMITS": "1"}
        if self.point:
            often = not point and killing_server.LOAD[self.point].often
            number = self.chances.randrange(1, 60 if often else 3)
            environment |= {"BASALT_KILL_AT": f"{self.point}:{1 if point else number}"}
        self.server.launch(*[part for option in options for part in ("--set", option)], environment=environment)

    def _ready(self) -> None:
        self.server.wait_until_it_recovers()
        self.server.wait_until_ready()
        self.slowest_recovery_cpu_s = max(self.slowest_recovery_cpu_s, self.server.cpu_seconds())

    def _kill_in_recovery(self) -> None:
        if self.chances.random() < 0.5:
            self._launch(self.chances.choice(sorted(killing_server.RECOVERY)))
            self.server.exit_code()
            self._killed("recovery, " + self.point)
        else:
            self._launch()
            self.server.wait_until_it_recovers()
            time.sleep(self.chances.uniform(0, 0.3))
            self.server.kill()
            self._killed("recovery")

    def _killed(self, where: str) -> None:
        process = self.server.process
        assert process is not None
        assert process.returncode == -signal.SIGKILL, f"it ended with {process.returncode}:\n{self.server.tail()}"
        self.kills[where] += 1

    def _load(self, number: int) -> None:
        wrong: list[str] = []
        since_ms = time.time_ns() // 1_000_000
        jobs = self._jobs(number, wrong, since_ms)
        threads = [threading.Thread(target=job, daemon=True) for job in jobs]
        process = self.server.process
        assert process is not None
        if self.point:
            process.send_signal(signal.SIGUSR1)
        for thread in threads:
            thread.start()
        if self.point:
            with suppress(subprocess.TimeoutExpired):
                process.wait(POINT_SECONDS_MAX)
        else:
            self._wait_for_answers(process, self.chances.randint(1, ANSWERS_MAX))
        reached = process.poll() is not None
        self.server.kill()
        for thread in threads:
            thread.join()
        self._killed(self.point if reached else "any moment")
        self.clients += len(threads)
        if wrong:
            raise AssertionError("\n".join(text[:2_000] for text in wrong[:5]))

    def _wait_for_answers(self, process: subprocess.Popen[bytes], count: int) -> None:
        """Until the clients have so many, and for a moment more, whatever happens in it; or until the process has died by itself."""
        stop_s = time.monotonic() + LOAD_SECONDS_MAX
        while (
            process.poll() is None and sum(each.answers for each in self._callers) < count and time.monotonic() < stop_s
        ):
            time.sleep(0.001)
        time.sleep(self.chances.uniform(0, 0.02))

    def _jobs(self, number: int, wrong: list[str], since_ms: int) -> list[partial[None]]:
        """What the clients of this round do: more of one than of another, and not always all of it."""

        def job(name: str, *arguments: object) -> partial[None]:
            chances = random.Random(f"{number} {len(jobs)} {self.chances.random()}")
            client = BankClient(self.server.port, self.expected, chances, wrong)
            self._callers.append(client.caller)
            return partial(client.run, partial(getattr(client, name), *arguments))

        jobs: list[partial[None]] = []
        self._callers = []
        fewest = (
            1 if self.fault else 0
        )  # a fault is to be found by whom it concerns, and not once that one happens to be there
        for name, most in (("publish", 2), ("transact", 3), ("one_shot", 2), ("move", 2), ("look", 1), ("work", 2)):
            for _ in range(self.chances.randint(fewest, most)):
                jobs.append(job(name))  # each has its number
        if not jobs or self.chances.random() < 0.7:
            jobs.append(job("churn"))
        if self.chances.random() < 0.5:
            jobs.append(job("compare_topics", since_ms))
        for view in self.expected.views:
            if self.chances.random() < 0.4:
                jobs.append(job("follow", view))
        return jobs

    def _compare(self) -> None:
        settling = Settling(self.server.port, self.expected, self.chances)
        settling.run()
        self.compared += settling.messages
        self._bank_client().compare()

    def _bank_client(self) -> BankClient:
        return BankClient(self.server.port, self.expected, self.chances, [])

    def report(self) -> str:
        """What was done, in figures."""
        told = Counter(call.told.name.lower() for call in self.expected.calls.values())
        ends = Counter(tx.end.name.lower() for tx in self.expected.transactions)
        seen = sum(len(view.seen) for view in self.expected.views)
        bank = self.expected.bank
        return (
            f"{self.kills.total()} kills: {dict(self.kills)}; {self.clients} clients; calls with messages: {dict(told)}; "
            f"transactions: {dict(ends)}; {self.compared} messages compared, {seen} seen by readers that went on; "
            f"{len(bank.done)} moves and versions, {bank.compared} views of the table; "
            f"first start {self.first_start_cpu_s:.2f} s of CPU, slowest recovery {self.slowest_recovery_cpu_s:.2f} s"
        )


def run_loop(folder: Path, rounds: int, fault: str = "") -> KillLoop:
    """A loop of so many rounds; what fails names its seed."""
    seed = int(os.environ.get("BASALT_KILL_SEED") or secrets.randbelow(1 << 32))
    print(f"BASALT_KILL_SEED={seed}")
    loop = KillLoop(folder, seed, fault)
    try:
        loop.run(rounds)
    except BaseException as error:
        text = f"BASALT_KILL_SEED={seed}, after {loop.kills.total()} kills: {error}\n{loop.server.tail()}"
        raise AssertionError(text) from error
    finally:
        print(loop.report())
        loop.server.kill()
    return loop


def test_a_server_that_is_killed_in_a_loop_loses_nothing_and_doubles_nothing(tmp_path: Path):
    loop = run_loop(tmp_path, ROUNDS)
    assert loop.kills.total() >= min(KILLS_MIN, ROUNDS)
    assert loop.slowest_recovery_cpu_s < RECOVERY_STARTS_MAX * loop.first_start_cpu_s


def test_a_first_start_that_is_killed_leaves_nothing_that_a_later_one_stumbles_over(tmp_path: Path):
    chances = random.Random(os.environ.get("BASALT_KILL_SEED"))
    for number in range(FIRST_STARTS):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        server = ServerProcess(folder)
        for _ in range(FIRST_START_KILLS):
            server.launch()
            server.wait_until_it_recovers()
            time.sleep(chances.uniform(0, 0.05))
            server.kill()
        server.start()
        server.ask_json("PUT", f"{TOPICS}/a")
        server.ask_json("POST", f"{TOPICS}/a/publish", {"messages": ["first"]})
        server.kill()
        server.start()
        assert [one["payload"] for one in server.ask_json("POST", f"{TOPICS}/a/poll", {})] == ["first"]
        server.kill()


@pytest.mark.parametrize("fault", sorted(killing_server.FAULTS))
def test_the_loop_finds_a_server_that_breaks_a_promise(tmp_path: Path, fault: str):
    with pytest.raises(AssertionError, match=r"BASALT_KILL_SEED=\d+, after"):
        run_loop(tmp_path, FAULT_ROUNDS_MAX, fault)
