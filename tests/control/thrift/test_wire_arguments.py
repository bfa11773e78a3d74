"""The reader of arguments: what Thrift's own writer writes is read, and nothing else crashes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.protocol import TCyBinaryProtocolFactory
from thriftpy2.utils import serialize

from basalt.thrift.wire import (
    METHODS,
    MalformedArgumentsError,
    NoMessageError,
    TooManyEntriesError,
    read_arguments,
    read_header,
    types,
)

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
LISTS = st.lists(LONGS, max_size=5)
TRANSACTIONS = st.builds(
    types.TTransaction,
    id=LONGS, readPointer=LONGS, invalids=LISTS, inProgress=LISTS, firstShort=LONGS, type=st.sampled_from((1, 2)),
    writePointer=LONGS, checkpointWritePointers=LISTS, visibilityLevel=st.sampled_from((1, 2, 3)),
)  # fmt: skip
CHANGES = st.sets(st.binary(max_size=40), max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def arguments_of(name: str, **values: object) -> bytes:
    encoded: bytes = serialize(getattr(types.TTransactionServer, f"{name}_args")(**values), TCyBinaryProtocolFactory())
    return encoded


def read(name: str, body: bytes, entries_max: int = 100):
    return read_arguments(body, 0, METHODS[name].arguments, entries_max)


@given(TRANSACTIONS, CHANGES)
def test_a_transaction_and_its_changes_are_read_without_its_lists(tx, changes):
    found = read("canCommitTx", arguments_of("canCommitTx", tx=tx, changes=changes))
    assert found["changes"] == changes
    whole = found["tx"]
    assert (whole["id"], whole["writePointer"], whole["visibilityLevel"]) == (
        tx.id,
        tx.writePointer,
        tx.visibilityLevel,
    )
    assert whole["invalids"] is None


@given(TEXTS, INTS)
def test_texts_and_numbers_are_read(text, number):
    body = arguments_of("startShortWithClientIdAndTimeOut", clientId=text, timeout=number)
    assert read("startShortWithClientIdAndTimeOut", body) == {"clientId": text, "timeout": number}


@given(st.sets(LONGS, max_size=30), st.integers(0, 30))
def test_a_set_is_read_up_to_its_limit(ids, limit):
    body = arguments_of("truncateInvalidTx", txns=ids)
    if len(ids) > limit:
        with pytest.raises(TooManyEntriesError):
            read("truncateInvalidTx", body, limit)
    else:
        assert read("truncateInvalidTx", body, limit) == {"txns": ids}


@given(TRANSACTIONS, CHANGES, st.data())
def test_every_cut_is_malformed(tx, changes, data):
    body = arguments_of("canCommitTx", tx=tx, changes=changes)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(MalformedArgumentsError):
        read("canCommitTx", body[:cut])


@given(TRANSACTIONS, CHANGES, st.data())
def test_a_changed_byte_is_malformed_or_means_something(tx, changes, data):
    body = bytearray(arguments_of("canCommitTx", tx=tx, changes=changes))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(read("canCommitTx", bytes(body)), dict)
    except (MalformedArgumentsError, TooManyEntriesError):
        pass


@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=200))
def test_noise_is_malformed_or_means_something(name, body):
    try:
        assert isinstance(read(name, body), dict)
    except (MalformedArgumentsError, TooManyEntriesError):
        pass


@given(st.binary(max_size=200))
def test_noise_has_no_header_or_one(frame):
    try:
        header = read_header(frame)
    except NoMessageError:
        return
    assert 0 < len(header.name) <= 128
    assert header.arguments_start <= len(frame)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the 0 bytes of the frame end within a struct"),
        (b"\xc8\x00\x07", "there is no Thrift type 200"),
        (b"\xc8\x00\x01", "txId has Thrift type 200, not 10"),
        (b"\x0a\x00", "2 bytes from byte 1 on, in a frame of 2"),
        (b"\x0a\x00\x01", "8 bytes from byte 3 on, in a frame of 3"),
        (b"\x0a\x00\x01" + bytes(7), "8 bytes from byte 3 on, in a frame of 10"),
        (b"\x0a\x00\x01" + bytes(8), "the 11 bytes of the frame end within a struct"),
        (b"\x0a\x00\x01" + bytes(9) + b"\x0a\x00\x01", "3 bytes follow the arguments"),
    ],
)
def test_a_struct_that_is_none_is_told_by_its_bytes(body, reason):
    with pytest.raises(MalformedArgumentsError, match=f"^{reason}$"):
        read("commitOrThrow", body)
    assert read("commitOrThrow", b"\x0a\x00\x01" + bytes(7) + b"\x05\x00") == {"txId": 5}
