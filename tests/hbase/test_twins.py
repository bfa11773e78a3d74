"""Each rule and codec that exists in Python and in Java: both get the same input, and must say the same.

A call carries hundreds of values. What Hypothesis draws is a small world (topics, a snapshot, keys, writers, times), and
every combination within it is judged; so a run compares hundreds of thousands of rows.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.keys import GENERATION_MAX, MessageKey, PayloadKey
from basalt_engine.messages import decode_row
from basalt_engine.metadata import TopicMetadata
from basalt_engine.retention import (
    ALL_ONES_MS,
    CLOCK_SET_BACK_MS,
    OnInvalid,
    TopicRule,
    judge_message,
    judge_payload,
)
from basalt_engine.snapshot import POINTERS_PER_MS, InvalidList, PointerRuns, TransactionSnapshot
from basalt_engine.stores.hbase.regions import EMPTY_MEMSTORE, RegionReport, RegionSnapshot, StoreFile
from basalt_engine.system import seal, unseal
from basalt_engine.table import Columns, Row
from tests.hbase.frames import Frames, framed
from tests.region_reports import encode_report
from tests.vector_lines import VECTORS, lines

pytestmark = pytest.mark.jvm

relaxed = settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))

LONG_MAX = (1 << 63) - 1
ALL_ONES = (1 << 64) - 1
NEVER = 1 << 70  # without a snapshot the longest life of a transaction is unknown
NO_WRITER, NO_EXPIRY = 0, -1  # how Java says None
RULES = list(OnInvalid)

# Values meet at the edges: small ones among each other, and the ends of what fits.
GENERATIONS = st.integers(0, 4) | st.sampled_from([GENERATION_MAX, GENERATION_MAX + 1, (1 << 32) - 1])
TIMES = st.integers(0, 30) | st.sampled_from([LONG_MAX - 1, LONG_MAX, LONG_MAX + 1, ALL_ONES - 1, ALL_ONES])
NOWS = st.integers(0, 60) | st.sampled_from([LONG_MAX - 20, LONG_MAX])
DURATIONS = st.integers(0, 20) | st.sampled_from([LONG_MAX - 20, LONG_MAX])
SMALL_POINTERS = st.integers(1, 12) | st.integers(1, 30 * POINTERS_PER_MS)
POINTERS = SMALL_POINTERS | st.sampled_from([LONG_MAX - 1, LONG_MAX])
KEY_POINTERS = POINTERS | st.sampled_from([0, LONG_MAX + 1, ALL_ONES])
TOPICS = st.builds(
    TopicRule,
    st.builds(
        lambda number, sign: number * sign, st.integers(1, 4) | st.just(GENERATION_MAX), st.sampled_from([1, -1])
    ),
    DURATIONS,
    st.sampled_from(RULES),
    st.integers(0, 40) | st.integers(CLOCK_SET_BACK_MS, CLOCK_SET_BACK_MS + 60) | st.just(10**18 - 1),
)
PREFIXES = st.from_regex(r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,5}:[A-Za-z0-9_-][A-Za-z0-9._-]{0,5}:\Z").map(str.encode)
SALTS = st.integers(0, 255)
SHORTS = st.integers(0, 0xFFFF)
MESSAGE_KEYS = st.builds(MessageKey, SALTS, PREFIXES, GENERATIONS, TIMES, SHORTS)
PAYLOAD_KEYS = st.builds(PayloadKey, SALTS, PREFIXES, GENERATIONS, KEY_POINTERS, TIMES, SHORTS)
NUMBERS = st.integers(0, 40) | st.integers(0, LONG_MAX)


def pointer_runs(pointers: st.SearchStrategy[int]) -> st.SearchStrategy[PointerRuns]:
    """Few runs between such pointers; one of a single pointer now and then."""
    pairs = st.tuples(pointers, pointers).map(lambda pair: (min(pair), max(pair)))
    return st.lists(pairs | pointers.map(lambda one: (one, one)), max_size=3).map(PointerRuns)


@st.composite
def region_snapshots(draw: st.DrawFn, pointers: st.SearchStrategy[int] = POINTERS) -> RegionSnapshot:
    """Any snapshot that may be written."""
    in_progress = tuple(sorted(draw(st.sets(pointers, max_size=3))))
    busy, write_pointer = draw(pointer_runs(pointers)), draw(NUMBERS)
    first = min((*in_progress[:1], *busy.edges[:1]), default=LONG_MAX)
    decided = draw(st.integers(0, min(write_pointer, first - 1)))
    epoch, sequence, time_ms, read_pointer = (draw(NUMBERS) for _ in range(4))
    return RegionSnapshot(
        epoch, sequence, time_ms, read_pointer, write_pointer, decided, draw(NUMBERS), draw(NUMBERS), in_progress,
        tuple(sorted(draw(st.sets(pointers, max_size=8)))), busy, draw(pointer_runs(pointers)),
    )  # fmt: skip


def as_transactions_see(snapshot: RegionSnapshot) -> TransactionSnapshot:
    """The same in the words of a reader."""
    invalid = InvalidList(snapshot.invalid).with_added(runs=snapshot.invalid_runs)
    return TransactionSnapshot(
        snapshot.read_pointer, snapshot.write_pointer, snapshot.in_progress, invalid,
        in_progress_runs=snapshot.in_progress_runs,
    )  # fmt: skip


def signed(number: int) -> int:
    """An unsigned 64-bit number as Java's long has it."""
    return number - (1 << 64) if number > LONG_MAX else number


