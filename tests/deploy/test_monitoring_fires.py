"""Each alert fires on a real server when what it is about happens: the server says so, and Prometheus finds it by the shipped rules in what it scraped."""

from __future__ import annotations

import asyncio
import base64
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from basalt.access.policy import Caller
from basalt.access.principal import internal
from basalt.access.proofs.jwks import ALGORITHMS, Jwks
from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.membership import Membership
from basalt.cluster.owners import KIND, NAME, granted
from basalt.errors import BusyError
from basalt.http.app import build_app
from basalt.http.asgi.handshake import Handshakes
from basalt.http.asgi.server_context import ServerContext
from basalt.http.collectors import JwksMetrics, MemberMetrics, TlsMetrics
from basalt.operations.alerts.rules import ALERTS
from basalt.pruning.prune import PruneResult, RegionServer
from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError
from basalt_engine.stores.hbase.regions import OWN_VERSION
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.table import Store
from deploy.monitoring.__main__ import FOLDER
from tests.control.http.asker import ASKED, Asker, made
from tests.control.http.group_client import GroupClient, claim_of
from tests.deploy.scrapes import Scrape, parsed, selectors, series
from tests.programs import needed_program

STEP_S = 30
LEASE_MS = 6_000
TRANSACTIONS = "/v1/transactions"
DAY_MS = 86_400_000
OPEN = {"timeoutMs": 600_000}


class FaultyStore(MemoryStore):
    """A store that is slow, or writes nothing into a table, as it is told."""

    def __init__(self, clock: ManualClock, remote: bool = False) -> None:
        super().__init__()
        self.remote = remote
        self.clock = clock
        self.late_ms = 0
        self.refused: str | None = None

    def write(self, writes: Any) -> None:
        if any(each.table == self.refused for each in writes):
            raise StoreError("the store does not answer")
        self.clock.advance(self.late_ms)
        super().write(writes)


