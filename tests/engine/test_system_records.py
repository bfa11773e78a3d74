"""System records: one struct for each kind of entry, in the system table as JSON."""

from __future__ import annotations

import msgspec
import pytest

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemRecord, SystemTable


class Note(msgspec.Struct, frozen=True):
    number: int


NOTES = SystemRecord("note", "", Note)
ONLY = SystemRecord("only", "one", Note)


@pytest.fixture
def system() -> SystemTable:
    return SystemTable(MemoryStore().table(SystemTable.name))


def test_a_record_of_many_entries_finds_each_by_its_name_and_lists_them_in_order(system: SystemTable):
    for name, number in (("b", 2), ("a", 1), ("c", 3)):
        NOTES.write(system, Note(number), name)
    assert (NOTES.get(system, "b"), NOTES.get(system, "d")) == (Note(2), None)
    assert list(NOTES.scan(system)) == [("a", Note(1)), ("b", Note(2)), ("c", Note(3))]
    assert list(NOTES.scan(system, "b", rows_max=1)) == [("b", Note(2))]
    assert list(NOTES.scan(system, reverse=True, rows_max=2)) == [("c", Note(3)), ("b", Note(2))]
    NOTES.remove(system, "b")
    assert [name for name, _ in NOTES.scan(system)] == ["a", "c"]


def test_the_only_entry_of_a_kind_needs_no_name(system: SystemTable):
    assert ONLY.get(system) is None
    ONLY.write(system, Note(1))
    assert (ONLY.get(system), system.get("only", "one")) == (Note(1), b'{"number":1}')
    ONLY.remove(system)
    assert ONLY.get(system) is None


def test_mutations_are_those_of_the_system_table():
    assert NOTES.put(Note(1), "a") == SystemTable.put("note", "a", b'{"number":1}')
    assert ONLY.put(Note(1)) == SystemTable.put("only", "one", b'{"number":1}')
    assert (NOTES.delete("a"), ONLY.delete()) == (SystemTable.delete("note", "a"), SystemTable.delete("only", "one"))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"number":"1"}', b"\xff"])
def test_a_body_that_is_something_else_is_corruption_and_names_the_entry(system: SystemTable, body: bytes):
    system.write("note", "a", body)
    with pytest.raises(CorruptionError, match="system entry note:a is not what it should be"):
        NOTES.get(system, "a")
    with pytest.raises(CorruptionError, match="system entry note:a is not what it should be"):
        list(NOTES.scan(system))
    with pytest.raises(CorruptionError, match="system entry only:one is not what it should be"):
        ONLY.decode(body)