def packed_rule(rule: TopicRule) -> bytes:
    """A rule as the Java twin reads it."""
    return struct.pack(">iqiq", rule.generation, rule.ttl_ms, RULES.index(rule.on_invalid), rule.truncated_before_ms)


class World:
    """Topics, a snapshot and a clock, and the rows that were judged in it."""

    def __init__(
        self, topics: list[TopicRule], snapshot: RegionSnapshot | None, now_ms: int, lifetime_ms_max: int
    ) -> None:
        self._topics = topics
        self._known = None if snapshot is None else as_transactions_see(snapshot)
        self._now_ms, self._lifetime_ms_max = now_ms, lifetime_ms_max
        self._head = struct.pack(">qq", now_ms, lifetime_ms_max) + framed(snapshot and snapshot.encode())
        self._head += struct.pack(">i", len(topics))
        for topic in topics:
            self._head += packed_rule(topic)
        self._rows: list[bytes] = []
        self._asked: list[tuple[Any, ...]] = []
        self._said: list[str] = []

    def judge(self, key: MessageKey | PayloadKey, written_by: int | None = None, expire_ms: int | None = None) -> None:
        """Ask the Python twin, under each topic and under none."""
        encoded = framed(key.encode())
        is_payload = isinstance(key, PayloadKey)
        columns = struct.pack(
            ">qq", NO_WRITER if written_by is None else written_by, NO_EXPIRY if expire_ms is None else expire_ms
        )
        for number, topic in enumerate((None, *self._topics), -1):
            self._rows.append(struct.pack(">i?", number, is_payload) + encoded + columns)
            if isinstance(key, PayloadKey):
                verdict = judge_payload(key, topic, self._known, self._lifetime_ms_max, self._now_ms)
            else:
                verdict = judge_message(key, written_by, expire_ms, topic, self._known, self._now_ms)
            self._said.append(f"{verdict.fate.value}: {verdict.reason}")
            self._asked.append((key, written_by, expire_ms, topic))

    def differences(self, twins: Any) -> list[tuple[Any, ...]]:
        """The rows over which the Java twin says otherwise, with what both said."""
        answer = twins.judge(self._head + struct.pack(">i", len(self._rows)) + b"".join(self._rows))
        names = list(twins.verdicts())
        assert len(answer) == len(self._said)
        judged.rows += len(answer)
        return [
            (*asked, "Python:", said, "Java:", names[number], "snapshot:", self._known, "now:", self._now_ms)
            for asked, said, number in zip(self._asked, self._said, answer, strict=True)
            if said != names[number]
        ]


class judged:
    """How many rows both twins have judged in this run."""

    rows = 0


