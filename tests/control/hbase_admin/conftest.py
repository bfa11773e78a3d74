"""A pretended cluster with its two gateways, and the command line against it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.control.cli.conftest import Ran, Run, run
from tests.control.hbase_admin.fake_gateway import FakeHBase, gateway

__all__ = ["Admin", "run"]  # the fixture `run` is for these tests, too

PREFIX = "shop"
BUCKETS = 4


@pytest.fixture
def cluster() -> FakeHBase:
    return FakeHBase()


@pytest.fixture
def thrift2(cluster: FakeHBase) -> Iterator[str]:
    with gateway(cluster) as address:
        yield address


@pytest.fixture
def thrift(cluster: FakeHBase) -> Iterator[str]:
    with gateway(cluster, server_type=1) as address:
        yield address


class Admin:
    """`basalt hbase …` against the pretended cluster."""

    def __init__(self, run: Run, thrift: str, thrift2: str) -> None:
        self._run = run
        self._settings = {"thrift": thrift, "thrift2": thrift2, "prefix": PREFIX, "buckets": str(BUCKETS)}

    def __call__(self, *arguments: str, **settings: str) -> Ran:
        given = {**self._settings, **settings}
        options = [part for key, value in given.items() for part in ("--set", f"store.hbase.{key}={value}")]
        return self._run("hbase", *arguments, *options)


@pytest.fixture
def admin(run: Run, thrift: str, thrift2: str) -> Admin:
    return Admin(run, thrift, thrift2)
