"""Region servers learn of a changed topic with their next refresh, whichever shard it is of, and read no other topic for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crc32c import crc32c
from py4j.protocol import Py4JJavaError

from basalt_engine.metadata import METADATA, TopicMetadata
from basalt_engine.retention import OnInvalid
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.shards import SHARDS, shard_of
from tests.hbase.bare_installation import DAY_MS, HOUR_MS, BareInstallation, now_ms, pointer_at
from tests.hbase.mini_cluster import MiniCluster

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

TABLES = ("message", "payload", "cell", "metadata", "transaction_log", "system")  # a store fences them all
OLD_EPOCH, NEW_EPOCH = 2, 9
TOPICS = 40
ORDERS = b"shop:orders:"


@pytest.fixture
def installation(mini_cluster: MiniCluster, request: pytest.FixtureRequest) -> Iterator[BareInstallation]:
    prefix = f"changes{crc32c(request.node.name.encode())}"
    with BareInstallation(mini_cluster, prefix, tables=TABLES) as made:
        yield made
    assert mini_cluster.aborted() == []


@pytest.fixture
def store(installation: BareInstallation) -> Iterator[HBaseStore]:
    """An owner of all shards: that of `orders` it has held for long, all others were granted to it again and again since."""
    opened = HBaseStore.open(installation.cluster.thrift2, installation.prefix)
    opened.take({shard: OLD_EPOCH if shard == shard_of(ORDERS) else NEW_EPOCH for shard in range(SHARDS)})
    yield opened
    opened.close()


def put(store: HBaseStore, topic: str, *, ttl_ms: int = 7 * DAY_MS, generation: int = 1) -> None:
    """Change a topic as a server does: by comparing."""
    key, table = f"shop:{topic}:".encode(), store.table("metadata")
    metadata = TopicMetadata(generation, ttl_ms, OnInvalid.DROP, 1, 1, 0, 0, {})
    known = table.get(key)
    assert table.check_and_write(key, METADATA, known and known[METADATA], {METADATA: metadata.encode()})


def topics_read(installation: BareInstallation) -> dict[str, int]:
    """How many rows of topics each server has read, up to now."""
    return {report.server: report.counters["topicsRead"] for report in installation.wait_for_reports().values()}


def fill(installation: BareInstallation, store: HBaseStore) -> None:
    put(store, "orders")
    for number in range(TOPICS):
        put(store, f"topic-{number}")
    installation.wait_until_known()
    installation.wait_until_known()  # a refresh that began before the last one was written may have read half of them


def expired_rows(installation: BareInstallation) -> dict[bytes, dict[bytes, bytes | None]]:
    """Rows of a week and a day ago."""
    start_ms = now_ms() - 8 * DAY_MS
    writer = pointer_at(start_ms).to_bytes(8, "big")
    return {installation.keys().message_key(start_ms, number): {b"p": b"x", b"t": writer} for number in range(3)}


def test_a_change_in_a_shard_of_a_low_epoch_is_seen_at_once_and_nothing_else_read(
    installation: BareInstallation, store: HBaseStore
) -> None:
    fill(installation, store)
    idle = topics_read(installation)
    installation.wait_until_known()
    assert topics_read(installation) == idle  # nothing has changed: nothing is read
    put(store, "orders", ttl_ms=30 * DAY_MS)
    installation.wait_until_known()
    read = topics_read(installation)
    assert {server: count - idle[server] for server, count in read.items()} == dict.fromkeys(read, 1)
    kept = expired_rows(installation)  # by the rule of before
    installation.write(kept)
    installation.flush()
    installation.compact(major=True)
    assert installation.stored() == kept
    put(store, "orders", ttl_ms=HOUR_MS)
    installation.wait_until_known()
    installation.compact(major=True)
    assert installation.stored() == {}


def test_changes_are_seen_after_the_region_moved_split_merged_and_its_server_died(
    installation: BareInstallation, store: HBaseStore
) -> None:
    fill(installation, store)
    cluster, metadata = installation.cluster, installation.table("metadata")
    kept = expired_rows(installation)

    def assert_known(ttl_days: int) -> None:
        put(store, "orders", ttl_ms=ttl_days * DAY_MS)
        put(store, "topic-7", ttl_ms=ttl_days * DAY_MS)  # of the other half
        installation.wait_until_known()
        installation.write(kept)
        installation.flush()
        installation.compact(major=True)
        assert installation.stored() == (kept if ttl_days > 8 else {})

    assert_known(30)
    cluster.move(cluster.regions(metadata)[0])
    assert_known(7)
    cluster.split(metadata, cluster.regions(metadata)[0], b"shop:p")
    assert_known(30)
    installation.compact("metadata", major=True)  # references cannot be merged
    assert_known(7)
    cluster.merge(*cluster.regions(metadata))
    assert_known(30)
    cluster.kill(cluster.regions(metadata)[0].server)
    cluster.start_server()
    cluster.settle()
    assert_known(7)


def test_restored_topics_are_seen_though_nobody_wrote_them(installation: BareInstallation, store: HBaseStore) -> None:
    fill(installation, store)
    cluster, metadata = installation.cluster, installation.table("metadata")
    cluster.snapshot(metadata, f"{installation.prefix}-kept")
    put(store, "orders", generation=-1)
    installation.wait_until_known()
    cluster.disable(metadata)
    cluster.restore(f"{installation.prefix}-kept")
    cluster.enable(metadata)
    installation.wait_until_known()
    start_ms = now_ms() - HOUR_MS
    writer = pointer_at(start_ms).to_bytes(8, "big")
    kept = {installation.keys().message_key(start_ms, number): {b"p": b"x", b"t": writer} for number in range(3)}
    installation.write(kept)
    installation.flush()
    installation.compact(major=True)
    assert installation.stored() == kept


@pytest.mark.parametrize("opened", [bytes(8), b"\7" * 8, b"", b"\7"])
def test_the_proof_of_another_opening_is_refused(installation: BareInstallation, opened: bytes) -> None:
    """What was read from a server that has lost the region does not count."""
    nothing = {b"\0": {b"f": None}}
    with pytest.raises(Py4JJavaError) as error:
        installation.cluster.write(installation.table("metadata"), nothing, "basalt.opened", opened)
    assert "basalt: the region was opened anew" in str(error.value.java_exception)