@pytest.mark.parametrize("spread", ["together", "apart"])
def test_both_judge_message_rows_alike(twins: Any, spread: str) -> None:
    """`together`: few values, so that all lines of the table are met; `apart`: anything that fits."""
    keys = (
        MESSAGE_KEYS
        if spread == "apart"
        else st.builds(MessageKey, SALTS, st.just(b"shop:orders:"), st.integers(0, 4), st.integers(0, 30), st.just(0))
    )
    pointers = POINTERS if spread == "apart" else st.integers(1, 12)

    @relaxed
    @given(
        st.lists(TOPICS, min_size=2, max_size=4),
        st.none() | region_snapshots(pointers),
        st.lists(NOWS, min_size=2, max_size=3),
        st.lists(keys, min_size=3, max_size=4),
        st.lists(st.builds(operator.mul, pointers, st.sampled_from([1, -1])), min_size=4, max_size=6),
        st.lists(NOWS, min_size=1, max_size=3),
    )
    def compare(topics, snapshot, nows, keys, writers, expiries) -> None:
        everyone = [
            None,
            *writers,
            *(snapshot.invalid if snapshot else ()),
            *(snapshot.in_progress if snapshot else ()),
        ]
        for now_ms in nows:
            world = World(topics, snapshot, now_ms, 0)
            for key, written_by, expire_ms in itertools.product(keys, everyone, [None, *expiries]):
                world.judge(key, written_by, expire_ms)
            assert world.differences(twins) == []

    compare()


@pytest.mark.parametrize("spread", ["together", "apart"])
def test_both_judge_payload_rows_alike(twins: Any, spread: str) -> None:
    near = st.builds(
        lambda generation, ms, counter, write_ms: PayloadKey(
            3, b"shop:orders:", generation, ms * POINTERS_PER_MS + counter, write_ms, 0
        ),
        st.integers(0, 4), st.integers(0, 30), st.integers(1, 3), st.integers(0, 30) | st.just(ALL_ONES_MS),
    )  # fmt: skip
    keys = PAYLOAD_KEYS if spread == "apart" else near

    @relaxed
    @given(
        st.lists(TOPICS, min_size=2, max_size=4),
        st.none() | region_snapshots(),
        st.lists(NOWS, min_size=2, max_size=3),
        DURATIONS,
        st.lists(keys, min_size=4, max_size=8),
        st.integers(0, 7),
    )
    def compare(topics, snapshot, nows, lifetime_ms_max, keys, number) -> None:
        failed = () if snapshot is None else snapshot.invalid
        keys = [*keys, *(keys[number % len(keys)]._replace(write_pointer=pointer) for pointer in failed)]
        for now_ms in nows:
            world = World(topics, snapshot, now_ms, lifetime_ms_max)
            for key in keys:
                world.judge(key)
            assert world.differences(twins) == []

    compare()


# Whole rows, with columns of any shape, as a compaction of all files sees them.

LONGS = st.builds(operator.mul, st.integers(0, 12), st.sampled_from([1, -1])).map(
    lambda n: n.to_bytes(8, "big", signed=True)
)
ODD = st.binary(max_size=9)
ROWS = st.tuples(
    st.booleans(),
    st.sampled_from([b"shop:orders:", b"shop:carts:", b"shop:order:"]),
    st.integers(1, 3),
    st.integers(0, 30),
    st.fixed_dictionaries(
        {},
        optional={
            b"t": LONGS | ODD | st.just(b"\x80" + bytes(7)),
            b"x": LONGS | ODD,
            b"d": st.binary(max_size=30),  # which neither of them looks at
            b"p": st.just(b"batch"),
            b"r": st.just(bytes(24)) | ODD,
            b"z": ODD,
        },
    ).filter(bool),
)


