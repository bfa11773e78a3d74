"""Tests that share what is started once for a run are in the same group, however they ask for it."""

from __future__ import annotations

import pytest

from tests.sharing import group


class Item:
    """A collected test, as far as its group goes."""

    nodeid = "tests/hbase/test_store.py::test_rows"

    def __init__(self, fixturenames: tuple[str, ...] = (), marks: tuple[str, ...] = ()) -> None:
        self.fixturenames = fixturenames
        self.marks = marks

    def iter_markers(self):
        return [getattr(pytest.mark, mark).mark for mark in self.marks]


def test_one_that_asks_for_a_store_on_hbase_only_as_it_runs_is_with_all_on_hbase():
    assert group(Item(marks=("hbase",))) == group(Item(fixturenames=("hbase_tables", "hbase_gateways"))) == "hbase"


def test_one_on_hbase_and_spark_goes_to_the_hbase_and_does_not_start_a_second_one():
    assert group(Item(fixturenames=("spark",), marks=("spark", "hbase"))) == "hbase"


def test_one_on_a_mini_cluster_needs_no_standalone_hbase():
    assert group(Item(fixturenames=("mini_cluster",), marks=("hbase", "slow"))) == "mini-cluster"


def test_one_that_shares_nothing_is_with_those_of_its_file():
    assert group(Item(fixturenames=("tmp_path",), marks=("slow",))) == "tests/hbase/test_store.py"
