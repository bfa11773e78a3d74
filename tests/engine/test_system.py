"""The system table: small values by kind and name, replaced by comparison, with damage refused."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.memory import MemoryStore, MemoryTable
from basalt_engine.system import VALUE, SystemTable
from basalt_engine.table import Delete, Put

relaxed = settings(deadline=None)

KINDS = st.text("ab-_", min_size=1, max_size=3)
NAMES = st.text("ab:é\uffff\U0001f600", max_size=4)
BODIES = st.binary(max_size=8)


def table() -> MemoryTable:
    return MemoryStore().table(SystemTable.name)


@relaxed
@given(st.dictionaries(st.tuples(KINDS, NAMES), BODIES, max_size=8), KINDS, NAMES)
def test_each_entry_is_found_by_its_kind_and_name_and_listed_with_its_kind(
    entries: dict[tuple[str, str], bytes], kind: str, start: str
) -> None:
    system = SystemTable(table())
    for where, body in entries.items():
        system.write(*where, body)
    assert all(system.get(*where) == body for where, body in entries.items())
    assert system.get(kind, start) == entries.get((kind, start))
    listed = sorted((name.encode(), body) for (of, name), body in entries.items() if of == kind)
    from_start = [(name.decode(), body) for name, body in listed if name >= start.encode()]
    assert list(system.scan(kind)) == [(name.decode(), body) for name, body in listed]
    assert list(system.scan(kind, start)) == from_start
    assert list(system.scan(kind, start, reverse=True)) == from_start[::-1]
    assert list(system.scan(kind, start, reverse=True, rows_max=2)) == from_start[::-1][:2]
    assert list(system.scan(kind, start, rows_max=1)) == from_start[:1]


def test_an_entry_changes_only_from_what_it_was_compared_with() -> None:
    system = SystemTable(table())
    assert not system.replace("lease", "a", b"", b"new")
    assert system.replace("lease", "a", None, b"first")
    assert not system.replace("lease", "a", None, b"second")
    assert not system.replace("lease", "a", b"other", b"second")
    assert system.replace("lease", "a", b"first", b"")
    assert system.replace("lease", "a", b"", b"third")
    assert system.get("lease", "a") == b"third"


def test_a_removed_entry_is_gone_and_removing_it_again_is_fine() -> None:
    system = SystemTable(table())
    system.write("job", "a", b"1")
    system.write("job", "b", b"2")
    system.remove("job", "a")
    system.remove("job", "a")
    assert list(system.scan("job")) == [("b", b"2")]
    assert system.replace("job", "a", None, b"3")


def test_mutations_are_for_whoever_writes_others_with_them() -> None:
    store = table()
    put = SystemTable.put("swept", "shop:orders:", b"{}")
    assert put == Put(b"swept:shop:orders:", {VALUE: bytes.fromhex("017b7d1d3f967c")})
    store.write([put])
    assert SystemTable(store).get("swept", "shop:orders:") == b"{}"
    assert SystemTable.delete("swept", "shop:orders:") == Delete(b"swept:shop:orders:")


def test_every_cut_and_every_flipped_bit_of_a_value_is_corrupt() -> None:
    store = table()
    system = SystemTable(store)
    good = system.put("job", "stats", b'{"a":1}').columns[VALUE]
    bad = [good[:end] for end in range(len(good))]
    bad += [bytes([*good[:at], good[at] ^ 1 << bit, *good[at + 1 :]]) for at in range(len(good)) for bit in range(8)]
    for data in bad:
        store.write([Put(b"job:stats", {VALUE: data})])
        with pytest.raises(CorruptionError, match="job:stats"):
            system.get("job", "stats")
        with pytest.raises(CorruptionError, match="job:stats"):
            list(system.scan("job"))


def test_a_newer_version_and_a_row_without_its_column_are_refused_by_name() -> None:
    store = table()
    newer = b"\x02body"
    store.write([Put(b"job:newer", {VALUE: newer + crc32c(newer).to_bytes(4, "big")}), Put(b"job:none", {b"z": b""})])
    with pytest.raises(CorruptionError, match="job:newer has version 2; this Basalt reads version 1"):
        SystemTable(store).get("job", "newer")
    with pytest.raises(CorruptionError, match="job:none has no value"):
        SystemTable(store).get("job", "none")


def test_a_name_that_is_not_utf_8_is_corrupt() -> None:
    store = table()
    store.write([Put(b"job:\xff", SystemTable.put("job", "a", b"").columns)])
    with pytest.raises(CorruptionError, match=b"job:\xff".hex()):
        list(SystemTable(store).scan("job"))