def fate_of_row(key: bytes, columns: Columns, rules: Mapping[bytes, TopicRule], world: tuple[Any, ...]) -> str:
    """What the Python side makes of a row; what cannot be read is kept.

    A part without a batch, whose other cells have gone, is judged by its key alone: scans never see one.
    """
    snapshot, now_ms = world
    is_part = not columns.keys() & {b"p", b"r"}
    try:
        found, row = MessageKey.decode(key), decode_row(Row(key, {**columns, b"p": b""} if is_part else columns))
    except CorruptionError:
        return "keep"
    writer, expire_ms = (None, None) if is_part else (row.written_by, row.expire_ms)
    return judge_message(found, writer, expire_ms, rules.get(found.prefix), snapshot, now_ms).fate.value


def fate_of_payload(
    key: bytes, rules: Mapping[bytes, TopicRule], snapshot: TransactionSnapshot | None, lifetime_ms: int, now_ms: int
) -> str:
    """What the Python side makes of a payload row."""
    try:
        found = PayloadKey.decode(key)
    except CorruptionError:
        return "keep"
    return judge_payload(found, rules.get(found.prefix), snapshot, lifetime_ms, now_ms).fate.value


@relaxed
@given(
    st.lists(ROWS, min_size=1, max_size=60),
    st.dictionaries(st.sampled_from([b"shop:orders:", b"shop:carts:"]), TOPICS),
    st.none() | region_snapshots(st.integers(1, 12)),
    st.integers(0, 60),
    st.sampled_from([b"", b"", b"\0"]),
)
def test_both_leave_the_same_of_whole_rows(twins: Any, rows, rules, snapshot, now_ms, tail) -> None:
    known = None if snapshot is None else as_transactions_see(snapshot)
    batch = struct.pack(">q", now_ms) + framed(snapshot and snapshot.encode()) + struct.pack(">i", len(rules))
    for prefix, rule in rules.items():
        batch += framed(prefix) + packed_rule(rule)
    expected = []
    lifetime_ms_max = NEVER if snapshot is None else snapshot.lifetime_ms_max
    for is_payload, prefix, generation, time_ms, columns in rows:
        if is_payload:
            key = PayloadKey(1, prefix, generation, 1 + time_ms % 12, time_ms, 0).encode() + tail
            fate = fate_of_payload(key, rules, known, lifetime_ms_max, now_ms)
        else:
            key = MessageKey(1, prefix, generation, time_ms, 0).encode() + tail
            fate = fate_of_row(key, columns, rules, (known, now_ms))
        batch += struct.pack(">?", is_payload) + framed(key) + struct.pack(">i", len(columns))
        batch += b"".join(framed(name) + framed(value) for name, value in sorted(columns.items()))
        expected.append((key.hex(), columns, fate))
    frames = Frames(twins.judgeRows(batch))
    assert [(key, columns, frames.text()) for key, columns, _ in expected] == expected
    judged.rows += len(rows)


# Codecs: what one refuses the other refuses, and what both read means the same.

BYTES = st.binary(max_size=40)
KEY_LIKE = st.from_regex(rb"\A.[a-zA-Z:_ \-\xff]{0,8}:[a-z:A-Z\x00]{0,8}:.{0,24}\Z")
LONG_NAMES = st.builds(
    lambda first, second, tail: b"\x01" + b"n" * first + b":" + b"t" * second + b":" + tail,
    st.sampled_from([0, 1, 254, 255, 256]),
    st.sampled_from([0, 1, 254, 255, 256]),
    st.sampled_from([b":" * 14, b"\0" * 22, b"\xff" * 13, b"0" * 15]),
)


def read_keys(frames: Frames, numbers: int) -> list[tuple[Any, ...] | None]:
    """What the Java side made of keys: their fields and the key encoded again, None where it refused one."""
    read = []
    while frames:
        if not frames.flag():
            read.append(None)
            continue
        salt, prefix = frames.number(), frames.value()
        fields = [frames.number() for _ in range(numbers)]
        read.append((salt, prefix, *(number & ALL_ONES for number in fields), frames.value()))
    return read


def decoded(form: type[MessageKey] | type[PayloadKey], key: bytes) -> tuple[Any, ...] | None:
    """What the Python side makes of a key."""
    try:
        made = form.decode(key)
    except CorruptionError:
        return None
    return (*made, made.encode())


