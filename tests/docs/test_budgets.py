"""A soak makes more examples of every test with Hypothesis, whichever way the test was written."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests import budgets


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "EXAMPLES_FACTOR", 10)


def test_a_soak_makes_ten_times_the_examples_of_a_test(soak: None):
    made = []

    @settings(max_examples=3, database=None)
    @given(st.integers())
    def some_test(number: int) -> None:
        made.append(number)

    for _ in range(2):  # a test with two parameters is collected twice
        budgets.give_examples(SimpleNamespace(obj=some_test, cls=None))
    some_test()
    assert len(made) == 30


def test_a_soak_makes_ten_times_the_runs_of_a_state_machine(soak: None):
    made = []

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        @rule()
        def step(self) -> None:
            pass

    case = Machine.TestCase
    case.settings = settings(case.settings, max_examples=3, stateful_step_count=2, database=None)
    test = case("runTest")
    for _ in range(2):
        budgets.give_examples(SimpleNamespace(obj=test.runTest, cls=case))
    assert case.settings.max_examples == 30
    test.runTest()
    assert len(made) >= 30


def test_a_slow_example_fails_nothing():
    paused = iter([0.3, 0, 0])  # more than Hypothesis allows by itself, and only once

    @settings(max_examples=1, database=None)
    @given(st.integers())
    def some_test(number: int) -> None:
        time.sleep(next(paused))

    some_test()
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_a_test_without_hypothesis_is_left_alone(soak: None):
    def plain_test() -> None:
        pass

    budgets.give_examples(SimpleNamespace(obj=plain_test, cls=None))
    assert vars(plain_test) == {}


NAME = "tests/control/groups/test_groups.py::test_%d[%s]"


def left(parameters: str) -> list[int]:
    return [number for number in range(400) if budgets.is_left_to_soaks(NAME % (number, parameters))]


def test_of_tests_on_hbase_with_tails_in_memory_one_in_so_many_is_no_matter_for_a_soak(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(budgets, "HBASE_CACHED_ONE_IN", 8)
    assert 330 < len(left("hbase-cached")) < 370
    assert left("hbase-cached") == left("hbase-cached-shared") == left("3-hbase-cached")
    assert left("hbase-stored") == left("by-row-cached") == left("atomic-cached-shared") == []
    monkeypatch.setattr(budgets, "HBASE_CACHED_ONE_IN", 1)
    assert left("hbase-cached") == []


@pytest.mark.parametrize(
    ("args", "keyword", "expected"),
    [(["tests"], "", 1), (["tests/test_it.py::test_0[hbase-cached]"], "", 8), (["tests"], "hbase-cached", 8)],
    ids=["all", "a name", "a keyword"],
)
def test_what_the_command_line_names_is_left_to_nobody(args, keyword, expected, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(budgets, "HBASE_CACHED_ONE_IN", 8)
    gone: list[object] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: gone.extend(items))
    config = SimpleNamespace(args=args, option=SimpleNamespace(keyword=keyword), hook=hook)
    kept, taken = next(number for number in range(400) if number not in left("hbase-cached")), left("hbase-cached")[:7]
    items = [SimpleNamespace(nodeid=NAME % (number, "hbase-cached")) for number in (kept, *taken)]
    budgets.leave_to_soaks(config, items)
    assert len(items) == expected
    assert len(items) + len(gone) == 8
