"""Comparing two trees: `bench.versus`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from bench import versus
from bench.cases import Round, Rounds


def test_a_comparison_tells_the_ratios_of_costs_pair_by_pair():
    line = versus.comparison("publish-500", old=rounds(10.0, 20.0, 10.0), new=rounds(11.0, 19.0, 10.0))
    assert line.split() == [
        "publish-500", "10.00", "->", "11.00", "CPU", "us/message", "=", "1.000", "(0.950", "to", "1.100)",
    ]  # fmt: skip


def test_a_comparison_sets_the_best_rates_and_latencies_side_by_side_and_tells_what_the_load_took():
    old = [Round(1.0, per_s=1_000.0, p50_ms=2.0, load_us=3.0), Round(1.0, per_s=2_000.0, p50_ms=4.0, load_us=3.0)]
    new = [Round(1.0, per_s=5_000.0, p50_ms=8.0, load_us=4.0), Round(1.0, per_s=3_000.0, p50_ms=1.0, load_us=4.0)]
    line = versus.comparison("publish-500", old, new)
    assert "2,000 -> 5,000/s = 2.50   p50 2.00 -> 1.00 ms = 0.50   1.00 -> 1.00 CPU" in line
    assert line.endswith("load 3.0, 4.0 us")


def rounds(*costs: float) -> list[Round]:
    return [Round(cost) for cost in costs]


class Turns(versus.Child):
    """A child that notes whose turn it is."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def next_round(self) -> Round:
        self.seen.append(self.name)
        return Round(len(self.seen))


def test_trees_take_turns_at_being_first_and_the_first_turn_of_each_is_a_warm_up():
    seen: list[str] = []
    assert versus.paired([Turns("old", seen), Turns("new", seen)], 2) == [rounds(3, 6), rounds(4, 5)]
    assert seen == ["new", "old", "old", "new", "new", "old"]


def test_a_tree_is_measured_with_its_own_packages(tmp_path: Path):
    package = tmp_path / "control" / "basalt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit(7)")
    child = versus.Child(tmp_path, "start", True)
    with pytest.raises(RuntimeError, match=f"start on {tmp_path} failed, with exit code 7"):
        child.next_round()
    child.close()


def test_a_round_is_done_whenever_it_is_asked_for_and_the_case_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch):
    folders = []

    def case(folder: Path, scale: int) -> Rounds:
        folders.append(folder)
        try:
            yield from rounds(float(scale), 2.5, 3.5)
        finally:
            assert folder.exists()
            folders.append("closed")

    monkeypatch.setitem(versus.CASES, "start", (case, "CPU ms"))
    answers = io.BytesIO()
    versus.answer_rounds("start", True, io.BytesIO(b"\n\n"), answers)
    assert [Round(**json.loads(line)) for line in answers.getvalue().splitlines()] == rounds(10.0, 2.5)
    assert folders[1:] == ["closed"]
    assert not folders[0].exists()


def test_a_child_that_fails_ends_the_comparison(tmp_path: Path):
    child = versus.Child(tmp_path, "no such case", True)
    with pytest.raises(RuntimeError, match=r"no such case on .* failed, with exit code 2"):
        child.next_round()
    child.close()


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["--old", "somewhere"], ["--old", "a", "--new", "b", "--pairs", "0"]]
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["versus", *arguments])
    with pytest.raises(SystemExit):
        versus.main()
