"""An installation on the mini-cluster without a server: tests put its rows there themselves, and read what regions report.

Tables have the coprocessor of the class path (or of a jar), with refreshers and reports a few times a second: more often they would keep a core busy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from basalt.cluster import owners
from basalt_engine.cells.keys import TableKeys
from basalt_engine.keys import TopicKeys, table_prefix
from basalt_engine.metadata import METADATA, TopicMetadata
from basalt_engine.retention import OnInvalid
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.stores.hbase.regions import RegionReport, RegionSnapshot
from basalt_engine.stores.hbase.stamps import encode_fence
from basalt_engine.stores.hbase.tables import REFRESH_INTERVAL, REPORT_INTERVAL, SALTED, CoprocessorJar
from basalt_engine.stores.shards import SHARDS, Epochs
from basalt_engine.system import VALUE, entry_key, seal, unseal
from tests.hbase.mini_cluster import MiniCluster, NewTable, Region, wait_until

SECOND_MS = 1_000
HOUR_MS = 3_600 * SECOND_MS
DAY_MS = 24 * HOUR_MS
BUCKETS = 2
OPTIONS = ((REFRESH_INTERVAL, "300"), (REPORT_INTERVAL, "400"))
RULED_TABLES = ("message", "payload", "cell", "metadata", "system")


def now_ms() -> int:
    """The clock that the region servers have, too: they run on this machine."""
    return time.time_ns() // 1_000_000


def pointer_at(time_ms: int, counter: int = 0) -> int:
    """A write pointer of that time."""
    return time_ms * POINTERS_PER_MS + counter


class BareInstallation:
    """Tables of one prefix, which go when the block ends; without a coprocessor unless they are `observed`."""

    def __init__(
        self,
        cluster: MiniCluster,
        prefix: str,
        *,
        jar: str = "",
        tables: Sequence[str] = RULED_TABLES,
        observed: bool = True,
    ) -> None:
        self.cluster = cluster
        self.prefix = prefix
        self._observed = observed
        self._jar = CoprocessorJar(jar, OPTIONS)
        self._tables = tables

    def __enter__(self) -> BareInstallation:
        salted = [bytes([bucket]) for bucket in range(1, BUCKETS)]
        self.cluster.create(
            *(
                NewTable(self.table(name), self.coprocessor(name), salted if name in SALTED else ())
                for name in self._tables
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.drop_all(f"{self.prefix}.")

    def table(self, name: str) -> str:
        """A table's name in HBase."""
        return f"{self.prefix}.{name}"

    def coprocessor(self, name: str) -> str:
        """The attribute of a table."""
        return self._jar.of(name).encode() if self._observed else ""

    @staticmethod
    def keys(topic: str = "orders", generation: int = 1) -> TopicKeys:
        """How the rows of a topic are keyed."""
        return TopicKeys(f"shop:{topic}:".encode(), generation, BUCKETS)

    @staticmethod
    def table_keys(table: str = "stock", generation: int = 1) -> TableKeys:
        """How the cells of a transactional table are keyed."""
        return TableKeys(table_prefix("shop", table), generation, BUCKETS)

    # What region servers go by

    def put_topic(
        self, topic: str, *, generation: int = 1, ttl_ms: int = 7 * DAY_MS, on_invalid: OnInvalid = OnInvalid.DROP,
        truncated_before_ms: int = 0,
    ) -> None:  # fmt: skip
        """Write a topic's metadata."""
        labels = {"label.owner": "billing"}
        metadata = TopicMetadata(generation, ttl_ms, on_invalid, 1, 1, 0, 0, labels, truncated_before_ms)
        self.put_topic_bytes(topic, metadata.encode())

    def put_table(self, table: str = "stock", *, generation: int = 1) -> None:
        """Write a transactional table's metadata."""
        self.put_topic(f"~{table}", generation=generation, ttl_ms=(1 << 63) - 1)

    def put_topic_bytes(self, topic: str, value: bytes) -> None:
        """Write anything as a topic's metadata."""
        self.cluster.write(self.table("metadata"), {f"shop:{topic}:".encode(): {METADATA: value}})

    def put_snapshot(self, snapshot: RegionSnapshot) -> None:
        """Write the transaction snapshot."""
        self.put_system("snapshot", "latest", seal(snapshot.encode()))

    def put_system(self, kind: str, name: str, value: bytes) -> None:
        """Write anything into the system table."""
        self.cluster.write(self.table("system"), {entry_key(kind, name): {VALUE: value}})

    def lead(self, epoch: int) -> None:
        """Write the leader's lease."""
        body = b'{"holder":"a","url":"http://a","epoch":%d,"expire_ms":0,"instance":""}' % epoch
        self.put_system("lease", "leader", seal(body))

    def deal(self, shards: Epochs) -> None:
        """Write the map of owners: these shards have these epochs, all others epoch 1."""
        epochs = tuple(shards.get(shard, 1) for shard in range(SHARDS))
        dealt = owners.OwnersMap(1, 1, ("a",), (0,) * SHARDS, epochs)
        self.put_system(owners.KIND, owners.NAME, seal(dealt.encode()))

    @staticmethod
    def snapshot(
        *,
        epoch: int = 1,
        sequence: int = 1,
        invalid: Sequence[int] = (),
        in_progress: Sequence[int] = (),
        decided: int | None = None,
        upper_bound: int | None = None,
        lifetime_ms_max: int = DAY_MS,
    ) -> RegionSnapshot:
        """A snapshot of now; without an upper bound readers need nothing that is older."""
        newest = pointer_at(now_ms())
        if decided is None:
            decided = in_progress[0] - 1 if in_progress else newest
        return RegionSnapshot(
            epoch, sequence, now_ms(), newest, newest, decided, newest if upper_bound is None else upper_bound,
            lifetime_ms_max,
            tuple(in_progress), tuple(sorted(invalid)),
        )  # fmt: skip

    # What they say

    def reports(self, table: str = "message") -> dict[str, RegionReport]:
        """The report of each region that has one, by encoded name."""
        rows = self.cluster.scan(self.table("system"))
        found = {}
        for region in self.cluster.regions(self.table(table)):
            key = entry_key("region", region.encoded_name)
            if key in rows:
                found[region.encoded_name] = RegionReport.decode(unseal(key, rows[key].get(VALUE)))
        return found

    def wait_for_reports(self, tables: Sequence[str] = ("message",)) -> dict[str, RegionReport]:
        """The reports of all regions of these tables, each from where the region is now, and of after this call."""
        asked_ms = now_ms()
        fresh: dict[str, RegionReport] = {}

        def all_reported() -> bool:
            fresh.clear()
            for table in tables:
                reports = self.reports(table)
                for region in self.cluster.regions(self.table(table)):
                    report = reports.get(region.encoded_name)
                    if report is None or report.report_ms <= asked_ms or report.server != region.server:
                        return False
                    fresh[region.encoded_name] = report
            return True

        wait_until(all_reported, f"every region of {tables} in {self.prefix} has reported")
        return fresh

    def wait_until_known(self, snapshot: RegionSnapshot | None = None, tables: Sequence[str] = ("message",)) -> None:
        """Return once the servers of these tables go by this snapshot, and by all topics that were written up to now."""
        asked_ms = now_ms()

        def known() -> bool:
            return all(
                report.counters.get("metadata.time_ms", -1) > asked_ms
                and (snapshot is None or (report.snapshot_epoch, report.snapshot_sequence) >= snapshot.order)
                for report in self.wait_for_reports(tables).values()
            )

        wait_until(known, f"every server knows the topics and the snapshot of {self.prefix}")

    # Rows

    def write(
        self,
        rows: Mapping[bytes, Mapping[bytes, bytes | None]],
        table: str = "message",
        epoch: int = 0,
        shard: int | None = None,
    ) -> None:
        """Write rows under an epoch when one is named: of the leader, or of this shard's owner."""
        attribute = ("", b"")
        if shard is not None:
            attribute = ("basalt.shard", shard.to_bytes(2, "big") + epoch.to_bytes(6, "big"))
        elif epoch:
            attribute = ("basalt.epoch", epoch.to_bytes(8, "big"))
        self.cluster.write(self.table(table), rows, *attribute)

    def fence(self, epoch: int, table: str = "message", shards: Epochs | None = None) -> None:
        """Fence each region off from lower epochs, as a new leader does, or an owner that takes shards."""
        fence = encode_fence(epoch, shards or {})
        for region in self.cluster.regions(self.table(table)):
            key = region.start or b"\0"
            self.cluster.write(self.table(table), {key: {b"f": None}}, "basalt.fence", fence)

    def regions(self, table: str = "message") -> list[Region]:
        """In key order."""
        return self.cluster.regions(self.table(table))

    def stored(self, table: str = "message") -> dict[bytes, dict[bytes, bytes]]:
        """What lies in the files."""
        return self.cluster.stored(self.table(table))

    def flush(self, table: str = "message") -> None:
        """Write the memstores to files."""
        self.cluster.flush(self.table(table))

    def compact(self, table: str = "message", *, major: bool) -> None:
        """Compact every region."""
        self.cluster.compact(self.table(table), major=major)
