"""The map of owners: its bytes, what a grant changes, and a leader that takes all shards while others may write the map too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from basalt.cluster import owners as owners_module
from basalt.cluster.members import MEMBER, MemberRecord
from basalt.cluster.owners import KIND, NAME, OwnersMap, granted, take_all, take_up
from basalt_engine.errors import CorruptionError, FencedError, StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import EPOCH_MAX, SHARDS, Epochs, shard_of
from basalt_engine.system import SystemTable
from basalt_engine.table import Columns, Put, Store
from tests.vector_lines import cases

ORDERS = b"\0shop:orders:"
SHARD = shard_of(ORDERS[1:])


def meant(meaning: dict[str, Any]) -> OwnersMap:
    shards = [run[2:] for run in meaning["shards"] for _ in range(run[0], run[1] + 1)]
    owners, epochs = zip(*shards, strict=True)
    return OwnersMap(meaning["version"], meaning["leader_epoch"], tuple(meaning["members"]), owners, epochs)


def counted(found: OwnersMap, member: str) -> Counter[int]:
    """How many shards the member has under each epoch: the difference of two whole maps takes pytest minutes to tell."""
    return Counter(found.shards_of(member).values())


@pytest.mark.parametrize(("data", "meaning"), cases("owners-map"))
def test_a_map_is_written_and_read_as_its_vector_says(data: bytes, meaning: dict[str, Any]):
    assert meant(meaning).encode().hex() == data.hex()
    same = OwnersMap.decode(data) == meant(meaning)
    assert same


@pytest.mark.parametrize(("data", "meaning"), cases("owners-map-corrupt"))
def test_what_is_no_map_is_refused(data: bytes, meaning: str):
    with pytest.raises(CorruptionError, match="map of owners"):
        OwnersMap.decode(data)


@pytest.mark.parametrize(
    "change",
    [
        {"members": ("a", "a")}, {"members": ("",)}, {"members": ("a" * (1 << 16),)}, {"owners": (1,) * SHARDS},
        {"epochs": (1,)}, {"version": 0}, {"leader_epoch": EPOCH_MAX + 1}, {"epochs": (EPOCH_MAX + 1,) * SHARDS},
    ],
)  # fmt: skip
def test_what_is_no_map_is_not_written(change: dict[str, Any]):
    with pytest.raises(ValueError):
        granted(None, "a", (), 1)._replace(**change).encode()


def test_where_there_was_no_map_the_first_one_begins_above_all_leaders_before():
    first = granted(None, "a", (), 7)
    assert counted(first, "a") == {7: SHARDS}
    assert (first.version, first.leader_epoch) == (1, 7)


def test_a_grant_raises_the_epoch_of_its_shards_and_of_no_other():
    first = granted(None, "a", (), 7)
    second = granted(first, "b", [3, 5], 7)
    assert second.shards_of("b") == {3: 8, 5: 8}
    assert counted(second, "a") == {7: SHARDS - 2}
    third = granted(second, "a", [3], 8)
    assert (third.shards_of("a")[3], third.shards_of("b"), third.version) == (9, {5: 8}, 3)
    assert granted(third, "a", [3], 8).shards_of("a")[3] == 10  # to the same member, too
    assert granted(third, "c", range(SHARDS), 9).members == ("c",)


def test_a_leader_takes_every_shard_and_the_former_one_writes_none_any_more():
    former = MemoryStore(atomic=False)
    former.lead(1)
    take_all(former, "a", 1)
    former.table("message").write([Put(ORDERS, {b"v": b"1"})])
    later = former.another()
    later.lead(2)
    assert counted(take_all(later, "b", 2), "b") == {2: SHARDS}
    with pytest.raises(FencedError, match=f"epoch 1 of shard {SHARD}"):
        former.table("message").write([Put(ORDERS, {b"v": b"late"})])
    later.table("message").write([Put(ORDERS, {b"v": b"2"})])


def test_a_term_that_takes_all_again_raises_all_epochs_again():
    store = MemoryStore(atomic=False)
    store.lead(5)
    take_all(store, "a", 5)
    assert counted(take_all(store, "a", 5), "a") == {6: SHARDS}


class Beside:
    """A handle on a store of which somebody else does something just before each conditional write."""

    def __init__(self, before_write: Callable[[], None]) -> None:
        self.inner = MemoryStore(atomic=False)
        self.before_write = before_write

    def table(self, name: str) -> Beside:
        assert name == SystemTable.name
        return self

    def get(self, key: bytes) -> Columns | None:
        return self.inner.table(SystemTable.name).get(key)

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        self.before_write()
        return self.inner.table(SystemTable.name).check_and_write(key, column, expected, columns)

    def take(self, epochs: Epochs) -> None:
        self.inner.take(epochs)

    def take_all(self, leader_epoch: int) -> OwnersMap:
        return take_all(cast("Store", self), "a", leader_epoch)

    def replace_map(self, leader_epoch: int) -> None:
        """As another leader does."""
        system = SystemTable(self.inner.table(SystemTable.name))
        stored = system.get(KIND, NAME)
        before = None if stored is None else OwnersMap.decode(stored)
        system.write(KIND, NAME, granted(before, "other", range(SHARDS), leader_epoch).encode())


@pytest.mark.parametrize(
    ("ended_ms", "unaware", "stays"),
    [(0, False, True), (9, False, False), (9, True, True)],
    ids=["it lasts", "it is over", "its server may not know that it is over"],
)
def test_a_leader_that_begins_leaves_the_shards_of_whoever_may_answer_for_them(
    ended_ms: int, unaware: bool, stays: bool
):
    store = MemoryStore(atomic=False)
    system = SystemTable(store.table(SystemTable.name))
    system.write(KIND, NAME, granted(None, "b-1", range(SHARDS), 1).encode())
    MEMBER.write(system, MemberRecord("b", "", "1.0", 1, 6_000, 1, ended_ms, run="b-1", unaware=unaware), "row")
    assert take_up(store, "a-1", 2).counts() == ({"b-1": SHARDS} if stays else {"a-1": SHARDS})


def test_a_map_that_a_former_leader_writes_meanwhile_is_read_again():
    left = [1, 1]
    store = Beside(lambda: store.replace_map(left.pop()) if left else None)
    assert counted(store.take_all(2), "a") == {3: SHARDS}


def test_a_map_of_a_later_leader_ends_the_attempt():
    store = Beside(lambda: store.replace_map(3))
    with pytest.raises(FencedError, match="the leader of epoch 3 dealt the shards"):
        store.take_all(2)


def test_a_map_that_changes_at_each_try_is_given_up():
    tries: list[int] = []

    def replace_it() -> None:
        tries.append(1)
        store.replace_map(1)

    store = Beside(replace_it)
    with pytest.raises(StoreError, match="changed at each try"):
        store.take_all(2)
    assert len(tries) == owners_module.GRANT_TRIES_MAX


def test_the_map_is_written_before_the_shards_are_taken():
    """Else a region that opens in between would let in a former owner that the fence has passed by."""
    found: list[OwnersMap] = []

    class Looking(Beside):
        def take(self, epochs: Epochs) -> None:
            found.append(OwnersMap.decode(SystemTable(self.inner.table("system")).get(KIND, NAME) or b""))
            assert counted(found[-1], "a") == Counter(epochs.values())

    Looking(lambda: None).take_all(1)
    assert len(found) == 1
