"""What is remembered of ended transactions: the newest one by one, older ones in blocks, by size and by age."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from basalt.transactions.rules import outcomes
from basalt.transactions.rules.outcomes import BLOCK_OUTCOMES, Outcome, OutcomeBlock, OutcomeMemory
from basalt.transactions.rules.transaction import Join, Kind, State, TransactionLimits
from basalt_engine.errors import CorruptionError

NOW_MS = 1_700_000_000_000
LIMITS = TransactionLimits(outcomes_max=3, invalid_outcomes_max=2, memory_ms_max=60_000)
TOPIC = Join(b"shop:orders:", 1, NOW_MS)


def unpacked(block: OutcomeBlock) -> list[Outcome | None]:
    ids, _ = block.unpack_columns()
    return [block.get(each) for each in ids]


def one_shot(number: int, owner: str = "etl") -> Outcome:
    """The `number`th of a thousand a second."""
    at_ms = NOW_MS + number
    return Outcome(at_ms * 1_000_000, at_ms * 1_000_000, State.COMMITTED, Kind.SHORT, owner, at_ms)


def invalid(number: int) -> Outcome:
    found = one_shot(number)
    return changed(found, state=State.INVALID, pointers=(found.id,), topics=(TOPIC,))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "PACKED_TOGETHER", 3)
    monkeypatch.setattr(outcomes, "BLOCK_OUTCOMES", 2)


some_outcomes = st.lists(
    st.builds(
        lambda key, step, state, kind, owner, at_ms, late: Outcome(key, key + step, state, kind, owner, at_ms, late),
        st.integers(0, 2**62),
        st.integers(0, 2**62),
        st.sampled_from([state for state in State if state is not State.INVALID]),
        st.sampled_from(Kind),
        st.text(max_size=5),
        st.integers(-(2**62), 2**62),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda one: one.id,
).map(lambda found: sorted(found, key=lambda one: one.id))


@given(some_outcomes)
def test_a_block_holds_what_was_packed(packed: list[Outcome]):
    block = OutcomeBlock.pack(packed)
    assert unpacked(block) == packed
    for outcome in packed:
        assert block.get(outcome.id) == outcome
    missing = packed[0].id + 1
    assert block.get(missing) == next((one for one in packed if one.id == missing), None)


def test_every_outcome_is_found_whatever_was_packed_meanwhile(small_blocks: None):
    memory = OutcomeMemory(LIMITS)
    put = [one_shot(number, f"job {number % 4}") for number in range(50)]
    for number, outcome in enumerate(put):
        memory.put(outcome)
        assert [memory.get(one.id) for one in put[: number + 1]] == put[: number + 1]
    assert len(memory.remembered().recent) <= LIMITS.outcomes_max
    assert memory.get(put[-1].id + 1) is None
    again = OutcomeMemory(LIMITS, memory.remembered())
    for outcome in (one_shot(60), one_shot(61)):
        memory.put(outcome)
        again.put(outcome)
    assert again.remembered() == memory.remembered()
    assert len(again) == 52


def test_outcomes_of_six_hours_at_a_thousand_a_second_fit_the_limit():
    block = OutcomeBlock.pack([one_shot(number) for number in range(BLOCK_OUTCOMES)])
    blocks = 6 * 3_600 * 1_000 // BLOCK_OUTCOMES
    assert block.memory_bytes * blocks <= TransactionLimits().outcome_block_bytes_max


def test_the_oldest_blocks_go_first_when_they_take_too_much(small_blocks: None):
    memory = OutcomeMemory(replace(LIMITS, outcome_block_bytes_max=1_000))
    for number in range(50):
        memory.put(one_shot(number))
    kept = [number for number in range(50) if memory.get(one_shot(number).id) is not None]
    assert kept == list(range(kept[0], 50))
    assert 3 < len(kept) < 20


def test_owners_without_end_take_no_memory_without_end(small_blocks: None):
    memory = OutcomeMemory(replace(LIMITS, outcome_block_bytes_max=5_000))
    for number in range(200):
        memory.put(one_shot(number, "x" * 250 + str(number)))
    assert sum(block.memory_bytes for block in memory.remembered().blocks) <= 5_000


def test_what_is_older_than_the_memory_is_forgotten(small_blocks: None):
    memory = OutcomeMemory(LIMITS)
    for number in (0, 1, 2, 3, 50_000):
        memory.put(one_shot(number))
    assert memory.get(one_shot(0).id) is not None
    memory.put(one_shot(60_003 + 1))
    assert [number for number in (0, 1, 2, 3, 50_000) if memory.get(one_shot(number).id)] == [50_000]


def test_an_invalid_one_keeps_what_its_late_abort_needs(small_blocks: None):
    memory = OutcomeMemory(LIMITS)
    failed = invalid(0)
    memory.put(failed)
    for number in range(1, 20):
        memory.put(one_shot(number))
    assert memory.get(failed.id) == failed
    undone = changed(failed, state=State.ABORTED, pointers=(), topics=())
    memory.put(undone)
    assert memory.get(failed.id) == undone


def test_invalid_ones_are_forgotten_by_number(small_blocks: None):
    memory = OutcomeMemory(LIMITS)
    for number in range(20):
        memory.put(invalid(number))
    assert len(memory.remembered().invalid) <= LIMITS.invalid_outcomes_max
    assert memory.get(invalid(19).id) == invalid(19)
    assert memory.get(invalid(0).id) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"count": 3},
        {"count": 0},
        {"count": 2_000_000_000},
        {"last": 17},
        {"owners": ()},
        {"data": b"no zlib"},
        {"data": zlib.compress(bytes(10_000_000))},
    ],
)
def test_a_block_that_was_not_packed_like_this_is_damage(damage: dict[str, object]):
    block = OutcomeBlock.pack([one_shot(0), one_shot(1)])
    with pytest.raises(CorruptionError, match="block of"):
        unpacked(changed(block, **damage))
