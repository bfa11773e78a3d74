"""TransactionCodec against a Thrift library, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.thrift import TPayload, TType
from thriftpy2.transport import TMemoryBuffer

from basalt.errors import MalformedBodyError
from basalt.transactions.codec import (
    NO_SHORT_IN_PROGRESS,
    EncodedLongs,
    SnapshotBytes,
    TransactionFields,
    decode_transaction,
)
from basalt.transactions.rules.transaction import Kind, Transaction
from basalt_engine.snapshot import InvalidList, PointerRuns, Visibility
from tests.control.transactions.whole_bytes import encode_transaction


class TTransaction(TPayload):
    """The public struct of Apache Tephra 0.16, as a Thrift library sees it."""

    thrift_spec = {
        1: (TType.I64, "transactionId", False),
        2: (TType.I64, "readPointer", False),
        3: (TType.LIST, "invalids", TType.I64, False),
        4: (TType.LIST, "inProgress", TType.I64, False),
        5: (TType.I64, "firstShort", False),
        6: (TType.I32, "type", False),
        7: (TType.I64, "writePointer", False),
        8: (TType.LIST, "checkpointWritePointers", TType.I64, False),
        9: (TType.I32, "visibilityLevel", False),
    }
    default_spec = [(spec[1], None) for spec in thrift_spec.values()]


def their_bytes(**fields: Any) -> bytes:
    buffer = TMemoryBuffer()
    TBinaryProtocol(buffer).write_struct(TTransaction(**fields))
    return buffer.getvalue()


def their_fields(body: bytes) -> TransactionFields:
    buffer = TMemoryBuffer(body)
    read: Any = TTransaction()
    TBinaryProtocol(buffer).read_struct(read)
    assert buffer.read(1) == b"", "they left bytes unread"
    return TransactionFields(
        read.transactionId,
        read.readPointer,
        read.invalids,
        read.inProgress,
        read.firstShort,
        Kind(read.type),
        read.writePointer,
        read.checkpointWritePointers,
        read.visibilityLevel,
    )


def listed(fields: TransactionFields) -> TransactionFields:
    """The same with plain lists, to compare."""
    return fields._replace(
        invalid=list(fields.invalid), in_progress=list(fields.in_progress), checkpoints=list(fields.checkpoints),
        invalid_runs=tuple(fields.invalid_runs), in_progress_runs=tuple(fields.in_progress_runs),
    )  # fmt: skip


LONGS = st.integers(0, 2**63 - 1)
ID_LISTS = st.lists(LONGS, max_size=8).map(sorted)
TRANSACTIONS = st.builds(
    TransactionFields,
    id=st.integers(1, 2**63 - 1),
    read_pointer=LONGS,
    invalid=ID_LISTS,
    in_progress=ID_LISTS,
    first_short=LONGS,
    kind=st.sampled_from(Kind),
    write_pointer=LONGS,
    checkpoints=ID_LISTS,
    visibility=st.sampled_from([1, 2, 3]),
    invalid_runs=st.just(()),
    in_progress_runs=st.just(()),
)


@given(fields=TRANSACTIONS)
def test_they_read_what_we_write_and_we_read_what_they_write(fields: TransactionFields) -> None:
    ours = encode_transaction(fields)
    theirs = their_bytes(
        transactionId=fields.id,
        readPointer=fields.read_pointer,
        invalids=fields.invalid,
        inProgress=fields.in_progress,
        firstShort=fields.first_short,
        type=int(fields.kind),
        writePointer=fields.write_pointer,
        checkpointWritePointers=fields.checkpoints,
        visibilityLevel=fields.visibility,
    )
    assert ours == theirs
    assert their_fields(ours) == fields
    assert listed(decode_transaction(theirs)) == fields


@given(
    TRANSACTIONS, ID_LISTS.filter(lambda found: len(found) % 2 == 0), st.sampled_from([(), (5, 9), (5, 5, 7, 4_102)])
)
def test_runs_come_back_as_they_were_and_stand_behind_all_that_tephra_has(
    fields: TransactionFields, failed: list[int], busy: tuple[int, ...]
) -> None:
    with_runs = fields._replace(invalid_runs=tuple(failed), in_progress_runs=busy)
    body = encode_transaction(with_runs)
    assert listed(decode_transaction(body)) == with_runs
    assert body.startswith(encode_transaction(fields)[:-1])


def test_a_reader_judges_by_the_runs_in_the_bytes() -> None:
    fields = TransactionFields(
        90, 80, [3], [60], write_pointer=90, invalid_runs=(5, 9), in_progress_runs=(50, 55, 55, 57)
    )
    snapshots = SnapshotBytes()
    for _ in range(2):  # the second time the lists are known
        snapshot = snapshots.snapshot(decode_transaction(encode_transaction(fields)))
        skipped = [pointer for pointer in range(1, 81) if snapshot.judge(pointer) is Visibility.SKIP]
        held = [pointer for pointer in range(1, 81) if snapshot.judge(pointer) is Visibility.HOLD]
        assert skipped == [3, 5, 6, 7, 8, 9]
        assert held == [50, 51, 52, 53, 54, 55, 56, 57, 60]
        assert snapshot.first_in_progress == 50


def test_of_two_transactions_with_the_same_long_list_each_has_its_own_runs() -> None:
    fields = TransactionFields(9_000, 8_999, range(10, 5_010), invalid_runs=(5, 9))
    snapshots = SnapshotBytes()
    for runs, seen in (((5, 9), Visibility.SKIP), ((), Visibility.VISIBLE), ((6, 6), Visibility.VISIBLE)):
        body = encode_transaction(fields._replace(invalid_runs=runs))
        assert snapshots.snapshot(decode_transaction(body)).judge(7) is seen


def test_the_bytes_of_the_thrift_face_have_no_runs() -> None:
    invalid = InvalidList((3,)).with_added(runs=PointerRuns([(5, 9)]))
    begun = Transaction(id=90, kind=Kind.SHORT, read_pointer=80, began_ms=0, deadline_ms=1, owner="", invalid=invalid)
    snapshots = SnapshotBytes()
    ours, theirs = snapshots.encode(begun), b"".join(snapshots.pieces(begun))
    assert list(decode_transaction(ours).invalid_runs) == [5, 9]
    assert list(their_fields(theirs).invalid or ()) == [3]
    assert len(ours) == len(theirs) + 24


def test_a_long_invalid_list_is_encoded_once() -> None:
    invalid = list(range(1, 5_001))
    fields = TransactionFields(9_000, 8_999, invalid)
    encoded = EncodedLongs(invalid)
    assert encode_transaction(fields, invalid=encoded) == encode_transaction(fields)
    assert list(decode_transaction(encode_transaction(fields, invalid=encoded)).invalid) == invalid


def test_an_encoded_list_of_another_length_is_our_own_bug() -> None:
    with pytest.raises(ValueError):
        encode_transaction(TransactionFields(9, 8, [1, 2]), invalid=EncodedLongs([1]))


def test_a_long_list_that_was_decoded_before_is_shared() -> None:
    body = encode_transaction(TransactionFields(9_000, 8_999, range(1, 5_001)))
    assert decode_transaction(body).invalid is decode_transaction(bytes(bytearray(body))).invalid


@pytest.mark.parametrize("at", [1, 1_500, 4_095, 4_096, 4_097, 4_999])
def test_one_id_out_of_order_is_found_anywhere_in_a_long_list(at: int) -> None:
    body = bytearray(encode_transaction(TransactionFields(9_000, 8_999, range(2, 10_002, 2))))
    begin = 22 + 8 + 8 * at  # two numbers of 11 bytes, a field header of 3, a list header of 5
    assert int.from_bytes(body[begin : begin + 8], "big") == 2 + 2 * at
    body[begin : begin + 8] = (2 * at - 1).to_bytes(8, "big")
    with pytest.raises(MalformedBodyError, match="ascending"):
        decode_transaction(bytes(body))


@pytest.mark.parametrize(
    "fields",
    [
        TransactionFields(9, 8, [2, 1]),
        TransactionFields(9, 8, [-1]),
        TransactionFields(9, 8, in_progress=[2, 1]),
        TransactionFields(9, 8, checkpoints=[2, 1]),
        TransactionFields(9, 2**63),
        TransactionFields(9, 8, kind=7),
        TransactionFields(9, 8, visibility=0),
        TransactionFields(9, 8, invalid_runs=[5]),
        TransactionFields(9, 8, in_progress_runs=[5, 4]),
    ],
)
def test_what_is_no_transaction_is_not_written(fields: TransactionFields) -> None:
    with pytest.raises(ValueError):
        encode_transaction(fields)


def test_missing_fields_take_their_defaults() -> None:
    read = decode_transaction(their_bytes(transactionId=7, readPointer=6))
    assert listed(read) == TransactionFields(7, 6, [], [], NO_SHORT_IN_PROGRESS, Kind.LONG, 0, [], 1)


def test_fields_may_come_in_another_order() -> None:
    body = bytes.fromhex("0a0002 0000000000000006 0f0004 0a00000001 0000000000000005 0a0001 0000000000000007 00")
    assert listed(decode_transaction(body)) == TransactionFields(7, 6, [], [5], kind=Kind.LONG, checkpoints=[])


def test_equal_neighbours_in_a_list_are_accepted() -> None:
    assert list(decode_transaction(encode_transaction(TransactionFields(9, 8, [3, 3]))).invalid) == [3, 3]


HEAD = "0a0001 0000000000000007 0a0002 0000000000000006"
BAD = [
    ("empty", "", "the end of the bytes"),
    ("only the stop byte", "00", "the field id"),
    ("id alone", "0a0001 0000000000000007 00", "the field readPointer"),
    ("read pointer alone", "0a0002 0000000000000007 00", "the field id"),
    ("no stop byte", HEAD, "a field or the stop byte"),
    ("a byte after the stop", HEAD + "00 00", "1 more"),
    ("another transaction after the stop", HEAD + "00" + HEAD + "00", "23 more"),
    ("field header cut", HEAD + "0a", "a field header"),
    ("number cut", HEAD + "0a0005 000000", "8 bytes of firstShort"),
    ("list header cut", HEAD + "0f0003 0a0000", "a list header"),
    ("unknown field 12", HEAD + "0a000c 0000000000000001 00", "field 12"),
    ("runs as a number", HEAD + "0a000a 0000000000000001 00", "Thrift type 15 for invalidRuns"),
    ("a run without an end", HEAD + "0f000a 0a00000001 0000000000000001 00", "invalidRuns in pairs"),
    ("a run in progress without an end", HEAD + "0f000b 0a00000001 0000000000000001 00", "inProgressRuns in pairs"),
    (
        "a run that ends before it begins",
        HEAD + "0f000a 0a00000002 0000000000000002 0000000000000001 00",
        "invalidRuns in ascending",
    ),
    ("unknown field 0", HEAD + "0a0000 0000000000000001 00", "field 0"),
    ("unknown field -1", HEAD + "0affff 0000000000000001 00", "field -1"),
    ("id as i32", "080001 00000007 00", "Thrift type 10 for id"),
    ("type as i64", HEAD + "0a0006 0000000000000001 00", "Thrift type 8 for type"),
    ("list as set", HEAD + "0e0003 0a 00000000 00", "Thrift type 15 for invalids"),
    ("list as number", HEAD + "0a0003 0000000000000001 00", "Thrift type 15 for invalids"),
    ("list of i32", HEAD + "0f0003 08 00000001 00000001 00", "elements of Thrift type 10"),
    ("list of no element type", HEAD + "0f0003 00 00000000 00", "elements of Thrift type 10"),
    ("count -1", HEAD + "0f0003 0a ffffffff 00", "found -1"),
    ("count -2^31", HEAD + "0f0003 0a 80000000 00", "found -2147483648"),
    ("count 2^31 - 1", HEAD + "0f0003 0a 7fffffff 00", "found 2147483647"),
    ("count one too great", HEAD + "0f0003 0a 00000002 0000000000000001 00", "a count of 0 to 1"),
    ("a field twice", HEAD + "0a0001 0000000000000007 00", "id once"),
    ("a list twice", HEAD + "0f0003 0a00000000 0f0003 0a00000000 00", "invalids once"),
    ("invalid list unsorted", HEAD + "0f0003 0a00000002 0000000000000002 0000000000000001 00", "invalids in ascending"),
    (
        "in-progress unsorted",
        HEAD + "0f0004 0a00000002 0000000000000002 0000000000000001 00",
        "inProgress in ascending",
    ),
    ("a negative id in a list", HEAD + "0f0003 0a00000001 ffffffffffffffff 00", "ascending order from 0"),
    ("id 0", "0a0001 0000000000000000 0a0002 0000000000000006 00", "id of 1 or more"),
    ("id -1", "0a0001 ffffffffffffffff 0a0002 0000000000000006 00", "id of 1 or more"),
    ("read pointer -1", "0a0001 0000000000000007 0a0002 ffffffffffffffff 00", "readPointer of 0 or more"),
    ("first short -1", HEAD + "0a0005 ffffffffffffffff 00", "firstShort of 0 or more"),
    ("write pointer -1", HEAD + "0a0007 ffffffffffffffff 00", "writePointer of 0 or more"),
    ("type 0", HEAD + "080006 00000000 00", "type 1 (short) or 2 (long)"),
    ("type 3", HEAD + "080006 00000003 00", "type 1 (short) or 2 (long)"),
    ("visibility 0", HEAD + "080009 00000000 00", "visibilityLevel 1 to 3"),
    ("visibility 4", HEAD + "080009 00000004 00", "visibilityLevel 1 to 3"),
    ("a framed struct", "00000017" + HEAD + "00", "more"),
    ("a strict binary message", "80010001 00000005 636f6d6d74 00000000" + HEAD + "00", "field 256"),
    ("text", "7472616e73616374696f6e", "a field of TTransaction"),
]


@pytest.mark.parametrize(("body", "words"), [pytest.param(*row[1:], id=row[0]) for row in BAD])
def test_bad_transaction_bytes_are_refused_with_the_reason(body: str, words: str) -> None:
    with pytest.raises(MalformedBodyError) as caught:
        decode_transaction(bytes.fromhex(body))
    assert words in caught.value.message
    assert caught.value.field == "transaction"
