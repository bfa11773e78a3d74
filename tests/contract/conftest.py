"""Each test of this directory runs once per store."""

from __future__ import annotations

import pytest

from tests.contract.stores import OPENERS


@pytest.fixture(params=OPENERS, ids=lambda opener: opener.name)
def opener(request):
    return request.param


@pytest.fixture
def store(opener, tmp_path):
    store = opener.open(tmp_path / "data")
    yield store
    store.close()


@pytest.fixture
def table(store):
    return store.table("message")  # on rocks the one with large values apart
