"""Tests that share what is started once for a run are in the same group, however they ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sharing import FIRST, group, rank, refuse_hidden_needs


class Item:
    """A collected test, as far as its group goes."""

    def __init__(self, nodeid: str, fixturenames: tuple[str, ...] = (), marks: tuple[str, ...] = ()) -> None:
        self.nodeid = nodeid
        self.fixturenames = fixturenames
        self.marks = marks

    def iter_markers(self):
        return [getattr(pytest.mark, mark).mark for mark in self.marks]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tests/hbase/test_store.py::test_rows", "hbase"),
        ("tests/contract/test_rows.py::test_rows[hbase]", "hbase"),
        ("tests/contract/test_rows.py::test_rows[rocks]", "tests/contract/test_rows.py"),
        ("tests/scripts/test_stories.py::test_the_story_is_true[spread: hbase]", "hbase"),
        ("tests/hbase/test_two_servers.py::test_one_leads", "servers-on-hbase"),
        ("tests/hbase/test_groups_on_two_servers.py::test_groups[worked]", "servers-on-hbase"),
        ("tests/hbase/test_two_tls_servers.py::test_a_client", "servers-on-hbase"),
        ("tests/hbase/test_groups.py::test_groups", "hbase"),
        ("tests/demo/test_demo_on_hbase.py::test_a_log", "servers-on-hbase"),
        ("tests/hbase/test_standalone.py::test_kill", "tests/hbase/test_standalone.py"),
        ("tests/hbase/test_kerberos.py::test_words[hbase install]", "tests/hbase/test_kerberos.py"),
        ("tests/engine/stores/hbase/test_kerberos.py::test_tickets", "tests/engine/stores/hbase/test_kerberos.py"),
        ("tests/hbase/test_mini_cluster_jars.py::test_jars", "mini-cluster"),
        ("tests/control/hbase_admin/test_check.py::test_check", "tests/control/hbase_admin/test_check.py"),
        ("tests/spark/test_writers.py::test_writers", "spark"),
        ("tests/control/cli/test_spark_commands.py::test_jobs", "spark"),
        ("tests/demo/test_spark_demo.py::test_demo", "tests/demo/test_spark_demo.py"),
    ],
)
def test_the_name_of_a_test_tells_its_group(name: str, expected: str):
    assert group(name) == expected


def test_groups_that_take_long_come_first():
    assert rank("hbase") < rank("spark") < rank("tests/sim/test_simulation.py") < rank("tests/docs/test_links.py")


def test_every_file_that_has_its_turn_first_exists(root: Path):
    assert [name for name in FIRST if name.endswith(".py") and not (root / name).exists()] == []


def test_one_on_hbase_and_spark_goes_to_the_hbase():
    refuse_hidden_needs(Item("tests/hbase/test_prune_audit.py::test_audit", ("spark",), ("spark", "hbase")))


@pytest.mark.parametrize("need", ["hbase_gateways", "mini_cluster", "spark"])
def test_a_test_whose_name_hides_what_it_needs_is_refused(need: str):
    with pytest.raises(pytest.UsageError, match=need):
        refuse_hidden_needs(Item("tests/control/operations/test_audit.py::test_audit", (need,)))


def test_so_is_one_that_is_only_marked():
    with pytest.raises(pytest.UsageError, match="hbase"):
        refuse_hidden_needs(Item("tests/control/operations/test_audit.py::test_audit", marks=("hbase",)))
