"""Layouts of Basalt's tables in HBase, and how those that are there are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt_engine.stores.hbase.tables import (
    COPROCESSOR_CLASS_DEFAULT,
    SALTED,
    Coprocessor,
    CoprocessorJar,
    layouts,
    missing_splits,
    own_coprocessor,
    salts_of,
    with_coprocessor,
)
from basalt_engine.table import TABLE_NAMES

WORD = st.text("abcXYZ019._-:/", min_size=1, max_size=12)


def test_there_is_a_layout_for_each_table_of_the_stores():
    assert [layout.table for layout in layouts("p", 16)] == list(TABLE_NAMES)
    assert [layout.name for layout in layouts("p", 16)] == [f"p.{name}" for name in TABLE_NAMES]
    assert set(TABLE_NAMES) > SALTED


@given(WORD, WORD, st.lists(st.tuples(WORD, WORD), max_size=3), st.integers(0, 1 << 30))
def test_a_coprocessor_survives_its_attribute(jar: str, name: str, options: list[tuple[str, str]], priority: int):
    found = Coprocessor(jar, name, tuple(options), priority)
    assert Coprocessor.decode(found.encode()) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # What HBase's own pattern takes, and what it does not.
        ("|org.example.Observer|", Coprocessor("", "org.example.Observer")),
        ("hdfs:///a.jar | C | 5 | a=1, b=2", Coprocessor("hdfs:///a.jar", "C", (("a", "1"), ("b", "2")), 5)),
        ("hdfs:///a.jar|C|1001", Coprocessor("hdfs:///a.jar", "C")),
        ("hdfs:///a.jar|C|high|", None),
        ("hdfs:///a.jar||5|", None),
        ("hdfs:///a.jar|C", None),
        ("C", None),
        ("", None),
    ],
)
def test_an_attribute_is_read_as_hbase_reads_it(text: str, found: Coprocessor | None):
    assert Coprocessor.decode(text) == found


def test_only_a_class_of_basalt_is_taken_for_its_coprocessor():
    attributes = {
        "coprocessor$1": "|org.example.Observer|1|",
        "Coprocessor$7": f"hdfs:///a.jar|{COPROCESSOR_CLASS_DEFAULT}|1001|",
        "other": f"hdfs:///b.jar|{COPROCESSOR_CLASS_DEFAULT}|1001|",
    }
    assert own_coprocessor(attributes) == ("Coprocessor$7", Coprocessor("hdfs:///a.jar", COPROCESSOR_CLASS_DEFAULT))
    del attributes["Coprocessor$7"]
    assert own_coprocessor(attributes) is None


def test_a_new_coprocessor_takes_the_place_of_the_old_one_or_the_first_that_is_free():
    new = CoprocessorJar("hdfs:///new.jar").of("message")
    before = {"Coprocessor$1": "|org.example.Observer|1|", "coprocessor$3": "|org.example.Another|1|"}
    added = with_coprocessor(before, CoprocessorJar("hdfs:///old.jar").of("message"))
    assert added.keys() - before.keys() == {"coprocessor$2"}
    changed = with_coprocessor(added, new)
    assert changed == {**before, "coprocessor$2": new.encode()}


def test_regions_tell_how_many_buckets_they_were_cut_for():
    for buckets in (1, 2, 16, 256):
        message = layouts("p", buckets)[0]
        starts = [b"", *message.splits, b"\x01default:orders:"]
        assert salts_of(starts) == buckets
        assert missing_splits(message, starts) == []
    assert missing_splits(layouts("p", 4)[0], [b"", b"\x02"]) == [b"\x01", b"\x03"]
