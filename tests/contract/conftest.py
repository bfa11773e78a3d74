"""Each test of this directory runs once per store, and finds its tables empty."""

from __future__ import annotations

import pytest

from basalt_engine.table import KEY_BYTES_MAX, TABLE_NAMES, DeleteRange
from tests.contract.stores import HBASE, OPENERS, Opener, fast_directory


@pytest.fixture(params=[*OPENERS, pytest.param(HBASE, marks=pytest.mark.hbase)], ids=str, scope="module")
def opener(request):
    if request.param != HBASE:
        return request.param
    tables = request.getfixturevalue("hbase_tables")
    return Opener(HBASE, lambda _: tables.open(), persistent=True)


@pytest.fixture(scope="module")
def shared_store(opener):
    """One store for the tests of a module: opening one takes longer than most of them."""
    with fast_directory() as directory:
        store = opener.open(directory)
        yield store
        store.close()


@pytest.fixture
def store(shared_store):
    for name in TABLE_NAMES:
        shared_store.table(name).write([DeleteRange(b"", b"\xff" * (KEY_BYTES_MAX + 1))])
    return shared_store


@pytest.fixture
def table(store):
    return store.table("message")  # on rocks the one with large values apart


@pytest.fixture
def own_store(opener, tmp_path):
    """A store of the test's own, which it may close."""
    store = opener.open(tmp_path)
    yield store
    store.close()