@relaxed
@given(
    st.lists(
        BYTES | KEY_LIKE | LONG_NAMES | MESSAGE_KEYS.map(MessageKey.encode) | PAYLOAD_KEYS.map(PayloadKey.encode),
        max_size=40,
    )
)
def test_both_read_the_same_keys_and_refuse_the_same(twins: Any, keys: list[bytes]) -> None:
    # Each key also cut, and with a byte more.
    keys = [*keys, *(key[:-1] for key in keys), *(key + b"\0" for key in keys)]
    batch = b"".join(map(framed, keys))
    read = read_keys(Frames(twins.messageKeys(batch)), 3)
    assert list(zip(keys, read, strict=True)) == [(key, decoded(MessageKey, key)) for key in keys]
    read = read_keys(Frames(twins.payloadKeys(batch)), 4)
    assert list(zip(keys, read, strict=True)) == [(key, decoded(PayloadKey, key)) for key in keys]


def test_both_read_the_keys_of_the_vectors(twins: Any) -> None:
    keys = [data for _, data, _ in lines("row-keys")]
    batch = b"".join(map(framed, keys))
    messages, payloads = Frames(twins.messageKeys(batch)), Frames(twins.payloadKeys(batch))
    for form, frames, numbers in ((MessageKey, messages, 3), (PayloadKey, payloads, 4)):
        read = read_keys(frames, numbers)
        assert any(read)
        assert read == [decoded(form, key) for key in keys]


def damaged(data: bytes) -> list[bytes]:
    """The bytes, cut at every place, with a byte more, and with every bit flipped."""
    cuts = [data[:length] for length in range(len(data))]
    flips = [
        data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :]
        for index in range(len(data))
        for bit in range(8)
    ]
    return [data, *cuts, data + b"\0", data + b"\1", *flips]


def python_snapshot(body: bytes) -> RegionSnapshot | None:
    try:
        return RegionSnapshot.decode(body)
    except CorruptionError:
        return None


def java_snapshots(twins: Any, bodies: list[bytes]) -> list[RegionSnapshot | None]:
    frames = Frames(twins.snapshots(b"".join(map(framed, bodies))))
    read: list[RegionSnapshot | None] = []
    while frames:
        if not frames.flag():
            read.append(None)
            continue
        numbers = [frames.number() for _ in range(8)]
        lists = [tuple(frames.number() for _ in range(frames.count())) for _ in range(4)]
        runs = [PointerRuns(zip(ends[::2], ends[1::2], strict=True)) for ends in lists[2:]]
        read.append(RegionSnapshot(*numbers, *lists[:2], *runs))
    return read


def assert_snapshots_agree(twins: Any, bodies: list[bytes]) -> int:
    """Fails when the twins read a body differently; how many of them both refused."""
    java, python = java_snapshots(twins, bodies), list(map(python_snapshot, bodies))
    assert len(java) == len(bodies)
    assert [(body.hex(), *both) for body, *both in zip(bodies, java, python, strict=True) if both[0] != both[1]] == []
    return python.count(None)


@relaxed
@given(region_snapshots())
def test_both_read_the_same_snapshots_and_refuse_the_same_damage(twins: Any, snapshot: RegionSnapshot) -> None:
    body = snapshot.encode()
    assert java_snapshots(twins, [body]) == [snapshot]
    refused = assert_snapshots_agree(twins, damaged(body))
    assert refused > len(body)  # every cut, at least


@relaxed
@given(
    st.lists(st.binary(max_size=120) | st.binary(max_size=60).map(lambda tail: b"\2" + b"\0" * 64 + tail), max_size=60)
)
def test_both_refuse_the_same_bytes_as_a_snapshot(twins: Any, bodies: list[bytes]) -> None:
    assert_snapshots_agree(twins, bodies)


def test_both_refuse_counts_beyond_the_end(twins: Any) -> None:
    head = RegionSnapshot(1, 1, 1, 1, 1, 1, 1, 1).encode()[:65]
    counts = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x1FFFFFFF, 0x20000000, 0x20000001]
    bodies = [
        head + struct.pack(">4I", *(count if at in (first, second) else 0 for at in range(4))) + tail
        for first, second, count, tail in itertools.product(range(4), range(4), counts, [b"", b"\1", b"\1" * 16])
    ]
    assert 0 < assert_snapshots_agree(twins, bodies) < len(bodies)


