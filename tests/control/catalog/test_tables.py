"""Tables by name: created, deleted, created again; beside topics of the same names, which they never meet."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.catalog.tables import TableCatalog, table_name, table_title_of
from basalt.catalog.topics import Topics, topic_name
from basalt.errors import (
    ConflictError,
    CorruptionError,
    InvalidNameError,
    InvalidPropertyError,
    TableExistsError,
    TableNotFoundError,
    TopicNotFoundError,
)
from basalt.runtime.group_commit import NotLoadedError
from basalt_engine.clock import ManualClock
from basalt_engine.keys import GENERATION_MAX, NAME_PATTERN, table_prefix, topic_prefix
from basalt_engine.metadata import MetadataTable
from basalt_engine.stores.memory import MemoryStore

STOCK = table_name("shop", "stock")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def catalog(store: MemoryStore) -> TableCatalog:
    return TableCatalog(store, ManualClock(), 16)


def run(work):
    async def main():
        return await work

    return asyncio.run(main())


def test_a_table_is_found_again_with_its_conflict_level(catalog: TableCatalog, store: MemoryStore):
    made = run(catalog.create(STOCK, "cell"))
    assert (made.generation, made.conflict, made.keys.prefix) == (1, "cell", b"shop:~stock:")
    assert run(catalog.get(STOCK)) == made
    assert run(TableCatalog(store, ManualClock(), 16).get(STOCK)) == made


def test_a_table_that_was_deleted_comes_back_as_its_next_generation(catalog: TableCatalog):
    run(catalog.create(STOCK))
    run(catalog.delete(STOCK))
    with pytest.raises(TableNotFoundError):
        run(catalog.get(STOCK))
    with pytest.raises(TableNotFoundError):
        run(catalog.delete(STOCK))
    with pytest.raises(NotLoadedError) as missing:
        catalog.loaded(STOCK)
    with pytest.raises(TableNotFoundError):
        run(missing.value.load())
    assert run(catalog.create(STOCK, "none")).generation == 2


def test_an_existing_table_is_not_created_again(catalog: TableCatalog):
    run(catalog.create(STOCK))
    with pytest.raises(TableExistsError):
        run(catalog.create(STOCK, "cell"))
    assert run(catalog.get(STOCK)).conflict == "row"


def test_of_two_servers_that_delete_one_is_told(catalog: TableCatalog, store: MemoryStore):
    run(catalog.create(STOCK))
    other = TableCatalog(store, ManualClock(), 16)
    run(other.get(STOCK))
    run(catalog.delete(STOCK))
    with pytest.raises(ConflictError):
        run(other.delete(STOCK))
    with pytest.raises(TableNotFoundError):
        run(other.get(STOCK))


def test_of_two_creates_at_once_one_succeeds(catalog: TableCatalog):
    async def race():
        return await asyncio.gather(*(catalog.create(STOCK) for _ in range(5)), return_exceptions=True)

    assert [type(answer) for answer in run(race())].count(TableExistsError) == 4


def test_generations_run_out(catalog: TableCatalog, store: MemoryStore):
    last = run(catalog.create(STOCK)).metadata._replace(generation=-GENERATION_MAX)
    rows = MetadataTable(store.table("metadata"))
    assert rows.replace(table_prefix(*STOCK), rows.get(table_prefix(*STOCK)), last)
    with pytest.raises(ConflictError, match="choose another name"):
        run(TableCatalog(store, ManualClock(), 16).create(STOCK))


def test_a_conflict_level_that_there_is_not_is_refused(catalog: TableCatalog):
    with pytest.raises(InvalidPropertyError, match="topic"):
        run(catalog.create(STOCK, "topic"))


def test_tables_and_topics_of_one_name_do_not_know_of_each_other(catalog: TableCatalog, store: MemoryStore):
    topics = Topics(store, ManualClock(), 16)
    run(topics.create(topic_name("shop", "stock"), {}))
    run(topics.create(topic_name("shop", "orders"), {}))
    run(catalog.create(STOCK))
    run(catalog.create(table_name("shop", "prices")))
    run(catalog.create(table_name("elsewhere", "prices")))
    assert run(catalog.list("shop")) == ["prices", "stock"]
    assert run(topics.list("shop")) == ["orders", "stock"]
    assert run(topics.namespaces()) == ["shop"]
    run(topics.delete(run(topics.read(topic_name("shop", "stock")))))
    assert run(catalog.get(STOCK)).generation == 1
    with pytest.raises(TopicNotFoundError):
        run(topics.read(topic_name("shop", "prices")))


@pytest.mark.parametrize("name", ["", "~stock", "a:b", "ä", "x" * 256])
def test_a_name_that_is_none_is_refused(name: str):
    with pytest.raises(InvalidNameError):
        table_name("shop", name)
    with pytest.raises(InvalidNameError):
        table_name(name, "stock")


names = st.from_regex(NAME_PATTERN, fullmatch=True)


@given(names, names)
def test_a_prefix_tells_the_names_that_made_it(namespace: str, name: str):
    assert table_title_of(table_prefix(namespace, name)) == (namespace, name)


def test_a_topics_prefix_is_no_tables():
    with pytest.raises(CorruptionError):
        table_title_of(topic_prefix("shop", "stock"))
