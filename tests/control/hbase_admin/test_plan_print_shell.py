"""`basalt hbase install --print-shell`: lines that make the same tables as the installation by Thrift."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.hbase_admin.plan import alter_line, create_lines, quoted, split_key
from basalt_engine.stores.hbase.tables import CoprocessorJar, layouts
from basalt_engine.stores.hbase.thrift2 import Thrift2
from tests.control.cli.conftest import Run
from tests.control.hbase_admin.conftest import BUCKETS, PREFIX, Admin
from tests.control.hbase_admin.fake_gateway import FakeHBase
from tests.control.hbase_admin.ruby_lines import created, read_line, to_bytes_binary
from tests.control.hbase_admin.test_install import actions

JAR = "hdfs:///basalt/one.jar"
GOLDEN = Path(__file__).with_name("install.shell.txt")


def test_the_lines_are_those_that_were_reviewed(admin: Admin):
    ran = admin("install", "--print-shell", "--jar", JAR, "--flush-interval", "5m", "--report-interval", "4s")
    assert ran.code == 0, ran.err
    if os.environ.get("UPDATE"):
        GOLDEN.write_text(ran.out)
    assert ran.out == GOLDEN.read_text()


def test_they_need_no_gateway(run: Run):
    ran = run("hbase", "install", "--print-shell", "--no-coprocessor")
    assert ran.code == 0, ran.err
    assert [line.split(",")[0] for line in ran.out.splitlines()][:2] == [
        "create 'basalt.message'",
        "create 'basalt.payload'",
    ]
    assert "coprocessor" not in ran.out


def test_they_ask_for_a_jar_as_the_installation_does(run: Run):
    ran = run("hbase", "install", "--print-shell")
    assert (ran.code, ran.out) == (2, "")
    assert "--jar is missing" in ran.err


def test_tables_made_by_them_are_an_installation_that_only_lacks_its_facts(
    admin: Admin, cluster: FakeHBase, thrift2: str
):
    ran = admin("install", "--print-shell", "--jar", JAR, "--report-interval", "4s")
    with Thrift2(thrift2) as gateway:
        for line in ran.out.splitlines():
            gateway.create(*created(line))
    assert actions(admin("install", "--jar", JAR, "-o", "json")) == ["keep"] * 6 + ["write"]


@pytest.mark.parametrize("buckets", [1, 2, 16, 256])
def test_they_mean_exactly_the_layouts(buckets: int):
    made = layouts(PREFIX, buckets, jar=CoprocessorJar(JAR, (("basalt.refresh.interval.ms", "1000"),)))
    for layout, line in zip(made, create_lines(made), strict=True):
        assert created(line) == (layout.descriptor(), list(layout.splits))


def test_every_byte_of_a_split_key_arrives():
    for byte in range(256):
        _, [text] = read_line(f"create {split_key(bytes([byte]))}")
        assert to_bytes_binary(text) == bytes([byte])


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_text_survives_the_quotes(text: str):
    _, [read] = read_line(f"create {quoted(text)}")
    assert read == text


def test_a_dollar_and_a_hash_are_nothing_special():
    command, [table, change] = read_line(alter_line("shop.message", {"coprocessor$1": "hdfs:/#{x}.jar|C|1|"}))
    assert (command, table, change) == ("alter", "shop.message", {"METADATA": {"coprocessor$1": "hdfs:/#{x}.jar|C|1|"}})


def test_the_salted_tables_have_one_region_for_each_bucket():
    lines = create_lines(layouts(PREFIX, BUCKETS))
    assert [len(created(line)[1]) + 1 for line in lines] == [BUCKETS] * 3 + [1] * 3
