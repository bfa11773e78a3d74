"""A store within a term: it writes while the lease holds, and not a moment longer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from basalt.cluster.led_store import LedStore, Term
from basalt_engine.clock import ManualClock
from basalt_engine.errors import FencedError, StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Delete, DeleteRange, Mutation, Put, Row, Store, TableWrite

WRITES: dict[str, Callable[[Store], object]] = {
    "store.write": lambda store: store.write([TableWrite("message", [Put(b"k", {b"c": b"late"})])]),
    "table.write": lambda store: store.table("message").write([Delete(b"k")]),
    "check_and_write": lambda store: store.table("message").check_and_write(b"k", b"c", b"v", {b"c": b"late"}),
    "delete_range": lambda store: store.table("message").write([DeleteRange(b"a", b"z")]),
    "lead": lambda store: store.lead(7),
    "take": lambda store: store.take({5: 7}),
}


READS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.table("cell").get(b"k"),
    "scan": lambda store: list(store.table("cell").scan(b"a", None)),
    "scan of nothing": lambda store: list(store.table("cell").scan(b"x", None)),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def term(clock: ManualClock) -> Term:
    return Term(clock, 3, 1_000.0)


@pytest.fixture
def inner() -> MemoryStore:
    store = MemoryStore(atomic=False)
    store.table("message").write([Put(b"k", {b"c": b"v"})])
    return store


@pytest.mark.parametrize("write", WRITES)
def test_a_term_that_has_run_out_writes_nothing(clock: ManualClock, term: Term, inner: MemoryStore, write: str):
    store = LedStore(inner, term)
    clock.advance(999)
    assert store.table("message").check_and_write(b"k", b"c", b"v", {b"c": b"v"})
    clock.advance(1)
    with pytest.raises(FencedError, match="epoch 3"):
        WRITES[write](store)
    assert list(inner.table("message").scan(b"a", None)) == [Row(b"k", {b"c": b"v"})]
    assert term.over is not None


@pytest.mark.parametrize("write", WRITES)
def test_a_term_that_was_ended_writes_nothing(term: Term, inner: MemoryStore, write: str):
    store = LedStore(inner, term)
    term.end("it was told so")
    with pytest.raises(FencedError, match="told so"):
        WRITES[write](store)
    assert list(inner.table("message").scan(b"a", None)) == [Row(b"k", {b"c": b"v"})]


def test_a_store_that_refuses_a_write_ends_the_term(term: Term, inner: MemoryStore):
    store, told = LedStore(inner, term), []
    term.when_over(lambda: told.append(True))
    store.lead(3)
    inner.another().lead(4)
    with pytest.raises(FencedError):
        WRITES["store.write"](store)
    assert told == [True]
    assert not term.is_on()


def test_reading_goes_on(clock: ManualClock, term: Term, inner: MemoryStore):
    store = LedStore(inner, term)
    clock.advance(2_000)
    table = store.table("message")
    assert table.get(b"k") == {b"c": b"v"}
    assert list(table.scan(b"a", None)) == [Row(b"k", {b"c": b"v"})]
    assert table.size_bytes(b"a", b"z") > 0


def test_a_renewal_that_comes_after_the_end_changes_nothing(clock: ManualClock, term: Term):
    clock.advance(1_000)
    term.extend(5_000.0)
    assert not term.is_on()


def test_a_renewal_keeps_the_term_on(clock: ManualClock, term: Term):
    clock.advance(900)
    term.extend(5_000.0)
    clock.advance(900)
    assert term.is_on()


def test_who_asks_late_is_told_at_once(term: Term):
    term.end("because")
    told: list[bool] = []
    term.when_over(lambda: told.append(True))
    assert told == [True]


@pytest.mark.parametrize("read", READS)
def test_cells_are_read_only_while_the_term_lasts(clock: ManualClock, term: Term, inner: MemoryStore, read: str):
    """The next leader's compactions know nothing of this one's readers."""
    inner.table("cell").write([Put(b"k", {b"c": b"v"})])
    store = LedStore(inner, term)
    READS[read](store)
    clock.advance(1_000)
    with pytest.raises(FencedError, match="epoch 3"):
        READS[read](store)


def test_a_term_that_ends_during_a_scan_of_cells_ends_the_scan(clock: ManualClock, term: Term, inner: MemoryStore):
    inner.table("cell").write([Put(b"k", {b"c": b"v"}), Put(b"l", {b"c": b"v"})])
    scan = LedStore(inner, term).table("cell").scan(b"a", None)
    assert next(scan).key == b"k"
    clock.advance(1_000)
    with pytest.raises(FencedError):
        next(scan)


def test_messages_are_read_on(clock: ManualClock, term: Term, inner: MemoryStore):
    clock.advance(1_000)
    assert LedStore(inner, term).table("message").get(b"k") == {b"c": b"v"}


def test_who_asks_whether_the_store_is_busy_is_told_of_the_store_below(term: Term, inner: MemoryStore, monkeypatch):
    store = LedStore(inner, term)
    assert not store.busy
    monkeypatch.setattr(inner, "busy", True, raising=False)
    assert store.busy


def test_a_member_writes_rows_of_topics_and_lines_of_the_audit_and_none_of_the_leaders(clock: ManualClock):
    inner, own = MemoryStore(atomic=False), {b"c": b"v"}
    store = LedStore(inner, Term(clock, 0, 1_000.0, "m1"))
    prefix = b"shop:orders:"
    allowed: list[tuple[str, Mutation]] = [
        ("metadata", Put(prefix, own)), ("message", Put(b"\0" + prefix + b"1", own)), ("system", Put(b"index:" + prefix, own)),
        ("system", Put(b"audit:1:2", own)), ("message", DeleteRange(b"\0" + prefix, b"\0" + prefix + b"9")),
    ]  # fmt: skip
    refused: list[tuple[str, Mutation]] = [
        ("system", Put(b"job:stats", own)), ("system", Delete(b"token:1")), ("transaction_log", Put(b"1", own)),
        ("system", DeleteRange(b"audit", b"b")),
    ]  # fmt: skip
    for table, mutation in allowed:
        store.write([TableWrite(table, [mutation])])
        store.table(table).write([mutation])
    for table, mutation in refused:
        for write in (
            lambda: store.write([TableWrite(table, [mutation])]),  # noqa: B023
            lambda: store.table(table).write([mutation]),  # noqa: B023
        ):
            with pytest.raises(StoreError, match="is the leader's"):
                write()
    with pytest.raises(StoreError, match="is the leader's"):
        store.table("system").check_and_write(b"policy:version", b"c", None, own)
    clock.advance(1_000)
    with pytest.raises(FencedError, match="was member m1 until its lease ran out"):
        store.write([TableWrite(*allowed[0][:1], [allowed[0][1]])])
