"""The prune rule, condition by condition: what each report lets go, what it holds, and in which words."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from basalt.pruning.rule import (
    Cause,
    Certificates,
    EmbeddedCertificate,
    Terms,
    blocked,
    due,
    first_obstacles,
    free_runs,
    held_by_files,
    key_space_fault,
    obstacles_of_runs,
    worth_compacting,
)
from basalt_engine.snapshot import PointerRuns
from basalt_engine.stores.hbase.regions import EMPTY_MEMSTORE, UNKNOWN_ORIGIN, Region, RegionReport, StoreFile
from tests.control.pruning.conftest import SERVER, file, pointer, region

LIFETIME_MS, SKEW_MS, NOW_MS = 1_000, 100, 50_000
TERMS = Terms(NOW_MS, LIFETIME_MS, 0, SKEW_MS)
W = pointer(10_000)
END_MS = 10_000 + LIFETIME_MS + SKEW_MS
M1, P1, C1 = region("message", "m1"), region("payload", "p1"), region("cell", "c1")


def report(of: Region, *files: StoreFile, report_ms: int = END_MS + 1, **given: object) -> RegionReport:
    made = RegionReport(
        f"basalt.{of.table}", of.name, SERVER, report_ms, EMPTY_MEMSTORE, 1, 1, 1, of.start, of.stop, files
    )
    return made._replace(**given)


def certificates(*files: StoreFile, terms: Terms = TERMS, **given: object) -> Certificates:
    """Those of three regions, of which the last two have nothing and report it."""
    return Certificates([M1, P1, C1], {"m1": report(M1, *files, **given), "p1": report(P1), "c1": report(C1)}, terms)


def test_a_writer_goes_when_every_region_has_reported_after_its_end_and_no_file_can_hold_it():
    assert certificates().may_go(W)
    assert certificates().holds(W) == []


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"report_ms": END_MS}, Cause.AGE),
        ({"report_ms": NOW_MS + SKEW_MS + 1}, Cause.CLOCK),
        ({"oldest_edit_ms": END_MS}, Cause.MEMSTORE),
        ({"oldest_edit_ms": 0}, Cause.MEMSTORE),
        ({"server": "rs1,16020,2"}, Cause.SERVER),
        ({"snapshot_epoch": -1, "snapshot_sequence": -1, "snapshot_time_ms": -1}, Cause.SNAPSHOT),
        ({"start_key": b"\x01"}, Cause.REPORT),
        ({"stop_key": b"\x01"}, Cause.REPORT),
        ({"table": "basalt.payload"}, Cause.REPORT),
    ],
    ids=str,
)
def test_a_report_that_is_not_quite_right_holds_the_writer(given, cause):
    made = certificates(**given)
    assert not made.may_go(W)
    assert made.cause(W) is cause
    assert [(hold.cause, hold.region) for hold in made.holds(W)] == [(cause, M1)]


@pytest.mark.parametrize(
    "given",
    [{"oldest_edit_ms": END_MS + 1}, {"report_ms": NOW_MS + SKEW_MS}, {"table": "of.two.dots.message"}],
    ids=str,
)
def test_a_report_that_is_just_right_lets_it_go(given):
    assert certificates(**given).may_go(W)


@pytest.mark.parametrize(
    ("decided", "newest", "held"),
    [
        (W - 1, W, True),
        (W, W + 5, False),  # the snapshot had decided on it, and filtered it out
        (W - 1, W - 1 - pointer(SKEW_MS), False),  # the file is older than the writer, whatever the clocks
        (W - 1, W - pointer(SKEW_MS), True),  # the server's clock may have been late
        (UNKNOWN_ORIGIN, W, True),
        (UNKNOWN_ORIGIN, W - 1 - pointer(SKEW_MS), False),
    ],
)
def test_a_file_holds_those_between_what_was_decided_and_its_newest(decided, newest, held):
    made = certificates(file(decided, newest))
    assert made.may_go(W) is not held
    assert [hold.cause for hold in made.holds(W)] == [Cause.FILE] * held
    assert bool(held_by_files(made.reports["m1"], TERMS, [W])) is held


def test_of_many_files_one_is_enough_to_hold_it():
    clean, holding = file(W + 1, W + 9, "a"), file(W - 1, W + 1, "b")
    made = certificates(clean, holding, clean._replace(name="c"))
    assert made.cause(W) is Cause.FILE
    assert [hold.file for hold in made.holds(W)] == [holding]
    assert "filtered up to" in made.holds(W)[0].detail


def test_a_region_without_a_report_holds_everybody():
    made = Certificates([M1, P1, C1], {"m1": report(M1)}, TERMS)
    assert made.cause(W) is Cause.REPORT
    assert [hold.region for hold in made.holds(W)] == [P1, C1]


def test_a_region_that_no_server_has_holds_everybody_whatever_was_reported():
    homeless = M1._replace(server="")
    made = Certificates([homeless, P1, C1], {"m1": report(M1, server=""), "p1": report(P1), "c1": report(C1)}, TERMS)
    assert made.cause(W) is Cause.SERVER


def test_a_writer_whose_lifetime_is_not_over_waits_for_time_alone():
    terms = TERMS._replace(now_ms=END_MS)
    made = certificates(terms=terms)
    assert made.cause(W) is Cause.LIFETIME
    assert [(hold.cause, hold.detail) for hold in made.holds(W)] == [(Cause.LIFETIME, "ends in 1 ms")]
    assert certificates(terms=terms._replace(now_ms=END_MS + 1)).may_go(W)


def test_before_the_first_snapshot_was_published_nobody_had_ended():
    since = TERMS._replace(since_ms=20_000)
    assert since.end_ms(W) == 20_000 + SKEW_MS
    assert not certificates(terms=since).may_go(W)
    assert (
        certificates(terms=since, report_ms=20_000 + SKEW_MS + 1, table="basalt.message").cause(W) is Cause.AGE
    )  # p1's


def test_after_a_restore_only_later_snapshots_count():
    restored = pointer(20_000)
    terms = TERMS._replace(restored=restored)
    late = {"report_ms": 20_000 + SKEW_MS + 1}
    old, new = file(W + 1, W + 2), file(restored, restored + 1)
    for files, cause in (((old,), Cause.FILE), ((new,), None), ((new, old._replace(name="g")), Cause.FILE)):
        made = Certificates(
            [M1, P1, C1], {"m1": report(M1, *files, **late), "p1": report(P1, **late), "c1": report(C1, **late)}, terms
        )
        assert made.cause(W) is cause
    later = pointer(21_000)
    assert terms.must_be_decided(later) == later
    assert terms.end_ms(later) == 21_000 + LIFETIME_MS + SKEW_MS


@pytest.mark.parametrize(
    ("ranges", "fault"),
    [
        ([(b"", b"")], None),
        ([(b"", b"\x05"), (b"\x05", b"")], None),
        ([], "has no region from key empty on"),
        ([(b"\x01", b"")], "a hole before region m0, which begins at key 01"),
        ([(b"", b"\x05"), (b"\x06", b"")], "a hole before region m1, which begins at key 06"),
        ([(b"", b"\x05"), (b"\x04", b"")], "an overlap before region m1"),
        ([(b"", b"\x05")], "no region from key 05 on"),
        ([(b"", b""), (b"", b"")], "an overlap"),
        ([(b"", b"\x05"), (b"", b"\x05"), (b"\x05", b"")], "an overlap before region m1"),
        ([(b"", b""), (b"\x05", b"")], "an overlap"),
    ],
)
def test_every_key_must_have_one_region(ranges, fault):
    regions = [region("message", f"m{number}", *keys) for number, keys in enumerate(ranges)]
    found = key_space_fault([*regions, P1, C1])
    assert (found is None) if fault is None else (found is not None and fault in found)
    assert key_space_fault(regions) is not None, "the payload table has no region"
    assert key_space_fault([*regions, P1]) is not None, "the cell table has no region"
    made = Certificates([*regions, P1, C1], {each.id: report(each) for each in (*regions, P1, C1)}, TERMS)
    assert made.may_go(W) is (fault is None)


def test_the_search_agrees_with_the_list_of_what_is_in_the_way():
    files = [file(pointer(decided), pointer(decided + 700), f"f{decided}") for decided in (0, 4_000, 8_000, 12_000)]
    made = certificates(*files, report_ms=NOW_MS)
    made = Certificates(
        [M1, P1, C1], {**made.reports, "p1": report(P1, report_ms=NOW_MS), "c1": report(C1, report_ms=NOW_MS)}, TERMS
    )
    pointers = [pointer(time_ms) for time_ms in range(100, 50_000, 333)]
    assert {made.may_go(each) for each in pointers} == {True, False}
    for each in pointers:
        assert made.may_go(each) is (made.holds(each) == [])


# Which regions hold back how many, and which are worth a compaction.


def test_regions_tell_how_many_due_writers_they_hold_back():
    writers = [pointer(time_ms) for time_ms in (10_000, 10_100, 10_200, 49_900)]
    reports = {
        "m1": report(M1, file(pointer(10_050), pointer(10_150)), report_ms=NOW_MS),
        "p1": report(P1, oldest_edit_ms=END_MS + 150, report_ms=NOW_MS),
        "c1": report(C1, report_ms=NOW_MS),
    }
    made = Certificates([M1, P1, C1], reports, TERMS)
    waiting = due(made, writers)
    assert list(waiting) == writers[:3], "the last one still lives"
    message, payload, _ = blocked(made, waiting)
    assert (message.writers, message.first) == (2, 1)
    assert (payload.writers, payload.first) == (1, 2)


def test_what_holds_back_the_oldest_writer_is_compacted_first_and_what_was_asked_is_not_asked_again():
    regions = [region("message", "m1", b"", b"\x05"), region("message", "m2", b"\x05", b""), P1, C1]
    writers = [pointer(time_ms) for time_ms in (10_000, 10_300, 10_600)]
    reports = {
        "m1": report(regions[0], file(UNKNOWN_ORIGIN, pointer(20_000)), report_ms=NOW_MS),
        "m2": report(regions[1], file(pointer(10_299), pointer(10_300)), report_ms=NOW_MS),
        "p1": report(P1, file(pointer(10_500), pointer(10_700)), report_ms=NOW_MS),
        "c1": report(C1, report_ms=NOW_MS),
    }
    made = Certificates(regions, reports, TERMS)

    def chosen(decided: int, asked: tuple[str, ...] = (), count_max: int = 9) -> list[str]:
        return [each.id for each in worth_compacting(made, writers, decided, asked, count_max)]

    assert chosen(pointer(30_000)) == ["m1", "m2", "p1"]
    assert chosen(pointer(30_000), count_max=2) == ["m1", "m2"]
    assert chosen(pointer(30_000), asked=("m1",)) == ["m2", "p1"]
    assert chosen(pointer(10_000)) == ["m1"], "a compaction frees only those that the snapshot is decided on"
    assert chosen(pointer(9_999)) == []


def test_after_a_restore_a_compaction_helps_only_with_a_later_snapshot():
    writers = [pointer(10_000), pointer(10_300)]
    restored = TERMS._replace(restored=pointer(20_000))
    late = {"report_ms": NOW_MS}
    filtered = file(pointer(15_000), pointer(16_000))
    made = Certificates(
        [M1, P1, C1], {"m1": report(M1, filtered, **late), "p1": report(P1, **late), "c1": report(C1, **late)}, restored
    )
    assert held_by_files(made.reports["m1"], restored, writers) == [range(2)]
    assert worth_compacting(made, writers, pointer(20_000) - 1, (), 9) == []
    assert worth_compacting(made, writers, pointer(20_000), (), 9) == [M1]


def test_the_ranges_of_one_regions_files_are_put_together():
    writers = [pointer(time_ms) for time_ms in range(1_000, 1_010)]
    files = [
        file(pointer(1_001), pointer(1_003)),
        file(pointer(1_002), pointer(1_005), "b"),
        file(pointer(1_007), pointer(1_008), "c"),
    ]
    exact = TERMS._replace(skew_ms=0)
    assert held_by_files(report(M1, *files), exact, writers) == [range(2, 6), range(8, 9)]
    assert held_by_files(report(M1), exact, writers) == []


MOMENTS = st.integers(1, 20)  # as many thousand ms: of pointers, of what files hold, of reports
WRITERS = st.sets(MOMENTS)


@given(
    writers=WRITERS, elsewhere=WRITERS, files=st.lists(st.tuples(st.integers(-1, 20), MOMENTS), max_size=5), restored=st.sampled_from((0, 0, 9, 20)),
    reported=st.sampled_from((7, 30, 30)), now=st.sampled_from((9, 30, 30)), oldest_edit=st.sampled_from((None, None, 6)), off=st.integers(-1, 1),
)  # fmt: skip
@example({4}, set(), [(-1, 4)], 0, 30, 30, None, 0)  # the newest that the file may hold
def test_the_first_obstacles_of_many_writers_are_those_of_each(
    writers, elsewhere, files, restored, reported, now, oldest_edit, off
):
    pointers = [pointer(each * 1_000) + off for each in sorted(writers)]
    terms = Terms(
        now * 1_000, 1_000, pointer(restored * 1_000), 100,
        external_writers=frozenset(pointer(each * 1_000) + off for each in elsewhere),
    )  # fmt: skip
    found = [
        file(-1 if decided < 0 else pointer(decided * 1_000), pointer(newest * 1_000 - 100))
        for decided, newest in files
    ]
    edit_ms = EMPTY_MEMSTORE if oldest_edit is None else oldest_edit * 1_000
    reports = {
        "m1": report(M1, *found, report_ms=reported * 1_000, oldest_edit_ms=edit_ms),
        "p1": report(P1, report_ms=30_000),
        "c1": report(C1, report_ms=30_000),
    }
    notes = {each: ["a note"] for each in pointers[::3]}
    for certificate in (Certificates([M1, P1, C1], reports, terms), EmbeddedCertificate(notes, terms)):
        told = first_obstacles(certificate, pointers)
        assert [cause for span, cause in told for _ in span] == [certificate.cause(each) for each in pointers]
        assert [index for span, _ in told for index in span] == list(range(len(pointers)))


# Runs of writers.


NEAR = st.integers(-2, 12)


@settings(deadline=None, max_examples=600)
@given(
    st.lists(st.tuples(st.none() | NEAR, NEAR), max_size=3),
    st.lists(st.tuples(NEAR, st.integers(0, 12)), min_size=1, max_size=2),
    st.sampled_from([0, W + 3, W + 7]),
    st.sampled_from([END_MS, END_MS + 1, NOW_MS, NOW_MS]),
)
@example([(5, 3), (4, 9)], [(0, 12)], W + 7, NOW_MS)
def test_a_run_is_cut_so_that_each_part_has_the_cause_of_all_its_writers(files, runs, restored, now_ms):
    terms, late = TERMS._replace(restored=restored, now_ms=now_ms), pointer(SKEW_MS)
    listed = [
        file(UNKNOWN_ORIGIN if decided is None else W + decided, W + newest - late, f"f{number}")
        for number, (decided, newest) in enumerate(files)
    ]
    made = certificates(*listed, terms=terms)
    asked = PointerRuns((W + first, W + first + more) for first, more in runs)
    parts = list(obstacles_of_runs(made, asked))
    assert [one for part, _ in parts for one in PointerRuns([part]).one_by_one()] == list(asked.one_by_one())
    for part, cause in parts:
        assert {made.cause(one) for one in PointerRuns([part]).one_by_one()} == {cause}
    assert set(free_runs(made, asked).one_by_one()) == {one for one in asked.one_by_one() if made.may_go(one)}


def test_a_run_over_several_milliseconds_ends_by_parts():
    run = PointerRuns([(W - 5, W + pointer(2) + 7)])
    by_time, by_report = certificates(terms=TERMS._replace(now_ms=END_MS + 1)), certificates(report_ms=END_MS + 1)
    for made in (by_time, by_report):
        assert list(free_runs(made, run)) == [(W - 5, W + pointer(1) - 1)]


def test_no_run_is_forgotten_where_the_key_space_has_a_hole_or_nobody_reports():
    run = PointerRuns([(W, W + 9)])
    assert list(free_runs(certificates(), run)) == [(W, W + 9)]
    assert not free_runs(Certificates([P1, C1], {"p1": report(P1), "c1": report(C1)}, TERMS), run)
    embedded = EmbeddedCertificate({}, TERMS)
    assert embedded.may_go(W)
    assert [cause for _, cause in obstacles_of_runs(embedded, run)] == [Cause.NOTE]
    assert not free_runs(embedded, run)
