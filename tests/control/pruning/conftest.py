"""Services over a memory store and region servers that only exist on paper."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from basalt.settings import Settings, TransactionSettings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.stores.hbase.regions import EMPTY_MEMSTORE, REPORT_KIND, Region, RegionReport, StoreFile
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from tests.region_reports import encode_report
from tests.wiring import A, B, Wired

LIFETIME_MS = 3_600_000
SKEW_MS = 3_600_000
SERVER = "rs1,16020,1"


class PaperCluster:
    """Regions and their reports, as the test says."""

    def __init__(self, system: SystemTable) -> None:
        self.system = system
        self.listed = [
            region("message", "m1", b"", b"\x08"),
            region("message", "m2", b"\x08", b""),
            region("payload", "p1"),
            region("cell", "c1"),
        ]
        self.compacted: list[str] = []
        self.refuses = False
        self.moves: list[list[Region]] = []

    def regions(self) -> list[Region]:
        return self.moves.pop(0) if self.moves else list(self.listed)

    def major_compact(self, region: Region) -> None:
        if self.refuses:
            raise StoreError("the gateway is away")
        self.compacted.append(region.id)

    def report(self, report_ms: int, *files: StoreFile, of: str = "m1", **given: object) -> None:
        """A region reports."""
        (found,) = [region for region in self.listed if region.id == of]
        made = RegionReport(
            f"basalt.{found.table}", found.name, found.server, report_ms, EMPTY_MEMSTORE, 0, 1, report_ms,
            found.start, found.stop, files, {"kept": 7},
        )  # fmt: skip
        self.system.write(REPORT_KIND, of, encode_report(made._replace(**given)))

    def report_all(self, report_ms: int) -> None:
        """Every region reports that it has no files."""
        for found in self.listed:
            self.report(report_ms, of=found.id)


def region(table: str, name: str, start: bytes = b"", stop: bytes = b"", server: str = SERVER) -> Region:
    return Region(table, name, f"basalt.{table},,1.{name}.".encode(), start, stop, server)


def pointer(time_ms: int) -> int:
    return time_ms * POINTERS_PER_MS


def file(decided: int, newest: int, name: str = "f1") -> StoreFile:
    return StoreFile(name, decided, newest, 100, 0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def settings() -> Settings:
    return Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS, long_timeout_ms=LIFETIME_MS))


async def _shop(settings: Settings, cluster: bool) -> AsyncIterator[Wired]:
    store, clock = MemoryStore(atomic=not cluster), ManualClock()
    paper = PaperCluster(SystemTable(store.table("system"))) if cluster else None
    wired = await Wired.start(store, clock, settings=settings, cluster=paper)
    await wired.topics.create(A, {})
    await wired.topics.create(B, {"onInvalid": "retain"})
    yield wired
    await wired.services.close()


@pytest.fixture
async def embedded(settings: Settings) -> AsyncIterator[Wired]:
    """A store without regions."""
    async for wired in _shop(settings, cluster=False):
        yield wired


@pytest.fixture
async def clustered(settings: Settings) -> AsyncIterator[Wired]:
    """A store with regions on paper: `paper(clustered)`."""
    async for wired in _shop(settings, cluster=True):
        yield wired


def paper(wired: Wired) -> PaperCluster:
    found = wired.services.pruner._cluster
    assert isinstance(found, PaperCluster)
    return found


async def failed_writer(wired: Wired, title: object = A) -> int:
    """A writer that published, failed, and is on the invalid list; its pointer."""
    tx = await wired.transactions.begin()
    await wired.publish(A if title is A else B, "lost", tx=tx)
    await wired.transactions.invalidate(tx.id)
    return tx.id
