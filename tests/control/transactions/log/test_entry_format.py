"""Entries and snapshots of the log as bytes: vectors, round trips, and everything a strict reader refuses."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from basalt.transactions.log import snapshot_format
from basalt.transactions.log.entry_format import NUMBERS, POINTERS, FieldReader, decode_entry, encode_entry, sealed
from basalt.transactions.log.snapshot_format import decode_snapshot
from basalt.transactions.log.transaction_log import _part_key, entry_key
from basalt.transactions.rules import edits
from basalt.transactions.rules.conflicts import CommittedSet
from basalt.transactions.rules.groups import Attempt, GroupState, PendingSpans, ReturnedSpan, Returns
from basalt.transactions.rules.outcomes import Outcome, OutcomeBlock, RememberedOutcomes, RequestCall, RequestUse
from basalt.transactions.rules.sessions import SessionState
from basalt.transactions.rules.transaction import (
    Join,
    Kind,
    Loss,
    PointerSet,
    SessionBinding,
    State,
    TableJoin,
    Transaction,
)
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt.transactions.rules.transaction_table import StateImage
from basalt_engine.errors import CorruptionError
from basalt_engine.snapshot import InvalidList, PointerRuns
from basalt_engine.spans.spans import Spans
from basalt_engine.varints import encode_varint
from tests.control.transactions.whole_bytes import encode_snapshot

ROOT = Path(__file__).resolve().parents[4]
VECTORS = {
    name: (bytes.fromhex(data), json.loads(value))
    for name, data, value in (
        line.split("\t") for line in (ROOT / "tests/vectors/transaction-log.tsv").read_text().splitlines()
    )
}
ENTRIES = [name for name in VECTORS if name.startswith("entry_")]
SNAPSHOTS = [name for name in VECTORS if name.startswith("snapshot_")]

pointers = st.integers(0, 2**63 - 1)
times_ms = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=8)
request_ids = st.none() | st.text(min_size=1, max_size=8)
principals = st.sampled_from(["", "token:etl", "jwt:alice@example.org"])
joins = st.builds(Join, st.binary(max_size=8), st.integers(0, 2**31 - 1), times_ms)
table_joins = st.builds(TableJoin, st.binary(max_size=8), st.integers(0, 2**31 - 1))
versions = st.none() | pointers
in_sessions = st.builds(SessionBinding, texts, pointers, versions)
losses = st.builds(Loss, pointers, st.binary(max_size=8), texts)
sets = st.frozensets(st.binary(max_size=5), max_size=5)
sorted_pointers = st.frozensets(pointers, max_size=6).map(lambda found: tuple(sorted(found)))
runs_of_pointers = st.lists(st.tuples(st.integers(0, 2**63 - 9_000), st.integers(0, 4_096)), max_size=3).map(
    lambda found: PointerRuns((first, first + more) for first, more in found)
)
kinds = st.sampled_from(Kind)
numbers = st.integers(0, 2**32 - 1)
message_ids = st.binary(max_size=20).map(lambda data: data.ljust(20, b"\0"))
some_spans = st.lists(message_ids, min_size=2, max_size=9, unique=True).map(
    lambda found: Spans(zip(sorted(found)[::2], sorted(found)[1::2], strict=False))
)

attempts = st.builds(Attempt, st.integers(1, 3), st.integers(0, 2), st.sampled_from(edits.ReturnReason))

EDITS = (
    st.builds(edits.Began, pointers, kinds, st.booleans(), times_ms, times_ms, texts, request_ids),
    st.builds(edits.Checkpointed, pointers, pointers),
    st.builds(edits.Joined, pointers, joins),
    st.builds(edits.Changed, pointers, st.booleans(), sets),
    st.builds(edits.Doomed, pointers, losses, request_ids, times_ms),
    st.builds(edits.Committing, pointers, request_ids, times_ms),
    st.builds(edits.Committed, pointers, times_ms, request_ids),
    st.builds(edits.Aborting, pointers, st.booleans()),
    st.builds(edits.Aborted, pointers, times_ms, st.booleans()),
    st.builds(edits.Invalidated, sorted_pointers, times_ms, st.booleans()),
    st.builds(edits.OneShot, pointers, times_ms, texts, request_ids),
    st.builds(edits.Pruned, sorted_pointers, runs_of_pointers),
    st.builds(edits.Truncated, pointers),
    st.builds(edits.Lent, texts, pointers, pointers),
    st.builds(edits.LoanReturned, pointers, pointers),
    st.builds(edits.GivenUp, pointers, pointers),
    st.builds(edits.MemberEnded, texts),
    st.builds(edits.Led, pointers),
    st.builds(edits.Restored, sorted_pointers, runs_of_pointers),
    st.builds(edits.Reset, times_ms),
    st.builds(edits.TableJoined, pointers, table_joins),
    st.builds(edits.SessionOpened, texts, texts, pointers, times_ms, texts),
    st.builds(edits.Owned, pointers, texts),
    st.builds(edits.SessionBegan, pointers, in_sessions),
    st.builds(edits.ChangesUnlogged, pointers),
    st.builds(edits.CounterOwnerClaimed, texts, texts),
    st.builds(
        edits.GroupMade,
        numbers,
        times_ms,
        numbers,
        st.binary(max_size=9),
        texts,
        st.binary(max_size=9),
        message_ids,
        numbers,
    ),
    st.builds(edits.GroupChanged, numbers, times_ms, st.binary(max_size=9), st.booleans()),
    st.builds(edits.GroupSought, numbers, times_ms, numbers, message_ids),
    st.builds(edits.GroupsForgotten, st.frozensets(numbers, max_size=4).map(lambda found: tuple(sorted(found)))),
    st.builds(edits.Acknowledged, pointers, numbers, times_ms, some_spans),
    st.builds(edits.AcknowledgedIn, pointers, numbers, times_ms, some_spans),
    st.builds(edits.Returned, numbers, times_ms, st.sampled_from(edits.ReturnReason), times_ms, some_spans),
    st.builds(edits.SessionsForgotten, st.frozensets(texts, max_size=3).map(lambda found: tuple(sorted(found)))),
)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_reads_and_writes_as_its_vector(name, as_json):
    data, value = VECTORS[name]
    first_edit, group = decode_entry(data, name)
    assert {"first_edit": first_edit, "edits": as_json(group)} == value
    assert encode_entry(first_edit, group) == data


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_reads_and_writes_as_its_vector(name, as_json):
    data, value = VECTORS[name]
    image = decode_snapshot(data, name)
    assert as_json(image) == value
    assert encode_snapshot(image) == data


def test_row_keys_read_as_their_vectors():
    for name, (key, value) in VECTORS.items():
        if name.startswith("key_"):
            made = _part_key(value["position"], value["part"]) if "part" in value else entry_key(value["position"])
            assert made == key, name


def test_keys_sort_by_entry_and_snapshots_after_all_entries():
    keys = [entry_key(position) for position in (0, 1, 4_095, 4_096, 4_097, 1 << 40)]
    keys += [_part_key(0, 0), _part_key(0, 1), _part_key(5, 0), _part_key(4_096, 0)]
    assert keys == sorted(keys)


def test_the_vectors_hold_every_edit():
    kinds_of_edits = {edit["type"] for name in ENTRIES for edit in VECTORS[name][1]["edits"]}
    assert kinds_of_edits == {edit.__name__ for edit in edits.Edit.__subclasses__()}


def test_the_numbers_of_the_edits_are_those_of_the_page():
    page = (ROOT / "docs/formats/transaction-log.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (\w+) \|", page, re.MULTILINE))
    assert rows == {str(NUMBERS[edit]): edit.__name__ for edit in edits.Edit.__subclasses__()}


@pytest.mark.parametrize(
    "name", ["entry_began", "entry_session_began", "entry_acknowledged_in", "entry_owned", "snapshot_new"]
)
def test_the_worked_examples_of_the_page_are_the_vectors(name):
    page = (ROOT / "docs/formats/transaction-log.md").read_text()
    example = page.split(f"Vector `{name}`", 1)[1].split("\n\n")[1]
    columns = [re.split(r" {4,}", line.strip())[0] for line in example.splitlines()]
    assert bytes.fromhex("".join(columns)) == VECTORS[name][0]


@given(st.integers(0, 2**63 - 1), st.lists(st.one_of(EDITS), max_size=4))
def test_every_entry_reads_back_as_it_was_written(first_edit, group):
    assert decode_entry(encode_entry(first_edit, group), "row") == (first_edit, tuple(group))


@pytest.mark.parametrize("name", [*ENTRIES, *SNAPSHOTS])
def test_every_cut_is_refused(name):
    data = VECTORS[name][0]
    decode = decode_entry if name in ENTRIES else decode_snapshot
    for length in range(len(data)):
        with pytest.raises(CorruptionError, match=r"row 17 .* at offset \d+"):
            decode(data[:length], "row 17")


@pytest.mark.parametrize("name", [*ENTRIES, *SNAPSHOTS])
def test_every_flipped_bit_is_refused(name):
    data = VECTORS[name][0]
    decode = decode_entry if name in ENTRIES else decode_snapshot
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match=r"row 17 .* at offset \d+"):
            decode(bytes(flipped), "row 17")


@pytest.mark.parametrize("name", [*ENTRIES, *SNAPSHOTS])
def test_bytes_that_only_have_a_fitting_crc_are_refused_or_mean_what_they_say(name):
    """A reader that trusts nothing but the CRC: each byte changed, each cut, all resealed."""
    body = VECTORS[name][0][:-4]
    decode, encode = (decode_entry, _encode_entry) if name in ENTRIES else (decode_snapshot, encode_snapshot)
    changed = [body[:length] for length in range(1, len(body))]
    changed += [
        body[:at] + bytes([body[at] ^ flip]) + body[at + 1 :] for at in range(1, len(body)) for flip in (1, 128)
    ]
    changed.append(body + b"\0")
    for data in map(sealed, changed):
        try:
            read = decode(data, "row 17")
        except CorruptionError as error:
            assert "row 17" in str(error)
        else:
            assert encode(read) == data, "what is accepted has one encoding"


def _encode_entry(read: tuple) -> bytes:
    return encode_entry(*read)


@pytest.mark.parametrize(("decode", "name"), [(decode_entry, "entry_began"), (decode_snapshot, "snapshot_new")])
def test_a_newer_format_is_told_apart_from_damage(decode, name):
    body = VECTORS[name][0][:-4]
    with pytest.raises(CorruptionError, match=r"newer Basalt: format version 5 .* start that version again"):
        decode(sealed(b"\x05" + body[1:] + b"whatever"), "row 17")
    with pytest.raises(CorruptionError, match="format version 0 at offset 0, which never was"):
        decode(sealed(b"\x00" + body[1:]), "row 17")


def group(number: int = 1, **fields) -> GroupState:
    return GroupState(
        number, b"shop:orders:", 1, fields.pop("name", f"group {number}"), b"{}", 5, 5, fields.pop("round", 1), **fields
    )


ONE, TWO = (number.to_bytes(20, "big") for number in (1, 2))
HELD = Spans([(ONE, TWO)])
TRIED = Returns([ReturnedSpan(1, 5, edits.ReturnReason.ABORTED, HELD)])
OPEN = Transaction(id=17, kind=Kind.SHORT, read_pointer=0, began_ms=5, deadline_ms=9)
BAD_GROUPS = {
    "a group of number 0": ({"groups": (group(0),), "groups_made": 1}, "out of order"),
    "groups that do not ascend": ({"groups": (group(2), group(1)), "groups_made": 2}, "out of order"),
    "a name twice": ({"groups": (group(1, name="a"), group(2, name="a")), "groups_made": 2}, "out of order, or twice"),
    "a number that was not given out": ({"groups": (group(2),), "groups_made": 1}, "when 1 was the last"),
    "what came back and is acknowledged": (
        {"groups": (group(acknowledged=HELD, returns=TRIED),), "groups_made": 1}, "acknowledged and came back",
    ),
    "what is pending in a group that is not there": (
        {"transactions": (OPEN,), "acknowledging": (PendingSpans(17, ((1, HELD),)),)}, "a group that is not there",
    ),
    "what is pending in groups that do not ascend": (
        {"transactions": (OPEN,), "acknowledging": (PendingSpans(17, ((1, HELD), (1, HELD))),), "groups": (group(1),)},
        "do not ascend",
    ),
    "what is pending in a transaction that is aborted": (
        {"transactions": (replace(OPEN, state=State.ABORTING),), "acknowledging": (PendingSpans(17, ((1, HELD),)),)},
        "is being aborted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD_GROUPS))
def test_groups_that_cannot_be_are_refused(case):
    fields, problem = BAD_GROUPS[case]
    with pytest.raises(CorruptionError, match=problem):
        decode_snapshot(encode_snapshot(StateImage(**fields)), "row 17")


def test_a_group_that_did_not_change_is_not_encoded_again(monkeypatch):
    """Of ten thousand groups few change from one snapshot to the next; after a restart their bytes are those that were read."""
    state = TransactionProposals()
    for number in range(1, 4):
        state.apply(edits.GroupMade(number, 5, 1, b"shop:orders:", f"group {number}", b"{}", ONE, 1))
    encode_snapshot(state.image())
    state = TransactionProposals(None, decode_snapshot(encode_snapshot(state.image()), "row"))
    state.apply(edits.Acknowledged(0, 2, 6, HELD))
    encoded = []
    encode = snapshot_format._GROUP.encode
    counted = snapshot_format._GROUP._replace(encode=lambda one: encoded.append(one.number) or encode(one))
    monkeypatch.setattr(snapshot_format, "_GROUP", counted)
    data = encode_snapshot(state.image())
    assert encoded == [2]
    assert decode_snapshot(data, "row") == state.image()
    encode_snapshot(state.image())
    assert encoded == [2]


def test_a_draft_of_a_snapshot_stays_as_it_is_while_groups_go_on():
    state = TransactionProposals()
    state.apply(edits.GroupMade(1, 5, 1, b"shop:orders:", "billing", b"{}", ONE, 1))
    state.apply(edits.Began(17, Kind.SHORT, False, 5, 9, "", None))
    state.apply(edits.AcknowledgedIn(17, 1, 5, HELD))
    draft = state.image()
    data = encode_snapshot(draft)
    state.apply(edits.AcknowledgedIn(17, 1, 5, Spans([(TWO, (9).to_bytes(20, "big"))])))
    state.apply(edits.Committed(17, 6, None))
    assert encode_snapshot(draft) == data
    assert decode_snapshot(data, "row") == draft
    assert state.image() != draft


def test_a_session_in_which_a_run_follows_itself_is_refused():
    for run, replaced in (("monday", ("monday",)), ("monday", ("sunday", "sunday"))):
        image = StateImage(sessions=(SessionState("billing", run, 2, 5, replaced=replaced),))
        with pytest.raises(CorruptionError, match="a run follows itself"):
            decode_snapshot(encode_snapshot(image), "row 17")


def edit_entry(number: int, body: bytes) -> bytes:
    head = b"\x01" + (0).to_bytes(8, "big") + (1).to_bytes(4, "big")
    return sealed(head + bytes([number]) + len(body).to_bytes(4, "big") + body)


ID = (17).to_bytes(8, "big")
BAD_EDITS = {
    "an edit number that never was": (0, ID),
    "an edit number of tomorrow": (255, ID),
    "a negative id": (13, b"\xff" * 8),
    "a kind of 0": (1, ID + b"\x00\x00" + bytes(16) + bytes(4)),
    "a kind of 3": (1, ID + b"\x03\x00" + bytes(16) + bytes(4)),
    "a flag of 2": (8, ID + b"\x02"),
    "a set out of order": (4, ID + b"\0" + b"\0\0\0\2" + b"\0\0\0\1b" + b"\0\0\0\1a"),
    "a set with an item twice": (4, ID + b"\0" + b"\0\0\0\2" + b"\0\0\0\1a" + b"\0\0\0\1a"),
    "a set of four billion": (4, ID + b"\0" + b"\xff\xff\xff\xff"),
    "text that is not UTF-8": (7, ID + bytes(8) + b"\0\1\xff"),
    "ids that do not ascend": (10, bytes(9) + b"\0\0\0\2" + ID + ID),
    "a version of a session below none": (19, ID + ID + b"\xff" * 7 + b"\xfe" + b"\0\1a"),
    "a negative epoch": (18, b"\xff" * 8 + bytes(8) + b"\0\1a\0\1b"),
    "names out of order": (22, b"\0\0\0\2" + b"\0\1b\0\1a"),
    "a name twice": (22, b"\0\0\0\2" + b"\0\1a\0\1a"),
    "four billion names": (22, b"\xff\xff\xff\xff"),
    "numbers of groups out of order": (27, b"\0\0\0\2" + b"\0\0\0\2" + b"\0\0\0\1"),
    "an owner without an id": (31, b"\0\1a"),
    "an acknowledgement of nothing": (28, ID + b"\0\0\0\1" + bytes(8) + b"\0"),
    "an acknowledgement by a negative writer": (28, b"\xff" * 8 + b"\0\0\0\1" + bytes(8) + b"\1\0\0\0\1\1"),
    "a span that is empty": (29, ID + b"\0\0\0\1" + bytes(8) + b"\1\0\0\0\0"),
    "spans beyond the edit": (29, ID + b"\0\0\0\1" + bytes(8) + b"\2\0\0\0\1\1"),
    "four billion spans": (29, ID + b"\0\0\0\1" + bytes(8) + b"\xff\xff\xff\xff\x0f\0\0\0\1\1"),
    "a return for no reason": (30, b"\0\0\0\1" + bytes(8) + b"\0" + bytes(8) + b"\1\0\0\0\1\1"),
    "a return for reason 7": (30, b"\0\0\0\1" + bytes(8) + b"\7" + bytes(8) + b"\1\0\0\0\1\1"),
    "a floor of 19 bytes": (26, b"\0\0\0\1" + bytes(8) + b"\0\0\0\1" + bytes(19)),
    "four billion ids": (12, b"\xff\xff\xff\xff" + ID),
    "a byte too many": (13, ID + b"\0"),
    "a byte too few": (13, ID[:-1]),
}


@pytest.mark.parametrize("case", list(BAD_EDITS))
def test_an_edit_that_could_not_have_been_written_is_refused(case):
    with pytest.raises(CorruptionError, match=r"row 17 is damaged: .* at offset \d+; restore"):
        decode_entry(edit_entry(*BAD_EDITS[case]), "row 17")


def test_a_count_of_edits_beyond_the_entry_is_refused_before_it_is_believed():
    with pytest.raises(CorruptionError, match="4294967295 edits"):
        decode_entry(sealed(b"\x01" + bytes(8) + b"\xff\xff\xff\xff"), "row 17")


@pytest.mark.parametrize("data", [b"\x80\x00", b"\x80" * 9 + b"\x01", b"\xff" * 8, b""])
def test_a_varint_has_one_encoding_and_63_bits(data):
    with pytest.raises(CorruptionError):
        FieldReader(data, "row").varint()


@given(pointers)
def test_a_varint_reads_back(value):
    reader = FieldReader(encode_varint(value), "row")
    assert reader.varint() == value
    reader.end()


@given(sorted_pointers)
def test_a_list_of_pointers_reads_back(found):
    reader = FieldReader(POINTERS.encode(found), "row")
    assert reader.pointers() == found
    reader.end()


def test_a_list_whose_numbers_pass_63_bits_is_refused():
    data = encode_varint(2) + encode_varint(2**63 - 1) + encode_varint(1)
    with pytest.raises(CorruptionError, match="beyond 63 bits"):
        FieldReader(data, "row").pointers()


def remembered(outcomes: list[Outcome]) -> RememberedOutcomes:
    """Of these the first one by one, and what is not invalid of the rest in a block."""
    rest = sorted((one for one in outcomes[3:] if one.state is not State.INVALID), key=lambda one: one.id)
    blocks = (OutcomeBlock.pack(rest),) if rest else ()
    invalid = tuple(one for one in outcomes[3:] if one.state is State.INVALID)
    return RememberedOutcomes(tuple(outcomes[:3]), invalid, blocks)


@st.composite
def progress(draw: st.DrawFn) -> tuple[Spans, Returns]:
    """What a group has acknowledged, and what came back to it."""
    acknowledged, returns = Spans(), Returns()
    places = sorted(draw(st.lists(message_ids, unique=True, max_size=12)))
    for after, through in pairwise(places):
        attempt = draw(st.none() | attempts)
        if attempt is not None:
            returns.put(after, through, attempt)
        elif draw(st.booleans()):
            acknowledged.add(after, through)
    return acknowledged, returns


@st.composite
def images(draw: st.DrawFn) -> StateImage:
    ids = draw(st.lists(st.integers(1, 2**62), unique=True, max_size=5).map(sorted))
    invalids = []
    for _ in range(2):
        runs, version = draw(runs_of_pointers), draw(st.integers(0, 9))
        invalids.append(InvalidList(tuple(one for one in draw(sorted_pointers) if one not in runs), version, runs))
    concurrents = [PointerSet.of(draw(sorted_pointers)) for _ in range(2)]
    transactions = tuple(
        Transaction(
            id=key,
            kind=draw(kinds),
            state=draw(st.sampled_from([State.OPEN, State.COMMITTING, State.ABORTING])),
            read_pointer=draw(pointers),
            first_short=draw(pointers),
            began_ms=draw(times_ms),
            deadline_ms=draw(times_ms),
            owner=draw(texts),
            request_id=draw(request_ids),
            external_writes=draw(st.booleans()),
            timed_out=draw(st.booleans()),
            was_invalid=draw(st.booleans()),
            checkpoints=tuple(sorted({key + step for step in draw(st.lists(st.integers(1, 99), max_size=3))})),
            concurrent=draw(st.sampled_from(concurrents)),
            invalid=draw(st.sampled_from(invalids)),
            topics=tuple(draw(st.lists(joins, max_size=2))),
            tables=tuple(draw(st.lists(table_joins, max_size=2))),
            session=draw(st.none() | in_sessions),
            changes=draw(st.none() | sets),
            changes_unlogged=draw(st.booleans()),
            doomed=draw(st.none() | losses),
            principal=draw(principals),
        )
        for key in ids
    )
    seen_from = draw(st.lists(pointers, max_size=3).map(sorted))
    committed = tuple(CommittedSet(draw(pointers), draw(texts), key, draw(sets)) for key in seen_from)
    outcome = st.builds(
        lambda key, step, state, kind, owner, at_ms, late, hidden, topics, tables, session, principal: Outcome(
            key,
            key + step,
            state,
            kind,
            owner,
            at_ms,
            late,
            hidden if state is State.INVALID else (),
            tuple(topics) if state is State.INVALID else (),
            tuple(tables) if state is State.INVALID else (),
            session,
            principal,
        ),
        st.integers(0, 2**62),
        st.integers(0, 2**62),
        st.sampled_from(State),
        kinds,
        texts,
        times_ms,
        st.booleans(),
        sorted_pointers,
        st.lists(joins, max_size=2),
        st.lists(table_joins, max_size=2),
        st.none() | in_sessions,
        principals,
    )
    replaced = st.lists(st.text(min_size=9, max_size=9), unique=True, max_size=3).map(tuple)  # no text is as long
    session = st.builds(
        SessionState,
        texts,
        texts,
        st.integers(1, 2**63 - 1),
        times_ms,
        versions,
        pointers,
        request_ids,
        replaced,
        principals,
    )
    request = st.builds(RequestUse, texts, st.sampled_from(RequestCall), pointers, times_ms)
    groups = tuple(
        GroupState(
            number,
            draw(st.binary(max_size=9)),
            draw(numbers),
            f"{number} {draw(texts)}",
            draw(st.binary(max_size=9)),
            draw(times_ms),
            draw(times_ms),
            draw(numbers),
            draw(st.booleans()),
            *draw(progress()),
        )
        for number in sorted(draw(st.sets(st.integers(1, 2**31), max_size=3)))
    )
    acknowledging = tuple(
        PendingSpans(one.id, tuple((group.number, draw(some_spans)) for group in groups))
        for one in transactions
        if groups and one.state is not State.ABORTING and draw(st.booleans())
    )
    return StateImage(
        groups_made=draw(st.integers(2**31, 2**32 - 1)),
        groups=groups,
        acknowledging=acknowledging,
        edits_applied=draw(pointers),
        last_pointer=draw(pointers),
        read_pointer=draw(pointers),
        leader_epoch=draw(pointers),
        invalid=invalids[0],
        invalid_version=invalids[0].version,
        transactions=transactions,
        committed=committed,
        outcomes=remembered(draw(st.lists(outcome, max_size=6, unique_by=lambda one: one.id))),
        requests=tuple(draw(st.lists(request, max_size=3, unique_by=lambda one: one.id))),
        session_epoch_over=draw(pointers),
        sessions=tuple(draw(st.lists(session, max_size=3, unique_by=lambda one: one.name))),
    )


@settings(deadline=None)
@given(images())
def test_every_snapshot_reads_back_as_it_was_written(image: StateImage):
    data = encode_snapshot(image)
    read = decode_snapshot(data, "row")
    assert read == image
    assert [one.invalid.version for one in read.transactions] == [one.invalid.version for one in image.transactions]
    assert encode_snapshot(read) == data


@pytest.mark.parametrize(
    ("gone", "added"), [([(5, 9)], [(7, 8)]), ([(5, 15)], []), ([(20, 21)], []), ([], [])], ids=str
)
def test_a_change_of_runs_that_is_none_is_refused(gone, added, monkeypatch):
    held, other = PointerRuns([(5, 12)]), PointerRuns([(3, 9)])
    transaction = Transaction(
        id=90, kind=Kind.SHORT, read_pointer=80, began_ms=0, deadline_ms=1, owner="", invalid=InvalidList((), 2, other)
    )
    image = StateImage(
        last_pointer=90, invalid=InvalidList((), 2, held), invalid_version=2, transactions=(transaction,)
    )
    assert decode_snapshot(encode_snapshot(image), "row") == image
    with monkeypatch.context() as patched:
        patched.setattr(PointerRuns, "without", lambda self, _: PointerRuns(gone if self == held else added))
        data = encode_snapshot(image)
    with pytest.raises(CorruptionError, match=r"a change of .* that is none"):
        decode_snapshot(data, "row")


def test_a_pointer_beside_the_run_that_has_it_is_refused(monkeypatch):
    invalid = InvalidList((5,), 1, PointerRuns([(8, 9)]))
    monkeypatch.setattr(invalid, "runs", PointerRuns([(3, 9)]))
    with pytest.raises(CorruptionError, match="in one of its runs"):
        decode_snapshot(encode_snapshot(StateImage(invalid=invalid, invalid_version=1)), "row")


def test_transactions_that_began_together_share_their_lists_again_once_they_are_read(scene):
    scene.invalidate(scene.begin())
    for _ in range(300):
        scene.begin()
    read = decode_snapshot(encode_snapshot(scene.state.image()), "row").transactions
    assert len({id(one.invalid) for one in read}) == 1
    chunks = {id(chunk) for one in read[-100:] for chunk in one.concurrent._chunks}
    assert len(chunks) < 200


BAD_IMAGES = {
    "transactions out of order": lambda image: (image.transactions[1], image.transactions[0], *image.transactions[2:]),
    "a transaction twice": lambda image: (image.transactions[0], *image.transactions),
}


@pytest.mark.parametrize("case", list(BAD_IMAGES))
def test_a_snapshot_of_a_state_that_cannot_be_is_refused(case):
    image = decode_snapshot(VECTORS["snapshot_of_everything"][0], "row")
    fields = {name: getattr(image, name) for name in image.__struct_fields__}
    bad = StateImage(**{**fields, "transactions": BAD_IMAGES[case](image)})
    with pytest.raises(CorruptionError, match="out of order"):
        decode_snapshot(encode_snapshot(bad), "row")
    recent = image.outcomes.recent
    doubled = {name: getattr(image, name) * 2 for name in ("requests", "sessions")}
    for twice in (
        {"outcomes": RememberedOutcomes(recent, recent)},
        *({name: items} for name, items in doubled.items()),
    ):
        bad = StateImage(**{**fields, **twice})
        with pytest.raises(CorruptionError, match="twice"):
            decode_snapshot(encode_snapshot(bad), "row")