def test_both_read_the_snapshots_of_the_vectors(twins: Any) -> None:
    good = [data for _, data, _ in lines("region-snapshot")]
    assert assert_snapshots_agree(twins, good) == 0
    corrupt = [bytes.fromhex(line.split("\t")[1]) for line in _lines_of("region-snapshot-corrupt")]
    assert assert_snapshots_agree(twins, corrupt) == len(corrupt)


def _lines_of(name: str) -> list[str]:
    return (VECTORS / f"{name}.tsv").read_text().splitlines()


@relaxed
@given(st.lists(st.tuples(region_snapshots(), region_snapshots()), min_size=1, max_size=10))
def test_both_take_the_same_of_two_copies(twins: Any, pairs: list[tuple[RegionSnapshot, RegionSnapshot]]) -> None:
    near = [(first, second._replace(epoch=first.epoch)) for first, second in pairs]
    same = [(first, second._replace(epoch=first.epoch, sequence=first.sequence)) for first, second in pairs]
    pairs = [*pairs, *near, *same]
    frames = Frames(twins.isNewer(b"".join(framed(side.encode()) for pair in pairs for side in pair)))
    assert [frames.flag() for _ in pairs] == [first.order > second.order for first, second in pairs]


@relaxed
@given(region_snapshots(), st.lists(POINTERS | POINTERS.map(lambda pointer: -pointer)))
def test_both_see_the_same_writers(twins: Any, snapshot: RegionSnapshot, writers: list[int]) -> None:
    near = [pointer + step for pointer in (*snapshot.invalid, *snapshot.in_progress) for step in (-1, 0, 1)]
    around = [snapshot.read_pointer + step for step in (-1, 0, 1)]
    writers = [writer for writer in (*writers, *near, *around) if -LONG_MAX <= writer <= LONG_MAX and writer != 0]
    asked = [None, *writers]
    packed = b"".join(struct.pack(">q", NO_WRITER if writer is None else writer) for writer in asked)
    frames = Frames(twins.visibility(framed(snapshot.encode()) + packed))
    seen = as_transactions_see(snapshot)
    assert [(writer, frames.text()) for writer in asked] == [(writer, seen.judge(writer).value) for writer in asked]


def java_rules(twins: Any, values: list[bytes]) -> list[TopicRule | None]:
    frames = Frames(twins.metadata(b"".join(map(framed, values))))
    read: list[TopicRule | None] = []
    while frames:
        rule = (frames.number(), frames.number(), frames.text(), frames.number()) if frames.flag() else None
        read.append(None if rule is None else TopicRule(rule[0], rule[1], OnInvalid(rule[2]), rule[3]))
    return read


def python_rule(value: bytes) -> TopicRule | None:
    try:
        return TopicMetadata.decode(value, b"shop:orders:").rule
    except CorruptionError:
        return None


METADATA = st.builds(
    TopicMetadata,
    st.builds(lambda number, sign: number * sign, st.integers(1, GENERATION_MAX), st.sampled_from([1, -1])),
    st.integers(0, LONG_MAX), st.sampled_from(RULES), SHORTS, SHORTS, NUMBERS, NUMBERS,
    st.dictionaries(st.text("AZaz09_.-", max_size=4), st.text(max_size=6), max_size=3), st.integers(0, 10**18 - 1),
)  # fmt: skip


@relaxed
@given(METADATA)
def test_both_read_the_same_of_a_topic_and_refuse_the_same_damage(twins: Any, metadata: TopicMetadata) -> None:
    value = metadata.encode()
    assert java_rules(twins, [value]) == [metadata.rule]
    values = damaged(value)
    assert list(zip(values, java_rules(twins, values), strict=True)) == [(each, python_rule(each)) for each in values]
    assert all(rule is None for rule in java_rules(twins, values[1:]))