class World:
    """A server, the time, and what Prometheus has scraped of it."""

    def __init__(self, runner: asyncio.Runner, services: RunningServices, store: Store) -> None:
        self.runner = runner
        self.services = services
        self.store = store
        assert isinstance(services.clock, ManualClock)
        self.clock = services.clock
        self.client = GroupClient(services, runner)
        self.asking = self.client.app  # which asks callers who they are, where the settings say so
        self.client.app = build_app(services, Caller(internal("test"), None))
        self.scrapes: list[Scrape] = []
        self.step_s = STEP_S
        self.kept: Membership | None = None  # this server's, where it shares a store

    def look(self) -> list[Any]:
        """The alerts of now, as an operator asks for them; Prometheus scrapes, too."""
        self.scrapes.append(parsed(self.client.call("GET", "/metrics").body.decode()))
        answer: list[Any] = self.client.call("GET", "/v1/admin/alerts").json()["alerts"]
        return answer

    def states(self) -> dict[str, str]:
        return {each["name"]: each["state"] for each in self.look()}

    def post(self, path: str, body: Any = b"") -> Any:
        return self.client.call("POST", path, body)

    def pass_time(self, seconds: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        """So long, with a look at each step, and this done before each."""
        for _ in range(seconds // self.step_s):
            self.clock.advance(1_000 * self.step_s)
            meanwhile()
            self.look()


class Fault(NamedTuple):
    """How an alert's condition comes to be true: what is done at first, and at each step; and how long it takes."""

    begin: Callable[[World], object]
    go_on: Callable[[World], object] = lambda world: None
    seconds: int = 120
    settings: Settings = Settings()
    is_rocks: bool = False
    has_regions: bool = False
    is_shared: bool = False


def held_back(world: World) -> None:
    path = world.client.topic()
    world.client.publish(path, "m", pointer=world.client.begin(**OPEN)["writePointer"])


def roll_back_fails(world: World) -> None:
    begun = world.client.begin(**OPEN)
    world.client.publish(world.client.topic(), "m", pointer=begun["writePointer"])
    world.store.refused = "message"  # type: ignore[attr-defined]
    assert world.post(f"{TRANSACTIONS}/{begun['id']}/abort").status >= 500


def time_out(world: World) -> None:
    for _ in range(3):
        world.client.begin(timeoutMs=1_000)
    world.runner.run(world.services.transactions.expire())


def conflict(world: World) -> None:
    changes = {"changes": [base64.b64encode(b"k").decode()]}
    begun = [world.client.begin()["id"] for _ in range(3)]
    for each in begun:
        assert world.post(f"{TRANSACTIONS}/{each}/changes", changes).status == 200
    assert [world.post(f"{TRANSACTIONS}/{each}/commit").status for each in begun] == [200, 409, 409]


def many_invalid(world: World) -> None:
    world.client.begin()
    world.runner.run(world.services.transactions.restore(range(1, 10_002)))


def long_log(world: World) -> None:
    world.services.transactions.manager._log.entries_since_snapshot = 200_001


def log_away(world: World) -> None:
    world.services.transactions.manager.lanes.log.is_late = True


def slow_store(world: World) -> None:
    world.store.late_ms = 800  # type: ignore[attr-defined]


def commit(world: World) -> None:
    assert world.post(f"{TRANSACTIONS}/{world.client.begin()['id']}/commit").status == 200


def open_session(world: World, run: str) -> dict[str, Any]:
    reply = world.post(f"{TRANSACTIONS}/sessions/billing", {"run": run})
    return {"session": "billing", "sessionEpoch": reply.json()["epoch"], "snapshot": False}


def fenced(world: World) -> None:
    old = open_session(world, "monday")
    open_session(world, "tuesday")
    assert world.post(TRANSACTIONS, old).code == "session_fenced"


def forced(world: World) -> None:
    assert world.post(f"/v1/admin{TRANSACTIONS[3:]}/{world.client.begin()['id']}/abort?reason=test").status == 200


def write_stopped(world: World) -> None:
    database = world.store._durable.database  # type: ignore[attr-defined]
    family = database.rows("system")
    family.set_options({"level0_file_num_compaction_trigger": "100"})
    for number in range(4):
        world.client.topic(f"t{number}")
        world.runner.run(world.services.scheduler.run_now("stats"))
        family.flush()
    family.set_options({"level0_stop_writes_trigger": "2"})


def job_fails(world: World) -> None:
    async def run() -> dict[str, int]:
        raise BusyError("the queue is full")

    job = world.services.scheduler._jobs["prune"].job
    object.__setattr__(job, "run", run)
    for _ in range(3):
        world.runner.run(world.services.scheduler.run_now("prune"))


def parked(world: World) -> None:
    world.client.make(2, attemptsMax=1)
    world.client.post("release", {"claims": [claim_of(world.client.fetch("?limit=1"))]})


def store_fails(world: World) -> None:
    path = world.client.topic()
    world.store.refused = "message"  # type: ignore[attr-defined]
    assert world.post(f"{path}/publish", {"messages": ["m"]}).code == "store_unavailable"
    world.store.refused = None  # type: ignore[attr-defined]


def held_writers(world: World) -> None:
    world.step_s = 600
    world.services.pruner.last = PruneResult(False, 0, invalid=2_000, waiting=0, pruned=(), regions=0, compactions=())


def old_coprocessor(world: World) -> None:
    world.step_s = 600
    world.services.pruner.region_servers = {"rs1:16020": RegionServer(world.clock.now_ms(), {}, OWN_VERSION - 1)}


def port(world: World) -> Handshakes:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.not_after_ms = world.clock.now_ms() + 10 * DAY_MS
    handshakes = Handshakes(context)
    world.services.collectors.append(TlsMetrics(handshakes))
    return handshakes


def refused_certificate(world: World) -> None:
    handshakes = port(world)
    world.look()
    handshakes.reloads["failed"] += 1


def keys_unread(world: World) -> None:
    world.services.collectors.append(JwksMetrics(Jwks("keys.json", ALGORITHMS, world.clock)))


def refusals(world: World) -> None:
    internal_app, world.client.app = world.client.app, world.asking
    nobody = made(Asker(world.client, ASKED.auth.bootstrap_token), "nobody")
    assert [nobody("GET", "/v1/admin/store").status for _ in range(40)] == [403] * 40
    world.client.app = internal_app


def members_of(world: World) -> list[Membership]:
    """This server and another, which share a store; this one shows what it sees of both."""
    shared = MemoryStore(atomic=False)
    leads = Leadership(
        shared.another(), world.clock, Candidate("a", "http://a:4780", "a", LEASE_MS), on_term=lambda _: None
    )
    members = [
        Membership(shared.another(), world.clock, Candidate(name, f"http://{name}:4780", name, LEASE_MS), leads)
        for name in "ab"
    ]
    world.services.collectors.append(MemberMetrics(members[0], world.clock, Settings().cluster.servers_min))
    return members


def standby_dies(world: World) -> None:
    members = members_of(world)
    for _ in range(2):
        for each in members:
            each.step()
        world.clock.advance(LEASE_MS // 4)
    members[0].step()
    assert "BasaltStandbyMissing" not in world.states(), "there are two"
    world.kept = members[0]


def look_at_members(world: World) -> None:
    assert world.kept is not None
    world.kept.step()


def owner_dies(world: World) -> None:
    members = members_of(world)
    owners = granted(granted(None, "a", (), 1), "gone", range(512), 1)
    members[0]._system.write(KIND, NAME, owners.encode())
    for each in members:
        each.step()
    world.kept = members[0]


FAULTS: dict[str, Fault] = {
    "BasaltReadersHeldBack": Fault(held_back, seconds=180),
    "BasaltTransactionHangs": Fault(lambda world: world.client.begin(**OPEN), seconds=420),
    "BasaltRollBackFails": Fault(roll_back_fails, seconds=330),
    "BasaltTransactionsTimeOut": Fault(time_out, time_out, seconds=600),
    "BasaltConflicts": Fault(conflict, conflict, seconds=480),
    "BasaltInvalidListLong": Fault(many_invalid, seconds=630),
    "BasaltLogLong": Fault(long_log, seconds=330),
    "BasaltCommitsSlow": Fault(slow_store, commit, seconds=480),
    "BasaltLogAway": Fault(log_away, seconds=90),
    "BasaltRunFenced": Fault(fenced, seconds=30),
    "BasaltForcedEnd": Fault(forced, seconds=30),
    "BasaltStandbyMissing": Fault(standby_dies, look_at_members, seconds=690),
    "BasaltShardsUnowned": Fault(owner_dies, look_at_members, seconds=60),
    "BasaltEventLoopLags": Fault(lambda _: None, lambda world: world.services.loop_lag.look(900.0), seconds=360),
    "BasaltDiskFull": Fault(lambda _: None, seconds=330, is_rocks=True),
    "BasaltWritesStopped": Fault(write_stopped, seconds=90, is_rocks=True),
    "BasaltServerFails": Fault(store_fails, seconds=30),
    "BasaltJobFails": Fault(job_fails, seconds=30),
    "BasaltGroupLags": Fault(lambda world: world.client.make(3), seconds=960),
    "BasaltMessagesParked": Fault(parked, seconds=30),
    "BasaltRegionSnapshotOld": Fault(lambda _: None, seconds=390, has_regions=True),
    "BasaltPruneHeld": Fault(held_writers, seconds=22_200),
    "BasaltCoprocessorOld": Fault(old_coprocessor, seconds=4_200, has_regions=True),
    "BasaltCertificateEnds": Fault(port, seconds=90),
    "BasaltCertificateRefused": Fault(refused_certificate, seconds=30),
    "BasaltPolicyStale": Fault(lambda _: None, seconds=150, settings=ASKED, is_shared=True),
    "BasaltKeysStale": Fault(keys_unread, seconds=3_780),
    "BasaltRefusals": Fault(refusals, seconds=30, settings=ASKED),
}


@pytest.fixture
def world_of(tmp_path: Path) -> Iterator[Callable[[Fault], World]]:
    worlds: list[World] = []
    with asyncio.Runner() as runner:

        def opened(fault: Fault) -> World:
            clock = ManualClock()
            store: Store = (
                RocksStore.open(tmp_path / "data", sync=False)
                if fault.is_rocks
                else FaultyStore(clock, fault.is_shared)
            )
            cluster: Any = object() if fault.has_regions else None
            services = runner.run(open_services(fault.settings, None, store=store, clock=clock, cluster=cluster))
            worlds.append(World(runner, services, store))
            return worlds[-1]

        yield opened
        for world in worlds:
            if isinstance(world.store, FaultyStore):
                world.store.refused = None
            runner.run(world.services.close())


def firing_in_prometheus(name: str, world: World, folder: Path) -> subprocess.CompletedProcess[str]:
    """Whether the shipped rules find as many firing series in what was scraped as the server says: promtool's verdict."""
    count = sum(each["name"] == name and each["state"] == "firing" for each in world.look())
    expression = next(alert.promql for alert in ALERTS if alert.name == name)
    names = {selector.name for selector in selectors(expression)}
    values: dict[str, list[str]] = {}
    for number, scrape in enumerate(world.scrapes):
        for sample, labels, value in ((s, *each) for s in names for each in scrape.get(s, ())):
            found = values.setdefault(series(sample, labels), ["_"] * number)
            found.extend(["_"] * (number - len(found)))
            found.append(repr(value))
    start_s = world.clock.now_ms() / 1_000 - world.step_s * (len(world.scrapes) - 1)
    test = {
        "interval": f"{world.step_s}s",
        "input_series": [{"series": each, "values": " ".join(seen)} for each, seen in values.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
                "eval_time": f"{world.step_s * (len(world.scrapes) - 1)}s",
                "exp_samples": [{"labels": "{}", "value": count}],
            }
        ],
    }
    # promtool's time begins in 1970, and the rules ask for the time now.
    rules = (FOLDER / "rules.yml").read_text().replace("time()", f"(time() + {start_s})")
    (folder / "rules.yml").write_text(rules)
    content = {"rule_files": ["rules.yml"], "evaluation_interval": f"{world.step_s}s", "tests": [test]}
    (folder / "test.yml").write_text(yaml.safe_dump(content, width=1 << 20))
    command = [needed_program("promtool"), "test", "rules", "test.yml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_alert_that_a_server_can_tell_is_made_to_fire():
    assert sorted(FAULTS) == sorted(alert.name for alert in ALERTS if alert.condition is not None)


@pytest.mark.parametrize("name", FAULTS)
def test_an_alert_fires_when_what_it_is_about_happens(
    name: str, world_of: Callable[[Fault], World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fault = FAULTS[name]
    world = world_of(fault)
    assert name not in world.states()
    if name == "BasaltDiskFull":
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=usage.total // 20))
    fault.begin(world)
    world.pass_time(fault.seconds, lambda: fault.go_on(world))
    assert world.states()[name] == "firing"
    verdict = firing_in_prometheus(name, world, tmp_path)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