def test_both_read_the_topics_of_the_vectors(twins: Any) -> None:
    values = [data for _, data, _ in lines("metadata")]
    assert java_rules(twins, values) == list(map(python_rule, values))


@relaxed
@given(st.binary(max_size=60))
def test_both_seal_system_rows_alike_and_refuse_the_same_damage(twins: Any, body: bytes) -> None:
    values = damaged(seal(body))
    frames = Frames(twins.systemRows(b"".join(map(framed, values))))
    assert frames.flag()
    assert (frames.value(), frames.value()) == (body, values[0])
    for value in values[1:]:
        assert frames.flag() is False, value.hex()
        with pytest.raises(CorruptionError):
            unseal(b"kind:name", value)


def java_reports(twins: Any, bodies: list[bytes]) -> list[tuple[RegionReport, bytes] | None]:
    frames = Frames(twins.reports(b"".join(map(framed, bodies))))
    read: list[tuple[RegionReport, bytes] | None] = []
    while frames:
        if not frames.flag():
            read.append(None)
            continue
        table, name, server = frames.text(), frames.value(), frames.text()
        numbers = [frames.number() for _ in range(5)]
        keys = [frames.value(), frames.value()]
        files = tuple(
            StoreFile(frames.text(), frames.number(), frames.number(), frames.number(), frames.number())
            for _ in range(frames.count())
        )
        counters = {frames.text(): frames.number() for _ in range(frames.count())}
        read.append((RegionReport._make((table, name, server, *numbers, *keys, files, counters)), frames.value()))
    return read


def python_report(body: bytes) -> tuple[RegionReport, bytes] | None:
    try:
        report = RegionReport.decode(body)
    except CorruptionError:
        return None
    return report, encode_report(report._replace(counters=dict(sorted(report.counters.items()))))


def assert_reports_agree(twins: Any, bodies: list[bytes]) -> int:
    """Fails when the twins read a body differently; how many of them both refused."""
    java, python = java_reports(twins, bodies), list(map(python_report, bodies))
    assert len(java) == len(bodies)
    assert [(body.hex(), *both) for body, *both in zip(bodies, java, python, strict=True) if both[0] != both[1]] == []
    return python.count(None)


TEXTS = st.text(max_size=6)
REPORTS = st.builds(
    lambda numbers, snapshot, *fields: RegionReport._make((*fields[:3], *numbers, *snapshot, *fields[3:])),
    st.tuples(NUMBERS, NUMBERS | st.just(EMPTY_MEMSTORE)),
    st.tuples(NUMBERS, NUMBERS, NUMBERS) | st.just((-1, -1, -1)),
    TEXTS, st.binary(max_size=8), TEXTS, st.binary(max_size=4), st.binary(max_size=4),
    st.lists(
        st.builds(StoreFile, st.text(min_size=1, max_size=4), NUMBERS | st.just(-1), NUMBERS, NUMBERS, NUMBERS),
        max_size=2, unique_by=lambda file: file.name,
    ).map(tuple),
    st.dictionaries(
        st.text(st.characters(max_codepoint=127), max_size=4), st.integers(-(1 << 63), LONG_MAX), max_size=2
    ),
)  # fmt: skip


@relaxed
@given(REPORTS)
def test_both_read_the_same_reports_and_refuse_the_same_damage(twins: Any, report: RegionReport) -> None:
    body = encode_report(report)
    assert java_reports(twins, [body])[0][0] == report
    assert assert_reports_agree(twins, damaged(body)) > len(body)


def test_both_read_the_reports_of_the_vectors(twins: Any) -> None:
    assert assert_reports_agree(twins, [data for _, data, _ in lines("region-report")]) == 0
    corrupt = [bytes.fromhex(line.split("\t")[1]) for line in _lines_of("region-report-corrupt")]
    assert assert_reports_agree(twins, corrupt) == len(corrupt)


def test_thousands_of_rows_were_compared(request: pytest.FixtureRequest) -> None:
    """Comes last. A world that shrank to nothing would agree about nothing."""
    if request.config.getoption("keyword") or "::" in " ".join(request.config.args):
        pytest.skip("only some of the tests were asked for")
    assert judged.rows > 50_000
